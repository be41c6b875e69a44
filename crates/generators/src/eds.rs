//! Endpoints of clusters (EDS; clusters-endpoints §19).

mod assignment;
mod candidates;
mod group;
mod lb_endpoint;
mod local;
mod network;
mod plan;
mod priority;
mod view;

#[cfg(test)]
pub(crate) mod tests;

use std::{hash::Hash, sync::Arc};

use envoy_types::pb::envoy::config::endpoint::v3::{ClusterLoadAssignment, LocalityLbEndpoints};
use model::{Features, Resolution, fingerprint};
use pushctx::{ProxyClass, PushContext};
use rayon::prelude::*;
use xds::{Interest, Resource, ResourceSet, Source};

use crate::{
    cache::{Cache, Stats},
    inputs,
    names::{self, ClusterName, Direction},
};

pub(crate) use assignment::{AssignmentInputs, Purpose};
pub(crate) use lb_endpoint::{internal_address, tunnels};
pub(crate) use plan::EndpointPlanner;

/// How many assignments a thread makes at least.
const NAMES_OF_THREAD: usize = 64;

/// Generates load assignments.
#[derive(Debug)]
pub struct Eds {
    cache: Cache<Arc<Resource>>,
}

impl Eds {
    /// Makes a generator that keeps about `capacity` built assignments.
    pub fn new(capacity: usize) -> Self {
        Self {
            cache: Cache::new(capacity),
        }
    }

    /// Makes a generator as the flags want it.
    pub fn with_features(features: &Features) -> Self {
        Self::new(features.xds_cache_size as usize)
    }

    /// What the cache did.
    pub fn stats(&self) -> Stats {
        self.cache.stats()
    }

    /// Builds the load assignments that `interest` names. A name that leads nowhere gets an empty one:
    /// a cluster that waits for it must not wait for ever.
    ///
    /// Asked for everything, it gives the assignments of all EDS clusters that services of the class
    /// have.
    pub fn generate(
        &self,
        snapshot: &PushContext,
        class: &ProxyClass,
        interest: &Interest,
    ) -> ResourceSet {
        let planner = EndpointPlanner::new(snapshot, class);
        let names: Vec<Arc<str>> = match interest {
            Interest::Named(names) => names.iter().cloned().collect(),
            Interest::Everything => planner.names(),
        };
        names
            .par_iter()
            .with_min_len(NAMES_OF_THREAD)
            .map_init(
                || planner.for_thread(),
                |planner, name| self.assignment(planner, name),
            )
            .collect::<Vec<_>>()
            .into_iter()
            .collect()
    }

    fn assignment(&self, planner: &EndpointPlanner<'_>, name: &Arc<str>) -> Arc<Resource> {
        if **name == *names::LOCAL {
            return match planner.local() {
                Some(inputs) => self.cached(name, &inputs, || inputs.build(), Arc::default),
                None => Arc::new(empty(name)),
            };
        }
        let parsed = ClusterName::parse(name);
        let is_handled = parsed.direction == Direction::InboundVip;
        let service = if is_handled {
            planner.handled(parsed.hostname)
        } else {
            planner.service(parsed.hostname)
        };
        let service = service.filter(|service| {
            service.port(parsed.port).is_some()
                && !matches!(
                    service.resolution,
                    Resolution::DnsLb | Resolution::DnsRoundRobinLb | Resolution::DynamicDns
                )
        });
        let Some(service) = service else {
            return Arc::new(empty(name));
        };
        let (purpose, subset, rule) = if is_handled {
            let subset = names::vip_subset(parsed.subset);
            (Purpose::Handled, subset, planner.inbound_rule(service))
        } else if parsed.dns_form {
            (Purpose::SniDnat, parsed.subset, planner.rule(service))
        } else {
            (Purpose::Assignment, parsed.subset, planner.rule(service))
        };
        let assignment = planner.inputs(service, parsed.port, subset, rule, purpose);
        let sources = || inputs::sources(Some(service), rule.map(|r| &**r));
        self.cached(name, &assignment, || assignment.build(), sources)
    }

    fn cached(
        &self,
        name: &Arc<str>,
        inputs: &impl Hash,
        build: impl FnOnce() -> Vec<LocalityLbEndpoints>,
        sources: impl FnOnce() -> Arc<[Source]>,
    ) -> Arc<Resource> {
        self.cache
            .get_or_build(fingerprint::of(&(name, inputs)), || {
                let assignment = ClusterLoadAssignment {
                    cluster_name: name.to_string(),
                    endpoints: build(),
                    ..ClusterLoadAssignment::default()
                };
                let body = envoy_json::canonical(&assignment);
                Arc::new(Resource::new(name.clone(), body).with_sources(sources()))
            })
    }
}

fn empty(name: &str) -> Resource {
    let assignment = ClusterLoadAssignment {
        cluster_name: name.to_owned(),
        ..ClusterLoadAssignment::default()
    };
    Resource::new(name, envoy_json::canonical(&assignment))
}

//! Clusters (CDS; clusters-endpoints §1 to §18).
//!
//! [`Cds::generate`] plans what a class needs as inputs of builders (`outbound`, `inbound`,
//! `forward_proxy`, `fixed`) and runs those whose inputs were not seen before. Builders see nothing
//! but their inputs.

mod balancer;
mod client;
mod fixed;
mod forward_proxy;
mod gateway;
mod http;
mod inbound;
mod metadata;
mod mutual_tls;
mod outbound;
mod outlier;
mod parts;
mod plan;
mod pool;
mod stat_name;
mod upstream_tls;
mod waypoint;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, hash::Hash, sync::Arc};

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use model::{Features, ProxyType, Service, fingerprint};
use pushctx::{ProxyClass, PushContext};
use rayon::prelude::*;
use xds::{Interest, Resource, ResourceSet, Source};

use crate::{
    cache::{Cache, Stats},
    inputs,
    names::{self, ClusterName},
    patch::{ClassPatches, ClusterPatches, Pass, Patcher, Run},
};
use plan::Planner;

/// Generates clusters. What was built for one class or snapshot is used again for all others in which
/// its inputs are the same.
#[derive(Debug)]
pub struct Cds {
    cache: Cache<Option<Arc<Resource>>>,
    patcher: Patcher<ClusterPatches>,
}

/// The patches of a class, where it has some.
type Patches = Option<ClassPatches<ClusterPatches>>;

impl Cds {
    /// Makes a generator that keeps about `capacity` built clusters.
    pub fn new(capacity: usize) -> Self {
        Self {
            cache: Cache::new(capacity),
            patcher: Patcher::new(capacity),
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

    /// Builds the clusters of a class that `interest` asks for, sorted by name.
    pub fn generate(
        &self,
        snapshot: &PushContext,
        class: &ProxyClass,
        interest: &Interest,
    ) -> ResourceSet {
        if class.proxy.proxy_type == ProxyType::Ztunnel {
            return ResourceSet::default();
        }
        let planner = Planner::new(snapshot, class);
        let patches = self.patcher.resolve(snapshot, class);
        let outward = Pass::outbound(class.proxy.proxy_type);
        let services: Vec<&Arc<Service>> = match interest.names() {
            None => planner.services().collect(),
            Some(names) => {
                // Only the services behind the names are looked at.
                let hosts: BTreeSet<&str> = names
                    .iter()
                    .map(|name| ClusterName::parse(name).hostname)
                    .collect();
                hosts
                    .into_iter()
                    .filter_map(|host| planner.service(host))
                    .collect()
            }
        };
        let outbound: Vec<Vec<Arc<Resource>>> = services
            .par_iter()
            .map(|service| {
                let built = self.of_service(&planner, service);
                let patched = |r| self.patched(&patches, &r, &[], outward);
                built.into_iter().filter_map(patched).collect()
            })
            .collect();
        let rest = self.without_service(&planner, class, &patches);
        outbound
            .into_iter()
            .flatten()
            .chain(rest)
            .filter(|r| interest.wants(r.name()))
            .collect()
    }

    /// The clusters of one service.
    fn of_service(&self, planner: &Planner<'_>, service: &Arc<Service>) -> Vec<Arc<Resource>> {
        let mut resources = Vec::with_capacity(service.ports.len());
        if outbound::is_forward_proxy(service) {
            for of_port in planner.forward_proxies(service) {
                let sources = || inputs::sources(Some(service), of_port.rule.as_deref());
                resources.extend(self.cached(&of_port, || of_port.build(), sources));
            }
            return resources;
        }
        for cluster in planner.outbound(service) {
            let sources = || inputs::sources(Some(service), cluster.rule.as_deref());
            resources.extend(self.cached(&cluster, || cluster.build(), sources));
        }
        resources
    }

    /// Fixed clusters, those of inbound traffic, and those that EnvoyFilters add.
    fn without_service(
        &self,
        planner: &Planner<'_>,
        class: &ProxyClass,
        patches: &Patches,
    ) -> Vec<Arc<Resource>> {
        let client = planner.client();
        let outward = Pass::outbound(client.proxy_type);
        let none = || inputs::sources(None, None);
        let mut resources = Vec::new();
        let mut fixed = |name: &str, build: &dyn Fn() -> Cluster| {
            let built = self.cached(&(name, client), || Some(build()), none);
            let pass = match name {
                names::BLACK_HOLE | names::PASSTHROUGH => outward,
                names::INBOUND_PASSTHROUGH => Pass::SidecarInbound,
                // Helpers of tunnels and secrets are not patched.
                _ => {
                    resources.extend(built);
                    return;
                }
            };
            resources.extend(built.and_then(|r| self.patched(patches, &r, &[], pass)));
        };
        if client.proxy_type == ProxyType::Waypoint {
            fixed(names::MAIN_INTERNAL, &|| fixed::main_internal(client));
            fixed(names::ENCAP, &|| fixed::encap(client));
        } else {
            fixed(names::BLACK_HOLE, &|| fixed::black_hole(client));
        }
        if client.proxy_type == ProxyType::Sidecar {
            fixed(names::PASSTHROUGH, &|| fixed::passthrough(client));
            fixed(names::INBOUND_PASSTHROUGH, &|| {
                fixed::inbound_passthrough(client)
            });
            if planner.listens_hbone() {
                fixed(names::MAIN_INTERNAL, &|| fixed::main_internal(client));
            }
        }
        if client.credential_socket {
            fixed(names::SDS_EXTERNAL, &|| fixed::sds_external(client));
        }
        if client.hbone || client.proxy_type == ProxyType::Waypoint {
            let metadata = &class.proxy.metadata;
            let waypoint_of =
                (client.proxy_type == ProxyType::Waypoint).then_some(metadata.namespace.as_str());
            let key = (names::CONNECT_ORIGINATE, client, waypoint_of);
            let build = || Some(fixed::connect_originate(client, waypoint_of));
            resources.extend(self.cached(&key, build, none));
        }
        for of_port in waypoint::plan(class, client, planner.endpoints()) {
            let sources = || inputs::sources(Some(&of_port.service), of_port.rule.as_deref());
            resources.extend(self.cached(&of_port, || of_port.build(), sources));
        }
        if let Some(resolver) = planner.allow_any_dynamic_dns() {
            let key = (names::ALLOW_ANY_DYNAMIC_DNS, client, resolver);
            let build = || Some(forward_proxy::allow_any(client, resolver));
            let built = self.cached(&key, build, none);
            resources.extend(built.and_then(|r| self.patched(patches, &r, &[], outward)));
        }
        if client.proxy_type == ProxyType::Sidecar {
            for of_port in inbound::plan(class, client, planner.merges_inbound()) {
                let sources =
                    || inputs::sources(of_port.primary.as_deref(), of_port.rule.as_deref());
                let built = self.cached(&of_port, || Some(of_port.build()), sources);
                let hosts = of_port.hostnames();
                let pass = Pass::SidecarInbound;
                resources.extend(built.and_then(|r| self.patched(patches, &r, &hosts, pass)));
            }
        }
        let passes = match client.proxy_type {
            ProxyType::Sidecar => &[Pass::SidecarOutbound, Pass::SidecarInbound][..],
            ProxyType::Router => &[Pass::Gateway],
            ProxyType::Waypoint | ProxyType::Ztunnel => &[Pass::SidecarInbound],
        };
        for (pass, patches) in passes
            .iter()
            .flat_map(|pass| patches.iter().map(move |patches| (pass, patches)))
        {
            let adding = patches.index().adding(*pass);
            let name = |cluster: &Cluster| cluster.name.clone();
            resources.extend(self.patcher.added(patches, adding, name));
        }
        resources
    }

    /// Patches a finished cluster; `None` when a patch removes it. `hosts` are the host names behind
    /// an inbound cluster.
    fn patched(
        &self,
        patches: &Patches,
        built: &Arc<Resource>,
        hosts: &[Arc<str>],
        pass: Pass,
    ) -> Option<Arc<Resource>> {
        let Some(patches) = patches else {
            return Some(built.clone());
        };
        let reach = patches.index().reach(built.name(), hosts, pass);
        let apply = |cluster: Cluster, run: &Run| {
            let cluster = patches.index().apply(cluster, hosts, run)?;
            Some((cluster.name.clone(), cluster))
        };
        self.patcher
            .patched(built, (patches, reach), pass, |_| true, apply)
    }

    /// Returns the resource that `build` makes of `inputs`, building it when these inputs are new.
    fn cached(
        &self,
        inputs: &impl Hash,
        build: impl FnOnce() -> Option<Cluster>,
        sources: impl FnOnce() -> Arc<[Source]>,
    ) -> Option<Arc<Resource>> {
        self.cache.get_or_build(fingerprint::of(inputs), || {
            build().map(|cluster| Arc::new(encode(&cluster).with_sources(sources())))
        })
    }
}

/// Encodes a finished cluster.
fn encode(cluster: &Cluster) -> Resource {
    Resource::new(cluster.name.as_str(), envoy_json::canonical(cluster))
}

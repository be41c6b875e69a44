//! Virtual hosts: names, domains and their order (routes §7).

use std::{cell::OnceCell, sync::Arc};

use envoy_types::pb::envoy::config::route::v3::VirtualHost;
use model::Service;
use rayon::prelude::*;
use rustc_hash::FxHashSet;

use super::{
    domains,
    groups::{self, Group},
    inputs::RouteInputs,
};
use crate::route;

/// Builds the virtual hosts of a name, sorted by name, without the catch-all.
pub(super) fn build(inputs: &RouteInputs) -> Vec<VirtualHost> {
    let groups = groups::build(inputs);
    let assembly = Assembly::new(inputs, &groups);
    // What a host would be does not depend on the others; what is left of it does.
    let candidates: Vec<Candidate> = groups
        .par_iter()
        .flat_map_iter(|group| assembly.candidates(group))
        .collect();
    let kept = assembly.settle(&candidates);
    let mut result: Vec<VirtualHost> = candidates
        .into_par_iter()
        .zip(kept)
        .filter_map(|(candidate, kept)| candidate.finish(&kept?))
        .collect();
    result.par_sort_by(|a, b| a.name.cmp(&b.name));
    if inputs.is_sniffed() {
        sniffed(result, &inputs.name)
    } else {
        result
    }
}

/// Builds the virtual hosts of VirtualServices and of the services that they may be for, with all the
/// domains that each would like to have.
pub(super) fn unsettled(inputs: &RouteInputs) -> Vec<VirtualHost> {
    let groups = groups::build(inputs);
    let assembly = Assembly::new(inputs, &groups);
    groups
        .par_iter()
        .flat_map_iter(|group| assembly.candidates(group))
        .map(|candidate| candidate.host)
        .collect()
}

/// Builds the virtual hosts of a service without VirtualService, with all the domains that each would
/// like to have.
pub(super) fn of_plain(service: &Arc<Service>, inputs: &RouteInputs) -> Vec<VirtualHost> {
    let groups = groups::of_service(service);
    let assembly = Assembly::new(inputs, &groups);
    let candidates = groups.iter().flat_map(|group| assembly.candidates(group));
    candidates.map(|candidate| candidate.host).collect()
}

/// Keeps the one virtual host that a sniffed name means (routes §7.6).
fn sniffed(hosts: Vec<VirtualHost>, name: &str) -> Vec<VirtualHost> {
    let host = name.rsplit_once(':').map_or(name, |(host, _)| host);
    let mut found: Vec<_> = hosts
        .into_iter()
        .filter(|vh| vh.domains.iter().any(|d| d == name || d == host))
        .collect();
    if let [only] = &mut found[..] {
        only.domains = vec!["*".to_owned()];
    }
    found
}

/// A virtual host with all the domains that it would like to have.
struct Candidate {
    host: VirtualHost,
    /// Those domains that are only alternatives of the host name.
    alternatives: Vec<String>,
    port: u16,
}

impl Candidate {
    /// Drops the domains that are not kept; `None` when nothing is left.
    fn finish(self, kept: &[bool]) -> Option<VirtualHost> {
        let mut host = self.host;
        let mut kept = kept.iter();
        host.domains
            .retain(|_| kept.next().is_some_and(|kept| *kept));
        (!host.domains.is_empty()).then_some(host)
    }
}

struct Assembly<'a> {
    inputs: &'a RouteInputs,
    groups: &'a [Group],
}

impl<'a> Assembly<'a> {
    fn new(inputs: &'a RouteInputs, groups: &'a [Group]) -> Self {
        Self { inputs, groups }
    }

    /// The virtual hosts of a group: those of hosts without a service first.
    fn candidates(&self, group: &Group) -> Vec<Candidate> {
        let wanted = self.inputs.port == 0 || group.port == self.inputs.port;
        if !wanted {
            return Vec::new();
        }
        let hosts = group.hosts.iter().map(|host| {
            let host = host.to_lowercase();
            let domains = vec![domains::bracketed(&host)];
            self.candidate(&host, group, None, (domains, Vec::new()))
        });
        let services = group.services.iter().map(|s| self.of_service(s, group));
        hosts.chain(services).collect()
    }

    fn of_service(&self, service: &Service, group: &Group) -> Candidate {
        let port = (self.inputs.port == 0).then_some(group.port);
        let names = domains::of_service(service, port, &self.inputs.client);
        let domains = (names.all, names.alternatives);
        let mut candidate = self.candidate(&service.hostname, group, Some(service), domains);
        if let Some(labels) = &self.inputs.client.session
            && let Some(config) = route::session_of_service(service, labels)
        {
            let configs = &mut candidate.host.typed_per_filter_config;
            configs.insert(route::SESSION_FILTER.to_owned(), config);
        }
        candidate
    }

    fn candidate(
        &self,
        hostname: &str,
        group: &Group,
        service: Option<&Service>,
        (domains, alternatives): (Vec<String>, Vec<String>),
    ) -> Candidate {
        Candidate {
            host: VirtualHost {
                name: format!("{}:{}", domains::bracketed(hostname), group.port),
                domains,
                routes: group.routes(service, self.inputs),
                include_request_attempt_count: self.inputs.client.attempt_count,
                ..VirtualHost::default()
            },
            alternatives,
            port: group.port,
        }
    }

    /// Says for each candidate which domains it keeps, in order: names and domains belong to who
    /// comes first (routes §7.4, §7.5). `None` for a candidate whose name is taken.
    fn settle<'c>(&self, candidates: &'c [Candidate]) -> Vec<Option<Vec<bool>>> {
        let registry = OnceCell::new();
        let (mut names, mut taken) = (FxHashSet::default(), FxHashSet::default());
        names.reserve(candidates.len());
        taken.reserve(2 * candidates.len());
        let mut settled = Vec::with_capacity(candidates.len());
        for candidate in candidates {
            let mut keeps = |domain: &'c String| {
                let key = domains::lowercase(domain);
                let hides = candidate.alternatives.contains(domain)
                    && registry.get_or_init(|| self.registry()).contains(&*key);
                let free = !hides && taken.insert(key);
                free && (self.inputs.port != 0 || candidate.port == 80 || domain.contains(':'))
            };
            let is_first = names.insert(candidate.host.name.as_str());
            settled.push(is_first.then(|| candidate.host.domains.iter().map(&mut keeps).collect()));
        }
        settled
    }

    /// Host names of all services, with and without port: no short form may hide one.
    fn registry(&self) -> FxHashSet<String> {
        let mut registry = FxHashSet::default();
        for group in self.groups {
            for service in &group.services {
                let hostname = service.hostname.to_lowercase();
                registry.insert(format!("{hostname}:{}", group.port));
                registry.insert(hostname);
            }
        }
        registry
    }
}

//! Virtual hosts: names, domains and their order (routes §7).

use std::collections::HashSet;

use envoy_types::pb::envoy::config::route::v3::VirtualHost;

use super::{
    domains,
    groups::{self, Group},
    inputs::RouteInputs,
};
use crate::route;

/// Builds the virtual hosts of a name, sorted by name, without the catch-all.
pub(super) fn build(inputs: &RouteInputs) -> Vec<VirtualHost> {
    let groups = groups::build(inputs);
    let mut hosts = Assembly::new(inputs, &groups);
    for group in &groups {
        hosts.add_group(group);
    }
    let mut result = hosts.result;
    result.sort_by(|a, b| a.name.cmp(&b.name));
    if inputs.is_sniffed() {
        sniffed(result, &inputs.name)
    } else {
        result
    }
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

struct Assembly<'a> {
    inputs: &'a RouteInputs,
    /// Host names of all services, with and without port: no short form may hide one.
    registry: HashSet<String>,
    names: HashSet<String>,
    domains: HashSet<String>,
    result: Vec<VirtualHost>,
}

impl<'a> Assembly<'a> {
    fn new(inputs: &'a RouteInputs, groups: &[Group]) -> Self {
        let mut registry = HashSet::new();
        for group in groups {
            for service in &group.services {
                let hostname = service.hostname.to_lowercase();
                registry.insert(format!("{hostname}:{}", group.port));
                registry.insert(hostname);
            }
        }
        Self {
            inputs,
            registry,
            names: HashSet::new(),
            domains: HashSet::new(),
            result: Vec::new(),
        }
    }

    fn add_group(&mut self, group: &Group) {
        let all_ports = self.inputs.port == 0;
        if group.routes.is_empty() || !(all_ports || group.port == self.inputs.port) {
            return;
        }
        for host in &group.hosts {
            let host = host.to_lowercase();
            if let Some(mut vh) = self.start(&host, group) {
                vh.domains = vec![domains::bracketed(&host)];
                self.finish(vh, &[], group.port);
            }
        }
        for service in &group.services {
            if let Some(mut vh) = self.start(&service.hostname, group) {
                let port = all_ports.then_some(group.port);
                let names = domains::of_service(service, port, &self.inputs.client);
                vh.domains = names.all;
                if let Some(labels) = &self.inputs.client.session
                    && let Some(config) = route::session_of_service(service, labels)
                {
                    vh.typed_per_filter_config
                        .insert(route::SESSION_FILTER.to_owned(), config);
                }
                self.finish(vh, &names.alternatives, group.port);
            }
        }
    }

    /// Starts a virtual host; `None` when its name is taken.
    fn start(&mut self, hostname: &str, group: &Group) -> Option<VirtualHost> {
        let name = format!("{}:{}", domains::bracketed(hostname), group.port);
        self.names.insert(name.clone()).then(|| VirtualHost {
            name,
            routes: group.routes.to_vec(),
            include_request_attempt_count: self.inputs.client.attempt_count,
            ..VirtualHost::default()
        })
    }

    /// Drops domains that are taken and keeps the virtual host if some are left (routes §7.4, §7.5).
    fn finish(&mut self, mut vh: VirtualHost, alternatives: &[String], port: u16) {
        vh.domains.retain(|domain| {
            let key = domain.to_lowercase();
            let hides = self.registry.contains(&key) && alternatives.contains(domain);
            !hides && self.domains.insert(key)
        });
        if self.inputs.port == 0 && port != 80 {
            vh.domains.retain(|domain| domain.contains(':'));
        }
        if !vh.domains.is_empty() {
            self.result.push(vh);
        }
    }
}

//! Which routes belong to which hosts (routes §6).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use envoy_types::pb::envoy::config::route::v3::Route;
use model::{Service, host};
use pushctx::{ResolvedVirtualService, RouteSemantics};

use super::inputs::RouteInputs;
use crate::route::{self, RouteContext};

/// Hosts of one port that share a route list.
pub(super) struct Group {
    /// The port.
    pub port: u16,
    /// Hosts that no service has.
    pub hosts: Vec<String>,
    /// Services.
    pub services: Vec<Arc<Service>>,
    /// The routes; `None` stands for the default route of its one service.
    pub routes: Option<Arc<Vec<Route>>>,
}

impl Group {
    /// The routes of a virtual host for a service, or for a host that no service has.
    pub(super) fn routes(&self, service: Option<&Service>, inputs: &RouteInputs) -> Vec<Route> {
        match (&self.routes, service) {
            (Some(routes), _) => routes.to_vec(),
            (None, Some(service)) => {
                let rule = inputs.rules.get(&*service.hostname);
                let retries = inputs.client.retries.as_ref();
                let rule = rule.map(|rule| &**rule);
                vec![route::default_route(service, self.port, rule, retries)]
            }
            (None, None) => Vec::new(),
        }
    }
}

/// Builds all groups: VirtualServices in import order, then the remaining services by host name.
pub(super) fn build(inputs: &RouteInputs) -> Vec<Group> {
    let mesh = BTreeSet::from(["mesh".to_owned()]);
    let service = |host: &str| inputs.services.get(host).cloned();
    let rule = |host: &str| inputs.rules.get(host).cloned();
    let ctx = RouteContext {
        listener_port: inputs.port,
        gateways: &mesh,
        labels: &inputs.client.labels,
        namespace: &inputs.client.namespace,
        service: &service,
        rule: &rule,
        mesh_retry: inputs.client.retries.as_ref(),
        forwarded_host: inputs.client.forwarded_host,
        tls_server: false,
        plain_shadow_host: inputs.client.plain_shadow_host,
        session: inputs.client.session.as_ref(),
        handles: None,
    };
    let mut groups = Vec::new();
    let mut taken: BTreeSet<Arc<str>> = BTreeSet::new();
    for vs in &inputs.virtual_services {
        for group in of_virtual_service(vs, inputs, &ctx) {
            taken.extend(group.services.iter().map(|s| s.hostname.clone()));
            groups.push(group);
        }
    }
    for service in inputs
        .services
        .values()
        .filter(|s| !taken.contains(&s.hostname))
    {
        groups.extend(of_service(service));
    }
    groups
}

fn of_virtual_service(
    vs: &ResolvedVirtualService,
    inputs: &RouteInputs,
    ctx: &RouteContext<'_>,
) -> Vec<Group> {
    let routes = route::translate(vs, ctx);
    if routes.is_empty() {
        return Vec::new();
    }
    let routes = Arc::new(routes);
    let (hosts, services) = split_hosts(vs, inputs);
    if vs.semantics == RouteSemantics::Gateway {
        let own = &vs.config.meta.namespace;
        let near =
            |s: &Arc<Service>| s.attributes.namespace == *own || inputs.client.namespace == *own;
        if !services.iter().any(near) {
            return Vec::new();
        }
    }
    // Port 80 first, then ascending: the order in which domains are taken (routes §21).
    let mut by_port: BTreeMap<(bool, u16), Vec<Arc<Service>>> = BTreeMap::new();
    for service in services {
        for port in &service.ports {
            if port.protocol.is_http() || port.protocol.is_unsupported() {
                by_port
                    .entry((port.port != 80, port.port))
                    .or_default()
                    .push(service.clone());
            }
        }
    }
    if by_port.is_empty() && inputs.port == 80 {
        by_port.insert((false, 80), Vec::new());
    }
    by_port
        .into_iter()
        .map(|((_, port), services)| Group {
            port,
            hosts: hosts.clone(),
            services,
            routes: Some(routes.clone()),
        })
        .collect()
}

/// Splits a VirtualService's hosts into those of services and all others (routes §6.1).
fn split_hosts(
    vs: &ResolvedVirtualService,
    inputs: &RouteInputs,
) -> (Vec<String>, Vec<Arc<Service>>) {
    let mut hosts = Vec::new();
    let mut services: Vec<Arc<Service>> = Vec::new();
    let me = (&vs.config.meta.namespace, &vs.config.meta.name);
    for name in &vs.config.spec.hosts {
        if !host::is_wildcard(name) {
            match inputs.services.get(name.to_lowercase().as_str()) {
                Some(service) => services.push(service.clone()),
                None => hosts.push(name.clone()),
            }
            continue;
        }
        if vs.semantics == RouteSemantics::Gateway {
            hosts.push(name.to_lowercase());
            continue;
        }
        let mut matched = false;
        for (hostname, service) in &inputs.services {
            if host::matches(name, hostname) {
                matched = true;
                if inputs
                    .owners
                    .get(hostname)
                    .is_some_and(|(ns, n)| (ns, n) == me)
                {
                    services.push(service.clone());
                }
            }
        }
        if !matched {
            hosts.push(name.clone());
        }
    }
    (hosts, services)
}

/// Groups of a service that no VirtualService claims: one per HTTP or sniffed port (routes §6.2).
pub(super) fn of_service(service: &Arc<Service>) -> Vec<Group> {
    if service.resolution == model::Resolution::Alias {
        return Vec::new();
    }
    service
        .ports
        .iter()
        .filter(|p| p.protocol.is_http() || p.protocol.is_unsupported())
        .map(|port| Group {
            port: port.port,
            hosts: Vec::new(),
            services: vec![service.clone()],
            routes: None,
        })
        .collect()
}

//! Which clusters gateways have (clusters-endpoints §2, §14).

use std::collections::BTreeSet;

use model::Service;
use pushctx::{PatchTarget, ProxyClass, PushContext};

use crate::security::jwt;

/// Annotation of `EnvoyFilters` that name services of their own.
const REFERENCED_SERVICES: &str = "envoyfilter.istio.io/referenced-services";

/// Tells whether a gateway passes connections through by SNI: one of its servers is
/// `AUTO_PASSTHROUGH`.
pub(super) fn passes_through(class: &ProxyClass) -> bool {
    class
        .gateway
        .as_ref()
        .is_some_and(|gateway| gateway.auto_passthrough)
}

/// The services that a gateway needs, when it gets no others.
#[derive(Debug)]
pub(super) struct NeededServices {
    /// Host names, in whatever namespace.
    hosts: BTreeSet<String>,
    /// Namespaces and host names.
    exact: BTreeSet<(String, String)>,
}

impl NeededServices {
    /// Collects what routes of the gateway's Gateways send to, and what providers, token issuers and
    /// `EnvoyFilters` refer to; for waypoints, what routes of the services send to that they handle.
    /// `None` for proxies that get all services.
    pub(super) fn new(snapshot: &PushContext, class: &ProxyClass) -> Option<Self> {
        let filtered = snapshot.features().filter_gateway_cluster_config && class.proxy.is_router();
        if !filtered && class.waypoint.is_none() {
            return None;
        }
        let mut needed = Self {
            hosts: BTreeSet::new(),
            exact: BTreeSet::new(),
        };
        let namespace = &class.proxy.namespace;
        for gateway in class.gateway.iter().flat_map(|gateway| &gateway.gateways) {
            let name = gateway.to_string();
            for route in snapshot.virtual_services().for_gateway(namespace, &name) {
                needed
                    .hosts
                    .extend(route.destination_hosts().map(str::to_owned));
            }
        }
        if let Some(waypoint) = &class.waypoint {
            let routes = class
                .scope
                .egress
                .iter()
                .flat_map(|e| e.virtual_services.iter());
            for route in routes {
                let mut hosts = route.config.spec.hosts.iter();
                if !hosts.any(|host| waypoint.service(host).is_some()) {
                    continue;
                }
                // What it handles too is reached by clusters of another kind.
                let others = route.destination_hosts().filter(|host| {
                    let handled = waypoint.service(host);
                    handled.is_none_or(|service| service.mesh_external)
                });
                needed.hosts.extend(others.map(str::to_owned));
            }
        }
        for provider in &snapshot.mesh().extension_providers {
            provider
                .service()
                .into_iter()
                .for_each(|service| needed.add(service));
        }
        let workload = class.workload();
        if fetches_keys(&snapshot.features().remote_jwks) {
            for policy in snapshot.request_authentications(&workload) {
                let issuers = policy.spec.jwt_rules.iter();
                let hosts = issuers.filter_map(jwt::jwks_host);
                needed.hosts.extend(hosts);
            }
        }
        for filter in snapshot.envoy_filters(&workload, &PatchTarget::ALL) {
            let stated = filter.meta.annotations.get(REFERENCED_SERVICES);
            let services = stated.into_iter().flat_map(|list| list.split(','));
            services
                .map(str::trim)
                .for_each(|service| needed.add(service));
        }
        Some(needed)
    }

    /// Adds `host` or `namespace/host`.
    fn add(&mut self, service: &str) {
        match service.split_once('/') {
            Some((namespace, host)) => {
                self.exact.insert((namespace.to_owned(), host.to_owned()));
            }
            None => {
                self.hosts.insert(service.to_owned());
            }
        }
    }

    /// Tells whether a service is needed.
    pub(super) fn contains(&self, service: &Service) -> bool {
        let exact = (
            service.attributes.namespace.to_string(),
            service.hostname.to_string(),
        );
        self.hosts.contains(&*service.hostname) || self.exact.contains(&exact)
    }
}

/// Tells whether proxies may fetch key sets themselves.
fn fetches_keys(mode: &str) -> bool {
    matches!(mode, "envoy" | "hybrid" | "true")
}

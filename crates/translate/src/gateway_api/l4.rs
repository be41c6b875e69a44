//! `TCPRoute`s and `TLSRoute`s as VirtualServices, one for each rule.

use model::{
    Config, MeshState, Meta,
    api::{
        VirtualService,
        common::Destination,
        gateway_api::L4RouteRule,
        virtual_service::{
            L4MatchAttributes, RouteDestination, TcpRoute, TlsMatchAttributes, TlsRoute,
        },
    },
};

use super::{
    INFIX, PARENTS, backend,
    listener::{Bound, hostname},
    parent::{self, Parent},
};

/// The subset that a rule without any share leads to; no cluster has its name.
const ZERO_WEIGHT: &str = "zero-weight";

pub(super) fn translate(
    state: &MeshState,
    listeners: &[Bound],
    output: &mut Vec<Config<VirtualService>>,
) {
    for route in state.objects.tcp_routes.values() {
        let parents = parent::resolve(
            state,
            listeners,
            "TCPRoute",
            route,
            &route.spec.parent_refs,
            &[],
        );
        for (index, rule) in route.spec.rules.iter().enumerate() {
            let name = format!("{}~tcp~{index}~{INFIX}", route.meta.name);
            for (part, target) in targets(&parents).into_iter().enumerate() {
                let Some(destinations) =
                    destinations(state, "TCPRoute", &route.meta, rule, target.mesh)
                else {
                    continue;
                };
                let on_port = target.port.map(|port| L4MatchAttributes {
                    port,
                    ..L4MatchAttributes::default()
                });
                let spec = VirtualService {
                    hosts: if target.mesh {
                        target.hosts.clone()
                    } else {
                        vec!["*".to_owned()]
                    },
                    gateways: target.gateways.clone(),
                    tcp: vec![TcpRoute {
                        r#match: on_port.into_iter().collect(),
                        route: destinations,
                    }],
                    ..VirtualService::default()
                };
                output.push(finish("TCPRoute", &route.meta, &name, part, spec));
            }
        }
    }
    for route in state.objects.tls_routes.values() {
        let hostnames = &route.spec.hostnames;
        let parents = parent::resolve(
            state,
            listeners,
            "TLSRoute",
            route,
            &route.spec.parent_refs,
            hostnames,
        );
        for (index, rule) in route.spec.rules.iter().enumerate() {
            let name = format!("{}~tls~{index}~{INFIX}", route.meta.name);
            for (part, target) in targets(&parents).into_iter().enumerate() {
                let Some(destinations) =
                    destinations(state, "TLSRoute", &route.meta, rule, target.mesh)
                else {
                    continue;
                };
                let names = target.names(hostnames);
                let hosts = if target.mesh {
                    target.hosts
                } else {
                    names.clone()
                };
                let spec = VirtualService {
                    hosts,
                    gateways: target.gateways,
                    tls: vec![TlsRoute {
                        r#match: vec![TlsMatchAttributes {
                            sni_hosts: names,
                            port: target.port.unwrap_or_default(),
                            ..TlsMatchAttributes::default()
                        }],
                        route: destinations,
                    }],
                    ..VirtualService::default()
                };
                output.push(finish("TLSRoute", &route.meta, &name, part, spec));
            }
        }
    }
}

/// What one VirtualService is bound to.
struct Target {
    mesh: bool,
    hosts: Vec<String>,
    gateways: Vec<String>,
    port: Option<u32>,
}

impl Target {
    /// Cuts the host names of a route to those that the parents have.
    fn names(&self, hostnames: &[String]) -> Vec<String> {
        if hostnames.is_empty() {
            return self.hosts.clone();
        }
        if self.mesh {
            return hostnames.to_vec();
        }
        let mut names: Vec<String> = Vec::new();
        for name in hostnames {
            for host in &self.hosts {
                let common = parent::narrower(host, name);
                if let Some(common) = common.filter(|c| !names.iter().any(|n| n == c)) {
                    names.push(common.to_owned());
                }
            }
        }
        names
    }
}

/// Listeners go together; every host of the mesh stands alone.
fn targets(parents: &[Parent<'_>]) -> Vec<Target> {
    let mut gateways = Vec::new();
    let mut hosts: Vec<String> = Vec::new();
    let mut result = Vec::new();
    for parent in parents {
        match parent {
            Parent::Listener(bound) => {
                gateways.push(format!("{}/{}", bound.namespace, bound.gateway()));
                let host = hostname(&bound.listener);
                if !hosts.iter().any(|h| h == host) {
                    hosts.push(host.to_owned());
                }
            }
            Parent::Mesh { host, port, .. } => result.push(Target {
                mesh: true,
                hosts: vec![host.clone()],
                gateways: vec!["mesh".to_owned()],
                port: *port,
            }),
        }
    }
    if !gateways.is_empty() {
        result.insert(
            0,
            Target {
                mesh: false,
                hosts,
                gateways,
                port: None,
            },
        );
    }
    result
}

/// `None` when the rule cannot be served.
fn destinations(
    state: &MeshState,
    kind: &'static str,
    meta: &Meta,
    rule: &L4RouteRule,
    mesh: bool,
) -> Option<Vec<RouteDestination>> {
    let used: Vec<_> = rule
        .backend_refs
        .iter()
        .filter(|b| backend::weight(b.weight) > 0)
        .collect();
    if used.is_empty() {
        let destination = Destination {
            host: format!("internal.{}", state.identity.domain),
            subset: ZERO_WEIGHT.to_owned(),
            port: Some(model::api::common::PortSelector { number: 65535 }),
        };
        return Some(vec![RouteDestination {
            destination: Some(destination),
            weight: 0,
        }]);
    }
    let found = used.iter().map(|b| {
        Ok::<_, String>(RouteDestination {
            destination: Some(backend::destination(state, kind, &meta.namespace, b, mesh)?),
            weight: if used.len() == 1 {
                0
            } else {
                backend::weight(b.weight)
            },
        })
    });
    let found: Result<_, _> = found.collect();
    found
        .inspect_err(|reason| {
            tracing::debug!(route = %meta.namespaced_name(), reason, "route is not served");
        })
        .ok()
}

fn finish(
    kind: &str,
    from: &Meta,
    name: &str,
    part: usize,
    spec: VirtualService,
) -> Config<VirtualService> {
    // The first keeps the plain name; a route with several parents needs more.
    let name = if part == 0 {
        name.to_owned()
    } else {
        format!("{name}~{part}")
    };
    crate::config(&from.namespace, &name, from, spec, |meta| {
        crate::annotate(meta, crate::ROUTE_SEMANTICS, "gateway");
        let parent = format!("{kind}/{}.{}", from.name, from.namespace);
        crate::annotate(meta, PARENTS, parent);
    })
}

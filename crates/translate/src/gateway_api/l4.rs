//! `TCPRoute`s and `TLSRoute`s as VirtualServices, one for each rule.

use std::sync::Arc;

use model::{
    Config, Kind, MeshState, Meta,
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
    Attached, INFIX, PARENTS, backend,
    listener::{Bound, hostname},
    parent::{self, Attachment, Outcome, Parent},
};
use crate::report::{Refusal, Reports};

/// The subset that a rule without any share leads to; no cluster has its name.
const ZERO_WEIGHT: &str = "zero-weight";

pub(super) fn translate(
    state: &MeshState,
    listeners: &[Bound],
    attached: &mut Attached,
    output: &mut Vec<Config<VirtualService>>,
    reports: &mut Reports,
) {
    for route in state.objects.tcp_routes.values() {
        let attachment = parent::resolve(
            state,
            (listeners, reports),
            "TCPRoute",
            route,
            &route.spec.parent_refs,
            &[],
        );
        let mut made = Made::default();
        for (index, rule) in route.spec.rules.iter().enumerate() {
            let name = format!("{}~tcp~{index}~{INFIX}", route.meta.name);
            for (part, target) in targets(&attachment.parents).into_iter().enumerate() {
                let outcome = &mut made.of[usize::from(target.mesh)];
                let found =
                    destinations(state, "TCPRoute", &route.meta, rule, target.mesh, outcome);
                let Some(destinations) = found else { continue };
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
                Made::leads(attached, &attachment, &spec.tcp[0].route);
                output.push(finish("TCPRoute", &route.meta, &name, part, spec));
            }
        }
        made.report(Kind::TcpRoute, &route.meta, &attachment, attached, reports);
    }
    for route in state.objects.tls_routes.values() {
        let hostnames = &route.spec.hostnames;
        let attachment = parent::resolve(
            state,
            (listeners, reports),
            "TLSRoute",
            route,
            &route.spec.parent_refs,
            hostnames,
        );
        let mut made = Made::default();
        for (index, rule) in route.spec.rules.iter().enumerate() {
            let name = format!("{}~tls~{index}~{INFIX}", route.meta.name);
            for (part, target) in targets(&attachment.parents).into_iter().enumerate() {
                let outcome = &mut made.of[usize::from(target.mesh)];
                let found =
                    destinations(state, "TLSRoute", &route.meta, rule, target.mesh, outcome);
                let Some(destinations) = found else { continue };
                let names = target.names(hostnames);
                if names.is_empty() {
                    continue;
                }
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
                Made::leads(attached, &attachment, &spec.tls[0].route);
                output.push(finish("TLSRoute", &route.meta, &name, part, spec));
            }
        }
        made.report(Kind::TlsRoute, &route.meta, &attachment, attached, reports);
    }
}

/// What became of the rules of one route: for gateways, and for the mesh.
#[derive(Default)]
struct Made {
    of: [Outcome; 2],
}

impl Made {
    /// Notes where requests get to.
    fn leads(
        attached: &mut Attached,
        attachment: &Attachment<'_>,
        destinations: &[RouteDestination],
    ) {
        let hosts = destinations.iter();
        let hosts = hosts.filter_map(|route| Some(&*route.destination.as_ref()?.host));
        attached.leads(&attachment.parents, hosts);
    }

    /// Reports what became of the route.
    fn report(
        self,
        kind: Kind,
        meta: &Meta,
        attachment: &Attachment<'_>,
        attached: &mut Attached,
        reports: &mut Reports,
    ) {
        attached.count(attachment);
        let report = attachment.report(meta, |mesh| self.of[usize::from(mesh)].clone());
        let name = (kind, meta.namespaced_name());
        reports.routes.insert(name, Arc::new(report));
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
            // Of several names each host takes its own; a single one is taken as it is.
            let own = |name: &&String| {
                hostnames.len() == 1 || self.hosts.iter().any(|host| parent::meet(host, name))
            };
            return hostnames.iter().filter(own).cloned().collect();
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
                gateways.push(format!("{}/{}", bound.namespace, bound.gateway_name()));
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
    outcome: &mut Outcome,
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
    let (namespace, resolved) = (&meta.namespace, &mut outcome.resolved);
    let found = used.iter().map(|b| {
        let destination = backend::destination(state, kind, namespace, b, mesh, resolved)?;
        Ok::<_, Refusal>(RouteDestination {
            destination: Some(destination),
            weight: if used.len() == 1 {
                0
            } else {
                backend::weight(b.weight)
            },
        })
    });
    match found.collect() {
        Ok(found) => Some(found),
        Err(refusal) => {
            let reason = &refusal.message;
            tracing::debug!(route = %meta.namespaced_name(), reason, "route is not served");
            outcome.accepted = Err(refusal);
            None
        }
    }
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

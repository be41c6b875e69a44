//! Where a waypoint sends what a service is asked for.

use std::{collections::BTreeSet, sync::Arc};

use envoy_types::pb::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost};
use model::{ConfigKey, Port, Service, api, host};
use pushctx::ResolvedVirtualService;

use crate::{
    convert,
    lds::{
        by_host::ByHost,
        context::Context,
        outbound::{TcpDestination, TcpPlan, UNKNOWN_SERVICE, is_dynamic_wildcard, with_rule},
    },
    names,
    rds::ClientView,
    route::{self, RouteContext},
};

/// Size limit of direct responses, in bytes.
const MAX_DIRECT_RESPONSE_BYTES: u32 = 1024 * 1024;

/// Finds destinations as a class sees them.
pub(super) struct Destinations<'a> {
    ctx: &'a Context<'a>,
    client: ClientView,
    rules: ByHost<'a>,
}

impl<'a> Destinations<'a> {
    pub(super) fn new(ctx: &'a Context<'a>) -> Self {
        let listener = ctx.scope().egress.first();
        let all = listener.into_iter().flat_map(|l| l.virtual_services.iter());
        Self {
            ctx,
            client: ClientView::of(ctx.snapshot, ctx.class),
            rules: ByHost::new(all),
        }
    }

    /// Finds a service that the class handles itself, rather than sending to it as others do.
    fn handled(&self, host: &str) -> Option<&'a Arc<Service>> {
        self.ctx.class.waypoint.as_ref()?.service(host)
    }

    /// The VirtualServices of a service, in order: those of its namespace and of the waypoint's.
    fn virtual_services(
        &self,
        service: &Service,
    ) -> impl Iterator<Item = &'a Arc<ResolvedVirtualService>> {
        let own = self.ctx.proxy().namespace.clone();
        let namespace = service.attributes.namespace.clone();
        let found = self.rules.matching(&service.hostname);
        found.filter(move |vs| {
            let of = &*vs.config.meta.namespace;
            *of == *own || *of == *namespace
        })
    }

    /// The routes of one port of a service, those of all its VirtualServices in one virtual host: the
    /// address said already which service is meant.
    pub(super) fn http(
        &self,
        service: &Arc<Service>,
        port: &Port,
        name: String,
        sources: &mut Vec<ConfigKey>,
    ) -> RouteConfiguration {
        let mut routes = Vec::new();
        for vs in self.virtual_services(service) {
            routes.extend(self.translated(vs, port.port));
            sources.extend(vs.sources.iter().cloned());
        }
        if routes.is_empty() {
            let rule = self.ctx.scope().inbound_rule(&service.hostname);
            let host = (&*service.hostname, port.port);
            let retries = self.client.retries.as_ref();
            let rule = rule.map(|rule| &**rule);
            routes.push(route::default_route_to(name.clone(), host, rule, retries));
        }
        // No other host may be reached by the way.
        let domain = if is_dynamic_wildcard(service) {
            &*service.hostname
        } else {
            "*"
        };
        configuration(name, port.port, domain, routes)
    }

    fn translated(&self, vs: &ResolvedVirtualService, port: u16) -> Vec<Route> {
        let mesh = BTreeSet::from(["mesh".to_owned()]);
        let service = |host: &str| self.service(host).cloned();
        let rule = |host: &str| self.ctx.outbound_rule(host).cloned();
        let handles = |host: &str| self.handled(host).is_some();
        let ctx = RouteContext {
            listener_port: port,
            gateways: &mesh,
            labels: &self.client.labels,
            namespace: &self.client.namespace,
            service: &service,
            rule: &rule,
            mesh_retry: self.client.retries.as_ref(),
            forwarded_host: self.client.forwarded_host,
            tls_server: false,
            plain_shadow_host: self.client.plain_shadow_host,
            session: None,
            handles: Some(&handles),
        };
        route::translate(vs, &ctx)
    }

    fn service(&self, host: &str) -> Option<&'a Arc<Service>> {
        self.handled(host).or_else(|| self.ctx.service(host))
    }

    /// The routes to workloads that are asked for directly.
    pub(super) fn direct(&self) -> RouteConfiguration {
        let retries = self.client.retries.as_ref();
        let route = route::default_route_to(names::ENCAP.to_owned(), ("", 0), None, retries);
        configuration(names::ENCAP.to_owned(), 0, "*", vec![route])
    }

    /// Where connections to one port of a service go: where the first TLS rule for its name and port
    /// says, else the first TCP rule for the port, else to the service itself.
    pub(super) fn tcp(
        &self,
        service: &Arc<Service>,
        port: &Port,
        name: &str,
        sources: &mut Vec<ConfigKey>,
    ) -> TcpPlan {
        let found: Vec<_> = self.virtual_services(service).collect();
        sources.extend(found.iter().flat_map(|vs| vs.sources.iter().cloned()));
        let host = &*service.hostname;
        let tls = found.iter().flat_map(|vs| &vs.config.spec.tls);
        let tls = tls.filter(|rule| {
            let mut matches = rule.r#match.iter();
            rule.r#match.is_empty() || matches.any(|m| L4Match::of_tls(m, host).holds(port.port))
        });
        let tcp = found.iter().flat_map(|vs| &vs.config.spec.tcp);
        let tcp = tcp.filter(|rule| {
            let mut matches = rule.r#match.iter();
            rule.r#match.is_empty() || matches.any(|m| L4Match::of_tcp(m).holds(port.port))
        });
        let tls = tls.map(|rule| rule.route.as_slice());
        let tcp = tcp.map(|rule| rule.route.as_slice());
        let mut routes = tls.chain(tcp).filter(|routes| !routes.is_empty());
        let routes = routes.next().unwrap_or_default();
        let mut plan = TcpPlan::to_cluster(name, self.ctx.idle_timeout());
        // Settings are those of one destination, whatever the others want.
        let first = routes.first().and_then(|route| route.destination.as_ref());
        let mut subset = "";
        match routes {
            [] => {}
            [_] => {
                subset = first.map_or("", |destination| &destination.subset);
                plan.destination = TcpDestination::Cluster(self.tcp_cluster(first, port.port));
            }
            _ => {
                let weighted = routes.iter().filter_map(|route| {
                    let weight = u32::try_from(route.weight).ok().filter(|w| *w > 0)?;
                    let destination = route.destination.as_ref();
                    Some((self.tcp_cluster(destination, port.port), weight))
                });
                let weighted: Vec<_> = weighted.collect();
                if !weighted.is_empty() {
                    plan.destination = TcpDestination::Weighted(weighted);
                }
            }
        }
        let host = first.map_or(host, |destination| &destination.host);
        let by_server_name = is_dynamic_wildcard(service) && host::is_wildcard(host);
        plan.dynamic_dns = by_server_name.then(|| service.hostname.clone());
        let rule = self.ctx.outbound_rule(host).map(|rule| &**rule);
        with_rule(plan, rule, subset)
    }

    fn tcp_cluster(&self, destination: Option<&api::common::Destination>, port: u16) -> String {
        let Some(destination) = destination.filter(|d| !d.host.is_empty()) else {
            return UNKNOWN_SERVICE.to_owned();
        };
        let service = self.service(&destination.host);
        let number = match (&destination.port, service) {
            (Some(_), _) => route::destination_port(destination),
            (None, Some(service)) if service.ports.len() == 1 => service.ports[0].port,
            (None, _) => port,
        };
        let handled = self.handled(&destination.host).is_some();
        route::waypoint_cluster(destination, service.map(|s| &**s), handled, number)
    }
}

/// The conditions of a rule for connections. What only a proxy beside the client knows of it, a waypoint
/// does not.
struct L4Match<'a> {
    gateways: &'a [String],
    port: u32,
    known: bool,
}

impl<'a> L4Match<'a> {
    fn of_tcp(matched: &'a api::virtual_service::L4MatchAttributes) -> Self {
        Self {
            gateways: &matched.gateways,
            port: matched.port,
            known: matched.source_labels.is_empty() && matched.source_namespace.is_empty(),
        }
    }

    /// The address says which service is meant, so that a server name may only be that of the service.
    fn of_tls(matched: &'a api::virtual_service::TlsMatchAttributes, host: &str) -> Self {
        let is_host = matches!(matched.sni_hosts.as_slice(), [only] if only == host);
        Self {
            gateways: &matched.gateways,
            port: matched.port,
            known: is_host
                && matched.source_labels.is_empty()
                && matched.source_namespace.is_empty(),
        }
    }

    fn holds(&self, port: u16) -> bool {
        self.known
            && (self.gateways.is_empty() || self.gateways.iter().any(|g| g == "mesh"))
            && (self.port == 0 || self.port == u32::from(port))
    }
}

fn configuration(name: String, port: u16, domain: &str, routes: Vec<Route>) -> RouteConfiguration {
    RouteConfiguration {
        name,
        validate_clusters: convert::bool_value(false),
        max_direct_response_body_size_bytes: convert::u32_value(MAX_DIRECT_RESPONSE_BYTES),
        virtual_hosts: vec![VirtualHost {
            name: format!("inbound|http|{port}"),
            domains: vec![domain.to_owned()],
            routes,
            ..VirtualHost::default()
        }],
        ..RouteConfiguration::default()
    }
}

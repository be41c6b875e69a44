//! Where a waypoint sends what a service is asked for.

use std::{collections::BTreeSet, sync::Arc};

use envoy_types::pb::envoy::config::route::v3::{Route, RouteConfiguration, VirtualHost};
use model::{ConfigKey, Port, Service, api};
use pushctx::{ConsolidatedRule, ResolvedVirtualService};

use crate::{
    convert,
    lds::{
        context::Context,
        outbound::{TcpDestination, TcpPlan},
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
}

impl<'a> Destinations<'a> {
    pub(super) fn new(ctx: &'a Context<'a>) -> Self {
        Self {
            ctx,
            client: ClientView::of(ctx.snapshot, ctx.class),
        }
    }

    /// Tells whether the class handles a host itself, rather than sending to it as others do.
    fn handles(&self, host: &str) -> bool {
        let waypoint = self.ctx.class.waypoint.as_ref();
        let service = waypoint.and_then(|waypoint| waypoint.service(host));
        service.is_some_and(|service| !service.mesh_external)
    }

    fn rule(&self, host: &str) -> Option<&'a Arc<ConsolidatedRule>> {
        if self.handles(host) {
            self.ctx.scope().inbound_rule(host)
        } else {
            self.ctx.outbound_rule(host)
        }
    }

    /// The VirtualService of a service; its sources are added to `sources`.
    fn virtual_service(
        &self,
        service: &Service,
        sources: &mut Vec<ConfigKey>,
    ) -> Option<&'a Arc<ResolvedVirtualService>> {
        let listener = self.ctx.scope().egress.first()?;
        let found = listener.virtual_service(&service.hostname)?;
        sources.extend(found.sources.iter().cloned());
        Some(found)
    }

    /// The routes of one port of a service, all of them in one virtual host: the address said already
    /// which service is meant.
    pub(super) fn http(
        &self,
        service: &Arc<Service>,
        port: &Port,
        name: String,
        sources: &mut Vec<ConfigKey>,
    ) -> RouteConfiguration {
        let found = self.virtual_service(service, sources);
        let mut routes = found.map_or_else(Vec::new, |vs| self.translated(vs, port.port));
        if routes.is_empty() {
            let rule = self.rule(&service.hostname).map(|rule| &**rule);
            let host = (&*service.hostname, port.port);
            let retries = self.client.retries.as_ref();
            routes.push(route::default_route_to(name.clone(), host, rule, retries));
        }
        configuration(name, port.port, routes)
    }

    fn translated(&self, vs: &ResolvedVirtualService, port: u16) -> Vec<Route> {
        let mesh = BTreeSet::from(["mesh".to_owned()]);
        let service = |host: &str| {
            let waypoint = self.ctx.class.waypoint.as_ref();
            let handled = waypoint.and_then(|waypoint| waypoint.service(host));
            handled.or_else(|| self.ctx.service(host)).cloned()
        };
        let rule = |host: &str| self.rule(host).cloned();
        let handles = |host: &str| self.handles(host);
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

    /// The routes to workloads that are asked for directly.
    pub(super) fn direct(&self) -> RouteConfiguration {
        let retries = self.client.retries.as_ref();
        let route = route::default_route_to(names::ENCAP.to_owned(), ("", 0), None, retries);
        configuration(names::ENCAP.to_owned(), 0, vec![route])
    }

    /// Where connections to one port of a service go: where the first TCP rule for the port says, else
    /// to the service itself.
    pub(super) fn tcp(
        &self,
        service: &Arc<Service>,
        port: &Port,
        name: &str,
        sources: &mut Vec<ConfigKey>,
    ) -> TcpPlan {
        let found = self.virtual_service(service, sources);
        let rules = found.into_iter().flat_map(|vs| &vs.config.spec.tcp);
        let mut rules = rules.filter(|rule| {
            let mut matches = rule.r#match.iter();
            rule.r#match.is_empty() || matches.any(|m| concerns(m, port.port))
        });
        let weighted: Vec<(String, u32)> = rules
            .next()
            .into_iter()
            .flat_map(|rule| {
                let only = rule.route.len() == 1;
                rule.route.iter().filter_map(move |route| {
                    let weight = u32::try_from(route.weight).ok()?;
                    (only || weight > 0).then_some((route.destination.as_ref()?, weight))
                })
            })
            .map(|(destination, weight)| (self.tcp_cluster(destination, port.port), weight))
            .collect();
        let mut plan = TcpPlan::to_cluster(name, self.ctx.idle_timeout());
        match weighted.as_slice() {
            [] => {}
            [(only, _)] => plan.destination = TcpDestination::Cluster(only.clone()),
            _ => plan.destination = TcpDestination::Weighted(weighted),
        }
        plan
    }

    fn tcp_cluster(&self, destination: &api::common::Destination, port: u16) -> String {
        let number = match route::destination_port(destination) {
            0 => port,
            number => number,
        };
        let (host, subset) = (&destination.host, &destination.subset);
        if !self.handles(host) {
            return names::outbound(number, subset, host);
        }
        let kind = names::vip_kind("tcp", subset);
        names::inbound_vip(number, &kind, host)
    }
}

fn concerns(matched: &api::virtual_service::L4MatchAttributes, port: u16) -> bool {
    let of_mesh = matched.gateways.is_empty() || matched.gateways.iter().any(|g| g == "mesh");
    of_mesh && (matched.port == 0 || matched.port == u32::from(port))
}

fn configuration(name: String, port: u16, routes: Vec<Route>) -> RouteConfiguration {
    RouteConfiguration {
        name,
        validate_clusters: convert::bool_value(false),
        max_direct_response_body_size_bytes: convert::u32_value(MAX_DIRECT_RESPONSE_BYTES),
        virtual_hosts: vec![VirtualHost {
            name: format!("inbound|http|{port}"),
            domains: vec!["*".to_owned()],
            routes,
            ..VirtualHost::default()
        }],
        ..RouteConfiguration::default()
    }
}

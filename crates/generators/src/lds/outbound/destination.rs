//! Where chains that forward bytes lead to, and how (listeners §8.3).

use std::{net::IpAddr, sync::Arc};

use model::{Protocol, Resolution, Service, api, host};
use pushctx::{ConsolidatedRule, ResolvedVirtualService};

use super::plan::{TcpDestination, TcpPlan, TunnelPlan};
use crate::{
    lds::{context::Context, stat_name},
    names,
};

/// Cluster of a destination without host.
pub(crate) const UNKNOWN_SERVICE: &str = "UnknownService";

/// A port that is listened to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PortRef<'a> {
    /// Its number; 0 for a Unix socket.
    pub number: u16,
    /// Its name; used in names of statistics.
    pub name: &'a str,
    /// Its protocol.
    pub protocol: Protocol,
}

/// Plans forwarding of a service port without rule of a VirtualService.
pub(crate) fn default(ctx: &Context<'_>, service: &Arc<Service>, port: PortRef<'_>) -> TcpPlan {
    let number = only_port(service).unwrap_or(port.number);
    let cluster = names::outbound(number, "", &service.hostname);
    let pattern = &ctx.mesh().outbound_cluster_stat_name;
    let stat_prefix = if pattern.is_empty() {
        cluster.clone()
    } else {
        let unnamed = PortRef { name: "", ..port };
        stat_name::outbound(pattern, &service.hostname, "", unnamed, &service.attributes)
    };
    let rule = ctx.outbound_rule(&service.hostname);
    let dynamic_dns = is_dynamic_wildcard(service).then(|| service.hostname.clone());
    let plan = TcpPlan {
        protocol: port.protocol,
        stat_prefix,
        destination: TcpDestination::Cluster(cluster),
        idle_timeout: ctx.idle_timeout(),
        max_connection_duration: None,
        hash_source_ip: false,
        tunnel: None,
        dynamic_dns,
    };
    with_rule(plan, rule.map(|r| &**r), "")
}

/// Plans forwarding to the destinations of a rule; `None` when no destination has weight.
pub(crate) fn routed(
    ctx: &Context<'_>,
    routes: &[api::virtual_service::RouteDestination],
    port: PortRef<'_>,
    vs: &ResolvedVirtualService,
) -> Option<TcpPlan> {
    let first = routes.first()?.destination.as_ref();
    let first_host = first.map_or("", |d| d.host.as_str());
    let service = ctx.service(first_host);
    let rule = service.and_then(|s| ctx.outbound_rule(&s.hostname));
    let mut plan = TcpPlan {
        protocol: port.protocol,
        stat_prefix: String::new(),
        destination: TcpDestination::Cluster(String::new()),
        idle_timeout: ctx.idle_timeout(),
        max_connection_duration: None,
        hash_source_ip: false,
        tunnel: None,
        dynamic_dns: None,
    };
    if let [_] = routes {
        let cluster = cluster(ctx, first, port);
        let subset = first.map_or("", |d| d.subset.as_str());
        let pattern = &ctx.mesh().outbound_cluster_stat_name;
        plan.stat_prefix = match service {
            Some(service) if !pattern.is_empty() => {
                stat_name::outbound(pattern, first_host, subset, port, &service.attributes)
            }
            _ => cluster.clone(),
        };
        plan.destination = TcpDestination::Cluster(cluster);
        return Some(with_rule(plan, rule.map(|r| &**r), subset));
    }
    let clusters: Vec<(String, u32)> = routes
        .iter()
        .filter_map(|route| {
            let weight = u32::try_from(route.weight).ok().filter(|w| *w > 0)?;
            Some((cluster(ctx, route.destination.as_ref(), port), weight))
        })
        .collect();
    if clusters.is_empty() {
        return None;
    }
    plan.stat_prefix = format!("{}.{}", vs.config.meta.name, vs.config.meta.namespace);
    plan.destination = TcpDestination::Weighted(clusters);
    Some(with_rule(plan, rule.map(|r| &**r), ""))
}

/// Plans forwarding of a service port, or a subset of it, to the cluster behind its server name;
/// returns the name too. Nothing is tunnelled.
pub(crate) fn to_server_name(
    ctx: &Context<'_>,
    service: &Service,
    port: PortRef<'_>,
    subset: &str,
) -> (String, TcpPlan) {
    let cluster = names::outbound_sni(port.number, subset, &service.hostname);
    let pattern = &ctx.mesh().outbound_cluster_stat_name;
    let mut plan = TcpPlan::to_cluster(&cluster, ctx.idle_timeout());
    if !pattern.is_empty() {
        plan.stat_prefix = stat_name::outbound(
            pattern,
            &service.hostname,
            subset,
            port,
            &service.attributes,
        );
    }
    let rule = ctx.outbound_rule(&service.hostname);
    let plan = TcpPlan {
        protocol: port.protocol,
        tunnel: None,
        ..with_rule(plan, rule.map(|r| &**r), subset)
    };
    (cluster, plan)
}

/// A wildcard host that is resolved for each connection.
pub(crate) fn is_dynamic_wildcard(service: &Service) -> bool {
    service.resolution == Resolution::DynamicDns && host::is_wildcard(&service.hostname)
}

/// Names the cluster of a destination. A destination without port takes the only port of its
/// service, else the listener's; an ExternalName stands for its target.
pub(crate) fn cluster(
    ctx: &Context<'_>,
    destination: Option<&api::common::Destination>,
    port: PortRef<'_>,
) -> String {
    let Some(destination) = destination.filter(|d| !d.host.is_empty()) else {
        return UNKNOWN_SERVICE.to_owned();
    };
    let service = ctx.service(&destination.host);
    let number = match &destination.port {
        Some(selector) => u16::try_from(selector.number).unwrap_or_default(),
        None => service.and_then(|s| only_port(s)).unwrap_or(port.number),
    };
    let target = service
        .filter(|s| s.resolution == Resolution::Alias && !s.attributes.external_name.is_empty())
        .map_or(destination.host.as_str(), |s| &s.attributes.external_name);
    names::outbound(number, &destination.subset, target)
}

fn only_port(service: &Service) -> Option<u16> {
    match service.ports.as_slice() {
        [port] => Some(port.port),
        _ => None,
    }
}

/// Applies the settings of the DestinationRule: connection pool and hash of the whole host, tunnel
/// of the chosen subset.
pub(crate) fn with_rule(
    mut plan: TcpPlan,
    rule: Option<&ConsolidatedRule>,
    subset: &str,
) -> TcpPlan {
    let Some(rule) = rule.map(|r| &r.config.spec) else {
        return plan;
    };
    let policy = rule.traffic_policy.as_ref();
    let tcp = policy
        .and_then(|p| p.connection_pool.as_ref())
        .and_then(|p| p.tcp.as_ref());
    if let Some(tcp) = tcp {
        plan.idle_timeout = tcp.idle_timeout.or(plan.idle_timeout);
        plan.max_connection_duration = tcp.max_connection_duration;
    }
    let subset_policy = rule
        .subsets
        .iter()
        .find(|s| !subset.is_empty() && s.name == subset)
        .map(|s| s.traffic_policy.as_ref());
    let balancer = subset_policy
        .flatten()
        .and_then(|p| p.load_balancer.as_ref())
        .or_else(|| policy.and_then(|p| p.load_balancer.as_ref()));
    plan.hash_source_ip = balancer
        .and_then(|lb| lb.consistent_hash.as_ref())
        .is_some_and(|hash| hash.use_source_ip == Some(true));
    let tunnel = if subset.is_empty() {
        policy.and_then(|p| p.tunnel.as_ref())
    } else {
        subset_policy.flatten().and_then(|p| p.tunnel.as_ref())
    };
    plan.tunnel = tunnel.map(|tunnel| TunnelPlan {
        hostname: join_host_port(&tunnel.target_host, tunnel.target_port),
        use_post: tunnel.protocol == "POST",
    });
    plan
}

fn join_host_port(name: &str, port: u32) -> String {
    if matches!(name.parse(), Ok(IpAddr::V6(_))) {
        format!("[{name}]:{port}")
    } else {
        format!("{name}:{port}")
    }
}

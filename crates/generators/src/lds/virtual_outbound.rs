//! The listener that captured outbound traffic arrives at, and the mesh's HTTP proxy listener
//! (listeners §7).

use std::sync::Arc;

use envoy_types::pb::envoy::config::{
    core::v3::TrafficDirection,
    listener::v3::{FilterChain, FilterChainMatch, Listener},
    route::v3::{RouteConfiguration, VirtualHost},
};
use model::{Protocol, proxy::InterceptionMode};

use super::{
    address::{additional_addresses, address, has_further_wildcards},
    context::Context,
    http_filters::HttpChain,
    http_manager::{ManagerSpec, Routes},
    listener_filters::http_inspector,
    outbound::{ChainContent, ChainMatch, ChainPlan, HttpPlan, ListenerPlan},
    parts::{Parts, catch_all_filters},
};
use crate::convert;

/// Name of the listener.
pub(crate) const NAME: &str = "virtualOutbound";

const DYNAMIC_ROUTES: &str = "allow_any_dynamic_dns";
const MAX_DIRECT_RESPONSE: u32 = 1024 * 1024;

/// The listener, as decided.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct VirtualOutboundPlan {
    port: u16,
    binds: Vec<Arc<str>>,
}

/// Plans the listener; `None` when nothing is captured.
pub(crate) fn plan(ctx: &Context<'_>) -> Option<VirtualOutboundPlan> {
    if ctx.interception() == InterceptionMode::None {
        return None;
    }
    let port = u16::try_from(ctx.mesh().proxy_listen_port)
        .ok()
        .filter(|port| *port > 0)?;
    let local = &ctx.local;
    let mut binds = vec![local.wildcard().clone()];
    if has_further_wildcards(ctx.features(), local) {
        binds.extend_from_slice(&local.wildcards[1..]);
    } else if &**local.wildcard() == "::" && ctx.features().v4_outbound_for_v6 {
        binds.push("0.0.0.0".into());
    }
    Some(VirtualOutboundPlan { port, binds })
}

/// Builds the listener.
pub(crate) fn build(plan: &VirtualOutboundPlan, parts: &Parts) -> Listener {
    let mut chains = vec![FilterChain {
        name: format!("{NAME}-blackhole"),
        filter_chain_match: Some(FilterChainMatch {
            destination_port: convert::u32_value(plan.port.into()),
            ..FilterChainMatch::default()
        }),
        filters: parts.outbound.tcp.black_hole(),
        ..FilterChain::default()
    }];
    let mut listener_filters = Vec::new();
    if let Some(catch_all) = &parts.dynamic_dns_routes {
        listener_filters.push(http_inspector(None));
        chains.push(dynamic_dns_chain(catch_all, parts));
    }
    chains.push(FilterChain {
        name: format!("{NAME}-catchall-tcp"),
        filters: catch_all_filters(parts),
        ..FilterChain::default()
    });
    Listener {
        name: NAME.to_owned(),
        address: Some(address(&plan.binds[0], plan.port)),
        additional_addresses: additional_addresses(&plan.binds[1..], plan.port),
        use_original_dst: convert::bool_value(true),
        traffic_direction: TrafficDirection::Outbound.into(),
        max_connections_to_accept_per_socket_event: parts
            .facts
            .accepted_at_once
            .and_then(convert::u32_value),
        transparent: parts
            .facts
            .transparent
            .then(|| convert::bool_value(true))
            .flatten(),
        access_log: parts.outbound.listener_logs.clone(),
        listener_filters,
        filter_chains: chains,
        ..Listener::default()
    }
}

/// HTTP to unknown destinations, resolved by name.
fn dynamic_dns_chain(catch_all: &VirtualHost, parts: &Parts) -> FilterChain {
    let routes = RouteConfiguration {
        name: DYNAMIC_ROUTES.to_owned(),
        virtual_hosts: vec![catch_all.clone()],
        validate_clusters: convert::bool_value(false),
        max_direct_response_body_size_bytes: convert::u32_value(MAX_DIRECT_RESPONSE),
        ignore_port_in_host_matching: true,
        ..RouteConfiguration::default()
    };
    FilterChain {
        name: format!("{NAME}-catchall-tcp-http"),
        filter_chain_match: Some(FilterChainMatch {
            application_protocols: parts
                .facts
                .plain_http
                .iter()
                .map(|p| (*p).to_owned())
                .collect(),
            ..FilterChainMatch::default()
        }),
        filters: vec![parts.outbound.manager.build(ManagerSpec {
            stat_prefix: format!("outbound_{NAME}_{DYNAMIC_ROUTES};"),
            routes: Routes::Inline(Box::new(routes)),
            chain: HttpChain::default(),
            http2: false,
            quic: false,
        })],
        ..FilterChain::default()
    }
}

/// Plans the mesh's HTTP proxy listener; `None` when it is off.
pub(crate) fn plan_http_proxy(ctx: &Context<'_>) -> Option<ListenerPlan> {
    let stated = ctx.metadata().http_proxy_port.parse::<i32>().ok();
    let port = stated.unwrap_or(ctx.mesh().proxy_http_port);
    let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
    Some(ListenerPlan {
        port,
        port_protocol: Protocol::Http,
        binds: ctx.local.localhosts.clone(),
        bound: true,
        chains: vec![ChainPlan {
            matching: ChainMatch::default(),
            config: None,
            content: ChainContent::Http(HttpPlan {
                route_name: "http_proxy".to_owned(),
                is_proxy: true,
                ..HttpPlan::default()
            }),
        }],
        protocol: Protocol::Http,
        sources: std::collections::BTreeSet::new(),
    })
}

//! Outbound plans as Envoy listeners (listeners §4.5, §6).

use std::collections::HashMap;

use envoy_json::encode::struct_value;
use envoy_types::pb::{
    envoy::config::{
        core::v3::{CidrRange, Metadata, TrafficDirection},
        listener::v3::{
            Filter, FilterChain, FilterChainMatch, Listener,
            listener::{
                ConnectionBalanceConfig,
                connection_balance_config::{BalanceType, ExactBalance},
            },
        },
    },
    google::protobuf::Duration,
};
use model::NamespacedName;
use serde_json::json;

use super::plan::{ChainContent, ChainMatch, ChainPlan, HttpPlan, ListenerPlan, TcpPlan};
use crate::{
    convert,
    lds::{
        address::{additional_addresses, address, parse_cidr},
        context::Context,
        http_filters::HttpChain,
        http_manager::{ManagerSpec, Routes},
        listener_filters::{http_inspector, tls_inspector},
        parts::{Parts, catch_all_filters},
    },
    names,
};

/// Name of the chain that takes what no other chain takes.
const PASSTHROUGH_CHAIN: &str = "PassthroughFilterChain";

/// Plans where outbound traffic to unknown destinations goes.
pub(crate) fn catch_all(ctx: &Context<'_>) -> TcpPlan {
    use model::api::sidecar::OutboundTrafficMode::{AllowAny, AllowAnyDynamicDns, RegistryOnly};
    let policy = &ctx.scope().outbound_policy;
    let cluster = match (policy.mode, &policy.egress_proxy) {
        (RegistryOnly, _) => names::BLACK_HOLE.to_owned(),
        (AllowAny | AllowAnyDynamicDns, None) => names::PASSTHROUGH.to_owned(),
        (AllowAny | AllowAnyDynamicDns, Some(proxy)) => {
            let port = proxy
                .port
                .as_ref()
                .and_then(|p| u16::try_from(p.number).ok());
            names::outbound(port.unwrap_or_default(), &proxy.subset, &proxy.host)
        }
    };
    TcpPlan::to_cluster(&cluster, ctx.idle_timeout())
}

/// Builds a listener from its plan.
pub(crate) fn build(plan: &ListenerPlan, parts: &Parts) -> Listener {
    let facts = &parts.facts;
    let name = plan.name();
    let sniffs_http = plan.chains.iter().any(|chain| chain.matching.plain_http);
    let mut listener_filters = Vec::new();
    if plan.chains.iter().any(reads_server_name) {
        listener_filters.push(tls_inspector(None));
    }
    if sniffs_http {
        listener_filters.push(http_inspector(None));
    }
    let mut default_chain = None;
    let mut chains = Vec::with_capacity(plan.chains.len());
    // The first chain of HTTP alone takes the network filters of extensions (telemetry-extensions §15).
    let is_http = |chain: &ChainPlan| matches!(chain.content, ChainContent::Http(_));
    let takes_network = plan.chains.iter().position(is_http);
    for (nth, chain) in plan.chains.iter().enumerate() {
        let built = build_chain(chain, plan, &name, parts, takes_network == Some(nth));
        if chain.matching.is_match_all() {
            default_chain = Some(built);
        } else {
            chains.push(built);
        }
    }
    if chains.is_empty() {
        chains.extend(default_chain.take());
    } else if default_chain.is_none() {
        default_chain = Some(FilterChain {
            name: PASSTHROUGH_CHAIN.to_owned(),
            filter_chain_match: Some(FilterChainMatch::default()),
            filters: catch_all_filters(parts),
            ..FilterChain::default()
        });
    }
    let (first, further) = plan
        .binds
        .split_first()
        .map_or(("", &[][..]), |(f, rest)| (f, rest));
    Listener {
        name,
        address: Some(address(first, plan.port)),
        additional_addresses: additional_addresses(further, plan.port),
        traffic_direction: TrafficDirection::Outbound.into(),
        bind_to_port: if plan.bound {
            None
        } else {
            convert::bool_value(false)
        },
        max_connections_to_accept_per_socket_event: facts
            .accepted_at_once
            .filter(|_| plan.bound)
            .and_then(convert::u32_value),
        continue_on_listener_filters_timeout: true,
        listener_filters_timeout: Some(if sniffs_http {
            convert::duration(facts.detection_timeout)
        } else {
            Duration::default()
        }),
        connection_balance_config: facts.outbound_exact_balance.then(exact_balance),
        listener_filters,
        filter_chains: chains,
        default_filter_chain: default_chain,
        ..Listener::default()
    }
}

/// Spreads connections evenly over worker threads.
pub(crate) fn exact_balance() -> ConnectionBalanceConfig {
    ConnectionBalanceConfig {
        balance_type: Some(BalanceType::ExactBalance(ExactBalance {})),
    }
}

fn reads_server_name(chain: &ChainPlan) -> bool {
    !chain.matching.sni_hosts.is_empty()
        || matches!(&chain.content, ChainContent::Tcp(tcp) if tcp.dynamic_dns.is_some())
}

fn build_chain(
    chain: &ChainPlan,
    plan: &ListenerPlan,
    name: &str,
    parts: &Parts,
    takes_network: bool,
) -> FilterChain {
    let filters = match &chain.content {
        ChainContent::Http(http) => {
            let mut filters = if takes_network {
                parts.outbound.tcp.extensions.network(plan.port).in_order()
            } else {
                Vec::new()
            };
            filters.push(manager(http, name, plan.port, parts));
            filters
        }
        ChainContent::Tcp(tcp) => parts.outbound.tcp.chain(tcp, plan.port),
    };
    FilterChain {
        filter_chain_match: (!chain.matching.is_match_all())
            .then(|| chain_match(&chain.matching, parts)),
        filters,
        metadata: chain
            .config
            .as_ref()
            .map(|vs| config_metadata("virtual-service", vs)),
        transport_socket_connect_timeout: parts.facts.connect_timeout.map(convert::duration),
        ..FilterChain::default()
    }
}

fn manager(http: &HttpPlan, listener: &str, port: u16, parts: &Parts) -> Filter {
    parts.outbound.manager.build(ManagerSpec {
        stat_prefix: format!("outbound_{listener};"),
        routes: Routes::Named(http.route_name.clone()),
        chain: HttpChain {
            grpc_web: http.grpc_web,
            dynamic_dns: http.dynamic_dns.clone(),
            is_proxy: http.is_proxy,
            extension_port: port,
            ..HttpChain::default()
        },
        http2: false,
        quic: false,
    })
}

fn chain_match(matching: &ChainMatch, parts: &Parts) -> FilterChainMatch {
    let mut server_names = if matching.has_server_names() {
        matching.sni_hosts.clone()
    } else {
        Vec::new()
    };
    server_names.sort();
    let mut cidrs: Vec<&str> = matching.cidrs.iter().map(|cidr| &**cidr).collect();
    cidrs.sort_unstable();
    let mut result = FilterChainMatch {
        server_names,
        prefix_ranges: cidrs.into_iter().filter_map(cidr_range).collect(),
        ..FilterChainMatch::default()
    };
    if matching.plain_http {
        "raw_buffer".clone_into(&mut result.transport_protocol);
        result.application_protocols = parts
            .facts
            .plain_http
            .iter()
            .map(|p| (*p).to_owned())
            .collect();
    }
    result
}

/// A range as written, host bits included; `None` for what is none, and for the unspecified address.
fn cidr_range(text: &str) -> Option<CidrRange> {
    let net = parse_cidr(text)?;
    let address_prefix = text
        .split('/')
        .next()
        .filter(|prefix| *prefix != "0.0.0.0")?;
    Some(CidrRange {
        address_prefix: address_prefix.to_owned(),
        prefix_len: convert::u32_value(net.prefix_len().into()),
    })
}

/// Metadata that names the object a chain comes from.
pub(crate) fn config_metadata(kind: &str, object: &NamespacedName) -> Metadata {
    let path = format!(
        "/apis/networking.istio.io/v1/namespaces/{}/{kind}/{}",
        object.namespace, object.name
    );
    Metadata {
        filter_metadata: HashMap::from([(
            "istio".to_owned(),
            struct_value(json!({"config": path})),
        )]),
        ..Metadata::default()
    }
}

//! Gateway plans as Envoy listeners (gateways §7–§9, §16).

use envoy_json::any;
use envoy_types::pb::envoy::{
    config::{
        core::v3::{Address, TrafficDirection, UdpSocketConfig, address, socket_address},
        listener::v3::{
            FilterChain, FilterChainMatch, Listener, ListenerFilter, QuicProtocolOptions,
            UdpListenerConfig, listener_filter,
        },
    },
    extensions::{
        filters::listener::proxy_protocol::v3::ProxyProtocol,
        transport_sockets::{quic::v3::QuicDownstreamTransport, tls::v3::DownstreamTlsContext},
    },
};
use prost::Message as _;

use super::{
    GatewayParts,
    plan::{GatewayChain, GatewayContent, GatewayPlan},
};
use crate::{
    convert,
    lds::{
        address::{additional_addresses, address},
        http_filters::HttpChain,
        http_manager::{ManagerSpec, Routes},
        listener_filters::tls_inspector,
        outbound::exact_balance,
    },
    tls::TLS_SOCKET,
};

/// Builds a listener from its plan.
pub(crate) fn build(plan: &GatewayPlan, parts: &GatewayParts) -> Listener {
    let (first, further) = plan
        .binds
        .split_first()
        .map_or(("", &[][..]), |(first, rest)| (&**first, rest));
    // The first chain of HTTP alone takes the network filters of extensions (telemetry-extensions §15).
    let is_http = |chain: &GatewayChain| matches!(chain.content, GatewayContent::Http { .. });
    let takes_network = plan.chains.iter().position(is_http).filter(|_| !plan.quic);
    let mut listener = Listener {
        name: plan.name.clone(),
        address: Some(address(first, plan.port)),
        additional_addresses: additional_addresses(further, plan.port),
        traffic_direction: TrafficDirection::Outbound.into(),
        max_connections_to_accept_per_socket_event: parts
            .accepted_at_once
            .and_then(convert::u32_value),
        per_connection_buffer_limit_bytes: parts.buffer_limit.and_then(convert::u32_value),
        access_log: parts.listener_logs.clone(),
        filter_chains: plan
            .chains
            .iter()
            .enumerate()
            .map(|(nth, chain)| build_chain(chain, plan, parts, takes_network == Some(nth)))
            .collect(),
        ..Listener::default()
    };
    if plan.quic {
        over_udp(&mut listener);
        return listener;
    }
    if parts.exact_balance {
        listener.connection_balance_config = Some(exact_balance());
    }
    if parts.proxy_protocol {
        listener.listener_filters.push(proxy_protocol());
    }
    let looks_at_tls = |chain: &GatewayChain| !chain.server_names.is_empty() || chain.reads_tls;
    if plan.chains.iter().any(looks_at_tls) {
        listener.listener_filters.push(tls_inspector(None));
    }
    listener
}

fn proxy_protocol() -> ListenerFilter {
    ListenerFilter {
        name: "envoy.filters.listener.proxy_protocol".to_owned(),
        config_type: Some(listener_filter::ConfigType::TypedConfig(any(
            &ProxyProtocol::default(),
        ))),
        ..ListenerFilter::default()
    }
}

/// Makes a listener one for QUIC.
fn over_udp(listener: &mut Listener) {
    let udp = |address: &mut Address| {
        if let Some(address::Address::SocketAddress(socket)) = &mut address.address {
            socket.protocol = socket_address::Protocol::Udp.into();
        }
    };
    listener.address.iter_mut().for_each(udp);
    listener
        .additional_addresses
        .iter_mut()
        .filter_map(|a| a.address.as_mut())
        .for_each(udp);
    listener.udp_listener_config = Some(UdpListenerConfig {
        quic_options: Some(QuicProtocolOptions::default()),
        downstream_socket_config: Some(UdpSocketConfig::default()),
        ..UdpListenerConfig::default()
    });
}

fn build_chain(
    chain: &GatewayChain,
    plan: &GatewayPlan,
    parts: &GatewayParts,
    takes_network: bool,
) -> FilterChain {
    let filters = match &chain.content {
        GatewayContent::Http {
            route_name,
            stat_prefix,
            grpc_web,
        } => {
            let stat_prefix = if stat_prefix.is_empty() {
                format!("outbound_{};", plan.name)
            } else {
                stat_prefix.clone()
            };
            let mut filters = if takes_network {
                parts.tcp.extensions.network(plan.port).in_order()
            } else {
                Vec::new()
            };
            filters.push(parts.manager.build(ManagerSpec {
                stat_prefix,
                routes: Routes::Named(route_name.clone()),
                chain: HttpChain {
                    grpc_web: *grpc_web,
                    extension_port: plan.port,
                    ..HttpChain::default()
                },
                http2: false,
                quic: plan.quic,
            }));
            filters
        }
        GatewayContent::Tcp {
            port,
            plan: tcp,
            mutual,
        } => {
            let filters = if *mutual {
                &parts.mutual_tcp
            } else {
                &parts.tcp
            };
            filters.chain(tcp, *port)
        }
        GatewayContent::Mesh { port, plan } => parts.mesh_tcp.chain(plan, *port),
    };
    let matches_all = chain.server_names.is_empty() && chain.protocols.is_empty();
    FilterChain {
        filter_chain_match: (!matches_all).then(|| FilterChainMatch {
            server_names: chain.server_names.clone(),
            application_protocols: chain.protocols.iter().map(|p| (*p).to_owned()).collect(),
            ..FilterChainMatch::default()
        }),
        filters,
        transport_socket: chain.tls.as_ref().map(|context| {
            if plan.quic {
                let downstream =
                    DownstreamTlsContext::decode(context.value.as_slice()).unwrap_or_default();
                convert::transport_socket(
                    "envoy.transport_sockets.quic",
                    any(&QuicDownstreamTransport {
                        downstream_tls_context: Some(downstream),
                        ..QuicDownstreamTransport::default()
                    }),
                )
            } else {
                convert::transport_socket(TLS_SOCKET, context.clone())
            }
        }),
        transport_socket_connect_timeout: parts.connect_timeout(),
        ..FilterChain::default()
    }
}

//! Inbound plans as Envoy listeners (listeners §14, §15).

use std::net::IpAddr;

use envoy_types::pb::{
    envoy::config::{
        core::v3::{CidrRange, TrafficDirection},
        listener::v3::{
            FilterChain, FilterChainMatch, Listener,
            listener::{InternalListenerConfig, ListenerSpecifier},
        },
        route::v3::{
            Decorator, Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, route,
            route_action::{ClusterSpecifier, MaxStreamDuration},
            route_match::PathSpecifier,
        },
    },
    google::protobuf::Duration,
};
use model::Protocol;

use super::{
    chains::{self, Alpn, ChainOption, Termination},
    plan::{InboundPlan, Placement, PortPlan},
};
use crate::{
    convert,
    lds::{
        address::{additional_addresses, address, listener_name},
        http_filters::HttpChain,
        http_manager::{ManagerSpec, Routes},
        listener_filters::{Inspection, original_dst, original_src},
        outbound::{TcpDestination, TcpPlan, config_metadata, exact_balance},
        parts::{Parts, SideParts},
        stat_name,
    },
    names,
    route::inbound_retry,
};

/// Name of the listener that captured inbound traffic arrives at.
pub(crate) const NAME: &str = "virtualInbound";

/// Builds an inbound listener from its plan.
pub(crate) fn build(plan: &InboundPlan, parts: &Parts) -> Listener {
    let side = match &plan.placement {
        Placement::Internal { .. } => parts.tunnelled.as_ref().unwrap_or(&parts.inbound),
        Placement::Virtual { .. } | Placement::Bound { .. } => &parts.inbound,
    };
    let mut chains = Vec::new();
    for port in &plan.ports {
        chains.extend(port_chains(port, side, parts));
    }
    let facts = &parts.facts;
    let mut listener = Listener {
        traffic_direction: TrafficDirection::Inbound.into(),
        continue_on_listener_filters_timeout: true,
        ..Listener::default()
    };
    match &plan.placement {
        Placement::Virtual { binds, port } => {
            NAME.clone_into(&mut listener.name);
            let inspection = Inspection::of(&chains).with_plain_port(*port);
            listener.listener_filters.push(original_dst());
            if facts.transparent {
                listener.transparent = convert::bool_value(true);
                listener.listener_filters.push(original_src());
            }
            listener.listener_filters.extend(inspection.inspectors());
            chains.insert(0, black_hole(*port, parts));
            listener.address = Some(address(&binds[0], *port));
            listener.additional_addresses = additional_addresses(&binds[1..], *port);
        }
        Placement::Bound { binds, port } => {
            let (first, further) = binds.split_first().map_or(("", &[][..]), |(f, r)| (f, r));
            listener.name = listener_name(first, *port);
            listener.listener_filters = Inspection::of(&chains).inspectors();
            listener.address = Some(address(first, *port));
            listener.additional_addresses = additional_addresses(further, *port);
        }
        Placement::Internal { addresses } => {
            return build_internal(listener, chains, addresses, parts);
        }
    }
    listener.listener_filters_timeout = Some(convert::duration(facts.detection_timeout));
    listener.max_connections_to_accept_per_socket_event =
        facts.accepted_at_once.and_then(convert::u32_value);
    listener.connection_balance_config = facts.inbound_exact_balance.then(exact_balance);
    listener.access_log.clone_from(&parts.inbound.listener_logs);
    listener.filter_chains = chains;
    listener
}

/// Finishes the listener behind the one that takes HBONE tunnels.
fn build_internal(
    mut listener: Listener,
    mut chains: Vec<FilterChain>,
    addresses: &[IpAddr],
    parts: &Parts,
) -> Listener {
    for chain in &mut chains {
        let matching = chain.filter_chain_match.get_or_insert_default();
        matching.transport_protocol.clear();
        matching.prefix_ranges = addresses.iter().map(host_range).collect();
    }
    names::MAIN_INTERNAL.clone_into(&mut listener.name);
    listener.listener_filters.push(original_dst());
    listener
        .listener_filters
        .extend(Inspection::of(&chains).inspectors());
    listener.listener_specifier = Some(ListenerSpecifier::InternalListener(
        InternalListenerConfig::default(),
    ));
    listener.access_log.clone_from(&parts.inbound.listener_logs);
    listener.filter_chains = chains;
    listener
}

fn host_range(address: &IpAddr) -> CidrRange {
    CidrRange {
        address_prefix: address.to_string(),
        prefix_len: convert::u32_value(if address.is_ipv4() { 32 } else { 128 }),
    }
}

/// Drops what is addressed to the capture port itself, which would loop.
fn black_hole(port: u16, parts: &Parts) -> FilterChain {
    FilterChain {
        name: format!("{NAME}-blackhole"),
        filter_chain_match: Some(FilterChainMatch {
            destination_port: convert::u32_value(port.into()),
            ..FilterChainMatch::default()
        }),
        filters: parts.inbound.tcp.black_hole(),
        ..FilterChain::default()
    }
}

fn port_chains(port: &PortPlan, side: &SideParts, parts: &Parts) -> Vec<FilterChain> {
    chains::options(port.protocol, port.mode, port.custom_tls.is_some())
        .into_iter()
        .map(|option| {
            let mut filters = Vec::new();
            if option.http {
                filters.extend(side.tcp.metadata_exchange().filter(|_| !port.hbone));
                let extensions = side.tcp.extensions.network(port.target_port);
                filters.extend(extensions.in_order());
                filters.push(side.manager.build(manager(port, parts)));
            } else {
                let plan = tcp_plan(port, parts);
                filters.extend(side.tcp.chain(&plan, port.service_port));
            }
            FilterChain {
                name: chain_name(port, option.http),
                filter_chain_match: Some(chain_match(port.target_port, option, parts)),
                filters,
                transport_socket: match option.terminates {
                    Termination::None => None,
                    Termination::Mesh if option.http => Some(parts.mesh_tls_http.clone()),
                    Termination::Mesh => Some(parts.mesh_tls_tcp.clone()),
                    Termination::Custom => port.custom_tls.clone(),
                },
                metadata: port
                    .sidecar
                    .as_ref()
                    .map(|name| config_metadata("sidecar", name)),
                ..FilterChain::default()
            }
        })
        .collect()
}

fn chain_name(port: &PortPlan, http: bool) -> String {
    match (port.passthrough, http) {
        (true, true) => format!("{NAME}-catchall-http"),
        (true, false) => NAME.to_owned(),
        (false, _) => listener_name(&port.bind, port.target_port),
    }
}

fn chain_match(target_port: u16, option: ChainOption, parts: &Parts) -> FilterChainMatch {
    let alpn = match option.alpn {
        Alpn::Any => &[][..],
        Alpn::List(list) => list,
        Alpn::PlainHttp => &parts.facts.plain_http,
    };
    FilterChainMatch {
        destination_port: (target_port > 0)
            .then(|| convert::u32_value(target_port.into()))
            .flatten(),
        transport_protocol: if option.tls { "tls" } else { "raw_buffer" }.to_owned(),
        application_protocols: alpn.iter().map(|p| (*p).to_owned()).collect(),
        ..FilterChainMatch::default()
    }
}

fn tcp_plan(port: &PortPlan, parts: &Parts) -> TcpPlan {
    let pattern = &parts.inbound_stat_name;
    TcpPlan {
        protocol: port.protocol,
        stat_prefix: if pattern.is_empty() {
            port.cluster.clone()
        } else {
            stat_name::inbound(pattern, &port.names, port.service_port, &port.port_name)
        },
        destination: TcpDestination::Cluster(port.cluster.clone()),
        ..TcpPlan::to_cluster(&port.cluster, parts.facts.idle_timeout)
    }
}

fn manager(port: &PortPlan, parts: &Parts) -> ManagerSpec {
    ManagerSpec {
        stat_prefix: if port.passthrough {
            format!("{};", port.cluster)
        } else {
            format!("inbound_{};", listener_name(&port.bind, port.target_port))
        },
        routes: Routes::Inline(Box::new(routes(port, parts))),
        chain: HttpChain {
            grpc_web: port.protocol == Protocol::GrpcWeb,
            hbone: port.hbone,
            extension_port: port.target_port,
            ..HttpChain::default()
        },
        http2: port.protocol.is_http2(),
        quic: false,
    }
}

fn routes(port: &PortPlan, parts: &Parts) -> RouteConfiguration {
    let retry = if port.protocol.is_grpc() {
        None
    } else {
        inbound_retry(parts.inbound_retry.as_ref())
    };
    let route = Route {
        name: "default".to_owned(),
        r#match: Some(RouteMatch {
            path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
            ..RouteMatch::default()
        }),
        action: Some(route::Action::Route(RouteAction {
            cluster_specifier: Some(ClusterSpecifier::Cluster(port.cluster.clone())),
            timeout: Some(Duration::default()),
            max_stream_duration: Some(MaxStreamDuration {
                max_stream_duration: Some(Duration::default()),
                grpc_timeout_header_max: Some(Duration::default()),
                grpc_timeout_header_offset: None,
            }),
            retry_policy: retry,
            ..RouteAction::default()
        })),
        decorator: Some(Decorator {
            operation: format!("{}:{}/*", port.names.fqdn, port.service_port),
            propagate: None,
        }),
        ..Route::default()
    };
    RouteConfiguration {
        name: port.cluster.clone(),
        validate_clusters: convert::bool_value(false),
        virtual_hosts: vec![VirtualHost {
            name: format!("inbound|http|{}", port.service_port),
            domains: vec!["*".to_owned()],
            routes: vec![route],
            ..VirtualHost::default()
        }],
        ..RouteConfiguration::default()
    }
}

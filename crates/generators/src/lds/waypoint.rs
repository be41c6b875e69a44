//! Listeners of waypoints (listeners §16, security-policy §15).
//!
//! Tunnels end in one listener and begin in another, as those of sidecars do. Between the two is a
//! third: it finds the service by the address that the client asked for, and has chains of its own
//! for each port of each service, under the policies of that service.

mod matching;
mod route;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use envoy_json::typed_struct;
use envoy_types::pb::envoy::{
    config::{
        common::mutation_rules::v3::{HeaderMutation, header_mutation::Action},
        core::v3::{
            HeaderValue, HeaderValueOption, TrafficDirection,
            header_value_option::HeaderAppendAction,
        },
        listener::v3::{
            Filter, FilterChain, Listener, ListenerFilter,
            listener::{InternalListenerConfig, ListenerSpecifier},
        },
    },
    extensions::filters::{
        http::header_mutation::v3::{HeaderMutation as HeaderMutationFilter, Mutations},
        network::set_filter_state::v3::Config as SetFilterState,
    },
};
use envoy_types::pb::google::protobuf::Any;
use model::{ConfigKey, Port, Protocol, Service};
use pushctx::TrafficSide;

use super::{
    address::listener_name,
    context::Context,
    hbone::{self, PEER_PRINCIPAL},
    http_filters::{HttpChain, HttpFilterParts, WaypointFilters},
    http_manager::{ManagerParts, ManagerSpec, Routes, Side},
    listener_filters::{http_inspector_but, original_dst, tls_inspector_but},
    network_filters::{TcpParts, network},
    outbound::{TcpPlan, is_dynamic_wildcard},
    parts::{Digest, SideParts},
    stat_name,
};
use crate::{
    capabilities::Capabilities,
    extensions::Extensions,
    names,
    security::{PeerIdentity, PolicyFilters},
    telemetry::{ListenerClass, Telemetry, metadata_exchange},
};
use matching::{Chain, Dispatch};
use route::Destinations;

/// Address in names of statistics.
const BIND: &str = "0.0.0.0";
/// Filter state that holds the address that the client asked for.
const LOCAL_ADDRESS: &str = "envoy.filters.listener.original_dst.local_ip";

/// Annotation of a waypoint that tells the services behind who asks.
const CLIENT_IDENTITY: &str = "ambient.istio.io/xfcc-include-client-identity";

/// The chains of one service, or those to workloads that are reached directly.
#[derive(Debug)]
struct Group {
    /// `None` for workloads.
    service: Option<Arc<Service>>,
    /// Addresses by which the service, or the workloads, are asked for.
    addresses: Vec<Arc<str>>,
    parts: SideParts,
    ports: Vec<PortPlan>,
    sources: Vec<ConfigKey>,
}

/// The chains of one port.
#[derive(Debug)]
struct PortPlan {
    /// Number of the service's port; 0 for workloads.
    number: u16,
    protocol: Protocol,
    /// The chain of requests.
    http: Option<(
        String,
        Box<envoy_types::pb::envoy::config::route::v3::RouteConfiguration>,
    )>,
    /// The chain of bytes.
    tcp: Option<(String, TcpPlan)>,
}

/// The listener between the two ends of tunnels, planned.
#[derive(Debug)]
pub(super) struct MainPlan {
    groups: Vec<Group>,
    /// Whether HTTP/1.0 counts as HTTP.
    http10: bool,
    /// Loggers of the listener itself.
    logs: Vec<envoy_types::pb::envoy::config::accesslog::v3::AccessLog>,
}

/// Plans the listener between the two ends of tunnels.
pub(super) fn plan(ctx: &Context<'_>) -> MainPlan {
    let services = ctx.class.waypoint.iter().flat_map(|w| &w.services);
    let destinations = Destinations::new(ctx);
    let mut groups: Vec<Group> = services
        .map(|service| of_service(ctx, &destinations, service))
        .collect();
    let direct = of_workloads(ctx, &destinations);
    let logs = direct.parts.listener_logs.clone();
    groups.push(direct);
    MainPlan {
        groups,
        http10: ctx.features().http10,
        logs,
    }
}

fn of_service(ctx: &Context<'_>, destinations: &Destinations<'_>, service: &Arc<Service>) -> Group {
    let mut sources = vec![service.source.key().clone()];
    let mut ports = Vec::new();
    for port in service.ports.iter().filter(|p| is_served(ctx, service, p)) {
        let name = |kind| names::inbound_vip(port.port, kind, &service.hostname);
        let sniffed = port.protocol.is_unsupported();
        let http = (sniffed || port.protocol.is_http()).then(|| {
            let routes = destinations.http(service, port, name("http"), &mut sources);
            (name("http"), Box::new(routes))
        });
        let tcp = (sniffed || !port.protocol.is_http()).then(|| {
            let stat_prefix = stat_prefix(ctx, service, port, name("tcp"));
            let plan = destinations.tcp(service, port, &name("tcp"), &mut sources);
            let plan = TcpPlan {
                stat_prefix,
                protocol: port.protocol,
                ..plan
            };
            (name("tcp"), plan)
        });
        ports.push(PortPlan {
            number: port.port,
            protocol: port.protocol,
            http,
            tcp,
        });
    }
    let parts = parts(ctx, std::slice::from_ref(service), &mut sources);
    Group {
        service: Some(service.clone()),
        addresses: service.addresses_for(&ctx.view),
        parts,
        ports,
        sources,
    }
}

/// Tells whether a port has chains. A wildcard host that is resolved by what is asked for has none where
/// server names decide that are not trusted.
fn is_served(ctx: &Context<'_>, service: &Service, port: &Port) -> bool {
    let by_server_name = is_dynamic_wildcard(service) && port.protocol.is_tls();
    port.protocol != Protocol::Udp && (!by_server_name || ctx.features().wildcard_tls_entries)
}

fn stat_prefix(ctx: &Context<'_>, service: &Service, port: &Port, cluster: String) -> String {
    let pattern = &ctx.mesh().inbound_cluster_stat_name;
    if pattern.is_empty() {
        return cluster;
    }
    let names = stat_name::ServiceNames::of(&service.hostname, &service.attributes);
    stat_name::inbound(pattern, &names, port.port, &port.name)
}

/// Workloads are reached by the address that was asked for, whatever their port.
fn of_workloads(ctx: &Context<'_>, destinations: &Destinations<'_>) -> Group {
    let waypoint = ctx.class.waypoint.as_ref();
    let mut sources = Vec::new();
    let parts = parts(ctx, &[], &mut sources);
    let routes = Box::new(destinations.direct());
    let plan = TcpPlan::to_cluster(names::ENCAP, ctx.idle_timeout());
    Group {
        service: None,
        addresses: waypoint
            .iter()
            .flat_map(|waypoint| waypoint.workloads.iter().cloned())
            .collect(),
        parts,
        ports: vec![PortPlan {
            number: 0,
            protocol: Protocol::Unsupported,
            http: Some(("direct-http".to_owned(), routes)),
            tcp: Some(("direct-tcp".to_owned(), plan)),
        }],
        sources,
    }
}

/// Resolves what the chains of some services share. Both sides are told by the tunnel's end.
fn parts(ctx: &Context<'_>, services: &[Arc<Service>], sources: &mut Vec<ConfigKey>) -> SideParts {
    let (snapshot, class) = (ctx.snapshot, ctx.class);
    let capabilities = Capabilities::of(ctx.proxy());
    let features = ctx.features();
    let inbound = ListenerClass::SidecarInbound;
    let telemetry = Telemetry::resolve_for(snapshot, class, services, inbound);
    let extensions = Extensions::resolve_for(snapshot, class, services, TrafficSide::Server);
    let peer = PeerIdentity::FilterState;
    let policies = PolicyFilters::resolve_for(snapshot, class, services, peer);
    sources.extend(policies.sources.iter().cloned());
    let tcp = TcpParts {
        metadata_exchange: (features.metadata_exchange && capabilities.metadata_exchange)
            .then(|| metadata_exchange::tcp(features)),
        custom_policies: policies.tcp_custom.clone(),
        rbac: policies.tcp_rbac.clone(),
        ..TcpParts::of(ctx, &telemetry, extensions.clone())
    };
    let filters = HttpFilterParts {
        waypoint: Some(WaypointFilters {
            client_identity: ctx
                .metadata()
                .annotations
                .get(CLIENT_IDENTITY)
                .filter(|wanted| wanted.eq_ignore_ascii_case("true"))
                .map(|_| client_identity()),
            upstream_metadata: capabilities
                .peer_metadata
                .then(|| upstream_metadata(hbone::baggage(ctx))),
        }),
        ..HttpFilterParts::of(ctx, &telemetry, extensions, policies)
    };
    SideParts {
        manager: ManagerParts::new(ctx, Side::Waypoint, &telemetry, filters),
        tcp,
        listener_logs: telemetry.listener_logs,
    }
}

/// Says who asks, as the end of the tunnel knows it, in the header that TLS of its own would fill. What a
/// client says there itself is lost.
fn client_identity() -> Any {
    let set = HeaderValueOption {
        header: Some(HeaderValue {
            key: "x-forwarded-client-cert".to_owned(),
            value: format!("URI=%FILTER_STATE({PEER_PRINCIPAL}:PLAIN)%"),
            ..HeaderValue::default()
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    };
    envoy_json::any(&HeaderMutationFilter {
        mutations: Some(Mutations {
            request_mutations: vec![HeaderMutation {
                action: Some(Action::Append(set)),
            }],
            ..Mutations::default()
        }),
        ..HeaderMutationFilter::default()
    })
}

fn upstream_metadata(baggage: bool) -> Any {
    let mut discovery = vec![serde_json::json!({"workload_discovery": {}})];
    if baggage {
        let state = serde_json::json!({"peer_metadata_key": "upstream_peer"});
        discovery.push(serde_json::json!({"upstream_filter_state": state}));
    }
    let value = serde_json::json!({"upstream_discovery": discovery});
    typed_struct("io.istio.http.peer_metadata.Config", value)
}

impl MainPlan {
    /// Hash of everything that the listener is built from.
    pub(super) fn fingerprint(&self) -> u64 {
        let Self {
            groups,
            http10,
            logs,
        } = self;
        let mut digest = Digest::default();
        digest.value(&("waypoint", http10, groups.len()));
        digest.messages(logs);
        for group in groups {
            let Group {
                service,
                addresses,
                parts,
                ports,
                sources,
            } = group;
            digest.value(&(service.as_ref().map(|s| s.fingerprint), addresses, sources));
            digest.value(&ports.len());
            for port in ports {
                let PortPlan {
                    number,
                    protocol,
                    http,
                    tcp,
                } = port;
                digest.value(&(number, protocol, tcp));
                digest.value(&http.as_ref().map(|(name, _)| name));
                digest.messages(http.as_ref().map(|(_, routes)| &**routes));
            }
            parts.manager.fingerprint(&mut digest);
            parts.tcp.fingerprint(&mut digest);
            digest.messages(&parts.listener_logs);
        }
        digest.finish()
    }

    /// The objects behind the listener.
    pub(super) fn sources(&self) -> BTreeSet<ConfigKey> {
        let sources = self.groups.iter().flat_map(|group| &group.sources);
        sources.cloned().collect()
    }

    /// Builds the listener.
    pub(super) fn build(&self) -> Listener {
        let mut dispatch = Dispatch::new(self.http10);
        let mut chains = Vec::new();
        for group in &self.groups {
            let addresses = &group.addresses;
            if group.service.is_some() {
                let ports = group.ports.iter();
                dispatch.add_ports(addresses, ports.map(|port| (port.number, port.chain())));
            } else {
                for port in &group.ports {
                    dispatch.add_all(addresses, &port.chain());
                }
            }
            chains.extend(group.ports.iter().flat_map(|port| port_chains(port, group)));
        }
        let mut listener_filters = vec![
            original_dst(),
            http_inspector_but(self.known_ports().into_iter()),
        ];
        listener_filters.extend(self.tls_inspector());
        Listener {
            name: names::MAIN_INTERNAL.to_owned(),
            traffic_direction: TrafficDirection::Inbound.into(),
            listener_specifier: Some(ListenerSpecifier::InternalListener(
                InternalListenerConfig::default(),
            )),
            listener_filters,
            filter_chain_matcher: Some(dispatch.finish()),
            filter_chains: chains,
            access_log: self.logs.clone(),
            ..Listener::default()
        }
    }

    /// Ports where everybody speaks HTTP, or nobody does. Workloads that are asked for themselves have
    /// any ports.
    fn known_ports(&self) -> Vec<u16> {
        let mut spoken: BTreeMap<u16, Option<bool>> = BTreeMap::new();
        for group in &self.groups {
            if group.service.is_none() {
                if group.addresses.is_empty() {
                    continue;
                }
                return Vec::new();
            }
            for port in &group.ports {
                let protocol = port.protocol;
                let speaks_http = (!protocol.is_unsupported()).then(|| protocol.is_http());
                let seen = spoken.entry(port.number).or_insert(speaks_http);
                if *seen != speaks_http {
                    *seen = None;
                }
            }
        }
        let known = spoken.into_iter().filter(|(_, http)| http.is_some());
        known.map(|(port, _)| port).collect()
    }

    /// Finds server names, where a service speaks TLS, on the ports that any speaks it on.
    fn tls_inspector(&self) -> Option<ListenerFilter> {
        let services = self
            .groups
            .iter()
            .filter_map(|group| group.service.as_ref());
        let (mut tls, mut others) = (BTreeSet::new(), BTreeSet::new());
        for port in services.flat_map(|service| &service.ports) {
            let set = if port.protocol.is_tls() {
                &mut tls
            } else {
                &mut others
            };
            set.insert(port.port);
        }
        (!tls.is_empty()).then(|| tls_inspector_but(others.difference(&tls).copied()))
    }
}

impl PortPlan {
    /// Names of its chains.
    fn chain(&self) -> Chain {
        Chain {
            tcp: self.tcp.as_ref().map(|(name, _)| name.clone()),
            http: self.http.as_ref().map(|(name, _)| name.clone()),
        }
    }
}

fn port_chains(port: &PortPlan, group: &Group) -> Vec<FilterChain> {
    let is_direct = group.service.is_none();
    let first = || is_direct.then(connect_authority).into_iter().collect();
    let mut chains = Vec::new();
    if let Some((name, plan)) = &port.tcp {
        let mut filters: Vec<Filter> = first();
        filters.extend(group.parts.tcp.chain(plan, port.number));
        chains.push(chain(name, filters));
    }
    if let Some((name, routes)) = &port.http {
        let mut filters: Vec<Filter> = first();
        filters.push(
            group.parts.manager.build(ManagerSpec {
                stat_prefix: format!("inbound_{};", listener_name(BIND, port.number)),
                routes: Routes::Inline(routes.clone()),
                chain: HttpChain {
                    grpc_web: port.protocol == Protocol::GrpcWeb,
                    hbone: true,
                    dynamic_dns: group
                        .service
                        .as_ref()
                        .filter(|service| is_dynamic_wildcard(service))
                        .map(|service| service.hostname.clone()),
                    ..HttpChain::default()
                },
                http2: port.protocol.is_http2(),
                quic: false,
            }),
        );
        chains.push(chain(name, filters));
    }
    chains
}

fn chain(name: &str, filters: Vec<Filter>) -> FilterChain {
    FilterChain {
        name: name.to_owned(),
        filters,
        ..FilterChain::default()
    }
}

/// Hands the address on to the listener that opens tunnels.
fn connect_authority() -> Filter {
    let format = format!("%FILTER_STATE({LOCAL_ADDRESS}:PLAIN)%");
    let config = SetFilterState {
        on_new_connection: vec![hbone::state(LOCAL_ADDRESS, "", &format)],
        ..SetFilterState::default()
    };
    network("connect_authority", &config)
}

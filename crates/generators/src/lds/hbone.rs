//! Listeners of HBONE on sidecars: the end of tunnels from others, and the start of own ones
//! (listeners §16).

use std::{
    hash::{Hash, Hasher},
    sync::Arc,
};

use envoy_json::{encode::canonical_vec, typed_struct};
use envoy_types::pb::{
    envoy::{
        config::{
            accesslog::v3::{
                AccessLog, AccessLogFilter, ComparisonFilter, StatusCodeFilter,
                access_log_filter::FilterSpecifier, comparison_filter,
            },
            core::v3::{
                DataSource, HeaderValue, HeaderValueOption, Http2ProtocolOptions,
                KeepaliveSettings, RuntimeUInt32, SubstitutionFormatString, data_source,
                header_value_option::HeaderAppendAction, substitution_format_string,
            },
            listener::v3::{
                FilterChain, Listener,
                listener::{InternalListenerConfig, ListenerSpecifier},
            },
            route::v3::{
                Route, RouteAction, RouteConfiguration, RouteMatch, VirtualHost, route,
                route_action::{
                    ClusterSpecifier, UpgradeConfig as RouteUpgrade, upgrade_config::ConnectConfig,
                },
                route_match::{ConnectMatcher, PathSpecifier},
            },
        },
        extensions::{
            filters::{
                common::set_filter_state::v3::{
                    FilterStateValue,
                    filter_state_value::{Key, SharedWithUpstream, Value},
                },
                http::{router::v3::Router, set_filter_state::v3::Config as SetFilterState},
                network::{
                    http_connection_manager::v3::{
                        HttpConnectionManager, HttpFilter,
                        http_connection_manager::{
                            ForwardClientCertDetails, RouteSpecifier, SetCurrentClientCertDetails,
                            UpgradeConfig,
                        },
                    },
                    tcp_proxy::v3::{
                        TcpProxy,
                        tcp_proxy::{ClusterSpecifier as TcpCluster, TunnelingConfig},
                    },
                },
            },
            transport_sockets::tls::v3::{
                CertificateValidationContext, CommonTlsContext, DownstreamTlsContext,
                SubjectAltNameMatcher, TlsParameters,
                common_tls_context::{CombinedCertificateValidationContext, ValidationContextType},
                subject_alt_name_matcher::SanType,
                tls_parameters::TlsProtocol,
            },
        },
        r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern},
    },
    google::protobuf::Duration,
};

use model::{
    Config, ProxyType,
    api::{Telemetry, common::WorkloadMode},
};

use super::{
    address::{additional_addresses, address},
    context::Context,
    http_filters::filter,
    http_manager,
    listener_filters::original_dst,
    network_filters::{network, packed},
    outbound::exact_balance,
};
use crate::{
    capabilities::Capabilities,
    convert, names,
    security::{inbound_tls::trust_domains, of_tunnels},
    telemetry::access_log,
    tls,
};

/// Name of the listener that ends tunnels.
pub(crate) const CONNECT_TERMINATE: &str = "connect_terminate";

const PORT: u16 = 15008;
const MAX_STREAMS: u32 = 100;
/// Keep-alive pings of tunnels: interval and timeout, seconds.
const KEEP_ALIVE: (i64, i64) = (10, 20);
/// Filter state that says who opened the tunnel.
pub(super) const PEER_PRINCIPAL: &str = "io.istio.peer_principal";
const HASHABLE_STRING: &str = "istio.hashable_string";

/// Tells whether the proxy ends tunnels.
pub(crate) fn listens(ctx: &Context<'_>) -> bool {
    let features = ctx.features();
    features.ambient && features.sidecar_listening_hbone && ctx.metadata().enable_hbone
}

/// Tells whether tunnels tell peers by the baggage header: only Istio's own proxies know how.
pub(crate) fn baggage(ctx: &Context<'_>) -> bool {
    let features = ctx.features();
    features.ambient && features.ambient_baggage && Capabilities::of(ctx.proxy()).peer_metadata
}

/// Tells whether the proxy starts tunnels.
pub(crate) fn sends(ctx: &Context<'_>) -> bool {
    let features = ctx.features();
    features.ambient && features.sending_hbone
}

/// What the listener that ends tunnels is built from; its hash is the cache key.
#[derive(PartialEq, Hash, Debug)]
pub(crate) struct TerminateInputs {
    /// Addresses that it listens on.
    wildcards: Vec<Arc<str>>,
    /// What the proxy has.
    capabilities: Capabilities,
    /// Trust domains that peers must be of; none means any.
    trust_domains: Vec<String>,
    /// Loggers of the mesh.
    logs: Loggers,
    /// Policies of the connections that tunnels carry.
    policies: Policies,
    /// Peers are told by the baggage header too.
    baggage: bool,
}

/// Filters that are compared by what they are sent as.
#[derive(Clone, Default, PartialEq, Debug)]
struct Policies(Vec<HttpFilter>);

impl Hash for Policies {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.len().hash(state);
        for filter in &self.0 {
            canonical_vec(filter).hash(state);
        }
    }
}

impl TerminateInputs {
    /// Collects the inputs.
    pub(crate) fn gather(ctx: &Context<'_>, logs: &Loggers) -> Self {
        Self {
            wildcards: ctx.local.wildcards.clone(),
            capabilities: Capabilities::of(ctx.proxy()),
            trust_domains: if ctx.features().skip_validate_trust_domain {
                Vec::new()
            } else {
                let domains = trust_domains(ctx.mesh());
                domains.into_iter().map(str::to_owned).collect()
            },
            logs: logs.clone(),
            policies: Policies(of_tunnels(ctx.snapshot, ctx.class)),
            baggage: baggage(ctx),
        }
    }
}

/// Builds the listener that ends tunnels.
pub(crate) fn connect_terminate(inputs: &TerminateInputs) -> Listener {
    let wildcards = &inputs.wildcards;
    Listener {
        name: CONNECT_TERMINATE.to_owned(),
        address: Some(address(&wildcards[0], PORT)),
        additional_addresses: additional_addresses(&wildcards[1..], PORT),
        connection_balance_config: Some(exact_balance()),
        access_log: inputs.logs.listener.clone(),
        filter_chains: vec![FilterChain {
            name: "default".to_owned(),
            transport_socket: Some(socket(inputs)),
            filters: vec![network(http_manager::NAME, &manager(inputs))],
            ..FilterChain::default()
        }],
        ..Listener::default()
    }
}

/// Builds the listener that starts tunnels.
pub(crate) fn connect_originate(logs: &Loggers, baggage: bool) -> Listener {
    let mut tunnel = TunnelingConfig {
        hostname: "%DOWNSTREAM_LOCAL_ADDRESS%".to_owned(),
        ..TunnelingConfig::default()
    };
    let mut filters = Vec::new();
    if baggage {
        tunnel.propagate_response_headers = true;
        tunnel.headers_to_add.push(baggage_header());
        let config = serde_json::json!({"baggage_key": BAGGAGE});
        filters.push(packed(
            "upstream_hbone_peer_metadata",
            typed_struct(
                "type.googleapis.com/envoy.extensions.network_filters.peer_metadata.Config",
                config,
            ),
        ));
    }
    let proxy = TcpProxy {
        stat_prefix: names::CONNECT_ORIGINATE.to_owned(),
        cluster_specifier: Some(TcpCluster::Cluster(names::CONNECT_ORIGINATE.to_owned())),
        tunneling_config: Some(tunnel),
        access_log: logs.originate.clone(),
        ..TcpProxy::default()
    };
    filters.push(network("envoy.filters.network.tcp_proxy", &proxy));
    Listener {
        name: names::CONNECT_ORIGINATE.to_owned(),
        use_original_dst: convert::bool_value(false),
        listener_specifier: Some(ListenerSpecifier::InternalListener(
            InternalListenerConfig::default(),
        )),
        listener_filters: vec![original_dst()],
        access_log: logs.originate_listener.clone(),
        filter_chains: vec![FilterChain {
            filters,
            ..FilterChain::default()
        }],
        ..Listener::default()
    }
}

/// Filter state that holds what is known of the workload.
const BAGGAGE: &str = "io.istio.baggage";

/// Tells the other end of a tunnel who starts it.
fn baggage_header() -> HeaderValueOption {
    HeaderValueOption {
        header: Some(HeaderValue {
            key: "baggage".to_owned(),
            value: format!("%FILTER_STATE({BAGGAGE}:PLAIN)%"),
            ..HeaderValue::default()
        }),
        append_action: HeaderAppendAction::OverwriteIfExistsOrAdd.into(),
        ..HeaderValueOption::default()
    }
}

/// Loggers of these listeners.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Loggers {
    /// Of the listener that ends tunnels.
    pub listener: Vec<AccessLog>,
    /// Of its manager: requests that fail.
    pub terminate: Vec<AccessLog>,
    /// Of the listener that starts tunnels.
    pub originate_listener: Vec<AccessLog>,
    /// Of its TCP proxy: connections that fail.
    pub originate: Vec<AccessLog>,
}

impl Hash for Loggers {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self {
            listener,
            terminate,
            originate_listener,
            originate,
        } = self;
        for logs in [listener, terminate, originate_listener, originate] {
            logs.len().hash(state);
            for log in logs {
                canonical_vec(log).hash(state);
            }
        }
    }
}

impl Loggers {
    /// The loggers that the workload's Telemetry objects or the mesh ask for
    /// (telemetry-extensions §5). Tunnels end on the inbound side, and begin on the outbound one but
    /// for waypoints.
    pub(crate) fn resolve(ctx: &Context<'_>) -> Self {
        let mesh = ctx.mesh();
        let layers = ctx.snapshot.telemetries(&ctx.class.workload());
        let (listener, terminate) =
            Self::of_side(ctx, &layers, WorkloadMode::Server, failed_status());
        let side = match ctx.proxy().proxy_type {
            ProxyType::Sidecar | ProxyType::Router => WorkloadMode::Client,
            ProxyType::Waypoint | ProxyType::Ztunnel => WorkloadMode::Server,
        };
        let failed = access_log::response_flag("UF");
        let (originate_listener, originate) = Self::of_side(ctx, &layers, side, failed);
        let of_listener = |logs| {
            if mesh.disable_envoy_listener_log {
                Vec::new()
            } else {
                logs
            }
        };
        Self {
            listener: of_listener(listener),
            terminate,
            originate_listener: of_listener(originate_listener),
            originate,
        }
    }

    /// Loggers of a listener, and those of its one filter, which are limited to `failed`.
    fn of_side(
        ctx: &Context<'_>,
        layers: &[Arc<Config<Telemetry>>],
        mode: WorkloadMode,
        failed: AccessLogFilter,
    ) -> (Vec<AccessLog>, Vec<AccessLog>) {
        if let Some(chosen) = access_log::Chosen::of(ctx.snapshot, layers, mode) {
            let listener = chosen.loggers(Some(&access_log::no_route()));
            return (listener, chosen.loggers(Some(&failed)));
        }
        let file = access_log::mesh_file(ctx.mesh());
        let limited = file.map(|log| access_log::limited(log, failed));
        (
            access_log::of_mesh(ctx.mesh()).listener,
            limited.into_iter().collect(),
        )
    }
}

fn failed_status() -> AccessLogFilter {
    AccessLogFilter {
        filter_specifier: Some(FilterSpecifier::StatusCodeFilter(StatusCodeFilter {
            comparison: Some(ComparisonFilter {
                op: comparison_filter::Op::Ge.into(),
                value: Some(RuntimeUInt32 {
                    default_value: 400,
                    runtime_key: "istio.io/unset".to_owned(),
                }),
            }),
        })),
    }
}

fn socket(inputs: &TerminateInputs) -> envoy_types::pb::envoy::config::core::v3::TransportSocket {
    let capabilities = inputs.capabilities;
    let validation = CertificateValidationContext {
        match_typed_subject_alt_names: inputs
            .trust_domains
            .iter()
            .map(|domain| SubjectAltNameMatcher {
                san_type: SanType::Uri.into(),
                matcher: Some(StringMatcher {
                    match_pattern: Some(MatchPattern::Prefix(format!("spiffe://{domain}/"))),
                    ..StringMatcher::default()
                }),
                ..SubjectAltNameMatcher::default()
            })
            .collect(),
        ..CertificateValidationContext::default()
    };
    let combined = CombinedCertificateValidationContext {
        default_validation_context: Some(validation),
        validation_context_sds_secret_config: Some(tls::workload_secret(
            tls::WORKLOAD_ROOT,
            capabilities,
        )),
        ..CombinedCertificateValidationContext::default()
    };
    let context = DownstreamTlsContext {
        require_client_certificate: convert::bool_value(true),
        common_tls_context: Some(CommonTlsContext {
            tls_params: Some(TlsParameters {
                tls_minimum_protocol_version: TlsProtocol::TlSv13.into(),
                tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
                ..TlsParameters::default()
            }),
            tls_certificate_sds_secret_configs: vec![tls::workload_secret(
                tls::WORKLOAD_CERTIFICATE,
                capabilities,
            )],
            alpn_protocols: vec!["h2".to_owned()],
            validation_context_type: Some(ValidationContextType::CombinedValidationContext(
                combined,
            )),
            ..CommonTlsContext::default()
        }),
        ..DownstreamTlsContext::default()
    };
    convert::transport_socket("tls", envoy_json::any(&context))
}

fn manager(inputs: &TerminateInputs) -> HttpConnectionManager {
    let mut filters = inputs.policies.0.clone();
    if inputs.capabilities.peer_metadata {
        let mut value = serde_json::json!({
            "downstream_discovery": [{"workload_discovery": {}}],
            "shared_with_upstream": true,
        });
        if inputs.baggage {
            let baggage = serde_json::json!({"baggage": {}});
            value["downstream_discovery"] =
                serde_json::json!([{"workload_discovery": {}}, baggage]);
            value["downstream_propagation"] = serde_json::json!([baggage]);
        }
        let config = typed_struct("io.istio.http.peer_metadata.Config", value);
        filters.push(filter("waypoint_downstream_peer_metadata", config));
    }
    filters.push(filter(
        "connect_authority",
        envoy_json::any(&connect_authority(inputs.capabilities)),
    ));
    filters.push(filter(
        "envoy.filters.http.router",
        envoy_json::any(&Router::default()),
    ));
    HttpConnectionManager {
        stat_prefix: CONNECT_TERMINATE.to_owned(),
        route_specifier: Some(RouteSpecifier::RouteConfig(routes())),
        http_filters: filters,
        access_log: inputs.logs.terminate.clone(),
        server_name: "istio-envoy".to_owned(),
        use_remote_address: convert::bool_value(false),
        forward_client_cert_details: ForwardClientCertDetails::AppendForward.into(),
        set_current_client_cert_details: Some(SetCurrentClientCertDetails {
            subject: convert::bool_value(true),
            dns: true,
            uri: true,
            ..SetCurrentClientCertDetails::default()
        }),
        stream_idle_timeout: Some(Duration::default()),
        upgrade_configs: vec![UpgradeConfig {
            upgrade_type: "CONNECT".to_owned(),
            ..UpgradeConfig::default()
        }],
        http2_protocol_options: Some(Http2ProtocolOptions {
            allow_connect: true,
            max_concurrent_streams: convert::u32_value(MAX_STREAMS),
            connection_keepalive: Some(KeepaliveSettings {
                interval: Some(convert::seconds(KEEP_ALIVE.0)),
                timeout: Some(convert::seconds(KEEP_ALIVE.1)),
                ..KeepaliveSettings::default()
            }),
            ..Http2ProtocolOptions::default()
        }),
        ..HttpConnectionManager::default()
    }
}

/// Tells the listener behind what the tunnel knows: destination, source and identities.
fn connect_authority(capabilities: Capabilities) -> SetFilterState {
    // Stock Envoy has no such factory; its plain strings do the same but for connection pools.
    let hashed = if capabilities.peer_metadata {
        HASHABLE_STRING
    } else {
        "envoy.string"
    };
    SetFilterState {
        on_request_headers: vec![
            state(
                "envoy.filters.listener.original_dst.local_ip",
                "",
                "%REQ(:AUTHORITY)%",
            ),
            state("io.istio.connect_authority", hashed, "%REQ(:AUTHORITY)%"),
            state(
                "envoy.filters.listener.original_dst.remote_ip",
                "",
                "%DOWNSTREAM_REMOTE_ADDRESS%",
            ),
            state(PEER_PRINCIPAL, hashed, "%DOWNSTREAM_PEER_URI_SAN%"),
            state(
                "io.istio.local_principal",
                hashed,
                "%DOWNSTREAM_LOCAL_URI_SAN%",
            ),
        ],
        ..SetFilterState::default()
    }
}

/// Filter state of a connection that is handed on to the next listener.
pub(super) fn state(key: &str, factory: &str, format: &str) -> FilterStateValue {
    FilterStateValue {
        key: Some(Key::ObjectKey(key.to_owned())),
        factory_key: factory.to_owned(),
        shared_with_upstream: SharedWithUpstream::Once.into(),
        value: Some(Value::FormatString(SubstitutionFormatString {
            format: Some(substitution_format_string::Format::TextFormatSource(
                DataSource {
                    specifier: Some(data_source::Specifier::InlineString(format.to_owned())),
                    ..DataSource::default()
                },
            )),
            ..SubstitutionFormatString::default()
        })),
        ..FilterStateValue::default()
    }
}

fn routes() -> RouteConfiguration {
    let route = Route {
        r#match: Some(RouteMatch {
            path_specifier: Some(PathSpecifier::ConnectMatcher(ConnectMatcher {})),
            ..RouteMatch::default()
        }),
        action: Some(route::Action::Route(RouteAction {
            cluster_specifier: Some(ClusterSpecifier::Cluster(names::MAIN_INTERNAL.to_owned())),
            upgrade_configs: vec![RouteUpgrade {
                upgrade_type: "CONNECT".to_owned(),
                connect_config: Some(ConnectConfig::default()),
                ..RouteUpgrade::default()
            }],
            ..RouteAction::default()
        })),
        ..Route::default()
    };
    RouteConfiguration {
        name: "default".to_owned(),
        virtual_hosts: vec![VirtualHost {
            name: "default".to_owned(),
            domains: vec!["*".to_owned()],
            routes: vec![route],
            ..VirtualHost::default()
        }],
        ..RouteConfiguration::default()
    }
}

//! HTTP connection managers (listeners §9).

use std::sync::OnceLock;

use envoy_json::{any, encode::canonical_vec};
use envoy_types::pb::{
    envoy::{
        config::{
            core::v3::{
                CidrRange, Http1ProtocolOptions, Http2ProtocolOptions, Http3ProtocolOptions,
                HttpProtocolOptions, TypedExtensionConfig,
                http_protocol_options::HeadersWithUnderscoresAction,
                http1_protocol_options::{HeaderKeyFormat, header_key_format::HeaderFormat},
            },
            listener::v3::{Filter, filter},
            route::v3::RouteConfiguration,
        },
        extensions::{
            filters::network::http_connection_manager::v3::{
                HttpConnectionManager, Rds, RequestIdExtension,
                http_connection_manager::{
                    CodecType, ForwardClientCertDetails, InternalAddressConfig,
                    PathWithEscapedSlashesAction, RouteSpecifier, ServerHeaderTransformation,
                    SetCurrentClientCertDetails, UpgradeConfig,
                },
            },
            http::header_formatters::preserve_case::v3::PreserveCaseFormatterConfig,
            request_id::uuid::v3::UuidRequestIdConfig,
        },
    },
    google::protobuf::{Any, Duration},
};
use model::{
    Features,
    api::{
        self,
        mesh::{ConnectionProfile, ForwardClientCertDetails as CertDetails, NormalizationType},
    },
};
use prost::{Message, Name};

use super::{
    address::parse_cidr,
    context::Context,
    http_filters::{HttpChain, HttpFilterParts},
};
use crate::{convert, telemetry::Telemetry, tls};

/// Name of the network filter.
pub(crate) const NAME: &str = "envoy.filters.network.http_connection_manager";
/// What inbound managers call themselves.
const SERVER_NAME: &str = "istio-envoy";

/// Which side of a proxy a manager is on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Side {
    /// Requests of the workload to others.
    Outbound,
    /// Requests of others to the workload.
    Inbound,
    /// Requests through a gateway.
    Gateway,
    /// Requests to others that come to a waypoint.
    Waypoint,
}

/// What all managers of one side share.
#[derive(Debug)]
pub(crate) struct ManagerParts {
    /// Every field but statistics, routes, filters and what differs from chain to chain.
    base: HttpConnectionManager,
    filters: HttpFilterParts,
    /// Encoded fields of the manager of a chain without peculiarities, after its routes.
    common: OnceLock<Vec<u8>>,
}

/// One manager.
#[derive(Debug)]
pub(crate) struct ManagerSpec {
    /// Prefix of statistics, with its trailing delimiter.
    pub stat_prefix: String,
    /// Routes.
    pub routes: Routes,
    /// What differs in its filters.
    pub chain: HttpChain,
    /// The port speaks HTTP/2 from the first byte.
    pub http2: bool,
    /// The listener speaks QUIC.
    pub quic: bool,
}

/// Where a manager's routes come from.
#[derive(Debug)]
pub(crate) enum Routes {
    /// Asked for by name.
    Named(String),
    /// Within the manager.
    Inline(Box<RouteConfiguration>),
}

impl ManagerParts {
    /// Reads the settings of one side.
    pub(crate) fn new(
        ctx: &Context<'_>,
        side: Side,
        telemetry: &Telemetry,
        filters: HttpFilterParts,
    ) -> Self {
        Self {
            base: base(ctx, side, telemetry),
            filters,
            common: OnceLock::new(),
        }
    }

    /// Builds a manager as a network filter.
    ///
    /// The fields that all chains share are encoded once: they have higher numbers than the routes,
    /// so that the bytes of both in a row are the canonical encoding of the whole.
    pub(crate) fn build(&self, spec: ManagerSpec) -> Filter {
        let ManagerSpec {
            stat_prefix,
            routes,
            chain,
            http2,
            quic,
        } = spec;
        let head = HttpConnectionManager {
            stat_prefix,
            route_specifier: Some(route_specifier(routes)),
            ..HttpConnectionManager::default()
        };
        let mut value = head.encode_to_vec();
        if quic {
            value = self.over_quic(head, &chain);
        } else if chain == HttpChain::default() && !http2 {
            value.extend_from_slice(self.common.get_or_init(|| self.tail(&chain, false)));
        } else {
            value.extend(self.tail(&chain, http2));
        }
        let config = Any {
            type_url: HttpConnectionManager::type_url(),
            value,
        };
        Filter {
            name: NAME.to_owned(),
            config_type: Some(filter::ConfigType::TypedConfig(config)),
        }
    }

    /// Encodes a manager for QUIC, whose codec comes before everything else.
    fn over_quic(&self, head: HttpConnectionManager, chain: &HttpChain) -> Vec<u8> {
        canonical_vec(&HttpConnectionManager {
            codec_type: CodecType::Http3.into(),
            stat_prefix: head.stat_prefix,
            route_specifier: head.route_specifier,
            http_filters: self.filters.list(chain),
            http3_protocol_options: Some(Http3ProtocolOptions::default()),
            ..self.base.clone()
        })
    }

    fn tail(&self, chain: &HttpChain, http2: bool) -> Vec<u8> {
        let mut manager = self.base.clone();
        manager.http_filters = self.filters.list(chain);
        if http2 {
            manager.http2_protocol_options.get_or_insert_default();
        }
        if chain.is_proxy {
            manager.use_remote_address = convert::bool_value(false);
            manager
                .http_protocol_options
                .get_or_insert_default()
                .allow_absolute_url = convert::bool_value(true);
        }
        canonical_vec(&manager)
    }

    /// Adds everything that managers are built from to `digest`.
    pub(crate) fn fingerprint(&self, digest: &mut super::parts::Digest) {
        let Self {
            base,
            filters,
            common: _,
        } = self;
        digest.message(base);
        filters.fingerprint(digest);
    }
}

fn route_specifier(routes: Routes) -> RouteSpecifier {
    match routes {
        Routes::Named(route_config_name) => RouteSpecifier::Rds(Rds {
            config_source: Some(tls::ads_without_timeout()),
            route_config_name,
        }),
        Routes::Inline(routes) => RouteSpecifier::RouteConfig(*routes),
    }
}

fn base(ctx: &Context<'_>, side: Side, telemetry: &Telemetry) -> HttpConnectionManager {
    let features = ctx.features();
    let config = ctx.proxy_config();
    let headers = config.proxy_headers.clone().unwrap_or_default();
    let use_remote_address = match side {
        Side::Outbound => features.sidecar_use_remote_address,
        Side::Inbound | Side::Waypoint => false,
        Side::Gateway => true,
    };
    let mut manager = HttpConnectionManager {
        use_remote_address: convert::bool_value(use_remote_address),
        internal_address_config: (features.hcm_internal_networks || use_remote_address)
            .then(|| internal_addresses(ctx.snapshot.networks()))
            .flatten(),
        proxy_100_continue: features.continue_headers,
        upgrade_configs: vec![UpgradeConfig {
            upgrade_type: "websocket".to_owned(),
            ..UpgradeConfig::default()
        }],
        stream_idle_timeout: Some(Duration::default()),
        common_http_protocol_options: ctx.idle_timeout().map(|idle| HttpProtocolOptions {
            idle_timeout: Some(convert::duration(idle)),
            ..HttpProtocolOptions::default()
        }),
        http_protocol_options: http1_options(ctx, features, &headers),
        append_x_forwarded_port: headers
            .x_forwarded_port
            .as_ref()
            .is_some_and(|header| header.enabled == Some(true)),
        request_id_extension: Some(RequestIdExtension {
            typed_config: Some(any(&UuidRequestIdConfig {
                use_request_id_for_trace_sampling: convert::bool_value(
                    telemetry.sample_by_request_id,
                ),
                ..UuidRequestIdConfig::default()
            })),
        }),
        tracing: telemetry.tracing.clone(),
        access_log: telemetry.http_logs.clone(),
        ..HttpConnectionManager::default()
    };
    set_server_name(&mut manager, side, headers.server.as_ref());
    if headers
        .request_id
        .as_ref()
        .is_some_and(|header| header.disabled == Some(true))
    {
        manager.generate_request_id = convert::bool_value(false);
    }
    match side {
        Side::Inbound => set_client_certificate(&mut manager, &headers),
        Side::Gateway => {
            manager.http_protocol_options.get_or_insert_default();
            set_topology(&mut manager, config.gateway_topology.as_ref());
        }
        // Who the client is, the end of its tunnel told.
        Side::Outbound | Side::Waypoint => {}
    }
    set_path_normalization(&mut manager, ctx.mesh().path_normalization.as_ref());
    if let Some(settings) = &config.connection_settings {
        if side == Side::Gateway && settings.profile == ConnectionProfile::Edge {
            apply_connection_settings(&mut manager, &edge_defaults(settings));
        } else {
            apply_connection_settings(&mut manager, settings);
        }
    }
    manager
}

/// What a gateway makes of the proxies in front of it (gateways §9.1, §17).
fn set_topology(manager: &mut HttpConnectionManager, topology: Option<&api::mesh::Topology>) {
    let topology = topology.cloned().unwrap_or_default();
    manager.xff_num_trusted_hops = topology.num_trusted_proxies;
    let details = match topology.forward_client_cert_details {
        CertDetails::Undefined | CertDetails::SanitizeSet => ForwardClientCertDetails::SanitizeSet,
        CertDetails::Sanitize => ForwardClientCertDetails::Sanitize,
        CertDetails::ForwardOnly => ForwardClientCertDetails::ForwardOnly,
        CertDetails::AppendForward => ForwardClientCertDetails::AppendForward,
        CertDetails::AlwaysForwardOnly => ForwardClientCertDetails::AlwaysForwardOnly,
    };
    manager.forward_client_cert_details = details.into();
    let sets = matches!(
        details,
        ForwardClientCertDetails::SanitizeSet | ForwardClientCertDetails::AppendForward
    );
    manager.set_current_client_cert_details = sets.then(|| SetCurrentClientCertDetails {
        subject: convert::bool_value(true),
        cert: true,
        dns: true,
        uri: true,
        ..SetCurrentClientCertDetails::default()
    });
}

/// Fills what the settings of an edge proxy leave open (gateways §9.3).
pub(crate) fn edge_defaults(
    settings: &api::mesh::ConnectionSettings,
) -> api::mesh::ConnectionSettings {
    let mut settings = settings.clone();
    let minutes = |n: u32| Some(api::Duration::from_secs(n * 60));
    settings
        .listener_per_connection_buffer_limit_bytes
        .get_or_insert(32 * 1024);
    settings.http_idle_timeout = settings.http_idle_timeout.or(minutes(60));
    settings.http_stream_idle_timeout = settings.http_stream_idle_timeout.or(minutes(5));
    settings.http_request_timeout = settings.http_request_timeout.or(minutes(5));
    settings.http_request_headers_timeout = settings.http_request_headers_timeout.or(minutes(1));
    settings.http_max_concurrent_streams.get_or_insert(100);
    settings
        .http2_initial_stream_window_size
        .get_or_insert(64 * 1024);
    settings
        .http2_initial_connection_window_size
        .get_or_insert(1024 * 1024);
    settings.http_merge_slashes.get_or_insert(true);
    if settings.underscores_action().is_none() {
        "REJECT_REQUEST".clone_into(&mut settings.http_headers_with_underscores_action);
    }
    if settings.escaped_slashes_action().is_none() {
        "UNESCAPE_AND_REDIRECT".clone_into(&mut settings.http_path_with_escaped_slashes_action);
    }
    settings
}

fn set_server_name(
    manager: &mut HttpConnectionManager,
    side: Side,
    server: Option<&api::mesh::ServerHeader>,
) {
    if side != Side::Outbound {
        SERVER_NAME.clone_into(&mut manager.server_name);
    }
    let Some(server) = server else { return };
    if server.disabled == Some(true) {
        manager.server_name.clear();
        manager.server_header_transformation = ServerHeaderTransformation::PassThrough.into();
    } else if !server.value.is_empty() {
        manager.server_name.clone_from(&server.value);
    }
}

fn set_client_certificate(manager: &mut HttpConnectionManager, headers: &api::mesh::ProxyHeaders) {
    manager.forward_client_cert_details = match headers.forwarded_client_cert {
        CertDetails::Undefined | CertDetails::AppendForward => {
            ForwardClientCertDetails::AppendForward
        }
        CertDetails::Sanitize => ForwardClientCertDetails::Sanitize,
        CertDetails::ForwardOnly => ForwardClientCertDetails::ForwardOnly,
        CertDetails::SanitizeSet => ForwardClientCertDetails::SanitizeSet,
        CertDetails::AlwaysForwardOnly => ForwardClientCertDetails::AlwaysForwardOnly,
    }
    .into();
    let details = headers
        .set_current_client_cert_details
        .clone()
        .unwrap_or_default();
    manager.set_current_client_cert_details = Some(SetCurrentClientCertDetails {
        subject: convert::bool_value(details.subject.unwrap_or(true)),
        cert: details.cert.unwrap_or(false),
        chain: details.chain.unwrap_or(false),
        dns: details.dns.unwrap_or(true),
        uri: details.uri.unwrap_or(true),
        ..SetCurrentClientCertDetails::default()
    });
}

/// Path normalization of the mesh (listeners §9.2).
fn set_path_normalization(
    manager: &mut HttpConnectionManager,
    settings: Option<&api::mesh::ProxyPathNormalization>,
) {
    let (normalize, merge_slashes, escaped) =
        match settings.map_or(NormalizationType::Default, |s| s.normalization) {
            NormalizationType::Default | NormalizationType::Base => {
                (true, false, PathWithEscapedSlashesAction::KeepUnchanged)
            }
            NormalizationType::None => (false, false, PathWithEscapedSlashesAction::KeepUnchanged),
            NormalizationType::MergeSlashes => {
                (true, true, PathWithEscapedSlashesAction::KeepUnchanged)
            }
            NormalizationType::DecodeAndMergeSlashes => {
                (true, true, PathWithEscapedSlashesAction::UnescapeAndForward)
            }
        };
    manager.normalize_path = convert::bool_value(normalize);
    manager.merge_slashes = merge_slashes;
    manager.path_with_escaped_slashes_action = escaped.into();
}

fn http1_options(
    ctx: &Context<'_>,
    features: &Features,
    headers: &api::mesh::ProxyHeaders,
) -> Option<Http1ProtocolOptions> {
    let accept_http_10 = features.http10 || ctx.metadata().http10;
    let preserve_case = headers.preserve_http1_header_case == Some(true);
    (accept_http_10 || preserve_case).then(|| Http1ProtocolOptions {
        accept_http_10,
        header_key_format: preserve_case.then(preserve_case_format),
        ..Http1ProtocolOptions::default()
    })
}

/// Keeps the case of HTTP/1 headers.
pub(crate) fn preserve_case_format() -> HeaderKeyFormat {
    HeaderKeyFormat {
        header_format: Some(HeaderFormat::StatefulFormatter(TypedExtensionConfig {
            name: "preserve_case".to_owned(),
            typed_config: Some(any(&PreserveCaseFormatterConfig::default())),
        })),
    }
}

/// Ranges of the mesh's networks; `None` without any.
pub(crate) fn internal_addresses(networks: &api::MeshNetworks) -> Option<InternalAddressConfig> {
    let mut ranges: Vec<(String, u8)> = networks
        .networks
        .values()
        .flat_map(|network| &network.endpoints)
        .filter_map(|endpoints| parse_cidr(endpoints.from_cidr.as_ref()?))
        .map(|net| (net.addr().to_string(), net.prefix_len()))
        .collect();
    ranges.sort();
    (!ranges.is_empty()).then(|| InternalAddressConfig {
        cidr_ranges: ranges
            .into_iter()
            .map(|(address_prefix, length)| CidrRange {
                address_prefix,
                prefix_len: convert::u32_value(length.into()),
            })
            .collect(),
        ..InternalAddressConfig::default()
    })
}

/// Overrides what the proxy's connection settings name (listeners §9.4). Negative numbers count as
/// not set.
pub(crate) fn apply_connection_settings(
    manager: &mut HttpConnectionManager,
    settings: &api::mesh::ConnectionSettings,
) {
    let underscores = settings.underscores_action();
    let has_common = settings.http_idle_timeout.is_some()
        || settings.http_max_connection_duration.is_some()
        || settings.http_max_stream_duration.is_some()
        || underscores.is_some();
    if has_common {
        let common = manager.common_http_protocol_options.get_or_insert_default();
        replace(&mut common.idle_timeout, settings.http_idle_timeout);
        replace(
            &mut common.max_connection_duration,
            settings.http_max_connection_duration,
        );
        replace(
            &mut common.max_stream_duration,
            settings.http_max_stream_duration,
        );
        if let Some(action) = underscores {
            common.headers_with_underscores_action = match action {
                "REJECT_REQUEST" => HeadersWithUnderscoresAction::RejectRequest,
                "DROP_HEADER" => HeadersWithUnderscoresAction::DropHeader,
                _ => HeadersWithUnderscoresAction::Allow,
            }
            .into();
        }
    }
    replace(
        &mut manager.stream_idle_timeout,
        settings.http_stream_idle_timeout,
    );
    replace(&mut manager.request_timeout, settings.http_request_timeout);
    replace(
        &mut manager.request_headers_timeout,
        settings.http_request_headers_timeout,
    );
    replace(&mut manager.drain_timeout, settings.http_drain_timeout);
    let limits = [
        settings.http_max_concurrent_streams,
        settings.http2_initial_stream_window_size,
        settings.http2_initial_connection_window_size,
    ];
    if limits.iter().any(Option::is_some) {
        let http2: &mut Http2ProtocolOptions =
            manager.http2_protocol_options.get_or_insert_default();
        let [streams, stream_window, connection_window] = limits.map(|limit| {
            limit
                .and_then(|n| u32::try_from(n).ok())
                .and_then(convert::u32_value)
        });
        http2.max_concurrent_streams = streams;
        http2.initial_stream_window_size = stream_window;
        http2.initial_connection_window_size = connection_window;
    }
    if let Some(merge) = settings.http_merge_slashes {
        manager.merge_slashes = merge;
    }
    if let Some(action) = settings.escaped_slashes_action() {
        manager.path_with_escaped_slashes_action = match action {
            "KEEP_UNCHANGED" => PathWithEscapedSlashesAction::KeepUnchanged,
            "REJECT_REQUEST" => PathWithEscapedSlashesAction::RejectRequest,
            "UNESCAPE_AND_REDIRECT" => PathWithEscapedSlashesAction::UnescapeAndRedirect,
            "UNESCAPE_AND_FORWARD" => PathWithEscapedSlashesAction::UnescapeAndForward,
            _ => PathWithEscapedSlashesAction::ImplementationSpecificDefault,
        }
        .into();
    }
}

fn replace(field: &mut Option<Duration>, setting: Option<api::Duration>) {
    if let Some(setting) = setting {
        *field = Some(convert::duration(setting));
    }
}

//! Parts of clusters that are the same for many: built once for a class.

use envoy_json::{any, istio, struct_value};
use envoy_types::pb::{
    envoy::{
        config::{
            cluster::v3::{
                CircuitBreakers, Filter, circuit_breakers::Thresholds,
                cluster::TransportSocketMatch,
            },
            core::v3::{ConfigSource, TransportSocket, TypedExtensionConfig},
        },
        extensions::{
            network::dns_resolver::cares::v3::CaresDnsResolverConfig,
            transport_sockets::{
                internal_upstream::v3::{InternalUpstreamTransport, internal_upstream_transport},
                raw_buffer::v3::RawBuffer,
                tls::v3::{SdsSecretConfig, TlsParameters, tls_parameters::TlsProtocol},
            },
        },
        r#type::metadata::v3::{MetadataKind, metadata_kind},
    },
    google::protobuf::Any,
};
use serde_json::json;

use super::{
    client::ClientFacts,
    http::{HttpOptions, Protocol},
    mutual_tls::MutualTls,
};
use crate::{convert, tls};

/// Name of the socket that speaks plain TCP.
const RAW_BUFFER: &str = "envoy.transport_sockets.raw_buffer";
/// Name of the socket to a listener inside the proxy.
const INTERNAL_UPSTREAM: &str = "envoy.transport_sockets.internal_upstream";

/// Messages that follow from [`ClientFacts`] alone.
#[derive(Debug)]
pub(super) struct Parts {
    /// The metadata exchange filter; `None` when the proxy does not exchange.
    pub exchange_filter: Option<Filter>,
    /// The filter that reads what tunnels tell of peers; `None` when they tell nothing.
    pub baggage_filter: Option<Filter>,
    /// Thresholds without limits.
    pub unlimited: CircuitBreakers,
    /// The DNS resolver.
    pub resolver: TypedExtensionConfig,
    /// Where load assignments come from.
    pub eds_source: ConfigSource,
    /// The workload's certificate.
    pub workload_certificate: SdsSecretConfig,
    /// The roots of the mesh.
    pub workload_root: SdsSecretConfig,
    /// The context of mutual TLS within the mesh.
    pub mutual_tls: MutualTls,
    /// Plain TCP.
    pub raw_buffer: TransportSocket,
    /// The match of endpoints that do not speak mutual TLS.
    pub plaintext_match: TransportSocketMatch,
    /// Packed HTTP options of explicit HTTP/2.
    pub http2: Any,
    /// Packed HTTP options that follow the downstream protocol.
    pub downstream: Any,
}

impl Parts {
    /// Builds the parts.
    pub(super) fn new(facts: &ClientFacts) -> Self {
        let raw_buffer = convert::transport_socket(RAW_BUFFER, raw_buffer_config());
        let mut mutual_parameters = tls_parameters();
        facts.flags.compliance.restrict(&mut mutual_parameters);
        let secret = |name| tls::workload_secret(name, facts.capabilities);
        let workload_certificate = secret(tls::WORKLOAD_CERTIFICATE);
        let workload_root = secret(tls::WORKLOAD_ROOT);
        let protocol = |protocol| HttpOptions::of(protocol).packed();
        Self {
            exchange_filter: facts.exchanges_metadata().then(|| exchange_filter(facts)),
            baggage_filter: (facts.flags.baggage && facts.capabilities.peer_metadata)
                .then(baggage_filter),
            unlimited: CircuitBreakers {
                thresholds: vec![thresholds(facts)],
                ..CircuitBreakers::default()
            },
            resolver: convert::extension(
                "envoy.network.dns_resolver.cares",
                any(&CaresDnsResolverConfig {
                    udp_max_queries: convert::u32_value(facts.flags.dns_max_queries),
                    ..CaresDnsResolverConfig::default()
                }),
            ),
            eds_source: tls::ads_without_timeout(),
            mutual_tls: MutualTls::new(
                &mutual_parameters,
                &workload_certificate,
                &workload_root,
                facts.exchanges_metadata() && !facts.flags.disable_mx_alpn,
            ),
            workload_certificate,
            workload_root,
            plaintext_match: TransportSocketMatch {
                name: "tlsMode-disabled".to_owned(),
                r#match: Some(struct_value(json!({}))),
                transport_socket: Some(raw_buffer.clone()),
            },
            raw_buffer,
            http2: protocol(Protocol::http2()),
            downstream: protocol(Protocol::downstream(facts.preserve_header_case)),
        }
    }
}

/// TLS 1.2 to 1.3, the range of all upstream contexts.
pub(super) fn tls_parameters() -> TlsParameters {
    TlsParameters {
        tls_minimum_protocol_version: TlsProtocol::TlSv12.into(),
        tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
        ..TlsParameters::default()
    }
}

/// Thresholds without limits.
pub(super) fn thresholds(facts: &ClientFacts) -> Thresholds {
    let unlimited = convert::u32_value(u32::MAX);
    Thresholds {
        max_connections: unlimited,
        max_pending_requests: unlimited,
        max_requests: unlimited,
        max_retries: unlimited,
        track_remaining: facts.flags.track_remaining,
        ..Thresholds::default()
    }
}

fn exchange_filter(facts: &ClientFacts) -> Filter {
    let mut config = json!({"protocol": "istio-peer-exchange", "enable_discovery": true});
    if !facts.flags.mx_labels.is_empty() {
        config["additional_labels"] = json!(facts.flags.mx_labels);
    }
    let type_url = <istio::metadata_exchange::MetadataExchange as prost::Name>::type_url();
    Filter {
        name: "istio.metadata_exchange".to_owned(),
        typed_config: Some(envoy_json::typed_struct(&type_url, config)),
        config_discovery: None,
    }
}

fn baggage_filter() -> Filter {
    let type_url = "envoy.extensions.network_filters.peer_metadata.UpstreamConfig";
    Filter {
        name: "upstream_hbone_peer_metadata".to_owned(),
        typed_config: Some(envoy_json::typed_struct(type_url, json!({}))),
        config_discovery: None,
    }
}

/// Packed config of the plain TCP socket.
pub(super) fn raw_buffer_config() -> Any {
    any(&RawBuffer {})
}

/// A socket to a listener inside the proxy, around `inner`, that hands on metadata of the kinds
/// and names in `passthrough`.
pub(super) fn internal_upstream(
    name: &str,
    inner: TransportSocket,
    passthrough: &[(metadata_kind::Kind, &str)],
) -> TransportSocket {
    let source = |(kind, name): &(metadata_kind::Kind, &str)| {
        internal_upstream_transport::MetadataValueSource {
            kind: Some(MetadataKind { kind: Some(*kind) }),
            name: (*name).to_owned(),
        }
    };
    convert::transport_socket(
        name,
        any(&InternalUpstreamTransport {
            passthrough_metadata: passthrough.iter().map(source).collect(),
            transport_socket: Some(inner),
        }),
    )
}

/// The socket into an HBONE tunnel.
pub(super) fn hbone_socket(inner: TransportSocket) -> TransportSocket {
    use metadata_kind::{Cluster, Host, Kind};
    internal_upstream(
        INTERNAL_UPSTREAM,
        inner,
        &[
            (Kind::Host(Host {}), "envoy.filters.listener.original_dst"),
            (Kind::Cluster(Cluster {}), "istio"),
            (Kind::Host(Host {}), "istio"),
        ],
    )
}

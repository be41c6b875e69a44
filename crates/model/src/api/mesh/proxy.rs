//! The mesh's `ProxyConfig`: settings of one proxy (config-model.md §4.4).

use std::collections::BTreeMap;

use crate::api::Duration;
use crate::api::codec::{message, proto_enum};
use crate::api::common::{ClientTlsSettings, TcpKeepalive};
use crate::api::mesh::Nothing;
use crate::api::proxy_config::ProxyImage;
use crate::api::service_entry::ReadinessProbe;

message! {
    /// Settings of a proxy: `defaultConfig` of the mesh, the annotation `proxy.istio.io/config`,
    /// and `PROXY_CONFIG` of the node metadata.
    ///
    /// `Default` is the empty message; the mesh's defaults are [`MeshProxyConfig::mesh_default`].
    pub struct MeshProxyConfig {
        /// Folder of generated configuration.
        config_path: String,
        /// Path of the proxy's binary.
        binary_path: String,
        /// Name of the cluster in statistics; excludes `tracing_service_name`.
        service_cluster: String,
        /// How that name is made up.
        tracing_service_name: Option<TracingServiceName>,
        /// How long listeners drain.
        drain_duration: Option<Duration>,
        /// How long connections drain when the pod ends.
        termination_drain_duration: Option<Duration>,
        /// Address of the control plane.
        discovery_address: String,
        /// Deprecated.
        discovery_refresh_delay: Option<Duration>,
        /// Deprecated.
        zipkin_address: String,
        /// Address of a statsd server.
        statsd_udp_address: String,
        /// Deprecated.
        envoy_metrics_service_address: String,
        /// Port of the proxy's admin interface.
        proxy_admin_port: i32,
        /// Deprecated.
        availability_zone: String,
        /// How proxies authenticate to the control plane.
        control_plane_auth_policy: AuthenticationPolicy,
        /// Bootstrap template.
        custom_config_file: String,
        /// Longest names of statistics.
        stat_name_length: i32,
        /// Worker threads; zero means all cores.
        concurrency: Option<i32>,
        /// Bootstrap template.
        proxy_bootstrap_template_path: String,
        /// How inbound traffic is captured.
        interception_mode: InterceptionMode,
        /// Tracing.
        tracing: Option<ProxyTracing>,
        /// Deprecated.
        sds: Option<Nothing>,
        /// Access log service.
        envoy_access_log_service: Option<RemoteService>,
        /// Metrics service.
        envoy_metrics_service: Option<RemoteService>,
        /// Environment of the proxy.
        proxy_metadata: BTreeMap<String, String>,
        /// Envoy runtime values.
        runtime_values: BTreeMap<String, String>,
        /// Port of the agent's health and metrics.
        status_port: i32,
        /// Further tags of statistics.
        extra_stat_tags: Vec<String>,
        /// Where gateways stand in the network.
        gateway_topology: Option<Topology>,
        /// Id of the mesh.
        mesh_id: String,
        /// Health check of VMs.
        readiness_probe: Option<ReadinessProbe>,
        /// Statistics that are kept.
        proxy_stats_matcher: Option<ProxyStatsMatcher>,
        /// Starts the application after the proxy.
        hold_application_until_proxy_starts: Option<bool>,
        /// Further root certificates.
        ca_certificates_pem: Vec<String>,
        /// Image of the proxy.
        image: Option<ProxyImage>,
        /// Hardware for private keys.
        private_key_provider: Option<PrivateKeyProvider>,
        /// Headers that the proxy adds.
        proxy_headers: Option<ProxyHeaders>,
        /// How often logs are flushed.
        file_flush_interval: Option<Duration>,
        /// Buffer size at which logs are flushed.
        file_flush_min_size_kb: u32,
        /// Compresses statistics.
        stats_compression: Option<bool>,
        /// Limits of connections.
        connection_settings: Option<ConnectionSettings>,
    }

    /// Tracing, as proxies are started.
    pub struct ProxyTracing {
        /// Zipkin.
        zipkin: Option<TracerAddress>,
        /// Lightstep.
        lightstep: Option<TracerAddress>,
        /// Datadog.
        datadog: Option<TracerAddress>,
        /// Stackdriver.
        stackdriver: Option<ProxyStackdriver>,
        /// Open census agent.
        open_census_agent: Option<TracerAddress>,
        /// Tags by name.
        custom_tags: BTreeMap<String, ProxyCustomTag>,
        /// Longest path tag; zero means the default.
        max_path_tag_length: u32,
        /// Share of requests that are sampled, percent.
        sampling: f64,
        /// TLS towards the tracer.
        tls_settings: Option<ClientTlsSettings>,
        /// Adds the mesh's own tags; unset means yes.
        enable_istio_tags: Option<bool>,
    }

    /// A tracer at an address.
    pub struct TracerAddress {
        /// `host:port`.
        address: String,
        /// Token, where one is needed.
        access_token: String,
    }

    /// The Stackdriver tracer.
    pub struct ProxyStackdriver {
        /// Writes traces to the log.
        debug: bool,
        /// Most attributes of a span.
        max_number_of_attributes: Option<i64>,
        /// Most annotations of a span.
        max_number_of_annotations: Option<i64>,
        /// Most messages of a span.
        max_number_of_message_events: Option<i64>,
    }

    /// A tag of spans; one member is set.
    pub struct ProxyCustomTag {
        /// Fixed text.
        literal: Option<crate::api::telemetry::LiteralTag>,
        /// The proxy's environment.
        environment: Option<crate::api::telemetry::NamedTag>,
        /// A request header.
        header: Option<crate::api::telemetry::NamedTag>,
    }

    /// A service outside of the mesh.
    pub struct RemoteService {
        /// `host:port`.
        address: String,
        /// TLS towards it.
        tls_settings: Option<ClientTlsSettings>,
        /// Keep-alive.
        tcp_keepalive: Option<TcpKeepalive>,
    }

    /// Where gateways stand in the network.
    pub struct Topology {
        /// Trusted proxies in front.
        num_trusted_proxies: u32,
        /// What happens to the header with the client's certificate.
        forward_client_cert_details: ForwardClientCertDetails,
        /// Expects a PROXY protocol header.
        proxy_protocol: Option<Nothing>,
    }

    /// Statistics that are kept.
    pub struct ProxyStatsMatcher {
        /// Names that start with one of these.
        inclusion_prefixes: Vec<String>,
        /// Names that end with one of these.
        inclusion_suffixes: Vec<String>,
        /// Names that match one of these.
        inclusion_regexps: Vec<String>,
    }

    /// Hardware for private keys; one member is set.
    pub struct PrivateKeyProvider {
        /// `CryptoMb`.
        cryptomb: Option<KeyProviderSettings>,
        /// QAT.
        qat: Option<KeyProviderSettings>,
    }

    /// Settings of hardware for private keys.
    pub struct KeyProviderSettings {
        /// How long operations are collected.
        poll_delay: Option<Duration>,
        /// Falls back to software.
        fallback: Option<bool>,
    }

    /// Headers that the proxy adds.
    pub struct ProxyHeaders {
        /// What happens to the header with the client's certificate.
        forwarded_client_cert: ForwardClientCertDetails,
        /// What is put into it.
        set_current_client_cert_details: Option<SetCurrentClientCertDetails>,
        /// `x-request-id`.
        request_id: Option<HeaderSwitch>,
        /// `server`.
        server: Option<ServerHeader>,
        /// `x-envoy-attempt-count`.
        attempt_count: Option<HeaderSwitch>,
        /// Other `x-envoy-` headers.
        envoy_debug_headers: Option<HeaderSwitch>,
        /// Headers of the metadata exchange.
        metadata_exchange_headers: Option<MetadataExchangeHeaders>,
        /// Keeps the case of HTTP/1 headers.
        preserve_http1_header_case: Option<bool>,
        /// `x-forwarded-host`.
        x_forwarded_host: Option<HeaderOptIn>,
        /// `x-forwarded-port`.
        x_forwarded_port: Option<HeaderOptIn>,
    }

    /// What is put into the header with the client's certificate.
    pub struct SetCurrentClientCertDetails {
        /// Subject; unset means yes.
        subject: Option<bool>,
        /// Certificate; unset means no.
        cert: Option<bool>,
        /// Chain; unset means no.
        chain: Option<bool>,
        /// DNS names; unset means yes.
        dns: Option<bool>,
        /// URI; unset means yes.
        uri: Option<bool>,
    }

    /// A header that is on unless disabled.
    pub struct HeaderSwitch {
        /// Leaves the header out.
        disabled: Option<bool>,
    }

    /// A header that is off unless enabled.
    pub struct HeaderOptIn {
        /// Adds the header.
        enabled: Option<bool>,
    }

    /// The `server` header.
    pub struct ServerHeader {
        /// Leaves the header as the upstream sent it.
        disabled: Option<bool>,
        /// Its value; empty means the default.
        value: String,
    }

    /// Headers of the metadata exchange.
    pub struct MetadataExchangeHeaders {
        /// Where they are sent.
        mode: MetadataExchangeMode,
    }

    /// Limits of connections.
    pub struct ConnectionSettings {
        /// Set of defaults.
        profile: ConnectionProfile,
        /// Buffer of a downstream connection, bytes.
        listener_per_connection_buffer_limit_bytes: Option<i32>,
        /// Buffer of an upstream connection, bytes.
        cluster_per_connection_buffer_limit_bytes: Option<i32>,
        /// Idle timeout of connections.
        http_idle_timeout: Option<Duration>,
        /// Longest life of a connection.
        http_max_connection_duration: Option<Duration>,
        /// How long a connection drains.
        http_drain_timeout: Option<Duration>,
        /// How long a request may take to arrive.
        http_request_timeout: Option<Duration>,
        /// How long its headers may take to arrive.
        http_request_headers_timeout: Option<Duration>,
        /// Idle timeout of streams.
        http_stream_idle_timeout: Option<Duration>,
        /// Longest life of a stream.
        http_max_stream_duration: Option<Duration>,
        /// Most streams of a connection.
        http_max_concurrent_streams: Option<i32>,
        /// Window of a stream, bytes.
        http2_initial_stream_window_size: Option<i32>,
        /// Window of a connection, bytes.
        http2_initial_connection_window_size: Option<i32>,
        /// What happens to headers with underscores; see [`ConnectionSettings::underscores_action`].
        http_headers_with_underscores_action: String,
        /// Merges slashes in paths.
        http_merge_slashes: Option<bool>,
        /// What happens to escaped slashes; see [`ConnectionSettings::escaped_slashes_action`].
        http_path_with_escaped_slashes_action: String,
        /// Most connections of a listener.
        listener_connection_limit: Option<i32>,
        /// Most downstream connections.
        global_downstream_connection_limit: Option<i32>,
    }
}

impl MeshProxyConfig {
    /// Returns the built-in defaults of `defaultConfig`.
    pub fn mesh_default() -> Self {
        Self {
            config_path: "./etc/istio/proxy".to_owned(),
            binary_path: "/usr/local/bin/envoy".to_owned(),
            service_cluster: "istio-proxy".to_owned(),
            drain_duration: Some(Duration::from_secs(45)),
            termination_drain_duration: Some(Duration::from_secs(5)),
            proxy_admin_port: 15000,
            control_plane_auth_policy: AuthenticationPolicy::MutualTls,
            discovery_address: "istiod.istio-system.svc:15012".to_owned(),
            stat_name_length: 189,
            status_port: 15020,
            ..Self::default()
        }
    }
}

impl ConnectionSettings {
    /// Returns what happens to headers with underscores: `ALLOW`, `REJECT_REQUEST` or
    /// `DROP_HEADER`; `None` when it is not set.
    pub fn underscores_action(&self) -> Option<&str> {
        set_action(
            &self.http_headers_with_underscores_action,
            "HEADERS_WITH_UNDERSCORES_",
        )
    }

    /// Returns what happens to escaped slashes: `IMPLEMENTATION_SPECIFIC_DEFAULT`,
    /// `KEEP_UNCHANGED`, `REJECT_REQUEST`, `UNESCAPE_AND_REDIRECT` or `UNESCAPE_AND_FORWARD`;
    /// `None` when it is not set.
    pub fn escaped_slashes_action(&self) -> Option<&str> {
        set_action(
            &self.http_path_with_escaped_slashes_action,
            "PATH_WITH_ESCAPED_SLASHES_",
        )
    }
}

/// Strips the prefix that the enum's names carry; the zero value counts as not set.
fn set_action<'a>(name: &'a str, prefix: &str) -> Option<&'a str> {
    let short = name.strip_prefix(prefix).unwrap_or(name);
    (!short.is_empty() && !short.ends_with("UNSPECIFIED")).then_some(short)
}

proto_enum! {
    /// How the name of the cluster in traces is made up.
    pub enum TracingServiceName {
        /// Application label and namespace.
        AppLabelAndNamespace = 0 "APP_LABEL_AND_NAMESPACE",
        /// Canonical name.
        CanonicalNameOnly = 1 "CANONICAL_NAME_ONLY",
        /// Canonical name and namespace.
        CanonicalNameAndNamespace = 2 "CANONICAL_NAME_AND_NAMESPACE",
    }

    /// How proxies authenticate to the control plane.
    pub enum AuthenticationPolicy {
        /// Not at all.
        None = 0 "NONE",
        /// By mutual TLS.
        MutualTls = 1 "MUTUAL_TLS",
        /// As the parent says.
        Inherit = 1000 "INHERIT",
    }

    /// How inbound traffic is captured.
    pub enum InterceptionMode {
        /// Redirected.
        Redirect = 0 "REDIRECT",
        /// Transparently proxied; keeps the source address.
        Tproxy = 1 "TPROXY",
        /// Not captured.
        None = 2 "NONE",
    }

    /// What happens to the header with the client's certificate.
    pub enum ForwardClientCertDetails {
        /// Not set.
        Undefined = 0 "UNDEFINED",
        /// Removed.
        Sanitize = 1 "SANITIZE",
        /// Forwarded on mutual TLS.
        ForwardOnly = 2 "FORWARD_ONLY",
        /// Appended to on mutual TLS.
        AppendForward = 3 "APPEND_FORWARD",
        /// Replaced on mutual TLS.
        SanitizeSet = 4 "SANITIZE_SET",
        /// Always forwarded.
        AlwaysForwardOnly = 5 "ALWAYS_FORWARD_ONLY",
    }

    /// Where headers of the metadata exchange are sent.
    pub enum MetadataExchangeMode {
        /// Everywhere.
        Undefined = 0 "UNDEFINED",
        /// Inside the mesh.
        InMesh = 1 "IN_MESH",
    }

    /// Set of connection defaults.
    pub enum ConnectionProfile {
        /// Inside the mesh.
        Sidecar = 0 "SIDECAR",
        /// At the edge.
        Edge = 1 "EDGE",
    }
}

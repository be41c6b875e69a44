//! `MeshConfig` (config-model.md §4.3).

use serde::{Deserialize, Serialize};

use super::{ExtensionProvider, MeshProxyConfig};
use crate::api::Duration;
use crate::api::codec::{message, proto_enum};
use crate::api::common::{
    ClientTlsSettings, ConnectionPool, HttpRetry, LabelSelector, LocalityLbSetting,
    OutlierDetection, TcpKeepalive, ZoneAwareLbSetting,
};
use crate::api::mesh::{EnvoyFileAccessLogProvider, Nothing, StackdriverProvider};

/// Settings of the whole mesh.
///
/// Fields that have a default are plain values, so that nobody has to know the default twice.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
#[expect(clippy::struct_excessive_bools, reason = "the shape of the API")]
pub struct MeshConfig {
    /// Port of the outbound capture listener; 15001.
    pub proxy_listen_port: i32,
    /// Port of the inbound capture listener; 15006.
    pub proxy_inbound_listen_port: i32,
    /// Port of an explicit HTTP proxy listener; 0 means none.
    pub proxy_http_port: i32,
    /// Connect timeout of clusters; 10 s.
    pub connect_timeout: Duration,
    /// Idle timeout of HBONE connections; unset means an hour.
    pub hbone_idle_timeout: Option<Duration>,
    /// How long protocol detection waits; 0 s means without limit.
    pub protocol_detection_timeout: Duration,
    /// Keep-alive of upstream connections.
    pub tcp_keepalive: Option<TcpKeepalive>,
    /// Class of the Ingress objects that are served; `istio`.
    pub ingress_class: String,
    /// Service of the ingress gateway; `istio-ingressgateway`.
    pub ingress_service: String,
    /// Which Ingress objects are served.
    pub ingress_controller_mode: IngressControllerMode,
    /// Value of the label `istio` of the ingress gateway's pods.
    pub ingress_selector: String,
    /// Traces requests; true.
    pub enable_tracing: bool,
    /// File of the access log; empty means none.
    pub access_log_file: String,
    /// Format of the access log; empty means the default.
    pub access_log_format: String,
    /// Encoding of the access log.
    pub access_log_encoding: AccessLogEncoding,
    /// Sends access logs to the access log service.
    pub enable_envoy_access_log_service: bool,
    /// Writes no access logs for connections that match nothing.
    pub disable_envoy_listener_log: bool,
    /// Settings of proxies.
    pub default_config: MeshProxyConfig,
    /// What happens to traffic to unknown destinations.
    pub outbound_traffic_policy: MeshOutboundTrafficPolicy,
    /// Where inbound traffic is sent.
    pub inbound_traffic_policy: InboundTrafficPolicy,
    /// Where configuration comes from.
    pub config_sources: Vec<ConfigSource>,
    /// Uses mutual TLS where the server supports it; true.
    pub enable_auto_mtls: bool,
    /// Trust domain of identities; `cluster.local`.
    pub trust_domain: String,
    /// Trust domains that count as the same.
    pub trust_domain_aliases: Vec<String>,
    /// Further root certificates.
    pub ca_certificates: Vec<CertificateData>,
    /// Visibility of services without their own; everywhere.
    pub default_service_export_to: Vec<String>,
    /// Visibility of virtual services without their own; everywhere.
    pub default_virtual_service_export_to: Vec<String>,
    /// Visibility of destination rules without their own; everywhere.
    pub default_destination_rule_export_to: Vec<String>,
    /// Namespace of mesh-wide policies; `istio-system`.
    pub root_namespace: String,
    /// Locality-aware load balancing; enabled.
    pub locality_lb_setting: Option<LocalityLbSetting>,
    /// Zone-aware load balancing; takes precedence when set.
    pub zone_aware_lb_setting: Option<ZoneAwareLbSetting>,
    /// Refresh rate of DNS clusters; 60 s.
    pub dns_refresh_rate: Duration,
    /// Whether HTTP/1.1 is upgraded to HTTP/2.
    pub h2_upgrade_policy: MeshH2UpgradePolicy,
    /// Template of the statistics names of inbound clusters.
    pub inbound_cluster_stat_name: String,
    /// Template of the statistics names of outbound clusters.
    pub outbound_cluster_stat_name: String,
    /// Deprecated and without effect.
    pub certificates: Vec<Certificate>,
    /// Settings per service.
    pub service_settings: Vec<ServiceSettings>,
    /// Scopes of services in ambient multi-network meshes.
    pub service_scope_configs: Vec<ServiceScopeConfig>,
    /// Limits the visibility of service entries.
    pub service_entry_visibility: Option<ServiceEntryVisibility>,
    /// Merges Prometheus metrics of application and proxy; true.
    pub enable_prometheus_merge: bool,
    /// Deprecated.
    pub verify_certificate_at_client: Option<bool>,
    /// An external certificate authority.
    pub ca: Option<CertificateAuthority>,
    /// Providers by name.
    pub extension_providers: Vec<ExtensionProvider>,
    /// Providers used where nothing else is said.
    pub default_providers: DefaultProviders,
    /// Namespaces that are watched; empty means all.
    pub discovery_selectors: Vec<LabelSelector>,
    /// How paths are normalized.
    pub path_normalization: Option<ProxyPathNormalization>,
    /// Retries of outbound requests.
    pub default_http_retry_policy: Option<HttpRetry>,
    /// Retries of inbound requests.
    pub default_inbound_http_retry_policy: Option<HttpRetry>,
    /// TLS inside the mesh.
    #[serde(rename = "meshMTLS")]
    pub mesh_mtls: Option<TlsConfig>,
    /// TLS everywhere else.
    pub tls_defaults: Option<TlsConfig>,
    /// Traffic policy of destinations without their own.
    pub default_traffic_policy: Option<DefaultTrafficPolicy>,
}

impl Default for MeshConfig {
    fn default() -> Self {
        let everywhere = || vec!["*".to_owned()];
        let provider = |name: &str| ExtensionProvider {
            name: name.to_owned(),
            ..Default::default()
        };
        Self {
            proxy_listen_port: 15001,
            proxy_inbound_listen_port: 15006,
            proxy_http_port: 0,
            connect_timeout: Duration::from_secs(10),
            hbone_idle_timeout: None,
            protocol_detection_timeout: Duration::ZERO,
            tcp_keepalive: None,
            ingress_class: "istio".to_owned(),
            ingress_service: "istio-ingressgateway".to_owned(),
            ingress_controller_mode: IngressControllerMode::Strict,
            ingress_selector: String::new(),
            enable_tracing: true,
            access_log_file: String::new(),
            access_log_format: String::new(),
            access_log_encoding: AccessLogEncoding::Text,
            enable_envoy_access_log_service: false,
            disable_envoy_listener_log: false,
            default_config: MeshProxyConfig::mesh_default(),
            outbound_traffic_policy: MeshOutboundTrafficPolicy {
                mode: MeshOutboundTrafficMode::AllowAny,
                tls: None,
            },
            inbound_traffic_policy: InboundTrafficPolicy::default(),
            config_sources: Vec::new(),
            enable_auto_mtls: true,
            trust_domain: "cluster.local".to_owned(),
            trust_domain_aliases: Vec::new(),
            ca_certificates: Vec::new(),
            default_service_export_to: everywhere(),
            default_virtual_service_export_to: everywhere(),
            default_destination_rule_export_to: everywhere(),
            root_namespace: "istio-system".to_owned(),
            locality_lb_setting: Some(LocalityLbSetting {
                enabled: Some(true),
                ..LocalityLbSetting::default()
            }),
            zone_aware_lb_setting: None,
            dns_refresh_rate: Duration::from_secs(60),
            h2_upgrade_policy: MeshH2UpgradePolicy::DoNotUpgrade,
            inbound_cluster_stat_name: String::new(),
            outbound_cluster_stat_name: String::new(),
            certificates: Vec::new(),
            service_settings: Vec::new(),
            service_scope_configs: Vec::new(),
            service_entry_visibility: None,
            enable_prometheus_merge: true,
            verify_certificate_at_client: None,
            ca: None,
            extension_providers: vec![
                ExtensionProvider {
                    prometheus: Some(Nothing {}),
                    ..provider("prometheus")
                },
                ExtensionProvider {
                    stackdriver: Some(StackdriverProvider::default()),
                    ..provider("stackdriver")
                },
                ExtensionProvider {
                    envoy_file_access_log: Some(EnvoyFileAccessLogProvider {
                        path: "/dev/stdout".to_owned(),
                        ..Default::default()
                    }),
                    ..provider("envoy")
                },
            ],
            default_providers: DefaultProviders::default(),
            discovery_selectors: Vec::new(),
            path_normalization: None,
            default_http_retry_policy: None,
            default_inbound_http_retry_policy: None,
            mesh_mtls: None,
            tls_defaults: None,
            default_traffic_policy: None,
        }
    }
}

message! {
    /// What happens to traffic to unknown destinations, in the whole mesh.
    pub struct MeshOutboundTrafficPolicy {
        /// Whether it is forwarded.
        mode: MeshOutboundTrafficMode,
        /// TLS towards destinations that are found by DNS.
        tls: Option<ClientTlsSettings>,
    }

    /// Where inbound traffic is sent.
    pub struct InboundTrafficPolicy {
        /// Which address of the workload.
        mode: InboundTrafficMode,
    }

    /// A source of configuration.
    pub struct ConfigSource {
        /// `fs:///path`, `xds://host:port` or `k8s://`.
        address: String,
        /// TLS towards it.
        tls_settings: Option<ClientTlsSettings>,
        /// What is read from it.
        subscribed_resources: Vec<SubscribedResource>,
    }

    /// Further root certificates; one of the first two members is set.
    pub struct CertificateData {
        /// The certificates.
        pem: Option<String>,
        /// Where they are.
        spiffe_bundle_url: Option<String>,
        /// Kubernetes signers that use them.
        cert_signers: Vec<String>,
        /// Trust domains they are for.
        trust_domains: Vec<String>,
    }

    /// Deprecated and without effect.
    pub struct Certificate {
        /// Secret that holds it.
        secret_name: String,
        /// Its names.
        dns_names: Vec<String>,
    }

    /// Settings of services.
    pub struct ServiceSettings {
        /// The settings.
        settings: Option<ServiceSetting>,
        /// Hosts they are for, wildcards allowed.
        hosts: Vec<String>,
    }

    /// Settings of one service.
    pub struct ServiceSetting {
        /// Keeps its traffic inside the cluster.
        cluster_local: bool,
    }

    /// Scope of services in ambient multi-network meshes.
    pub struct ServiceScopeConfig {
        /// Namespaces it is for.
        namespace_selector: Option<LabelSelector>,
        /// Services it is for.
        services_selector: Option<LabelSelector>,
        /// The scope.
        scope: ServiceScope,
    }

    /// Limits of the visibility of service entries (§8.3).
    pub struct ServiceEntryVisibility {
        /// Where no policy matches.
        default_visibility: EntryVisibility,
        /// Limits sidecars and gateways too.
        apply_to_sidecars: bool,
        /// Policies, the first match wins.
        policies: Vec<ServiceEntryVisibilityPolicy>,
    }

    /// Visibility of the service entries of some namespaces.
    pub struct ServiceEntryVisibilityPolicy {
        /// The limit.
        visibility: EntryVisibility,
        /// Rules, all of which must match; none matches all.
        matching_rules: Vec<NamespaceRule>,
    }

    /// A rule on a namespace.
    pub struct NamespaceRule {
        /// Selects it by label.
        namespace_selector: Option<LabelSelector>,
    }

    /// An external certificate authority.
    pub struct CertificateAuthority {
        /// Its address.
        address: String,
        /// TLS towards it.
        tls_settings: Option<ClientTlsSettings>,
        /// Timeout of requests.
        request_timeout: Option<Duration>,
        /// Whether the control plane asks it, rather than the agents.
        istiod_side: bool,
    }

    /// Providers used where nothing else is said.
    pub struct DefaultProviders {
        /// Of traces.
        tracing: Vec<String>,
        /// Of metrics.
        metrics: Vec<String>,
        /// Of access logs.
        access_logging: Vec<String>,
    }

    /// How paths are normalized.
    pub struct ProxyPathNormalization {
        /// Which steps are done.
        normalization: NormalizationType,
    }

    /// TLS parameters.
    pub struct TlsConfig {
        /// Lowest protocol version.
        min_protocol_version: MeshTlsProtocol,
        /// Curves.
        ecdh_curves: Vec<String>,
        /// Cipher suites for TLS up to 1.2.
        cipher_suites: Vec<String>,
    }

    /// Traffic policy of destinations without their own.
    pub struct DefaultTrafficPolicy {
        /// Connection limits.
        connection_pool: Option<ConnectionPool>,
        /// Ejection of failing hosts.
        outlier_detection: Option<OutlierDetection>,
    }
}

proto_enum! {
    /// Which Ingress objects are served.
    pub enum IngressControllerMode {
        /// As strict.
        Unspecified = 0 "UNSPECIFIED",
        /// None.
        Off = 1 "OFF",
        /// Those of the class and those without class.
        Default = 2 "DEFAULT",
        /// Those of the class.
        Strict = 3 "STRICT",
    }

    /// Encoding of access logs.
    pub enum AccessLogEncoding {
        /// Text.
        Text = 0 "TEXT",
        /// JSON.
        Json = 1 "JSON",
    }

    /// Whether traffic to unknown destinations is forwarded, in the whole mesh.
    pub enum MeshOutboundTrafficMode {
        /// Dropped.
        RegistryOnly = 0 "REGISTRY_ONLY",
        /// Forwarded as it is.
        AllowAny = 1 "ALLOW_ANY",
        /// Forwarded by name.
        AllowAnyDynamicDns = 3 "ALLOW_ANY_DYNAMIC_DNS",
    }

    /// Which address of the workload inbound traffic is sent to.
    pub enum InboundTrafficMode {
        /// The one it was sent to.
        Passthrough = 0 "PASSTHROUGH",
        /// The loopback address.
        Localhost = 1 "LOCALHOST",
    }

    /// What is read from a configuration source.
    pub enum SubscribedResource {
        /// Services.
        ServiceRegistry = 0 "SERVICE_REGISTRY",
    }

    /// Whether HTTP/1.1 is upgraded to HTTP/2, in the whole mesh.
    pub enum MeshH2UpgradePolicy {
        /// Never.
        DoNotUpgrade = 0 "DO_NOT_UPGRADE",
        /// Always.
        Upgrade = 1 "UPGRADE",
    }

    /// Scope of a service.
    pub enum ServiceScope {
        /// Its cluster.
        Local = 0 "LOCAL",
        /// The mesh.
        Global = 1 "GLOBAL",
    }

    /// Limit of the visibility of service entries.
    pub enum EntryVisibility {
        /// No limit.
        VisibilityUnspecified = 0 "VISIBILITY_UNSPECIFIED",
        /// Nobody sees them.
        None = 1 "NONE",
        /// Their namespace sees them.
        Namespace = 2 "NAMESPACE",
        /// No limit.
        Public = 3 "PUBLIC",
    }

    /// Steps of path normalization.
    pub enum NormalizationType {
        /// Base.
        Default = 0 "DEFAULT",
        /// None.
        None = 1 "NONE",
        /// RFC 3986.
        Base = 2 "BASE",
        /// And slashes are merged.
        MergeSlashes = 3 "MERGE_SLASHES",
        /// And escaped slashes are decoded.
        DecodeAndMergeSlashes = 4 "DECODE_AND_MERGE_SLASHES",
    }

    /// TLS versions of the mesh.
    pub enum MeshTlsProtocol {
        /// Chosen by us: 1.2.
        TlsAuto = 0 "TLS_AUTO",
        /// TLS 1.2.
        TlsV12 = 1 "TLSV1_2",
        /// TLS 1.3.
        TlsV13 = 2 "TLSV1_3",
    }
}

//! `networking.istio.io` DestinationRule (config-model.md §3.3).

use super::Duration;
use super::codec::{message, proto_enum};
use super::common::{
    ClientTlsSettings, ConnectionPool, Labels, LocalityLbSetting, OutlierDetection, PortSelector,
    WorkloadSelector, ZoneAwareLbSetting,
};

message! {
    /// Policies for traffic to a host.
    pub struct DestinationRule {
        /// The host, short names and wildcards allowed.
        host: String,
        /// Policy for all subsets and ports.
        traffic_policy: Option<TrafficPolicy>,
        /// Named parts of the host's endpoints.
        subsets: Vec<Subset>,
        /// Namespaces that see it.
        export_to: Vec<String>,
        /// Client workloads it is for; absent means all.
        workload_selector: Option<WorkloadSelector>,
    }

    /// A named part of a host's endpoints.
    pub struct Subset {
        /// Its name.
        name: String,
        /// Labels of its endpoints.
        labels: Labels,
        /// What differs from the host's policy.
        traffic_policy: Option<TrafficPolicy>,
    }

    /// Policy for traffic to a host or subset.
    pub struct TrafficPolicy {
        /// Load balancing.
        load_balancer: Option<LoadBalancer>,
        /// Connection limits.
        connection_pool: Option<ConnectionPool>,
        /// Ejection of failing hosts.
        outlier_detection: Option<OutlierDetection>,
        /// TLS.
        tls: Option<ClientTlsSettings>,
        /// Policies that replace the above for one port each.
        port_level_settings: Vec<PortTrafficPolicy>,
        /// Tunnels TCP or TLS through another host.
        tunnel: Option<TunnelSettings>,
        /// Sends a PROXY protocol header.
        proxy_protocol: Option<ProxyProtocol>,
        /// Limits retries relative to requests.
        retry_budget: Option<RetryBudget>,
    }

    /// Policy for one port.
    pub struct PortTrafficPolicy {
        /// The service port.
        port: Option<PortSelector>,
        /// Load balancing.
        load_balancer: Option<LoadBalancer>,
        /// Connection limits.
        connection_pool: Option<ConnectionPool>,
        /// Ejection of failing hosts.
        outlier_detection: Option<OutlierDetection>,
        /// TLS.
        tls: Option<ClientTlsSettings>,
    }

    /// Load balancing; at most one of the first three members is set.
    pub struct LoadBalancer {
        /// A plain algorithm.
        simple: Option<SimpleLb>,
        /// Affinity by hash.
        consistent_hash: Option<ConsistentHashLb>,
        /// By load that backends report.
        backend_utilization: Option<BackendUtilizationLb>,
        /// Locality-aware balancing; overrides the mesh's.
        locality_lb_setting: Option<LocalityLbSetting>,
        /// Zone-aware balancing; overrides the mesh's.
        zone_aware_lb_setting: Option<ZoneAwareLbSetting>,
        /// Deprecated form of `warmup.duration`.
        warmup_duration_secs: Option<Duration>,
        /// Slow start of new endpoints.
        warmup: Option<WarmupConfiguration>,
    }

    /// Affinity by hash; at most one of the first four members is set, and one of ring and table.
    pub struct ConsistentHashLb {
        /// Hash of a header.
        http_header_name: Option<String>,
        /// Hash of a cookie.
        http_cookie: Option<HttpCookie>,
        /// Hash of the source address.
        use_source_ip: Option<bool>,
        /// Hash of a query parameter.
        http_query_parameter_name: Option<String>,
        /// The ring hash algorithm.
        ring_hash: Option<RingHash>,
        /// The Maglev algorithm.
        maglev: Option<Maglev>,
        /// Deprecated form of `ring_hash.minimum_ring_size`.
        minimum_ring_size: u64,
    }

    /// The ring hash algorithm.
    pub struct RingHash {
        /// Fewest nodes of the ring; zero means 1024.
        minimum_ring_size: u64,
    }

    /// The Maglev algorithm.
    pub struct Maglev {
        /// Size of the table, a prime; zero means 65537.
        table_size: u64,
    }

    /// A cookie to hash, generated when it is absent and has a lifetime.
    pub struct HttpCookie {
        /// Its name.
        name: String,
        /// Its path.
        path: String,
        /// Its lifetime; zero makes a session cookie.
        ttl: Option<Duration>,
        /// Further attributes.
        attributes: Vec<CookieAttribute>,
    }

    /// An attribute of a generated cookie.
    pub struct CookieAttribute {
        /// Its name.
        name: String,
        /// Its value; may be empty.
        value: String,
    }

    /// Balancing by load that backends report.
    pub struct BackendUtilizationLb {
        /// Penalty for errors, percent.
        error_utilization_penalty_percent: u32,
        /// Metrics that make up the utilization.
        metric_names_for_computing_utilization: Vec<String>,
        /// Age at which a reported weight is dropped.
        weight_expiration_period: Option<Duration>,
        /// Time a backend must report before its weight is used.
        weight_stabilization_period: Option<Duration>,
        /// How often weights are recomputed.
        weight_update_period: Option<Duration>,
    }

    /// Slow start of new endpoints.
    pub struct WarmupConfiguration {
        /// How long it lasts.
        duration: Option<Duration>,
        /// Share of traffic at the start, percent; unset means 10.
        minimum_percent: Option<f64>,
        /// Shape of the ramp; unset means linear.
        aggression: Option<f64>,
    }

    /// Tunnelling through another host.
    pub struct TunnelSettings {
        /// `CONNECT` (default) or `POST`.
        protocol: String,
        /// Host that the tunnel leads to.
        target_host: String,
        /// Port that the tunnel leads to.
        target_port: u32,
    }

    /// A PROXY protocol header.
    pub struct ProxyProtocol {
        /// Its version.
        version: ProxyProtocolVersion,
    }

    /// Limit of retries relative to requests.
    pub struct RetryBudget {
        /// Share of requests that may be retries, percent; unset means 20.
        percent: Option<f64>,
        /// Retries that are always allowed.
        min_retry_concurrency: u32,
        /// Time over which requests are counted.
        budget_interval: Option<Duration>,
    }
}

proto_enum! {
    /// Plain load balancing algorithms.
    pub enum SimpleLb {
        /// The default: least request.
        Unspecified = 0 "UNSPECIFIED",
        /// Deprecated name of least request.
        LeastConn = 1 "LEAST_CONN",
        /// A random host.
        Random = 2 "RANDOM",
        /// The address the caller asked for.
        Passthrough = 3 "PASSTHROUGH",
        /// In turn.
        RoundRobin = 4 "ROUND_ROBIN",
        /// The less busy of two random hosts.
        LeastRequest = 5 "LEAST_REQUEST",
    }

    /// Versions of the PROXY protocol.
    pub enum ProxyProtocolVersion {
        /// Text.
        V1 = 0 "V1",
        /// Binary.
        V2 = 1 "V2",
    }
}

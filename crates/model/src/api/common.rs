//! Types that several kinds share (config-model.md §3.1).

use super::Duration;
use super::codec::{message, proto_enum};

pub use crate::Labels;
use crate::SmallMap;

message! {
    /// Matches one string; at most one member is set.
    pub struct StringMatch {
        /// The whole string.
        exact: Option<String>,
        /// The start of the string.
        prefix: Option<String>,
        /// An RE2 expression for the whole string.
        regex: Option<String>,
    }

    /// Chooses a port by number; zero means "not given".
    pub struct PortSelector {
        /// The port number.
        number: u32,
    }

    /// Names where traffic goes.
    pub struct Destination {
        /// A host of the service registry, short names allowed.
        host: String,
        /// A subset of the destination rule for the host; empty means all endpoints.
        subset: String,
        /// The service port; may be absent when the service has one port.
        port: Option<PortSelector>,
    }

    /// A share in percent, 0 to 100.
    pub struct Percent {
        /// The percentage.
        value: f64,
    }

    /// Changes to request and response headers.
    pub struct Headers {
        /// Changes before the request is forwarded.
        request: Option<HeaderOperations>,
        /// Changes before the response is returned.
        response: Option<HeaderOperations>,
    }

    /// Changes to one set of headers.
    pub struct HeaderOperations {
        /// Values that replace those there.
        set: Labels,
        /// Values appended to those there.
        add: Labels,
        /// Names to drop.
        remove: Vec<String>,
    }

    /// Selects workloads by label, in networking kinds (`workloadSelector.labels`).
    pub struct LabelsSelector {
        /// Labels that a workload must have; none selects all of the namespace.
        labels: Labels,
    }

    /// Selects workloads by label, in all other kinds (`selector.matchLabels`).
    pub struct WorkloadSelector {
        /// Labels that a workload must have; none selects all of the namespace.
        match_labels: Labels,
    }

    /// Attaches a policy to a resource.
    pub struct PolicyTargetReference {
        /// API group; empty is the core group.
        group: String,
        /// Kind, such as `Gateway`.
        kind: String,
        /// Name.
        name: String,
        /// Must be empty: policies attach in their own namespace.
        namespace: String,
    }

    /// TCP keep-alive; zero and absent members leave the system's values.
    pub struct TcpKeepalive {
        /// Unanswered probes until the connection counts as dead.
        probes: u32,
        /// Idle time before the first probe.
        time: Option<Duration>,
        /// Time between probes.
        interval: Option<Duration>,
    }

    /// TLS towards an upstream.
    pub struct ClientTlsSettings {
        /// Whether and how TLS is used.
        mode: ClientTlsMode,
        /// File of the client certificate.
        client_certificate: String,
        /// File of the client key.
        private_key: String,
        /// File of the certificates that verify the server.
        ca_certificates: String,
        /// Secret that holds key, certificate and CA.
        credential_name: String,
        /// Names of which the server's certificate must have one.
        subject_alt_names: Vec<String>,
        /// Server name sent to the upstream.
        sni: String,
        /// Leaves the server unverified; unset means the feature flag decides.
        insecure_skip_verify: Option<bool>,
        /// File of revoked certificates.
        ca_crl: String,
    }

    /// Retries of HTTP requests.
    pub struct HttpRetry {
        /// How many; zero disables retries.
        attempts: i32,
        /// Timeout of each try.
        per_try_timeout: Option<Duration>,
        /// Comma list of conditions.
        retry_on: String,
        /// Whether retries may go to other localities.
        retry_remote_localities: Option<bool>,
        /// Whether a retry avoids the hosts that failed; unset means yes.
        retry_ignore_previous_hosts: Option<bool>,
        /// Base interval between tries.
        backoff: Option<Duration>,
    }

    /// Limits on connections and requests to a destination.
    pub struct ConnectionPool {
        /// Limits for all connections.
        tcp: Option<TcpSettings>,
        /// Limits for HTTP.
        http: Option<HttpSettings>,
    }

    /// Limits for TCP connections; zero means the default.
    pub struct TcpSettings {
        /// Most connections to one destination.
        max_connections: i32,
        /// Connect timeout.
        connect_timeout: Option<Duration>,
        /// Keep-alive of the sockets.
        tcp_keepalive: Option<TcpKeepalive>,
        /// Longest life of a connection.
        max_connection_duration: Option<Duration>,
        /// Idle timeout; zero disables it.
        idle_timeout: Option<Duration>,
    }

    /// Limits for HTTP; zero means the default.
    pub struct HttpSettings {
        /// Most requests that wait for a connection.
        http1_max_pending_requests: i32,
        /// Most active requests.
        http2_max_requests: i32,
        /// Most requests on one connection.
        max_requests_per_connection: i32,
        /// Most retries at a time.
        max_retries: i32,
        /// Idle timeout of connections.
        idle_timeout: Option<Duration>,
        /// Whether HTTP/1.1 is upgraded to HTTP/2.
        h2_upgrade_policy: H2UpgradePolicy,
        /// Whether the client's protocol is kept.
        use_client_protocol: bool,
        /// Most concurrent streams on an HTTP/2 connection.
        max_concurrent_streams: i32,
        /// HTTP/2 keep-alive pings.
        http2_keep_alive: Option<Http2KeepAlive>,
    }

    /// HTTP/2 keep-alive pings.
    pub struct Http2KeepAlive {
        /// Time between pings.
        interval: Option<Duration>,
        /// How long an answer may take.
        timeout: Option<Duration>,
    }

    /// Locality-aware load balancing.
    pub struct LocalityLbSetting {
        /// Explicit shares per originating locality.
        distribute: Vec<LocalityDistribute>,
        /// Where traffic goes when a region fails.
        failover: Vec<LocalityFailover>,
        /// Labels in order of preference.
        failover_priority: Vec<String>,
        /// Whether the setting is in force; unset means yes.
        enabled: Option<bool>,
    }

    /// Shares of traffic from one locality.
    pub struct LocalityDistribute {
        /// Originating locality, `region/zone/*`.
        from: String,
        /// Target localities with weights that sum to 100.
        to: SmallMap<String, u32>,
    }

    /// The region that takes over from another.
    pub struct LocalityFailover {
        /// Originating region.
        from: String,
        /// Region that takes over.
        to: String,
    }

    /// Zone-aware load balancing.
    pub struct ZoneAwareLbSetting {
        /// Whether the setting is in force; unset means yes.
        enabled: Option<bool>,
        /// Where traffic goes when a region fails.
        failover: Vec<LocalityFailover>,
        /// Labels in order of preference.
        failover_priority: Vec<String>,
        /// Fewest hosts of a cluster for zone-aware routing.
        min_cluster_size: Option<u32>,
    }

    /// Ejection of hosts that fail.
    pub struct OutlierDetection {
        /// Deprecated and without effect.
        consecutive_errors: i32,
        /// Counts local-origin failures apart from upstream errors.
        split_external_local_origin_errors: bool,
        /// Local-origin failures in a row before ejection.
        consecutive_local_origin_failures: Option<u32>,
        /// Gateway errors in a row before ejection.
        consecutive_gateway_errors: Option<u32>,
        /// 5xx answers in a row before ejection.
        #[serde(rename = "consecutive5xxErrors")]
        consecutive_5xx_errors: Option<u32>,
        /// Time between sweeps.
        interval: Option<Duration>,
        /// Shortest ejection.
        base_ejection_time: Option<Duration>,
        /// Most hosts ejected, percent.
        max_ejection_percent: i32,
        /// Share of healthy hosts below which detection is off.
        min_health_percent: i32,
        /// Status codes that count as errors.
        outlier_detection_http_error_codes: Vec<u32>,
    }

    /// A selector of Kubernetes objects; empty selects everything.
    pub struct LabelSelector {
        /// Labels that must be equal.
        match_labels: Labels,
        /// Further requirements, all of which must hold.
        match_expressions: Vec<LabelSelectorRequirement>,
    }

    /// One requirement of a [`LabelSelector`].
    pub struct LabelSelectorRequirement {
        /// Label key.
        key: String,
        /// `In`, `NotIn`, `Exists` or `DoesNotExist`.
        operator: String,
        /// Values for `In` and `NotIn`.
        values: Vec<String>,
    }
}

proto_enum! {
    /// Whether and how TLS is used towards an upstream.
    pub enum ClientTlsMode {
        /// No TLS.
        Disable = 0 "DISABLE",
        /// TLS, the client unauthenticated.
        Simple = 1 "SIMPLE",
        /// Mutual TLS with given certificates.
        Mutual = 2 "MUTUAL",
        /// Mutual TLS with the mesh's certificates.
        IstioMutual = 3 "ISTIO_MUTUAL",
    }

    /// Whether HTTP/1.1 is upgraded to HTTP/2.
    pub enum H2UpgradePolicy {
        /// As the mesh says.
        Default = 0 "DEFAULT",
        /// Never.
        DoNotUpgrade = 1 "DO_NOT_UPGRADE",
        /// Always.
        Upgrade = 2 "UPGRADE",
    }

    /// Which side of the traffic a workload is on, in Telemetry.
    pub enum WorkloadMode {
        /// Both sides.
        ClientAndServer = 0 "CLIENT_AND_SERVER",
        /// Outbound traffic.
        Client = 1 "CLIENT",
        /// Inbound traffic.
        Server = 2 "SERVER",
    }
}

impl LabelSelector {
    /// Tells whether `labels` meet all requirements. An empty selector matches everything; an
    /// unknown operator matches nothing.
    pub fn matches(&self, labels: &Labels) -> bool {
        let equal = self
            .match_labels
            .iter()
            .all(|(key, value)| labels.get(key) == Some(value));
        equal
            && self
                .match_expressions
                .iter()
                .all(|requirement| requirement.holds(labels))
    }
}

impl LabelSelectorRequirement {
    fn holds(&self, labels: &Labels) -> bool {
        let value = labels.get(&self.key);
        match self.operator.as_str() {
            "In" => value.is_some_and(|v| self.values.contains(v)),
            "NotIn" => value.is_none_or(|v| !self.values.contains(v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    }
}

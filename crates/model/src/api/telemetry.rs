//! `telemetry.istio.io` Telemetry (config-model.md §3.12).

use std::collections::BTreeMap;

use super::Duration;
use super::codec::{message, proto_enum};
use super::common::{PolicyTargetReference, WorkloadMode, WorkloadSelector};

message! {
    /// Metrics, traces and access logs.
    pub struct Telemetry {
        /// Workloads it is for; absent means all in scope.
        selector: Option<WorkloadSelector>,
        /// Resource it attaches to, deprecated form.
        target_ref: Option<PolicyTargetReference>,
        /// Resources it attaches to.
        target_refs: Vec<PolicyTargetReference>,
        /// Tracing.
        tracing: Vec<Tracing>,
        /// Metrics.
        metrics: Vec<Metrics>,
        /// Access logs.
        access_logging: Vec<AccessLogging>,
    }

    /// A provider by name.
    pub struct ProviderRef {
        /// Its name in the mesh configuration, compared without case.
        name: String,
    }

    /// Tracing.
    pub struct Tracing {
        /// Which traffic.
        r#match: Option<TracingSelector>,
        /// Providers; at most one is used.
        providers: Vec<ProviderRef>,
        /// Share of requests that are sampled, percent.
        random_sampling_percentage: Option<f64>,
        /// Reports no spans.
        disable_span_reporting: Option<bool>,
        /// Tags by name; present, also when there are none, they replace those of higher levels.
        custom_tags: Option<BTreeMap<String, CustomTag>>,
        /// Samples by request id.
        use_request_id_for_trace_sampling: Option<bool>,
        /// Adds the mesh's own tags.
        enable_istio_tags: Option<bool>,
        /// Does not forward the trace context.
        disable_context_propagation: Option<bool>,
    }

    /// Which traffic is traced.
    pub struct TracingSelector {
        /// Side of the traffic.
        mode: WorkloadMode,
    }

    /// A tag of a span; one member is set.
    pub struct CustomTag {
        /// Fixed text.
        literal: Option<LiteralTag>,
        /// The proxy's environment.
        environment: Option<NamedTag>,
        /// A request header.
        header: Option<NamedTag>,
        /// A format string.
        formatter: Option<LiteralTag>,
    }

    /// A tag's text.
    pub struct LiteralTag {
        /// The text.
        value: String,
    }

    /// A tag read from somewhere.
    pub struct NamedTag {
        /// Variable or header.
        name: String,
        /// Used when it is absent.
        default_value: String,
    }

    /// Metrics.
    pub struct Metrics {
        /// Providers.
        providers: Vec<ProviderRef>,
        /// Changes, later ones win.
        overrides: Vec<MetricsOverride>,
        /// How often metrics are reported.
        reporting_interval: Option<Duration>,
    }

    /// A change to metrics.
    pub struct MetricsOverride {
        /// Which metrics; absent means all.
        r#match: Option<MetricSelector>,
        /// Whether they are dropped.
        disabled: Option<bool>,
        /// Changes to their tags.
        tag_overrides: BTreeMap<String, TagOverride>,
    }

    /// Which metrics; at most one of the first two members is set.
    pub struct MetricSelector {
        /// A standard metric.
        metric: Option<IstioMetric>,
        /// Any other metric.
        custom_metric: Option<String>,
        /// Side of the traffic.
        mode: WorkloadMode,
    }

    /// A change to a tag.
    pub struct TagOverride {
        /// What is done.
        operation: TagOperation,
        /// CEL expression of the value.
        value: String,
    }

    /// Access logs.
    pub struct AccessLogging {
        /// Which traffic.
        r#match: Option<LogSelector>,
        /// Providers.
        providers: Vec<ProviderRef>,
        /// Whether logs are dropped.
        disabled: Option<bool>,
        /// Which requests.
        filter: Option<LogFilter>,
    }

    /// Which traffic is logged.
    pub struct LogSelector {
        /// Side of the traffic.
        mode: WorkloadMode,
    }

    /// Which requests are logged.
    pub struct LogFilter {
        /// CEL expression.
        expression: String,
    }
}

proto_enum! {
    /// Standard metrics.
    pub enum IstioMetric {
        /// All of them.
        AllMetrics = 0 "ALL_METRICS",
        /// Requests.
        RequestCount = 1 "REQUEST_COUNT",
        /// Duration of requests.
        RequestDuration = 2 "REQUEST_DURATION",
        /// Size of requests.
        RequestSize = 3 "REQUEST_SIZE",
        /// Size of responses.
        ResponseSize = 4 "RESPONSE_SIZE",
        /// Connections opened.
        TcpOpenedConnections = 5 "TCP_OPENED_CONNECTIONS",
        /// Connections closed.
        TcpClosedConnections = 6 "TCP_CLOSED_CONNECTIONS",
        /// Bytes sent.
        TcpSentBytes = 7 "TCP_SENT_BYTES",
        /// Bytes received.
        TcpReceivedBytes = 8 "TCP_RECEIVED_BYTES",
        /// gRPC messages of requests.
        GrpcRequestMessages = 9 "GRPC_REQUEST_MESSAGES",
        /// gRPC messages of responses.
        GrpcResponseMessages = 10 "GRPC_RESPONSE_MESSAGES",
    }

    /// What is done to a tag.
    pub enum TagOperation {
        /// Added or changed.
        Upsert = 0 "UPSERT",
        /// Removed.
        Remove = 1 "REMOVE",
    }
}

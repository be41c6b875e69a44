//! Extension providers: services and files that policies refer to by name (config-model.md §4.3).

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use crate::api::Duration;
use crate::api::codec::{message, proto_enum};

impl ExtensionProvider {
    /// The service that the provider talks to, as `host` or `namespace/host`; `None` for providers
    /// without one.
    pub fn service(&self) -> Option<&str> {
        let services = [
            self.envoy_ext_authz_http.as_ref().map(|p| &p.service),
            self.envoy_ext_authz_grpc.as_ref().map(|p| &p.service),
            self.zipkin.as_ref().map(|p| &p.service),
            self.lightstep.as_ref().map(|p| &p.service),
            self.datadog.as_ref().map(|p| &p.service),
            self.opencensus.as_ref().map(|p| &p.service),
            self.skywalking.as_ref().map(|p| &p.service),
            self.opentelemetry.as_ref().map(|p| &p.service),
            self.envoy_http_als.as_ref().map(|p| &p.service),
            self.envoy_tcp_als.as_ref().map(|p| &p.service),
            self.envoy_otel_als.as_ref().map(|p| &p.service),
            self.sds.as_ref().map(|p| &p.service),
        ];
        let mut stated = services.into_iter().flatten().map(String::as_str);
        stated.find(|service| !service.is_empty())
    }
}

message! {
    /// A message without fields.
    pub struct Nothing {}

    /// A provider; one of the members after the name is set.
    pub struct ExtensionProvider {
        /// Its name, compared without case.
        name: String,
        /// External authorization by HTTP.
        envoy_ext_authz_http: Option<ExtAuthzHttpProvider>,
        /// External authorization by gRPC.
        envoy_ext_authz_grpc: Option<ExtAuthzGrpcProvider>,
        /// Zipkin.
        zipkin: Option<ZipkinProvider>,
        /// Lightstep, deprecated.
        lightstep: Option<LightstepProvider>,
        /// Datadog.
        datadog: Option<DatadogProvider>,
        /// Stackdriver.
        stackdriver: Option<StackdriverProvider>,
        /// Open census agent, deprecated.
        opencensus: Option<OpenCensusProvider>,
        /// Skywalking.
        skywalking: Option<SkyWalkingProvider>,
        /// OpenTelemetry traces.
        opentelemetry: Option<OpenTelemetryProvider>,
        /// Prometheus.
        prometheus: Option<Nothing>,
        /// Access log to a file.
        envoy_file_access_log: Option<EnvoyFileAccessLogProvider>,
        /// HTTP access log service.
        envoy_http_als: Option<HttpAlsProvider>,
        /// TCP access log service.
        envoy_tcp_als: Option<TcpAlsProvider>,
        /// OpenTelemetry access log.
        envoy_otel_als: Option<OtelAlsProvider>,
        /// Secret discovery service.
        sds: Option<SdsProvider>,
    }

    /// How much of the body external authorization gets.
    pub struct RequestBodyInCheck {
        /// Most bytes.
        max_request_bytes: u32,
        /// Whether a longer body is cut, rather than refused.
        allow_partial_message: bool,
        /// Whether it is sent as bytes.
        pack_as_bytes: bool,
    }

    /// External authorization by HTTP.
    pub struct ExtAuthzHttpProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Timeout; unset means 600 s.
        timeout: Option<Duration>,
        /// Put before the path of the request.
        path_prefix: String,
        /// Lets requests pass when the service fails.
        fail_open: bool,
        /// Recomputes the route after a successful check.
        clear_route_cache: bool,
        /// Status when the service fails; empty means 403.
        status_on_error: String,
        /// Deprecated form of `include_request_headers_in_check`.
        include_headers_in_check: Vec<String>,
        /// Request headers that are sent.
        include_request_headers_in_check: Vec<String>,
        /// Further headers that are sent.
        include_additional_headers_in_check: BTreeMap<String, String>,
        /// How much of the body is sent; absent means none.
        include_request_body_in_check: Option<RequestBodyInCheck>,
        /// Headers of the answer that go to the upstream.
        headers_to_upstream_on_allow: Vec<String>,
        /// Headers of a denial that go to the client.
        headers_to_downstream_on_deny: Vec<String>,
        /// Headers of an approval that go to the client.
        headers_to_downstream_on_allow: Vec<String>,
    }

    /// External authorization by gRPC.
    pub struct ExtAuthzGrpcProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Timeout; unset means 600 s.
        timeout: Option<Duration>,
        /// Lets requests pass when the service fails.
        fail_open: bool,
        /// Recomputes the route after a successful check.
        clear_route_cache: bool,
        /// Status when the service fails; empty means 403.
        status_on_error: String,
        /// How much of the body is sent; absent means none.
        include_request_body_in_check: Option<RequestBodyInCheck>,
    }

    /// Zipkin.
    pub struct ZipkinProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Longest path tag; zero means the default.
        max_tag_length: u32,
        /// Uses 64 bit trace ids.
        #[serde(rename = "enable64bitTraceId")]
        enable_64bit_trace_id: bool,
        /// Path; empty means `/api/v2/spans`.
        path: String,
        /// Form of the trace context.
        trace_context_option: TraceContextOption,
        /// Timeout; unset means 5 s.
        timeout: Option<Duration>,
        /// Headers that are sent.
        headers: Vec<ProviderHeader>,
    }

    /// Lightstep, deprecated.
    pub struct LightstepProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Token.
        access_token: String,
        /// Longest path tag; zero means the default.
        max_tag_length: u32,
    }

    /// Datadog.
    pub struct DatadogProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Longest path tag; zero means the default.
        max_tag_length: u32,
    }

    /// Skywalking.
    pub struct SkyWalkingProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Token.
        access_token: String,
    }

    /// Stackdriver.
    pub struct StackdriverProvider {
        /// Writes traces to the log.
        debug: bool,
        /// Most attributes of a span.
        max_number_of_attributes: Option<i64>,
        /// Most annotations of a span.
        max_number_of_annotations: Option<i64>,
        /// Most messages of a span.
        max_number_of_message_events: Option<i64>,
        /// Longest path tag; zero means the default.
        max_tag_length: u32,
        /// Settings of access logs.
        logging: Option<StackdriverLogging>,
    }

    /// Stackdriver access logs.
    pub struct StackdriverLogging {
        /// Labels by name.
        labels: BTreeMap<String, String>,
    }

    /// Open census agent, deprecated.
    pub struct OpenCensusProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Trace context forms.
        context: Vec<String>,
        /// Longest path tag; zero means the default.
        max_tag_length: u32,
    }

    /// OpenTelemetry traces.
    pub struct OpenTelemetryProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Longest path tag; zero means the default.
        max_tag_length: u32,
        /// Exports by HTTP; excludes `grpc`.
        http: Option<HttpService>,
        /// Exports by gRPC, the default.
        grpc: Option<GrpcService>,
        /// What finds attributes of the resource.
        resource_detectors: Option<ResourceDetectors>,
        /// Samples as Dynatrace says.
        dynatrace_sampler: Option<DynatraceSampler>,
        /// Where the service's name comes from.
        service_attribute_enrichment: ServiceAttributeEnrichment,
    }

    /// Calls by HTTP.
    pub struct HttpService {
        /// Path.
        path: String,
        /// Timeout.
        timeout: Option<Duration>,
        /// Headers that are sent.
        headers: Vec<ProviderHeader>,
    }

    /// Calls by gRPC.
    pub struct GrpcService {
        /// Timeout.
        timeout: Option<Duration>,
        /// Metadata that is sent.
        initial_metadata: Vec<ProviderHeader>,
    }

    /// A header that is sent to a provider; one of value and variable is set.
    pub struct ProviderHeader {
        /// Its name.
        name: String,
        /// Its value.
        value: Option<String>,
        /// Environment variable of the control plane that holds its value.
        env_name: Option<String>,
    }

    /// What finds attributes of the resource.
    pub struct ResourceDetectors {
        /// Environment variables.
        environment: Option<Nothing>,
        /// Dynatrace files.
        dynatrace: Option<Nothing>,
    }

    /// Sampling as Dynatrace says.
    pub struct DynatraceSampler {
        /// Tenant.
        tenant: String,
        /// Cluster.
        cluster_id: i32,
        /// Root spans per minute when there is no answer.
        root_spans_per_minute: u32,
        /// Where it is asked; absent means the exporter's service.
        http_service: Option<DynatraceApi>,
    }

    /// The Dynatrace API.
    pub struct DynatraceApi {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// How it is called.
        http: Option<HttpService>,
    }

    /// Access log to a file.
    pub struct EnvoyFileAccessLogProvider {
        /// The file.
        path: String,
        /// Format.
        log_format: Option<LogFormat>,
        /// Leaves out empty values.
        omit_empty_values: bool,
    }

    /// Format of an access log; one member is set.
    pub struct LogFormat {
        /// As text.
        text: Option<String>,
        /// As JSON.
        labels: Option<Map<String, Value>>,
    }

    /// Format of an OpenTelemetry access log; both members may be set.
    pub struct OtelLogFormat {
        /// Body.
        text: String,
        /// Attributes.
        labels: Option<Map<String, Value>>,
    }

    /// HTTP access log service.
    pub struct HttpAlsProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Name of the log; empty means the default.
        log_name: String,
        /// Filter state that is logged.
        filter_state_objects_to_log: Vec<String>,
        /// Request headers that are logged.
        additional_request_headers_to_log: Vec<String>,
        /// Response headers that are logged.
        additional_response_headers_to_log: Vec<String>,
        /// Response trailers that are logged.
        additional_response_trailers_to_log: Vec<String>,
    }

    /// TCP access log service.
    pub struct TcpAlsProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Name of the log; empty means the default.
        log_name: String,
        /// Filter state that is logged.
        filter_state_objects_to_log: Vec<String>,
    }

    /// OpenTelemetry access log.
    pub struct OtelAlsProvider {
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
        /// Name of the log; empty means the default.
        log_name: String,
        /// Format.
        log_format: Option<OtelLogFormat>,
    }

    /// Secret discovery service.
    pub struct SdsProvider {
        /// Its name.
        name: String,
        /// `host` or `namespace/host`.
        service: String,
        /// Port.
        port: u32,
    }
}

proto_enum! {
    /// Form of the Zipkin trace context.
    pub enum TraceContextOption {
        /// B3.
        UseB3 = 0 "USE_B3",
        /// B3 and W3C.
        UseB3WithW3cPropagation = 1 "USE_B3_WITH_W3C_PROPAGATION",
    }

    /// Where the name of a service in traces comes from.
    pub enum ServiceAttributeEnrichment {
        /// The mesh's canonical names.
        IstioCanonical = 0 "ISTIO_CANONICAL",
        /// The conventions of OpenTelemetry.
        OtelSemanticConventions = 1 "OTEL_SEMANTIC_CONVENTIONS",
    }
}

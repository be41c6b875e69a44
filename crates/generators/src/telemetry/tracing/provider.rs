//! Tracers of providers (telemetry-extensions §12).

use envoy_json::any;
use envoy_types::pb::{
    envoy::{
        config::{
            core::v3::{
                GrpcService, HttpService as EnvoyHttpService, HttpUri, TypedExtensionConfig,
                http_uri::HttpUpstreamType,
            },
            trace::v3::{
                DatadogConfig, OpenTelemetryConfig, SkyWalkingConfig, ZipkinConfig, tracing,
                zipkin_config::{CollectorEndpointVersion, TraceContextOption as EnvoyContext},
            },
        },
        extensions::tracers::opentelemetry::{
            resource_detectors::v3::{
                DynatraceResourceDetectorConfig, EnvironmentResourceDetectorConfig,
            },
            samplers::v3::DynatraceSamplerConfig,
        },
    },
    google::protobuf::Any,
};
use model::{
    Labels, Proxy,
    api::{
        Duration,
        mesh::{
            DynatraceSampler, ExtensionProvider, HttpService, OpenTelemetryProvider,
            ServiceAttributeEnrichment, TraceContextOption, ZipkinProvider,
        },
    },
    proxy::IstioVersion,
};
use pushctx::PushContext;

use crate::{
    convert,
    telemetry::provider::{Upstream, header_value, headers},
};

const ZIPKIN_PATH: &str = "/api/v2/spans";
const ZIPKIN_TIMEOUT_SECONDS: u32 = 5;
const DYNATRACE_PATH: &str = "/api/v2/samplingConfiguration";
const ENVIRONMENT_DETECTOR: &str = "envoy.tracers.opentelemetry.resource_detectors.environment";

/// A tracer.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Tracer {
    /// The provider as Envoy names it.
    pub provider: tracing::Http,
    /// Longest path in tags; 0 means the default.
    pub max_path_length: u32,
    /// The tracer samples by itself.
    pub samples: bool,
    /// Upstream spans are always made.
    pub upstream_span: bool,
}

/// Builds the tracer of a provider; `None` when it does not trace, or its service is not known.
pub(super) fn of(
    context: &PushContext,
    provider: &ExtensionProvider,
    proxy: &Proxy,
    labels: &Labels,
) -> Option<Tracer> {
    let upstream = |service: &str, port| Upstream::resolve(context, service, port);
    let tracer = |name: &str, config: Any, max_path_length| Tracer {
        provider: tracing::Http {
            name: format!("envoy.tracers.{name}"),
            config_type: Some(tracing::http::ConfigType::TypedConfig(config)),
        },
        max_path_length,
        samples: false,
        upstream_span: false,
    };
    if let Some(zipkin) = &provider.zipkin {
        let upstream = upstream(&zipkin.service, zipkin.port)?;
        let config = zipkin_config(zipkin, &upstream, proxy.version);
        return Some(tracer("zipkin", any(&config), zipkin.max_tag_length));
    }
    if let Some(datadog) = &provider.datadog {
        let upstream = upstream(&datadog.service, datadog.port)?;
        let config = DatadogConfig {
            collector_cluster: upstream.cluster,
            service_name: proxy.service_cluster.clone(),
            collector_hostname: upstream.host,
            ..DatadogConfig::default()
        };
        return Some(tracer("datadog", any(&config), datadog.max_tag_length));
    }
    if let Some(skywalking) = &provider.skywalking {
        let upstream = upstream(&skywalking.service, skywalking.port)?;
        let config = SkyWalkingConfig {
            grpc_service: Some(upstream.grpc()),
            ..SkyWalkingConfig::default()
        };
        return Some(Tracer {
            upstream_span: true,
            ..tracer("skywalking", any(&config), 0)
        });
    }
    let otel = provider.opentelemetry.as_ref()?;
    let upstream = upstream(&otel.service, otel.port)?;
    let config = otel_config(context, otel, &upstream, proxy, labels)?;
    let samples = config.sampler.is_some();
    Some(Tracer {
        samples,
        ..tracer("opentelemetry", any(&config), otel.max_tag_length)
    })
}

fn http_uri(uri: String, upstream: &Upstream, timeout: Option<Duration>) -> HttpUri {
    HttpUri {
        uri,
        timeout: timeout.map(convert::duration),
        http_upstream_type: Some(HttpUpstreamType::Cluster(upstream.cluster.clone())),
    }
}

fn zipkin_config(
    zipkin: &ZipkinProvider,
    upstream: &Upstream,
    version: IstioVersion,
) -> ZipkinConfig {
    let path = if zipkin.path.is_empty() {
        ZIPKIN_PATH
    } else {
        &zipkin.path
    };
    let mut config = ZipkinConfig {
        collector_endpoint_version: CollectorEndpointVersion::HttpJson.into(),
        trace_id_128bit: !zipkin.enable_64bit_trace_id,
        shared_span_context: convert::bool_value(false),
        ..ZipkinConfig::default()
    };
    if version >= IstioVersion(1, 28, 0) {
        config.trace_context_option = match zipkin.trace_context_option {
            TraceContextOption::UseB3 => EnvoyContext::UseB3,
            TraceContextOption::UseB3WithW3cPropagation => EnvoyContext::UseB3WithW3cPropagation,
        }
        .into();
    }
    if version >= IstioVersion(1, 29, 0) {
        let timeout = zipkin
            .timeout
            .unwrap_or(Duration::from_secs(ZIPKIN_TIMEOUT_SECONDS));
        let uri = format!("http://{}{path}", upstream.host);
        config.collector_service = Some(EnvoyHttpService {
            http_uri: Some(http_uri(uri, upstream, Some(timeout))),
            request_headers_to_add: headers(&zipkin.headers),
            ..EnvoyHttpService::default()
        });
    } else {
        config.collector_cluster.clone_from(&upstream.cluster);
        path.clone_into(&mut config.collector_endpoint);
        config.collector_hostname.clone_from(&upstream.host);
    }
    config
}

fn otel_config(
    context: &PushContext,
    otel: &OpenTelemetryProvider,
    upstream: &Upstream,
    proxy: &Proxy,
    labels: &Labels,
) -> Option<OpenTelemetryConfig> {
    let conventions =
        otel.service_attribute_enrichment == ServiceAttributeEnrichment::OtelSemanticConventions;
    let mut config = OpenTelemetryConfig {
        service_name: if conventions {
            conventional_name(proxy, labels)
        } else {
            proxy.service_cluster.clone()
        },
        resource_detectors: detectors(otel, conventions),
        ..OpenTelemetryConfig::default()
    };
    if let Some(http) = &otel.http {
        config.http_service = Some(exporter(http, &http.path, upstream));
    } else {
        let grpc = otel.grpc.clone().unwrap_or_default();
        config.grpc_service = Some(GrpcService {
            timeout: grpc.timeout.map(convert::duration),
            initial_metadata: grpc.initial_metadata.iter().map(header_value).collect(),
            ..upstream.grpc()
        });
    }
    if let Some(sampler) = &otel.dynatrace_sampler {
        config.sampler = Some(dynatrace(context, sampler, otel, upstream)?);
    }
    Some(config)
}

/// An HTTP exporter; its address has no scheme.
fn exporter(http: &HttpService, path: &str, upstream: &Upstream) -> EnvoyHttpService {
    EnvoyHttpService {
        http_uri: Some(http_uri(
            joined(&upstream.host, path),
            upstream,
            http.timeout,
        )),
        request_headers_to_add: headers(&http.headers),
        ..EnvoyHttpService::default()
    }
}

/// Joins a host and a path by one slash.
fn joined(host: &str, path: &str) -> String {
    if path.is_empty() {
        host.to_owned()
    } else {
        format!("{host}/{}", path.trim_start_matches('/'))
    }
}

fn detectors(otel: &OpenTelemetryProvider, conventions: bool) -> Vec<TypedExtensionConfig> {
    let wanted = otel.resource_detectors.as_ref();
    let mut detectors = Vec::new();
    let environment = || {
        convert::extension(
            ENVIRONMENT_DETECTOR,
            any(&EnvironmentResourceDetectorConfig {}),
        )
    };
    let has_environment = wanted.is_some_and(|w| w.environment.is_some());
    if has_environment {
        detectors.push(environment());
    }
    if wanted.is_some_and(|w| w.dynatrace.is_some()) {
        detectors.push(convert::extension(
            "envoy.tracers.opentelemetry.resource_detectors.dynatrace",
            any(&DynatraceResourceDetectorConfig {}),
        ));
    }
    if conventions && !has_environment {
        detectors.push(environment());
    }
    detectors
}

fn dynatrace(
    context: &PushContext,
    sampler: &DynatraceSampler,
    otel: &OpenTelemetryProvider,
    upstream: &Upstream,
) -> Option<TypedExtensionConfig> {
    let service = match &sampler.http_service {
        Some(own) => {
            let upstream = Upstream::resolve(context, &own.service, own.port)?;
            let http = own.http.clone().unwrap_or_default();
            exporter(&http, &http.path, &upstream)
        }
        None => exporter(otel.http.as_ref()?, DYNATRACE_PATH, upstream),
    };
    Some(convert::extension(
        "envoy.tracers.opentelemetry.samplers.dynatrace",
        any(&DynatraceSamplerConfig {
            tenant: sampler.tenant.clone(),
            cluster_id: sampler.cluster_id,
            http_service: Some(service),
            root_spans_per_minute: sampler.root_spans_per_minute,
        }),
    ))
}

/// The service's name by OpenTelemetry's conventions.
fn conventional_name(proxy: &Proxy, labels: &Labels) -> String {
    let annotation = proxy
        .metadata
        .annotations
        .get("resource.opentelemetry.io/service.name");
    let label = |name: &str| labels.get(name);
    let containers = proxy
        .raw_metadata
        .get("APP_CONTAINERS")
        .and_then(|v| v.as_str());
    let only = containers.filter(|names| !names.contains(','));
    let pod = proxy.id.split('.').next().unwrap_or_default();
    [
        annotation.map(String::as_str),
        label("app.kubernetes.io/instance").map(String::as_str),
        label("app.kubernetes.io/name").map(String::as_str),
        Some(proxy.metadata.workload_name.as_str()),
        Some(pod),
        only,
    ]
    .into_iter()
    .flatten()
    .find(|name| !name.is_empty())
    .unwrap_or("unknown_service")
    .to_owned()
}

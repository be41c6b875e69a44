//! Loggers of providers (telemetry-extensions §6).

use envoy_json::any;
use envoy_types::pb::{
    envoy::{
        config::{
            accesslog::v3::{
                AccessLog, AccessLogFilter, AndFilter, ExtensionFilter,
                access_log_filter::FilterSpecifier, extension_filter,
            },
            core::v3::ApiVersion,
        },
        extensions::access_loggers::{
            filters::cel::v3::ExpressionFilter,
            grpc::v3::{
                CommonGrpcAccessLogConfig, HttpGrpcAccessLogConfig, TcpGrpcAccessLogConfig,
            },
            open_telemetry::v3::OpenTelemetryAccessLogConfig,
        },
    },
    opentelemetry::proto::common::v1::{AnyValue, KeyValue, KeyValueList, any_value},
};
use model::api::{
    mesh::{EnvoyFileAccessLogProvider, ExtensionProvider, MeshConfig, OtelAlsProvider},
    telemetry::LogFilter,
};
use pushctx::PushContext;
use serde_json::{Map, Value};

use super::{
    DEFAULT_TEXT, HTTP_GRPC, LONG_STATE, TCP_GRPC, file_logger, formatters, json_format, logger,
    mesh_format, text_format,
};
use crate::telemetry::provider::Upstream;

const OTEL: &str = "envoy.access_loggers.open_telemetry";
const CEL: &str = "envoy.access_loggers.extension_filters.cel";
/// Filter state that services of providers are told unless they ask for more.
const SHORT_STATE: [&str; 2] = ["upstream_peer", "downstream_peer"];
/// The name of the provider that stands for the mesh's own settings.
const BUILT_IN: &str = "envoy";

/// Builds the logger of a provider; `None` when it does not log, or its service is not known.
pub(super) fn of(context: &PushContext, provider: &ExtensionProvider) -> Option<AccessLog> {
    if let Some(file) = &provider.envoy_file_access_log {
        return Some(file_of(context.mesh(), &provider.name, file));
    }
    if let Some(als) = &provider.envoy_http_als {
        let upstream = Upstream::resolve(context, &als.service, als.port)?;
        let name = or(&als.log_name, "http_envoy_accesslog");
        return Some(logger(
            HTTP_GRPC,
            &HttpGrpcAccessLogConfig {
                common_config: Some(common(&upstream, name, &als.filter_state_objects_to_log)),
                additional_request_headers_to_log: als.additional_request_headers_to_log.clone(),
                additional_response_headers_to_log: als.additional_response_headers_to_log.clone(),
                additional_response_trailers_to_log: als
                    .additional_response_trailers_to_log
                    .clone(),
            },
        ));
    }
    if let Some(als) = &provider.envoy_tcp_als {
        let upstream = Upstream::resolve(context, &als.service, als.port)?;
        let name = or(&als.log_name, "tcp_envoy_accesslog");
        return Some(logger(
            TCP_GRPC,
            &TcpGrpcAccessLogConfig {
                common_config: Some(common(&upstream, name, &als.filter_state_objects_to_log)),
            },
        ));
    }
    let als = provider.envoy_otel_als.as_ref()?;
    let upstream = Upstream::resolve(context, &als.service, als.port)?;
    Some(logger(OTEL, &otel(&upstream, als)))
}

fn or<'a>(name: &'a str, default: &'a str) -> &'a str {
    if name.is_empty() { default } else { name }
}

fn file_of(mesh: &MeshConfig, name: &str, file: &EnvoyFileAccessLogProvider) -> AccessLog {
    let plain = file.log_format.is_none() && !file.omit_empty_values;
    if name == BUILT_IN && plain {
        return file_logger(&file.path, Some(mesh_format(mesh)));
    }
    let format = file.log_format.as_ref();
    let mut format = match format.and_then(|f| f.labels.as_ref()) {
        Some(labels) => json_format(labels),
        None => text_format(format.and_then(|f| f.text.as_deref()).unwrap_or_default()),
    };
    format.omit_empty_values = file.omit_empty_values;
    file_logger(or(&file.path, "/dev/stdout"), Some(format))
}

fn common(upstream: &Upstream, log_name: &str, state: &[String]) -> CommonGrpcAccessLogConfig {
    let state = if state.is_empty() {
        SHORT_STATE.map(str::to_owned).to_vec()
    } else {
        state.to_vec()
    };
    CommonGrpcAccessLogConfig {
        log_name: log_name.to_owned(),
        grpc_service: Some(upstream.grpc()),
        transport_api_version: ApiVersion::V3.into(),
        filter_state_objects_to_log: state,
        ..CommonGrpcAccessLogConfig::default()
    }
}

#[expect(deprecated, reason = "Istio writes the common part")]
fn otel(upstream: &Upstream, als: &OtelAlsProvider) -> OpenTelemetryAccessLogConfig {
    let empty = Map::new();
    let format = als.log_format.as_ref();
    let text = format.map_or("", |f| f.text.as_str());
    let text = or(text, DEFAULT_TEXT);
    let labels = format.and_then(|f| f.labels.as_ref()).unwrap_or(&empty);
    let string = |text: &str| AnyValue {
        value: Some(any_value::Value::StringValue(text.to_owned())),
    };
    let attributes: Vec<KeyValue> = labels
        .iter()
        .map(|(key, value)| KeyValue {
            key: key.clone(),
            value: Some(string(value.as_str().unwrap_or_default())),
            ..KeyValue::default()
        })
        .collect();
    let texts = std::iter::once(text).chain(labels.values().filter_map(Value::as_str));
    let state: Vec<String> = LONG_STATE.map(str::to_owned).to_vec();
    OpenTelemetryAccessLogConfig {
        common_config: Some(common(
            upstream,
            or(&als.log_name, "otel_envoy_accesslog"),
            &state,
        )),
        disable_builtin_labels: true,
        formatters: formatters(texts),
        body: Some(string(text)),
        attributes: (!attributes.is_empty()).then_some(KeyValueList { values: attributes }),
        ..OpenTelemetryAccessLogConfig::default()
    }
}

/// Limits a logger to what both the place and the user's expression let pass.
pub(super) fn filtered(
    mut logger: AccessLog,
    place: Option<AccessLogFilter>,
    expression: Option<&LogFilter>,
) -> AccessLog {
    let expression = expression.map(|filter| AccessLogFilter {
        filter_specifier: Some(FilterSpecifier::ExtensionFilter(ExtensionFilter {
            name: CEL.to_owned(),
            config_type: Some(extension_filter::ConfigType::TypedConfig(any(
                &ExpressionFilter {
                    expression: filter.expression.clone(),
                    ..ExpressionFilter::default()
                },
            ))),
        })),
    });
    logger.filter = match (place, expression) {
        (Some(place), Some(expression)) => Some(AccessLogFilter {
            filter_specifier: Some(FilterSpecifier::AndFilter(AndFilter {
                filters: vec![place, expression],
            })),
        }),
        (place, expression) => place.or(expression),
    };
    logger
}

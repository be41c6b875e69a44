//! Access logs (telemetry-extensions §4–§6).

mod choose;
mod provider;

use std::sync::Arc;

use envoy_json::{any, encode::struct_value};
use envoy_types::pb::envoy::{
    config::{
        accesslog::v3::{
            AccessLog, AccessLogFilter, ResponseFlagFilter, access_log,
            access_log_filter::FilterSpecifier,
        },
        core::v3::{
            ApiVersion, DataSource, GrpcService, JsonFormatOptions, SubstitutionFormatString,
            TypedExtensionConfig, data_source, grpc_service, substitution_format_string::Format,
        },
    },
    extensions::{
        access_loggers::{
            file::v3::{FileAccessLog, file_access_log::AccessLogFormat},
            grpc::v3::{
                CommonGrpcAccessLogConfig, HttpGrpcAccessLogConfig, TcpGrpcAccessLogConfig,
            },
        },
        formatter::req_without_query::v3::ReqWithoutQuery,
    },
};
use model::{
    Config,
    api::{self, Telemetry, common::WorkloadMode, mesh::AccessLogEncoding},
};
use prost::{Message, Name};
use pushctx::PushContext;
use serde_json::{Map, Value};

const FILE: &str = "envoy.access_loggers.file";
const HTTP_GRPC: &str = "envoy.access_loggers.http_grpc";
const TCP_GRPC: &str = "envoy.tcp_grpc_access_log";
/// Cluster of the access log service; the bootstrap defines it.
const SERVICE_CLUSTER: &str = "envoy_accesslog_service";

/// Filter state that the built-in service is told.
const LONG_STATE: [&str; 6] = [
    "upstream_peer",
    "downstream_peer",
    "wasm.upstream_peer",
    "wasm.upstream_peer_id",
    "wasm.downstream_peer",
    "wasm.downstream_peer_id",
];

/// One line for each request, as Envoy's default with a few more fields.
const DEFAULT_TEXT: &str = concat!(
    "[%START_TIME%] \"%REQ(:METHOD)% %REQ(X-ENVOY-ORIGINAL-PATH?:PATH)% %PROTOCOL%\" ",
    "%RESPONSE_CODE% %RESPONSE_FLAGS% %RESPONSE_CODE_DETAILS% %CONNECTION_TERMINATION_DETAILS% ",
    "\"%UPSTREAM_TRANSPORT_FAILURE_REASON%\" %BYTES_RECEIVED% %BYTES_SENT% %DURATION% ",
    "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)% \"%REQ(X-FORWARDED-FOR)%\" \"%REQ(USER-AGENT)%\" ",
    "\"%REQ(X-REQUEST-ID)%\" \"%REQ(:AUTHORITY)%\" \"%UPSTREAM_HOST%\" %UPSTREAM_CLUSTER_RAW% ",
    "%UPSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_LOCAL_ADDRESS% %DOWNSTREAM_REMOTE_ADDRESS% ",
    "%REQUESTED_SERVER_NAME% %ROUTE_NAME%\n",
);

const DEFAULT_JSON: [(&str, &str); 24] = [
    ("start_time", "%START_TIME%"),
    ("route_name", "%ROUTE_NAME%"),
    ("method", "%REQ(:METHOD)%"),
    ("path", "%REQ(X-ENVOY-ORIGINAL-PATH?:PATH)%"),
    ("protocol", "%PROTOCOL%"),
    ("response_code", "%RESPONSE_CODE%"),
    ("response_flags", "%RESPONSE_FLAGS%"),
    ("response_code_details", "%RESPONSE_CODE_DETAILS%"),
    (
        "connection_termination_details",
        "%CONNECTION_TERMINATION_DETAILS%",
    ),
    ("bytes_received", "%BYTES_RECEIVED%"),
    ("bytes_sent", "%BYTES_SENT%"),
    ("duration", "%DURATION%"),
    (
        "upstream_service_time",
        "%RESP(X-ENVOY-UPSTREAM-SERVICE-TIME)%",
    ),
    ("x_forwarded_for", "%REQ(X-FORWARDED-FOR)%"),
    ("user_agent", "%REQ(USER-AGENT)%"),
    ("request_id", "%REQ(X-REQUEST-ID)%"),
    ("authority", "%REQ(:AUTHORITY)%"),
    ("upstream_host", "%UPSTREAM_HOST%"),
    ("upstream_cluster", "%UPSTREAM_CLUSTER_RAW%"),
    ("upstream_local_address", "%UPSTREAM_LOCAL_ADDRESS%"),
    ("downstream_local_address", "%DOWNSTREAM_LOCAL_ADDRESS%"),
    ("downstream_remote_address", "%DOWNSTREAM_REMOTE_ADDRESS%"),
    ("requested_server_name", "%REQUESTED_SERVER_NAME%"),
    (
        "upstream_transport_failure_reason",
        "%UPSTREAM_TRANSPORT_FAILURE_REASON%",
    ),
];

/// Loggers by where they are put.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Loggers {
    /// Of connection managers.
    pub http: Vec<AccessLog>,
    /// Of TCP proxies.
    pub tcp: Vec<AccessLog>,
    /// Of listeners, limited to connections that no chain takes.
    pub listener: Vec<AccessLog>,
}

/// Resolves the loggers of a workload on one side: those of the providers that its Telemetry objects
/// or the mesh choose, else those of the mesh's older settings.
pub(crate) fn resolve(
    context: &PushContext,
    layers: &[Arc<Config<Telemetry>>],
    mode: WorkloadMode,
) -> Loggers {
    match Chosen::of(context, layers, mode) {
        None => of_mesh(context.mesh()),
        Some(chosen) => Loggers {
            http: chosen.loggers(None),
            tcp: chosen.loggers(None),
            listener: chosen.loggers(Some(&no_route())),
        },
    }
}

/// Loggers that providers were chosen for, in the order of the providers' names.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Chosen(Vec<(AccessLog, Option<api::telemetry::LogFilter>)>);

impl Chosen {
    /// Chooses providers for one side; `None` when none can log, so that older settings count.
    pub(crate) fn of(
        context: &PushContext,
        layers: &[Arc<Config<Telemetry>>],
        mode: WorkloadMode,
    ) -> Option<Self> {
        let defaults = &context.mesh().default_providers.access_logging;
        let chosen = choose::choose(layers, defaults, mode)?;
        let mut found: Vec<_> = chosen
            .into_iter()
            .filter_map(|chosen| {
                let provider = super::provider::find(context, &chosen.name)?;
                let logger = provider::of(context, provider)?;
                Some((provider.name.clone(), logger, chosen))
            })
            .collect();
        if found.is_empty() {
            return None;
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        let enabled = found.into_iter().filter(|(.., chosen)| !chosen.disabled);
        Some(Self(
            enabled
                .map(|(_, logger, chosen)| (logger, chosen.filter))
                .collect(),
        ))
    }

    /// Builds the loggers of a place that has a filter of its own.
    pub(crate) fn loggers(&self, place: Option<&AccessLogFilter>) -> Vec<AccessLog> {
        self.0
            .iter()
            .map(|(logger, filter)| {
                provider::filtered(logger.clone(), place.cloned(), filter.as_ref())
            })
            .collect()
    }
}

/// The loggers that the mesh configuration asks for where no provider is chosen: the file, then
/// the access log service.
pub(crate) fn of_mesh(mesh: &api::MeshConfig) -> Loggers {
    let mut loggers = Loggers::default();
    if let Some(file) = mesh_file(mesh) {
        loggers.listener.push(limited(file.clone(), no_route()));
        loggers.tcp.push(file.clone());
        loggers.http.push(file);
    }
    if mesh.enable_envoy_access_log_service {
        let http = HttpGrpcAccessLogConfig {
            common_config: Some(service_config("http_envoy_accesslog")),
            ..HttpGrpcAccessLogConfig::default()
        };
        let tcp = |name| TcpGrpcAccessLogConfig {
            common_config: Some(service_config(name)),
        };
        loggers.http.push(logger(HTTP_GRPC, &http));
        loggers
            .tcp
            .push(logger(TCP_GRPC, &tcp("tcp_envoy_accesslog")));
        let listener = logger(TCP_GRPC, &tcp("listener_envoy_accesslog"));
        loggers.listener.push(limited(listener, no_route()));
    }
    loggers
}

/// The logger to the mesh's file; `None` when there is no file.
pub(crate) fn mesh_file(mesh: &api::MeshConfig) -> Option<AccessLog> {
    (!mesh.access_log_file.is_empty())
        .then(|| file_logger(&mesh.access_log_file, Some(mesh_format(mesh))))
}

/// The filter of listener loggers: connections that no chain takes.
pub(crate) fn no_route() -> AccessLogFilter {
    response_flag("NR")
}

/// A filter on one response flag.
pub(crate) fn response_flag(flag: &str) -> AccessLogFilter {
    AccessLogFilter {
        filter_specifier: Some(FilterSpecifier::ResponseFlagFilter(ResponseFlagFilter {
            flags: vec![flag.to_owned()],
        })),
    }
}

/// Limits a logger to what `filter` lets pass.
pub(crate) fn limited(mut logger: AccessLog, filter: AccessLogFilter) -> AccessLog {
    logger.filter = Some(filter);
    logger
}

/// Builds a logger with its packed config.
pub(crate) fn logger<M: Message + Name>(name: &str, config: &M) -> AccessLog {
    AccessLog {
        name: name.to_owned(),
        filter: None,
        config_type: Some(access_log::ConfigType::TypedConfig(any(config))),
    }
}

/// Builds a logger to a file.
pub(crate) fn file_logger(path: &str, format: Option<SubstitutionFormatString>) -> AccessLog {
    logger(
        FILE,
        &FileAccessLog {
            path: path.to_owned(),
            access_log_format: format.map(AccessLogFormat::LogFormat),
        },
    )
}

/// The format that the mesh configuration asks for.
pub(crate) fn mesh_format(mesh: &api::MeshConfig) -> SubstitutionFormatString {
    match mesh.access_log_encoding {
        AccessLogEncoding::Text => text_format(&mesh.access_log_format),
        AccessLogEncoding::Json => match serde_json::from_str(&mesh.access_log_format) {
            Ok(Value::Object(format)) => json_format(&format),
            _ => json_format(&Map::new()),
        },
    }
}

/// A text format that ends in a line break; an empty one means the default.
pub(crate) fn text_format(format: &str) -> SubstitutionFormatString {
    let mut text = if format.is_empty() {
        DEFAULT_TEXT.to_owned()
    } else {
        format.to_owned()
    };
    if !text.ends_with('\n') {
        text.push('\n');
    }
    SubstitutionFormatString {
        formatters: formatters([text.as_str()]),
        format: Some(Format::TextFormatSource(DataSource {
            specifier: Some(data_source::Specifier::InlineString(text)),
            ..DataSource::default()
        })),
        ..SubstitutionFormatString::default()
    }
}

/// A JSON format; an empty one means the default.
pub(crate) fn json_format(format: &Map<String, Value>) -> SubstitutionFormatString {
    let format = if format.is_empty() {
        default_json()
    } else {
        format.clone()
    };
    SubstitutionFormatString {
        formatters: formatters(format.values().filter_map(Value::as_str)),
        json_format_options: Some(JsonFormatOptions::default()),
        format: Some(Format::JsonFormat(struct_value(Value::Object(format)))),
        ..SubstitutionFormatString::default()
    }
}

fn default_json() -> Map<String, Value> {
    DEFAULT_JSON
        .iter()
        .map(|(key, value)| ((*key).to_owned(), Value::from(*value)))
        .collect()
}

/// The formatters that operators in these texts need.
pub(crate) fn formatters<'a>(
    texts: impl IntoIterator<Item = &'a str>,
) -> Vec<TypedExtensionConfig> {
    let needed = texts
        .into_iter()
        .any(|text| text.contains("%REQ_WITHOUT_QUERY"));
    needed
        .then(|| TypedExtensionConfig {
            name: "envoy.formatter.req_without_query".to_owned(),
            typed_config: Some(any(&ReqWithoutQuery {})),
        })
        .into_iter()
        .collect()
}

fn service_config(log_name: &str) -> CommonGrpcAccessLogConfig {
    CommonGrpcAccessLogConfig {
        log_name: log_name.to_owned(),
        grpc_service: Some(GrpcService {
            target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(
                grpc_service::EnvoyGrpc {
                    cluster_name: SERVICE_CLUSTER.to_owned(),
                    ..grpc_service::EnvoyGrpc::default()
                },
            )),
            ..GrpcService::default()
        }),
        transport_api_version: ApiVersion::V3.into(),
        filter_state_objects_to_log: LONG_STATE.map(str::to_owned).to_vec(),
        ..CommonGrpcAccessLogConfig::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(format: &SubstitutionFormatString) -> &str {
        match &format.format {
            Some(Format::TextFormatSource(DataSource {
                specifier: Some(data_source::Specifier::InlineString(text)),
                ..
            })) => text,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn text_ends_in_one_line_break() {
        assert_eq!(text(&text_format("a")), "a\n");
        assert_eq!(text(&text_format("a\n")), "a\n");
        assert!(text(&text_format("")).ends_with("%ROUTE_NAME%\n"));
    }

    #[test]
    fn paths_without_query_need_a_formatter() {
        assert_eq!(
            text_format("%REQ_WITHOUT_QUERY(:PATH)%").formatters.len(),
            1
        );
        assert!(text_format("%REQ(:PATH)%").formatters.is_empty());
    }

    #[test]
    fn nothing_is_logged_by_default() {
        assert_eq!(of_mesh(&api::MeshConfig::default()), Loggers::default());
    }

    #[test]
    fn listener_logs_are_limited_to_lost_connections() {
        let mesh = api::MeshConfig {
            access_log_file: "/dev/stdout".to_owned(),
            enable_envoy_access_log_service: true,
            ..api::MeshConfig::default()
        };
        let loggers = of_mesh(&mesh);
        assert_eq!(
            (
                loggers.http.len(),
                loggers.tcp.len(),
                loggers.listener.len()
            ),
            (2, 2, 2)
        );
        assert!(
            loggers
                .listener
                .iter()
                .all(|log| log.filter == Some(no_route()))
        );
        assert!(loggers.http.iter().all(|log| log.filter.is_none()));
    }
}

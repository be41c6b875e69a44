//! What proxies report: access logs, traces, metrics, and the identity of peers.
//!
//! Resolved once for a class of listeners of one proxy class, and then put into every manager, TCP
//! proxy and listener (telemetry-extensions §1–§12).

pub(crate) mod access_log;
pub(crate) mod metadata_exchange;
pub(crate) mod stats;
pub(crate) mod tracing;

use envoy_types::pb::{
    envoy::{
        config::accesslog::v3::AccessLog,
        extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing,
    },
    google::protobuf::Any,
};
use pushctx::{ProxyClass, PushContext};

use crate::capabilities::Capabilities;

/// The kinds of listeners that telemetry distinguishes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum ListenerClass {
    /// Outbound listeners of sidecars; the client's side.
    SidecarOutbound,
    /// Inbound listeners of sidecars; the server's side.
    SidecarInbound,
    /// All listeners of gateways; the client's side.
    Gateway,
}

/// What the listeners of one class report.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Telemetry {
    /// Loggers of connection managers.
    pub http_logs: Vec<AccessLog>,
    /// Loggers of TCP proxies.
    pub tcp_logs: Vec<AccessLog>,
    /// Loggers of listeners, for connections that no chain takes.
    pub listener_logs: Vec<AccessLog>,
    /// Tracing of connection managers; `None` means off.
    pub tracing: Option<Tracing>,
    /// Traces are sampled by the request id.
    pub sample_by_request_id: bool,
    /// Configs of the metrics filter, one for each provider.
    pub stats: Vec<Any>,
}

impl Telemetry {
    /// Resolves what listeners of `listeners` report.
    pub(crate) fn resolve(
        snapshot: &PushContext,
        class: &ProxyClass,
        listeners: ListenerClass,
    ) -> Self {
        let mesh = snapshot.mesh();
        let logs = access_log::of_mesh(mesh);
        let has_stats = Capabilities::of(&class.proxy).stats;
        Self {
            http_logs: logs.http,
            tcp_logs: logs.tcp,
            listener_logs: if mesh.disable_envoy_listener_log {
                Vec::new()
            } else {
                logs.listener
            },
            tracing: tracing::of_mesh(snapshot, class),
            sample_by_request_id: true,
            stats: if has_stats {
                stats::of_mesh(mesh, listeners)
            } else {
                Vec::new()
            },
        }
    }
}

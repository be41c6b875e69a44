//! What proxies report: access logs, traces, metrics, and the identity of peers.
//!
//! Resolved once for a class of listeners of one proxy class, and then put into every manager, TCP
//! proxy and listener (telemetry-extensions §1–§12).

pub(crate) mod access_log;
pub(crate) mod metadata_exchange;
mod metrics;
mod provider;
pub(crate) mod stats;
mod tracing;

use std::sync::Arc;

use envoy_types::pb::{
    envoy::{
        config::accesslog::v3::AccessLog,
        extensions::filters::network::http_connection_manager::v3::http_connection_manager::Tracing,
    },
    google::protobuf::Any,
};
use model::{Service, api::common::WorkloadMode};
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
        Self::resolve_for(snapshot, class, &[], listeners)
    }

    /// The same where a waypoint handles `services`.
    pub(crate) fn resolve_for(
        snapshot: &PushContext,
        class: &ProxyClass,
        services: &[Arc<Service>],
        listeners: ListenerClass,
    ) -> Self {
        let mode = match listeners {
            ListenerClass::SidecarInbound => WorkloadMode::Server,
            ListenerClass::SidecarOutbound | ListenerClass::Gateway => WorkloadMode::Client,
        };
        let layers = snapshot.telemetries(&class.workload_for(services));
        let logs = access_log::resolve(snapshot, &layers, mode);
        let traced = tracing::resolve(snapshot, class, &layers, mode);
        let has_stats = Capabilities::of(&class.proxy).stats;
        Self {
            http_logs: logs.http,
            tcp_logs: logs.tcp,
            listener_logs: if snapshot.mesh().disable_envoy_listener_log {
                Vec::new()
            } else {
                logs.listener
            },
            tracing: traced.tracing,
            sample_by_request_id: traced.sample_by_request_id,
            stats: if has_stats {
                stats::resolve(snapshot, class, &layers, listeners, mode)
            } else {
                Vec::new()
            },
        }
    }
}

//! Istio's metrics filter (telemetry-extensions §8).

use std::sync::Arc;

use envoy_json::{
    any,
    istio::stats::{PluginConfig, Reporter},
};
use envoy_types::pb::google::protobuf::Any;
use model::{Config, ProxyType, api::Telemetry, api::common::WorkloadMode};
use pushctx::{ProxyClass, PushContext};

use super::{ListenerClass, metrics, provider};
use crate::convert;

/// Name of the filter, for HTTP and for connections alike.
pub(crate) const NAME: &str = "istio.stats";

/// One config for each Prometheus provider that reports on these listeners.
pub(super) fn resolve(
    context: &PushContext,
    class: &ProxyClass,
    layers: &[Arc<Config<Telemetry>>],
    listeners: ListenerClass,
    mode: WorkloadMode,
) -> Vec<Any> {
    let defaults = &context.mesh().default_providers.metrics;
    let reporter = match class.proxy.proxy_type {
        ProxyType::Waypoint => Reporter::ServerGateway,
        ProxyType::Sidecar | ProxyType::Router | ProxyType::Ztunnel => Reporter::Unspecified,
    };
    metrics::choose(layers, defaults, mode)
        .into_iter()
        .filter(|chosen| {
            provider::find(context, &chosen.name).is_some_and(|p| p.prometheus.is_some())
        })
        .map(|chosen| {
            any(&PluginConfig {
                disable_host_header_fallback: match listeners {
                    ListenerClass::SidecarOutbound => false,
                    ListenerClass::SidecarInbound | ListenerClass::Gateway => true,
                },
                tcp_reporting_duration: chosen.interval.map(convert::duration),
                metrics: chosen.metrics,
                reporter: reporter.into(),
                ..PluginConfig::default()
            })
        })
        .collect()
}

//! Istio's metrics filter (telemetry-extensions §7, §8).

use std::collections::BTreeSet;

use envoy_json::{any, istio::stats::PluginConfig};
use envoy_types::pb::google::protobuf::Any;
use model::api;

use super::ListenerClass;

/// Name of the filter, for HTTP and for connections alike.
pub(crate) const NAME: &str = "istio.stats";

/// One config for each Prometheus provider that the mesh uses by default.
pub(crate) fn of_mesh(mesh: &api::MeshConfig, listeners: ListenerClass) -> Vec<Any> {
    let names: BTreeSet<String> = mesh
        .default_providers
        .metrics
        .iter()
        .map(|n| n.to_ascii_lowercase())
        .collect();
    names
        .iter()
        .filter(|name| {
            mesh.extension_providers
                .iter()
                .any(|p| p.prometheus.is_some() && p.name.eq_ignore_ascii_case(name))
        })
        .map(|_| any(&config(listeners)))
        .collect()
}

/// The config without any override.
pub(crate) fn config(listeners: ListenerClass) -> PluginConfig {
    PluginConfig {
        disable_host_header_fallback: match listeners {
            ListenerClass::SidecarOutbound => false,
            ListenerClass::SidecarInbound | ListenerClass::Gateway => true,
        },
        ..PluginConfig::default()
    }
}

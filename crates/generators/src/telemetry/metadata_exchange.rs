//! Filters by which proxies tell each other who they are (telemetry-extensions §9).

use std::collections::BTreeSet;

use envoy_json::typed_struct;
use envoy_types::pb::google::protobuf::Any;
use model::{Features, api, api::mesh::MetadataExchangeMode};
use serde_json::{Value, json};

/// Name of the filters.
pub(crate) const NAME: &str = "istio.metadata_exchange";

const HTTP_TYPE: &str = "io.istio.http.peer_metadata.Config";
const TCP_TYPE: &str = "envoy.tcp.metadataexchange.config.MetadataExchange";

/// The network filter of connections.
pub(crate) fn tcp(features: &Features) -> Any {
    let value = json!({"protocol": "istio-peer-exchange", "enable_discovery": true});
    typed_struct(TCP_TYPE, with_labels(value, features))
}

/// The HTTP filter of servers.
pub(crate) fn http_server(features: &Features) -> Any {
    let value = json!({
        "downstream_discovery": [{"istio_headers": {}}, {"workload_discovery": {}}],
        "downstream_propagation": [{"istio_headers": {}}],
    });
    typed_struct(HTTP_TYPE, with_labels(value, features))
}

/// The HTTP filter of clients; `in_mesh_only` keeps the headers from servers outside of the mesh.
pub(crate) fn http_client(features: &Features, in_mesh_only: bool) -> Any {
    let propagation = if in_mesh_only {
        json!({"skip_external_clusters": true})
    } else {
        json!({})
    };
    let value = json!({
        "upstream_discovery": [{"istio_headers": {}}, {"workload_discovery": {}}],
        "upstream_propagation": [{"istio_headers": propagation}],
    });
    typed_struct(HTTP_TYPE, with_labels(value, features))
}

/// Tells whether the proxy's settings keep the headers inside of the mesh.
pub(crate) fn is_in_mesh_only(config: &api::MeshProxyConfig) -> bool {
    config
        .proxy_headers
        .as_ref()
        .and_then(|headers| headers.metadata_exchange_headers.as_ref())
        .is_some_and(|headers| headers.mode == MetadataExchangeMode::InMesh)
}

fn with_labels(mut value: Value, features: &Features) -> Value {
    let labels: BTreeSet<&str> = features
        .mx_additional_labels
        .split(',')
        .map(str::trim)
        .filter(|label| !label.is_empty())
        .collect();
    if !labels.is_empty() {
        value["additional_labels"] = labels.into_iter().collect();
    }
    value
}

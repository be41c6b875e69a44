//! Laying one source of mesh configuration over another (config-model.md §4.2).

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::{MeshConfig, MeshProxyConfig};
use crate::api::codec::camel_case;
use crate::api::{DecodeError, Decoded, decode};

/// Members of `proxyHeaders` that survive an overlay which leaves them unset.
const KEPT_HEADERS: [&str; 5] = [
    "forwardedClientCert",
    "requestId",
    "attemptCount",
    "server",
    "envoyDebugHeaders",
];

impl MeshConfig {
    /// Lays `source` over this configuration.
    ///
    /// A field that is present replaces the one here wholesale, `null` leaves it. Exceptions:
    /// `defaultConfig` by [`MeshProxyConfig::overlay`], `defaultProviders` by list,
    /// `extensionProviders` by name, `trustDomainAliases` as a sorted union. Unknown fields are
    /// reported, with paths in `source`.
    ///
    /// # Errors
    /// [`DecodeError`] for the first field that does not fit; paths are those in `source`.
    pub fn overlay(&self, source: &Value) -> Result<Decoded<Self>, DecodeError> {
        // Errors and unknown fields come from the source alone, so that their paths are its paths.
        let unknown = decode::<Self>(source)?.unknown;
        let mut merged = to_object(self);
        for (key, value) in fields(source) {
            match key.as_str() {
                "defaultConfig" => {
                    if let Some(Value::Object(current)) = merged.get_mut("defaultConfig") {
                        merge_proxy_config(current, value);
                    }
                }
                "defaultProviders" => {
                    if let Some(Value::Object(current)) = merged.get_mut("defaultProviders") {
                        current.extend(fields(value).map(|(key, value)| (key, value.clone())));
                    }
                }
                "extensionProviders" => {
                    if let Some(Value::Array(current)) = merged.get_mut("extensionProviders") {
                        merge_by_name(current, value);
                    }
                }
                "trustDomainAliases" => {
                    let all: BTreeSet<&str> = strings(value)
                        .chain(self.trust_domain_aliases.iter().map(String::as_str))
                        .collect();
                    merged.insert(key, all.into_iter().collect());
                }
                _ => {
                    merged.insert(key, value.clone());
                }
            }
        }
        let value = decode::<Self>(&Value::Object(merged))?.value;
        Ok(Decoded { value, unknown })
    }
}

impl MeshProxyConfig {
    /// Lays `source` over these settings, field by field.
    ///
    /// `proxyMetadata` is merged by key; `proxyHeaders` keeps `forwardedClientCert`, `requestId`,
    /// `attemptCount`, `server` and `envoyDebugHeaders` where the source leaves them unset.
    ///
    /// # Errors
    /// [`DecodeError`] for the first field that does not fit; paths are those in `source`.
    pub fn overlay(&self, source: &Value) -> Result<Decoded<Self>, DecodeError> {
        let unknown = decode::<Self>(source)?.unknown;
        let mut merged = to_object(self);
        merge_proxy_config(&mut merged, source);
        let value = decode::<Self>(&Value::Object(merged))?.value;
        Ok(Decoded { value, unknown })
    }
}

/// Lists the fields that `source` gives, by their camel case names.
fn fields(source: &Value) -> impl Iterator<Item = (String, &Value)> {
    source
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| (camel_case(key), value))
}

fn strings(list: &Value) -> impl Iterator<Item = &str> {
    list.as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
}

/// Writes a message as an object; messages always serialize to objects.
fn to_object<T: serde::Serialize>(message: &T) -> Map<String, Value> {
    match serde_json::to_value(message) {
        Ok(Value::Object(object)) => object,
        _ => Map::new(),
    }
}

fn merge_proxy_config(current: &mut Map<String, Value>, source: &Value) {
    for (key, value) in fields(source) {
        match key.as_str() {
            "proxyMetadata" => {
                let metadata = current
                    .entry(key)
                    .or_insert_with(|| Value::Object(Map::new()));
                if let (Value::Object(metadata), Value::Object(added)) = (metadata, value) {
                    metadata.extend(
                        added
                            .iter()
                            .map(|(key, value)| (key.clone(), value.clone())),
                    );
                }
            }
            "proxyHeaders" => {
                let mut headers: Map<String, Value> = fields(value)
                    .map(|(key, value)| (key, value.clone()))
                    .collect();
                if let Some(Value::Object(before)) = current.get(&key) {
                    for kept in KEPT_HEADERS {
                        if let (false, Some(value)) = (headers.contains_key(kept), before.get(kept))
                        {
                            headers.insert(kept.to_owned(), value.clone());
                        }
                    }
                }
                current.insert(key, Value::Object(headers));
            }
            _ => {
                // The two are members of one oneof.
                match key.as_str() {
                    "serviceCluster" => current.remove("tracingServiceName"),
                    "tracingServiceName" => current.remove("serviceCluster"),
                    _ => None,
                };
                current.insert(key, value.clone());
            }
        }
    }
}

/// Replaces elements of the same name in place and appends the others.
fn merge_by_name(current: &mut Vec<Value>, source: &Value) {
    for element in source.as_array().into_iter().flatten() {
        let name = element.get("name");
        match current.iter_mut().find(|known| known.get("name") == name) {
            Some(known) => *known = element.clone(),
            None => current.push(element.clone()),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::api::Duration;
    use crate::api::common::LocalityLbSetting;
    use crate::api::mesh::MeshOutboundTrafficMode;

    #[track_caller]
    fn overlay(sources: &[Value]) -> MeshConfig {
        sources.iter().fold(MeshConfig::default(), |mesh, source| {
            let decoded = mesh.overlay(source).unwrap();
            assert_eq!(decoded.unknown, Vec::<String>::new());
            decoded.value
        })
    }

    #[test]
    fn nothing_laid_over_changes_nothing() {
        assert_eq!(overlay(&[json!({})]), MeshConfig::default());
        assert_eq!(overlay(&[Value::Null]), MeshConfig::default());
    }

    #[test]
    fn present_fields_replace_wholesale_and_null_leaves() {
        let mesh = overlay(&[json!({
            "outboundTrafficPolicy": {},
            "localityLbSetting": {},
            "enableTracing": false,
            "connect_timeout": "3s",
            "ingressClass": null,
            "defaultServiceExportTo": [],
        })]);
        assert_eq!(
            mesh.outbound_traffic_policy.mode,
            MeshOutboundTrafficMode::RegistryOnly
        );
        assert_eq!(mesh.locality_lb_setting, Some(LocalityLbSetting::default()));
        assert!(!mesh.enable_tracing);
        assert_eq!(mesh.connect_timeout, Duration::from_secs(3));
        assert_eq!(mesh.ingress_class, "istio");
        assert_eq!(mesh.default_service_export_to, Vec::<String>::new());
    }

    #[test]
    fn proxy_config_merges_by_field() {
        let mesh = overlay(&[
            json!({"defaultConfig": {
                "proxyMetadata": {"A": "1", "B": "1"},
                "proxyHeaders": {"server": {"value": "x"}, "xForwardedHost": {"enabled": true}},
                "concurrency": 2,
            }}),
            json!({"defaultConfig": {
                "proxyMetadata": {"B": "2"},
                "proxyHeaders": {"requestId": {"disabled": true}},
            }}),
        ]);
        let proxy = mesh.default_config;
        assert_eq!(proxy.status_port, 15020);
        assert_eq!(proxy.concurrency, Some(2));
        let metadata: Vec<_> = proxy
            .proxy_metadata
            .iter()
            .map(|(k, v)| format!("{k}={v}"))
            .collect();
        assert_eq!(metadata, ["A=1", "B=2"]);
        let headers = proxy.proxy_headers.unwrap();
        assert_eq!(headers.server.unwrap().value, "x");
        assert_eq!(headers.request_id.unwrap().disabled, Some(true));
        assert_eq!(headers.x_forwarded_host, None);
    }

    #[test]
    fn providers_merge_by_name_and_list() {
        let mesh = overlay(&[
            json!({
                "extensionProviders": [
                    {"name": "otel", "opentelemetry": {"service": "otel.svc", "port": 4317}},
                    {"name": "envoy", "envoyFileAccessLog": {"path": "/tmp/log"}},
                ],
                "defaultProviders": {"metrics": ["prometheus"]},
            }),
            json!({"defaultProviders": {"tracing": ["otel"]}}),
        ]);
        let names: Vec<_> = mesh
            .extension_providers
            .iter()
            .map(|p| p.name.as_str())
            .collect();
        assert_eq!(names, ["prometheus", "stackdriver", "envoy", "otel"]);
        let log = mesh.extension_providers[2]
            .envoy_file_access_log
            .as_ref()
            .unwrap();
        assert_eq!(log.path, "/tmp/log");
        assert_eq!(mesh.default_providers.metrics, ["prometheus"]);
        assert_eq!(mesh.default_providers.tracing, ["otel"]);
    }

    #[test]
    fn trust_domain_aliases_are_a_sorted_union() {
        let mesh = overlay(&[
            json!({"trustDomainAliases": ["b", "a"]}),
            json!({"trustDomainAliases": ["c", "a"]}),
        ]);
        assert_eq!(mesh.trust_domain_aliases, ["a", "b", "c"]);
    }

    #[test]
    fn errors_and_unknown_fields_name_the_place_in_the_source() {
        let mesh = MeshConfig::default();
        let error = mesh
            .overlay(&json!({"defaultConfig": {"concurrency": "many"}}))
            .unwrap_err();
        assert_eq!(error.path, "defaultConfig.concurrency");
        let unknown = mesh
            .overlay(&json!({"defaultConfig": {"nope": 1}, "nope": 2}))
            .unwrap()
            .unknown;
        assert_eq!(unknown, ["defaultConfig.nope", "nope"]);
    }
}

//! The `istio` metadata of clusters (clusters-endpoints §3.6).

use std::collections::HashMap;

use envoy_types::pb::{
    envoy::config::core::v3::Metadata,
    google::protobuf::{ListValue, Struct, Value, value::Kind},
};
use model::{
    Service,
    api::common::{ClientTlsMode, ClientTlsSettings},
    config::Meta,
};

/// Fields of the namespace `istio` while a cluster is being built.
#[derive(Clone, Default, Debug)]
pub(super) struct IstioMetadata(HashMap<String, Value>);

impl IstioMetadata {
    /// Names the services behind the cluster.
    pub(super) fn services<'a>(&mut self, services: impl IntoIterator<Item = &'a Service>) {
        let values: Vec<Value> = services
            .into_iter()
            .map(|service| {
                let fields = [
                    ("host", &service.hostname),
                    ("name", &service.attributes.name),
                    ("namespace", &service.attributes.namespace),
                ];
                let fields = fields
                    .into_iter()
                    .map(|(k, v)| (k.to_owned(), string(v)))
                    .collect();
                Value {
                    kind: Some(Kind::StructValue(Struct { fields })),
                }
            })
            .collect();
        self.0.insert(
            "services".to_owned(),
            Value {
                kind: Some(Kind::ListValue(ListValue { values })),
            },
        );
    }

    /// Sets a field to `true`.
    pub(super) fn mark(&mut self, key: &str) {
        self.0.insert(
            key.to_owned(),
            Value {
                kind: Some(Kind::BoolValue(true)),
            },
        );
    }

    /// Sets a field to a string.
    pub(super) fn text(&mut self, key: &str, value: &str) {
        self.0.insert(key.to_owned(), string(value));
    }

    /// Names the rule that shaped the cluster.
    pub(super) fn rule(&mut self, rule: &Meta) {
        let path = format!(
            "/apis/networking.istio.io/v1/namespaces/{}/destination-rule/{}",
            rule.namespace, rule.name
        );
        self.text("config", &path);
    }

    /// Says that the cluster originates TLS of its own, so that its ALPN is not overridden.
    pub(super) fn originates_tls(&mut self, settings: Option<&ClientTlsSettings>) {
        let mode = settings.map(|tls| tls.mode);
        if matches!(mode, Some(ClientTlsMode::Simple | ClientTlsMode::Mutual)) {
            self.text("alpn_override", "false");
        }
    }

    /// Tells whether nothing was set.
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Makes the message; `None` when nothing was set.
    pub(super) fn message(self) -> Option<Metadata> {
        if self.0.is_empty() {
            return None;
        }
        Some(Metadata {
            filter_metadata: HashMap::from([("istio".to_owned(), Struct { fields: self.0 })]),
            ..Metadata::default()
        })
    }
}

fn string(value: &str) -> Value {
    Value {
        kind: Some(Kind::StringValue(value.to_owned())),
    }
}

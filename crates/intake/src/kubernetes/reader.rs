//! Objects as the API server sends them to typed ones, without what nobody needs.

use std::sync::Arc;

use model::{Kind, NamespacedName, Object};
use serde_json::Value;

use super::resource::Resource;
use crate::{decode::Decoder, report::Finding};

/// Annotations that are long and that nothing reads (service-registry §6.7).
const DROPPED_ANNOTATIONS: [&str; 2] = [
    "kubectl.kubernetes.io/last-applied-configuration",
    "proxy.istio.io/overrides",
];

/// Keys of ConfigMaps that are read, besides those of the mesh configuration's own.
const CONFIG_MAP_KEYS: [&str; 12] = [
    "ca.crt",
    "cacert",
    "ca.crl",
    "mesh",
    "meshNetworks",
    // Of gateways that are deployed: templates and parameters.
    "kube-gateway",
    "waypoint",
    "serviceAccount",
    "deployment",
    "service",
    "horizontalPodAutoscaler",
    "podDisruptionBudget",
];

/// ConfigMaps of the injector, of which this key is read.
const INJECTOR: (&str, &str) = ("istio-sidecar-injector", "values");

/// An object as it was sent.
#[derive(Debug)]
pub(super) struct Read {
    pub(super) name: NamespacedName,
    /// The version of the object, or of the list if it is a bookmark.
    pub(super) version: String,
    /// `None` when it cannot be read.
    pub(super) object: Option<Object>,
    pub(super) findings: Vec<Finding>,
}

/// Reads the objects of one kind.
#[derive(Clone, Debug)]
pub(super) struct Reader {
    kind: Kind,
    api_version: String,
    /// The name that findings give the cluster.
    source: Arc<str>,
    decoder: Decoder,
}

impl Reader {
    pub(super) fn new(resource: &Resource, version: &str, source: Arc<str>) -> Self {
        Self {
            kind: resource.kind,
            api_version: resource.api_version(version),
            source,
            decoder: Decoder {
                admitted: true,
                ..Decoder::default()
            },
        }
    }

    /// Reads an object. `None` when it has not even a name.
    pub(super) fn read(&self, mut value: Value) -> Option<Read> {
        let (name, version) = identity(&value)?;
        trim(self.kind, &mut value);
        if let Value::Object(map) = &mut value {
            // The items of a list leave it to the list to say what they are.
            map.insert("apiVersion".to_owned(), self.api_version.as_str().into());
            map.insert("kind".to_owned(), self.kind.name().into());
        }
        let mut decoded = self.decoder.decode_value(&self.source, value);
        Some(Read {
            name,
            version,
            object: decoded.objects.pop(),
            findings: decoded.findings,
        })
    }
}

/// The name and the version of an object as it was sent.
pub(super) fn identity(value: &Value) -> Option<(NamespacedName, String)> {
    let metadata = value.get("metadata")?;
    let text = |field| metadata.get(field).and_then(Value::as_str);
    let name = NamespacedName::new(text("namespace").unwrap_or_default(), text("name")?);
    Some((name, text("resourceVersion").unwrap_or_default().to_owned()))
}

/// Takes out what nobody needs, before anything is made of it. What has no field in the types of
/// [`model::api`] goes when the object is decoded.
fn trim(kind: Kind, value: &mut Value) {
    let is_injector = identity(value).is_some_and(|(name, _)| name.name.starts_with(INJECTOR.0));
    let Value::Object(object) = value else { return };
    if let Some(Value::Object(metadata)) = object.get_mut("metadata") {
        metadata.remove("managedFields");
        if let Some(Value::Object(annotations)) = metadata.get_mut("annotations") {
            for dropped in DROPPED_ANNOTATIONS {
                annotations.remove(dropped);
            }
        }
    }
    if kind == Kind::ConfigMap {
        for field in ["data", "binaryData"] {
            if let Some(Value::Object(data)) = object.get_mut(field) {
                data.retain(|key, _| {
                    CONFIG_MAP_KEYS.contains(&key.as_str()) || (is_injector && key == INJECTOR.1)
                });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(kind: Kind, value: Value) -> Read {
        let reader = Reader::new(&Resource::of(kind), "v1", "c".into());
        reader.read(value).unwrap()
    }

    #[test]
    fn what_nobody_reads_is_not_kept() {
        let metadata = json!({
            "name": "p", "namespace": "a", "resourceVersion": "7",
            "managedFields": [{"manager": "kubelet"}],
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", "own": "1"},
        });
        let pod = read(
            Kind::Pod,
            json!({"metadata": metadata, "spec": {"nodeName": "n"}}),
        );
        assert_eq!(pod.version, "7");
        let annotations = &pod.object.unwrap().meta().annotations.clone();
        assert_eq!(annotations.keys().collect::<Vec<_>>(), ["own"]);
        let map = read(
            Kind::ConfigMap,
            json!({"metadata": {"name": "m", "namespace": "a"}, "data": {"ca.crt": "c", "game": "x"}}),
        );
        let Some(Object::ConfigMap(map)) = map.object else {
            panic!("no ConfigMap");
        };
        assert_eq!(map.spec.data.keys().collect::<Vec<_>>(), ["ca.crt"]);
        for (name, kept) in [("istio-sidecar-injector-new", 1), ("other", 0)] {
            let metadata = json!({"name": name, "namespace": "istio-system"});
            let data = json!({"values": "{}", "config": "templates"});
            let map = read(Kind::ConfigMap, json!({"metadata": metadata, "data": data}));
            let Some(Object::ConfigMap(map)) = map.object else {
                panic!("no ConfigMap");
            };
            assert_eq!(map.spec.data.len(), kept, "{name}");
        }
    }

    #[test]
    fn what_cannot_be_read_has_a_name_and_a_reason() {
        let metadata = json!({"name": "v", "namespace": "a"});
        let service = json!({"metadata": metadata, "spec": {"hosts": 5}});
        let read = read(Kind::VirtualService, service);
        assert_eq!(read.name, NamespacedName::new("a", "v"));
        assert!(read.object.is_none());
        let finding = read.findings[0].to_string();
        assert!(
            finding.starts_with("c: error: VirtualService a/v: spec.hosts: "),
            "{finding}"
        );
    }

    #[test]
    fn what_was_admitted_is_not_judged_again() {
        let metadata = json!({"name": "v", "namespace": "a"});
        let service = json!({"metadata": metadata, "spec": {}, "extra": 1});
        assert!(read(Kind::VirtualService, service).object.is_some());
    }
}

//! The mesh configuration and the networks out of their ConfigMap (config-model §4.1).

use std::sync::Arc;

use model::{
    ConfigKey, Kind, NamespacedName, Object,
    api::{MeshConfig, MeshNetworks},
};

use super::source::Turn;
use crate::{
    intake::Change,
    mesh::{Setting, mesh_config, mesh_networks},
    report::Finding,
};

/// Which ConfigMap has mesh-wide settings, and which of them are read.
#[derive(Clone, Debug)]
pub struct MeshMap {
    /// Namespace of the ConfigMap.
    pub namespace: Arc<str>,
    /// Revision of this control plane; empty for the default one.
    pub revision: Arc<str>,
    /// Name of a second ConfigMap, whose mesh configuration lies below that of the first.
    pub shared: Option<Arc<str>>,
    /// What the mesh configuration is laid over; `None` when it comes from elsewhere.
    pub mesh: Option<MeshConfig>,
    /// Whether the networks are read; `false` when they come from elsewhere.
    pub networks: bool,
    /// Whether gateways of networks may be host names.
    pub resolve_names: bool,
}

impl MeshMap {
    /// The key of the ConfigMap.
    pub fn key(&self) -> ConfigKey {
        let name = match &*self.revision {
            "" | "default" => "istio".to_owned(),
            revision => format!("istio-{revision}"),
        };
        ConfigKey::new(Kind::ConfigMap, self.namespace.clone(), name)
    }

    /// The key of the ConfigMap that lies below.
    fn shared_key(&self) -> Option<ConfigKey> {
        let name = self.shared.clone()?;
        let key = ConfigKey::new(Kind::ConfigMap, self.namespace.clone(), name);
        (key != self.key()).then_some(key)
    }

    /// Turns changes of the ConfigMaps into changes of the settings; others stay as they are. Settings
    /// that cannot be used are reported, and those in force stay; beside a shared ConfigMap, they are left
    /// out. Without a ConfigMap, and without a key in it, what lies below is in force: in the end, the
    /// defaults.
    pub fn turn(self) -> Turn {
        let (key, shared) = (self.key(), self.shared_key());
        let mut texts = Texts::default();
        Box::new(move |change| {
            let changed = match &change {
                Change::Apply(Object::ConfigMap(map)) => (map.meta.namespaced_name(), Some(map)),
                Change::Delete(gone) if gone.kind == Kind::ConfigMap => (name_of(gone), None),
                _ => return vec![change],
            };
            let text = |name: &str| changed.1.and_then(|map| map.spec.data.get(name).cloned());
            if changed.0 == name_of(&key) {
                texts.mesh = text("mesh");
                let networks = self.networks(&key, text("meshNetworks").as_deref());
                self.mesh(&texts).into_iter().chain(networks).collect()
            } else if shared.as_ref().is_some_and(|key| changed.0 == name_of(key)) {
                texts.shared = text("mesh");
                self.mesh(&texts).into_iter().collect()
            } else {
                vec![change]
            }
        })
    }

    /// The mesh configuration, if it is read here and can be used.
    fn mesh(&self, texts: &Texts) -> Option<Change> {
        let mut layers = vec![(self.key(), &texts.mesh)];
        layers.extend(self.shared_key().map(|key| (key, &texts.shared)));
        let several = layers.len() > 1;
        let mut mesh = self.mesh.clone()?;
        for (key, text) in layers.into_iter().rev() {
            let Some(text) = text else { continue };
            let Setting { value, findings } = mesh_config(&source(&key), text, &mesh);
            tell(&findings);
            match value {
                Some(value) => mesh = value,
                None if several => {}
                None => return None,
            }
        }
        Some(Change::Mesh(Box::new(mesh)))
    }

    /// The networks, if they are read here and can be used.
    fn networks(&self, key: &ConfigKey, text: Option<&str>) -> Option<Change> {
        if !self.networks {
            return None;
        }
        let Some(text) = text else {
            return Some(Change::Networks(MeshNetworks::default()));
        };
        let Setting { value, findings } = mesh_networks(&source(key), text, self.resolve_names);
        tell(&findings);
        value.map(Change::Networks)
    }
}

/// The mesh configuration as the ConfigMaps have it.
#[derive(Default)]
struct Texts {
    mesh: Option<String>,
    shared: Option<String>,
}

fn name_of(key: &ConfigKey) -> NamespacedName {
    NamespacedName {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    }
}

fn source(key: &ConfigKey) -> String {
    format!("ConfigMap {}/{}", key.namespace, key.name)
}

fn tell(findings: &[Finding]) {
    for finding in findings {
        tracing::warn!("{finding}");
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::{reader::Reader, resource::Resource},
        *,
    };

    fn map(name: &str, data: &Value) -> Change {
        let reader = Reader::new(&Resource::of(Kind::ConfigMap), "v1", "c".into());
        let metadata = json!({"name": name, "namespace": "istio-system"});
        let read = reader.read(json!({"metadata": metadata, "data": data}));
        Change::Apply(read.unwrap().object.unwrap())
    }

    fn mesh_map(revision: &str) -> MeshMap {
        MeshMap {
            namespace: "istio-system".into(),
            revision: revision.into(),
            shared: None,
            mesh: Some(MeshConfig::default()),
            networks: true,
            resolve_names: true,
        }
    }

    /// What the changes say of the trust domain and of the number of networks.
    fn said(changes: &[Change]) -> (Option<&str>, Option<usize>) {
        let (mut domain, mut networks) = (None, None);
        for change in changes {
            match change {
                Change::Mesh(mesh) => domain = Some(&*mesh.trust_domain),
                Change::Networks(all) => networks = Some(all.networks.len()),
                other => panic!("{other:?}"),
            }
        }
        (domain, networks)
    }

    #[track_caller]
    fn check(revision: &str, change: Change, expected: (Option<&str>, Option<usize>)) {
        let changes = mesh_map(revision).turn()(change);
        assert_eq!(said(&changes), expected);
    }

    #[test]
    fn the_map_of_the_revision_counts() {
        let ours = json!({"mesh": "trustDomain: td", "meshNetworks": "networks: {n: {}}"});
        check("", map("istio", &ours), (Some("td"), Some(1)));
        check("default", map("istio", &ours), (Some("td"), Some(1)));
        check("canary", map("istio-canary", &ours), (Some("td"), Some(1)));
        let other = mesh_map("canary").turn()(map("istio", &ours));
        assert!(matches!(&other[..], [Change::Apply(_)]));
    }

    #[test]
    fn what_is_missing_has_its_default_and_what_is_wrong_changes_nothing() {
        let defaults = (Some("cluster.local"), Some(0));
        check("", map("istio", &json!({})), defaults);
        check("", Change::Delete(mesh_map("").key()), defaults);
        let wrong = json!({"mesh": "trustDomain: [", "meshNetworks": "networks: {}"});
        check("", map("istio", &wrong), (None, Some(0)));
    }

    #[test]
    fn a_shared_map_lies_below() {
        let shared = MeshMap {
            shared: Some("base".into()),
            ..mesh_map("")
        };
        let (gone, base_gone) = (shared.key(), shared.shared_key().unwrap());
        let mut turn = shared.turn();
        // Trust domain and the port of proxies.
        let mut check = |change: Change, domain: &str, port: i32| {
            let changes = turn(change);
            let mesh = changes.iter().find_map(|change| match change {
                Change::Mesh(mesh) => Some(mesh),
                _ => None,
            });
            let mesh = mesh.expect("there is a mesh configuration in any case");
            assert_eq!((&*mesh.trust_domain, mesh.proxy_http_port), (domain, port));
        };
        let own = json!({"mesh": "trustDomain: own"});
        check(map("istio", &own), "own", 0);
        let both =
            json!({"mesh": "trustDomain: base\nproxyHttpPort: 7", "meshNetworks": "networks: ["});
        check(map("base", &both), "own", 7);
        check(map("istio", &json!({})), "base", 7);
        check(map("istio", &json!({"mesh": "trustDomain: ["})), "base", 7);
        check(map("istio", &own), "own", 7);
        check(map("base", &json!({"mesh": "trustDomain: ["})), "own", 0);
        check(map("base", &both), "own", 7);
        check(Change::Delete(gone), "base", 7);
        check(Change::Delete(base_gone), "cluster.local", 0);
    }
}

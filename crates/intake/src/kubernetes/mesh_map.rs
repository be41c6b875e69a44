//! The mesh configuration and the networks out of their ConfigMap (config-model §4.1).

use std::sync::Arc;

use model::{
    ConfigKey, Kind, Object,
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

    /// Turns changes of the ConfigMap into changes of the settings; others stay as they are. Settings
    /// that cannot be used are reported, and those in force stay. Without the ConfigMap, and without a
    /// key in it, the defaults are in force.
    pub fn turn(self) -> Turn {
        let key = self.key();
        Box::new(move |change| match change {
            Change::Apply(Object::ConfigMap(map))
                if map.meta.name == key.name && map.meta.namespace == key.namespace =>
            {
                let text = |name: &str| map.spec.data.get(name).map(String::as_str);
                self.settings(text("mesh"), text("meshNetworks"))
            }
            Change::Delete(gone) if gone == key => self.settings(None, None),
            other => vec![other],
        })
    }

    fn settings(&self, mesh: Option<&str>, networks: Option<&str>) -> Vec<Change> {
        let key = self.key();
        let source = format!("ConfigMap {}/{}", key.namespace, key.name);
        let mut changes = Vec::new();
        if let Some(base) = &self.mesh {
            let Setting { value, findings } = match mesh {
                Some(text) => mesh_config(&source, text, base),
                None => of_default(base.clone()),
            };
            tell(&findings);
            changes.extend(value.map(|mesh| Change::Mesh(Box::new(mesh))));
        }
        if self.networks {
            let Setting { value, findings } = match networks {
                Some(text) => mesh_networks(&source, text, self.resolve_names),
                None => of_default(MeshNetworks::default()),
            };
            tell(&findings);
            changes.extend(value.map(Change::Networks));
        }
        changes
    }
}

fn of_default<T>(value: T) -> Setting<T> {
    Setting {
        value: Some(value),
        findings: Vec::new(),
    }
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
}

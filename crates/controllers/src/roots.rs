//! The root certificate of the mesh in every namespace, for proxies to trust the control plane by
//! (ConfigMap `istio-ca-root-cert`).

use std::collections::BTreeMap;

use model::{
    api::{common::LabelSelector, kubernetes::Namespace},
    kind::Table,
};
use serde_json::json;

use crate::writer::{Part, Resource, Target, Wanted};

/// The name of the key that holds the certificates.
pub const KEY: &str = "root-cert.pem";
/// The label that tells Istio's ConfigMaps.
const LABEL: (&str, &str) = ("istio.io/config", "true");
/// Namespaces in which no workload of a mesh runs.
const IGNORED: [&str; 4] = [
    "kube-node-lease",
    "kube-public",
    "kube-system",
    "local-path-storage",
];

/// The kind of what is written.
pub const CONFIG_MAP: Resource = Resource {
    group: "",
    version: "v1",
    kind: "ConfigMap",
    plural: "configmaps",
};

/// A ConfigMap as it is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Found {
    /// Its version.
    pub version: String,
    /// What it holds under [`KEY`].
    pub roots: Option<String>,
    /// It has the label.
    pub labelled: bool,
}

impl Found {
    /// Reads a ConfigMap.
    pub fn of(map: &k8s_openapi::api::core::v1::ConfigMap) -> Self {
        let labels = map.metadata.labels.as_ref();
        let label = labels.and_then(|labels| labels.get(LABEL.0));
        Self {
            version: map.metadata.resource_version.clone().unwrap_or_default(),
            roots: map.data.as_ref().and_then(|data| data.get(KEY)).cloned(),
            labelled: label.is_some_and(|value| value == LABEL.1),
        }
    }
}

/// Tells in which namespaces the ConfigMap belongs: those of the mesh that are there to stay.
pub fn belongs<'a>(
    namespaces: &'a Table<Namespace>,
    selectors: &'a [LabelSelector],
) -> impl Iterator<Item = &'a str> {
    namespaces
        .values()
        .filter(|namespace| !namespace.meta.deleting)
        .filter(|namespace| {
            selectors.is_empty() || selectors.iter().any(|s| s.matches(&namespace.meta.labels))
        })
        .map(|namespace| &*namespace.meta.name)
        .filter(|name| !IGNORED.contains(name))
}

/// What is to be written, so that `namespaces` have these roots.
pub fn missing<'a>(
    namespaces: impl IntoIterator<Item = &'a str>,
    found: &BTreeMap<String, Found>,
    name: &str,
    roots: &str,
) -> Vec<Wanted> {
    let wanted = |namespace: &str| Wanted {
        target: target(namespace, name),
        fields: json!({
            "metadata": {"labels": {LABEL.0: LABEL.1}},
            "data": {KEY: roots},
        }),
        seen: found.get(namespace).map(|found| found.version.clone()),
        // Whatever it was: this is what it should be.
        strict: false,
    };
    namespaces
        .into_iter()
        .filter(|namespace| {
            found
                .get(*namespace)
                .is_none_or(|found| !found.labelled || found.roots.as_deref() != Some(roots))
        })
        .map(wanted)
        .collect()
}

/// The ConfigMap of a namespace.
pub fn target(namespace: &str, name: &str) -> Target {
    Target {
        resource: CONFIG_MAP,
        part: Part::Whole,
        namespace: namespace.to_owned(),
        name: name.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::config::{Config, Meta, NamespacedName};

    use super::*;

    fn namespaces(all: &[(&str, &str, bool)]) -> Table<Namespace> {
        let namespace = |(name, team, deleting): &(&str, &str, bool)| {
            let meta = Meta {
                name: (*name).into(),
                labels: [("team".to_owned(), (*team).to_owned())].into(),
                deleting: *deleting,
                ..Meta::default()
            };
            let spec = Namespace::default();
            (
                NamespacedName::new("", *name),
                Arc::new(Config { meta, spec }),
            )
        };
        all.iter().map(namespace).collect()
    }

    fn found(roots: Option<&str>, labelled: bool) -> Found {
        Found {
            version: "7".to_owned(),
            roots: roots.map(str::to_owned),
            labelled,
        }
    }

    #[test]
    fn it_belongs_where_workloads_of_the_mesh_may_be() {
        let all = namespaces(&[
            ("a", "x", false),
            ("b", "y", false),
            ("going", "x", true),
            ("kube-system", "x", false),
        ]);
        let names = |selectors: &[LabelSelector]| {
            belongs(&all, selectors)
                .map(str::to_owned)
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["a", "b"]);
        let team = LabelSelector {
            match_labels: [("team".to_owned(), "x".to_owned())].into(),
            ..LabelSelector::default()
        };
        assert_eq!(names(&[team]), ["a"]);
    }

    #[test]
    fn it_is_written_where_it_is_missing_or_another_one() {
        let known: BTreeMap<String, Found> = [
            ("same", found(Some("root"), true)),
            ("other", found(Some("another root"), true)),
            ("empty", found(None, true)),
            ("foreign", found(Some("root"), false)),
        ]
        .map(|(name, found)| (name.to_owned(), found))
        .into();
        let all = ["same", "other", "empty", "foreign", "none"];
        let wanted = missing(all, &known, "istio-ca-root-cert", "root");
        let seen: Vec<_> = wanted
            .iter()
            .map(|w| (w.target.namespace.as_str(), w.seen.as_deref()))
            .collect();
        let expected = [
            ("other", Some("7")),
            ("empty", Some("7")),
            ("foreign", Some("7")),
            ("none", None),
        ];
        assert_eq!(seen, expected);
        let fields = json!({
            "metadata": {"labels": {"istio.io/config": "true"}},
            "data": {"root-cert.pem": "root"},
        });
        assert_eq!(wanted[0].fields, fields);
    }
}

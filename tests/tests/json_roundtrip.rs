//! Every resource of the corpus survives the way to protobuf and back.

use std::collections::BTreeMap;

use envoy_json::{Unknown, json};
use rayon::prelude::*;
use serde_json::Value;
use tests::corpus;

/// The lists of an expected file, and the type of what is in each.
const LISTS: [(&str, &str); 7] = [
    ("clusters", "envoy.config.cluster.v3.Cluster"),
    (
        "endpoints",
        "envoy.config.endpoint.v3.ClusterLoadAssignment",
    ),
    ("listeners", "envoy.config.listener.v3.Listener"),
    ("routes", "envoy.config.route.v3.RouteConfiguration"),
    (
        "secrets",
        "envoy.extensions.transport_sockets.tls.v3.Secret",
    ),
    ("extensions", "envoy.config.core.v3.TypedExtensionConfig"),
    ("nameTables", "istio.networking.nds.v1.NameTable"),
];

#[test]
fn every_resource_of_the_corpus_round_trips() {
    let root = corpus::root().unwrap();
    let mut files = Vec::new();
    let mut folders = vec![root.join("cases"), root.join("recorded-bases")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path
                .extension()
                .is_some_and(|extension| extension == "json")
            {
                files.push(path);
            }
        }
    }
    // Many files hold the same resources: check each once.
    let resources: BTreeMap<(&str, String), Value> = files
        .par_iter()
        .flat_map_iter(|path| {
            let file: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
            let mut resources = Vec::new();
            for (list, message) in LISTS {
                for resource in file[list].as_array().into_iter().flatten() {
                    resources.push(((message, resource.to_string()), resource.clone()));
                }
            }
            resources
        })
        .collect();
    assert!(resources.len() > 1000, "only {} resources", resources.len());

    let failures: Vec<String> = resources
        .par_iter()
        .filter_map(|((message, text), resource)| {
            let read = match json::from_json(message, resource, Unknown::Refuse) {
                Ok(read) => read,
                Err(error) => return Some(format!("{error}\n  {text:.200}")),
            };
            let bytes = json::encode(&read);
            let written = json::to_json(message, &bytes).unwrap();
            let differences = envoy_json::compare::compare(resource, &written);
            let first = differences.first()?;
            Some(format!("{first}\n  {text:.200}"))
        })
        .collect();
    assert!(
        failures.is_empty(),
        "{} of {} resources differ:\n{}",
        failures.len(),
        resources.len(),
        failures
            .iter()
            .take(20)
            .cloned()
            .collect::<Vec<_>>()
            .join("\n")
    );
}

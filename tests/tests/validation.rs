//! Validation refuses of each case of the corpus exactly what the recording refused, and knows every
//! field that the corpus uses.

#![expect(clippy::unwrap_used, reason = "a test fails by it")]

use std::collections::BTreeSet;
use std::fs;

use intake::{Decoder, Severity};
use model::validation;
use serde_json::Value;
use tests::conformance::case::{self, Case};
use tests::conformance::expected::ObjectId;
use tests::corpus;

/// The objects that a case's `expected/refused.json` lists.
fn recorded(case: &Case) -> BTreeSet<ObjectId> {
    match fs::read_to_string(case.folder().join("expected/refused.json")) {
        Ok(text) => serde_json::from_str(&text).unwrap(),
        Err(_) => BTreeSet::new(),
    }
}

#[test]
fn refuses_what_the_recording_refused() {
    let decoder = Decoder {
        check_patch: Some(generators::admission::check_patch),
        ..Decoder::default()
    };
    let root = corpus::root().unwrap();
    let (mut wrong, mut unknown) = (Vec::new(), Vec::new());
    for case in case::load(&root, None, None).unwrap() {
        let mut refused = BTreeSet::new();
        let mut reasons = Vec::new();
        for (name, text) in case.input().unwrap().files {
            let decoded = decoder.decode(&name, &text);
            refused.extend(decoded.refused.iter().map(|key| ObjectId {
                kind: key.kind.name().to_owned(),
                namespace: key.namespace.to_string(),
                name: key.name.to_string(),
            }));
            for finding in decoded.findings {
                if finding.severity == Severity::Error {
                    reasons.push(format!("  {finding}"));
                } else if finding.reason == "unknown field" {
                    unknown.push(finding.to_string());
                }
            }
        }
        let expected = recorded(&case);
        if refused != expected {
            wrong.push(format!(
                "{}: expected {expected:?}\n{}",
                case.id,
                reasons.join("\n")
            ));
        }
    }
    assert_eq!(unknown, Vec::<String>::new());
    assert!(
        wrong.is_empty(),
        "{} cases differ:\n{}",
        wrong.len(),
        wrong.join("\n")
    );
}

#[test]
fn mesh_configurations_of_the_corpus_are_sound() {
    let root = corpus::root().unwrap();
    for case in case::load(&root, None, None).unwrap() {
        let mesh = model::api::MeshConfig::default()
            .overlay(&case.spec.mesh)
            .unwrap();
        assert_eq!(mesh.unknown, Vec::<String>::new(), "{}", case.id);
        for issue in validation::validate_mesh(&mesh.value) {
            println!("{}: {:?} {issue}", case.id, issue.severity);
        }
        let networks = match &case.spec.networks {
            Value::Null => continue,
            networks => model::api::decode::<model::api::MeshNetworks>(networks).unwrap(),
        };
        assert_eq!(networks.unknown, Vec::<String>::new(), "{}", case.id);
        let issues = validation::validate_networks(&networks.value, true);
        assert_eq!(issues, Vec::new(), "{}", case.id);
    }
}

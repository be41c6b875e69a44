//! Rules of each kind, on objects that break them one by one.

mod networking;
mod policies;
mod routing;

use serde_json::{Value, json};

use super::{Severity, validate_object};
use crate::{Kind, Meta, Object};

/// Validates an object of namespace `app` and lists its findings as `severity path`.
#[track_caller]
fn findings(kind: Kind, annotations: &[(&str, &str)], spec: &Value) -> Vec<String> {
    let raw = json!({"spec": spec});
    let meta = Meta {
        name: "x".into(),
        namespace: "app".into(),
        annotations: annotations
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect(),
        ..Meta::default()
    };
    let (object, unknown) = Object::decode(kind, meta, &raw).unwrap();
    assert_eq!(unknown, Vec::<String>::new());
    validate_object(&object, Some(&raw), None)
        .into_iter()
        .map(|issue| match issue.severity {
            Severity::Error => format!("error {}", issue.path),
            Severity::Warning => format!("warning {}", issue.path),
        })
        .collect()
}

/// Checks that an object has exactly the findings `expected`, in any order.
#[track_caller]
fn check(kind: Kind, spec: &Value, expected: &[&str]) {
    let mut found = findings(kind, &[], spec);
    found.sort();
    let mut expected: Vec<&str> = expected.to_vec();
    expected.sort_unstable();
    assert_eq!(found, expected, "{spec}");
}

#[test]
fn reserved_annotations_are_refused() {
    let spec = json!({"host": "a.b"});
    let with = |annotations: &[(&str, &str)]| findings(Kind::DestinationRule, annotations, &spec);
    assert_eq!(with(&[]), [""; 0]);
    assert_eq!(
        with(&[("internal.istio.io/parents", "x")]),
        ["error metadata.annotations[\"internal.istio.io/parents\"]"]
    );
    assert_eq!(
        with(&[("istio.io/dry-run", "true")]),
        ["error metadata.annotations[\"istio.io/dry-run\"]"]
    );
    let policy = |action: &str, value: &str| {
        let spec = json!({"action": action, "rules": [{}]});
        findings(
            Kind::AuthorizationPolicy,
            &[("istio.io/dry-run", value)],
            &spec,
        )
        .len()
    };
    assert_eq!(policy("DENY", "true"), 0);
    assert_eq!(policy("DENY", "yes"), 1);
    assert_eq!(policy("AUDIT", "true"), 1);
}

#[test]
fn messages_name_the_value_and_what_is_allowed() {
    let raw = json!({"spec": {"host": "a.b", "trafficPolicy": {"outlierDetection": {"minHealthPercent": 101}}}});
    let meta = Meta {
        name: "x".into(),
        namespace: "app".into(),
        ..Meta::default()
    };
    let (object, _) = Object::decode(Kind::DestinationRule, meta, &raw).unwrap();
    let issues = validate_object(&object, Some(&raw), None);
    assert_eq!(
        issues[0].to_string(),
        "spec.trafficPolicy.outlierDetection.minHealthPercent: 101 is not a percentage, allowed are 0 to 100"
    );
}

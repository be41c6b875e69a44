use model::{ConfigKey, Kind};

use super::*;
use crate::Decoder;

fn state(revision: &str, selectors: &str) -> (Store, MeshState) {
    let mut state = MeshState::default();
    let identity = std::sync::Arc::make_mut(&mut state.identity);
    identity.revision = revision.into();
    let mesh = crate::yaml_values(&format!("discoverySelectors: {selectors}")).unwrap();
    state.mesh = std::sync::Arc::new(state.mesh.overlay(&mesh[0]).unwrap().value);
    let mut store = Store::default();
    store.set_selectors(&mut state);
    (store, state)
}

#[track_caller]
fn object(text: &str) -> Object {
    let decoder = Decoder {
        admitted: true,
        ..Decoder::default()
    };
    let mut decoded = decoder.decode("test", text);
    assert!(decoded.findings.is_empty(), "{:?}", decoded.findings);
    decoded.objects.remove(0)
}

fn gateway(labels: &str) -> Object {
    object(&format!(
        "{{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {{name: g, namespace: a, labels: {{{labels}}}}}}}"
    ))
}

fn namespace(labels: &str) -> Object {
    object(&format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: a, labels: {{{labels}}}}}}}"
    ))
}

/// `+` for added, `~` for changed, `-` for deleted.
fn apply(store: &mut Store, state: &mut MeshState, object: &Object) -> Vec<String> {
    let updates = store.apply(state, object.key(), Some(object.clone()));
    updates
        .iter()
        .map(|u| {
            let sign = match (&u.old, &u.new) {
                (None, _) => "+",
                (Some(_), Some(_)) => "~",
                (Some(_), None) => "-",
            };
            format!("{sign}{}", u.key.kind)
        })
        .collect()
}

#[test]
fn objects_of_other_revisions_do_not_count() {
    let (mut store, mut state) = state("canary", "[]");
    let (ours, other) = (
        gateway("istio.io/rev: canary"),
        gateway("istio.io/rev: stable"),
    );
    assert_eq!(apply(&mut store, &mut state, &other), [""; 0]);
    assert_eq!(apply(&mut store, &mut state, &ours), ["+Gateway"]);
    assert_eq!(apply(&mut store, &mut state, &other), ["-Gateway"]);
    assert_eq!(apply(&mut store, &mut state, &gateway("")), ["+Gateway"]);
    let (mut store, mut state) = self::state("", "[]");
    assert_eq!(apply(&mut store, &mut state, &other), ["+Gateway"]);
}

#[test]
fn namespaces_come_and_go() {
    let (mut store, mut state) = state(
        "",
        "[{matchExpressions: [{key: mesh, operator: In, values: [x, w]}]}]",
    );
    assert_eq!(apply(&mut store, &mut state, &gateway("")), [""; 0]);
    assert_eq!(
        apply(&mut store, &mut state, &namespace("mesh: x")),
        ["+Namespace", "+Gateway"]
    );
    assert_eq!(
        apply(&mut store, &mut state, &namespace("mesh: w")),
        ["~Namespace"]
    );
    assert_eq!(
        apply(&mut store, &mut state, &namespace("mesh: q")),
        ["~Namespace", "-Gateway"]
    );
    let key = ConfigKey::new(Kind::Gateway, "a", "g");
    assert!(store.apply(&mut state, key, None).is_empty());
    assert_eq!(
        apply(&mut store, &mut state, &namespace("mesh: x")),
        ["~Namespace"]
    );
}

#[test]
fn invalid_selectors_change_nothing() {
    let (mut store, mut state) = state("", "[{matchLabels: {mesh: x}}]");
    apply(&mut store, &mut state, &gateway(""));
    let mesh = crate::yaml_values(
        "discoverySelectors: [{}, {matchExpressions: [{key: a, operator: Near}]}]",
    )
    .unwrap();
    state.mesh = std::sync::Arc::new(state.mesh.overlay(&mesh[0]).unwrap().value);
    assert!(store.set_selectors(&mut state).is_empty());
    let mesh = crate::yaml_values("discoverySelectors: [{}]").unwrap();
    state.mesh = std::sync::Arc::new(state.mesh.overlay(&mesh[0]).unwrap().value);
    assert_eq!(store.set_selectors(&mut state).len(), 1);
}

#[track_caller]
fn check_matters(old: &str, new: &str, expected: bool) {
    let (old, new) = (object(old), object(new));
    let update = Update {
        key: new.key(),
        old: Some(old),
        new: Some(new),
    };
    assert_eq!(matters(&update), expected);
}

#[test]
fn updates_that_nothing_reads_are_silent() {
    let rule = |metadata: &str, spec: &str| {
        format!(
            "{{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {{name: r, namespace: a{metadata}}}, spec: {{host: {spec}}}}}"
        )
    };
    let plain = rule("", "h");
    check_matters(&plain, &plain, false);
    check_matters(
        &plain,
        &rule(", resourceVersion: '7', labels: {helm: x}", "h"),
        false,
    );
    check_matters(&plain, &rule(", labels: {istio.io/x: x}", "h"), true);
    check_matters(&plain, &rule("", "other"), true);
    check_matters(
        &plain,
        &rule(", creationTimestamp: 2024-01-01T00:00:00Z", "h"),
        true,
    );
    let secret = |labels: &str| {
        format!(
            "{{apiVersion: v1, kind: Secret, metadata: {{name: s, namespace: a, labels: {{{labels}}}}}}}"
        )
    };
    check_matters(&secret(""), &secret("a: b"), true);
}

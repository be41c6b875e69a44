use model::NamespacedName;
use serde_json::{Value, json};

use crate::testing::{self, snapshot};

const ROOT: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: root, namespace: a}
spec:
  hosts: [shop.com]
  gateways: [gw]
  http:
  - {name: r1, match: [{name: m, uri: {prefix: /a}, headers: {x: {exact: "1"}}}], timeout: 5s, delegate: {name: d, namespace: b}}
  - {name: rest, route: [{destination: {host: web}}]}
"#;

const DELEGATE: &str = r"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: d, namespace: b}
spec:
  http:
  - {name: d1, match: [{uri: {prefix: /a/b}}], route: [{destination: {host: svc1}}]}
  - {name: d2, match: [{uri: {exact: /c}}],    route: [{destination: {host: svc2}}]}
  - {timeout: 1s,                              route: [{destination: {host: svc3}}]}
";

#[track_caller]
fn check(yaml: &str, name: &str, expected: Option<&Value>) {
    let context = snapshot(yaml, []);
    let (namespace, name) = name.split_once('/').unwrap();
    let resolved = context
        .virtual_services()
        .get(&NamespacedName::new(namespace, name));
    let spec = resolved.map(|vs| serde_json::to_value(&vs.config.spec).unwrap());
    assert_eq!(spec.as_ref(), expected);
}

#[test]
fn names_expand_in_the_namespace_of_their_object() {
    check(
        r"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: v, namespace: prod}
spec:
  hosts: [reviews, reviews.stage, 10.0.0.9]
  gateways: [mesh, gw, ./gw2, infra/gw3, gw4.infra.svc.cluster.local]
  http: [{route: [{destination: {host: reviews}}, {destination: {host: ratings.stage.svc.cluster.local}}]}]
",
        "prod/v",
        Some(&json!({
            "hosts": ["reviews.prod.svc.cluster.local", "reviews.stage", "10.0.0.9"],
            "gateways": ["mesh", "prod/gw", "prod/gw2", "infra/gw3", "infra/gw4"],
            "http": [{"route": [
                {"destination": {"host": "reviews.prod.svc.cluster.local"}},
                {"destination": {"host": "ratings.stage.svc.cluster.local"}},
            ]}],
        })),
    );
}

#[test]
fn delegates_are_merged_and_never_stand_alone() {
    let yaml = format!("{ROOT}---{DELEGATE}");
    check(
        &yaml,
        "a/root",
        Some(
            &json!({"hosts": ["shop.com"], "gateways": ["a/gw"], "http": [
                {"name": "r1-d1", "timeout": "5s",
                 "match": [{"name": "m", "uri": {"prefix": "/a/b"}, "headers": {"x": {"exact": "1"}}}],
                 "route": [{"destination": {"host": "svc1.b.svc.cluster.local"}}]},
                {"name": "r1", "timeout": "1s",
                 "match": [{"name": "m", "uri": {"prefix": "/a"}, "headers": {"x": {"exact": "1"}}}],
                 "route": [{"destination": {"host": "svc3.b.svc.cluster.local"}}]},
                {"name": "rest", "route": [{"destination": {"host": "web.a.svc.cluster.local"}}]},
            ]}),
        ),
    );
    check(&yaml, "b/d", None);
}

#[test]
fn a_delegate_must_be_there_and_visible_to_the_root() {
    let rest = json!({"hosts": ["shop.com"], "gateways": ["a/gw"], "http": [
        {"name": "rest", "route": [{"destination": {"host": "web.a.svc.cluster.local"}}]},
    ]});
    check(ROOT, "a/root", Some(&rest));
    let hidden = DELEGATE.replace("spec:", "spec:\n  exportTo: [c]");
    check(&format!("{ROOT}---{hidden}"), "a/root", Some(&rest));
}

/// Merges one delegate match into one root match; `None` when they conflict.
#[track_caller]
fn check_match(root: &str, delegate: &str, expected: Option<&Value>) {
    let yaml = format!(
        r"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: root, namespace: a}}
spec: {{hosts: [x.com], http: [{{match: [{root}], delegate: {{name: d}}}}]}}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {{name: d, namespace: a}}
spec: {{http: [{{match: [{delegate}], route: [{{destination: {{host: x.y}}}}]}}]}}
"
    );
    let context = snapshot(&yaml, []);
    let vs = context
        .virtual_services()
        .get(&NamespacedName::new("a", "root"))
        .unwrap();
    let merged = vs
        .config
        .spec
        .http
        .first()
        .map(|r| serde_json::to_value(&r.r#match[0]).unwrap());
    assert_eq!(merged.as_ref(), expected, "{root} {delegate}");
}

#[test]
fn matches_conflict_by_the_table() {
    check_match(
        "{uri: {prefix: /a}}",
        "{uri: {exact: /a/b}}",
        Some(&json!({"uri": {"exact": "/a/b"}})),
    );
    check_match("{uri: {exact: /a}}", "{uri: {prefix: /a}}", None);
    check_match(
        "{uri: {exact: /a}}",
        "{port: 8}",
        Some(&json!({"uri": {"exact": "/a"}, "port": 8})),
    );
    check_match("{uri: {regex: a}}", "{uri: {regex: a}}", None);
    check_match("{ignoreUriCase: true}", "{port: 8}", None);
    check_match("{port: 7}", "{port: 8}", None);
    check_match("{sourceNamespace: ns}", "{port: 8}", None);
    check_match("{sourceLabels: {a: b}}", "{sourceLabels: {a: c}}", None);
    check_match("{headers: {a: {exact: b}}}", "{headers: {a: {}}}", None);
    check_match("{gateways: [g]}", "{gateways: [g, h]}", None);
    check_match(
        "{headers: {a: {exact: b}}}",
        "{headers: {c: {}}}",
        Some(&json!({"headers": {"a": {"exact": "b"}, "c": {}}})),
    );
}

#[test]
fn a_delegate_that_appears_later_is_merged() {
    let before = testing::state(ROOT);
    let mut after = before.clone();
    testing::add(&mut after, DELEGATE);
    let full = crate::PushContext::build(after.clone());
    let next = crate::PushContext::build(before).next(after, &model::PushRequest::default());
    let name = NamespacedName::new("a", "root");
    assert_eq!(
        next.virtual_services().get(&name),
        full.virtual_services().get(&name)
    );
    assert_eq!(
        next.virtual_services()
            .get(&name)
            .unwrap()
            .config
            .spec
            .http
            .len(),
        3
    );
}

use serde_json::{Value, json};

use crate::testing::snapshot;

#[track_caller]
fn check(yaml: &str, client: &str, service: &str, host: &str, expected: &[(&[&str], Value)]) {
    let context = snapshot(yaml, []);
    let found = context.destination_rules().lookup(client, service, host);
    let found: Vec<(Vec<String>, Value)> = found
        .iter()
        .map(|rule| {
            let sources = rule.sources.iter().map(ToString::to_string).collect();
            (sources, serde_json::to_value(&rule.config.spec).unwrap())
        })
        .collect();
    let expected: Vec<(Vec<String>, Value)> = expected
        .iter()
        .map(|(s, v)| (s.iter().map(ToString::to_string).collect(), v.clone()))
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn rules_of_one_host_merge_subsets_but_not_policies() {
    let yaml = r#"
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: first, namespace: a, creationTimestamp: "2024-01-01T00:00:00Z"}
spec: {host: reviews, subsets: [{name: v1, labels: {version: v1}}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: second, namespace: a, creationTimestamp: "2024-01-02T00:00:00Z"}
spec:
  host: reviews.a.svc.cluster.local
  trafficPolicy: {connectionPool: {http: {maxRetries: 7}}}
  subsets: [{name: v1, labels: {version: other}}, {name: v2, labels: {version: v2}}]
"#;
    let merged = json!({
        "host": "reviews.a.svc.cluster.local",
        "trafficPolicy": {"connectionPool": {"http": {"maxRetries": 7}}},
        "subsets": [{"name": "v1", "labels": {"version": "v1"}}, {"name": "v2", "labels": {"version": "v2"}}],
    });
    for client in ["a", "b"] {
        let expected: [(&[&str], Value); 1] = [(&["a/first", "a/second"], merged.clone())];
        check(yaml, client, "a", "reviews.a.svc.cluster.local", &expected);
    }
}

#[test]
fn lookup_takes_the_most_specific_host_before_it_asks_for_the_export() {
    let yaml = r#"
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: exact, namespace: b}
spec: {host: reviews, exportTo: [c]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: wild, namespace: b}
spec: {host: "*.b.svc.cluster.local"}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: all, namespace: istio-system}
spec: {host: "*.local"}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: own, namespace: a}
spec: {host: "*.local", exportTo: ["."]}
"#;
    let context = snapshot(yaml, []);
    let host = "reviews.b.svc.cluster.local";
    for (client, winner) in [
        ("a", "a/own"),
        ("b", "b/wild"),
        ("c", "b/exact"),
        ("d", "istio-system/all"),
        ("istio-system", "istio-system/all"),
    ] {
        let rules = context.destination_rules().lookup(client, "b", host);
        let names: Vec<_> = rules.iter().map(|r| r.sources[0].to_string()).collect();
        assert_eq!(names, [winner], "{client}");
    }
}

#[test]
fn user_policies_lie_over_derived_ones_field_by_field() {
    let yaml = r"
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: derived, namespace: a, annotations: {internal.istio.io/parents: x}}
spec: {host: x.com, trafficPolicy: {tls: {mode: SIMPLE}, connectionPool: {http: {maxRetries: 1}}}}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: user, namespace: a}
spec: {host: x.com, trafficPolicy: {connectionPool: {http: {maxRetries: 7}}}}
";
    let merged = json!({"host": "x.com", "trafficPolicy": {
        "tls": {"mode": "SIMPLE"},
        "connectionPool": {"http": {"maxRetries": 7}},
    }});
    check(
        yaml,
        "a",
        "a",
        "x.com",
        &[(&["a/derived", "a/user"], merged)],
    );
}

#[test]
fn different_audiences_do_not_merge_unless_wider() {
    let rule = |name: &str, export: &str, subset: &str| {
        format!(
            "\napiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
             metadata: {{name: {name}, namespace: a}}\n\
             spec: {{host: x.com, exportTo: [{export}], subsets: [{{name: {subset}}}]}}\n---"
        )
    };
    let subsets = |names: &[&str], export: &[&str]| {
        let subsets: Vec<_> = names.iter().map(|n| json!({"name": n})).collect();
        json!({"host": "x.com", "exportTo": export, "subsets": subsets})
    };
    let disjoint = rule("r1", "b", "s1") + &rule("r2", "c", "s2");
    check(
        &disjoint,
        "b",
        "a",
        "x.com",
        &[(&["a/r1"], subsets(&["s1"], &["b"]))],
    );
    check(
        &disjoint,
        "c",
        "a",
        "x.com",
        &[(&["a/r2"], subsets(&["s2"], &["c"]))],
    );
    // The later, wider rule goes into the narrower entry and is not kept for its wider audience.
    let wider = rule("r1", "b", "s1") + &rule("r2", "b,c", "s2");
    check(
        &wider,
        "b",
        "a",
        "x.com",
        &[(&["a/r1", "a/r2"], subsets(&["s1", "s2"], &["b"]))],
    );
    check(&wider, "c", "a", "x.com", &[]);
}

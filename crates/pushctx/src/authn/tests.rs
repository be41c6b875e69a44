use model::{
    Labels, Resolution,
    api::security::MutualTlsMode::{self, Disable, Permissive, Strict},
};

use crate::{
    Workload,
    testing::{kubernetes, service, snapshot},
};

const POLICIES: &str = r"
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: mesh, namespace: istio-system}, spec: {mtls: {mode: STRICT}}}
---
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: ns, namespace: a}, spec: {mtls: {mode: UNSET}}}
---
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: w, namespace: a}, spec: {selector: {matchLabels: {app: db}}, portLevelMtls: {9000: {mode: DISABLE}, 9001: {mode: UNSET}}}}
---
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: r, namespace: istio-system}, spec: {selector: {matchLabels: {app: db}}, mtls: {mode: DISABLE}}}
";

#[track_caller]
fn check(yaml: &str, app: &str, mode: MutualTlsMode, ports: &[(u16, MutualTlsMode)]) {
    let context = snapshot(yaml, []);
    let labels = Labels::from([("app".into(), app.into())]);
    let workload = Workload {
        namespace: "a",
        labels: &labels,
        is_waypoint: false,
        services: &[],
    };
    let effective = context.peer_authentication(&workload);
    assert_eq!(effective.mode, mode);
    assert_eq!(effective.ports.into_iter().collect::<Vec<_>>(), ports);
}

#[test]
fn policies_of_mesh_namespace_and_workload_are_laid_over_each_other() {
    check(POLICIES, "db", Strict, &[(9000, Disable), (9001, Strict)]);
    check(POLICIES, "web", Strict, &[]);
    check("", "web", Permissive, &[]);
}

#[test]
fn only_the_oldest_policy_of_a_level_counts() {
    let yaml = r#"
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: b, namespace: a, creationTimestamp: "2024-01-01T00:00:00Z"}, spec: {mtls: {mode: STRICT}}}
---
{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: a, namespace: a, creationTimestamp: "2024-01-02T00:00:00Z"}, spec: {mtls: {mode: DISABLE}}}
"#;
    check(yaml, "x", Strict, &[]);
}

#[test]
fn clients_infer_the_mode_of_the_namespace() {
    let in_a = kubernetes("x.a", &[80]);
    let mut external = service("x.com", "a", &[80]);
    external.mesh_external = true;
    let mut headless = kubernetes("h.a", &[80]);
    headless.resolution = Resolution::Passthrough;
    for (yaml, service, passthrough, expected) in [
        (POLICIES, &in_a, false, Some(Strict)),
        (POLICIES, &external, false, None),
        (POLICIES, &headless, false, Some(Disable)),
        (POLICIES, &in_a, true, Some(Disable)),
        ("", &in_a, false, Some(Permissive)),
    ] {
        let context = snapshot(yaml, [service.clone()]);
        let found = context.infer_mtls(service, &service.ports[0], passthrough);
        assert_eq!(found, expected, "{} {passthrough}", service.hostname);
    }
}

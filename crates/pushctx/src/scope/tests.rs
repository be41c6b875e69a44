use std::sync::Arc;

use model::{Labels, ProxyType, Service};

use super::SidecarScope;
use crate::testing::{hosts, kubernetes, service, snapshot};

fn scope(yaml: &str, services: Vec<Service>, namespace: &str) -> Arc<SidecarScope> {
    let context = snapshot(yaml, services);
    context.scope(ProxyType::Sidecar, &namespace.into(), &Labels::new())
}

#[track_caller]
fn check(scope: &SidecarScope, listener: &[&str], virtual_services: &[&str], all: &[&str]) {
    let egress = &scope.egress[0];
    let names: Vec<_> = egress
        .virtual_services
        .iter()
        .map(|vs| vs.config.meta.namespaced_name().to_string())
        .collect();
    assert_eq!(hosts(&egress.services), listener, "listener services");
    assert_eq!(names, virtual_services, "virtual services");
    assert_eq!(hosts(&scope.services), all, "services of the scope");
}

#[test]
fn a_sidecar_imports_hosts_and_where_their_virtual_services_lead() {
    let yaml = r#"
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: a}
spec: {egress: [{hosts: ["./*", "istio-system/*", "~istio-system/internal.istio-system.svc.cluster.local", "*/reviews.b.svc.cluster.local"]}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: v, namespace: b}
spec:
  hosts: [reviews]
  http: [{route: [{destination: {host: reviews-canary, port: {number: 9080}}}]}]
"#;
    let services = vec![
        kubernetes("x.a", &[80]),
        kubernetes("istiod.istio-system", &[80]),
        kubernetes("internal.istio-system", &[80]),
        kubernetes("reviews.b", &[80, 9080]),
        kubernetes("reviews-canary.b", &[80, 9080]),
        kubernetes("other.c", &[80]),
    ];
    let scope = scope(yaml, services, "a");
    check(
        &scope,
        &["istiod.istio-system:80", "reviews.b:80,9080", "x.a:80"],
        &["b/v"],
        &[
            "istiod.istio-system:80",
            "reviews.b:80,9080",
            "x.a:80",
            "reviews-canary.b:9080",
        ],
    );
    let reviews = "reviews.b.svc.cluster.local";
    assert!(scope.egress[0].virtual_service(reviews).is_some());
}

#[test]
fn without_a_sidecar_everything_visible_is_imported() {
    let mut hidden = kubernetes("hidden.b", &[80]);
    hidden.attributes.export_to = model::ExportTo::new(["~"]);
    let mut elsewhere = kubernetes("elsewhere.b", &[80]);
    elsewhere.attributes.export_to = model::ExportTo::new(["."]);
    let mut private = kubernetes("private.a", &[80]);
    private.attributes.export_to = model::ExportTo::new(["."]);
    let services = vec![hidden, elsewhere, private, kubernetes("open.b", &[80])];
    let scope = scope("", services, "a");
    check(
        &scope,
        &["private.a:80", "open.b:80"],
        &[],
        &["private.a:80", "open.b:80"],
    );
}

#[test]
fn of_one_host_in_several_namespaces_the_own_then_the_kubernetes_service_counts() {
    let same = |namespace: &str| service("x.b.svc.cluster.local", namespace, &[80]);
    let entry = |namespace: &str| {
        let mut entry = same(namespace);
        entry.attributes.registry = model::service::Registry::External;
        entry
    };
    let all = || vec![entry("c"), same("b"), entry("a")];
    for (client, expected) in [("a", "a"), ("d", "b"), ("c", "c")] {
        let scope = scope("", all(), client);
        let namespaces: Vec<_> = scope.egress[0]
            .services
            .iter()
            .map(|s| &*s.attributes.namespace)
            .collect();
        assert_eq!(namespaces, [expected], "{client}");
    }
}

#[test]
fn a_listener_with_a_port_narrows_its_services() {
    let yaml = r#"
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: a}
spec:
  inboundConnectionPool: {tcp: {maxConnections: 5}}
  ingress:
  - {port: {number: 9000, protocol: HTTP, name: http}, connectionPool: {tcp: {maxConnections: 7}}}
  egress:
  - {port: {number: 9080, protocol: HTTP, name: http}, hosts: ["*/*"]}
  - {hosts: ["b/x.b.svc.cluster.local"]}
"#;
    let services = vec![kubernetes("x.b", &[80, 9080]), kubernetes("y.b", &[80])];
    let scope = scope(yaml, services, "a");
    assert_eq!(hosts(&scope.egress[0].services), ["x.b:9080"]);
    assert_eq!(hosts(&scope.egress[1].services), ["x.b:80,9080"]);
    // The narrowed one came first; the other brings the ports that are missing.
    assert_eq!(hosts(&scope.services), ["x.b:9080,80"]);
    let found = |port| hosts(&scope.egress_listener(port, "").unwrap().services);
    assert_eq!(found(9080), ["x.b:9080"]);
    assert_eq!(found(80), ["x.b:80,9080"]);
    let pool = |port| {
        scope
            .inbound_connection_pool(port)
            .unwrap()
            .tcp
            .as_ref()
            .unwrap()
            .max_connections
    };
    assert_eq!((pool(9000), pool(1)), (7, 5));
}

#[test]
fn the_sidecar_of_the_root_namespace_is_evaluated_in_the_namespace_of_the_proxy() {
    let yaml = r#"
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: istio-system}
spec: {egress: [{hosts: ["./*"]}], outboundTrafficPolicy: {}}
---
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: selecting, namespace: istio-system}
spec: {workloadSelector: {labels: {app: x}}, egress: [{hosts: ["*/*"]}]}
"#;
    let services = vec![kubernetes("x.a", &[80]), kubernetes("y.b", &[80])];
    let scope = scope(yaml, services, "a");
    assert_eq!(hosts(&scope.services), ["x.a:80"]);
    let mode = scope.outbound_policy.mode;
    assert_eq!(mode, model::api::sidecar::OutboundTrafficMode::RegistryOnly);
}

#[test]
fn external_names_are_aliases_of_the_end_of_their_chain() {
    let alias = |name: &str, target: &str| {
        let mut alias = kubernetes(name, &[80]);
        alias.resolution = model::Resolution::Alias;
        alias.attributes.external_name = format!("{target}.svc.cluster.local").into();
        alias
    };
    let services = vec![
        alias("first.a", "second.a"),
        alias("second.a", "end.b"),
        alias("loop.a", "pool.a"),
        alias("pool.a", "loop.a"),
        kubernetes("end.b", &[80]),
    ];
    let context = snapshot("", services);
    let end = context
        .services()
        .get("end.b.svc.cluster.local", "b")
        .unwrap();
    let aliases: Vec<_> = end
        .attributes
        .aliases
        .iter()
        .map(|key| &*key.hostname)
        .collect();
    assert_eq!(
        aliases,
        ["first.a.svc.cluster.local", "second.a.svc.cluster.local"]
    );
}

use std::sync::Arc;

use serde_json::{Value, json};

use crate::{
    ClassKey, PushContext,
    testing::{kubernetes, sidecar, snapshot},
};

const PODS: &str = r"
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z}}
---
apiVersion: v1
kind: Node
metadata: {name: n2, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z}}
---
apiVersion: v1
kind: Pod
metadata: {name: w-1, namespace: a, labels: {app: w, pod-template-hash: h}}
spec: {nodeName: n1, containers: [{name: c, ports: [{name: web, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Pod
metadata: {name: w-2, namespace: a, labels: {app: w, pod-template-hash: h}}
spec: {nodeName: n2, containers: [{name: c, ports: [{name: web, containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: w, namespace: a}
spec:
  selector: {app: w}
  ports:
  - {name: http, port: 80, targetPort: web}
  - {name: again, port: 81, targetPort: 8080}
  - {name: missing, port: 82, targetPort: nope}
";

fn context(yaml: &str) -> PushContext {
    snapshot(yaml, [kubernetes("w.a", &[80, 81, 82])])
}

fn classify(context: &PushContext, pod: &str, ip: &str, node: &str) -> Arc<ClassKey> {
    let metadata = json!({
        "NODE_NAME": node, "INSTANCE_IPS": ip, "NAME": pod,
        "LABELS": {"app": "w", "pod-template-hash": "h"},
        "ANNOTATIONS": {"cni.projectcalico.org/podIP": ip, "prometheus.io/scrape": "true"},
    });
    context.classify(&sidecar(&format!("{pod}.a"), ip, metadata))
}

#[test]
fn the_locality_of_a_pod_is_that_of_its_label_or_its_node() {
    let check = |labels: &str, expected: &str| {
        let pods = PODS.replacen(
            "pod-template-hash: h",
            &format!("pod-template-hash: h{labels}"),
            1,
        );
        let context = context(&pods);
        let class = context.resolve(&classify(&context, "w-1", "10.0.0.1", "n1"));
        assert_eq!(class.locality.to_string(), expected, "{labels}");
    };
    check("", "r/z");
    check(", istio-locality: us.east", "us/east");
    check(
        ", topology.istio.io/locality: eu/w/1, istio-locality: us",
        "eu/w/1",
    );
    check(
        ", topology.istio.io/locality: '', istio-locality: us",
        "r/z",
    );
}

#[test]
fn replicas_share_one_class() {
    let context = context(PODS);
    let one = classify(&context, "w-1", "10.0.0.1", "n1");
    let two = classify(&context, "w-2", "10.0.0.2", "n2");
    assert!(Arc::ptr_eq(&one, &two), "{one:#?} {two:#?}");
    let class = context.resolve(&one);
    assert!(Arc::ptr_eq(&class, &context.resolve(&two)));
    let targets: Vec<_> = class
        .targets
        .iter()
        .map(|t| (t.port.port, t.target_port))
        .collect();
    assert_eq!(targets, [(80, 8080)]);
    assert_eq!(class.locality.to_string(), "r/z");
    assert_eq!(
        class
            .labels
            .get("topology.kubernetes.io/zone")
            .map(String::as_str),
        Some("z")
    );
}

#[track_caller]
fn check_apart(yaml: &str) {
    let context = context(&format!("{PODS}---{yaml}"));
    let one = classify(&context, "w-1", "10.0.0.1", "n1");
    let two = classify(&context, "w-2", "10.0.0.2", "n2");
    assert_ne!(one.fingerprint, two.fingerprint);
}

#[test]
fn replicas_are_told_apart_where_something_asks_for_it() {
    check_apart(
        r"
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: d, namespace: a}
spec: {host: x, trafficPolicy: {loadBalancer: {localityLbSetting: {failoverPriority: [kubernetes.io/hostname]}}}}
",
    );
    check_apart(
        r"
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: f, namespace: a}
spec:
  configPatches:
  - {applyTo: CLUSTER, match: {proxy: {metadata: {NAME: w-1}}}, patch: {operation: REMOVE}}
",
    );
}

#[test]
fn a_node_local_service_tells_nodes_apart() {
    let mut local = kubernetes("l.b", &[80]);
    local.attributes.node_local = true;
    let context = snapshot(PODS, [kubernetes("w.a", &[80]), local]);
    let one = classify(&context, "w-1", "10.0.0.1", "n1");
    let two = classify(&context, "w-2", "10.0.0.2", "n2");
    assert_ne!(one, two);
    assert_eq!(one.proxy.metadata.node_name, "n1");
}

#[track_caller]
fn check_targets(metadata: Value, expected: &[(u16, u16)]) {
    let context = context(&PODS.replace("name: w-", "name: x-"));
    let proxy = sidecar("w-1.a", "10.0.0.1", metadata);
    let targets: Vec<_> = context
        .service_targets(&proxy)
        .iter()
        .map(|t| (t.port.port, t.target_port))
        .collect();
    assert_eq!(targets, expected);
}

#[test]
fn before_its_pod_is_known_a_proxy_is_believed() {
    let ports = |ports: &str| json!({"LABELS": {"app": "w"}, "POD_PORTS": ports});
    check_targets(json!({"LABELS": {"app": "w"}}), &[(80, 0), (81, 8080)]);
    check_targets(
        ports(r#"[{"name":"web","containerPort":8080,"protocol":"TCP"}]"#),
        &[],
    );
    check_targets(
        ports(
            r#"[{"name":"web","containerPort":8080,"protocol":"TCP"},{"name":"nope","containerPort":9,"protocol":"TCP"}]"#,
        ),
        &[(80, 8080), (82, 9)],
    );
    check_targets(json!({}), &[]);
}

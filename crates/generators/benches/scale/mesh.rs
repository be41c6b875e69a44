//! Synthetic meshes. They have the shape of those that the Go istiod was measured on.

use std::fmt::Write as _;

use intake::{Decoder, Severity};
use model::Object;
use serde_json::{Value, json};

/// Reads the objects that `text` holds.
pub(crate) fn decode(text: &str) -> Vec<Object> {
    let decoded = Decoder::default().decode("mesh", text);
    let mut findings = decoded.findings.iter();
    let mistake = findings.find(|finding| finding.severity == Severity::Error);
    assert!(mistake.is_none(), "the mesh has mistakes: {mistake:?}");
    decoded.objects
}

/// `count` ServiceEntries, each with one WorkloadEntry that it selects.
pub(crate) fn services(count: usize) -> String {
    let mut text = String::new();
    for n in 0..count {
        write_object(&mut text, &service_entry(n, 8080));
        write_object(&mut text, &workload_entry(n, "v1"));
    }
    text
}

/// The ServiceEntry of one service.
pub(crate) fn service_entry(n: usize, port: usize) -> Value {
    let spec = json!({
        "hosts": [host(n)],
        "location": "MESH_INTERNAL",
        "resolution": "STATIC",
        "addresses": [address(240, n + 1)],
        "ports": [{"number": port, "name": "http", "protocol": "HTTP"}],
        "workloadSelector": {"labels": {"app": format!("svc-{n}")}},
    });
    object(
        "networking.istio.io/v1",
        "ServiceEntry",
        &namespace(n),
        &format!("svc-{n}"),
        &spec,
    )
}

/// The WorkloadEntry of one service.
pub(crate) fn workload_entry(n: usize, version: &str) -> Value {
    let spec = json!({
        "address": address(10, n + 256),
        "labels": {"app": format!("svc-{n}"), "version": version},
        "serviceAccount": format!("svc-{n}"),
        "locality": format!("region1/zone{}", n % 3),
        "ports": {"http": 8080},
    });
    object(
        "networking.istio.io/v1",
        "WorkloadEntry",
        &namespace(n),
        &format!("svc-{n}-0"),
        &spec,
    )
}

/// `count` EnvoyFilters, each for the cluster of one of `services`.
pub(crate) fn filters(count: usize, services: impl Fn(usize) -> String) -> String {
    let mut text = String::new();
    for n in 0..count {
        let spec = json!({"configPatches": [{
            "applyTo": "CLUSTER",
            "match": {"context": "SIDECAR_OUTBOUND", "cluster": {"service": services(n), "portNumber": 8080}},
            "patch": {"operation": "MERGE", "value": {"connect_timeout": format!("{}s", 1 + n % 9)}},
        }]});
        let name = format!("filter-{n}");
        let filter = object(
            "networking.istio.io/v1alpha3",
            "EnvoyFilter",
            "istio-system",
            &name,
            &spec,
        );
        write_object(&mut text, &filter);
    }
    text
}

/// `count` VirtualServices, one for each of the first services.
pub(crate) fn routes(count: usize) -> String {
    let mut text = String::new();
    for n in 0..count {
        write_object(&mut text, &virtual_service(n, "2s"));
    }
    text
}

/// The VirtualService of one service.
pub(crate) fn virtual_service(n: usize, timeout: &str) -> Value {
    let route = json!([{"destination": {"host": host(n)}}]);
    let spec = json!({"hosts": [host(n)], "http": [
        {"match": [{"headers": {"x-canary": {"exact": "true"}}}], "timeout": timeout, "route": route},
        {"route": route, "retries": {"attempts": 3, "retryOn": "5xx"}},
    ]});
    object(
        "networking.istio.io/v1",
        "VirtualService",
        &namespace(n),
        &format!("svc-{n}"),
        &spec,
    )
}

/// `count` Kubernetes Services of two ports with `pods` ready endpoints each.
pub(crate) fn kubernetes(count: usize, pods: usize) -> String {
    let mut text = String::new();
    for n in 0..20 {
        let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": format!("ns-{n}")}});
        write_object(&mut text, &namespace);
    }
    for n in 0..count {
        let (namespace, name) = (format!("ns-{}", n % 20), format!("svc-{n}"));
        let spec = json!({"clusterIP": address(10, 0x60_0000 + n), "selector": {"app": name}, "ports": [
            {"name": "http", "port": 80, "targetPort": 8080},
            {"name": "tcp-data", "port": 9000, "targetPort": 9000},
        ]});
        write_object(
            &mut text,
            &object("v1", "Service", &namespace, &name, &spec),
        );
        let mut endpoints = Vec::new();
        for p in 0..pods {
            let (address, pod) = (address(10, 0x10_0000 + n * pods + p), format!("{name}-{p}"));
            let node = format!("node-{}", p % 50);
            let spec = json!({"serviceAccountName": name, "nodeName": node, "containers": [{"name": "app"}]});
            let mut object = object("v1", "Pod", &namespace, &pod, &spec);
            object["metadata"]["labels"] = json!({
                "app": name,
                "version": format!("v{}", 1 + p % 2),
                "security.istio.io/tlsMode": "istio",
            });
            object["status"] = json!({
                "phase": "Running",
                "podIP": address,
                "podIPs": [{"ip": address}],
                "conditions": [{"type": "Ready", "status": "True"}],
            });
            write_object(&mut text, &object);
            endpoints.push(json!({
                "addresses": [address],
                "conditions": {"ready": true},
                "nodeName": node,
                "zone": format!("zone{}", p % 3),
                "targetRef": {"kind": "Pod", "name": pod, "namespace": namespace},
            }));
        }
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": format!("{name}-1"),
                "namespace": namespace,
                "creationTimestamp": CREATED,
                "labels": {"kubernetes.io/service-name": name},
            },
            "addressType": "IPv4",
            "endpoints": endpoints,
            "ports": [
                {"name": "http", "port": 8080, "protocol": "TCP"},
                {"name": "tcp-data", "port": 9000, "protocol": "TCP"},
            ],
        });
        write_object(&mut text, &slice);
    }
    text
}

/// Host name of a service that [`services`] makes.
pub(crate) fn host(n: usize) -> String {
    format!("svc-{n}.mesh.example")
}

const CREATED: &str = "2024-01-01T00:00:00Z";

fn namespace(n: usize) -> String {
    format!("ns-{}", n % 100)
}

fn address(prefix: u8, n: usize) -> String {
    format!("{prefix}.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255)
}

pub(crate) fn object(api: &str, kind: &str, namespace: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": api,
        "kind": kind,
        "metadata": {"name": name, "namespace": namespace, "creationTimestamp": CREATED},
        "spec": spec,
    })
}

pub(crate) fn write_object(text: &mut String, object: &Value) {
    write!(text, "---\n{object}\n").expect("strings take everything");
}

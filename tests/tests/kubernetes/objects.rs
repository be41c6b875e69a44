//! Objects of small clusters, in namespace `a`.

use serde_json::{Value, json};

/// The ConfigMap of a mesh whose ports are these: outbound, inbound, HTTP proxy.
pub(crate) fn mesh_map(name: &str, [outbound, inbound, proxy]: [u16; 3]) -> Value {
    let mesh = format!(
        "proxyListenPort: {outbound}\nproxyInboundListenPort: {inbound}\nproxyHttpPort: {proxy}\n"
    );
    json!({
        "apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": "istio-system"},
        "data": {"mesh": mesh},
    })
}

/// A service whose selector is its name.
pub(crate) fn service(name: &str, port: u16) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "a"},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": port, "targetPort": 8080}]},
    })
}

/// A ready pod.
pub(crate) fn pod(name: &str, app: &str, address: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": "a", "labels": {"app": app}},
        "spec": {"containers": [{"name": "main", "image": "main"}]},
        "status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// A slice of a service with ready endpoints: pod and address.
pub(crate) fn slice(name: &str, service: &str, endpoints: &[(&str, &str)]) -> Value {
    let endpoints: Vec<Value> = endpoints
        .iter()
        .map(|(pod, address)| {
            json!({
                "addresses": [address],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "name": pod, "namespace": "a"},
            })
        })
        .collect();
    json!({
        "apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
        "metadata": {"name": name, "namespace": "a", "labels": {"kubernetes.io/service-name": service}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
        "endpoints": endpoints,
    })
}

/// An entry with two workloads of this machine, which has no pods, and a route to one of them. Slices
/// must not have addresses of loopback.
pub(crate) fn routed(ports: [(&str, u16); 2], to: &str) -> Vec<Value> {
    let endpoints: Vec<Value> = ports
        .iter()
        .map(|(version, port)| {
            json!({"address": "127.0.0.1", "ports": {"http": port}, "labels": {"version": version}})
        })
        .collect();
    let subsets: Vec<Value> = ports
        .iter()
        .map(|(version, _)| json!({"name": version, "labels": {"version": version}}))
        .collect();
    let object = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": kind,
            "metadata": {"name": "shop", "namespace": "a"},
            "spec": spec,
        })
    };
    vec![
        object(
            "ServiceEntry",
            json!({
                "hosts": ["shop.example"], "resolution": "STATIC", "location": "MESH_INTERNAL",
                "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
                "endpoints": endpoints,
            }),
        ),
        object(
            "DestinationRule",
            json!({"host": "shop.example", "subsets": subsets}),
        ),
        object(
            "VirtualService",
            json!({
                "hosts": ["shop.example"],
                "http": [{"route": [{"destination": {"host": "shop.example", "subset": to}}]}],
            }),
        ),
    ]
}

/// A rule of a kind that needs no other object.
pub(crate) fn rule(name: &str, revision: &str) -> Value {
    let labels = if revision.is_empty() {
        json!({})
    } else {
        json!({"istio.io/rev": revision})
    };
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": "VirtualService",
        "metadata": {"name": name, "namespace": "a", "labels": labels},
        "spec": {"hosts": [format!("{name}.example")], "http": [{"redirect": {"uri": "/"}}]},
    })
}

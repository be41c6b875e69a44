//! The other kinds of `networking.istio.io`, and `extensions.istio.io`.

use serde_json::{Value, json};

use super::check;
use crate::Kind;

#[test]
fn gateway() {
    let server = |server: Value, expected: &[&str]| {
        let mut all =
            json!({"port": {"number": 80, "name": "http", "protocol": "HTTP"}, "hosts": ["*"]});
        for (key, value) in server.as_object().unwrap() {
            all[key] = value.clone();
        }
        check(Kind::Gateway, &json!({"servers": [all]}), expected);
    };
    server(json!({}), &[]);
    server(json!({"tls": {"httpsRedirect": true}}), &[]);
    server(
        json!({"tls": {"mode": "SIMPLE", "credentialName": "c"}}),
        &["error spec.servers[0].tls"],
    );
    for host in ["short", "*foo.com", "a/b/c", "A b/x.y"] {
        server(
            json!({"hosts": [host]}),
            &["error spec.servers[0].hosts[0]"],
        );
    }
    server(
        json!({"hosts": ["./*.a.b", "*/x.y", "ns/*", "1.2.3.4"]}),
        &[],
    );
    server(
        json!({"bind": "unix:///x"}),
        &["error spec.servers[0].bind"],
    );
    server(
        json!({"port": {"number": 0, "protocol": "X", "targetPort": 1}}),
        &[
            "error spec.servers[0].port.number",
            "error spec.servers[0].port.protocol",
            "error spec.servers[0].port.targetPort",
            "error spec.servers[0].port.name",
        ],
    );
    let tls = |tls: Value, expected: &[&str]| {
        server(
            json!({"port": {"number": 443, "name": "https", "protocol": "HTTPS"}, "tls": tls}),
            expected,
        );
    };
    tls(json!(null), &["error spec.servers[0].tls"]);
    tls(json!({"mode": "SIMPLE", "credentialName": "c"}), &[]);
    tls(
        json!({"mode": "SIMPLE"}),
        &[
            "error spec.servers[0].tls.serverCertificate",
            "error spec.servers[0].tls.privateKey",
        ],
    );
    tls(
        json!({"mode": "MUTUAL", "serverCertificate": "c", "privateKey": "k"}),
        &["error spec.servers[0].tls.caCertificates"],
    );
    tls(
        json!({"mode": "SIMPLE", "credentialName": "c", "credentialNames": ["d"]}),
        &["error spec.servers[0].tls"],
    );
    tls(
        json!({"mode": "ISTIO_MUTUAL", "credentialName": "c"}),
        &["error spec.servers[0].tls.credentialName"],
    );
    tls(
        json!({"mode": "SIMPLE", "credentialName": "c", "caCrl": "f"}),
        &["error spec.servers[0].tls.caCrl"],
    );
    tls(
        json!({"credentialName": "c"}),
        &["warning spec.servers[0].tls.credentialName"],
    );
    check(Kind::Gateway, &json!({}), &["error spec.servers"]);
}

#[test]
fn service_entry() {
    let entry = |spec: Value, expected: &[&str]| {
        let mut all = json!({"hosts": ["a.b"], "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}], "resolution": "DNS"});
        for (key, value) in spec.as_object().unwrap() {
            all[key] = value.clone();
        }
        check(Kind::ServiceEntry, &all, expected);
    };
    entry(json!({}), &[]);
    entry(json!({"hosts": []}), &["error spec.hosts"]);
    entry(
        json!({"hosts": ["*"]}),
        &["error spec.hosts[0]", "error spec.hosts[0]"],
    );
    entry(json!({"hosts": ["*.a.b"]}), &["error spec.hosts[0]"]);
    entry(json!({"hosts": ["*.a.b"], "resolution": "NONE"}), &[]);
    entry(
        json!({"addresses": ["10.0.0.0/8"]}),
        &["error spec.addresses[0]"],
    );
    entry(
        json!({"resolution": "NONE", "endpoints": [{"address": "1.2.3.4"}]}),
        &["error spec.endpoints"],
    );
    entry(
        json!({"resolution": "STATIC", "endpoints": [{"address": "x.y", "ports": {"other": 1}}]}),
        &[
            "error spec.endpoints[0].address",
            "error spec.endpoints[0].ports.other",
        ],
    );
    entry(
        json!({"resolution": "STATIC", "endpoints": [{"address": "unix:///a"}]}),
        &[],
    );
    entry(
        json!({"resolution": "STATIC", "endpoints": [{"network": "n"}]}),
        &[],
    );
    entry(
        json!({"resolution": "DNS_ROUND_ROBIN", "endpoints": [{"address": "a.b"}, {"address": "c.d"}]}),
        &["error spec.endpoints"],
    );
    entry(
        json!({"resolution": "DYNAMIC_DNS"}),
        &["error spec.hosts[0]"],
    );
    entry(
        json!({"ports": [{"number": 80, "name": "a", "protocol": "TCP"}, {"number": 80, "name": "a"}]}),
        &["error spec.ports[1].name", "error spec.ports[1].number"],
    );
    entry(
        json!({"hosts": ["a.b", "c.d"], "ports": [{"number": 80, "name": "a", "protocol": "TCP"}]}),
        &["error spec.hosts"],
    );
    entry(
        json!({"workloadSelector": {"labels": {}}, "endpoints": [{"address": "a.b"}]}),
        &[
            "warning spec.workloadSelector.labels",
            "error spec.endpoints",
        ],
    );
    entry(json!({"exportTo": ["~"]}), &[]);
}

#[test]
fn workloads() {
    check(
        Kind::WorkloadEntry,
        &json!({"address": "1.2.3.4", "ports": {"http": 80}}),
        &[],
    );
    check(Kind::WorkloadEntry, &json!({}), &["error spec.address"]);
    check(
        Kind::WorkloadEntry,
        &json!({"network": "n"}),
        &["warning spec.address"],
    );
    check(
        Kind::WorkloadEntry,
        &json!({"address": "unix://a", "ports": {"x y": 0}}),
        &[
            "error spec.address",
            "error spec.ports",
            "error spec.ports[\"x y\"]",
            "error spec.ports[\"x y\"]",
        ],
    );
    check(Kind::WorkloadGroup, &json!({}), &["error spec.template"]);
    check(
        Kind::WorkloadGroup,
        &json!({"template": {}, "probe": {"grpc": {"port": 1}}}),
        &["error spec.probe"],
    );
}

#[test]
fn sidecar() {
    let sidecar = |spec: Value, expected: &[&str]| check(Kind::Sidecar, &spec, expected);
    sidecar(json!({}), &["error spec"]);
    sidecar(
        json!({"egress": [{"hosts": ["./*", "~/*", "*/a.b", "ns/*.a.b", "~ns/*"]}]}),
        &[],
    );
    for host in ["a.b", "ns/short", "a b/*", "/*"] {
        sidecar(
            json!({"egress": [{"hosts": [host]}]}),
            &["error spec.egress[0].hosts[0]"],
        );
    }
    sidecar(
        json!({"egress": [{"hosts": ["./*"]}, {"port": {"number": 80, "protocol": "HTTP"}, "hosts": ["./*"]}]}),
        &["error spec.egress[0]"],
    );
    sidecar(
        json!({"outboundTrafficPolicy": {"mode": "ALLOW_ANY_DYNAMIC_DNS"}}),
        &["error spec.outboundTrafficPolicy.mode"],
    );
    sidecar(
        json!({"outboundTrafficPolicy": {"egressProxy": {"host": "a.b"}}}),
        &[
            "error spec.outboundTrafficPolicy.egressProxy",
            "error spec.outboundTrafficPolicy.egressProxy.port",
        ],
    );
    let at = |bind: &str, port: u32| json!({"bind": bind, "port": {"number": port, "protocol": "HTTP"}, "hosts": ["./*"]});
    sidecar(
        json!({"egress": [at("unix:///a", 0), at("unix:///b", 0), at("1.1.1.1", 80), at("1.1.1.1", 81)]}),
        &[],
    );
    sidecar(
        json!({"egress": [at("unix:///a", 0), at("unix:///a", 0)]}),
        &["error spec.egress[1].port"],
    );
    sidecar(
        json!({"egress": [at("1.1.1.1", 80), at("1.1.1.2", 80)]}),
        &["error spec.egress[1].port"],
    );
    sidecar(
        json!({"egress": [at("a.b", 80), at("unix:///a", 81)]}),
        &["error spec.egress[0].bind", "error spec.egress[1].bind"],
    );
    let ingress = |listener: Value, expected: &[&str]| {
        let mut all = json!({"port": {"number": 80, "protocol": "HTTP", "name": "http"}});
        for (key, value) in listener.as_object().unwrap() {
            all[key] = value.clone();
        }
        sidecar(json!({"ingress": [all]}), expected);
    };
    for endpoint in [
        "",
        "127.0.0.1:80",
        "0.0.0.0:80",
        "[::1]:80",
        "[::]:80",
        "unix:///a",
        ":80",
    ] {
        ingress(json!({"defaultEndpoint": endpoint}), &[]);
    }
    for endpoint in ["1.2.3.4:80", "127.0.0.1", "127.0.0.1:0", "unix://a"] {
        ingress(
            json!({"defaultEndpoint": endpoint}),
            &["error spec.ingress[0].defaultEndpoint"],
        );
    }
    ingress(
        json!({"tls": {"mode": "SIMPLE", "credentialName": "c"}}),
        &[
            "error spec.ingress[0].tls.credentialName",
            "error spec.ingress[0].tls",
        ],
    );
}

#[test]
fn envoy_filter() {
    let patch = |patch: Value, expected: &[&str]| {
        let mut expected = expected.to_vec();
        expected.push("warning spec");
        check(
            Kind::EnvoyFilter,
            &json!({"configPatches": [patch]}),
            &expected,
        );
    };
    let add = json!({"operation": "ADD", "value": {}});
    patch(json!({"applyTo": "CLUSTER", "patch": add}), &[]);
    patch(json!(null), &["error spec.configPatches[0].applyTo"]);
    patch(
        json!({"applyTo": "CLUSTER"}),
        &["error spec.configPatches[0].patch"],
    );
    patch(
        json!({"applyTo": "CLUSTER", "patch": {"operation": "ADD"}}),
        &["error spec.configPatches[0].patch.value"],
    );
    patch(
        json!({"applyTo": "CLUSTER", "patch": {"operation": "REMOVE"}}),
        &[],
    );
    patch(
        json!({"applyTo": "CLUSTER", "match": {"listener": {}}, "patch": add}),
        &["error spec.configPatches[0].match"],
    );
    patch(json!({"match": {"context": "WAYPOINT"}}), &[]);
    patch(
        json!({"applyTo": "CLUSTER", "match": {"proxy": {"proxyVersion": "("}}, "patch": add}),
        &["error spec.configPatches[0].match.proxy.proxyVersion"],
    );
    let filter = |filter: Value| json!({"listener": {"filterChain": {"filter": filter}}});
    let path = "error spec.configPatches[0].match.listener.filterChain.filter";
    patch(
        json!({"applyTo": "HTTP_FILTER", "match": filter(json!({})), "patch": add}),
        &[&format!("{path}.name")],
    );
    patch(
        json!({"applyTo": "HTTP_FILTER", "match": filter(json!({"name": "x", "subFilter": {"name": "y"}})), "patch": add}),
        &[&format!("{path}.subFilter")],
    );
}

#[test]
fn extensions() {
    let wasm = |spec: Value, expected: &[&str]| check(Kind::WasmPlugin, &spec, expected);
    for url in ["oci://a/b:c", "a/b:c", "file:///a", "10.0.0.1:5000/img"] {
        wasm(json!({"url": url}), &[]);
    }
    for url in ["", "ftp://a", "localhost:5000/img"] {
        wasm(json!({"url": url}), &["error spec.url"]);
    }
    wasm(
        json!({"url": "a", "sha256": "AB", "match": [{"ports": [{"number": 0}]}], "vmConfig": {"env": [
            {"name": "A"}, {"name": "A", "valueFrom": "HOST", "value": "x"},
        ]}}),
        &[
            "error spec.sha256",
            "error spec.match[0].ports[0].number",
            "error spec.vmConfig.env[1].name",
            "error spec.vmConfig.env[1].value",
        ],
    );
    check(Kind::TrafficExtension, &json!({}), &["error spec"]);
    check(
        Kind::TrafficExtension,
        &json!({"lua": {}}),
        &["error spec.lua.inlineCode"],
    );
    check(
        Kind::ProxyConfig,
        &json!({"concurrency": -1}),
        &["error spec.concurrency"],
    );
}

//! Kinds of `networking.istio.io` and `extensions.istio.io`.

use serde_json::{Value, json};

use super::{check, findings};
use crate::Kind;

/// Checks a virtual service with one HTTP route to `a`, to which `route` is added.
#[track_caller]
fn check_http(route: &Value, expected: &[&str]) {
    let mut all = json!({"route": [{"destination": {"host": "a"}}]});
    for (key, value) in route.as_object().unwrap() {
        all[key] = value.clone();
    }
    check(
        Kind::VirtualService,
        &json!({"hosts": ["a"], "http": [all]}),
        expected,
    );
}

#[test]
fn virtual_service_as_a_whole() {
    let to_a = json!([{"route": [{"destination": {"host": "a"}}]}]);
    let vs = |spec: Value, expected: &[&str]| check(Kind::VirtualService, &spec, expected);
    vs(json!({"hosts": ["a"], "http": to_a}), &[]);
    vs(json!({"hosts": ["a"]}), &["error spec"]);
    vs(
        json!({"hosts": ["*"], "http": to_a}),
        &["error spec.hosts[0]"],
    );
    vs(
        json!({"hosts": ["*"], "gateways": ["g"], "http": to_a}),
        &[],
    );
    vs(
        json!({"hosts": ["*.a.b", "x.a.b"], "http": to_a}),
        &["error spec.hosts[1]"],
    );
    vs(json!({"hosts": ["1.2.3.4"], "http": to_a}), &[]);
    vs(json!({"http": to_a}), &[]);
    vs(
        json!({"gateways": ["g"], "http": to_a}),
        &["error spec.gateways"],
    );
    vs(
        json!({"hosts": ["a"], "gateways": ["./g"], "http": to_a}),
        &["error spec.gateways[0]"],
    );
    vs(
        json!({"hosts": ["a"], "gateways": ["g.app.svc"], "http": to_a}),
        &["warning spec.gateways[0]"],
    );
    vs(
        json!({"hosts": ["a"], "exportTo": ["~"], "http": to_a}),
        &["error spec.exportTo[0]"],
    );
    vs(
        json!({"hosts": ["a"], "exportTo": [".", "app"], "http": to_a}),
        &["error spec.exportTo[1]"],
    );
    vs(
        json!({"hosts": ["a"], "exportTo": ["*", "app"], "http": to_a}),
        &["error spec.exportTo"],
    );
}

#[test]
fn translators_may_break_rules_on_names() {
    let spec =
        json!({"hosts": ["a"], "gateways": ["app/g~x"], "http": [{"redirect": {"uri": "/"}}]});
    assert_eq!(
        findings(Kind::VirtualService, &[], &spec),
        ["error spec.gateways[0]"]
    );
    let generated = [("internal.istio.io/route-semantics", "gateway")];
    assert_eq!(findings(Kind::VirtualService, &generated, &spec), [""; 0]);
}

#[test]
fn http_actions() {
    check_http(
        &json!({"redirect": {"uri": "/"}}),
        &["error spec.http[0].route"],
    );
    check_http(
        &json!({"directResponse": {"status": 200}}),
        &["error spec.http[0].route"],
    );
    check_http(
        &json!({"delegate": {"name": "d"}}),
        &["error spec.http[0].route"],
    );
    check_http(&json!({"route": []}), &["error spec.http[0]"]);
    check_http(&json!({"route": [], "delegate": {"name": "d"}}), &[]);
    check_http(
        &json!({"route": [], "directResponse": {"status": 199}}),
        &["error spec.http[0].directResponse.status"],
    );
    check_http(
        &json!({"route": [], "redirect": {}}),
        &["error spec.http[0].redirect"],
    );
    check_http(
        &json!({"route": [], "redirect": {"uri": "/", "redirectCode": 200}}),
        &["error spec.http[0].redirect.redirectCode"],
    );
    check_http(
        &json!({"route": [], "match": [{"uri": {"exact": "/"}}], "redirect": {"prefixRewrite": "/"}}),
        &["error spec.http[0].redirect.prefixRewrite"],
    );
    check_http(&json!({"rewrite": {}}), &["error spec.http[0].rewrite"]);
    check_http(
        &json!({"rewrite": {"uriRegexRewrite": {"match": "("}}}),
        &[
            "error spec.http[0].rewrite.uriRegexRewrite",
            "error spec.http[0].rewrite.uriRegexRewrite.match",
        ],
    );
    check_http(
        &json!({"mirror": {"host": "m"}, "mirrors": [{"destination": {"host": "m"}}]}),
        &["error spec.http[0].mirror"],
    );
    check_http(
        &json!({"mirrorPercent": 101}),
        &[
            "error spec.http[0].mirrorPercent",
            "warning spec.http[0].mirrorPercent",
        ],
    );
    check_http(&json!({"timeout": "0s"}), &["error spec.http[0].timeout"]);
}

#[test]
fn http_matches() {
    let matching =
        |request: Value, expected: &[&str]| check_http(&json!({"match": [request]}), expected);
    matching(json!({"uri": {"prefix": ""}}), &[]);
    matching(
        json!({"method": {"prefix": ""}}),
        &["error spec.http[0].match[0].method.prefix"],
    );
    matching(
        json!({"headers": {"x": {"regex": "*"}}}),
        &["error spec.http[0].match[0].headers.x.regex"],
    );
    matching(
        json!({"headers": {"x": {}}, "withoutHeaders": {"x": {"regex": "*"}}}),
        &[],
    );
    matching(
        json!({"sourceNamespace": "a.b"}),
        &["error spec.http[0].match[0].sourceNamespace"],
    );
    matching(
        json!({"port": 70000}),
        &["error spec.http[0].match[0].port"],
    );
    matching(
        json!({"headers": {"@request.auth.claims.sub": {"exact": "x"}}}),
        &["error spec.http[0].match[0].headers[\"@request.auth.claims.sub\"]"],
    );
}

#[test]
fn http_policies() {
    check_http(
        &json!({"retries": {"attempts": 3, "retryOn": "5xx,503,unavailable"}}),
        &[],
    );
    check_http(
        &json!({"retries": {"attempts": 3, "retryOn": "5xx, reset"}}),
        &["error spec.http[0].retries.retryOn"],
    );
    check_http(
        &json!({"retries": {"retryOn": "5xx"}}),
        &["error spec.http[0].retries.attempts"],
    );
    check_http(&json!({"fault": {}}), &["error spec.http[0].fault"]);
    check_http(
        &json!({"fault": {"abort": {}}}),
        &["warning spec.http[0].fault.abort"],
    );
    check_http(
        &json!({"fault": {"abort": {"grpcStatus": "Nope"}}}),
        &["error spec.http[0].fault.abort.grpcStatus"],
    );
    check_http(
        &json!({"fault": {"delay": {"fixedDelay": "1s", "percentage": {"value": 0.00001}}}}),
        &["error spec.http[0].fault.delay.percentage.value"],
    );
    check_http(
        &json!({"corsPolicy": {"allowMethods": ["get"], "maxAge": "1.5s", "allowOrigins": [{}]}}),
        &[
            "error spec.http[0].corsPolicy.allowOrigins[0]",
            "error spec.http[0].corsPolicy.allowMethods[0]",
            "error spec.http[0].corsPolicy.maxAge",
        ],
    );
    check_http(
        &json!({"headers": {"request": {"set": {":path": "x", "host": "h"}, "remove": ["host"]}}}),
        &[
            "error spec.http[0].headers.request.set[\":path\"]",
            "error spec.http[0].headers.request.remove[0]",
        ],
    );
    check_http(
        &json!({"headers": {"request": {"set": {":authority": "h"}}}, "rewrite": {"authority": "h"}}),
        &["error spec.http[0]"],
    );
}

#[test]
fn destinations() {
    let to = |route: Value, expected: &[&str]| check_http(&json!({"route": route}), expected);
    to(
        json!([{"destination": {"host": "*"}}]),
        &["error spec.http[0].route[0].destination.host"],
    );
    to(json!([{}]), &["error spec.http[0].route[0].destination"]);
    to(
        json!([{"destination": {"host": "a", "subset": "A.b", "port": {}}}]),
        &[
            "error spec.http[0].route[0].destination.subset",
            "error spec.http[0].route[0].destination.port.number",
        ],
    );
    to(
        json!([{"destination": {"host": "a"}}, {"destination": {"host": "b"}}]),
        &["error spec.http[0].route"],
    );
    to(
        json!([{"destination": {"host": "a"}, "weight": -1}]),
        &["error spec.http[0].route[0].weight"],
    );
}

#[test]
fn layer_four_routes() {
    let to = json!([{"destination": {"host": "a"}}]);
    let vs = |spec: Value, expected: &[&str]| check(Kind::VirtualService, &spec, expected);
    vs(
        json!({"hosts": ["*.a.b"], "tls": [{"match": [{"sniHosts": ["x.a.b"]}], "route": to}]}),
        &[],
    );
    vs(
        json!({"hosts": ["a.b"], "tls": [{"match": [{"sniHosts": ["*.a.b"]}], "route": to}]}),
        &["error spec.tls[0].match[0].sniHosts[0]"],
    );
    vs(
        json!({"hosts": ["a.b"], "tls": [{"route": to}]}),
        &["error spec.tls[0].match"],
    );
    vs(
        json!({"hosts": ["a.b"], "tcp": [{}]}),
        &["error spec.tcp[0].route"],
    );
    vs(
        json!({"hosts": ["a.b"], "tcp": [{"match": [{"destinationSubnets": ["1.2.3"]}], "route": to}]}),
        &["error spec.tcp[0].match[0].destinationSubnets[0]"],
    );
}

#[test]
fn rules_that_never_get_traffic() {
    let to = json!([{"destination": {"host": "a"}}]);
    let http = |routes: &[Value]| {
        let routes: Vec<Value> = routes
            .iter()
            .map(|m| json!({"match": m, "route": to}))
            .collect();
        findings(
            Kind::VirtualService,
            &[],
            &json!({"hosts": ["a"], "http": routes}),
        )
    };
    let prefix = |path: &str| json!({"uri": {"prefix": path}});
    assert_eq!(
        http(&[json!([]), json!([prefix("/a")])]),
        ["warning spec.http[1]"]
    );
    assert_eq!(
        http(&[json!([prefix("/a")]), json!([prefix("/ab")])]),
        ["warning spec.http[1].match[0]"]
    );
    assert_eq!(
        http(&[json!([prefix("/ab")]), json!([prefix("/a")])]),
        [""; 0]
    );
    assert_eq!(
        http(&[json!([prefix("/a")]), json!([prefix("/a")])]),
        ["warning spec.http[1].match[0]", "warning spec.http[1]"]
    );
}

#[test]
fn destination_rule() {
    let policy = |policy: Value, expected: &[&str]| {
        check(
            Kind::DestinationRule,
            &json!({"host": "a", "trafficPolicy": policy}),
            expected,
        );
    };
    policy(json!({}), &["error spec.trafficPolicy"]);
    policy(
        json!({"connectionPool": {}}),
        &["error spec.trafficPolicy.connectionPool"],
    );
    policy(
        json!({"connectionPool": {"tcp": {"maxConnections": -1, "idleTimeout": "0s"}}}),
        &["error spec.trafficPolicy.connectionPool.tcp.maxConnections"],
    );
    policy(
        json!({"tls": {"mode": "MUTUAL"}}),
        &[
            "error spec.trafficPolicy.tls.clientCertificate",
            "error spec.trafficPolicy.tls.privateKey",
        ],
    );
    policy(
        json!({"tls": {"mode": "MUTUAL", "credentialName": "configmap://other/c"}}),
        &["error spec.trafficPolicy.tls.credentialName"],
    );
    policy(
        json!({"loadBalancer": {"consistentHash": {"maglev": {"tableSize": 10}}}}),
        &["error spec.trafficPolicy.loadBalancer.consistentHash.maglev.tableSize"],
    );
    policy(
        json!({"loadBalancer": {"localityLbSetting": {"distribute": [{"from": "r/*", "to": {"r/z/*": 60, "r/y/*": 30}}]}}}),
        &["error spec.trafficPolicy.loadBalancer.localityLbSetting.distribute[0].to"],
    );
    policy(
        json!({"loadBalancer": {"localityLbSetting": {"failover": [{"from": "a", "to": "b"}]}}}),
        &["warning spec.trafficPolicy.loadBalancer.localityLbSetting"],
    );
    policy(
        json!({"loadBalancer": {"warmup": {"aggression": 0}}}),
        &[
            "error spec.trafficPolicy.loadBalancer.warmup.duration",
            "error spec.trafficPolicy.loadBalancer.warmup.aggression",
        ],
    );
    policy(
        json!({"outlierDetection": {"consecutiveLocalOriginFailures": 1}}),
        &["error spec.trafficPolicy.outlierDetection.consecutiveLocalOriginFailures"],
    );
    policy(
        json!({"portLevelSettings": [{"port": {"number": 80}}]}),
        &["error spec.trafficPolicy.portLevelSettings[0]"],
    );
    policy(
        json!({"tunnel": {"protocol": "X", "targetHost": "a b"}}),
        &[
            "error spec.trafficPolicy.tunnel.protocol",
            "error spec.trafficPolicy.tunnel.targetHost",
            "error spec.trafficPolicy.tunnel.targetPort",
        ],
    );
    check(
        Kind::DestinationRule,
        &json!({"host": "a b", "subsets": [{"name": "v"}, {"name": "v"}]}),
        &["error spec.host", "error spec.subsets[1].name"],
    );
    let selecting =
        json!({"host": "a", "workloadSelector": {"matchLabels": {"a": "b"}}, "exportTo": ["."]});
    check(Kind::DestinationRule, &selecting, &[]);
    let wide =
        json!({"host": "a", "workloadSelector": {"matchLabels": {"a": "*"}}, "exportTo": ["*"]});
    check(
        Kind::DestinationRule,
        &wide,
        &[
            "error spec.workloadSelector.matchLabels",
            "error spec.exportTo[0]",
        ],
    );
}

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

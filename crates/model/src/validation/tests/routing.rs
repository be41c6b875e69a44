//! VirtualService and DestinationRule.

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
fn rules_behind_one_that_matches_everything_get_no_traffic() {
    let after = |first: Value, expected: &[&str]| {
        let to_a = json!([{"destination": {"host": "a"}}]);
        let http = json!([{"match": [first], "route": to_a}, {"route": to_a}]);
        check(
            Kind::VirtualService,
            &json!({"hosts": ["a"], "http": http}),
            expected,
        );
    };
    let hides: &[&str] = &["warning spec.http[1]"];
    after(json!({"uri": {"prefix": "/"}}), hides);
    after(json!({"uri": {"regex": ".*"}, "name": "all"}), hides);
    after(json!({"uri": {"prefix": "/a"}}), &[]);
    after(
        json!({"uri": {"prefix": "/"}, "method": {"exact": "GET"}}),
        &[],
    );
    after(json!({"uri": {"prefix": "/"}, "port": 80}), &[]);
    after(
        json!({"uri": {"prefix": "/"}, "sourceLabels": {"app": "a"}}),
        &[],
    );
}

//! Kinds of `security.istio.io`, `telemetry.istio.io` and Gateway API.

use serde_json::{Value, json};

use super::check;
use crate::Kind;

#[test]
fn targets_of_policies() {
    let policy =
        |spec: Value, expected: &[&str]| check(Kind::RequestAuthentication, &spec, expected);
    let gateway = json!({"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "g"});
    policy(json!({"targetRefs": [gateway]}), &[]);
    policy(
        json!({"targetRef": gateway, "selector": {"matchLabels": {"a": "b"}}}),
        &["error spec"],
    );
    policy(
        json!({"selector": {}}),
        &["warning spec.selector.matchLabels"],
    );
    policy(
        json!({"selector": {"matchLabels": {"a": "b*"}}}),
        &["error spec.selector.matchLabels"],
    );
    policy(
        json!({"targetRefs": [{"group": "networking.istio.io", "kind": "Gateway", "namespace": "n"}]}),
        &[
            "error spec.targetRefs[0].kind",
            "error spec.targetRefs[0].name",
            "error spec.targetRefs[0].namespace",
        ],
    );
}

#[test]
fn peer_authentication() {
    let peer = |spec: Value, expected: &[&str]| check(Kind::PeerAuthentication, &spec, expected);
    let selector = json!({"matchLabels": {"a": "b"}});
    peer(
        json!({"selector": selector, "portLevelMtls": {"80": {"mode": "DISABLE"}}}),
        &[],
    );
    peer(
        json!({"portLevelMtls": {"80": {}}}),
        &["error spec.portLevelMtls"],
    );
    peer(
        json!({"selector": selector, "portLevelMtls": {}}),
        &["error spec.portLevelMtls"],
    );
    peer(
        json!({"selector": selector, "portLevelMtls": {"0": {}}}),
        &["error spec.portLevelMtls.0"],
    );
}

#[test]
fn request_authentication() {
    let rule = |rule: Value, expected: &[&str]| {
        check(
            Kind::RequestAuthentication,
            &json!({"jwtRules": [rule]}),
            expected,
        );
    };
    rule(json!({"issuer": "i", "jwksUri": "https://a.b/keys"}), &[]);
    rule(json!({}), &["error spec.jwtRules[0]"]);
    rule(
        json!({"jwks_uri": "ftp://a"}),
        &["error spec.jwtRules[0].jwksUri"],
    );
    rule(
        json!({"issuer": "i", "jwks": "{\"keys\":[]}", "jwksUri": "http://a"}),
        &["error spec.jwtRules[0].jwks"],
    );
    for keys in [
        "x",
        "[]",
        "{}",
        r#"{"keys":[{"kty":"RSA","n":"x"}]}"#,
        r#"{"keys":[{"kty":"X"}]}"#,
    ] {
        rule(
            json!({"issuer": "i", "jwks": keys}),
            &["error spec.jwtRules[0].jwks"],
        );
    }
    rule(
        json!({"issuer": "i", "jwks": r#"{"keys":[{"kty":"oct","k":"x"}]}"#}),
        &["warning spec.jwtRules[0].jwks"],
    );
    rule(
        json!({"issuer": "i", "audiences": [""], "fromHeaders": [{}], "fromParams": [""], "timeout": "0s",
        "outputClaimToHeaders": [{"header": "a b", "claim": "c"}]}),
        &[
            "error spec.jwtRules[0].audiences[0]",
            "error spec.jwtRules[0].fromHeaders[0].name",
            "error spec.jwtRules[0].fromParams[0]",
            "error spec.jwtRules[0].outputClaimToHeaders[0].header",
            "error spec.jwtRules[0].timeout",
        ],
    );
}

#[test]
fn authorization_actions() {
    let policy = |spec: Value, expected: &[&str]| check(Kind::AuthorizationPolicy, &spec, expected);
    policy(json!({}), &[]);
    policy(json!({"rules": [{}]}), &[]);
    policy(json!({"action": "DENY"}), &["error spec.rules"]);
    policy(
        json!({"action": "CUSTOM"}),
        &["error spec.rules", "error spec.provider.name"],
    );
    policy(json!({"provider": {"name": "p"}}), &["error spec.provider"]);
    policy(json!({"rules": [null]}), &["error spec.rules[0]"]);
    let custom = |rule: Value, expected: &[&str]| {
        policy(
            json!({"action": "CUSTOM", "provider": {"name": "p"}, "rules": [rule]}),
            expected,
        );
    };
    custom(
        json!({"from": [{"source": {"ipBlocks": ["1.2.3.4"]}}]}),
        &[],
    );
    custom(
        json!({"from": [{"source": {"notNamespaces": ["a"]}}]}),
        &["error spec.rules[0].from[0].source.notNamespaces"],
    );
    custom(
        json!({"when": [{"key": "request.auth.principal", "values": ["a"]}]}),
        &["error spec.rules[0].when[0].key"],
    );
    policy(
        json!({"action": "DENY", "rules": [{"to": [{"operation": {"paths": ["/a"]}}]}]}),
        &["warning spec.rules[0]"],
    );
    policy(
        json!({"action": "DENY", "rules": [{"to": [{"operation": {"paths": ["/a"], "ports": ["80"]}}]}]}),
        &[],
    );
}

#[test]
fn authorization_rules() {
    let rule = |rule: Value, expected: &[&str]| {
        check(
            Kind::AuthorizationPolicy,
            &json!({"rules": [rule]}),
            expected,
        );
    };
    rule(json!({"from": []}), &["error spec.rules[0].from"]);
    rule(
        json!({"from": [{}]}),
        &["error spec.rules[0].from[0].source"],
    );
    rule(
        json!({"to": [{"operation": {}}]}),
        &["error spec.rules[0].to[0].operation"],
    );
    let source =
        |source: Value, expected: &[&str]| rule(json!({"from": [{"source": source}]}), expected);
    source(
        json!({"principals": [""]}),
        &["error spec.rules[0].from[0].source.principals[0]"],
    );
    source(json!({"ipBlocks": ["1.2.3.4", "10.0.0.0/8", "::1"]}), &[]);
    source(
        json!({"notRemoteIpBlocks": ["10.0.0.0/40"]}),
        &["error spec.rules[0].from[0].source.notRemoteIpBlocks[0]"],
    );
    source(json!({"serviceAccounts": ["a", "n/a"]}), &[]);
    source(
        json!({"serviceAccounts": ["a/b/c", "a*"], "notPrincipals": ["p"]}),
        &[
            "error spec.rules[0].from[0].source.serviceAccounts[0]",
            "error spec.rules[0].from[0].source.serviceAccounts[1]",
            "error spec.rules[0].from[0].source.notPrincipals",
        ],
    );
    source(
        json!({"trustDomains": ["*", "*.a", "a*", "a*b"]}),
        &["error spec.rules[0].from[0].source.trustDomains[3]"],
    );
    let operation = |operation: Value, expected: &[&str]| {
        rule(json!({"to": [{"operation": operation}]}), expected);
    };
    operation(
        json!({"ports": ["0", "65535", "65536", "http"]}),
        &[
            "error spec.rules[0].to[0].operation.ports[2]",
            "error spec.rules[0].to[0].operation.ports[3]",
        ],
    );
    operation(
        json!({"paths": ["/a/{*}", "/{**}/{*}"]}),
        &["error spec.rules[0].to[0].operation.paths[1]"],
    );
    let when = |key: &str, expected: &[&str]| {
        rule(
            json!({"when": [{"key": key, "values": ["1.1.1.1"]}]}),
            expected,
        );
    };
    for key in [
        "request.headers[x]",
        "request.auth.claims[a][b]",
        "source.ip",
        "connection.sni",
        "experimental.envoy.filters.a.b[c]",
        "request.auth.claims[a]x[b]",
    ] {
        when(key, &[]);
    }
    for key in [
        "request.headers",
        "request.auth.claims.a",
        "experimental.envoy.filters.a.b",
        "destination.labels[a]",
        "request.method",
        "",
    ] {
        when(key, &["error spec.rules[0].when[0].key"]);
    }
    rule(
        json!({"when": [{"key": "source.ip"}]}),
        &["error spec.rules[0].when[0]"],
    );
}

#[test]
fn telemetry() {
    let telemetry = |spec: Value, expected: &[&str]| check(Kind::Telemetry, &spec, expected);
    telemetry(
        json!({"accessLogging": [{"filter": {"expression": "response.code >= 500"}}]}),
        &[],
    );
    telemetry(
        json!({"accessLogging": [{"filter": {"expression": "response.code >="}}]}),
        &["error spec.accessLogging[0].filter.expression"],
    );
    telemetry(
        json!({"tracing": [{"randomSamplingPercentage": 101, "providers": [{}], "customTags": {
            "a": {"literal": {}}, "b": null, "c": {"header": {"name": "x"}}, "d": {},
        }}]}),
        &[
            "error spec.tracing[0].providers[0].name",
            "error spec.tracing[0].randomSamplingPercentage",
            "error spec.tracing[0].customTags.a.literal.value",
            "error spec.tracing[0].customTags.b",
        ],
    );
    telemetry(
        json!({"metrics": [{"overrides": [
            null,
            {"tagOverrides": {"a": {"operation": "REMOVE", "value": "x"}, "b": {}}, "match": {"customMetric": ""}},
        ]}]}),
        &[
            "error spec.metrics[0].overrides[0]",
            "error spec.metrics[0].overrides[1].tagOverrides.a.value",
            "error spec.metrics[0].overrides[1].tagOverrides.b.value",
            "error spec.metrics[0].overrides[1].match.customMetric",
        ],
    );
}

#[test]
fn gateway_api() {
    let gateway = |listener: Value, expected: &[&str]| {
        let mut all = json!({"name": "l", "port": 80, "protocol": "HTTP"});
        for (key, value) in listener.as_object().unwrap() {
            all[key] = value.clone();
        }
        check(
            Kind::KubernetesGateway,
            &json!({"gatewayClassName": "istio", "listeners": [all]}),
            expected,
        );
    };
    gateway(json!({"hostname": "*.a.b"}), &[]);
    gateway(
        json!({"hostname": "A.b", "port": 0, "tls": {}}),
        &[
            "warning spec.listeners[0].port",
            "warning spec.listeners[0].hostname",
            "warning spec.listeners[0].tls",
        ],
    );
    let filter = |filter: Value, expected: &[&str]| {
        let rules = json!([{"filters": [filter]}]);
        check(
            Kind::HttpRoute,
            &json!({"parentRefs": [{"name": "g"}], "rules": rules}),
            expected,
        );
    };
    filter(
        json!({"type": "RequestHeaderModifier", "requestHeaderModifier": {"remove": ["x"]}}),
        &[],
    );
    filter(
        json!({"type": "RequestMirror", "cors": {}}),
        &[
            "warning spec.rules[0].filters[0].requestMirror",
            "warning spec.rules[0].filters[0].cors",
        ],
    );
    filter(
        json!({"type": "RequestRedirect", "requestRedirect": {"statusCode": 200}}),
        &["warning spec.rules[0].filters[0].requestRedirect.statusCode"],
    );
    check(
        Kind::TcpRoute,
        &json!({"rules": [{}]}),
        &["warning spec.rules[0].backendRefs"],
    );
    check(
        Kind::ReferenceGrant,
        &json!({}),
        &["warning spec.from", "warning spec.to"],
    );
    let policy = json!({"targetRefs": [{"kind": "Service", "name": "s"}], "validation": {"hostname": "a.b"}});
    check(
        Kind::BackendTlsPolicy,
        &policy,
        &["warning spec.validation"],
    );
}

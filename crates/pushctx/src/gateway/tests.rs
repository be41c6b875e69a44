use std::collections::BTreeMap;

use model::{Labels, ServiceTarget};
use serde_json::{Value, json};

use super::MergedGateway;
use crate::{
    PushContext,
    testing::{kubernetes, snapshot},
};

/// Merges for a router labelled `istio: ingressgateway` whose service maps 80 to 8080, 443 to 8443.
fn merge(context: &PushContext) -> Option<MergedGateway> {
    let service = kubernetes("gw.istio-system", &[80, 443]).seal();
    let targets: Vec<_> = service
        .ports
        .iter()
        .map(|port| ServiceTarget {
            service: service.clone(),
            port: port.clone(),
            target_port: 8000 + if port.port == 80 { 80 } else { port.port },
        })
        .collect();
    let labels = Labels::from([("istio".into(), "ingressgateway".into())]);
    context.merged_gateway("istio-system", &labels, &targets)
}

fn summary(merged: &MergedGateway) -> Value {
    let ports: Vec<_> = merged
        .ports
        .iter()
        .map(|(port, servers)| {
            let servers: Vec<_> = servers
                .servers
                .iter()
                .map(|s| format!("{}#{}", s.gateway, s.server.port.as_ref().unwrap().name))
                .collect();
            json!([
                format!("{}/{}/{}", port.number, port.protocol, port.bind),
                servers
            ])
        })
        .collect();
    let routes: BTreeMap<_, Vec<_>> = merged
        .routes
        .iter()
        .map(|(name, servers)| (name, servers.iter().map(|s| &s.server.hosts).collect()))
        .collect();
    let rejected: Vec<_> = merged
        .rejected
        .iter()
        .map(|(name, _)| name.to_string())
        .collect();
    json!({"ports": ports, "routes": routes, "rejected": rejected})
}

#[track_caller]
fn check(yaml: &str, expected: &Value) {
    assert_eq!(&summary(&merge(&snapshot(yaml, [])).unwrap()), expected);
}

#[test]
fn servers_merge_by_port_and_protocol() {
    check(
        r#"
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g1, namespace: prod, creationTimestamp: "2024-01-01T00:00:00Z"}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 80, name: http, protocol: HTTP}, hosts: ["./a.com"]}
  - {port: {number: 443, name: https-a, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: ca}, hosts: [a.com]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g2, namespace: prod, creationTimestamp: "2024-01-02T00:00:00Z"}
spec:
  selector: {istio: ingressgateway}
  servers:
  - {port: {number: 80, name: web, protocol: HTTP2}, hosts: ["*/b.com"]}
  - {port: {number: 443, name: https-b, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: cb}, hosts: [b.com]}
  - {port: {number: 443, name: https-c, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: cc}, hosts: [a.com, c.com]}
"#,
        &json!({
            "ports": [
                ["8080/HTTP/", ["prod/g1#http", "prod/g2#web"]],
                ["8443/HTTPS/", ["prod/g1#https-a", "prod/g2#https-b"]],
            ],
            "routes": {
                "http.8080": [["prod/a.com"], ["b.com"]],
                "https.443.https-a.g1.prod": [["a.com"]],
                "https.443.https-b.g2.prod": [["b.com"]],
            },
            "rejected": ["prod/g2"],
        }),
    );
}

/// Merges servers of one Gateway, given as flow mappings.
#[track_caller]
fn check_servers(servers: &[&str], expected: &[(&str, &[&str])], rejected: usize) {
    let yaml = format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\nmetadata: {{name: g, namespace: ns}}\n\
         spec:\n  servers: [{}]\n",
        servers.join(", ")
    );
    let summary = summary(&merge(&snapshot(&yaml, [])).unwrap());
    let prefixed = |names: &[&str]| {
        names
            .iter()
            .map(|n| format!("ns/g#{n}"))
            .collect::<Vec<_>>()
    };
    let ports: Vec<_> = expected
        .iter()
        .map(|(p, s)| json!([p, prefixed(s)]))
        .collect();
    assert_eq!(summary["ports"], json!(ports));
    assert_eq!(summary["rejected"].as_array().unwrap().len(), rejected);
}

const HTTP: &str = "{port: {number: 90, name: http, protocol: HTTP}, hosts: ['*']}";
const HTTPS: &str =
    "{port: {number: 90, name: https, protocol: HTTPS}, tls: {mode: SIMPLE}, hosts: [a.com]}";
const TLS: &str =
    "{port: {number: 90, name: tls, protocol: TLS}, tls: {mode: PASSTHROUGH}, hosts: [b.com]}";
const TCP: &str = "{port: {number: 90, name: tcp, protocol: TCP}, hosts: ['*']}";
const BOUND: &str =
    "{port: {number: 90, name: bound, protocol: HTTP}, bind: 1.1.1.1, hosts: ['*']}";

#[test]
fn what_comes_first_on_a_port_decides() {
    check_servers(&[HTTP, HTTPS, TLS], &[("90/HTTP/", &["http"])], 2);
    check_servers(
        &[HTTPS, TLS],
        &[("90/HTTPS/", &["https"]), ("90/TLS/", &["tls"])],
        0,
    );
    check_servers(
        &[HTTPS, HTTP, TLS],
        &[("90/HTTPS/", &["https"]), ("90/HTTP/", &["http"])],
        1,
    );
    check_servers(&[TCP, TCP, HTTP], &[("90/TCP/", &["tcp"])], 2);
    check_servers(
        &[HTTP, BOUND, BOUND],
        &[
            ("90/HTTP/", &["http"]),
            ("90/HTTP/1.1.1.1", &["bound", "bound"]),
        ],
        0,
    );
    check_servers(&[HTTPS, HTTPS], &[("90/HTTPS/", &["https"])], 1);
}

#[test]
fn a_managed_gateway_drops_those_of_other_namespaces() {
    let gateway = |name: &str, namespace: &str, annotations: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\n\
             metadata: {{name: {name}, namespace: {namespace}, annotations: {{{annotations}}}}}\n\
             spec: {{servers: [{HTTP}]}}\n---\n"
        )
    };
    let managed = "internal.istio.io/gateway-semantics: gateway, \
                   internal.istio.io/service-account-name: gw";
    let yaml = gateway("m", "istio-system", managed)
        + &gateway("near", "istio-system", "")
        + &gateway("far", "elsewhere", "");
    let merged = merge(&snapshot(&yaml, [])).unwrap();
    let names: Vec<_> = merged.gateways.iter().map(ToString::to_string).collect();
    assert_eq!(names, ["istio-system/m", "istio-system/near"]);
}

#[test]
fn a_gateway_of_a_service_needs_that_service() {
    let yaml = format!(
        "apiVersion: networking.istio.io/v1\nkind: Gateway\n\
         metadata: {{name: g, namespace: istio-system, annotations: \
         {{internal.istio.io/gateway-service: gw.istio-system.svc.cluster.local}}}}\n\
         spec: {{servers: [{HTTP}, {}]}}\n",
        HTTP.replace("90", "80")
    );
    let merged = merge(&snapshot(&yaml, [])).unwrap();
    // 90 is no port of the service.
    assert_eq!(
        summary(&merged)["ports"],
        json!([["8080/HTTP/", ["istio-system/g#http"]]])
    );
    assert_eq!(
        merge(&snapshot(&yaml.replace("gw.istio", "other.istio"), [])),
        None
    );
    assert_eq!(merge(&snapshot("", [])), None);
}

#[test]
fn secrets_are_for_the_owner_of_the_gateway() {
    let yaml = r"
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: istio-system}
spec:
  servers:
  - {port: {number: 443, name: a, protocol: HTTPS}, tls: {mode: MUTUAL, credentialName: own}, hosts: [a.com]}
  - {port: {number: 443, name: b, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: far/granted}, hosts: [b.com]}
  - {port: {number: 443, name: c, protocol: HTTPS}, tls: {mode: SIMPLE, credentialName: far/other}, hosts: [c.com]}
---
apiVersion: gateway.networking.k8s.io/v1beta1
kind: ReferenceGrant
metadata: {name: r, namespace: far}
spec:
  from: [{group: gateway.networking.k8s.io, kind: Gateway, namespace: istio-system}]
  to: [{group: '', kind: Secret, name: granted}]
";
    let context = snapshot(yaml, []);
    let merged = merge(&context).unwrap();
    let names = merged.authorized_secrets(&context, "istio-system", "any");
    let expected = [
        "kubernetes://far/granted",
        "kubernetes://own",
        "kubernetes://own-cacert",
    ];
    assert_eq!(names.into_iter().collect::<Vec<_>>(), expected);
    assert!(merged.authorized_secrets(&context, "far", "any").is_empty());
}

#[test]
fn the_certificate_for_backends_is_for_the_owner_of_the_gateway() {
    let gateway = |name: &str, certificate: &str| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: Gateway\n\
             metadata: {{name: {name}, namespace: istio-system, annotations: \
             {{internal.istio.io/backend-client-certificate: '{certificate}'}}}}\n\
             spec: {{servers: [{{port: {{number: 80, name: a, protocol: HTTP}}, hosts: [a.com]}}]}}\n---\n"
        )
    };
    let own = "kubernetes-gateway://istio-system/c";
    let context = snapshot(&gateway("g", own), []);
    let merged = merge(&context).unwrap();
    assert_eq!(merged.client_certificate.as_deref(), Some(own));
    let names =
        |merged: &MergedGateway, namespace| merged.authorized_secrets(&context, namespace, "any");
    assert!(names(&merged, "istio-system").contains(own));
    assert!(names(&merged, "far").is_empty());
    let far = merge(&snapshot(&gateway("g", "kubernetes-gateway://far/c"), [])).unwrap();
    assert!(names(&far, "istio-system").is_empty());
}

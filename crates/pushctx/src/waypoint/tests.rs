use std::sync::Arc;

use model::{Features, ServiceTarget};

use crate::{
    PushContext,
    testing::{self, add_services, kubernetes, state},
};

/// A waypoint `w` of namespace `a` that is reached; `extra` goes into its metadata and listener.
fn gateway(labels: &str, listener: &str) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n\
         metadata: {{name: w, namespace: a, labels: {{{labels}}}}}\n\
         spec:\n  gatewayClassName: istio-waypoint\n  listeners:\n  \
         - {{name: mesh, port: 15008, protocol: HBONE{listener}}}\n\
         status: {{addresses: [{{type: Hostname, value: w.a.svc.cluster.local}}]}}\n---\n"
    )
}

fn namespace(name: &str, labels: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Namespace\nmetadata: {{name: {name}, labels: {{{labels}}}}}\n---\n"
    )
}

fn pod(labels: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Pod\nmetadata: {{name: p, namespace: a, labels: {{{labels}}}}}\n\
         status: {{phase: Running, podIP: 10.0.0.7, podIPs: [{{ip: 10.0.0.7}}]}}\n---\n"
    )
}

/// Says what the proxies behind `w.a` handle, of the services `s.a` and `s.b` with some labels.
#[track_caller]
fn check(yaml: &str, services: &[(&str, &[(&str, &str)])], expected: &[&str]) {
    let mut state = state(yaml);
    state.features = Arc::new(Features {
        ambient: true,
        ..Features::default()
    });
    let services = services.iter().map(|(name, labels)| {
        let mut service = kubernetes(name, &[80]);
        let labels = labels.iter();
        service.attributes.labels = labels
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
            .collect();
        service
    });
    add_services(&mut state, services);
    let context = PushContext::build(state);
    let own = kubernetes("w.a", &[15008]).seal();
    let target = ServiceTarget {
        port: own.ports[0].clone(),
        service: own,
        target_port: 15008,
    };
    let waypoint = context.waypoint("a", &[target]);
    let mut found = testing::hosts(&waypoint.services);
    found.extend(waypoint.workloads.iter().map(ToString::to_string));
    assert_eq!(found, expected);
}

const ASKS: &[(&str, &str)] = &[("istio.io/use-waypoint", "w")];

#[test]
fn services_ask_for_a_waypoint_themselves_or_by_their_namespace() {
    let waypoint = gateway("", "");
    let plain: &[(&str, &str)] = &[];
    check(&waypoint, &[("s.a", ASKS), ("t.a", plain)], &["s.a:80"]);
    let asks = namespace("a", "istio.io/use-waypoint: w");
    let none = &[("istio.io/use-waypoint", "none")];
    let managed = &[("gateway.istio.io/managed", "istio.io-mesh-controller")];
    check(
        &(waypoint.clone() + &asks),
        &[("s.a", plain), ("t.a", none), ("u.a", managed)],
        &["s.a:80"],
    );
    check("", &[("s.a", ASKS)], &[]);
    let unreached = waypoint.replace("addresses", "others");
    check(&unreached, &[("s.a", ASKS)], &[]);
}

#[test]
fn a_waypoint_says_what_it_is_for() {
    let asks = namespace("a", "istio.io/use-waypoint: w") + &pod("");
    let of = |purpose: &str| gateway(&format!("istio.io/waypoint-for: {purpose}"), "") + &asks;
    let service: &[(&str, &[(&str, &str)])] = &[("s.a", &[])];
    check(&of("service"), service, &["s.a:80"]);
    check(&of("workload"), service, &["10.0.0.7"]);
    check(&of("all"), service, &["s.a:80", "10.0.0.7"]);
    check(&of("none"), service, &[]);
}

#[test]
fn other_namespaces_need_leave() {
    let asks: &[(&str, &str)] = &[
        ("istio.io/use-waypoint", "w"),
        ("istio.io/use-waypoint-namespace", "a"),
    ];
    let other = namespace("b", "team: red");
    let with =
        |from: &str| gateway("", &format!(", allowedRoutes: {{namespaces: {from}}}")) + &other;
    check(&(gateway("", "") + &other), &[("s.b", asks)], &[]);
    check(&with("{from: All}"), &[("s.b", asks)], &["s.b:80"]);
    let selector = |team: &str| {
        with(&format!(
            "{{from: Selector, selector: {{matchLabels: {{team: {team}}}}}}}"
        ))
    };
    check(&selector("red"), &[("s.b", asks)], &["s.b:80"]);
    check(&selector("other"), &[("s.b", asks)], &[]);
}

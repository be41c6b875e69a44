//! Networks of endpoints and gateways between them.

use std::sync::Arc;

use model::MeshState;

use super::tests::{apply, endpoints, intake, now};
use crate::{Change, mesh_networks};

#[track_caller]
fn check(state: &MeshState, resolved: &[&str], unresolved: &[&str]) {
    let show = |gateways: &[model::NetworkGateway]| -> Vec<String> {
        gateways
            .iter()
            .map(|g| {
                format!(
                    "{} {} {} {}/{} {}",
                    g.network, g.cluster, g.address, g.port, g.hbone_port, g.service_account
                )
                .trim_end()
                .to_owned()
            })
            .collect()
    };
    assert_eq!(show(&state.gateways.resolved), resolved);
    assert_eq!(show(&state.gateways.unresolved), unresolved);
}

const GATEWAY: &str = "
apiVersion: v1
kind: Service
metadata: {name: istio-eastwestgateway, namespace: istio-system, labels: {topology.istio.io/network: n2}}
spec: {type: LoadBalancer, clusterIP: 10.0.0.9, ports: [{name: tls, port: 15443}, {name: status, port: 15021}]}
status: {loadBalancer: {ingress: [{ip: 5.5.5.6}, {hostname: lb.example}]}}
";

#[test]
fn labelled_services_are_gateways() {
    let mut intake = intake(GATEWAY);
    check(
        &intake.state(),
        &["n2 Kubernetes 5.5.5.6 15443/0"],
        &[
            "n2 Kubernetes 5.5.5.6 15443/0",
            "n2 Kubernetes lb.example 15443/0",
        ],
    );
    let other_port = GATEWAY.replace(
        "network: n2}",
        "network: n2, networking.istio.io/gatewayPort: '15021'}",
    );
    assert!(apply(&mut intake, &other_port).forced);
    check(
        &intake.state(),
        &["n2 Kubernetes 5.5.5.6 15021/0"],
        &[
            "n2 Kubernetes 5.5.5.6 15021/0",
            "n2 Kubernetes lb.example 15021/0",
        ],
    );
    apply(&mut intake, &GATEWAY.replace("port: 15443", "port: 15444"));
    check(&intake.state(), &[], &[]);
    apply(&mut intake, &GATEWAY.replace("port: 15443", "port: 15008"));
    check(
        &intake.state(),
        &["n2 Kubernetes 5.5.5.6 0/15008"],
        &[
            "n2 Kubernetes 5.5.5.6 0/15008",
            "n2 Kubernetes lb.example 0/15008",
        ],
    );
}

#[test]
fn host_names_are_resolved_by_somebody_else() {
    let mut intake = intake(GATEWAY);
    let names: Vec<String> = intake
        .names_to_resolve()
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(names, ["lb.example"]);
    let resolved = |addresses: &[&str]| Change::Resolved {
        name: "lb.example".into(),
        addresses: addresses.iter().map(|a| Arc::from(*a)).collect(),
    };
    assert!(
        intake
            .apply([resolved(&["5.5.5.5", "5.5.5.6"])], now())
            .forced
    );
    let both = [
        "n2 Kubernetes 5.5.5.6 15443/0",
        "n2 Kubernetes lb.example 15443/0",
    ];
    check(
        &intake.state(),
        &[
            "n2 Kubernetes 5.5.5.5 15443/0",
            "n2 Kubernetes 5.5.5.6 15443/0",
        ],
        &both,
    );
    assert!(
        intake
            .apply([resolved(&["5.5.5.5", "5.5.5.6"])], now())
            .is_empty()
    );
    // Names that nobody uses are forgotten.
    apply(&mut intake, &GATEWAY.replace("{hostname: lb.example}", ""));
    apply(&mut intake, GATEWAY);
    check(&intake.state(), &["n2 Kubernetes 5.5.5.6 15443/0"], &both);
}

#[test]
fn node_port_services_are_reached_at_their_nodes() {
    let service = "
apiVersion: v1
kind: Service
metadata: {name: gw, namespace: istio-system, labels: {topology.istio.io/network: n2}, annotations: {traffic.istio.io/nodeSelector: '{\"edge\": \"true\"}'}}
spec: {type: NodePort, clusterIP: 10.0.0.9, ports: [{name: tls, port: 15443, nodePort: 31443}]}
";
    let node = "
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {edge: 'true'}}
status: {addresses: [{type: InternalIP, address: 10.0.0.1}, {type: ExternalIP, address: 8.8.8.8}]}
";
    let mut intake = intake(service);
    check(&intake.state(), &[], &[]);
    let request = apply(&mut intake, node);
    assert!(request.forced && request.reasons.contains_key(&model::Reason::Networks));
    let expected = ["n2 Kubernetes 8.8.8.8 31443/0"];
    check(&intake.state(), &expected, &expected);
    apply(&mut intake, &node.replace("8.8.8.8", "9.9.9.9"));
    let expected = ["n2 Kubernetes 9.9.9.9 31443/0"];
    check(&intake.state(), &expected, &expected);
    apply(&mut intake, &node.replace("'true'", "'false'"));
    check(&intake.state(), &[], &[]);
}

#[test]
fn gateway_api_gateways_with_a_network() {
    let gateway = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: gw, namespace: istio-system, labels: {topology.istio.io/network: n2}}
spec:
  gatewayClassName: istio-remote
  addresses: [{type: IPAddress, value: 6.6.6.6}, {value: 7.7.7.7}]
  listeners:
  - {name: cross, port: 15443, protocol: TLS, tls: {mode: Passthrough}}
  - {name: tunnel, port: 15008, protocol: HBONE, tls: {mode: Terminate}}
  - {name: web, port: 80, protocol: HTTP}
";
    let mut intake = crate::Intake::new(crate::Options::default());
    let decoded = crate::Decoder {
        admitted: true,
        ..crate::Decoder::default()
    }
    .decode("test", gateway);
    intake.apply(decoded.objects.into_iter().map(Change::Apply), now());
    let expected = [
        "n2 Kubernetes 6.6.6.6 15008/15008 istio-system/gw-istio-remote",
        "n2 Kubernetes 6.6.6.6 15443/0 istio-system/gw-istio-remote",
    ];
    check(&intake.state(), &expected, &expected);
}

#[test]
fn mesh_networks_give_gateways_and_networks() {
    let objects = "
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: a, labels: {app: web}}
spec: {serviceAccountName: s}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: v1
kind: Service
metadata: {name: gw, namespace: a}
spec: {clusterIP: 10.0.0.9, externalIPs: [4.4.4.4], ports: [{name: tls, port: 443}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: gw-1, namespace: a, labels: {kubernetes.io/service-name: gw}}
addressType: IPv4
ports: [{name: tls, port: 443}]
endpoints: [{addresses: [10.1.0.1], targetRef: {kind: Pod, name: p, namespace: a}}, {addresses: [10.2.0.1]}, {addresses: [10.3.0.1]}]
";
    let mut intake = intake(objects);
    let networks = |intake: &crate::Intake| -> Vec<String> {
        let state = intake.state();
        endpoints(&state, "a/gw.a.svc.cluster.local")
            .iter()
            .map(|e| e.network.to_string())
            .collect()
    };
    let set = |intake: &mut crate::Intake, text: &str| {
        let value = mesh_networks("networks", text, true).value.unwrap();
        intake.apply([Change::Networks(value)], now())
    };
    let ranges = "networks: {wide: {endpoints: [{fromCidr: 10.0.0.0/8}]}, narrow: {endpoints: [{fromCidr: 10.2.0.0/16}], gateways: [{address: 5.5.5.5, port: 443}]}}";
    assert!(set(&mut intake, ranges).forced);
    assert_eq!(networks(&intake), ["wide", "narrow", "wide"]);
    check(
        &intake.state(),
        &["narrow  5.5.5.5 443/0"],
        &["narrow  5.5.5.5 443/0"],
    );
    let registry = "networks: {here: {endpoints: [{fromRegistry: Kubernetes}], gateways: [{registryServiceName: gw.a.svc.cluster.local, port: 443}]}}";
    set(&mut intake, registry);
    assert_eq!(networks(&intake), ["here", "here", "here"]);
    let expected = ["here Kubernetes 4.4.4.4 443/0"];
    check(&intake.state(), &expected, &expected);
    let system = "apiVersion: v1\nkind: Namespace\nmetadata: {name: istio-system, labels: {topology.istio.io/network: ns}}\n";
    apply(&mut intake, system);
    assert_eq!(networks(&intake), ["ns", "ns", "ns"]);
    let labelled = objects
        .split("---")
        .next()
        .unwrap()
        .replace("app: web", "topology.istio.io/network: own");
    apply(&mut intake, &labelled);
    assert_eq!(networks(&intake), ["own", "ns", "ns"]);
}

//! Worked examples of the specification, and the laws of the registry.

use std::time::Instant;

use model::{MeshState, PushRequest, ServiceKey, Timestamp, service::Endpoint};

use crate::{Change, Decoder, Intake, Options};

/// An intake with the objects of `text`; every object must be accepted.
#[track_caller]
pub(super) fn intake(text: &str) -> Intake {
    let mut intake = Intake::new(Options::default());
    apply(&mut intake, text);
    intake
}

#[track_caller]
fn changes(text: &str) -> Vec<Change> {
    let decoded = Decoder::default().decode("test", text);
    assert!(decoded.findings.is_empty(), "{:#?}", decoded.findings);
    decoded.objects.into_iter().map(Change::Apply).collect()
}

#[track_caller]
pub(super) fn apply(intake: &mut Intake, text: &str) -> PushRequest {
    intake.apply(changes(text), now())
}

pub(super) fn now() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "an arbitrary point in time")]
    *START.get_or_init(Instant::now)
}

pub(super) fn endpoints<'a>(state: &'a MeshState, key: &str) -> Vec<&'a Endpoint> {
    let (namespace, hostname) = key.split_once('/').unwrap();
    let found = state.endpoints.get(&ServiceKey::new(namespace, hostname));
    found
        .into_iter()
        .flat_map(|e| e.iter())
        .map(|e| &**e)
        .collect()
}

/// `address:port name health identity` of each endpoint.
pub(super) fn lines(state: &MeshState, key: &str) -> Vec<String> {
    endpoints(state, key)
        .iter()
        .map(|e| {
            let account = e.service_account.rsplit('/').next().unwrap_or_default();
            format!(
                "{}:{} {} {:?} {account}",
                e.address(),
                e.port,
                e.service_port_name,
                e.health
            )
        })
        .collect()
}

const WEB: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop, annotations: {networking.istio.io/exportTo: '., ops'}}
spec:
  clusterIP: 10.0.0.5
  selector: {app: web}
  ports:
  - {name: http-api, port: 80, targetPort: 8080}
  - {name: grpc-web, port: 81, targetPort: web}
  - {name: http, port: 82, targetPort: 8082, appProtocol: kubernetes.io/wss}
  - {name: db, port: 3306}
  - {name: misc, port: 9000, appProtocol: foo}
  - {name: dns, port: 53, protocol: UDP}
---
apiVersion: v1
kind: Node
metadata: {name: n1, labels: {topology.kubernetes.io/region: r, topology.kubernetes.io/zone: z}}
";

fn pod(name: &str, ip: &str, account: &str) -> String {
    format!(
        "
---
apiVersion: v1
kind: Pod
metadata:
  name: {name}
  namespace: shop
  generateName: web-6b7-
  ownerReferences: [{{kind: ReplicaSet, name: web-6b7, controller: true}}]
  labels: {{app: web, pod-template-hash: 6b7, security.istio.io/tlsMode: istio}}
spec: {{serviceAccountName: {account}, nodeName: n1}}
status: {{phase: Running, podIP: {ip}, conditions: [{{type: Ready, status: 'True'}}]}}
"
    )
}

fn slice(service: &str, endpoints: &[(&str, &str)]) -> String {
    let endpoints: Vec<String> = endpoints
        .iter()
        .map(|(ip, pod)| {
            let target = if pod.is_empty() {
                String::new()
            } else {
                format!(", targetRef: {{kind: Pod, name: {pod}, namespace: shop}}")
            };
            format!("{{addresses: [{ip}], conditions: {{ready: true}}{target}}}")
        })
        .collect();
    format!(
        "
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {service}-1, namespace: shop, labels: {{kubernetes.io/service-name: {service}}}}}
addressType: IPv4
ports: [{{name: http-api, port: 8080}}]
endpoints: [{}]
",
        endpoints.join(", ")
    )
}

const WEB_KEY: &str = "shop/web.shop.svc.cluster.local";

#[test]
fn ports_and_protocols() {
    let state = intake(WEB).state();
    let service = state.services.values().next().unwrap();
    assert_eq!(&*service.hostname, "web.shop.svc.cluster.local");
    let ports: Vec<String> = service
        .ports
        .iter()
        .map(|p| format!("{} {} {}", p.name, p.port, p.protocol))
        .collect();
    assert_eq!(
        ports,
        [
            "http-api 80 HTTP",
            "grpc-web 81 GRPC-Web",
            "http 82 HTTPS",
            "db 3306 TCP",
            "misc 9000 UnsupportedProtocol",
            "dns 53 UDP"
        ]
    );
    assert!(
        service.attributes.export_to.contains("ops") && service.attributes.export_to.contains(".")
    );
    assert_eq!(&*service.cluster_vips["Kubernetes"][0], "10.0.0.5");
}

#[test]
fn slices_to_endpoints() {
    let slice = "
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http-api, port: 8080}]
endpoints:
- {addresses: [10.1.0.1], conditions: {ready: true},  targetRef: {kind: Pod, name: web-6b7-x, namespace: shop}}
- {addresses: [10.1.0.2], conditions: {ready: false, serving: true, terminating: true}, targetRef: {kind: Pod, name: web-6b7-y, namespace: shop}}
- {addresses: [10.1.0.3], conditions: {ready: true},  targetRef: {kind: Pod, name: web-6b7-z, namespace: shop}}
- {addresses: [192.168.9.9], conditions: {}}
";
    let text = [
        WEB,
        &pod("web-6b7-x", "10.1.0.1", "web"),
        &pod("web-6b7-y", "10.1.0.2", "web"),
        slice,
    ]
    .concat();
    let mut intake = intake(&text);
    let state = intake.state();
    let expected = [
        "10.1.0.1:8080 http-api Healthy web",
        "10.1.0.2:8080 http-api Terminating web",
        "192.168.9.9:8080 http-api Healthy ",
    ];
    assert_eq!(lines(&state, WEB_KEY), expected);
    let found = endpoints(&state, WEB_KEY);
    let labels: Vec<String> = found[0]
        .labels
        .iter()
        .map(|(k, v)| format!("{k}={v}"))
        .collect();
    assert_eq!(
        labels,
        [
            "app=web",
            "kubernetes.io/hostname=n1",
            "pod-template-hash=6b7",
            "security.istio.io/tlsMode=istio",
            "topology.istio.io/cluster=Kubernetes",
            "topology.istio.io/network=",
            "topology.kubernetes.io/region=r",
            "topology.kubernetes.io/zone=z"
        ]
    );
    assert_eq!(
        (&*found[0].workload_name, &*found[0].tls_mode),
        ("web", "istio")
    );
    assert!(found[0].send_unhealthy);
    assert_eq!(
        (&*found[2].workload_name, &*found[2].tls_mode),
        ("", "disabled")
    );
    assert_eq!(intake.parked(), 1);

    let request = apply(&mut intake, &pod("web-6b7-z", "10.1.0.3", "web"));
    assert!(
        request
            .endpoints
            .contains(&ServiceKey::new("shop", "web.shop.svc.cluster.local"))
    );
    assert_eq!(intake.parked(), 0);
    assert_eq!(
        lines(&intake.state(), WEB_KEY)[2],
        "10.1.0.3:8080 http-api Healthy web"
    );
}

#[test]
fn a_lost_endpoint_is_told_apart_from_a_new_one() {
    let unready = slice("web", &[("10.1.0.1", ""), ("10.1.0.3", "")]).replace(
        "[10.1.0.3], conditions: {ready: true}",
        "[10.1.0.3], conditions: {ready: false}",
    );
    let mut intake = intake(&[WEB, &slice("web", &[("10.1.0.1", "")])].concat());
    let key = || ServiceKey::new("shop", "web.shop.svc.cluster.local");
    for (slice, lost) in [
        (slice("web", &[("10.1.0.1", ""), ("10.1.0.2", "")]), false),
        (slice("web", &[("10.1.0.1", ""), ("10.1.0.3", "")]), true),
        (unready, true),
        (slice("web", &[("10.1.0.1", ""), ("10.1.0.3", "")]), false),
        (slice("web", &[]), true),
    ] {
        let request = apply(&mut intake, &slice);
        assert!(request.endpoints.contains(&key()), "{slice}");
        assert_eq!(request.removals.contains(&key()), lost, "{slice}");
    }
}

#[test]
fn a_reused_address_belongs_to_the_younger_pod() {
    let young = "
---
apiVersion: v1
kind: Pod
metadata: {name: b, namespace: other, creationTimestamp: 2024-01-02T00:00:00Z}
spec: {serviceAccountName: other}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
";
    let text = [
        WEB,
        &pod("a", "10.1.0.1", "x"),
        &slice("web", &[("10.1.0.1", "a")]),
    ]
    .concat();
    let mut intake = intake(&text);
    assert_eq!(
        lines(&intake.state(), WEB_KEY),
        ["10.1.0.1:8080 http-api Healthy x"]
    );
    apply(&mut intake, young);
    assert_eq!(lines(&intake.state(), WEB_KEY), [""; 0]);
    intake.apply(
        [Change::Delete(model::ConfigKey::new(
            model::Kind::Pod,
            "other",
            "b",
        ))],
        now(),
    );
    assert_eq!(
        lines(&intake.state(), WEB_KEY),
        ["10.1.0.1:8080 http-api Healthy x"]
    );
}

#[test]
fn entries_select_pods_and_workload_entries() {
    let text = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: vm, namespace: shop}
spec:
  hosts: [vm.shop.internal]
  location: MESH_INTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP, targetPort: 8080}, {number: 9090, name: admin, protocol: TCP}]
  workloadSelector: {labels: {app: vm}}
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: vm1, namespace: shop, labels: {app: vm, version: v2}}
spec: {address: 2.2.2.2, labels: {version: v1}, ports: {http: 7000}, serviceAccount: vm, locality: us/a, network: n2, weight: 3}
---
apiVersion: v1
kind: Pod
metadata: {name: p, namespace: shop, labels: {app: vm}}
spec: {serviceAccountName: p}
status: {phase: Running, podIP: 10.1.0.7, conditions: [{type: Ready, status: 'True'}]}
";
    let state = intake(text).state();
    let key = "shop/vm.shop.internal";
    assert_eq!(
        lines(&state, key),
        [
            "10.1.0.7:8080 http Healthy p",
            "10.1.0.7:9090 admin Healthy p",
            "2.2.2.2:7000 http Unknown vm",
            "2.2.2.2:9090 admin Unknown vm"
        ]
    );
    let vm = endpoints(&state, key)[2];
    assert_eq!(
        (&*vm.tls_mode, vm.weight, &*vm.network, &*vm.workload_name),
        ("istio", 3, "n2", "vm1")
    );
    assert_eq!(
        (vm.legacy_port_key, vm.labels["version"].as_str()),
        (80, "v2")
    );
    assert_eq!(state.instances_at("2.2.2.2").count(), 2);
    let pod = endpoints(&state, key)[0];
    assert_eq!((&*pod.tls_mode, &*pod.workload_name), ("disabled", "p"));
}

#[test]
fn services_select_workload_entries() {
    let text = "
---
apiVersion: networking.istio.io/v1
kind: WorkloadEntry
metadata: {name: w, namespace: shop, labels: {app: web}}
spec: {address: 3.3.3.3, ports: {http-api: 18080, web: 18081}}
";
    let mut intake = intake(&[WEB, text].concat());
    let ports = |intake: &Intake| -> Vec<String> {
        endpoints(&intake.state(), WEB_KEY)
            .iter()
            .map(|e| format!("{} {}", e.service_port_name, e.port))
            .collect()
    };
    let expected = [
        "http-api 18080",
        "grpc-web 18081",
        "http 8082",
        "db 3306",
        "misc 9000",
        "dns 53",
    ];
    assert_eq!(ports(&intake), expected);
    apply(&mut intake, &text.replace(", web: 18081", ""));
    assert_eq!(
        ports(&intake),
        [
            "http-api 18080",
            "http 8082",
            "db 3306",
            "misc 9000",
            "dns 53"
        ]
    );
    apply(&mut intake, &text.replace("app: web", "app: other"));
    assert_eq!(ports(&intake), [""; 0]);
}

#[test]
fn addresses_and_hosts_of_entries() {
    let text = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: e, namespace: shop}
spec: {hosts: [a.com, b.com], addresses: [1.1.1.1/32, 2.2.0.0/16], resolution: STATIC, ports: [{number: 443, name: tls, protocol: TLS}], endpoints: [{address: 9.9.9.9}]}
";
    let state = intake(text).state();
    let services: Vec<String> = state
        .services
        .values()
        .map(|s| format!("{} {}", s.hostname, s.default_address))
        .collect();
    assert_eq!(
        services,
        [
            "a.com 1.1.1.1",
            "a.com 2.2.0.0/16",
            "b.com 1.1.1.1",
            "b.com 2.2.0.0/16"
        ]
    );
    let found = endpoints(&state, "shop/a.com");
    assert_eq!(found.len(), 2);
    assert_eq!(&*found[0].workload_name, "e-0");

    let dns = "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: e, namespace: shop}
spec: {hosts: [a.com, b.com], resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS, targetPort: 8443}]}
";
    let state = intake(dns).state();
    let found = endpoints(&state, "shop/b.com");
    assert_eq!(
        (found.len(), found[0].address(), found[0].port),
        (1, "b.com", 8443)
    );
    assert!(found[0].labels.is_empty() && state.instances.is_empty());
    assert_eq!(
        (&*found[0].workload_name, &*found[0].tls_mode),
        ("e", "disabled")
    );
}

#[test]
fn headless_and_external_name() {
    let text = "
{apiVersion: v1, kind: Service, metadata: {name: db, namespace: shop}, spec: {clusterIP: None, selector: {app: db}, ports: [{name: tcp, port: 5432}]}}
---
{apiVersion: v1, kind: Service, metadata: {name: ext, namespace: shop}, spec: {type: ExternalName, externalName: db.shop.svc.cluster.local, ports: [{name: tcp, port: 5432}]}}
";
    let state = intake(text).state();
    let found: Vec<String> = state
        .services
        .values()
        .map(|s| {
            format!(
                "{} {:?} {} {:?} {} {}",
                s.attributes.name,
                s.resolution,
                s.default_address,
                s.cluster_vips["Kubernetes"],
                s.mesh_external,
                s.attributes.external_name
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            "db Passthrough 0.0.0.0 [\"0.0.0.0\"] false ",
            "ext Alias 0.0.0.0 [\"0.0.0.0\"] true db.shop.svc.cluster.local"
        ]
    );
}

#[test]
fn created_times_of_recordings() {
    let decoder = Decoder {
        default_created: Timestamp(1_704_067_200),
        ..Decoder::default()
    };
    let decoded = decoder.decode("test", WEB);
    assert_eq!(decoded.objects[0].meta().created, Timestamp(1_704_067_200));
}

//! What a proxy has nothing to do with costs it nothing: for each kind of input and each kind of proxy
//! an unrelated object comes, changes and goes, and no resource is built and no byte sent.
//!
//! A class may be asked whether a change concerns it, and answers from fingerprints: its resources are
//! then the same allocations as before. A resource that is built again, even to the same bytes, is
//! another allocation.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "helpers of tests"
)]

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use intake::{Change, Decoder, Intake, Options};
use istiod::generate::{Generator, Received, ResourceType};
use model::{Features, Node, Object, Proxy};
use serde_json::{Value, json};
use tests::corpus;
use xds::Resource;

/// Gateways of Gateway API, and a waypoint, beside the base meshes of the corpus.
const GATEWAYS: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: public, namespace: app}
spec:
  gatewayClassName: istio
  listeners: [{name: http, port: 80, protocol: HTTP}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop, namespace: app}
spec:
  parentRefs: [{name: public}]
  rules: [{backendRefs: [{name: server, port: 80}]}]
---
apiVersion: v1
kind: Service
metadata: {name: public-istio, namespace: app, labels: {gateway.networking.k8s.io/gateway-name: public}}
spec:
  clusterIP: 10.96.7.1
  selector: {gateway.networking.k8s.io/gateway-name: public}
  ports: [{name: http, port: 80}]
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: app, labels: {istio.io/waypoint-for: service}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: own, namespace: app}
spec:
  configPatches:
  - applyTo: CLUSTER
    patch: {operation: ADD, value: {name: added, type: STATIC, connect_timeout: 1s}}
  - applyTo: HTTP_FILTER
    match: {listener: {filterChain: {filter: {name: envoy.filters.network.http_connection_manager}}}}
    patch:
      operation: INSERT_FIRST
      value: {name: mine, typed_config: {"@type": type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer, max_request_bytes: 1}}
  - applyTo: VIRTUAL_HOST
    patch: {operation: MERGE, value: {request_headers_to_remove: [x]}}
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: own, namespace: app}
spec: {url: "https://example.com/a.wasm"}
"#;

/// A state of the mesh, and what each proxy receives.
struct World {
    intake: Intake,
    generator: Generator,
    proxies: BTreeMap<&'static str, Proxy>,
    received: BTreeMap<&'static str, Received>,
    decoder: Decoder,
}

fn node(kind: &str, name: &str, namespace: &str, address: &str, metadata: Value) -> Node {
    let mut all =
        json!({"NAMESPACE": namespace, "INSTANCE_IPS": address, "ISTIO_VERSION": "1.32.0"});
    all.as_object_mut()
        .unwrap()
        .extend(metadata.as_object().cloned().unwrap_or_default());
    Node {
        id: format!("{kind}~{address}~{name}.{namespace}~{namespace}.svc.cluster.local"),
        metadata: all.as_object().cloned().unwrap_or_default(),
        ..Node::default()
    }
}

/// One proxy of each kind that is built differently.
fn proxies() -> BTreeMap<&'static str, Proxy> {
    let sidecar = |address: &str, metadata: Value| node("sidecar", "p-0", "app", address, metadata);
    let gateway = |name: &str| json!({"LABELS": {"gateway.networking.k8s.io/gateway-name": name}});
    let ingress = json!({"LABELS": {"istio": "ingressgateway", "app": "istio-ingressgateway"}});
    let nodes = [
        ("sidecar", sidecar("10.244.0.10", json!({}))),
        (
            "sidecar-dns",
            sidecar("10.244.0.11", json!({"DNS_CAPTURE": "true"})),
        ),
        (
            "sidecar-hbone",
            sidecar("10.244.0.12", json!({"ENABLE_HBONE": "true"})),
        ),
        (
            "sidecar-none",
            sidecar("10.244.0.13", json!({"INTERCEPTION_MODE": "NONE"})),
        ),
        (
            "server",
            sidecar("10.244.0.20", json!({"LABELS": {"app": "server"}})),
        ),
        (
            "router",
            node("router", "i-0", "istio-system", "10.244.9.1", ingress),
        ),
        (
            "router-api",
            node("router", "g-0", "app", "10.244.9.2", gateway("public")),
        ),
        (
            "waypoint",
            node("waypoint", "w-0", "app", "10.244.9.3", gateway("waypoint")),
        ),
    ];
    nodes
        .into_iter()
        .map(|(name, node)| (name, Proxy::parse(&node).unwrap()))
        .collect()
}

#[expect(clippy::disallowed_methods, reason = "any instant will do")]
fn now() -> Instant {
    Instant::now()
}

impl World {
    fn open() -> Self {
        let features = Features {
            ambient: true,
            ..Features::default()
        };
        let mut intake = Intake::new(Options {
            features,
            ..Options::default()
        });
        let decoder = istiod::load::decoder();
        let root = corpus::root().unwrap();
        let bases = ["minimal", "gateway"].map(|base| {
            std::fs::read_to_string(root.join("bases").join(base).join("objects.yaml")).unwrap()
        });
        for text in bases.iter().map(String::as_str).chain([GATEWAYS]) {
            let decoded = decoder.decode("world.yaml", text);
            assert!(!decoded.broken);
            intake.apply(decoded.objects.into_iter().map(Change::Apply), now());
        }
        let generator = Generator::new(intake.state()).unwrap();
        let proxies = proxies();
        let received = proxies
            .iter()
            .map(|(name, proxy)| (*name, generator.receive(proxy)))
            .collect();
        Self {
            intake,
            generator,
            proxies,
            received,
            decoder,
        }
    }

    #[track_caller]
    fn read(&self, object: &Value) -> Object {
        let decoded = self.decoder.decode("edit.json", &object.to_string());
        let read = decoded.objects.into_iter().next();
        read.unwrap_or_else(|| panic!("nothing is read of {object}: {:?}", decoded.findings))
    }

    /// Applies changes; gives by proxy and type the resources that were built, and those whose bytes
    /// are others.
    fn apply(&mut self, changes: Vec<Change>) -> Vec<String> {
        let request = self.intake.apply(changes, now());
        self.generator.advance(self.intake.state(), &request);
        let mut costs = Vec::new();
        for (name, proxy) in &self.proxies {
            let after = self.generator.receive(proxy);
            let before = &self.received[name];
            for (kind, (_, set)) in &after.asked {
                let known = before.asked.get(kind).map(|(_, set)| set);
                for resource in set.iter() {
                    let same = known.and_then(|set| set.get(resource.name()));
                    costs.extend(
                        cost(same, resource).map(|what| {
                            format!("{name}: {} {} {what}", kind.list(), resource.name())
                        }),
                    );
                }
                let gone = known.is_some_and(|known| known.len() > set.len());
                costs.extend(gone.then(|| format!("{name}: {} fewer", kind.list())));
            }
            self.received.insert(name, after);
        }
        costs
    }
}

fn cost(before: Option<&Arc<Resource>>, after: &Arc<Resource>) -> Option<&'static str> {
    match before {
        Some(before) if Arc::ptr_eq(before, after) => None,
        Some(before) if before.version() == after.version() => Some("built"),
        _ => Some("built and sent"),
    }
}

/// Objects that no proxy of the world has to do with, one for each kind of input.
const UNRELATED: &[&str] = &[
    "{apiVersion: v1, kind: Namespace, metadata: {name: elsewhere}}",
    "{apiVersion: v1, kind: Node, metadata: {name: node-e, labels: {topology.kubernetes.io/region: r}}}",
    "{apiVersion: v1, kind: Secret, metadata: {name: s, namespace: elsewhere}, data: {a: YQ==}}",
    "{apiVersion: v1, kind: ConfigMap, metadata: {name: c, namespace: elsewhere}, data: {a: b}}",
    "{apiVersion: v1, kind: Pod, metadata: {name: p, namespace: elsewhere, labels: {app: e}}, spec: {serviceAccountName: e, nodeName: node-e}, status: {phase: Running, podIP: 10.200.0.1, podIPs: [{ip: 10.200.0.1}]}}",
    "{apiVersion: v1, kind: Service, metadata: {name: s, namespace: elsewhere, annotations: {networking.istio.io/exportTo: .}}, spec: {clusterIP: 10.200.1.1, selector: {app: e}, ports: [{name: http, port: 80}]}}",
    "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: s-1, namespace: elsewhere, labels: {kubernetes.io/service-name: s}}, addressType: IPv4, endpoints: [{addresses: [10.200.0.1], conditions: {ready: true}}], ports: [{name: http, port: 80}]}",
    "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: elsewhere}, spec: {hosts: [e.example.com], exportTo: [.], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.200.0.2}]}}",
    "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w, namespace: elsewhere}, spec: {address: 10.200.0.3, labels: {app: e}}}",
    "{apiVersion: networking.istio.io/v1, kind: VirtualService, metadata: {name: v, namespace: elsewhere}, spec: {hosts: [e.example.com], exportTo: [.], http: [{route: [{destination: {host: e.example.com}}]}]}}",
    "{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: d, namespace: elsewhere}, spec: {host: e.example.com, exportTo: [.], subsets: [{name: v1}]}}",
    "{apiVersion: networking.istio.io/v1, kind: Gateway, metadata: {name: g, namespace: elsewhere}, spec: {selector: {istio: elsewhere}, servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]}}",
    "{apiVersion: networking.istio.io/v1, kind: Sidecar, metadata: {name: s, namespace: elsewhere}, spec: {egress: [{hosts: ['./*']}]}}",
    "{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: f, namespace: elsewhere}, spec: {configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 3s}}}]}}",
    "{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: g, namespace: app}, spec: {workloadSelector: {labels: {app: nobody}}, configPatches: [{applyTo: CLUSTER, patch: {operation: MERGE, value: {connect_timeout: 3s}}}]}}",
    "{apiVersion: networking.istio.io/v1alpha3, kind: EnvoyFilter, metadata: {name: h, namespace: app}, spec: {configPatches: [{applyTo: CLUSTER, match: {cluster: {service: nobody.example.com}}, patch: {operation: MERGE, value: {connect_timeout: 3s}}}]}}",
    "{apiVersion: networking.istio.io/v1beta1, kind: ProxyConfig, metadata: {name: p, namespace: elsewhere}, spec: {concurrency: 1}}",
    "{apiVersion: security.istio.io/v1, kind: PeerAuthentication, metadata: {name: p, namespace: elsewhere}, spec: {mtls: {mode: STRICT}}}",
    "{apiVersion: security.istio.io/v1, kind: RequestAuthentication, metadata: {name: r, namespace: elsewhere}, spec: {jwtRules: [{issuer: a, jwks: '{\"keys\": []}'}]}}",
    "{apiVersion: security.istio.io/v1, kind: AuthorizationPolicy, metadata: {name: a, namespace: elsewhere}, spec: {action: DENY, rules: [{}]}}",
    "{apiVersion: telemetry.istio.io/v1, kind: Telemetry, metadata: {name: t, namespace: elsewhere}, spec: {accessLogging: [{disabled: true}]}}",
    "{apiVersion: extensions.istio.io/v1alpha1, kind: WasmPlugin, metadata: {name: w, namespace: elsewhere}, spec: {url: 'https://example.com/b.wasm'}}",
    "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: elsewhere}, spec: {ingressClassName: other, rules: [{host: i.example.com, http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: s, port: {number: 80}}}}]}}]}}",
    "{apiVersion: gateway.networking.k8s.io/v1, kind: GatewayClass, metadata: {name: other}, spec: {controllerName: example.com/other}}",
    "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: o, namespace: elsewhere}, spec: {gatewayClassName: other, listeners: [{name: http, port: 80, protocol: HTTP}]}}",
    "{apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: h, namespace: elsewhere}, spec: {parentRefs: [{name: o}], rules: [{backendRefs: [{name: s, port: 80}]}]}}",
    "{apiVersion: gateway.networking.k8s.io/v1, kind: GRPCRoute, metadata: {name: h, namespace: elsewhere}, spec: {parentRefs: [{name: o}], rules: [{backendRefs: [{name: s, port: 80}]}]}}",
    "{apiVersion: gateway.networking.k8s.io/v1alpha2, kind: TCPRoute, metadata: {name: h, namespace: elsewhere}, spec: {parentRefs: [{name: o}], rules: [{backendRefs: [{name: s, port: 80}]}]}}",
    "{apiVersion: gateway.networking.k8s.io/v1beta1, kind: ReferenceGrant, metadata: {name: r, namespace: elsewhere}, spec: {from: [{group: gateway.networking.k8s.io, kind: HTTPRoute, namespace: other}], to: [{group: '', kind: Service}]}}",
];

#[test]
fn what_is_unrelated_builds_nothing_and_sends_nothing() {
    let mut world = World::open();
    let mut costs = Vec::new();
    for yaml in UNRELATED {
        let mut value = intake::yaml_values(yaml).unwrap().remove(0);
        let created = world.read(&value);
        value["metadata"]["annotations"]["example.com/note"] = "means nothing".into();
        let changed = world.read(&value);
        let key = created.key();
        let kind = key.kind.name();
        let steps = [
            ("created", Change::Apply(created)),
            ("changed", Change::Apply(changed)),
            ("deleted", Change::Delete(key)),
        ];
        for (step, change) in steps {
            let cost = world.apply(vec![change]);
            costs.extend(
                cost.into_iter()
                    .map(|cost| format!("{kind} {step}: {cost}")),
            );
        }
    }
    assert!(
        costs.is_empty(),
        "{} costs:\n{}",
        costs.len(),
        costs.join("\n")
    );
}

#[test]
fn what_is_related_is_built() {
    // Otherwise the other test would prove nothing.
    let mut world = World::open();
    let rule = "{apiVersion: networking.istio.io/v1, kind: DestinationRule, metadata: {name: d, namespace: app}, spec: {host: server.app.svc.cluster.local, subsets: [{name: v1}]}}";
    let rule = world.read(&intake::yaml_values(rule).unwrap()[0]);
    let costs = world.apply(vec![Change::Apply(rule)]);
    for proxy in world.proxies.keys().filter(|name| **name != "waypoint") {
        let own = format!("{proxy}: {}", ResourceType::Cds.list());
        assert!(
            costs.iter().any(|cost| cost.starts_with(&own)),
            "{proxy}: {costs:?}"
        );
    }
}

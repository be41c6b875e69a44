//! Objects and nodes, up to what proxies get of them.

use std::time::Instant;

use intake::{Change, Decoder, Intake, Options};
use istiod::{
    generate::{self, Generator},
    node as node_file,
};
use model::{Object, Proxy};
use serde_json::{Value, json};

/// What is in the mesh beside what is read: services of both kinds, a gateway, and routes.
const BASE: &str = "
apiVersion: v1
kind: Service
metadata: {name: web, namespace: ns}
spec:
  clusterIP: 10.2.0.1
  selector: {app: web}
  ports: [{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 9000}]
---
apiVersion: v1
kind: Pod
metadata: {name: web-0, namespace: ns, labels: {app: web}}
spec: {serviceAccountName: web, nodeName: n}
status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: web-1, namespace: ns, labels: {kubernetes.io/service-name: web}}
addressType: IPv4
ports: [{name: http, port: 8080}, {name: tcp, port: 9000}]
endpoints: [{addresses: [10.1.0.1], conditions: {ready: true}, targetRef: {kind: Pod, name: web-0, namespace: ns}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: out, namespace: ns}
spec: {hosts: [out.test], resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}
---
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: gw, namespace: ns}
spec:
  selector: {app: gw}
  servers: [{port: {number: 80, name: http, protocol: HTTP}, hosts: ['*']}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: web, namespace: ns}
spec:
  hosts: [web.test]
  gateways: [gw, mesh]
  http: [{match: [{uri: {prefix: /a}}], route: [{destination: {host: web, port: {number: 80}}}]}]
";

fn decode(decoder: &Decoder, text: &str) -> Vec<Object> {
    decoder.decode("fuzz", text).objects
}

/// Generates what proxies of a mesh with these objects get.
#[expect(clippy::disallowed_methods, reason = "any time will do")]
fn receive(objects: impl IntoIterator<Item = Object>, proxies: &[Proxy]) {
    let mut intake = Intake::new(Options::default());
    intake.apply(objects.into_iter().map(Change::Apply), Instant::now());
    let Ok(generator) = Generator::new(intake.state()) else {
        return;
    };
    for proxy in proxies {
        drop(generator.receive(proxy));
    }
}

fn proxy(kind: &str, name: &str, metadata: &Value) -> Option<Proxy> {
    let value = json!({
        "id": format!("{kind}~10.1.0.1~{name}.ns~ns.svc.cluster.local"),
        "metadata": metadata,
    });
    let node = node_file::from_value(&value).ok()?;
    generate::parse(&node).ok()
}

/// One proxy of each type.
fn proxies() -> Vec<Proxy> {
    let labels = |app: &str| json!({"NAMESPACE": "ns", "LABELS": {"app": app}});
    [
        proxy("sidecar", "web-0", &labels("web")),
        proxy("router", "gw-0", &labels("gw")),
    ]
    .into_iter()
    .flatten()
    .collect()
}

/// Objects of any kind, in an otherwise small mesh.
pub(super) fn mesh(bytes: &[u8]) {
    let decoder = istiod::load::decoder();
    let text = super::text(bytes);
    let objects = decode(&decoder, BASE);
    receive(
        objects.into_iter().chain(decode(&decoder, &text)),
        &proxies(),
    );
}

/// The patches of an `EnvoyFilter`, whether admitted or not.
pub(super) fn envoy_filter(bytes: &[u8]) {
    let Some(patches) = value(bytes) else { return };
    let spec = match patches {
        Value::Array(_) => json!({"configPatches": patches}),
        Value::Object(ref fields) if fields.contains_key("configPatches") => patches,
        patch => json!({"configPatches": [patch]}),
    };
    for admitted in [false, true] {
        let decoder = Decoder {
            admitted,
            ..istiod::load::decoder()
        };
        let filter = object("networking.istio.io/v1alpha3", "EnvoyFilter", &spec);
        let objects = decode(&decoder, BASE);
        receive(
            objects.into_iter().chain(decode(&decoder, &filter)),
            &proxies(),
        );
    }
}

/// A value, as the rules of policies: rules, JWT rules, and each of its lines as every text of one.
pub(super) fn policies(bytes: &[u8]) {
    let text = super::text(bytes);
    let lines: Vec<&str> = text.lines().take(16).collect();
    let mut specs = vec![
        (
            "AuthorizationPolicy",
            json!({"action": "DENY", "rules": [{
                "from": [{"source": {
                    "principals": lines, "notNamespaces": lines, "requestPrincipals": lines,
                    "ipBlocks": lines, "remoteIpBlocks": lines, "serviceAccounts": lines,
                }}],
                "to": [{"operation": {
                    "paths": lines, "notPaths": lines, "hosts": lines, "methods": lines, "ports": lines,
                }}],
                "when": lines.iter().map(|line| json!({"key": line, "values": lines})).collect::<Vec<_>>(),
            }]}),
        ),
        (
            "RequestAuthentication",
            json!({"jwtRules": lines.iter().map(|line| json!({
                "issuer": line, "jwks": line, "audiences": lines, "fromParams": lines,
                "fromHeaders": [{"name": line, "prefix": line}], "outputPayloadToHeader": line,
                "outputClaimToHeaders": [{"header": line, "claim": line}],
            })).collect::<Vec<_>>()}),
        ),
    ];
    if let Some(value) = value(bytes) {
        let list = if value.is_array() {
            value
        } else {
            json!([value])
        };
        specs.push(("AuthorizationPolicy", json!({"rules": list})));
        specs.push(("RequestAuthentication", json!({"jwtRules": list})));
    }
    let proxies = proxies();
    for admitted in [false, true] {
        let decoder = Decoder {
            admitted,
            ..istiod::load::decoder()
        };
        for (kind, spec) in &specs {
            let policy = object("security.istio.io/v1", kind, spec);
            let objects = decode(&decoder, BASE);
            receive(
                objects.into_iter().chain(decode(&decoder, &policy)),
                &proxies,
            );
        }
    }
}

/// A node file, or the metadata of one.
pub(super) fn node(bytes: &[u8]) {
    let Some(value) = value(bytes) else { return };
    let whole = node_file::from_value(&value)
        .ok()
        .and_then(|node| generate::parse(&node).ok());
    let proxies: Vec<Proxy> = whole
        .into_iter()
        .chain(
            ["sidecar", "router", "waypoint", "ztunnel"]
                .iter()
                .filter_map(|kind| proxy(kind, "web-0", &value)),
        )
        .collect();
    let decoder = istiod::load::decoder();
    receive(decode(&decoder, BASE), &proxies);
}

fn value(bytes: &[u8]) -> Option<Value> {
    let documents = intake::yaml_values(&super::text(bytes)).ok()?;
    documents.into_iter().next()
}

fn object(api: &str, kind: &str, spec: &Value) -> String {
    json!({
        "apiVersion": api, "kind": kind,
        "metadata": {"name": "n", "namespace": "ns"}, "spec": spec,
    })
    .to_string()
}

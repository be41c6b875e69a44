//! What the chains of gateways are made of.

use std::time::Instant;

use intake::{Change, Decoder, Intake, Options};
use model::{Node, Proxy};
use pushctx::PushContext;
use serde_json::Value;

use crate::lds::Lds;

const MESH: &str = "
apiVersion: networking.istio.io/v1
kind: Gateway
metadata: {name: g, namespace: edge}
spec:
  servers: [{port: {number: 15443, name: tls, protocol: TLS}, hosts: ['*.local'], tls: {mode: AUTO_PASSTHROUGH}}]
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: app}
spec: {clusterIP: 10.0.0.1, ports: [{name: mongo, port: 27017}, {name: tcp, port: 9000}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: none, namespace: edge}
spec: {}
---
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {name: w, namespace: edge}
spec: {url: 'oci://x/y:z', type: NETWORK, match: [{ports: [{number: 9000}]}]}
";

/// The listeners of a gateway of namespace `edge`.
fn listeners(text: &str) -> Vec<Value> {
    let decoder = Decoder {
        admitted: true,
        ..Decoder::default()
    };
    let decoded = decoder.decode("test.yaml", text);
    assert!(decoded.findings.is_empty(), "{:?}", decoded.findings);
    let mut intake = Intake::new(Options::default());
    let changes = decoded.objects.into_iter().map(Change::Apply);
    #[expect(clippy::disallowed_methods, reason = "requests say when they started")]
    intake.apply(changes, Instant::now());
    let context = PushContext::build(intake.state());
    let node = Node {
        id: "router~10.0.0.9~p.edge~edge.svc.cluster.local".to_owned(),
        ..Node::default()
    };
    let class = context.resolve(&context.classify(&Proxy::parse(&node).unwrap()));
    let set = Lds::default().generate(&context, &class);
    let shown = set.iter().map(|resource| {
        envoy_json::to_json(xds::type_url::LISTENER, &resource.body().to_bytes()).unwrap()
    });
    shown.collect()
}

/// Policies are for the other side of a connection that passes; what looks at its bytes is not, and goes by
/// the port of the service.
#[test]
fn connections_that_pass_have_the_filters_of_their_port_without_policies() {
    let listeners = listeners(MESH);
    let chains = listeners[0]["filterChains"].as_array().unwrap();
    let filters = chains.iter().map(|chain| {
        let names = chain["filters"].as_array().unwrap().iter();
        let names: Vec<_> = names
            .map(|filter| filter["name"].as_str().unwrap())
            .collect();
        (
            chain["filterChainMatch"]["serverNames"][0]
                .as_str()
                .unwrap()
                .to_owned(),
            names.join(" "),
        )
    });
    let of = |port: u16| format!("outbound_.{port}_._.db.app.svc.cluster.local");
    assert_eq!(
        filters.collect::<Vec<_>>(),
        [
            (
                of(27017),
                "envoy.filters.network.mongo_proxy envoy.filters.network.tcp_proxy".to_owned()
            ),
            (
                of(9000),
                "extensions.istio.io/trafficextension/edge.w~istio-translated-wasmplugin envoy.filters.network.tcp_proxy".to_owned()
            ),
        ]
    );
}

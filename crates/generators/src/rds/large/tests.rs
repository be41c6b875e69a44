use std::{collections::BTreeSet, time::Instant};

use intake::{Change, Decoder, Intake, Options};
use model::{Node, Proxy};
use proptest::prelude::*;

use super::*;
use crate::{
    rds,
    route::SessionLabels,
    testing::flips::{Flip, check_fields},
};

/// What may be in a mesh, besides the many services that are in all.
const OBJECTS: &[(&str, &str)] = &[
    (
        "ServiceEntry a/one",
        "{hosts: [one.example], addresses: [240.1.0.1], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC}",
    ),
    (
        "ServiceEntry b/same",
        "{hosts: [one.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC}",
    ),
    (
        "ServiceEntry b/vip",
        "{hosts: [vip.example], addresses: [240.1.0.1], ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: tcp, protocol: TCP}], resolution: STATIC}",
    ),
    (
        "ServiceEntry a/upper",
        "{hosts: [Upper.Example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC}",
    ),
    (
        "ServiceEntry a/wild",
        "{hosts: ['*.example'], ports: [{number: 80, name: http, protocol: HTTP}], resolution: NONE}",
    ),
    (
        "ServiceEntry a/private",
        "{hosts: [private.example], exportTo: ['.'], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC}",
    ),
    (
        "ServiceEntry a/short",
        "{hosts: [k], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC}",
    ),
    (
        "ServiceEntry a/udp",
        "{hosts: [udp.example], ports: [{number: 80, name: udp, protocol: UDP}], resolution: STATIC}",
    ),
    (
        "Service a/k",
        "{clusterIP: 10.0.0.1, ports: [{name: http, port: 80}]}",
    ),
    (
        "Service b/k",
        "{clusterIP: None, ports: [{name: http, port: 80}]}",
    ),
    (
        "Service b/alias",
        "{type: ExternalName, externalName: one.example, ports: [{name: http, port: 80}]}",
    ),
    (
        "VirtualService a/exact",
        "{hosts: [one.example, nobody.example], http: [{route: [{destination: {host: host-3.example}}]}]}",
    ),
    (
        "VirtualService b/wild",
        "{hosts: ['*.example'], http: [{fault: {abort: {httpStatus: 418, percentage: {value: 100}}}, route: [{destination: {host: one.example}}]}]}",
    ),
    (
        "VirtualService b/labels",
        "{hosts: [k.a.svc.cluster.local], http: [{match: [{sourceLabels: {app: p}}], route: [{destination: {host: k.b.svc.cluster.local}}]}]}",
    ),
    (
        "VirtualService a/other",
        "{hosts: [elsewhere.example], http: [{route: [{destination: {host: one.example}}]}]}",
    ),
    (
        "DestinationRule a/hash",
        "{host: host-3.example, trafficPolicy: {loadBalancer: {consistentHash: {httpHeaderName: x}}}}",
    ),
    (
        "DestinationRule a/plain",
        "{host: host-4.example, trafficPolicy: {tls: {mode: SIMPLE}}}",
    ),
    (
        "ServiceEntry many/host-8",
        "{hosts: [host-8.example], addresses: [240.7.7.7], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC}",
    ),
    (
        "Sidecar a/default",
        "{egress: [{hosts: ['./*', 'b/*', 'many/*']}], outboundTrafficPolicy: {mode: REGISTRY_ONLY}}",
    ),
];
/// Services that are in all meshes: more than one piece.
const MANY: usize = 300;

fn object(name: &str, spec: &str) -> Change {
    let (kind, name) = name.split_once(' ').unwrap();
    let (namespace, name) = name.split_once('/').unwrap();
    let api = if kind == "Service" {
        "v1"
    } else {
        "networking.istio.io/v1"
    };
    let text = format!(
        "apiVersion: {api}\nkind: {kind}\nmetadata: {{name: {name}, namespace: {namespace}}}\nspec: {spec}"
    );
    let decoder = Decoder {
        admitted: true,
        ..Decoder::default()
    };
    let mut decoded = decoder.decode(kind, &text);
    assert_eq!(decoded.objects.len(), 1, "{text}: {:?}", decoded.findings);
    Change::Apply(decoded.objects.remove(0))
}

fn mesh(objects: impl IntoIterator<Item = usize>) -> PushContext {
    let many = (0..MANY).map(|n| {
        let port = [80, 80, 80, 90][n % 4];
        let spec = format!(
            "{{hosts: [host-{n}.example], ports: [{{number: {port}, name: http, protocol: HTTP}}], resolution: STATIC}}"
        );
        object(&format!("ServiceEntry many/host-{n}"), &spec)
    });
    let more = objects
        .into_iter()
        .map(|at| object(OBJECTS[at].0, OBJECTS[at].1));
    let mut intake = Intake::new(Options::default());
    #[expect(clippy::disallowed_methods, reason = "requests say when they started")]
    intake.apply(many.chain(more), Instant::now());
    PushContext::build(intake.state())
}

fn class(context: &PushContext, namespace: &str) -> Arc<ProxyClass> {
    let node = Node {
        id: format!("sidecar~10.0.0.9~p.{namespace}~{namespace}.svc.cluster.local"),
        ..Node::default()
    };
    context.resolve(&context.classify(&Proxy::parse(&node).unwrap()))
}

/// Compares configurations made of parts with those that are built at once; counts the former.
fn compare(context: &PushContext, parts: &Parts) -> usize {
    let mut assembled = 0;
    for (namespace, port) in [("a", 80), ("b", 80), ("b", 90), ("a", 81)] {
        let (class, kind, name) = (
            class(context, namespace),
            RouteName::Port(port),
            port.to_string(),
        );
        let inputs = LargeInputs::gather(context, &class, &name, &kind, (1, parts)).unwrap();
        let whole = RouteInputs::gather(context, &class, &name, kind);
        assert_eq!(
            inputs.whole().fingerprint(),
            whole.fingerprint(),
            "{namespace} {port}"
        );
        let Some((body, sources)) = inputs.assemble(parts) else {
            continue;
        };
        assert_eq!(
            body.to_bytes(),
            envoy_json::canonical(&rds::build(&whole)),
            "{namespace} {port}"
        );
        let sources: BTreeSet<_> = sources.iter().cloned().collect();
        assert_eq!(sources, whole.sources().into_iter().collect());
        assembled += 1;
    }
    assembled
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(30))]

    #[test]
    fn parts_make_what_is_built_at_once(
        objects in prop::collection::btree_set(0..OBJECTS.len(), 0..8),
    ) {
        compare(&mesh(objects), &Parts::default());
    }
}

#[test]
fn meshes_without_conflicts_are_made_of_parts() {
    let named = |name: &str| {
        OBJECTS
            .iter()
            .position(|(other, _)| *other == name)
            .unwrap()
    };
    let objects = [
        "Service a/k",
        "VirtualService a/exact",
        "VirtualService b/labels",
        "DestinationRule a/hash",
    ];
    assert_eq!(compare(&mesh(objects.map(named)), &Parts::default()), 4);
}

#[test]
fn a_changed_service_costs_one_part_and_classes_share_the_rest() {
    let parts = Parts::default();
    let configuration = |context: &PushContext, namespace: &str| {
        let class = class(context, namespace);
        let kind = RouteName::Port(80);
        let inputs = LargeInputs::gather(context, &class, "80", &kind, (1, &parts)).unwrap();
        let (body, _) = inputs.assemble(&parts).unwrap();
        (body, parts.built.stats().misses)
    };
    let (first, built) = configuration(&mesh([]), "a");
    let (second, built_more) = configuration(&mesh([]), "b");
    assert_eq!(built_more, built, "another class has the same parts");
    assert_eq!(first.to_bytes(), second.to_bytes());
    let changed = "ServiceEntry many/host-8";
    let at = OBJECTS.iter().position(|(name, _)| *name == changed);
    let (third, built_last) = configuration(&mesh(at), "a");
    assert_eq!(built_last, built + 1);
    assert_ne!(first.to_bytes(), third.to_bytes());
    let copies = |body: &Body| {
        let parts = body.parts().iter().map(|part| part.as_ptr());
        parts.collect::<BTreeSet<_>>()
    };
    assert!(copies(&first).intersection(&copies(&third)).count() > 0);
}

impl Flip for ClientView {
    fn flip(&mut self) {
        self.domain.flip();
    }
}

#[test]
fn every_field_of_the_inputs_counts() {
    let named = |name: &str| {
        OBJECTS
            .iter()
            .position(|(other, _)| *other == name)
            .unwrap()
    };
    let objects = [
        "Service a/k",
        "VirtualService a/exact",
        "VirtualService b/labels",
        "VirtualService b/wild",
        "DestinationRule a/hash",
    ];
    let context = mesh(objects.map(named));
    let class = class(&context, "a");
    let whole = || {
        let mut whole = RouteInputs::gather(&context, &class, "80", RouteName::Port(80));
        whole
            .owners
            .insert("*.example".into(), ("b".into(), "wild".into()));
        whole.client.labels = [("app".to_owned(), "p".to_owned())].into();
        whole.client.retries.get_or_insert_default();
        whole.client.session.get_or_insert(SessionLabels {
            cookie: "a".to_owned(),
            header: "b".to_owned(),
        });
        whole
    };
    check_fields!(
        whole,
        RouteInputs::fingerprint,
        RouteInputs {
            name,
            kind: RouteName::HttpProxy,
            port,
            services,
            virtual_services,
            owners,
            rules,
            client
        }
    );
    check_fields!(
        || whole().client,
        ClientView::fingerprint,
        ClientView {
            namespace,
            domain,
            labels,
            addresses: model::AddressView {
                auto_allocated: !whole().client.addresses.auto_allocated,
                ..whole().client.addresses
            },
            unknown: Unknown::DynamicDns,
            attempt_count,
            forwarded_host,
            retries,
            absolute_names,
            plain_shadow_host,
            session,
        }
    );
    let parts = Parts::default();
    let large =
        || LargeInputs::gather(&context, &class, "90", &RouteName::Port(90), (1, &parts)).unwrap();
    check_fields!(
        large,
        LargeInputs::fingerprint,
        LargeInputs {
            routed: RouteInputs { port: 7, ..whole() },
            pieces
        }
    );
    let piece = || {
        let mut piece = large()
            .pieces
            .into_iter()
            .find(|piece| !piece.rules.is_empty())
            .unwrap();
        piece.client = whole().client;
        piece
    };
    check_fields!(
        piece,
        PieceInputs::fingerprint,
        PieceInputs {
            piece: large().pieces.pop().unwrap().piece,
            port,
            rules,
            client
        }
    );
}

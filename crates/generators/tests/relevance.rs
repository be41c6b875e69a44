//! What a change is said to touch is all that it changes: generating that alone and keeping the rest
//! gives what generating everything gives.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::disallowed_methods, reason = "requests say when they started")]

use std::{
    collections::BTreeSet,
    sync::{Arc, LazyLock},
    time::Instant,
};

use generators::{Mesh, Update, cds::Cds, eds::Eds};
use intake::{Change, Decoder, Intake, Options};
use model::{Node, Object, Proxy};
use proptest::prelude::*;
use pushctx::{ClassKey, ProxyClass, PushContext};
use serde_json::json;
use xds::{Interest, Resource, ResourceSet, Touched, World as _, type_url};

/// Objects in several versions; those of one line have one name.
const VERSIONS: &[&[(&str, &str, &str)]] = &[
    &[
        (
            "ServiceEntry a/x",
            "",
            "{hosts: [x.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, workloadSelector: {labels: {app: x}}}",
        ),
        (
            "ServiceEntry a/x",
            "",
            "{hosts: [x.example], ports: [{number: 80, name: http, protocol: HTTP}, {number: 81, name: tcp, protocol: TCP}], resolution: STATIC, workloadSelector: {labels: {app: x}}}",
        ),
        (
            "ServiceEntry a/x",
            "",
            "{hosts: [x.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DNS, exportTo: ['.'], endpoints: [{address: x.internal}]}",
        ),
        (
            "ServiceEntry a/x",
            "",
            "{hosts: [x.example, z.example], ports: [{number: 90, name: http, protocol: HTTP}], resolution: STATIC, subjectAltNames: [spiffe://x], endpoints: [{address: 10.1.1.1}]}",
        ),
    ],
    &[
        (
            "ServiceEntry b/x",
            "",
            "{hosts: [x.example], ports: [{number: 80, name: http, protocol: HTTP}], resolution: STATIC, endpoints: [{address: 10.1.1.2}]}",
        ),
        (
            "ServiceEntry b/x",
            "",
            "{hosts: ['*.example'], ports: [{number: 80, name: http, protocol: HTTP}], resolution: DYNAMIC_DNS, location: MESH_EXTERNAL}",
        ),
    ],
    &[
        (
            "WorkloadEntry a/w",
            "",
            "{address: 10.0.0.1, labels: {app: x}, serviceAccount: one}",
        ),
        (
            "WorkloadEntry a/w",
            "",
            "{address: 10.0.0.1, labels: {app: x, version: v1}, serviceAccount: two}",
        ),
        (
            "WorkloadEntry a/w",
            "",
            "{address: 10.0.0.2, labels: {app: other}, locality: r/z}",
        ),
    ],
    &[
        (
            "DestinationRule a/r",
            "",
            "{host: x.example, trafficPolicy: {tls: {mode: SIMPLE}}}",
        ),
        (
            "DestinationRule a/r",
            "",
            "{host: x.example, subsets: [{name: v1, labels: {version: v1}}, {name: v2}]}",
        ),
        (
            "DestinationRule a/r",
            "",
            "{host: '*.example', trafficPolicy: {connectionPool: {tcp: {maxConnections: 7}}}}",
        ),
    ],
    &[
        (
            "DestinationRule b/r",
            "",
            "{host: x.example, trafficPolicy: {loadBalancer: {simple: PASSTHROUGH}}}",
        ),
        (
            "DestinationRule b/r",
            "",
            "{host: x.example, exportTo: ['.'], workloadSelector: {matchLabels: {app: p}}, trafficPolicy: {tls: {mode: DISABLE}}}",
        ),
    ],
    &[
        ("PeerAuthentication a/p", "", "{mtls: {mode: DISABLE}}"),
        ("PeerAuthentication a/p", "", "{mtls: {mode: STRICT}}"),
    ],
    &[
        (
            "VirtualService b/v",
            "",
            "{hosts: [q.example], http: [{route: [{destination: {host: x.example, port: {number: 80}}}]}]}",
        ),
        (
            "VirtualService b/v",
            "",
            "{hosts: [x.example], gateways: [b/g], http: [{route: [{destination: {host: x.example}}]}]}",
        ),
    ],
    &[("Sidecar b/s", "", "{egress: [{hosts: ['./*']}]}")],
    &[(
        "Gateway b/g",
        "",
        "{selector: {app: p}, servers: [{port: {number: 443, name: tls, protocol: TLS}, tls: {mode: AUTO_PASSTHROUGH}, hosts: ['*']}]}",
    )],
    &[
        (
            "EnvoyFilter a/f",
            "",
            "{configPatches: [{applyTo: CLUSTER, match: {cluster: {service: x.example}}, patch: {operation: MERGE, value: {name: renamed}}}]}",
        ),
        (
            "EnvoyFilter a/f",
            "",
            "{configPatches: [{applyTo: CLUSTER, match: {cluster: {service: x.example}}, patch: {operation: REMOVE}}]}",
        ),
        (
            "EnvoyFilter a/f",
            "",
            "{configPatches: [{applyTo: CLUSTER, match: {context: SIDECAR_OUTBOUND}, patch: {operation: ADD, value: {name: added}}}]}",
        ),
    ],
    &[
        (
            "Service a/k",
            "",
            "{clusterIP: 10.2.0.1, selector: {app: x}, ports: [{name: http, port: 80}]}",
        ),
        (
            "Service a/k",
            "",
            "{type: ExternalName, externalName: x.example}",
        ),
        (
            "Service a/k",
            "",
            "{clusterIP: None, selector: {app: x}, ports: [{name: tcp, port: 90}]}",
        ),
    ],
];

static OBJECTS: LazyLock<Vec<Vec<Object>>> = LazyLock::new(|| {
    let read = |(name, _, spec): &(&str, &str, &str)| {
        let (kind, name) = name.split_once(' ').unwrap();
        let (namespace, name) = name.split_once('/').unwrap();
        let api = match kind {
            "Service" => "v1",
            "EnvoyFilter" => "networking.istio.io/v1alpha3",
            "PeerAuthentication" => "security.istio.io/v1",
            _ => "networking.istio.io/v1",
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
        decoded.objects.remove(0)
    };
    VERSIONS
        .iter()
        .map(|versions| versions.iter().map(read).collect())
        .collect()
});

/// Puts a version of an object, or deletes the object.
fn edit() -> impl Strategy<Value = Change> {
    let objects: Vec<usize> = (0..VERSIONS.len()).collect();
    prop::sample::select(objects).prop_flat_map(|at| {
        let versions = OBJECTS[at].clone();
        (0..=versions.len()).prop_map(move |version| match versions.get(version) {
            Some(object) => Change::Apply(object.clone()),
            None => Change::Delete(versions[0].key()),
        })
    })
}

fn classes(context: &PushContext) -> Vec<Arc<ClassKey>> {
    let nodes = [
        ("sidecar", "a", "10.0.0.1"),
        ("sidecar", "b", "10.0.0.9"),
        ("router", "b", "10.0.0.8"),
    ];
    let class = |(kind, namespace, address): (&str, &str, &str)| {
        let node = Node {
            id: format!("{kind}~{address}~p.{namespace}~{namespace}.svc.cluster.local"),
            metadata: json!({"LABELS": {"app": "p"}})
                .as_object()
                .cloned()
                .unwrap_or_default(),
            ..Node::default()
        };
        context.classify(&Proxy::parse(&node).unwrap())
    };
    nodes.into_iter().map(class).collect()
}

/// What a class holds of a type: everything, or the assignments that its clusters ask for.
fn generate(
    context: &PushContext,
    class: &ProxyClass,
    type_url: &str,
    interest: &Interest,
) -> ResourceSet {
    match type_url {
        type_url::CLUSTER => Cds::new(0).generate(context, class, interest),
        _ => Eds::new(0).generate(context, class, interest),
    }
}

/// Names of the load assignments that a class asks for in one snapshot.
fn assignments(context: &PushContext, class: &ProxyClass) -> BTreeSet<String> {
    let clusters = Cds::new(0).generate(context, class, &Interest::Everything);
    let names = clusters.iter().map(|r| r.name().to_string());
    names.filter(|name| name.starts_with("outbound")).collect()
}

#[track_caller]
fn check(from: &PushContext, to: &PushContext, update: &Update, key: &Arc<ClassKey>) {
    let (before, after) = (from.resolve(key), to.resolve(key));
    let change = xds::Change {
        from: Some(from),
        to,
        update,
    };
    let asked = &assignments(from, &before) & &assignments(to, &after);
    for (type_url, all) in [
        (type_url::CLUSTER, Interest::Everything),
        (type_url::ENDPOINT, Interest::named(asked)),
    ] {
        let old = generate(from, &before, type_url, &all);
        let whole = generate(to, &after, type_url, &all);
        let touched = match Mesh::default().touched(&change, key, type_url) {
            Touched::Everything => continue,
            Touched::Nothing => Interest::named::<&str>([]),
            Touched::Named(names) => Interest::Named(names),
        };
        let stays = |r: &&Arc<Resource>| !touched.wants(r.name());
        let new = generate(to, &after, type_url, &touched);
        let new = new.iter().filter(|r| all.wants(r.name()));
        let merged: ResourceSet = new.chain(old.iter().filter(stays)).cloned().collect();
        assert_eq!(merged, whole, "{type_url} of {touched:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn what_is_not_touched_stays_as_it_is(
        script in prop::collection::vec(prop::collection::vec(edit(), 1..3), 1..20),
    ) {
        let mut intake = Intake::new(Options::default());
        intake.apply([], Instant::now());
        let mut context = PushContext::build(intake.state());
        for batch in script {
            let keys = classes(&context);
            let request = intake.apply(batch, Instant::now());
            let next = context.next(intake.state(), &request);
            for key in keys {
                check(&context, &next, &Update(request.clone()), &key);
            }
            context = next;
        }
    }
}

#[test]
fn a_changed_object_touches_the_resources_of_its_services_alone() {
    let [x, w, v, k] = [0, 2, 6, 10].map(|at| &OBJECTS[at]);
    let mut intake = Intake::new(Options::default());
    let all = [&x[0], &w[0], &v[0], &k[0]].map(|object| Change::Apply(object.clone()));
    intake.apply(all, Instant::now());
    let mut context = PushContext::build(intake.state());
    let key = &classes(&context)[1];
    let mut check = |object: &Object, expected: &[(u16, &str)]| {
        let request = intake.apply([Change::Apply(object.clone())], Instant::now());
        let next = context.next(intake.state(), &request);
        let change = xds::Change {
            from: Some(&context),
            to: &next,
            update: &Update(request),
        };
        let names = expected.iter().flat_map(|(port, host)| {
            [
                format!("outbound|{port}||{host}"),
                format!("outbound_.{port}_._.{host}"),
            ]
        });
        let expected = Touched::Named(names.collect());
        for type_url in [type_url::CLUSTER, type_url::ENDPOINT] {
            assert_eq!(Mesh::default().touched(&change, key, type_url), expected);
        }
        context = next;
    };
    check(&x[1], &[(80, "x.example"), (81, "x.example")]);
    check(
        &k[2],
        &[(80, "k.a.svc.cluster.local"), (90, "k.a.svc.cluster.local")],
    );
    check(&w[2], &[(80, "x.example"), (81, "x.example")]);
    // Routes decide who sees a service.
    check(&v[1], &[(80, "x.example"), (81, "x.example")]);
}

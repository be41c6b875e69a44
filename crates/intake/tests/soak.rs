//! Memory follows the objects that are there: a soak with churn, measured on the heap.

use std::{fmt::Write as _, time::Instant};

use intake::{Change, Decoder, Intake, Options};
use model::{ConfigKey, Kind};

/// Rounds that fill caches and grow maps to their size.
const WARM_UP: usize = 20;
const ROUNDS: usize = 300;
/// What may be left after all rounds: less than one round's objects take.
const LEFT: i64 = 16 * 1024;

fn decode(text: &str) -> Vec<Change> {
    let decoded = Decoder::default().decode("soak", text);
    assert!(decoded.findings.is_empty(), "{:?}", decoded.findings);
    decoded.objects.into_iter().map(Change::Apply).collect()
}

/// A service with three pods on a node, one of them not known yet, and an entry that selects them; all
/// names and addresses are those of this round alone.
fn objects(round: usize) -> (Vec<Change>, Vec<Change>) {
    let namespace = format!("n{round}");
    let address = |pod: usize| format!("10.{}.{}.{pod}", round / 250, round % 250);
    let mut text = format!(
        "{{apiVersion: v1, kind: Namespace, metadata: {{name: {namespace}}}}}\n---\n\
         {{apiVersion: v1, kind: Node, metadata: {{name: node{round}, labels: {{topology.kubernetes.io/region: r{round}}}}}}}\n---\n\
         {{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: {namespace}}}, spec: {{clusterIP: 10.9.0.1, selector: {{app: a{round}}}, ports: [{{name: http, port: 80}}]}}}}\n---\n\
         {{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: e, namespace: {namespace}}}, spec: {{hosts: [e{round}.example], location: MESH_INTERNAL, resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], workloadSelector: {{labels: {{app: a{round}}}}}}}}}\n"
    );
    let mut keys = vec![
        ConfigKey::new(Kind::Namespace, "", namespace.as_str()),
        ConfigKey::new(Kind::Node, "", format!("node{round}")),
        ConfigKey::new(Kind::Service, namespace.as_str(), "web"),
        ConfigKey::new(Kind::ServiceEntry, namespace.as_str(), "e"),
        ConfigKey::new(Kind::EndpointSlice, namespace.as_str(), "web"),
    ];
    let mut listed = Vec::new();
    for pod in 0..4 {
        let address = address(pod);
        listed.push(format!(
            "{{addresses: [{address}], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: p{pod}, namespace: {namespace}}}}}"
        ));
        if pod == 3 {
            continue;
        }
        write!(
 text,
            "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: p{pod}, namespace: {namespace}, labels: {{app: a{round}}}}}, spec: {{serviceAccountName: sa{round}, nodeName: node{round}}}, status: {{phase: Running, podIP: {address}, conditions: [{{type: Ready, status: 'True'}}]}}}}\n"
        ).expect("writing to a string does not fail");
        keys.push(ConfigKey::new(
            Kind::Pod,
            namespace.as_str(),
            format!("p{pod}"),
        ));
    }
    write!(
 text,
        "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: web, namespace: {namespace}, labels: {{kubernetes.io/service-name: web}}}}, addressType: IPv4, ports: [{{name: http, port: 8080}}], endpoints: [{}]}}\n",
        listed.join(", ")
    ).expect("writing to a string does not fail");
    // Gone in an order of each round's own.
    let turn = round % keys.len();
    keys.rotate_left(turn);
    (
        decode(&text),
        keys.into_iter().map(Change::Delete).collect(),
    )
}

fn churn(intake: &mut Intake, rounds: std::ops::Range<usize>, cluster: Option<&str>) {
    #[expect(clippy::disallowed_methods, reason = "an arbitrary point in time")]
    let now = Instant::now();
    for round in rounds {
        let (come, go) = objects(round);
        for changes in [come, go] {
            let changes = match cluster {
                None => changes,
                Some(cluster) => vec![Change::Cluster {
                    cluster: cluster.into(),
                    fresh: false,
                    changes,
                }],
            };
            intake.apply(changes, now);
        }
    }
}

#[track_caller]
fn check(cluster: Option<&str>) {
    let mut intake = Intake::new(Options::default());
    churn(&mut intake, 0..WARM_UP, cluster);
    let round = allocation_counter::measure(|| {
        drop(std::hint::black_box(objects(WARM_UP)));
    });
    assert!(round.bytes_max > 0, "nothing is measured");
    let heap = allocation_counter::measure(|| {
        churn(&mut intake, WARM_UP..WARM_UP + ROUNDS, cluster);
    });
    assert!(
        heap.bytes_current.abs() < LEFT,
        "{} bytes are left of {ROUNDS} rounds",
        heap.bytes_current
    );
    let state = intake.state();
    assert_eq!(
        (state.services.len(), state.endpoints.len(), intake.parked()),
        (0, 0, 0)
    );
}

#[test]
fn nothing_is_left_of_what_came_and_went() {
    check(None);
}

#[test]
fn nothing_is_left_of_what_came_and_went_in_another_cluster() {
    check(Some("far"));
}

//! A service of six ports is scaled from 10 to 500 pods and back to 20 while 200 other services change:
//! how long changes of the others wait, with the storm and without, in one run.
//!
//! Run with `cargo bench -p intake --bench storm`.

#![expect(clippy::print_stdout, reason = "a report for people")]
#![expect(clippy::disallowed_methods, reason = "measures real time")]

use std::{
    fmt::Write as _,
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use intake::{Change, Decoder, Intake, Options};

const OTHERS: usize = 200;
const PORTS: usize = 6;
/// Endpoints of a slice, as Kubernetes has it.
const SLICE: usize = 100;
/// Changes of others in a second.
const RATE: u32 = 400;
/// Events of the storm in a second; each is one watch event.
const STORM_RATE: u32 = 2_000;

/// Who an event is of.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Of {
    Storm,
    Others,
}

struct Event {
    of: Of,
    /// When the API server sends it.
    at: Duration,
    changes: Vec<Change>,
}

fn main() {
    // `cargo test --all-targets` also starts this, without optimisation.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    // The first run warms up.
    for round in 0..4 {
        let quiet = run(false);
        let storm = run(true);
        if round == 0 {
            continue;
        }
        let ratio = storm.p99.as_secs_f64() / quiet.p99.as_secs_f64();
        println!(
            "others, P99: {:?} without the storm, {:?} with it ({ratio:.2} times)",
            quiet.p99, storm.p99
        );
        println!(
            "storm: {} events, done {:?} after the last, {} endpoint lists derived in all",
            storm.events, storm.lag, storm.derived
        );
    }
}

struct Figures {
    p99: Duration,
    lag: Duration,
    events: usize,
    derived: u64,
}

fn run(with_storm: bool) -> Figures {
    let mut intake = Intake::new(Options::default());
    let mut first = decode(&storm_service());
    for n in 0..OTHERS {
        first.extend(decode(&other(n, 0)));
    }
    first.extend((0..10).flat_map(|n| decode(&storm_pod(n))));
    first.extend(storm_slices(10));
    intake.apply(first, Instant::now());
    let before = intake.derivations().endpoints;
    let mut events = if with_storm { storm() } else { Vec::new() };
    let storm_events = events.len();
    let changes_of_others = 1_200_u32;
    for k in 0..changes_of_others {
        let n = usize::try_from(k).unwrap_or(0);
        events.push(Event {
            of: Of::Others,
            at: Duration::from_secs(1) / RATE * k,
            changes: decode(&other(n % OTHERS, 1 + n / OTHERS)),
        });
    }
    events.sort_by_key(|event| event.at);
    let (sender, inbox) = mpsc::sync_channel::<(Of, Instant, Vec<Change>)>(64);
    let start = Instant::now();
    let producer = thread::spawn(move || {
        for event in events {
            let due = start + event.at;
            #[expect(clippy::disallowed_methods, reason = "the pace of the API server")]
            thread::sleep(due.saturating_duration_since(Instant::now()));
            // What waits for room in the queue has been sent already.
            if sender.send((event.of, due, event.changes)).is_err() {
                return;
            }
        }
    });
    let (mut waits, mut lag) = (Vec::new(), Duration::ZERO);
    while let Ok((of, due, changes)) = inbox.recv() {
        intake.apply(changes, due);
        let wait = due.elapsed();
        match of {
            Of::Others => waits.push(wait),
            Of::Storm => lag = wait,
        }
    }
    producer.join().expect("it does not panic");
    waits.sort();
    Figures {
        p99: waits[waits.len() * 99 / 100],
        lag,
        events: storm_events,
        derived: intake.derivations().endpoints - before,
    }
}

/// Up to 500 pods one by one, each with the slices after it, then down to 20: pods first, as they do.
fn storm() -> Vec<Event> {
    let mut events = Vec::new();
    let mut push = |changes: Vec<Change>| {
        let k = u32::try_from(events.len()).unwrap_or(u32::MAX);
        events.push(Event {
            of: Of::Storm,
            at: Duration::from_secs(1) / STORM_RATE * k,
            changes,
        });
    };
    for n in 10..500 {
        push(decode(&storm_pod(n)));
        push(vec![storm_slices(n + 1).remove(n / SLICE)]);
    }
    for n in (20..500).rev() {
        let key = model::ConfigKey::new(model::Kind::Pod, "storm", format!("p{n}"));
        push(vec![Change::Delete(key)]);
        let slices = storm_slices(n);
        let at = (n / SLICE).min(slices.len() - 1);
        push(vec![slices.into_iter().nth(at).expect("it is one of them")]);
    }
    events
}

fn decode(text: &str) -> Vec<Change> {
    let decoded = Decoder::default().decode("bench", text);
    assert!(decoded.findings.is_empty(), "{:?}", decoded.findings);
    decoded.objects.into_iter().map(Change::Apply).collect()
}

fn storm_service() -> String {
    let ports: Vec<String> = (0..PORTS)
        .map(|p| format!("{{name: http-{p}, port: {}}}", 80 + p))
        .collect();
    format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: storm, namespace: storm}}, spec: {{clusterIP: 10.9.0.1, selector: {{app: storm}}, ports: [{}]}}}}",
        ports.join(", ")
    )
}

fn storm_address(n: usize) -> String {
    format!("10.1.{}.{}", n / 250, n % 250)
}

fn storm_pod(n: usize) -> String {
    pod("storm", &format!("p{n}"), &storm_address(n))
}

fn pod(namespace: &str, name: &str, address: &str) -> String {
    format!(
        "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {namespace}}}}}, spec: {{serviceAccountName: sa}}, status: {{phase: Running, podIP: {address}, conditions: [{{type: Ready, status: 'True'}}]}}}}"
    )
}

/// The slices of the storm's service with the first `pods`.
fn storm_slices(pods: usize) -> Vec<Change> {
    let ports: Vec<String> = (0..PORTS)
        .map(|p| format!("{{name: http-{p}, port: {}}}", 8080 + p))
        .collect();
    let mut text = String::new();
    for (number, first) in (0..pods).step_by(SLICE).enumerate() {
        let listed: Vec<String> = (first..pods.min(first + SLICE))
            .map(|n| listed("storm", &format!("p{n}"), &storm_address(n)))
            .collect();
        slice(
            &mut text,
            "storm",
            &format!("storm-{number}"),
            &ports.join(", "),
            &listed.join(", "),
        );
    }
    decode(&text)
}

fn listed(namespace: &str, pod: &str, address: &str) -> String {
    format!(
        "{{addresses: [{address}], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: {pod}, namespace: {namespace}}}}}"
    )
}

fn slice(text: &mut String, service: &str, name: &str, ports: &str, endpoints: &str) {
    write!(
        text,
        "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: {name}, namespace: storm, labels: {{kubernetes.io/service-name: {service}}}}}, addressType: IPv4, ports: [{ports}], endpoints: [{endpoints}]}}\n"
    )
    .expect("writing to a string does not fail");
}

/// Another service with a pod, whose address differs with each version.
fn other(n: usize, version: usize) -> String {
    let address = format!("10.{}.{}.{}", 2 + version, n / 250, n % 250);
    let name = format!("o{n}");
    let mut text = format!(
        "{{apiVersion: v1, kind: Service, metadata: {{name: {name}, namespace: storm}}, spec: {{clusterIP: 10.9.1.1, ports: [{{name: http, port: 80}}]}}}}\n---\n{}\n",
        pod("storm", &name, &address)
    );
    slice(
        &mut text,
        &name,
        &name,
        "{name: http, port: 8080}",
        &listed("storm", &name, &address),
    );
    text
}

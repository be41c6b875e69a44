//! What happens in the cluster, and when.

use std::time::Duration;

use serde_json::{Value, json};

/// Other services.
pub(crate) const OTHERS: usize = 200;
/// Ports of the service that is scaled.
pub(crate) const PORTS: u16 = 6;
/// How many pods it has at first, at most, and in the end.
const PODS: [usize; 3] = [10, 500, 20];
/// Pods that the service has in the end.
pub(crate) const END: usize = PODS[2];
/// Endpoints of a slice, as Kubernetes has it.
const SLICE: usize = 100;
/// Changes of others in a second: of a pod and its slice.
const RATE: u32 = 200;
/// Events of the storm in a second.
const STORM_RATE: u32 = 1_000;

/// Who an event is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Of {
    Others,
    Storm,
}

/// One event of a watch.
#[derive(Debug)]
pub(crate) struct Event {
    pub(crate) of: Of,
    /// When the API server sends it.
    pub(crate) at: Duration,
    pub(crate) plural: &'static str,
    pub(crate) line: Value,
    /// Which of the others has which version of its address by this.
    pub(crate) announces: Option<(usize, usize)>,
}

impl Event {
    fn new(of: Of, at: Duration, plural: &'static str, kind: &str, object: &Value) -> Self {
        let line = json!({"type": kind, "object": object});
        Self {
            of,
            at,
            plural,
            line,
            announces: None,
        }
    }
}

/// What there is before anything changes.
pub(crate) fn first() -> Vec<Event> {
    let added = |of, plural, object| Event::new(of, Duration::ZERO, plural, "ADDED", &object);
    let mut events = vec![added(Of::Storm, "services", service("storm", PORTS))];
    for pod in 0..PODS[0] {
        events.push(added(Of::Storm, "pods", storm_pod(pod)));
    }
    events.push(added(Of::Storm, "endpointslices", storm_slice(0, PODS[0])));
    for number in 0..OTHERS {
        events.push(added(
            Of::Others,
            "services",
            service(&other_name(number), 1),
        ));
        let [pod, slice] = other(number, 0);
        events.push(added(Of::Others, "pods", pod));
        events.push(added(Of::Others, "endpointslices", slice));
    }
    events
}

/// All events of a run, by their time.
pub(crate) fn events(with_storm: bool) -> Vec<Event> {
    let storm = storm();
    let end = storm.last().map_or(Duration::ZERO, |event| event.at);
    let mut events = if with_storm { storm } else { Vec::new() };
    for change in 0.. {
        let at = Duration::from_secs(1) / RATE * change;
        if at > end {
            break;
        }
        let change = usize::try_from(change).unwrap_or(usize::MAX);
        let (number, version) = (change % OTHERS, 1 + change / OTHERS);
        let [pod, slice] = other(number, version);
        events.push(Event::new(Of::Others, at, "pods", "MODIFIED", &pod));
        let mut slice = Event::new(Of::Others, at, "endpointslices", "MODIFIED", &slice);
        slice.announces = Some((number, version));
        events.push(slice);
    }
    events.sort_by_key(|event| event.at);
    events
}

/// Up pod by pod, each with its slice after it, then down: pods first, as they do.
fn storm() -> Vec<Event> {
    let mut events = Vec::new();
    let mut push = |plural, kind: &str, object: &Value| {
        let number = u32::try_from(events.len()).unwrap_or(u32::MAX);
        let at = Duration::from_secs(1) / STORM_RATE * number;
        events.push(Event::new(Of::Storm, at, plural, kind, object));
    };
    for pod in PODS[0]..PODS[1] {
        let kind = if pod % SLICE == 0 {
            "ADDED"
        } else {
            "MODIFIED"
        };
        push("pods", "ADDED", &storm_pod(pod));
        push("endpointslices", kind, &storm_slice(pod / SLICE, pod + 1));
    }
    for pod in (PODS[2]..PODS[1]).rev() {
        let kind = if pod % SLICE == 0 {
            "DELETED"
        } else {
            "MODIFIED"
        };
        push("pods", "DELETED", &storm_pod(pod));
        push("endpointslices", kind, &storm_slice(pod / SLICE, pod));
    }
    events
}

/// The name of the cluster of a port of a service.
pub(crate) fn cluster(service: &str, port: u16) -> String {
    format!("outbound|{}||{service}.storm.svc.cluster.local", 80 + port)
}

pub(crate) fn other_name(number: usize) -> String {
    format!("other-{number}")
}

/// Says which version an address of the others is of.
pub(crate) fn version_of(address: &str) -> Option<usize> {
    let second: usize = address.split('.').nth(1)?.parse().ok()?;
    second.checked_sub(100)
}

fn service(name: &str, ports: u16) -> Value {
    let ports: Vec<Value> = (0..ports)
        .map(|port| json!({"name": format!("http-{port}"), "port": 80 + port, "targetPort": 8080 + port}))
        .collect();
    json!({
        "metadata": {"name": name, "namespace": "storm"},
        "spec": {"clusterIP": "10.96.0.1", "selector": {"app": name}, "ports": ports},
    })
}

fn storm_pod(number: usize) -> Value {
    pod("storm", &format!("storm-{number}"), &storm_address(number))
}

fn storm_address(number: usize) -> String {
    format!("10.1.{}.{}", number / 250, 1 + number % 250)
}

fn pod(app: &str, name: &str, address: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": "storm", "labels": {"app": app}},
        "spec": {"serviceAccountName": "sa"},
        "status": {
            "phase": "Running", "podIP": address, "podIPs": [{"ip": address}],
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    })
}

/// One slice of the service that is scaled, when it has so many pods.
fn storm_slice(number: usize, pods: usize) -> Value {
    let pods = number * SLICE..pods.min((number + 1) * SLICE);
    let listed = pods.map(|pod| (format!("storm-{pod}"), storm_address(pod)));
    slice("storm", &format!("storm-{number}"), PORTS, listed)
}

fn slice(
    service: &str,
    name: &str,
    ports: u16,
    listed: impl Iterator<Item = (String, String)>,
) -> Value {
    let ports: Vec<Value> = (0..ports)
        .map(|port| json!({"name": format!("http-{port}"), "port": 8080 + port, "protocol": "TCP"}))
        .collect();
    let endpoints: Vec<Value> = listed
        .map(|(pod, address)| {
            json!({
                "addresses": [address],
                "conditions": {"ready": true, "serving": true, "terminating": false},
                "targetRef": {"kind": "Pod", "name": pod, "namespace": "storm"},
            })
        })
        .collect();
    json!({
        "metadata": {
            "name": name, "namespace": "storm",
            "labels": {"kubernetes.io/service-name": service},
        },
        "addressType": "IPv4", "ports": ports, "endpoints": endpoints,
    })
}

/// The pod and the slice of another service; the address tells the version.
fn other(number: usize, version: usize) -> [Value; 2] {
    let name = other_name(number);
    let address = format!("10.{}.{}.{}", 100 + version, number / 250, 1 + number % 250);
    let listed = std::iter::once((name.clone(), address.clone()));
    [pod(&name, &name, &address), slice(&name, &name, 1, listed)]
}

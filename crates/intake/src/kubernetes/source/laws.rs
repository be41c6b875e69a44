//! Laws of endpoints, over random histories of a cluster that is read through all faults: whatever
//! happened to the connection, the end is that of a cold start, and no address is served that nobody
//! has.
//!
//! `PROPTEST_CASES` sets how many histories are tried.

use std::{collections::BTreeMap, time::Duration};

use model::{Kind, MeshState, service::Registry};
use proptest::prelude::*;
use serde_json::{Value, json};

use super::tests::Bench;
use crate::kubernetes::testing::FakeApi;

const KINDS: [Kind; 5] = [
    Kind::Service,
    Kind::EndpointSlice,
    Kind::Pod,
    Kind::Node,
    Kind::ServiceEntry,
];

/// Few addresses, so that they are used again.
const ADDRESSES: [&str; 4] = ["10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"];
const PHASES: [&str; 4] = ["Pending", "Running", "Failed", "Succeeded"];

/// One thing that happens.
#[derive(Clone, Debug)]
enum Step {
    /// A pod of one of two apps is there: which, at which address, in which phase, deleted or not, and
    /// on the node's network or not.
    Pod(usize, usize, usize, bool, bool),
    NoPod(usize),
    /// A slice of a service lists pods at addresses, or addresses alone.
    Slice(usize, Vec<(Option<usize>, usize, bool)>),
    NoSlice(usize),
    Service(usize, u32),
    NoService(usize),
    /// A ServiceEntry selects the pods of an app.
    Entry(usize),
    NoEntry,
    /// All connections break.
    Cut,
    /// They break, and what was missed is forgotten.
    Compact,
    Down,
    Up,
    /// Time passes, in milliseconds.
    Wait(u64),
    /// Everything that can come has come.
    Quiet,
}

fn step() -> impl Strategy<Value = Step> {
    let listed = (
        prop::option::weighted(0.8, 0..4_usize),
        0..4_usize,
        any::<bool>(),
    );
    prop_oneof![
        8 => (0..4_usize, 0..4_usize, prop_oneof![6 => Just(1_usize), 1 => Just(0), 1 => Just(2), 1 => Just(3)],
              prop::bool::weighted(0.1), prop::bool::weighted(0.1))
            .prop_map(|(pod, address, phase, deleted, host)| Step::Pod(pod, address, phase, deleted, host)),
        4 => (0..4_usize).prop_map(Step::NoPod),
        8 => (0..3_usize, prop::collection::vec(listed, 0..4)).prop_map(|(s, l)| Step::Slice(s, l)),
        2 => (0..3_usize).prop_map(Step::NoSlice),
        2 => (0..2_usize, 80..83_u32).prop_map(|(s, port)| Step::Service(s, port)),
        1 => (0..2_usize).prop_map(Step::NoService),
        1 => (0..2_usize).prop_map(Step::Entry),
        1 => Just(Step::NoEntry),
        2 => Just(Step::Cut),
        2 => Just(Step::Compact),
        1 => Just(Step::Down),
        2 => Just(Step::Up),
        4 => (1..2000_u64).prop_map(Step::Wait),
        2 => Just(Step::Quiet),
    ]
}

fn name(prefix: &str, number: usize) -> String {
    format!("{prefix}{number}")
}

/// The cluster as it is, beside the server that tells of it.
#[derive(Default)]
struct World {
    api: FakeApi,
    objects: BTreeMap<(&'static str, String), Value>,
    /// Counts pods that were made, so that each has an age of its own.
    made: u32,
}

impl World {
    fn put(&mut self, plural: &'static str, name: String, mut object: Value) {
        object["metadata"]["name"] = name.as_str().into();
        object["metadata"]["namespace"] = "a".into();
        self.api.put(plural, object.clone());
        self.objects.insert((plural, name), object);
    }

    fn remove(&mut self, plural: &'static str, name: String) {
        self.api.delete(plural, "a", &name);
        self.objects.remove(&(plural, name));
    }

    fn take(&mut self, step: &Step) {
        match step {
            Step::Pod(pod, address, phase, deleted, host) => {
                self.made += 1;
                let created = format!("2024-01-01T{:02}:{:02}:00Z", self.made / 60, self.made % 60);
                let mut metadata = json!({
                    "creationTimestamp": created,
                    "labels": {"app": name("app", pod % 2)},
                });
                if *deleted {
                    metadata["deletionTimestamp"] = created.into();
                }
                let ready = if *phase == 1 { "True" } else { "False" };
                let pod_object = json!({
                    "metadata": metadata,
                    "spec": {"serviceAccountName": name("sa", *pod), "hostNetwork": host},
                    "status": {
                        "phase": PHASES[*phase],
                        "podIP": if *phase == 0 { "" } else { ADDRESSES[*address] },
                        "conditions": [{"type": "Ready", "status": ready}],
                    },
                });
                self.put("pods", name("p", *pod), pod_object);
            }
            Step::NoPod(pod) => self.remove("pods", name("p", *pod)),
            Step::Slice(slice, listed) => {
                let endpoints: Vec<Value> = listed
                    .iter()
                    .map(|(pod, address, ready)| {
                        let mut endpoint = json!({
                            "addresses": [ADDRESSES[*address]],
                            "conditions": {"ready": ready},
                        });
                        if let Some(pod) = pod {
                            endpoint["targetRef"] =
                                json!({"kind": "Pod", "name": name("p", *pod), "namespace": "a"});
                        }
                        endpoint
                    })
                    .collect();
                let slice_object = json!({
                    "metadata": {"labels": {"kubernetes.io/service-name": name("svc", slice % 2)}},
                    "addressType": "IPv4",
                    "ports": [{"name": "http", "port": 8080}],
                    "endpoints": endpoints,
                });
                self.put("endpointslices", name("slice", *slice), slice_object);
            }
            Step::NoSlice(slice) => self.remove("endpointslices", name("slice", *slice)),
            Step::Service(service, port) => {
                let spec = json!({
                    "clusterIP": "10.9.0.1",
                    "selector": {"app": name("app", *service)},
                    "ports": [{"name": "http", "port": port}],
                });
                let service_object = json!({"metadata": {}, "spec": spec});
                self.put("services", name("svc", *service), service_object);
            }
            Step::NoService(service) => self.remove("services", name("svc", *service)),
            Step::Entry(app) => {
                let spec = json!({
                    "hosts": ["e.example"],
                    "resolution": "STATIC",
                    "ports": [{"number": 80, "name": "http", "protocol": "HTTP"}],
                    "workloadSelector": {"labels": {"app": name("app", *app)}},
                });
                self.put(
                    "serviceentries",
                    "e".to_owned(),
                    json!({"metadata": {}, "spec": spec}),
                );
            }
            Step::NoEntry => self.remove("serviceentries", "e".to_owned()),
            Step::Cut => self.api.cut(),
            Step::Compact => {
                self.api.compact();
                self.api.cut();
            }
            Step::Down => self.api.set_down(true),
            Step::Up => self.api.set_down(false),
            Step::Wait(_) | Step::Quiet => {}
        }
    }

    /// Whether somebody who lives has an address: a pod, or a slice that lists it by itself.
    fn has(&self, address: &str) -> bool {
        self.objects
            .iter()
            .any(|((plural, _), object)| match *plural {
                "pods" => {
                    object["status"]["podIP"] == address
                        && !matches!(
                            object["status"]["phase"].as_str(),
                            Some("Failed" | "Succeeded")
                        )
                }
                "endpointslices" => object["endpoints"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .any(|e| e.get("targetRef").is_none() && e["addresses"][0] == address),
                _ => false,
            })
    }

    /// No address is served that nobody has.
    fn check_addresses(&self, state: &MeshState) -> Result<(), TestCaseError> {
        for (key, endpoints) in &state.endpoints {
            for (shard, list) in &endpoints.shards {
                for endpoint in list.iter() {
                    let address = endpoint.address();
                    prop_assert!(
                        self.has(address),
                        "{} of {:?} serves {}",
                        key,
                        shard,
                        address
                    );
                    if shard.registry == Registry::External {
                        let workload = &endpoint.service_account;
                        prop_assert!(workload.contains("/sa/sa"), "{}", workload);
                    }
                }
            }
        }
        Ok(())
    }
}

/// Everything that proxies are told of endpoints.
fn told(bench: &Bench) -> (Vec<String>, usize) {
    let state = bench.intake.state();
    let services = state
        .services
        .values()
        .map(|s| format!("{:?} {:?}", s.key(), s.ports));
    let endpoints = state
        .endpoints
        .iter()
        .map(|(key, e)| format!("{key} {:?}", e.shards));
    let instances = state
        .instances
        .iter()
        .map(|(key, i)| format!("{key:?} {i:?}"));
    (
        services.chain(endpoints).chain(instances).collect(),
        bench.intake.parked(),
    )
}

const QUIET: Duration = Duration::from_mins(3);

async fn run(steps: Vec<Step>, streams: bool) -> Result<(), TestCaseError> {
    let mut world = World::default();
    world.api.set_streams(streams, 2);
    let mut bench = Bench::start(&world.api, &KINDS);
    for step in &steps {
        world.take(step);
        match step {
            Step::Wait(millis) => drop(bench.take(Duration::from_millis(*millis)).await),
            Step::Quiet => {
                world.api.set_down(false);
                bench.take(QUIET).await;
                world.check_addresses(&bench.intake.state())?;
            }
            _ => {}
        }
    }
    world.api.set_down(false);
    bench.take(QUIET).await;
    world.check_addresses(&bench.intake.state())?;
    let mut cold = Bench::start(&world.api, &KINDS);
    cold.take(QUIET).await;
    prop_assert_eq!(told(&bench), told(&cold));
    let objects = |bench: &Bench| bench.tables.list().iter().map(|t| t.objects).sum::<usize>();
    prop_assert_eq!(objects(&bench), world.objects.len());
    prop_assert_eq!(objects(&cold), world.objects.len());
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_breaks_the_end_is_that_of_a_cold_start(
        steps in prop::collection::vec(step(), 1..60),
        streams in any::<bool>(),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(run(steps, streams))?;
    }
}

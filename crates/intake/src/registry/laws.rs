//! Laws of the registry, over random histories of a small cluster (design §4; service-registry §20).
//!
//! `PROPTEST_CASES` sets how many histories are tried.

use std::{collections::BTreeMap, sync::Arc, time::Instant};

use model::{
    ConfigKey, InstanceKey, MeshState, NetworkGateways, Object, PushRequest, Service,
    ServiceEndpoints, ServiceId, ServiceInstance, ServiceKey,
    api::{MeshConfig, MeshNetworks},
    service::Registry as ServiceRegistry,
};
use proptest::prelude::*;

use crate::{Change, Decoder, Intake, Options};

/// Versions of the objects of a small cluster: two namespaces, few names and addresses, so that
/// everything collides.
const OBJECTS: &[&[&str]] = &[
    &[
        "{apiVersion: v1, kind: Namespace, metadata: {name: a}}",
        "{apiVersion: v1, kind: Namespace, metadata: {name: a, labels: {team: x}, annotations: {networking.istio.io/traffic-distribution: PreferClose}}}",
    ],
    &[
        "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system}}",
        "{apiVersion: v1, kind: Namespace, metadata: {name: istio-system, labels: {topology.istio.io/network: n1, team: x}}}",
    ],
    &[
        "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/region: r1}}}",
        "{apiVersion: v1, kind: Node, metadata: {name: n1, labels: {topology.kubernetes.io/region: r2, edge: 'true'}}, status: {addresses: [{type: ExternalIP, address: 8.8.8.8}]}}",
    ],
    &[
        "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: a, labels: {app: x}, creationTimestamp: '2024-01-01T00:00:00Z'}, spec: {serviceAccountName: s0, nodeName: n1}, status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: 'True'}]}}",
        "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: a, labels: {app: z}, creationTimestamp: '2024-01-03T00:00:00Z'}, spec: {serviceAccountName: s0b}, status: {phase: Running, podIP: 10.0.0.2, conditions: [{type: Ready, status: 'True'}]}}",
        "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: a, labels: {app: x}, creationTimestamp: '2024-01-01T00:00:00Z', deletionTimestamp: '2024-01-05T00:00:00Z'}, spec: {serviceAccountName: s0}, status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: 'False'}]}}",
        "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: a, labels: {app: x}, creationTimestamp: '2024-01-01T00:00:00Z'}, spec: {serviceAccountName: s0}, status: {phase: Failed}}",
    ],
    &[
        "{apiVersion: v1, kind: Pod, metadata: {name: p1, namespace: a, labels: {app: x}, creationTimestamp: '2024-01-02T00:00:00Z'}, spec: {serviceAccountName: s1, nodeName: n1}, status: {phase: Running, podIP: 10.0.0.2, conditions: [{type: Ready, status: 'True'}]}}",
        "{apiVersion: v1, kind: Pod, metadata: {name: p1, namespace: a, labels: {app: x}, creationTimestamp: '2024-01-02T00:00:00Z'}, spec: {serviceAccountName: s1}, status: {phase: Succeeded, podIP: 10.0.0.2}}",
        "{apiVersion: v1, kind: Pod, metadata: {name: p1, namespace: a, labels: {app: x}, creationTimestamp: '2024-01-02T00:00:00Z'}, spec: {serviceAccountName: s1, hostNetwork: true}, status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: 'True'}]}}",
    ],
    &[
        "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: b, labels: {app: x}, creationTimestamp: '2024-01-04T00:00:00Z'}, spec: {serviceAccountName: s2}, status: {phase: Running, podIP: 10.0.0.1, conditions: [{type: Ready, status: 'True'}]}}",
        "{apiVersion: v1, kind: Pod, metadata: {name: p0, namespace: b, labels: {app: x}, creationTimestamp: '2024-01-04T00:00:00Z'}, spec: {serviceAccountName: s2}, status: {phase: Pending}}",
    ],
    &[
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a}, spec: {clusterIP: 10.9.0.1, selector: {app: x}, ports: [{name: http, port: 80, targetPort: 8080}]}}",
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a, labels: {istio.io/persistent-session: c}}, spec: {clusterIP: None, selector: {app: x}, ports: [{name: tcp, port: 90}]}}",
        "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a, labels: {topology.istio.io/network: n2}}, spec: {type: LoadBalancer, clusterIP: 10.9.0.1, selector: {app: z}, ports: [{name: tls, port: 15443}]}, status: {loadBalancer: {ingress: [{ip: 7.7.7.7}]}}}",
    ],
    &[
        "{apiVersion: v1, kind: Service, metadata: {name: gw, namespace: b, labels: {topology.istio.io/network: n3}, annotations: {traffic.istio.io/nodeSelector: '{\"edge\": \"true\"}'}}, spec: {type: NodePort, clusterIP: 10.9.0.2, ports: [{name: tls, port: 15443, nodePort: 31443}]}}",
        "{apiVersion: v1, kind: Service, metadata: {name: gw, namespace: b}, spec: {type: ExternalName, externalName: h.com, ports: [{name: tls, port: 443}]}}",
    ],
    &[
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: a, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: http, port: 8080}], endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: p0, namespace: a}}, {addresses: [10.0.0.2], conditions: {ready: false, serving: true, terminating: true}, targetRef: {kind: Pod, name: p1, namespace: a}}]}",
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: a, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: tcp, port: 90}], endpoints: [{addresses: [10.0.0.2], targetRef: {kind: Pod, name: p0, namespace: a}}, {addresses: [10.0.0.1]}]}",
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-1, namespace: a, labels: {kubernetes.io/service-name: other}}, addressType: IPv4, ports: [{name: tcp, port: 90}], endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: p1, namespace: a}}]}",
    ],
    &[
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-2, namespace: a, labels: {kubernetes.io/service-name: web}}, addressType: IPv4, ports: [{name: http, port: 8081}], endpoints: [{addresses: [10.0.0.1], targetRef: {kind: Pod, name: p1, namespace: a}}, {addresses: [10.0.0.1], targetRef: {kind: Pod, name: p0, namespace: b}}]}",
        "{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {name: web-2, namespace: a, labels: {kubernetes.io/service-name: web}}, addressType: FQDN, ports: [], endpoints: [{addresses: [x.y]}]}",
    ],
    &[
        "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w, namespace: a, labels: {app: x}}, spec: {address: 10.0.0.9, serviceAccount: sw, ports: {http: 7000}}}",
        "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w, namespace: a, labels: {app: z}}, spec: {address: 10.0.0.1, network: n2}}",
        "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w, namespace: a, labels: {app: x}, annotations: {proxy.istio.io/health-checks-enabled: 'true'}}, spec: {address: 10.0.0.9}}",
        "{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {name: w, namespace: a, labels: {app: x}}, spec: {address: vm.example.com}}",
    ],
    &[
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: a}, spec: {hosts: [h.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: x}}}}",
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: a}, spec: {hosts: [h.com, g.com], addresses: [1.1.1.1, 2.2.2.2], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {app: z}}}}",
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: a}, spec: {hosts: [g.com], resolution: DNS, ports: [{number: 443, name: tls, protocol: TLS}]}}",
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: e, namespace: a, labels: {istio.io/rev: other}}, spec: {hosts: [h.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.9}]}}",
    ],
    &[
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: f, namespace: a, creationTimestamp: '2023-01-01T00:00:00Z'}, spec: {hosts: [h.com], resolution: DNS_ROUND_ROBIN, ports: [{number: 80, name: web, protocol: HTTP}], endpoints: [{address: f.com}]}}",
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: f, namespace: a, creationTimestamp: '2025-01-01T00:00:00Z'}, spec: {hosts: [web.a.svc.cluster.local], resolution: STATIC, location: MESH_INTERNAL, ports: [{number: 80, name: http, protocol: HTTP}], endpoints: [{address: 10.0.0.8, serviceAccount: sf}]}}",
        "{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {name: f, namespace: a}, spec: {hosts: [h.com], resolution: STATIC, ports: [{number: 80, name: http, protocol: HTTP}], workloadSelector: {labels: {}}}}",
    ],
    &[
        "{apiVersion: gateway.networking.k8s.io/v1, kind: Gateway, metadata: {name: g, namespace: a, labels: {topology.istio.io/network: n4}}, spec: {gatewayClassName: istio, addresses: [{type: IPAddress, value: 6.6.6.6}], listeners: [{name: l, port: 15443, protocol: TLS, tls: {mode: Passthrough}}]}}",
    ],
];

/// Mesh-wide settings: discovery selectors, trust domain, networks.
const MESHES: &[&str] = &[
    "{}",
    "{trustDomain: td}",
    "{discoverySelectors: [{matchLabels: {team: x}}]}",
];
const NETWORKS: &[&str] = &[
    "{}",
    "{networks: {m1: {endpoints: [{fromCidr: 10.0.0.1/32}]}, m2: {endpoints: [{fromRegistry: Kubernetes}], gateways: [{registryServiceName: web.a.svc.cluster.local, port: 15443}]}}}",
    "{networks: {m3: {endpoints: [{fromCidr: 10.0.0.0/24}], gateways: [{address: 5.5.5.5, port: 15443}]}}}",
];

/// One step of a history.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// An object takes one of its versions, or goes away.
    Object(usize, Option<usize>),
    Mesh(usize),
    Networks(usize),
    /// A source lists everything again.
    Relist,
}

fn step() -> impl Strategy<Value = Step> {
    let object = (0..OBJECTS.len()).prop_flat_map(|object| {
        let versions = OBJECTS[object].len();
        prop_oneof![
            4 => (0..versions).prop_map(move |v| Step::Object(object, Some(v))),
            1 => Just(Step::Object(object, None)),
        ]
    });
    prop_oneof![
        20 => object,
        1 => (0..MESHES.len()).prop_map(Step::Mesh),
        1 => (0..NETWORKS.len()).prop_map(Step::Networks),
        1 => Just(Step::Relist),
    ]
}

/// Everything that can be in the cluster, decoded once.
struct World {
    objects: Vec<Vec<Object>>,
    meshes: Vec<MeshConfig>,
    networks: Vec<MeshNetworks>,
}

impl World {
    fn get() -> &'static Self {
        static WORLD: std::sync::LazyLock<World> = std::sync::LazyLock::new(|| {
            let decoder = Decoder {
                admitted: true,
                ..Decoder::default()
            };
            let object = |text: &&str| {
                let mut decoded = decoder.decode("test", text);
                assert!(decoded.findings.is_empty(), "{:?}", decoded.findings);
                decoded.objects.remove(0)
            };
            let value = |text: &str| crate::yaml_values(text).unwrap().remove(0);
            World {
                objects: OBJECTS
                    .iter()
                    .map(|versions| versions.iter().map(object).collect())
                    .collect(),
                meshes: MESHES
                    .iter()
                    .map(|text| MeshConfig::default().overlay(&value(text)).unwrap().value)
                    .collect(),
                networks: NETWORKS
                    .iter()
                    .map(|text| model::api::decode(&value(text)).unwrap().value)
                    .collect(),
            }
        });
        &WORLD
    }
}

/// What is in the cluster at some point of a history.
#[derive(Clone, Default)]
struct Cluster {
    objects: BTreeMap<usize, usize>,
    mesh: usize,
    networks: usize,
}

impl Cluster {
    /// Takes a step; returns the changes that a source makes of it.
    fn take(&mut self, step: Step) -> Vec<Change> {
        let world = World::get();
        match step {
            Step::Object(object, Some(version)) => {
                self.objects.insert(object, version);
                vec![Change::Apply(world.objects[object][version].clone())]
            }
            Step::Object(object, None) => {
                self.objects.remove(&object);
                vec![Change::Delete(key(object))]
            }
            Step::Mesh(mesh) => {
                self.mesh = mesh;
                vec![Change::Mesh(Box::new(world.meshes[mesh].clone()))]
            }
            Step::Networks(networks) => {
                self.networks = networks;
                vec![Change::Networks(world.networks[networks].clone())]
            }
            Step::Relist => self.list(),
        }
    }

    /// Everything that is there, in the order of `OBJECTS`.
    fn list(&self) -> Vec<Change> {
        let world = World::get();
        let objects = self
            .objects
            .iter()
            .map(|(o, v)| Change::Apply(world.objects[*o][*v].clone()));
        let settings = [
            Change::Mesh(Box::new(world.meshes[self.mesh].clone())),
            Change::Networks(world.networks[self.networks].clone()),
        ];
        settings.into_iter().chain(objects).collect()
    }
}

fn key(object: usize) -> ConfigKey {
    World::get().objects[object][0].key()
}

fn new_intake() -> Intake {
    let mut options = Options::default();
    options.identity.revision = "ours".into();
    Intake::new(options)
}

fn now() -> Instant {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    #[expect(clippy::disallowed_methods, reason = "an arbitrary point in time")]
    *START.get_or_init(Instant::now)
}

/// Everything that is derived.
#[derive(PartialEq, Debug)]
struct Derived {
    services: BTreeMap<ServiceId, Arc<Service>>,
    endpoints: BTreeMap<ServiceKey, Arc<ServiceEndpoints>>,
    instances: BTreeMap<InstanceKey, Arc<[ServiceInstance]>>,
    gateways: Arc<NetworkGateways>,
    parked: usize,
}

fn derived(intake: &Intake) -> Derived {
    let state = intake.state();
    Derived {
        services: state.services.into_iter().collect(),
        endpoints: state.endpoints.into_iter().collect(),
        instances: state.instances.into_iter().collect(),
        gateways: state.gateways,
        parked: intake.parked(),
    }
}

fn cold_start(cluster: &Cluster, reverse: bool) -> Derived {
    let mut intake = new_intake();
    let mut changes = cluster.list();
    if reverse {
        changes.reverse();
    }
    intake.apply(changes, now());
    derived(&intake)
}

/// Every difference between two states has to be named by the request between them.
fn check_request(
    before: &Derived,
    after: &Derived,
    request: &PushRequest,
) -> Result<(), TestCaseError> {
    if request.forced {
        return Ok(());
    }
    prop_assert_eq!(&before.gateways, &after.gateways);
    let ids = before.services.keys().chain(after.services.keys());
    for id in ids {
        let (old, new) = (before.services.get(id), after.services.get(id));
        let same = match (old, new) {
            (Some(old), Some(new)) => old.same_content(new) && old.created == new.created,
            _ => false,
        };
        if let (false, Some(service)) = (same, new.or(old)) {
            prop_assert!(
                request.changed.contains(service.source.key()),
                "{:?} not in {:?}",
                service.source,
                request
            );
        }
    }
    let keys = before.endpoints.keys().chain(after.endpoints.keys());
    for key in keys {
        if before.endpoints.get(key) != after.endpoints.get(key) {
            prop_assert!(
                request.endpoints.contains(key),
                "{} not in {:?}",
                key,
                request
            );
        }
    }
    Ok(())
}

/// No identity may stand at an address that its pod does not have, or has lost to another.
fn check_addresses(state: &MeshState) -> Result<(), TestCaseError> {
    for (key, endpoints) in &state.endpoints {
        let kubernetes = endpoints
            .shards
            .iter()
            .filter(|(s, _)| s.registry == ServiceRegistry::Kubernetes);
        for endpoint in kubernetes
            .flat_map(|(_, e)| e.iter())
            .filter(|e| &*e.workload_name != "w")
        {
            let Some(account) = endpoint
                .service_account
                .rsplit('/')
                .next()
                .filter(|a| !a.is_empty())
            else {
                continue;
            };
            let has_address = state.objects.pods.values().any(|pod| {
                pod.spec.spec.service_account_name == account
                    && pod.spec.status.phase != "Failed"
                    && pod.spec.status.pod_ip == *endpoint.address()
            });
            prop_assert!(
                has_address,
                "{}: {} has no {}",
                key,
                account,
                endpoint.address()
            );
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever the history and however it is cut into batches, the end is that of a cold start on
    /// what is there at last, in either order; and each request names what it changed.
    #[test]
    fn histories_end_like_cold_starts(steps in prop::collection::vec((step(), any::<bool>()), 1..60)) {
        let mut intake = new_intake();
        let mut cluster = Cluster::default();
        let mut batch = Vec::new();
        let mut before = derived(&intake);
        for (index, (step, flush)) in steps.iter().enumerate() {
            batch.extend(cluster.take(*step));
            if *flush || index + 1 == steps.len() {
                let request = intake.apply(std::mem::take(&mut batch), now());
                let after = derived(&intake);
                check_request(&before, &after, &request)?;
                check_addresses(&intake.state())?;
                before = after;
            }
        }
        let cold = cold_start(&cluster, false);
        prop_assert_eq!(&before, &cold);
        prop_assert_eq!(&cold, &cold_start(&cluster, true));
    }

    /// A history may be interleaved differently (objects among each other, not one object's own steps),
    /// repeated step by step, and delivered one by one or at once: nothing of that is seen in the end.
    #[test]
    fn interleavings_do_not_matter(
        steps in prop::collection::vec((step(), any::<u32>()), 1..40),
        repeat in any::<u32>(),
    ) {
        let mut cluster = Cluster::default();
        let mut changes: Vec<(u32, Vec<Change>)> =
            steps.iter().map(|(step, rank)| (*rank, cluster.take(*step))).collect();
        // Steps of one object keep their order: each gets the greatest rank so far.
        let mut ranks: BTreeMap<String, u32> = BTreeMap::new();
        for ((step, _), (rank, _)) in steps.iter().zip(&mut changes) {
            let of = match step {
                Step::Object(object, _) => object.to_string(),
                Step::Mesh(_) => "mesh".to_owned(),
                Step::Networks(_) => "networks".to_owned(),
                // A list says something of every object: it stays behind all that was before.
                Step::Relist => {
                    *rank = (*rank).max(ranks.values().copied().max().unwrap_or(0));
                    for of in (0..OBJECTS.len()).map(|o| o.to_string()) {
                        ranks.insert(of, *rank);
                    }
                    ranks.insert("mesh".to_owned(), *rank);
                    "networks".to_owned()
                }
            };
            let least = ranks.entry(of).or_default();
            *least = (*rank).max(*least);
            *rank = *least;
        }
        changes.sort_by_key(|(rank, _)| *rank);
        let mut intake = new_intake();
        for (index, (_, change)) in changes.into_iter().enumerate() {
            intake.apply(change.clone(), now());
            if repeat >> (index % 32) & 1 == 1 {
                let request = intake.apply(change, now());
                prop_assert!(request.is_empty(), "a repeated change was pushed: {:?}", request);
            }
        }
        prop_assert_eq!(derived(&intake), cold_start(&cluster, false));
    }
}

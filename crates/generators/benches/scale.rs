//! Time to build clusters and endpoints of one class in a large mesh: 30 000 ServiceEntries with one
//! endpoint each.
//!
//! Run with `cargo bench -p generators --bench scale -- [services]`.

#![expect(clippy::print_stdout, reason = "a report for people")]
#![expect(clippy::disallowed_methods, reason = "measures real time")]

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use generators::{cds::Cds, eds::Eds};
use model::{
    ConfigKey, Endpoint, ExportTo, Health, Kind, Labels, Locality, MeshState, Node, Port, Protocol,
    Proxy, Resolution, Service, ServiceEndpoints, ServiceKey, Timestamp,
    service::{Attributes, Registry, ServiceType, ShardKey, TrafficDistribution},
};
use pushctx::{ProxyClass, PushContext};
use xds::Interest;

const NAMESPACES: usize = 100;

fn main() {
    // `cargo test --all-targets` also starts this, without optimisation.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let count = std::env::args()
        .find_map(|a| a.parse().ok())
        .unwrap_or(30_000);
    println!("{count} services");
    let state = mesh(count);
    let context = PushContext::build(state.clone());
    let class = class(&context, "10.0.0.1", "ns-1");
    println!("  resident: {} MiB before", resident());

    report("clusters, nothing cached", 10, || {
        drop(Cds::new(2 * count).generate(&context, &class, &Interest::Everything));
    });
    let cds = Cds::new(2 * count);
    let clusters = cds.generate(&context, &class, &Interest::Everything);
    println!(
        "  {} clusters, {} MiB",
        clusters.len(),
        clusters.bytes() >> 20
    );
    report("clusters, all cached", 10, || {
        drop(cds.generate(&context, &class, &Interest::Everything));
    });

    let names: Vec<Arc<str>> = clusters
        .iter()
        .map(|r| r.name().clone())
        .filter(|n| n.starts_with("outbound|"))
        .collect();
    let interest = Interest::named(names);
    report("endpoints, nothing cached", 10, || {
        drop(Eds::new(2 * count).generate(&context, &class, &interest));
    });
    let eds = Eds::new(2 * count);
    let endpoints = eds.generate(&context, &class, &interest);
    println!(
        "  {} assignments, {} MiB",
        endpoints.len(),
        endpoints.bytes() >> 20
    );
    report("endpoints, all cached", 10, || {
        drop(eds.generate(&context, &class, &interest));
    });

    let key = ServiceKey::new(namespace(7), host(7));
    let mut changed = state;
    changed
        .services
        .extend([(service(7, 8081).id(), service(7, 8081))]);
    let context = PushContext::build(changed);
    let class = self::class(&context, "10.0.0.1", "ns-1");
    let one = Interest::named([format!("outbound|8081||{}", key.hostname)]);
    report("one changed cluster", 10, || {
        drop(cds.generate(&context, &class, &one));
    });
    println!("  resident: {} MiB at the end", resident());
}

fn class(context: &PushContext, address: &str, namespace: &str) -> Arc<ProxyClass> {
    let node = Node {
        id: format!("sidecar~{address}~client.{namespace}~{namespace}.svc.cluster.local"),
        ..Node::default()
    };
    let proxy = Proxy::parse(&node).expect("the node is well formed");
    context.resolve(&context.classify(&proxy))
}

/// Reports wall-clock and processor time: the fastest and the median run.
fn report(what: &str, runs: usize, mut run: impl FnMut()) {
    let mut times: Vec<Duration> = Vec::with_capacity(runs);
    let before = processor_ticks();
    for _ in 0..runs {
        let start = Instant::now();
        run();
        times.push(start.elapsed());
    }
    let ticks = processor_ticks() - before;
    times.sort_unstable();
    let (best, median) = (times[0], times[runs / 2]);
    let each = ticks * 10 / runs as u64;
    println!("  {what}: {best:?} (median {median:?}, processor {each} ms)");
}

/// Processor time of the process, in hundredths of a second; 0 where the system does not say.
fn processor_ticks() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat
        .rsplit(") ")
        .next()
        .unwrap_or_default()
        .split_whitespace();
    fields
        .skip(11)
        .take(2)
        .filter_map(|f| f.parse::<u64>().ok())
        .sum()
}

/// Resident memory of the process in MiB; 0 where the system does not say.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<usize>().ok())
        .unwrap_or(0)
        / 1024
}

fn mesh(count: usize) -> MeshState {
    let mut state = MeshState::default();
    for n in 0..count {
        let service = service(n, 8080);
        let shard = ShardKey {
            cluster: "Kubernetes".into(),
            registry: Registry::External,
        };
        let endpoints = ServiceEndpoints::collect([(shard, vec![Arc::new(endpoint(n))])]);
        state
            .endpoints
            .extend(endpoints.map(|e| (service.key(), e)));
        state.services.insert(service.id(), service);
    }
    state
}

fn namespace(n: usize) -> Arc<str> {
    format!("ns-{}", n % NAMESPACES).into()
}

fn host(n: usize) -> String {
    format!("svc-{n}.mesh.example")
}

fn endpoint(n: usize) -> Endpoint {
    let empty: Arc<str> = "".into();
    let zone = format!("zone{}", n % 3);
    let labels = [
        ("app", format!("svc-{n}")),
        ("version", "v1".to_owned()),
        ("topology.istio.io/cluster", "Kubernetes".to_owned()),
        ("topology.istio.io/network", String::new()),
        ("topology.kubernetes.io/region", "region1".to_owned()),
        ("topology.kubernetes.io/zone", zone.clone()),
    ];
    Endpoint {
        addresses: vec![format!("10.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255).into()],
        port: 8080,
        service_port_name: "http".into(),
        legacy_port_key: 8080,
        labels: Arc::new(labels.into_iter().map(|(k, v)| (k.to_owned(), v)).collect()),
        service_account: format!("spiffe://cluster.local/ns/{}/sa/svc-{n}", namespace(n)).into(),
        network: empty.clone(),
        locality: Locality {
            region: "region1".into(),
            zone: zone.into(),
            subzone: empty.clone(),
        },
        cluster: "Kubernetes".into(),
        weight: 0,
        tls_mode: "istio".into(),
        namespace: namespace(n),
        workload_name: format!("svc-{n}-0").into(),
        hostname: empty.clone(),
        subdomain: empty.clone(),
        same_cluster_only: false,
        health: Health::Unknown,
        send_unhealthy: false,
        node_name: empty,
    }
}

fn service(n: usize, port: u16) -> Arc<Service> {
    let hostname: Arc<str> = host(n).into();
    Service {
        ports: vec![Port {
            name: "http".into(),
            port,
            protocol: Protocol::Http,
        }],
        cluster_vips: BTreeMap::new(),
        default_address: format!("240.{}.{}.{}", n >> 16 & 255, n >> 8 & 255, n & 255).into(),
        auto_allocated_v4: "".into(),
        auto_allocated_v6: "".into(),
        resolution: Resolution::ClientSideLb,
        mesh_external: false,
        service_accounts: Vec::new(),
        created: Timestamp(1_704_067_200),
        resource_version: String::new(),
        attributes: Attributes {
            registry: Registry::External,
            name: hostname.clone(),
            namespace: namespace(n),
            labels: Labels::new(),
            selector: Labels::new(),
            export_to: ExportTo::default(),
            aliases: Vec::new(),
            cluster_external_addresses: BTreeMap::new(),
            cluster_external_ports: BTreeMap::new(),
            passthrough_target_ports: BTreeMap::new(),
            service_type: ServiceType::ClusterIp,
            external_name: "".into(),
            node_local: false,
            traffic_distribution: TrafficDistribution::Any,
            object_name: format!("svc-{n}").into(),
            race_first_connect: false,
            publish_not_ready_addresses: false,
        },
        source: ConfigKey::new(Kind::ServiceEntry, namespace(n), format!("svc-{n}")),
        fingerprint: 0,
        hostname,
    }
    .seal()
}

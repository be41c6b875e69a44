//! Time and memory of snapshots of a large mesh: 30 000 ServiceEntries with one WorkloadEntry each.
//!
//! Run with `cargo bench -p pushctx --bench snapshot -- [services]`.

#![expect(clippy::print_stdout, reason = "a report for people")]
#![expect(clippy::disallowed_methods, reason = "measures real time")]

use std::{
    collections::BTreeMap,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use model::{
    Config, ConfigKey, ExportTo, Kind, Labels, MeshState, Meta, Port, Protocol, ProxyType,
    PushRequest, Resolution, Service, Timestamp,
    api::{DestinationRule, VirtualService, WorkloadEntry, virtual_service},
    service::{Attributes, Registry, ServiceType, TrafficDistribution},
};
use pushctx::PushContext;

const NAMESPACES: usize = 100;

fn main() {
    // `cargo test --all-targets` also starts this, without optimisation.
    if !std::env::args().any(|argument| argument == "--bench") {
        return;
    }
    let count = std::env::args()
        .find_map(|a| a.parse().ok())
        .unwrap_or(30_000);
    for (rules, name) in [
        (false, "services alone"),
        (true, "with a rule and a route each"),
    ] {
        println!("{count} services, {name}");
        measure(count, rules);
    }
}

fn measure(count: usize, rules: bool) {
    let mut state = MeshState::default();
    for n in 0..count {
        let service = service(n, 80);
        state.services.insert(service.id(), service);
        let entry = workload_entry(n);
        state
            .objects
            .workload_entries
            .insert(entry.meta.namespaced_name(), entry);
        if rules {
            let (rule, vs) = (destination_rule(n, 0), virtual_service(n));
            state
                .objects
                .destination_rules
                .insert(rule.meta.namespaced_name(), rule);
            state
                .objects
                .virtual_services
                .insert(vs.meta.namespaced_name(), vs);
        }
    }
    let before = resident();
    let mut context = None;
    report("full build", 5, || {
        context = Some(PushContext::build(state.clone()));
    });
    let Some(context) = context else { return };
    println!(
        "  resident: {before} MiB of tables, {} MiB with indexes",
        resident()
    );

    let request = PushRequest::default();
    let mut changed = state.clone();
    let altered = service(count / 2, 81);
    changed.services.insert(altered.id(), altered);
    report("one service changed", 100, || {
        drop(context.next(changed.clone(), &request));
    });
    let mut changed = state.clone();
    changed.services.remove(&service(count / 2, 80).id());
    report("one service removed", 100, || {
        drop(context.next(changed.clone(), &request));
    });
    report("nothing changed", 100, || {
        drop(context.next(state.clone(), &request));
    });
    if rules {
        let mut changed = state.clone();
        let rule = destination_rule(count / 2, 7);
        changed
            .objects
            .destination_rules
            .insert(rule.meta.namespaced_name(), rule);
        report("one rule changed", 100, || {
            drop(context.next(changed.clone(), &request));
        });
    }
    let mut scopes = Vec::new();
    let mut n = 0;
    report("default scope of a namespace", 10, || {
        n += 1;
        let namespace: Arc<str> = format!("ns-{n}").into();
        scopes.push(context.scope(ProxyType::Sidecar, &namespace, &Labels::new()));
    });
    println!(
        "  resident: {} MiB with {} scopes",
        resident(),
        scopes.len()
    );
}

/// Reports the fastest run: by the clock, and the time that all threads spent on processors, which
/// says more on a busy machine.
fn report(what: &str, runs: usize, mut run: impl FnMut()) {
    let mut best = (Duration::MAX, Duration::MAX);
    for _ in 0..runs {
        let (start, busy) = (Instant::now(), processor_time());
        run();
        best.0 = best.0.min(start.elapsed());
        best.1 = best.1.min(processor_time().saturating_sub(busy));
    }
    println!("  {what}: {:?}, {:?} of processor time", best.0, best.1);
}

/// Time that all threads of the process spent on processors; zero where the system does not say.
fn processor_time() -> Duration {
    let threads = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    let nanoseconds = threads.filter_map(|thread| {
        let stat = fs::read_to_string(thread.path().join("schedstat")).ok()?;
        stat.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}

/// Resident memory of the process in MiB; 0 where the system does not say.
fn resident() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    line.and_then(|l| l.split_whitespace().next()?.parse::<usize>().ok())
        .unwrap_or(0)
        / 1024
}

fn namespace(n: usize) -> Arc<str> {
    format!("ns-{}", n % NAMESPACES).into()
}

fn host(n: usize) -> String {
    format!("service-{n}.example.com")
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
        default_address: "0.0.0.0".into(),
        auto_allocated_v4: "".into(),
        auto_allocated_v6: "".into(),
        resolution: Resolution::ClientSideLb,
        mesh_external: false,
        service_accounts: Vec::new(),
        created: Timestamp(1_700_000_000 + i64::try_from(n % 977).unwrap_or_default()),
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
            object_name: format!("entry-{n}").into(),
            race_first_connect: false,
            publish_not_ready_addresses: false,
        },
        source: ConfigKey::new(Kind::ServiceEntry, namespace(n), format!("entry-{n}")).into(),
        fingerprint: 0,
        hostname,
    }
    .seal()
}

fn object<T>(n: usize, spec: T) -> Arc<Config<T>> {
    let name = format!("object-{n}").into();
    Arc::new(Config {
        meta: Meta {
            name,
            namespace: namespace(n),
            ..Meta::default()
        },
        spec,
    })
}

fn workload_entry(n: usize) -> Arc<Config<WorkloadEntry>> {
    let spec = WorkloadEntry {
        address: format!("10.{}.{}.{}", n / 65536, n / 256 % 256, n % 256),
        labels: Labels::from([("app".into(), format!("app-{n}"))]),
        ..WorkloadEntry::default()
    };
    object(n, spec)
}

fn destination_rule(n: usize, retries: i32) -> Arc<Config<DestinationRule>> {
    let json = serde_json::json!({
        "host": host(n),
        "trafficPolicy": {"connectionPool": {"http": {"maxRetries": retries}}},
    });
    object(n, serde_json::from_value(json).unwrap_or_default())
}

fn virtual_service(n: usize) -> Arc<Config<VirtualService>> {
    let destination = model::api::common::Destination {
        host: host(n),
        ..Default::default()
    };
    let route = virtual_service::HttpRouteDestination {
        destination: Some(destination),
        ..Default::default()
    };
    let http = vec![virtual_service::HttpRoute {
        route: vec![route],
        ..Default::default()
    }];
    object(
        n,
        VirtualService {
            hosts: vec![host(n)],
            http,
            ..VirtualService::default()
        },
    )
}

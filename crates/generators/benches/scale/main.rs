//! What large meshes cost: from objects to the first snapshot, to resources of a class, and what one
//! change costs then.
//!
//! `cargo bench --workspace --bench scale -- [MESH] [NUMBER]...`, where MESH is one of
//!
//! - `se-we SERVICES`: ServiceEntries with one WorkloadEntry each;
//! - `routes SERVICES ROUTES`: the same with VirtualServices;
//! - `filters SERVICES FILTERS`: the same with EnvoyFilters for as many clusters;
//! - `misses SERVICES FILTERS`: the same with EnvoyFilters for clusters that do not exist;
//! - `k8s SERVICES PODS`: Kubernetes Services with pods;
//! - `gateway SERVICES HOSTS`: a gateway of many hosts, each with its VirtualService;
//!
//! or a file of objects, and then what of the above it holds. Each figure is one line of fields between
//! tabs: what, the median and the best time in milliseconds, and the time that all threads together
//! spent on processors, which says more on a busy machine.

#![expect(clippy::print_stdout, reason = "a report for people and for xtask")]
#![expect(clippy::disallowed_methods, reason = "measures real time")]
#![expect(clippy::panic, reason = "a mesh with mistakes measures nothing")]

mod gateway;
mod mesh;

use std::{
    collections::BTreeSet,
    fs,
    sync::Arc,
    time::{Duration, Instant},
};

use generators::{Mesh, Update, cds::Cds, eds::Eds, lds::Lds, rds::Rds};
use intake::{Change, Intake, Options};
use model::{Node, Object, Proxy, PushRequest};
use pushctx::{ClassKey, PushContext};
use serde_json::Value;
use xds::{Interest, ResourceSet, Touched, World as _, type_url};

/// The allocator of the binary.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Entries of caches: more than any mesh here has resources.
const CACHE: usize = 200_000;
const CLASSES: usize = 10;
/// The service whose objects change.
const CHANGED: usize = 7;

fn main() {
    // `cargo test --all-targets` also starts this, without optimisation.
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    if !arguments.iter().any(|argument| argument == "--bench") {
        return;
    }
    arguments.retain(|argument| argument != "--bench");
    let mut words = arguments.iter().map(String::as_str);
    let mesh = words.next().unwrap_or("se-we");
    let numbers: Vec<usize> = words.filter_map(|word| word.parse().ok()).collect();
    let number = |at: usize, default| numbers.get(at).copied().unwrap_or(default);
    let services = number(0, 30_000);
    let text = match mesh {
        "se-we" => mesh::services(services),
        "routes" => mesh::services(services) + &mesh::routes(number(1, 5_000)),
        "filters" => mesh::services(services) + &mesh::filters(number(1, 300), mesh::host),
        "misses" => {
            mesh::services(services)
                + &mesh::filters(number(1, 30_000), |n| format!("no-{n}.example"))
        }
        "gateway" => {
            let text = mesh::services(services) + &gateway::mesh_of(number(1, 5_000), services);
            return gateway::measure(mesh::decode(&text));
        }
        "k8s" => mesh::kubernetes(number(0, 1_000), number(1, 10)),
        file => fs::read_to_string(file).unwrap_or_else(|error| panic!("{file}: {error}")),
    };
    measure(mesh::decode(&text));
}

fn measure(objects: Vec<Object>) {
    println!("resident with objects, MiB\t{}", resident());
    let changes: Vec<Change> = objects.into_iter().map(Change::Apply).collect();
    let mut intake = Intake::new(options());
    intake.apply(changes.iter().cloned(), Instant::now());
    let state = intake.state();
    let world = Built::new(PushContext::build(state.clone()));
    println!("resident with {CLASSES} classes, MiB\t{}", resident());
    println!("resources\t{}", world.describe());

    let mut times = Times::default();
    for _ in 0..5 {
        let (mut intake, changes) = (Intake::new(options()), changes.clone());
        let snapshot = times.take(|| {
            intake.apply(changes, Instant::now());
            PushContext::build(intake.state())
        });
        drop((snapshot, intake));
    }
    times.print("objects to first snapshot");
    measure_repeated("full PushContext", 9, || PushContext::build(state.clone()));
    world.measure_types();
    world.measure_changes(&mut intake);
}

/// One of many versions of an object.
type Version = fn(usize) -> Value;

/// A snapshot, generators with full caches, and some classes with all their resources.
struct Built {
    context: PushContext,
    cds: Cds,
    eds: Eds,
    lds: Lds,
    rds: Rds,
    /// What the first class asks for.
    endpoints: Interest,
    routes: Interest,
    keys: Vec<Arc<ClassKey>>,
    sets: Vec<[ResourceSet; 4]>,
}

impl Built {
    fn new(context: PushContext) -> Self {
        let (cds, eds) = (Cds::new(CACHE), Eds::new(CACHE));
        let (lds, rds) = (Lds::default(), Rds::default());
        let keys: Vec<_> = (0..CLASSES).map(|n| class(&context, n)).collect();
        let mut sets = Vec::new();
        let [mut endpoints, mut routes] = [Interest::Everything, Interest::Everything];
        for key in keys.iter().rev() {
            let class = context.resolve(key);
            let clusters = cds.generate(&context, &class, &Interest::Everything);
            let outbound = |name: &&Arc<str>| name.starts_with("outbound|");
            let names = clusters.iter().map(|r| r.name());
            endpoints = Interest::named(names.filter(outbound).cloned());
            let services = class.scope.services.iter().flat_map(|s| &s.ports);
            let ports = services.filter(|p| p.protocol.is_http());
            let ports: BTreeSet<String> = ports.map(|p| p.port.to_string()).collect();
            routes = Interest::named(ports);
            sets.push([
                eds.generate(&context, &class, &endpoints),
                lds.generate(&context, &class),
                rds.generate(&context, &class, &routes),
                clusters,
            ]);
        }
        Self {
            context,
            cds,
            eds,
            lds,
            rds,
            endpoints,
            routes,
            keys,
            sets,
        }
    }

    fn describe(&self) -> String {
        let of = |at: usize, what: &str| {
            let set = self.sets.last().map(|sets| &sets[at]);
            let (count, bytes) = set.map_or((0, 0), |set| (set.len(), set.bytes()));
            format!("{count} {what} of {} kB", bytes / 1000)
        };
        let parts = [
            (3, "clusters"),
            (0, "assignments"),
            (1, "listeners"),
            (2, "routes"),
        ];
        parts.map(|(at, what)| of(at, what)).join(", ")
    }

    /// Measures the types of one class.
    fn measure_types(&self) {
        let Self {
            context,
            cds,
            eds,
            lds,
            rds,
            endpoints,
            routes,
            ..
        } = self;
        let class = context.resolve(&self.keys[0]);
        measure_repeated("CDS, nothing cached", 9, || {
            let cds = Cds::new(CACHE);
            (cds.generate(context, &class, &Interest::Everything), cds)
        });
        measure_repeated("CDS, all cached", 9, || {
            cds.generate(context, &class, &Interest::Everything)
        });
        if !context.state().objects.envoy_filters.is_empty() {
            let mut state = context.state().clone();
            state.objects.envoy_filters.clear();
            let without = PushContext::build(state);
            let class = without.resolve(&without.classify(&proxy(0)));
            measure_repeated("CDS, nothing cached, without filters", 9, || {
                let cds = Cds::new(CACHE);
                (cds.generate(&without, &class, &Interest::Everything), cds)
            });
            measure_repeated("RDS, nothing cached, without filters", 9, || {
                let rds = Rds::default();
                (rds.generate(&without, &class, routes), rds)
            });
            measure_repeated("LDS, nothing cached, without filters", 9, || {
                let lds = Lds::default();
                (lds.generate(&without, &class), lds)
            });
        }
        measure_repeated("EDS, nothing cached", 9, || {
            let eds = Eds::new(CACHE);
            (eds.generate(context, &class, endpoints), eds)
        });
        measure_repeated("EDS, all cached", 9, || {
            eds.generate(context, &class, endpoints)
        });
        measure_repeated("RDS, nothing cached", 9, || {
            let rds = Rds::default();
            (rds.generate(context, &class, routes), rds)
        });
        measure_repeated("RDS, all cached", 9, || {
            rds.generate(context, &class, routes)
        });
        measure_repeated("LDS, nothing cached", 9, || {
            let lds = Lds::default();
            (lds.generate(context, &class), lds)
        });
        measure_repeated("LDS, all cached", 9, || lds.generate(context, &class));
    }

    /// Measures what single changes cost, up to the changed resources of one class.
    fn measure_changes(&self, intake: &mut Intake) {
        let mut last = self.context.clone();
        let changes: [(&str, Version); 3] = [
            ("ServiceEntry", |at| mesh::service_entry(CHANGED, 9000 + at)),
            ("WorkloadEntry", |at| {
                mesh::workload_entry(CHANGED, &format!("v{at}"))
            }),
            ("VirtualService", |at| {
                mesh::virtual_service(CHANGED, &format!("{at}s"))
            }),
        ];
        for (kind, version) in changes {
            let key = mesh::decode(&version(1).to_string())[0].key();
            if last.state().objects.get(&key).is_none() {
                continue;
            }
            let [
                mut snapshots,
                mut classes,
                mut clusters,
                mut endpoints,
                mut routes,
            ] = [const { Times::new() }; 5];
            for at in 10..30 {
                let object = mesh::decode(&version(at).to_string()).remove(0);
                let (request, next) = snapshots.take(|| {
                    let request = intake.apply([Change::Apply(object)], Instant::now());
                    let next = last.next(intake.state(), &request);
                    (request, next)
                });
                let class = classes.take(|| next.resolve(&self.keys[0]));
                let interest = |type_url| self.interest(&last, &next, &request, type_url);
                clusters.take(|| {
                    self.cds
                        .generate(&next, &class, &interest(type_url::CLUSTER))
                });
                endpoints.take(|| {
                    self.eds
                        .generate(&next, &class, &interest(type_url::ENDPOINT))
                });
                routes.take(|| self.rds.generate(&next, &class, &interest(type_url::ROUTE)));
                last = next;
            }
            snapshots.print(&format!("one changed {kind}: next snapshot"));
            classes.print(&format!("one changed {kind}: class"));
            clusters.print(&format!("one changed {kind}: clusters"));
            endpoints.print(&format!("one changed {kind}: endpoints"));
            routes.print(&format!("one changed {kind}: routes"));
        }
    }

    /// What the server asks generators for after a change.
    fn interest(
        &self,
        last: &PushContext,
        next: &PushContext,
        request: &PushRequest,
        type_url: &str,
    ) -> Interest {
        let update = Update(request.clone());
        let change = xds::Change {
            from: Some(last),
            to: next,
            update: &update,
        };
        let all = match type_url {
            type_url::ENDPOINT => &self.endpoints,
            type_url::ROUTE => &self.routes,
            _ => &Interest::Everything,
        };
        match Mesh::default().touched(&change, &self.keys[0], type_url) {
            Touched::Nothing => Interest::named::<&str>([]),
            Touched::Named(names) => Interest::Named(names),
            Touched::Everything => all.clone(),
        }
    }
}

/// The options of the binary: patches are compiled when filters arrive.
fn options() -> Options {
    Options {
        compile: Some(generators::admission::compile),
        ..Options::default()
    }
}

/// The class of sidecars of one namespace.
fn class(context: &PushContext, n: usize) -> Arc<ClassKey> {
    context.classify(&proxy(n))
}

fn proxy(n: usize) -> Proxy {
    let node = Node {
        id: format!("sidecar~10.255.0.{n}~client.ns-{n}~ns-{n}.svc.cluster.local"),
        ..Node::default()
    };
    Proxy::parse(&node).unwrap_or_else(|error| panic!("{error}"))
}

fn measure_repeated<T>(what: &str, runs: usize, mut run: impl FnMut() -> T) {
    let mut times = Times::new();
    for _ in 0..runs {
        times.take(|| ((), run()));
    }
    times.print(what);
}

/// Times of several runs.
#[derive(Default)]
struct Times {
    runs: Vec<Duration>,
    busy: Vec<Duration>,
}

impl Times {
    const fn new() -> Self {
        Self {
            runs: Vec::new(),
            busy: Vec::new(),
        }
    }

    /// Runs and notes the time; dropping what comes out is not part of it.
    fn take<T>(&mut self, run: impl FnOnce() -> T) -> T {
        let (start, busy) = (Instant::now(), processor_time());
        let made = run();
        self.runs.push(start.elapsed());
        self.busy.push(processor_time().saturating_sub(busy));
        made
    }

    fn print(&mut self, what: &str) {
        self.runs.sort_unstable();
        self.busy.sort_unstable();
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        let (median, best) = (self.runs[self.runs.len() / 2], self.runs[0]);
        let busy = self.busy[self.busy.len() / 2];
        println!(
            "{what}\t{:.3}\t{:.3}\t{:.3}",
            ms(median),
            ms(best),
            ms(busy)
        );
    }
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

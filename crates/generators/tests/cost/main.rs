//! What fixed scenarios cost, in numbers that do not depend on the machine: resources that are built,
//! bytes, allocations. Nothing may grow by more than a twentieth unnoticed.
//!
//! `cargo xtask bench-smoke --update` rewrites the numbers in `cost.tsv`; the difference belongs to
//! the change that causes it.

#![expect(clippy::print_stdout, reason = "the report of a test")]
#![expect(clippy::disallowed_methods, reason = "requests say when they started")]

#[path = "../../benches/scale/mesh.rs"]
mod mesh;

use std::{
    collections::BTreeMap, fmt::Write as _, fs, path::PathBuf, process::ExitCode, time::Instant,
};

use allocation_counter::measure;
use generators::{Mesh, Update, cds::Cds, eds::Eds, lds::Lds, rds::Rds};
use intake::{Change, Intake, Options};
use model::{Node, Object, Proxy};
use pushctx::PushContext;
use xds::{Interest, ResourceSet, Touched, World as _, type_url};

/// Growth that passes, in hundredths.
const TOLERANCE: u64 = 5;
const CACHE: usize = 10_000;

type Counters = BTreeMap<String, u64>;

fn main() -> ExitCode {
    // On one thread, whose allocations are counted.
    let pool = rayon::ThreadPoolBuilder::new().num_threads(1).build();
    let counters = pool.map(|pool| pool.install(count));
    let Ok(counters) = counters else {
        return ExitCode::FAILURE;
    };
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/cost/cost.tsv");
    if std::env::args().any(|argument| argument == "--update") {
        let mut text = String::new();
        for (what, count) in &counters {
            writeln!(text, "{what}\t{count}").expect("strings take everything");
        }
        fs::write(path, text).expect("the numbers can be written");
        return ExitCode::SUCCESS;
    }
    let known = fs::read_to_string(path).unwrap_or_default();
    let known: Counters = known
        .lines()
        .filter_map(|line| line.split_once('\t'))
        .filter_map(|(what, count)| Some((what.to_owned(), count.parse().ok()?)))
        .collect();
    let mut grown = false;
    for (what, count) in &counters {
        let before = known.get(what).copied().unwrap_or_default();
        if count * 100 > before * (100 + TOLERANCE) {
            println!("{what}: {before} before, {count} now");
            grown = true;
        }
    }
    if grown {
        println!("see `cargo xtask bench-smoke --help`");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}

fn count() -> Counters {
    let mut counters = Counters::new();
    let misses = |n| format!("no-{n}.example");
    for (name, text) in [
        ("services", mesh::services(300)),
        ("routes", mesh::services(300) + &mesh::routes(50)),
        (
            "filters",
            mesh::services(300) + &mesh::filters(300, mesh::host),
        ),
        ("misses", mesh::services(300) + &mesh::filters(300, misses)),
        ("kubernetes", mesh::kubernetes(40, 5)),
    ] {
        let mut scenario = Scenario {
            name,
            counters: &mut counters,
        };
        // The first run fills what the process keeps for ever.
        scenario.run(mesh::decode(&text));
        scenario.run(mesh::decode(&text));
    }
    counters
}

struct Scenario<'a> {
    name: &'a str,
    counters: &'a mut Counters,
}

impl Scenario<'_> {
    fn run(&mut self, objects: Vec<Object>) {
        let changes: Vec<Change> = objects.into_iter().map(Change::Apply).collect();
        let mut intake = Intake::new(Options::default());
        self.allocations("intake", || intake.apply(changes, Instant::now()));
        let state = intake.state();
        let context = self.allocations("snapshot", || PushContext::build(state));
        let node = Node {
            id: "sidecar~10.255.0.1~client.ns-1~ns-1.svc.cluster.local".to_owned(),
            ..Node::default()
        };
        let proxy = Proxy::parse(&node).expect("the node is well formed");
        let key = self.allocations("class", || context.classify(&proxy));
        let class = self.allocations("scope", || context.resolve(&key));

        let (cds, eds) = (Cds::new(CACHE), Eds::new(CACHE));
        let (lds, rds) = (Lds::default(), Rds::default());
        let everything = Interest::Everything;
        let routes = Interest::named(["80", "8080"]);
        for pass in ["first", "again"] {
            let clusters = self.resources(&format!("clusters, {pass}"), || {
                cds.generate(&context, &class, &everything)
            });
            let names = clusters.iter().map(|r| r.name().clone());
            let names = Interest::named(names.filter(|name| name.starts_with("outbound|")));
            self.resources(&format!("endpoints, {pass}"), || {
                eds.generate(&context, &class, &names)
            });
            self.resources(&format!("listeners, {pass}"), || {
                lds.generate(&context, &class)
            });
            self.resources(&format!("routes, {pass}"), || {
                rds.generate(&context, &class, &routes)
            });
        }
        self.note("clusters built", cds.stats().misses);
        self.note("assignments built", eds.stats().misses);

        for (what, object) in [
            ("changed service", mesh::service_entry(7, 9090)),
            ("changed workload", mesh::workload_entry(7, "v2")),
        ] {
            let object = mesh::decode(&object.to_string()).remove(0);
            let request = self.allocations(&format!("{what}, intake"), || {
                intake.apply([Change::Apply(object)], Instant::now())
            });
            let next = self.allocations(&format!("{what}, snapshot"), || {
                context.next(intake.state(), &request)
            });
            let change = xds::Change {
                from: Some(&context),
                to: &next,
                update: &Update(request),
            };
            let built = cds.stats().misses;
            self.resources(&format!("{what}, clusters"), || {
                let interest = match Mesh::default().touched(&change, &key, type_url::CLUSTER) {
                    Touched::Everything => Interest::Everything,
                    Touched::Named(names) => Interest::Named(names),
                    Touched::Nothing => Interest::named::<&str>([]),
                };
                cds.generate(&next, &next.resolve(&key), &interest)
            });
            let built = cds.stats().misses - built;
            self.note(&format!("{what}, clusters built"), built);
        }
    }

    /// Notes how much is allocated; returns what was made.
    fn allocations<T>(&mut self, what: &str, make: impl FnOnce() -> T) -> T {
        let mut made = None;
        let info = measure(|| made = Some(make()));
        self.note(&format!("{what}, allocations"), info.count_total);
        made.expect("what is measured runs")
    }

    /// Notes besides how many bytes of resources there are.
    fn resources(&mut self, what: &str, make: impl FnOnce() -> ResourceSet) -> ResourceSet {
        let set = self.allocations(what, make);
        self.note(&format!("{what}, bytes"), set.bytes() as u64);
        set
    }

    fn note(&mut self, what: &str, count: u64) {
        self.counters
            .insert(format!("{}: {what}", self.name), count);
    }
}

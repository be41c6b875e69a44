//! What a question costs in a large mesh: 30 000 + 30 000 configurations, 10 000 proxies.
//! `cargo bench --bench questions` prints it, and fails when a target is missed.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::time::Instant;
use tonic::Status;
use xds::{
    Change, Interest, Matter, NoObserver, Peer, Question, Registration, Registry, Resource,
    ResourceSet, Server, Settings, Simulated, Source, Touched, TypeFacts, World, boxed, type_url,
};

const SERVICES: usize = 30_000;
const PROXIES: usize = 10_000;
const CLASSES: usize = 10;
/// How often each question is asked; the median counts.
const ROUNDS: usize = 15;
/// Longest time of an answer.
const TARGET: Duration = Duration::from_millis(20);

/// Services by number; each has a version.
struct Services;

#[derive(Clone)]
struct Versions(Vec<u32>);

impl World for Services {
    type Snapshot = Versions;
    type Client = usize;
    type Class = usize;
    type Update = usize;

    async fn admit(&self, _: &Versions, _: &Node, _: &Peer) -> Result<usize, Status> {
        Ok(0)
    }

    fn classify(&self, _: &Versions, client: &usize) -> usize {
        client % CLASSES
    }

    fn regroups(&self, _: &Change<'_, Self>) -> bool {
        false
    }

    fn touched(&self, change: &Change<'_, Self>, _: &usize, _: &str) -> Touched {
        Touched::Named([name(*change.update)].into_iter().collect())
    }

    fn root(&self, _: &Versions) -> Arc<str> {
        "root".into()
    }
}

fn name(number: usize) -> String {
    format!("outbound|80||service-{number:05}.example.com")
}

fn generate(kind: &str, versions: &Versions, interest: &Interest) -> ResourceSet {
    let wanted = |number: &usize| interest.wants(&name(*number));
    let numbers = (0..versions.0.len()).filter(wanted);
    let resource = |number: usize| {
        let body = format!("{number} {}", versions.0[number]).into_bytes();
        let sources: Vec<Source> = [
            format!("{kind}/ns-{}/service-{number:05}", number % 300).into(),
            format!("DestinationRule/ns-{}/rule-{number:05}", number % 300).into(),
        ]
        .into();
        Resource::new(name(number), body).with_sources(sources)
    };
    numbers.map(resource).collect()
}

macro_rules! registration {
    ($url:expr, $facts:expr, $kind:literal) => {
        Registration::new($url, module_path!(), $facts, || {
            boxed::<Services>(|versions: &Versions, _: &usize, interest: &Interest| {
                generate($kind, versions, interest)
            })
        })
    };
}

/// Asks once: how many clients the answer lists, how long the look at them took, and all of it.
fn ask(server: &Server<Services>, object: &str, since: u64) -> (usize, Duration, Duration) {
    let objects = [Source::from(object)];
    let question = Question {
        matter: Matter::Objects(&objects),
        since,
    };
    let begun = Instant::now();
    let survey = server.survey();
    let looked = begun.elapsed();
    (survey.standings(&question).len(), looked, begun.elapsed())
}

/// Prints what a question cost; whether the target is met, and the answer right.
fn report(what: &str, mut rounds: Vec<(usize, Duration, Duration)>, expected: usize) -> bool {
    rounds.sort_by_key(|(_, _, all)| *all);
    let (clients, looked, all) = rounds[rounds.len() / 2];
    let (_, _, worst) = rounds[rounds.len() - 1];
    let good = all < TARGET && clients == expected;
    let verdict = if good { "" } else { "  MISSED" };
    println!(
        "{what:<28} {clients:>6} proxies  look {looked:>9.2?}  in all {all:>9.2?}  worst {worst:>9.2?}{verdict}"
    );
    good
}

fn main() -> ExitCode {
    // `cargo test --all-targets` also starts this, without optimisation.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let good = runtime.is_ok_and(|runtime| runtime.block_on(measure()).unwrap_or_default());
    ExitCode::from(u8::from(!good))
}

/// Measures; whether every target was met. `None` when nothing could be measured.
async fn measure() -> Option<bool> {
    let registry = Registry::new([
        registration!(type_url::CLUSTER, TypeFacts::CLUSTERS, "ServiceEntry"),
        registration!(type_url::ENDPOINT, TypeFacts::WILDCARD, "WorkloadEntry"),
    ]);
    let server = Server::new(Services, registry.ok()?, Settings::default(), NoObserver);
    let mut versions = Versions(vec![0; SERVICES]);
    server.publish(Arc::new(versions.clone()), &0);
    let clients = (0..PROXIES).map(|number| {
        let node = format!("sidecar~10.0.0.1~app-{number:05}.ns~ns.svc.cluster.local");
        (node, number)
    });
    let clients = Simulated::new(&server, clients)?;
    clients.accept().await;
    let object = |number: usize| format!("ServiceEntry/ns-{}/service-{number:05}", number % 300);
    let mut good = report("first question", vec![ask(&server, &object(7), 1)], PROXIES);
    let asked =
        |object: &str, since: u64| (0..ROUNDS).map(|_| ask(&server, object, since)).collect();
    good &= report("question", asked(&object(29_999), 1), PROXIES);
    good &= report("unknown object", asked("ServiceEntry/ns-7/nothing", 1), 0);
    let mut all = [const { Vec::new() }; 4];
    for round in 0..ROUNDS {
        let number = 100 + round;
        versions.0[number] += 1;
        let edited = server.publish(Arc::new(versions.clone()), &number);
        all[0].push(ask(&server, &object(number), edited));
        clients.build().await;
        // The first one after a build.
        all[1].push(ask(&server, &object(number), edited));
        all[2].push(ask(&server, &object(number), edited));
        clients.accept().await;
        all[3].push(ask(&server, &object(number), edited));
    }
    let names = ["just published", "just built", "pending", "accepted"];
    for (name, rounds) in names.into_iter().zip(all) {
        good &= report(name, rounds, PROXIES);
    }
    Some(good)
}

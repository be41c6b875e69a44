//! What a question costs in a large mesh. Run by
//! `cargo test --release -p xds question -- --ignored --nocapture`.

use std::sync::Arc;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::time::Instant;
use tonic::Status;

use crate::delivery::Settled;
use crate::observer::{NoObserver, Protocol, StreamInfo};
use crate::status::Standing;
use crate::{
    Change, Interest, Matter, Peer, Question, Registration, Registry, Resource, ResourceSet,
    Server, Settings, Source, SubscriptionStatus, Touched, TypeFacts, World, boxed, type_url,
};

const SERVICES: usize = 30_000;
const PROXIES: usize = 10_000;
const CLASSES: usize = 10;

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

#[tokio::test]
#[ignore = "measures, and says nothing without optimisation"]
async fn a_question_in_a_large_mesh() {
    let registry = Registry::new([
        registration!(type_url::CLUSTER, TypeFacts::CLUSTERS, "ServiceEntry"),
        registration!(type_url::ENDPOINT, TypeFacts::WILDCARD, "WorkloadEntry"),
    ])
    .unwrap();
    let server = Server::new(Services, registry, Settings::default(), NoObserver);
    let mut versions = Versions(vec![0; SERVICES]);
    server.publish(Arc::new(versions.clone()), &0);
    let hub = server.hub();
    let view = hub.current().unwrap();
    let mut links = Vec::new();
    for number in 0..PROXIES {
        let info = |id| StreamInfo {
            id,
            node: format!("sidecar~10.0.0.1~app-{number:05}.ns~ns.svc.cluster.local").into(),
            protocol: Protocol::Delta,
        };
        links.push(hub.register(info, number, Arc::clone(&view)));
    }
    let follow = async |settled: u64| {
        let view = hub.current().unwrap();
        for link in &links {
            let cell = Arc::clone(&link.state.lock().cell);
            let (mut sets, mut statuses) = (Vec::new(), Vec::new());
            for (index, served) in hub.registry.types().iter().enumerate() {
                let set = cell.set(index, &Interest::Everything, view.seq, None);
                let good = set.at(hub, &view).await;
                statuses.push(SubscriptionStatus {
                    type_url: served.type_url().into(),
                    interest: Interest::Everything,
                    nonce_sent: None,
                    nonce_acked: Some("root/1".into()),
                    resources: good.len(),
                    error: None,
                    held_back: Vec::new(),
                    standing: Standing {
                        good,
                        unsure: Vec::new(),
                        settled: Settled {
                            seq: settled,
                            at: None,
                        },
                        waits_since: None,
                        tells_removals: true,
                    },
                });
                sets.push(set);
            }
            let mut state = link.state.lock();
            (state.sets, state.subscriptions) = (sets, statuses);
        }
    };
    follow(1).await;
    let ask = |object: &str, since: u64| {
        let objects = [Source::from(object)];
        let begun = Instant::now();
        let question = Question {
            matter: Matter::Objects(&objects),
            since,
        };
        let survey = server.survey();
        let surveyed = begun.elapsed();
        let standings = survey.standings(&question);
        (standings.len(), surveyed, begun.elapsed())
    };
    let report = |what: &str, (clients, surveyed, all): (usize, Duration, Duration)| {
        println!("{what}: {clients} clients, look {surveyed:?}, in all {all:?}");
        clients
    };
    assert_eq!(
        report("first question", ask("ServiceEntry/ns-7/service-00007", 1)),
        PROXIES
    );
    for number in [8, 29_999] {
        let object = format!("ServiceEntry/ns-{}/service-{number:05}", number % 300);
        assert_eq!(report("question", ask(&object, 1)), PROXIES);
    }
    assert_eq!(
        report("unknown object", ask("ServiceEntry/ns-7/nothing", 1)),
        0
    );
    versions.0[7] += 1;
    let edited = server.publish(Arc::new(versions.clone()), &7);
    let object = "ServiceEntry/ns-7/service-00007";
    assert_eq!(report("just published", ask(object, edited)), PROXIES);
    // One of each class has looked.
    for link in links.iter().take(CLASSES) {
        let cell = Arc::clone(&link.state.lock().cell);
        for set in cell.live_sets() {
            set.at(hub, &hub.current().unwrap()).await;
        }
    }
    assert_eq!(report("pending", ask(object, edited)), PROXIES);
    follow(edited).await;
    assert_eq!(report("accepted", ask(object, edited)), PROXIES);
}

//! The driver under `shuttle`: publications, rebuilds and connections take turns in random orders,
//! and nobody misses the last word.
//!
//! A connection waits for its bell as in [`Stream::run`]; only the transport is left out. When a
//! bell is not rung, everybody waits for ever, which `shuttle` reports as a deadlock.

use std::collections::BTreeMap;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use shuttle::rand::{Rng, thread_rng};
use tokio::sync::mpsc;
use tonic::Status;

use super::{Registered, Request, Stream};
use crate::ads::{Ads, Limits, Response};
use crate::delivery::Cargo;
use crate::nonce::Nonces;
use crate::observer::{NoObserver, Protocol, StreamInfo};
use crate::server::Hub;
use crate::sync::with_turns;
use crate::{
    Change, Interest, Peer, Registration, Registry, Resource, ResourceSet, Server, Settings,
    Touched, TypeFacts, World, boxed, type_url,
};

/// How many orders are tried.
const ORDERS: usize = 1500;
/// A type that is asked for as a whole, and one that is asked for by name. Not endpoints: those come
/// again after a changed cluster, on purpose.
const TYPES: [&str; 2] = [type_url::CLUSTER, "example.org/Named"];

/// For each type the text of its one resource, and the class of everybody.
#[derive(Clone, Debug, Default)]
struct State {
    texts: [u8; 2],
    class: u8,
}

/// Which types an update changes, and whether it moves clients to another class.
#[derive(Clone, Copy, Debug)]
struct Update {
    types: [bool; 2],
    moves: bool,
}

/// What is published, one after the other: changes of one type, of both, of none, and moves.
const UPDATES: [Update; 4] = [
    Update {
        types: [true, false],
        moves: false,
    },
    Update {
        types: [false, true],
        moves: true,
    },
    Update {
        types: [false, false],
        moves: false,
    },
    Update {
        types: [true, true],
        moves: false,
    },
];

struct Tiny;

impl World for Tiny {
    type Snapshot = State;
    type Client = ();
    type Class = u8;
    type Update = Update;

    async fn admit(&self, _: &State, _: &Node, _: &Peer) -> Result<(), Status> {
        Ok(())
    }

    fn classify(&self, state: &State, (): &()) -> u8 {
        state.class
    }

    fn regroups(&self, change: &Change<'_, Self>) -> bool {
        change.update.moves
    }

    fn touched(&self, change: &Change<'_, Self>, _: &u8, type_url: &str) -> Touched {
        let changed = TYPES.iter().zip(change.update.types);
        match changed.into_iter().find(|(known, _)| **known == type_url) {
            Some((_, true)) => Touched::Named(["a"].into_iter().collect()),
            _ => Touched::Nothing,
        }
    }

    fn root(&self, state: &State) -> Arc<str> {
        format!("{state:?}").into()
    }
}

/// The text of a type, as a class sees it.
fn text(state: &State, class: u8, kind: usize) -> Vec<u8> {
    vec![state.texts[kind], class]
}

macro_rules! generator {
    ($kind:expr, $facts:expr) => {
        Registration::new(TYPES[$kind], module_path!(), $facts, || {
            boxed::<Tiny>(|state: &State, class: &u8, _: &Interest| {
                let resource = Resource::new("a", text(state, *class, $kind));
                std::iter::once(resource).collect::<ResourceSet>()
            })
        })
    };
}

/// One connection: it asks for both types and follows until it has what is published last.
async fn follow<R: Request>(hub: Arc<Hub<Tiny>>, ask: fn(usize, &str) -> R, last: Arc<State>) {
    let view = hub.current().unwrap();
    let info = |id| StreamInfo {
        id,
        node: "one".into(),
        protocol: R::PROTOCOL,
    };
    let link = hub.register(info, (), view);
    let _registered = Registered {
        hub: &hub,
        link: &link,
    };
    let limits = Limits {
        types: 4,
        names: 4,
        split_bytes: 1000,
    };
    let (responses, mut inbox) = mpsc::channel(16);
    let mut stream = Stream {
        ads: Ads::new(R::PROTOCOL, limits),
        sets: Vec::new(),
        transient: Vec::new(),
        nonces: Nonces::random(),
        rebuild: false,
        responses,
        hub: &hub,
        link: &link,
    };
    for kind in 0..TYPES.len() {
        stream.on_request(&ask(kind, "")).unwrap();
    }
    let expected: Vec<Vec<u8>> = (0..2).map(|kind| text(&last, last.class, kind)).collect();
    let mut held = BTreeMap::new();
    let mut requested = true;
    loop {
        assert!(stream.say(requested).await.is_ok());
        requested = false;
        while let Ok(response) = inbox.try_recv() {
            let kind = TYPES.iter().position(|t| **t == *response.type_url);
            let kind = kind.unwrap();
            for body in bodies(&response) {
                let old = held.insert(kind, body.clone());
                // Law 10, and no state of the world comes after a newer one.
                assert!(old < Some(body), "twice, or backwards");
            }
            stream.on_request(&ask(kind, &response.nonce.0)).unwrap();
            requested = true;
        }
        if held.values().eq(&expected) {
            return;
        }
        if !requested {
            link.wake.notified().await;
        }
    }
}

fn bodies(response: &Response) -> Vec<Vec<u8>> {
    let body = |r: &Arc<Resource>| r.body().to_bytes().to_vec();
    match &response.cargo {
        Cargo::Whole(set) => set.iter().map(body).collect(),
        Cargo::Part(diff) => diff.upserts().map(body).collect(),
    }
}

fn delta(kind: usize, nonce: &str) -> DeltaDiscoveryRequest {
    let first = nonce.is_empty() && kind == 1;
    DeltaDiscoveryRequest {
        type_url: TYPES[kind].to_owned(),
        resource_names_subscribe: first.then(|| "a".to_owned()).into_iter().collect(),
        response_nonce: nonce.to_owned(),
        ..DeltaDiscoveryRequest::default()
    }
}

fn sotw(kind: usize, nonce: &str) -> DiscoveryRequest {
    DiscoveryRequest {
        type_url: TYPES[kind].to_owned(),
        resource_names: (kind == 1).then(|| "a".to_owned()).into_iter().collect(),
        response_nonce: nonce.to_owned(),
        ..DiscoveryRequest::default()
    }
}

/// One run in one order.
fn run() {
    let registry = Registry::new([
        generator!(0, TypeFacts::CLUSTERS),
        generator!(1, TypeFacts::NAMED),
    ]);
    let settings = Settings {
        concurrent_pushes: 1,
        ..Settings::default()
    };
    let server = Server::new(Tiny, registry.unwrap(), settings, NoObserver);
    let everything = Update {
        types: [true; 2],
        moves: true,
    };
    server.publish(Arc::default(), &everything);
    // Few, so that what goes wrong is not mended by what comes after.
    let updates = &UPDATES[thread_rng().gen_range(0..UPDATES.len())..];
    let mut states = vec![Arc::new(State::default())];
    for update in updates {
        let mut next = State::clone(states.last().unwrap());
        for (text, changed) in next.texts.iter_mut().zip(update.types) {
            *text += u8::from(changed);
        }
        next.class += u8::from(update.moves);
        states.push(Arc::new(next));
    }
    let last = states.last().cloned().unwrap();
    let mut threads = Vec::new();
    for number in 0..2 {
        let (hub, last) = (Arc::clone(server.hub()), Arc::clone(&last));
        threads.push(shuttle::thread::spawn(move || {
            shuttle::future::block_on(async {
                if number == 0 {
                    follow(hub, sotw, last).await;
                } else {
                    follow(hub, delta, last).await;
                }
            });
        }));
    }
    if thread_rng().gen_bool(0.3) {
        let hub = Arc::clone(server.hub());
        threads.push(shuttle::thread::spawn(move || {
            for cell in hub.live_classes() {
                hub.rebuild(&cell);
            }
        }));
    }
    for (state, update) in states.into_iter().skip(1).zip(updates) {
        server.publish(state, update);
    }
    for thread in threads {
        thread.join().unwrap();
    }
    assert!(server.streams().is_empty());
}

#[test]
fn nobody_misses_the_last_word_in_any_order() {
    with_turns(|| shuttle::check_random(run, ORDERS));
}

#[test]
fn nobody_misses_the_last_word_when_few_turns_are_unusual() {
    with_turns(|| shuttle::check_pct(run, ORDERS, 3));
}

#[test]
fn protocols_are_told_apart() {
    assert_eq!(DiscoveryRequest::PROTOCOL, Protocol::Sotw);
    assert_eq!(DeltaDiscoveryRequest::PROTOCOL, Protocol::Delta);
}

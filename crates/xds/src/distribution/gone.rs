//! Clients that were connected and are not.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use super::{Followed, Matter, Part, Question, Survey};
use crate::class::SharedSet;
use crate::observer::StreamInfo;
use crate::server::Link;
use crate::{ResourceSet, World};

/// How long a client that left is remembered. One that has not come back by then is not coming back
/// to this server: it was deleted, or went to another one.
const REMEMBERED: Duration = Duration::from_mins(10);

/// How many clients that left are remembered at most. Each costs a few pointers for each type.
const MOST: usize = 20_000;

/// A client that was connected and is not.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Departed {
    /// The stream that ended.
    pub stream: StreamInfo,
    /// When it ended.
    pub at: Instant,
    /// Whether it had the change when it left.
    pub had: bool,
}

/// The clients that left, by the id of the node.
pub(crate) struct Gone<W: World> {
    clients: BTreeMap<Arc<str>, Client<W>>,
}

struct Client<W: World> {
    stream: StreamInfo,
    at: Instant,
    types: Vec<Had<W>>,
}

/// What a client had of one type. It keeps nothing alive: with the last client of a class goes what
/// is known about what the class needs.
struct Had<W: World> {
    type_url: Arc<str>,
    set: Weak<SharedSet<W>>,
    good: Weak<ResourceSet>,
    settled: u64,
    tells_removals: bool,
    /// It left without an answer to a response: it may have taken it.
    unsure: bool,
}

impl<W: World> Default for Gone<W> {
    fn default() -> Self {
        Self {
            clients: BTreeMap::new(),
        }
    }
}

impl<W: World> Gone<W> {
    /// Notes that a client left.
    pub(crate) fn leaves(&mut self, link: &Link<W>, now: Instant) {
        let state = link.state.lock();
        let types = state.sets.iter().zip(&state.subscriptions);
        let types = types.map(|(set, status)| Had {
            type_url: Arc::clone(&status.type_url),
            set: Arc::downgrade(set),
            good: Arc::downgrade(&status.standing.good),
            settled: super::settled(set, status),
            tells_removals: status.standing.tells_removals,
            unsure: !status.standing.unsure.is_empty(),
        });
        let client = Client {
            stream: link.info.clone(),
            at: now,
            types: types.collect(),
        };
        drop(state);
        self.clients.insert(Arc::clone(&link.info.node), client);
        if self.clients.len() > MOST {
            self.expire(now);
        }
        while self.clients.len() > MOST {
            self.clients.pop_first();
        }
    }

    /// Notes that a client is here again.
    pub(crate) fn is_back(&mut self, node: &str) {
        self.clients.remove(node);
    }

    fn expire(&mut self, now: Instant) {
        self.clients
            .retain(|_, client| now.saturating_duration_since(client.at) < REMEMBERED);
    }
}

impl<W: World> Survey<W> {
    /// Returns the clients to which a change mattered and that left less than ten minutes before
    /// `now`, in order of their ids. Of a class that nobody is left of it is not known what matters to
    /// it; its clients are left out.
    pub fn departed(&self, question: &Question<'_, W>, now: Instant) -> Vec<Departed> {
        let Matter::Objects(_) = question.matter else {
            return Vec::new();
        };
        let named = self.named(question);
        let mut gone = self.hub.gone.lock();
        gone.expire(now);
        let mut departed = Vec::new();
        for client in gone.clients.values() {
            let mut unsure = false;
            let parts = client.types.iter().filter_map(|had| {
                let followed = Followed {
                    type_url: Arc::clone(&had.type_url),
                    set: had.set.upgrade()?,
                    good: had.good.upgrade().unwrap_or_default(),
                    unsure: Vec::new(),
                    settled: had.settled,
                    root: None,
                    tells_removals: had.tells_removals,
                    held_back: Vec::new(),
                };
                let part = followed.judge(question, &named);
                unsure |= had.unsure && matches!(part, Part::Has);
                Some(part)
            });
            let parts: Vec<Part> = parts.collect();
            let lacks = parts.iter().any(|part| matches!(part, Part::Lacks));
            let has = parts.iter().any(|part| matches!(part, Part::Has));
            if lacks || has {
                departed.push(Departed {
                    stream: client.stream.clone(),
                    at: client.at,
                    had: !lacks && !unsure,
                });
            }
        }
        departed
    }
}

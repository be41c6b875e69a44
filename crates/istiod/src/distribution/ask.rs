//! What this replica knows by itself.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use ledger::ShortXxh3;
use model::{MeshState, Object};
use tokio::time::Instant;
use xds::State;

use super::{
    Distribution, Key, SETTLING,
    answer::{
        ConfigAnswer, ConfigName, Counts, ProxiesAnswer, ProxyAnswer, ProxyState, Refused, Replica,
        Stage, Standing, TypeAnswer,
    },
    books, matter,
};

/// Names of resources that are listed of one type of a proxy.
const LISTED: usize = 100;

/// What somebody wants to know about a configuration.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(crate) struct Wanted {
    /// Only this content will do.
    pub hash: Option<ShortXxh3>,
    /// This generation or a newer one.
    pub generation: Option<i64>,
}

/// A configuration that nobody knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Unknown;

impl Distribution {
    /// Describes this replica.
    pub(super) fn replica(&self, connected: usize) -> Replica {
        Replica {
            name: self.0.replica.clone(),
            connected,
            root: self.0.books.lock().root().to_string(),
            settling: self.0.started.elapsed() < SETTLING,
        }
    }

    /// Says who has a configuration, of the clients of this replica, with all of them listed.
    ///
    /// # Errors
    /// When it is not there, never was, and nobody asks for a certain content.
    pub(crate) fn config(&self, key: &Key, wanted: &Wanted) -> Result<ConfigAnswer, Unknown> {
        let arrived = self.0.latest.lock().clone();
        let snapshot = self.0.snapshots.snapshot();
        // Everything published by now is in the answer, or in one that says it is not.
        let (published, current, root, known) = {
            let books = self.0.books.lock();
            let known = books.current(key).is_some() || books.has_changed(key);
            (
                books.published(key),
                books.current(key),
                books.root(),
                known,
            )
        };
        let newest = newest(key, &arrived);
        let (arrived_hash, generation) = match &newest {
            Some(found) => (found.hash, found.generation),
            None => (current, 0),
        };
        if !known && arrived_hash.is_none() && *wanted == Wanted::default() {
            return Err(Unknown);
        }
        let hash = wanted.hash.or(arrived_hash);
        let too_old = wanted.generation.is_some_and(|least| generation < least);
        let stage = if too_old {
            Stage::Missing
        } else if hash == current {
            Stage::Published
        } else if hash == arrived_hash {
            Stage::Waiting
        } else if hash.is_some_and(|hash| self.was_published(key, hash)) {
            Stage::Superseded
        } else {
            Stage::Missing
        };
        let now = Instant::now().into_std();
        let matter = matter::of(key, &snapshot, &arrived);
        let seconds = |since: std::time::Instant| (now - since.min(now)).as_secs_f64();
        let survey = self.0.server.survey();
        let (standings, all_departed) = matter.ask(&snapshot, published.publication, |question| {
            (survey.standings(question), survey.departed(question, now))
        });
        let mut roots = Roots::new(self, key);
        let mut proxies = Vec::new();
        for standing in standings {
            let mut state = ProxyState {
                proxy: standing.stream.node.to_string(),
                state: Standing::Undecided,
                replica: self.0.replica.clone(),
                seconds: None,
                types: Vec::new(),
                hash: None,
                root: standing.root.as_deref().map(str::to_owned),
                error: None,
                resources: Vec::new(),
            };
            let mut holds = None;
            match standing.state {
                State::Has { since } => {
                    state.state = Standing::Has;
                    state.seconds = since.map(seconds);
                    holds = current;
                }
                State::Pending { since, types } => {
                    state.state = Standing::Pending;
                    state.seconds = Some(seconds(since.unwrap_or(published.at)));
                    state.types = types.iter().map(ToString::to_string).collect();
                    holds = roots.of_all(&standing.holds);
                }
                State::Undecided => {}
                State::Refused {
                    type_url,
                    resources,
                    refusal,
                    message,
                } => {
                    state.state = Standing::Refused;
                    state.seconds = refusal.as_ref().map(|r| seconds(r.at));
                    state.types = vec![type_url.to_string()];
                    state.root = refusal.map(|r| r.root.to_string()).or(state.root);
                    state.error = Some(message.to_string());
                    state.resources = resources.iter().map(ToString::to_string).collect();
                }
            }
            match stage {
                Stage::Published => {}
                // What somebody has counts by what it is, not by how it came.
                Stage::Missing | Stage::Waiting | Stage::Superseded => {
                    let it_is = hash.is_some() && holds == hash && !too_old;
                    state.state = match state.state {
                        Standing::Undecided => Standing::Undecided,
                        _ if it_is => Standing::Has,
                        _ => Standing::Pending,
                    };
                }
            }
            if state.state != Standing::Has {
                state.hash = holds.map(|hash| hash.to_string());
            }
            proxies.push(state);
        }
        for departed in all_departed {
            proxies.push(ProxyState {
                proxy: departed.stream.node.to_string(),
                state: Standing::Disconnected,
                replica: self.0.replica.clone(),
                seconds: Some(seconds(departed.at)),
                types: Vec::new(),
                hash: None,
                root: None,
                error: None,
                resources: Vec::new(),
            });
        }
        Ok(ConfigAnswer {
            config: name_of(key),
            stage,
            hash: hash.map(|hash| hash.to_string()),
            generation,
            root: root.to_string(),
            published_seconds_ago: known.then(|| seconds(published.at)),
            counts: Counts::of(&proxies),
            replicas: vec![self.replica(survey.connected())],
            unreachable: Vec::new(),
            proxies,
        })
    }

    /// The ids of nodes that are of a namespace: those that no client of another one has, as anybody
    /// may take an id.
    pub(super) fn nodes_of(&self, namespace: &str) -> BTreeSet<Arc<str>> {
        let (mut own, mut others) = (BTreeSet::new(), BTreeSet::new());
        self.0.server.clients(|stream, proxy| {
            let is_own = *proxy.namespace == *namespace;
            let nodes = if is_own { &mut own } else { &mut others };
            nodes.insert(stream.node.clone());
        });
        own.retain(|node| !others.contains(node));
        own
    }

    /// Tells whether a content is in any state that is kept.
    fn was_published(&self, key: &Key, hash: ShortXxh3) -> bool {
        self.0.books.lock().was(key, hash)
    }

    /// Says what the clients of this replica have and lack whose ids contain `part`.
    pub(crate) fn proxies(&self, part: &str) -> ProxiesAnswer {
        let now = Instant::now().into_std();
        let standings = self.0.server.proxies(|node| node.contains(part));
        let books = self.0.books.lock();
        let mut changed: BTreeMap<Arc<str>, Vec<Key>> = BTreeMap::new();
        let mut proxies = Vec::new();
        for proxy in standings {
            let types: Vec<TypeAnswer> = proxy
                .types
                .iter()
                .map(|standing| {
                    let root = standing.root.clone();
                    let changed = root.map_or(&[][..], |root| {
                        let since = || books.changed_since(&root).unwrap_or_default();
                        changed.entry(root.clone()).or_insert_with(since)
                    });
                    type_answer(standing, changed, now)
                })
                .collect();
            proxies.push(ProxyAnswer {
                proxy: proxy.stream.node.to_string(),
                replica: self.0.replica.clone(),
                protocol: proxy.stream.protocol.to_string(),
                current: types.iter().all(|t| t.current),
                types,
            });
        }
        drop(books);
        let connected = self.0.server.connected();
        ProxiesAnswer {
            proxies,
            replicas: vec![self.replica(connected)],
            unreachable: Vec::new(),
        }
    }
}

fn type_answer(
    standing: &xds::TypeStanding,
    changed: &[Key],
    now: std::time::Instant,
) -> TypeAnswer {
    let names = standing.lacks.iter().take(LISTED);
    let lacking = |key: &&Key| {
        let source = key.source();
        standing.lacks.iter().any(|r| r.sources().contains(&source))
    };
    let refused = standing.held_back.iter().map(|held_back| Refused {
        resource: held_back.name.to_string(),
        error: held_back.refusal.as_ref().map(|r| r.message.to_string()),
        root: held_back.refusal.as_ref().map(|r| r.root.to_string()),
    });
    let waits = standing
        .waits_since
        .map(|since| now.saturating_duration_since(since));
    TypeAnswer {
        type_url: standing.type_url.to_string(),
        current: standing.is_current(),
        resources: standing.resources,
        root: standing.root.as_deref().map(str::to_owned),
        lacking: standing.lacks.len(),
        lacks: names.map(|r| r.name().to_string()).collect(),
        configs: changed.iter().filter(lacking).map(Key::to_string).collect(),
        obsolete: standing
            .obsolete
            .iter()
            .take(LISTED)
            .map(ToString::to_string)
            .collect(),
        waits_seconds: waits.map(|waits| waits.as_secs_f64()),
        refused: refused.collect(),
    }
}

/// The newest content of a configuration that has arrived, published or not.
struct Newest {
    hash: Option<ShortXxh3>,
    generation: i64,
}

/// `None` when that is not known: for what is derived.
fn newest(key: &Key, arrived: &MeshState) -> Option<Newest> {
    let Key::Config(config) = key else {
        return None;
    };
    // A service is published when what is derived from it changes, whatever else is edited.
    if !books::is_tracked(config.kind) || config.kind == model::Kind::Service {
        return None;
    }
    let object: Option<Object> = arrived.objects.get(config);
    Some(Newest {
        hash: object.as_ref().map(books::hash),
        generation: object.map_or(0, |object| object.meta().generation),
    })
}

pub(super) fn name_of(key: &Key) -> ConfigName {
    ConfigName {
        kind: key.kind().to_owned(),
        namespace: key.namespace().to_owned(),
        name: key.name().to_owned(),
    }
}

/// What the states with some roots say of a key: most clients share a few roots.
struct Roots<'a> {
    distribution: &'a Distribution,
    key: &'a Key,
    known: BTreeMap<String, Option<ShortXxh3>>,
}

impl<'a> Roots<'a> {
    fn new(distribution: &'a Distribution, key: &'a Key) -> Self {
        Self {
            distribution,
            key,
            known: BTreeMap::new(),
        }
    }

    /// What all of some states say; `None` when they differ, or there are none.
    fn of_all(&mut self, states: &[Arc<str>]) -> Option<ShortXxh3> {
        let (first, others) = states.split_first()?;
        let found = self.at(first);
        found.filter(|_| others.iter().all(|root| self.at(root) == found))
    }

    fn at(&mut self, root: &str) -> Option<ShortXxh3> {
        if let Some(known) = self.known.get(root) {
            return *known;
        }
        let found = self.distribution.0.books.lock().at(root, self.key);
        self.known.insert(root.to_owned(), found);
        found
    }
}

//! All clients, and what they have in common.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};

use super::Options;
use super::client::{Client, Holdings, Manners};
use super::names::{Dictionary, Id, TYPES};
use super::report::{Sent, Times};
use super::truth::Books;

/// How long a client waits before it connects again.
const RECONNECT: Duration = Duration::from_millis(50);
/// How long a change may take to reach everybody.
const REACH: Duration = Duration::from_mins(1);
/// A change that has reached somebody, but nobody else for so long, reaches nobody else.
const GIVE_UP: Duration = Duration::from_secs(10);
/// How often conditions are looked at.
const POLL: Duration = Duration::from_millis(2);

/// What all clients share.
#[derive(Debug)]
pub(super) struct Shared {
    /// The servers; a client that comes back goes to the next one.
    addresses: Vec<SocketAddr>,
    /// What clients have had, if somebody judges by it.
    pub(super) books: Option<Arc<Books>>,
    pub(super) names: Dictionary,
    responses: [Counter; TYPES.len()],
    rejected: AtomicU64,
    /// By the number of the client.
    configured: Mutex<BTreeMap<usize, Duration>>,
    watches: Mutex<BTreeMap<Key, Watch>>,
    /// What each client waits for, by its number.
    waits: Mutex<BTreeMap<usize, &'static str>>,
    /// What each of the measured clients has.
    measured: Mutex<Vec<Holdings>>,
}

/// Index of a type, and the name of a resource.
type Key = (usize, Id);

/// What was in a response.
#[derive(Clone, Copy, Debug)]
pub(super) struct Got {
    pub(super) resources: usize,
    /// How many of them the client did not have in that version.
    pub(super) fresh: usize,
    pub(super) bytes: usize,
    pub(super) rejected: bool,
}

#[derive(Debug, Default)]
struct Counter {
    responses: AtomicU64,
    resources: AtomicU64,
    /// To clients that accept everything.
    accepted: AtomicU64,
    fresh: AtomicU64,
    bytes: AtomicU64,
}

/// A change of one resource on its way.
#[derive(Debug)]
struct Watch {
    since: Instant,
    last: Instant,
    reached: Vec<Duration>,
}

impl Shared {
    /// Where a client goes that has been connected so many times.
    pub(super) fn address(&self, client: usize, times: usize) -> Option<SocketAddr> {
        let at = (client + times) % self.addresses.len().max(1);
        self.addresses.get(at).copied()
    }

    /// Notes that a client has all that it asked for, for the first time on a stream.
    pub(super) fn on_configured(&self, client: usize, after: Duration) {
        lock(&self.waits).remove(&client);
        lock(&self.configured).insert(client, after);
    }

    /// Notes what a client waits for.
    pub(super) fn on_wait(&self, client: usize, what: &'static str) {
        lock(&self.waits).insert(client, what);
    }

    /// Says how many clients wait for what.
    fn waiting(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for what in lock(&self.waits).values() {
            *counts.entry(what).or_default() += 1;
        }
        let counts = counts
            .iter()
            .map(|(what, n)| format!("{n} wait for {what}"));
        counts.collect::<Vec<_>>().join(", ")
    }

    pub(super) fn on_response(&self, manners: Manners, kind: usize, got: &Got) {
        let counter = &self.responses[kind];
        let add = |to: &AtomicU64, count: usize| to.fetch_add(count as u64, Ordering::Relaxed);
        add(&counter.responses, 1);
        add(&counter.resources, got.resources);
        add(&counter.bytes, got.bytes);
        if manners != Manners::Rejecting {
            add(&counter.accepted, got.resources);
            add(&counter.fresh, got.fresh);
        }
        self.rejected
            .fetch_add(u64::from(got.rejected), Ordering::Relaxed);
    }

    /// Notes that a client acknowledged a response with these changes.
    pub(super) fn on_ack(&self, manners: Manners, kind: usize, news: &[Id]) {
        if manners != Manners::Good {
            return;
        }
        let mut watches = lock(&self.watches);
        if watches.is_empty() {
            return;
        }
        let now = Instant::now();
        for id in news {
            if let Some(watch) = watches.get_mut(&(kind, *id)) {
                watch.last = now;
                watch.reached.push(now - watch.since);
            }
        }
    }

    /// Returns how many of the measured clients have a resource.
    fn holders(&self, (kind, name): Key) -> usize {
        let clients = lock(&self.measured);
        let has = |client: &&Holdings| lock(client)[kind].contains_key(&name);
        clients.iter().filter(has).count()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running fleet; dropping it disconnects.
#[derive(Debug)]
pub(super) struct Fleet {
    shared: Arc<Shared>,
    options: Options,
    nodes: Vec<Node>,
    /// How many kinds of proxies there are.
    kinds: usize,
    clients: JoinSet<()>,
}

impl Fleet {
    /// Prepares a fleet of clients that connect as `nodes`, in turn.
    pub(super) fn new(address: SocketAddr, options: &Options, nodes: Vec<Node>) -> Result<Self> {
        let kinds = nodes.len();
        Self::of(vec![address], options, nodes, kinds, None)
    }

    /// Prepares a fleet of clients of several servers that keep books of what they have had.
    pub(super) fn judged(
        addresses: Vec<SocketAddr>,
        options: &Options,
        nodes: Vec<Node>,
        books: Arc<Books>,
    ) -> Result<Self> {
        Self::of(addresses, options, nodes, options.classes, Some(books))
    }

    fn of(
        addresses: Vec<SocketAddr>,
        options: &Options,
        nodes: Vec<Node>,
        kinds: usize,
        books: Option<Arc<Books>>,
    ) -> Result<Self> {
        ensure!(!nodes.is_empty() && kinds > 0, "no node to connect as");
        let shared = Arc::new(Shared {
            addresses,
            books,
            names: Dictionary::default(),
            responses: Default::default(),
            rejected: AtomicU64::new(0),
            configured: Mutex::default(),
            watches: Mutex::default(),
            waits: Mutex::default(),
            measured: Mutex::default(),
        });
        Ok(Self {
            shared,
            options: options.clone(),
            nodes,
            kinds,
            clients: JoinSet::new(),
        })
    }

    /// Starts clients until there are so many of all.
    pub(super) async fn connect(&mut self, up_to: usize) {
        let Options {
            connections,
            slow,
            rejecting,
            delta_percent,
            connects_per_second,
            ..
        } = self.options;
        let pause = Duration::from_secs(1) / u32::try_from(connects_per_second).unwrap_or(1).max(1);
        let mut next = Instant::now();
        for number in self.clients.len()..up_to.min(connections) {
            // The last ones, so that those before show what it costs without them.
            let manners = match connections - number {
                left if left <= rejecting => Manners::Rejecting,
                left if left <= rejecting + slow => Manners::Slow,
                _ => Manners::Good,
            };
            let node = self.nodes.get(number % self.nodes.len()).cloned();
            // Both variants are spread over all kinds of proxies.
            let delta = (number / self.kinds) * 37 % 100 < delta_percent;
            let mut client = Client::new(number, node.unwrap_or_default(), delta, manners);
            if manners == Manners::Good {
                lock(&self.shared.measured).push(Arc::clone(&client.has));
            }
            let shared = Arc::clone(&self.shared);
            self.clients.spawn(async move {
                // One of ten of those that are judged never stays for long.
                let restless = shared.books.is_some() && number.is_multiple_of(10);
                let stay = Duration::from_secs(5 + number as u64 / 10 % 20);
                let patience = if restless { stay } else { Duration::MAX };
                loop {
                    // Why a stream ended does not matter: the client comes back.
                    tokio::time::timeout(patience, client.follow(&shared))
                        .await
                        .ok();
                    client.lost.get_or_insert_with(Instant::now);
                    sleep(RECONNECT).await;
                }
            });
            next += pause;
            sleep_until(next).await;
        }
    }

    /// Forgets who has been configured, because all are about to connect anew.
    pub(super) fn expect_all_anew(&self) {
        lock(&self.shared.configured).clear();
    }

    /// Waits until every client that was started has its first configuration.
    pub(super) async fn first_configs(&self, within: Duration) -> Result<Times> {
        let deadline = Instant::now() + within;
        let all = self.clients.len();
        loop {
            let done = lock(&self.shared.configured).len();
            if done >= all {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "{done} of {all} have a configuration; {}",
                self.shared.waiting()
            );
            sleep(POLL).await;
        }
        let configured = lock(&self.shared.configured);
        Ok(Times::of(configured.values().copied().collect()))
    }

    /// Returns what was sent since the last call, by type.
    pub(super) fn take_sent(&self) -> Vec<Sent> {
        let take = |counter: &AtomicU64| counter.swap(0, Ordering::Relaxed);
        let types = TYPES.iter().zip(&self.shared.responses);
        types
            .map(|(type_url, counter)| Sent {
                type_url: (*type_url).to_owned(),
                responses: take(&counter.responses),
                resources: take(&counter.resources),
                accepted: take(&counter.accepted),
                fresh: take(&counter.fresh),
                bytes: take(&counter.bytes),
            })
            .collect()
    }

    /// Returns how many responses were rejected.
    pub(super) fn rejected(&self) -> u64 {
        self.shared.rejected.load(Ordering::Relaxed)
    }

    /// Makes a change and waits until everybody who follows the expected resources (type URL and
    /// name) has acknowledged it. Returns for each of them the index of its type, the times, and
    /// how many clients it never reached.
    ///
    /// Changes of different resources may be measured at the same time.
    pub(super) async fn measure(
        &self,
        expected: &[(&str, &str)],
        change: impl FnOnce() -> Result<()>,
    ) -> Result<Vec<(usize, Vec<Duration>, usize)>> {
        let mut keys = Vec::new();
        for (type_url, name) in expected {
            let kind = TYPES.iter().position(|known| known == type_url);
            let key = (kind.context("an unknown type")?, self.shared.names.id(name));
            // Nobody has what is new: all will.
            let everybody = lock(&self.shared.measured).len();
            let holders = Some(self.shared.holders(key)).filter(|holders| *holders > 0);
            keys.push((key, holders.unwrap_or(everybody)));
        }
        let since = Instant::now();
        let watch = |(key, _): &(Key, usize)| {
            let reached = Vec::new();
            let last = since;
            let watch = Watch {
                since,
                last,
                reached,
            };
            (*key, watch)
        };
        lock(&self.shared.watches).extend(keys.iter().map(watch));
        let changed = change();
        let satisfied = |(key, expected): &(Key, usize)| {
            lock(&self.shared.watches).get(key).is_none_or(|watch| {
                let nobody_else = !watch.reached.is_empty() && watch.last.elapsed() > GIVE_UP;
                watch.reached.len() >= *expected || nobody_else
            })
        };
        while changed.is_ok() && since.elapsed() < REACH && !keys.iter().all(satisfied) {
            sleep(POLL).await;
        }
        let mut watches = lock(&self.shared.watches);
        let reached = keys.iter().map(|(key, expected)| {
            let watch = watches.remove(key);
            let reached = watch.map(|watch| watch.reached).unwrap_or_default();
            let missed = expected.saturating_sub(reached.len());
            (key.0, reached, missed)
        });
        let reached = reached.collect();
        changed.map(|()| reached)
    }
}

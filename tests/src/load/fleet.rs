//! All clients, and what they have in common.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use envoy_types::pb::envoy::config::core::v3::Node;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::Options;
use super::client::{Client, Manners};
use super::names::{Dictionary, Id, TYPES};
use super::report::{Row, Sent, Times};
use crate::control_plane::{ControlPlane, Setup};

/// How many clients start in a millisecond, so that the fleet itself is not what is measured.
const STARTS_PER_MS: usize = 2;
/// How long a client waits before it connects again.
const RECONNECT: Duration = Duration::from_millis(50);
/// How long a change may take to reach everybody.
const REACH: Duration = Duration::from_secs(30);
/// How often conditions are looked at.
const POLL: Duration = Duration::from_millis(2);

/// What all clients share.
#[derive(Debug)]
pub(super) struct Shared {
    address: SocketAddr,
    pub(super) names: Dictionary,
    responses: [Counter; TYPES.len()],
    rejected: AtomicU64,
    configured: Mutex<Vec<Duration>>,
    watch: Mutex<Option<Watch>>,
}

#[derive(Debug, Default)]
struct Counter {
    responses: AtomicU64,
    resources: AtomicU64,
    bytes: AtomicU64,
}

/// A change on its way.
#[derive(Debug)]
struct Watch {
    kind: usize,
    name: Id,
    since: Instant,
    reached: Vec<Duration>,
}

impl Shared {
    pub(super) fn address(&self) -> SocketAddr {
        self.address
    }

    /// Notes that a client has all that it asked for, for the first time on a stream or again.
    pub(super) fn on_configured(&self, started: Instant) {
        lock(&self.configured).push(started.elapsed());
    }

    pub(super) fn on_response(&self, kind: usize, resources: usize, bytes: usize, rejected: bool) {
        let counter = &self.responses[kind];
        counter.responses.fetch_add(1, Ordering::Relaxed);
        counter
            .resources
            .fetch_add(resources as u64, Ordering::Relaxed);
        counter.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.rejected
            .fetch_add(u64::from(rejected), Ordering::Relaxed);
    }

    /// Notes that a client acknowledged a response with these changes.
    pub(super) fn on_ack(&self, manners: Manners, kind: usize, news: &[Id]) {
        if manners != Manners::Good {
            return;
        }
        if let Some(watch) = &mut *lock(&self.watch)
            && watch.kind == kind
            && news.contains(&watch.name)
        {
            watch.reached.push(watch.since.elapsed());
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The running fleet; dropping it disconnects.
#[derive(Debug)]
pub(super) struct Fleet {
    pub(super) shared: Arc<Shared>,
    connections: usize,
    measured: usize,
    _clients: JoinSet<()>,
}

impl Fleet {
    /// Starts all clients; they connect one after the other.
    pub(super) async fn connect(
        address: SocketAddr,
        options: &Options,
        nodes: &[Node],
    ) -> Result<Self> {
        ensure!(!nodes.is_empty(), "no node to connect as");
        let shared = Arc::new(Shared {
            address,
            names: Dictionary::default(),
            responses: Default::default(),
            rejected: AtomicU64::new(0),
            configured: Mutex::default(),
            watch: Mutex::default(),
        });
        let mut clients = JoinSet::new();
        for number in 0..options.connections {
            let manners = match number {
                n if n < options.slow => Manners::Slow,
                n if n < options.slow + options.rejecting => Manners::Rejecting,
                _ => Manners::Good,
            };
            let node = nodes.get(number % nodes.len()).cloned().unwrap_or_default();
            let delta = (number / nodes.len()) % 100 < options.delta_percent;
            let mut client = Client::new(node, delta, manners);
            let shared = Arc::clone(&shared);
            clients.spawn(async move {
                loop {
                    // Why a stream ended does not matter: the client comes back.
                    client.follow(&shared).await.ok();
                    sleep(RECONNECT).await;
                }
            });
            if number % STARTS_PER_MS == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }
        let measured = options
            .connections
            .saturating_sub(options.slow + options.rejecting);
        Ok(Self {
            shared,
            connections: options.connections,
            measured,
            _clients: clients,
        })
    }

    /// Waits until every client has its first configuration.
    pub(super) async fn first_configs(&self, within: Duration) -> Result<Times> {
        let deadline = Instant::now() + within;
        loop {
            let done = lock(&self.shared.configured).len();
            if done >= self.connections {
                break;
            }
            ensure!(
                Instant::now() < deadline,
                "{done} of {} have a configuration",
                self.connections
            );
            sleep(POLL).await;
        }
        let times = std::mem::take(&mut *lock(&self.shared.configured));
        Ok(Times::of(times))
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
                bytes: take(&counter.bytes),
            })
            .collect()
    }

    /// Returns how many responses were rejected.
    pub(super) fn rejected(&self) -> u64 {
        self.shared.rejected.load(Ordering::Relaxed)
    }

    /// Makes a change and waits until everybody who follows the resource has it. Returns the times,
    /// and how many it never reached.
    pub(super) async fn measure(
        &self,
        type_url: &str,
        name: &str,
        change: impl FnOnce() -> Result<()>,
    ) -> Result<(Vec<Duration>, usize)> {
        let kind = TYPES
            .iter()
            .position(|known| *known == type_url)
            .context("an unknown type")?;
        let name = self.shared.names.id(name);
        let since = Instant::now();
        *lock(&self.shared.watch) = Some(Watch {
            kind,
            name,
            since,
            reached: Vec::new(),
        });
        change()?;
        let deadline = Instant::now() + REACH;
        loop {
            let reached = lock(&self.shared.watch)
                .as_ref()
                .map_or(0, |watch| watch.reached.len());
            if reached >= self.measured || Instant::now() >= deadline {
                break;
            }
            sleep(POLL).await;
        }
        let watch = lock(&self.shared.watch).take();
        let reached = watch.map(|watch| watch.reached).unwrap_or_default();
        let missed = self.measured.saturating_sub(reached.len());
        Ok((reached, missed))
    }

    /// Stops the server and starts it again, with nothing changed.
    pub(super) async fn over_a_restart(
        &self,
        mut server: ControlPlane,
        setup: Setup,
    ) -> Result<(Row, ControlPlane)> {
        self.take_sent();
        server.kill().await?;
        lock(&self.shared.configured).clear();
        let server = ControlPlane::start(setup).await?;
        let times = self.first_configs(REACH * 4).await?;
        sleep(Duration::from_millis(500)).await;
        let row = Row {
            churn: "restart".to_owned(),
            changes: 1,
            missed: 0,
            times,
            sent: self.take_sent(),
            amplification: None,
        };
        Ok((row, server))
    }

    /// Returns how many clients are measured.
    pub(super) fn measured(&self) -> usize {
        self.measured
    }
}

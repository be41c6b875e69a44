//! How the tables of all clusters are, for readiness and for people.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use model::Kind;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

/// Kinds without which no proxy may be served, because what is missing would be missed: endpoints, and
/// rules that refuse. Without leave to read another kind, that kind counts as empty.
const INDISPENSABLE: [Kind; 7] = [
    Kind::Namespace,
    Kind::Pod,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::PeerAuthentication,
    Kind::RequestAuthentication,
    Kind::AuthorizationPolicy,
];

/// How a table is.
///
/// From unknown it becomes syncing, then synced, absent or denied. Synced ones become stale when their
/// watch is lost, and synced again once it is back.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Phase {
    /// Nobody has answered yet.
    Unknown,
    /// The first list is being read.
    Syncing,
    /// It holds what the cluster holds.
    Synced,
    /// It held what the cluster held; the watch is lost.
    Stale,
    /// The cluster does not know the kind, so there are no objects of it.
    Absent,
    /// The cluster does not let us read the kind. Nothing was ever read.
    Denied,
}

impl Phase {
    /// All phases.
    pub const ALL: [Self; 6] = [
        Self::Unknown,
        Self::Syncing,
        Self::Synced,
        Self::Stale,
        Self::Absent,
        Self::Denied,
    ];

    /// The word for it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Unknown => "unknown",
            Self::Syncing => "syncing",
            Self::Synced => "synced",
            Self::Stale => "stale",
            Self::Absent => "absent",
            Self::Denied => "denied",
        }
    }

    /// Tells whether it is known what the table holds, as far as that is needed of a kind.
    fn is_settled(self, kind: Kind) -> bool {
        match self {
            Self::Unknown | Self::Syncing => false,
            Self::Synced | Self::Stale | Self::Absent => true,
            Self::Denied => !INDISPENSABLE.contains(&kind),
        }
    }
}

/// One table.
#[derive(Clone, Debug)]
pub struct TableStatus {
    /// Id of the cluster.
    pub cluster: Arc<str>,
    /// The kind.
    pub kind: Kind,
    /// How it is.
    pub phase: Phase,
    /// For how long.
    pub since: Duration,
    /// Number of objects.
    pub objects: usize,
    /// Number of objects that cannot be read, or of which an earlier version is used.
    pub refused: usize,
    /// Lists that were read.
    pub lists: u64,
    /// Events of the watch.
    pub events: u64,
    /// Times that a list or watch failed.
    pub errors: u64,
    /// Why the last one failed; `None` while all is well.
    pub error: Option<String>,
}

/// What is counted of one table.
#[derive(Clone, Debug)]
pub(super) struct Entry {
    pub(super) phase: Phase,
    since: Instant,
    pub(super) objects: usize,
    pub(super) refused: usize,
    pub(super) lists: u64,
    pub(super) events: u64,
    pub(super) errors: u64,
    pub(super) error: Option<String>,
}

/// The tables of all clusters. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tables {
    entries: Arc<Mutex<Entries>>,
    /// Counts changes of phases.
    changed: watch::Sender<u64>,
}

type Entries = BTreeMap<(Arc<str>, Kind), Entry>;

impl Default for Tables {
    fn default() -> Self {
        Self {
            entries: Arc::default(),
            changed: watch::Sender::new(0),
        }
    }
}

impl Tables {
    /// Lists all tables, by cluster and kind.
    pub fn list(&self) -> Vec<TableStatus> {
        let now = Instant::now();
        let entries = self.entries.lock();
        let list = entries.iter().map(|((cluster, kind), entry)| TableStatus {
            cluster: cluster.clone(),
            kind: *kind,
            phase: entry.phase,
            since: now.saturating_duration_since(entry.since),
            objects: entry.objects,
            refused: entry.refused,
            lists: entry.lists,
            events: entry.events,
            errors: entry.errors,
            error: entry.error.clone(),
        });
        list.collect()
    }

    /// Lists the tables of a cluster that are needed and not known yet.
    pub fn unsettled(&self, cluster: &str) -> Vec<TableStatus> {
        let mut list = self.list();
        list.retain(|t| *t.cluster == *cluster && !t.phase.is_settled(t.kind));
        list
    }

    /// Waits until all tables of a cluster are known, as far as they are needed. What they hold has been
    /// sent by then.
    pub async fn settled(&self, cluster: &str) {
        let mut changed = self.changed.subscribe();
        while !self.is_settled(cluster) {
            // The sender lives as long as we do.
            changed.changed().await.ok();
        }
    }

    fn is_settled(&self, cluster: &str) -> bool {
        let entries = self.entries.lock();
        let mut of_cluster = entries.iter().filter(|((c, _), _)| **c == *cluster);
        of_cluster.all(|((_, kind), entry)| entry.phase.is_settled(*kind))
    }

    /// Adds a table.
    pub(super) fn add(&self, cluster: &Arc<str>, kind: Kind) {
        let entry = Entry {
            phase: Phase::Unknown,
            since: Instant::now(),
            objects: 0,
            refused: 0,
            lists: 0,
            events: 0,
            errors: 0,
            error: None,
        };
        let mut entries = self.entries.lock();
        entries.insert((cluster.clone(), kind), entry);
    }

    /// Forgets the tables of a cluster.
    pub fn forget(&self, cluster: &str) {
        self.entries.lock().retain(|(c, _), _| **c != *cluster);
        self.changed.send_modify(|count| *count += 1);
    }

    /// Changes what is known of a table.
    pub(super) fn update(&self, cluster: &Arc<str>, kind: Kind, change: impl FnOnce(&mut Entry)) {
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get_mut(&(cluster.clone(), kind)) else {
            return;
        };
        let before = entry.phase;
        change(entry);
        if entry.phase != before {
            entry.since = Instant::now();
            drop(entries);
            self.changed.send_modify(|count| *count += 1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: Kind, phase: Phase, settled: bool) {
        let tables = Tables::default();
        let cluster: Arc<str> = "c".into();
        tables.add(&cluster, kind);
        tables.update(&cluster, kind, |entry| entry.phase = phase);
        assert_eq!(tables.unsettled("c").is_empty(), settled);
        assert_eq!(tables.is_settled("c"), settled);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_unknown_is_not_settled() {
        check(Kind::Service, Phase::Unknown, false);
        check(Kind::Service, Phase::Syncing, false);
        check(Kind::Service, Phase::Synced, true);
        check(Kind::Service, Phase::Stale, true);
        check(Kind::Telemetry, Phase::Absent, true);
    }

    #[tokio::test(start_paused = true)]
    async fn leave_is_needed_for_endpoints_and_for_rules_that_refuse() {
        check(Kind::Telemetry, Phase::Denied, true);
        check(Kind::Secret, Phase::Denied, true);
        check(Kind::EndpointSlice, Phase::Denied, false);
        check(Kind::AuthorizationPolicy, Phase::Denied, false);
    }
}

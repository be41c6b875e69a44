//! The distribution ledger: who has which configuration.
//!
//! The [`Books`] say what was published when, `xds` says what its clients hold. Together they answer
//! who has a change, who has yet to accept it and who has refused it. [`api`] serves the answers,
//! [`client`] asks for them, [`peers`] asks the other replicas, [`tracker`] measures, [`pods`] lets
//! pods wait for them, [`statuses`] writes them into objects.

pub mod answer;
pub(crate) mod api;
mod ask;
mod books;
pub mod client;
mod key;
mod matter;
mod merge;
mod overview;
mod page;
pub(crate) mod peers;
mod pods;
mod statuses;
mod tracker;

use std::{collections::BTreeSet, fmt, sync::Arc};

use generators::Mesh;
use model::MeshState;
use parking_lot::Mutex;
use pushctx::Reader;
use tokio::{sync::Notify, time::Instant};
use xds::Server;

use self::{peers::Peers, tracker::Tracker};
use crate::metrics::Metrics;

pub use self::key::{Key, KeyError, UnknownKind};
pub(crate) use self::{books::Books, pods::Attendant, statuses::Clerk};

/// The content hash of an object, as answers name it.
pub fn hash_of(object: &model::Object) -> String {
    books::hash(object).to_string()
}

/// For how long after its start a control plane may still miss clients that are about to come back.
const SETTLING: std::time::Duration = std::time::Duration::from_secs(10);

/// What a question needs. Cheap to clone; all clones are one.
#[derive(Clone)]
pub(crate) struct Distribution(Arc<Inner>);

struct Inner {
    replica: String,
    started: Instant,
    server: Server<Mesh>,
    snapshots: Reader,
    /// The state that has arrived, published or not.
    latest: Arc<Mutex<MeshState>>,
    books: Arc<Mutex<Books>>,
    peers: Peers,
    tracker: Mutex<Tracker>,
    published: Notify,
    /// What has been published and not been taken by [`statuses`]; `None` when nobody takes it.
    changed: Mutex<Option<BTreeSet<Key>>>,
    metrics: Metrics,
}

/// What [`Distribution::new`] needs.
pub(crate) struct Parts {
    /// The name of this replica.
    pub replica: String,
    /// When the process started.
    pub started: Instant,
    /// The xDS server.
    pub server: Server<Mesh>,
    /// The current snapshot.
    pub snapshots: Reader,
    /// The state that has arrived.
    pub latest: Arc<Mutex<MeshState>>,
    /// What was published when.
    pub books: Arc<Mutex<Books>>,
    /// The other replicas.
    pub peers: Peers,
    /// Where times and counts go.
    pub metrics: Metrics,
}

impl Distribution {
    /// Makes the ledger of a server.
    pub(crate) fn new(parts: Parts) -> Self {
        Self(Arc::new(Inner {
            replica: parts.replica,
            started: parts.started,
            server: parts.server,
            snapshots: parts.snapshots,
            latest: parts.latest,
            books: parts.books,
            peers: parts.peers,
            tracker: Mutex::default(),
            published: Notify::new(),
            changed: Mutex::default(),
            metrics: parts.metrics,
        }))
    }

    /// Returns the other replicas.
    pub(crate) fn peers(&self) -> &Peers {
        &self.0.peers
    }
}

impl fmt::Debug for Distribution {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Distribution")
            .field("replica", &self.0.replica)
            .finish_non_exhaustive()
    }
}

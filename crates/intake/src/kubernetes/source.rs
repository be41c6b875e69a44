//! All tables of one cluster.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
};

use kube::Client;
use model::Kind;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};

use super::{
    definitions::{Definitions, Follower},
    reflector::{Reflector, Shared},
    resource::Resource,
    status::Tables,
};
use crate::intake::Change;

/// Which objects of a cluster are read.
#[derive(Clone, Debug)]
pub struct SourceOptions {
    /// The cluster's id.
    pub cluster: Arc<str>,
    /// The kinds that are read.
    pub kinds: Vec<Kind>,
}

impl SourceOptions {
    /// Reads all kinds of a cluster.
    pub fn all(cluster: Arc<str>) -> Self {
        Self {
            cluster,
            kinds: Kind::ALL.to_vec(),
        }
    }

    /// Leaves out custom kinds whose definition's name (`virtualservices.networking.istio.io`) is one of
    /// `ignored` and none of `included`. `*.istio.io` names all that end so.
    #[must_use]
    pub fn without(mut self, ignored: &[String], included: &[String]) -> Self {
        let names = |patterns: &[String], name: &str| {
            patterns.iter().any(|p| match p.strip_prefix('*') {
                Some(suffix) => name.ends_with(suffix),
                None => p == name,
            })
        };
        self.kinds
            .retain(|kind| match Resource::of(*kind).definition() {
                Some(name) => !names(ignored, &name) || names(included, &name),
                None => true,
            });
        self
    }
}

/// Nobody takes changes any more.
#[derive(Debug)]
pub(super) struct Closed;

/// What becomes of each change before it is sent: others, in its place.
pub type Turn = Box<dyn FnMut(Change) -> Vec<Change> + Send + Sync>;

/// Where the changes of one kind go.
pub(super) struct Outlet {
    changes: mpsc::Sender<Vec<Change>>,
    turn: Option<Turn>,
}

impl Outlet {
    pub(super) async fn send(&mut self, changes: Vec<Change>) -> Result<(), Closed> {
        let changes = match &mut self.turn {
            Some(turn) => changes.into_iter().flat_map(turn).collect(),
            None => changes,
        };
        if changes.is_empty() {
            return Ok(());
        }
        self.changes.send(changes).await.map_err(|_| Closed)
    }
}

/// A cluster as a source of changes.
pub struct ClusterSource {
    client: Client,
    options: SourceOptions,
    tables: Tables,
    turns: Vec<(Kind, Turn)>,
}

impl fmt::Debug for ClusterSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClusterSource")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

impl ClusterSource {
    /// Makes a source. `tables` has its tables from now on, all unknown.
    pub fn new(client: Client, options: SourceOptions, tables: Tables) -> Self {
        for kind in &options.kinds {
            tables.add(&options.cluster, *kind);
        }
        Self {
            client,
            options,
            tables,
            turns: Vec::new(),
        }
    }

    /// Has all changes of a kind turned into others before they are sent.
    #[must_use]
    pub fn turning(mut self, kind: Kind, turn: Turn) -> Self {
        self.turns.push((kind, turn));
        self
    }

    /// Reads the cluster until nobody takes changes any more. Each kind has a task of its own: none
    /// waits for another, save for whoever takes the changes.
    pub async fn run(mut self, changes: mpsc::Sender<Vec<Change>>) {
        let (known, definitions) = watch::channel(Definitions::default());
        let shared = Shared {
            cluster: self.options.cluster.clone(),
            tables: self.tables.clone(),
            streams: Arc::new(AtomicBool::new(true)),
            definitions,
            revived: Arc::default(),
        };
        let mut tasks = JoinSet::new();
        for kind in &self.options.kinds {
            let own = self.turns.iter().position(|(of, _)| of == kind);
            let outlet = Outlet {
                changes: changes.clone(),
                turn: own.map(|at| self.turns.swap_remove(at).1),
            };
            tasks.spawn(Reflector::new(self.client.clone(), *kind, shared.clone(), outlet).run());
        }
        let follower = Follower::new(
            self.client.clone(),
            &self.options.kinds,
            known,
            changes.clone(),
        );
        if let Some(follower) = follower {
            tasks.spawn(follower.run());
        }
        tokio::select! {
            () = changes.closed() => {}
            Some(Err(error)) = tasks.join_next() => {
                if error.is_panic() {
                    std::panic::resume_unwind(error.into_panic());
                }
            }
        }
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

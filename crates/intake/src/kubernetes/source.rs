//! All tables of one cluster.

use std::{
    fmt,
    sync::{Arc, atomic::AtomicBool},
    time::Duration,
};

use futures::{StreamExt as _, stream::BoxStream};
use kube::{Client, core::WatchEvent};
use model::Kind;
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time,
};

use super::{
    backoff::Backoff,
    reader::identity,
    reflector::{Reflector, Shared},
    resource::Resource,
    status::Tables,
};
use crate::intake::Change;

/// After how much silence the watch of definitions is opened anew.
const SILENCE: Duration = Duration::from_mins(3);

/// Where the names and versions of custom kinds are; only metadata is read.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions\
                           ?watch=true&allowWatchBookmarks=true&timeoutSeconds=300";

/// Form of an answer with metadata alone.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";

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
        let (come, kinds) = watch::channel(0);
        let shared = Shared {
            cluster: self.options.cluster.clone(),
            tables: self.tables.clone(),
            streams: Arc::new(AtomicBool::new(true)),
            kinds,
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
        let names = self.options.kinds.iter();
        let names: Vec<String> = names
            .filter_map(|kind| Resource::of(*kind).definition())
            .collect();
        if !names.is_empty() {
            tasks.spawn(watch_definitions(self.client.clone(), names, come));
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

/// Tells when one of the custom kinds `names` comes, changes or goes. Without leave to watch
/// definitions, whoever waits for a kind has to look for himself.
async fn watch_definitions(client: Client, names: Vec<String>, come: watch::Sender<u64>) {
    let mut backoff = Backoff::default();
    loop {
        let request = http::Request::get(DEFINITIONS)
            .header(http::header::ACCEPT, METADATA)
            .body(Vec::new())
            .expect("the parts are constants");
        match client.request_events::<Value>(request).await {
            Ok(events) => {
                let mut events: BoxStream<'_, Result<WatchEvent<Value>, _>> = events.boxed();
                while let Ok(Some(Ok(event))) = time::timeout(SILENCE, events.next()).await {
                    backoff.reset();
                    let (WatchEvent::Added(value)
                    | WatchEvent::Modified(value)
                    | WatchEvent::Deleted(value)) = event
                    else {
                        continue;
                    };
                    if identity(&value)
                        .is_some_and(|(name, _)| names.iter().any(|n| **n == *name.name))
                    {
                        come.send_modify(|count| *count += 1);
                    }
                }
            }
            Err(error) => tracing::debug!(%error, "definitions of kinds cannot be watched"),
        }
        time::sleep(backoff.next()).await;
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod tests;

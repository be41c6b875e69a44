//! The definitions of custom kinds: which of them there are, and of which release of the Gateway API.
//!
//! Only their metadata is read. Those of the Gateway API say by an annotation which release they are of;
//! kinds of a release that is too old count as absent (config-model §1.3).

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::BoxStream};
use kube::{Client, core::WatchEvent};
use model::{
    Kind,
    bundle::{self, Bundles, TooOld},
};
use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    time,
};

use super::{
    backoff::Backoff,
    reader::identity,
    resource::{Resource, encode},
};
use crate::intake::Change;

/// After how much silence the watch is opened anew.
const SILENCE: Duration = Duration::from_mins(3);

/// How long a page of the list may take.
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);

/// Definitions of a page: those with annotations of who applied them may be large.
const PAGE: usize = 50;

/// Where they are.
const PATH: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// Forms of answers with metadata alone.
const METADATA: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1";
const METADATA_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";

/// What is known of the definitions that somebody waits for.
#[derive(Clone, Default, Debug)]
pub(super) struct Definitions {
    /// How often one has come, changed or gone.
    changes: u64,
    known: Known,
}

#[derive(Clone, Default, PartialEq, Debug)]
enum Known {
    /// Nobody has answered yet.
    #[default]
    Unknown,
    /// We may not read them, or there are none: kinds are read as far as the API server serves them.
    Unreadable,
    /// What each of those that are there says of its release.
    Read(BTreeMap<Kind, Option<Arc<str>>>),
}

impl Definitions {
    /// Tells whether it is known of which releases they are, or that nobody will say.
    pub(super) fn is_settled(&self) -> bool {
        self.known != Known::Unknown
    }

    /// Tells whether the objects of a kind count.
    ///
    /// # Errors
    /// [`TooOld`] when its definition is.
    pub(super) fn check(&self, kind: Kind) -> Result<(), TooOld> {
        match &self.known {
            Known::Unknown | Known::Unreadable => Ok(()),
            // Of a kind that is not there, the API server says so.
            Known::Read(read) => match read.get(&kind) {
                Some(installed) => bundle::check(kind, installed.as_ref()),
                None => Ok(()),
            },
        }
    }
}

/// Tells whether the definition of a kind says of which release it is.
pub(super) fn is_released(kind: Kind) -> bool {
    kind.group() == bundle::GROUP
}

/// The task that follows them.
pub(super) struct Follower {
    client: Client,
    /// Whose definitions count, by their names.
    kinds: BTreeMap<String, Kind>,
    known: watch::Sender<Definitions>,
    changes: mpsc::Sender<Vec<Change>>,
    read: BTreeMap<Kind, Option<Arc<str>>>,
    /// What was last told of releases.
    told: Bundles,
}

/// Why a list or a watch came to its end.
enum Lost {
    /// The watch ended as it has to, some time; it can go on after this version.
    Ended(String),
    /// They cannot be read, and that will not change soon.
    Unreadable(String),
    /// Anything else.
    Failed(String),
    /// Nobody takes changes any more.
    Closed,
}

impl From<kube::Error> for Lost {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) if matches!(status.code, 401 | 403 | 404) => {
                Self::Unreadable(format!("{} ({})", status.message, status.code))
            }
            other => Self::Failed(super::causes(&other)),
        }
    }
}

impl From<http::Error> for Lost {
    fn from(error: http::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

impl Follower {
    /// Will tell `known` and `changes` of the definitions of some kinds. `None` when none of them has one.
    pub(super) fn new(
        client: Client,
        kinds: &[Kind],
        known: watch::Sender<Definitions>,
        changes: mpsc::Sender<Vec<Change>>,
    ) -> Option<Self> {
        let kinds = kinds.iter();
        let kinds: BTreeMap<String, Kind> = kinds
            .filter_map(|kind| Some((Resource::of(*kind).definition()?, *kind)))
            .collect();
        (!kinds.is_empty()).then_some(Self {
            client,
            kinds,
            known,
            changes,
            read: BTreeMap::new(),
            told: Bundles::new(),
        })
    }

    /// Runs until nobody takes changes any more.
    pub(super) async fn run(mut self) {
        let mut backoff = Backoff::default();
        let mut resume: Option<String> = None;
        loop {
            let from = match resume.take() {
                Some(version) => Ok(version),
                None => self.list().await,
            };
            let lost = match from {
                Ok(version) => self.watch(version, &mut backoff).await,
                Err(lost) => lost,
            };
            match lost {
                Lost::Closed => return,
                Lost::Ended(version) => resume = Some(version),
                Lost::Unreadable(error) => {
                    // Without leave, whoever waits for a kind has to look for himself.
                    tracing::debug!(%error, "definitions of kinds cannot be read");
                    self.known.send_if_modified(|known| {
                        let first = known.known == Known::Unknown;
                        if first {
                            known.known = Known::Unreadable;
                        }
                        first
                    });
                }
                Lost::Failed(error) => {
                    tracing::debug!(%error, "definitions of kinds cannot be read, trying again");
                }
            }
            time::sleep(backoff.next()).await;
        }
    }

    /// Reads all of them; returns the list's version.
    async fn list(&mut self) -> Result<String, Lost> {
        let mut read = BTreeMap::new();
        let mut next = String::new();
        let version = loop {
            let request = http::Request::get(format!("{PATH}?limit={PAGE}{next}"))
                .header(http::header::ACCEPT, METADATA_LIST)
                .body(Vec::new())?;
            let page = time::timeout(PAGE_TIMEOUT, self.client.request::<Value>(request)).await;
            let page =
                page.map_err(|_| Lost::Failed("the API server does not answer".to_owned()))??;
            let items = page["items"].as_array().map_or(&[][..], Vec::as_slice);
            read.extend(items.iter().filter_map(|item| self.entry(item)));
            let field = |name: &str| page["metadata"][name].as_str().unwrap_or_default();
            match field("continue") {
                "" => break field("resourceVersion").to_owned(),
                token => next = format!("&continue={}", encode(token)),
            }
        };
        self.read = read;
        self.tell().await?;
        Ok(version)
    }

    /// Follows what changes after a version.
    async fn watch(&mut self, mut version: String, backoff: &mut Backoff) -> Lost {
        let query = "watch=true&allowWatchBookmarks=true&timeoutSeconds=300";
        let path = format!("{PATH}?{query}&resourceVersion={}", encode(&version));
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, METADATA)
            .body(Vec::new());
        let request = match request {
            Ok(request) => request,
            Err(error) => return error.into(),
        };
        let events = match self.client.request_events::<Value>(request).await {
            Ok(events) => events,
            Err(error) => return error.into(),
        };
        let mut events: BoxStream<'_, Result<WatchEvent<Value>, _>> = events.boxed();
        while let Ok(Some(event)) = time::timeout(SILENCE, events.next()).await {
            if event.is_ok() {
                backoff.reset();
            }
            let (value, is_there) = match event {
                Ok(WatchEvent::Added(value) | WatchEvent::Modified(value)) => (value, true),
                Ok(WatchEvent::Deleted(value)) => (value, false),
                Ok(WatchEvent::Bookmark(mark)) => {
                    version = mark.metadata.resource_version;
                    continue;
                }
                Ok(WatchEvent::Error(status)) => return Lost::Failed(status.message),
                Err(error) => return error.into(),
            };
            if let Some((_, at)) = identity(&value) {
                version = at;
            }
            let Some((kind, release)) = self.entry(&value) else {
                continue;
            };
            if is_there {
                self.read.insert(kind, release);
            } else {
                self.read.remove(&kind);
            }
            if let Err(lost) = self.tell().await {
                return lost;
            }
        }
        Lost::Ended(version)
    }

    /// The kind of a definition that counts, and what it says of its release.
    fn entry(&self, value: &Value) -> Option<(Kind, Option<Arc<str>>)> {
        let (name, _) = identity(value)?;
        let kind = self.kinds.get(&*name.name)?;
        let release = value["metadata"]["annotations"][bundle::ANNOTATION].as_str();
        Some((*kind, release.map(Into::into)))
    }

    /// Tells what is known now.
    async fn tell(&mut self) -> Result<(), Lost> {
        let released = self.read.iter().filter(|(kind, _)| is_released(**kind));
        let bundles: Bundles = released.map(|(kind, at)| (*kind, at.clone())).collect();
        if bundles != self.told {
            self.told.clone_from(&bundles);
            let sent = self.changes.send(vec![Change::Bundles(bundles)]).await;
            sent.map_err(|_| Lost::Closed)?;
        }
        // Also when they say the same: one that changes may just have begun to be served.
        self.known.send_modify(|known| {
            known.changes += 1;
            known.known = Known::Read(self.read.clone());
        });
        Ok(())
    }
}

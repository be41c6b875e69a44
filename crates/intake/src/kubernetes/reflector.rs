//! Keeps the table of one kind: lists, watches, and tries again.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use futures::{StreamExt as _, stream::BoxStream};
use kube::{Client, core::WatchEvent};
use model::{Kind, bundle::TooOld};
use serde_json::Value;
use tokio::{
    sync::watch,
    time::{self, Instant},
};

use super::{
    backoff::Backoff,
    definitions::{self, Definitions},
    reader::{Reader, identity},
    resource::{Resource, encode},
    source::Outlet,
    status::{Entry, Phase, Tables},
    table::{Listing, Outcome, Table},
};
use crate::report::Severity;

/// How long the API server may take to begin with an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a page of a list may take.
const PAGE_TIMEOUT: Duration = Duration::from_mins(1);

/// Objects of a page. A page is in memory as text, once.
const PAGE: usize = 500;

/// How long a watch is asked to last; the API server ends it then. Half of it is the least.
const WATCH: Duration = Duration::from_mins(8);

/// After how much silence a watch is opened anew: the API server sends a bookmark each minute, and a
/// connection that nothing comes through may be dead.
const SILENCE: Duration = Duration::from_mins(3);

/// After how much silence within a streamed list it is read in pages instead: API servers that do not
/// know how to stream one never say that it is at its end.
const LIST_SILENCE: Duration = Duration::from_secs(15);

/// A watch that ends earlier without an event is a failure.
const SHORTEST_WATCH: Duration = Duration::from_secs(1);

/// Events that are passed on together, when they come together.
const TOGETHER: usize = 1024;

/// How often a kind is looked for that the cluster does not have, when nobody says that it has come.
const ABSENT: Duration = Duration::from_secs(30);

/// How often a kind is looked for soon, when it is said to have come.
const LOOKS: u32 = 6;

/// Answers in a row that there is no such kind, until its objects are believed to be gone: an API server
/// that just starts may not know it yet.
const GONE_AFTER: u32 = 4;

/// `metadata.annotations` of the bookmark at the end of a streamed list.
const END_OF_LIST: &str = "k8s.io/initial-events-end";

/// Reason of an answer to who asks for a version that the API server has not reached.
const TOO_LARGE: &str = "ResourceVersionTooLarge";

type Events = BoxStream<'static, Result<WatchEvent<Value>, kube::Error>>;

/// Why a list or a watch came to its end.
#[derive(Debug)]
enum Lost {
    /// The watch ended as it has to, some time.
    Ended,
    /// What the watch wanted to go on from is too old: everything has to be listed again.
    Expired,
    /// The API server does not stream lists.
    NoStreams,
    /// There is no such kind.
    NotFound,
    /// The kind counts as if it were not there.
    TooOld(TooOld),
    /// We may not read the kind.
    Denied(String),
    /// Anything else.
    Failed(String),
    /// Nobody takes changes any more.
    Closed,
}

impl From<kube::Error> for Lost {
    fn from(error: kube::Error) -> Self {
        match error {
            kube::Error::Api(status) => Self::from_status(&status),
            other => Self::Failed(super::causes(&other)),
        }
    }
}

impl Lost {
    fn from_status(status: &kube::core::Status) -> Self {
        let message = format!("{} ({})", status.message, status.code);
        let causes = status.details.iter().flat_map(|details| &details.causes);
        match status.code {
            403 => Self::Denied(message),
            404 => Self::NotFound,
            410 => Self::Expired,
            _ if causes.clone().any(|cause| cause.reason == TOO_LARGE) => Self::Expired,
            _ => Self::Failed(message),
        }
    }
}

/// From how many failures in a row on a kind was not just unlucky.
const OUTAGE: u32 = 3;

/// What all tables of a cluster share.
#[derive(Clone, Debug)]
pub(super) struct Shared {
    pub(super) cluster: Arc<str>,
    pub(super) tables: Tables,
    /// The API server streams lists, as far as is known.
    pub(super) streams: Arc<AtomicBool>,
    /// Changes whenever kinds come, change or go.
    pub(super) definitions: watch::Receiver<Definitions>,
    /// Changes whenever a kind can be read again after an outage: the others need not wait longer.
    pub(super) revived: Arc<watch::Sender<u64>>,
}

/// The task of one kind.
pub(super) struct Reflector {
    client: Client,
    resource: Resource,
    shared: Shared,
    outlet: Outlet,
    table: Table,
    /// Which of the resource's versions is served, as far as is known.
    served: usize,
    backoff: Backoff,
    /// Another kind cut the last wait short.
    woken: bool,
    /// Why the kind counts as absent, as it was last said.
    too_old: Option<TooOld>,
}

impl Reflector {
    pub(super) fn new(client: Client, kind: Kind, shared: Shared, outlet: Outlet) -> Self {
        Self {
            client,
            resource: Resource::of(kind),
            shared,
            outlet,
            table: Table::new(kind),
            served: 0,
            backoff: Backoff::default(),
            woken: false,
            too_old: None,
        }
    }

    /// Runs until nobody takes changes any more.
    pub(super) async fn run(mut self) {
        // From where to go on watching; none when everything has to be listed.
        let mut resume: Option<String> = None;
        let (mut not_found, mut looks) = (0, 0);
        loop {
            let begun = Instant::now();
            let lost = match (self.definition().await, resume.take()) {
                (Err(too_old), _) => Lost::TooOld(too_old),
                (Ok(()), Some(version)) => self.watch(version, &mut resume).await,
                (Ok(()), None) => self.list(&mut resume).await,
            };
            if !matches!(lost, Lost::NotFound) {
                not_found = 0;
            }
            match lost {
                Lost::Closed => return,
                Lost::Ended if begun.elapsed() >= SHORTEST_WATCH => {}
                Lost::Ended => self.pause().await,
                Lost::NoStreams => self.shared.streams.store(false, Ordering::Relaxed),
                Lost::Expired => {
                    tracing::info!(cluster = %self.shared.cluster, kind = %self.resource.kind, "watch expired, listing again");
                    resume = None;
                    self.phase_after_loss(None);
                    // Once is nothing unusual.
                    if self.backoff.failures() > 0 {
                        self.pause().await;
                    } else {
                        self.backoff.next();
                    }
                }
                Lost::NotFound if self.served + 1 < self.resource.versions.len() => {
                    self.served += 1;
                    resume = None;
                }
                Lost::NotFound => {
                    self.served = 0;
                    resume = None;
                    not_found += 1;
                    if self.table.len() > 0 && not_found < GONE_AFTER {
                        self.phase_after_loss(Some(
                            "the cluster does not know the kind".to_owned(),
                        ));
                        self.pause().await;
                        continue;
                    }
                    if self.absent(None).await.is_err() {
                        return;
                    }
                    self.wait_for_kind(&mut looks).await;
                }
                Lost::TooOld(reason) => {
                    self.served = 0;
                    resume = None;
                    if self.absent(Some(reason)).await.is_err() {
                        return;
                    }
                    self.wait_for_kind(&mut looks).await;
                }
                Lost::Denied(reason) => {
                    self.fail(reason, true);
                    self.pause().await;
                }
                Lost::Failed(reason) => {
                    self.fail(reason, false);
                    self.pause().await;
                }
            }
        }
    }

    /// Waits until it is known of which release the kind is, if that matters.
    async fn definition(&mut self) -> Result<(), TooOld> {
        let kind = self.resource.kind;
        if !definitions::is_released(kind) {
            return Ok(());
        }
        let settled = self.shared.definitions.wait_for(Definitions::is_settled);
        // Whoever follows them lives as long as we do.
        settled.await.map_or(Ok(()), |known| known.check(kind))
    }

    /// The kind is not there, or counts as if it were not: neither are its objects.
    async fn absent(&mut self, reason: Option<TooOld>) -> Result<(), Lost> {
        let gone = self.table.replace(Listing::default());
        self.deliver(gone).await?;
        if let Some(reason) = &reason
            && self.too_old.as_ref() != Some(reason)
        {
            let (cluster, kind) = (&self.shared.cluster, self.resource.kind);
            let definition = self.resource.definition();
            tracing::warn!(%cluster, %kind, definition, %reason, "kind counts as absent");
        }
        self.update(|entry| {
            entry.phase = Phase::Absent;
            entry.error = reason.as_ref().map(ToString::to_string);
        });
        self.too_old = reason;
        Ok(())
    }

    async fn pause(&mut self) {
        let mut revived = self.shared.revived.subscribe();
        let wait = self.backoff.next();
        tokio::select! {
            () = time::sleep(wait) => self.woken = false,
            Ok(()) = revived.changed() => {
                self.woken = true;
                self.backoff.reset();
                let wait = self.backoff.next();
                time::sleep(wait).await;
            }
        }
    }

    /// Wakes the kinds that still wait, when this one can be read again after an outage. Who was
    /// woken wakes nobody, or kinds that fail again and again would keep each other awake.
    fn wake_others(&self) {
        if self.backoff.failures() >= OUTAGE && !self.woken {
            self.shared.revived.send_modify(|count| *count += 1);
        }
    }

    /// Waits until the kind may have come. `looks` is how often it is worth to look soon: what is told of
    /// a kind is told before it can be listed.
    async fn wait_for_kind(&mut self, looks: &mut u32) {
        let wait = if *looks > 0 {
            *looks -= 1;
            self.backoff.next()
        } else {
            self.backoff.jitter(ABSENT)
        };
        tokio::select! {
            () = time::sleep(wait) => {}
            Ok(()) = self.shared.definitions.changed() => {
                self.backoff.reset();
                *looks = LOOKS;
            }
        }
    }

    /// Says that a list or a watch has failed. What is known stays.
    fn fail(&mut self, reason: String, denied: bool) {
        let (cluster, kind) = (&self.shared.cluster, self.resource.kind);
        // The first failure is worth a line, those that follow are counted.
        if self.backoff.failures() > 0 {
            tracing::debug!(%cluster, %kind, error = %reason, "cannot be read");
        } else if denied {
            tracing::error!(%cluster, %kind, error = %reason, "no leave to read this kind");
        } else {
            tracing::warn!(%cluster, %kind, error = %reason, "cannot be read, trying again");
        }
        self.update(|entry| {
            entry.errors += 1;
            if denied && matches!(entry.phase, Phase::Unknown | Phase::Syncing) {
                entry.phase = Phase::Denied;
            }
        });
        self.phase_after_loss(Some(reason));
    }

    fn phase_after_loss(&self, reason: Option<String>) {
        self.update(|entry| {
            entry.error = reason;
            if entry.phase == Phase::Synced {
                entry.phase = Phase::Stale;
            }
        });
    }

    /// Reads everything, then follows the changes.
    async fn list(&mut self, resume: &mut Option<String>) -> Lost {
        self.update(|entry| {
            if entry.phase == Phase::Unknown {
                entry.phase = Phase::Syncing;
            }
        });
        let reader = self.reader();
        if self.shared.streams.load(Ordering::Relaxed) {
            match self.streamed_list(&reader).await {
                Ok((events, version)) => self.follow(events, &reader, version, resume).await,
                Err(lost) => lost,
            }
        } else {
            match self.paged_list(&reader).await {
                Ok(version) => self.watch(version, resume).await,
                Err(lost) => lost,
            }
        }
    }

    /// Reads a list that the watch itself starts with; returns the rest of the watch.
    async fn streamed_list(&mut self, reader: &Reader) -> Result<(Events, String), Lost> {
        let query = "&sendInitialEvents=true&resourceVersionMatch=NotOlderThan";
        let mut events = match self.open(query).await {
            Ok(events) => events,
            Err(kube::Error::Api(status)) if matches!(status.code, 400 | 422) => {
                return Err(Lost::NoStreams);
            }
            Err(error) => return Err(error.into()),
        };
        let mut listing = Listing::default();
        loop {
            let event = time::timeout(LIST_SILENCE, events.next()).await;
            let event = match event.map_err(|_| Lost::NoStreams)? {
                Some(event) => event?,
                None => return Err(Lost::Failed("the list broke off".to_owned())),
            };
            match event {
                WatchEvent::Added(value) | WatchEvent::Modified(value) => {
                    if let Some(read) = reader.read(value) {
                        listing.add(read);
                    }
                }
                WatchEvent::Deleted(value) => {
                    if let Some((name, _)) = identity(&value) {
                        listing.remove(&name);
                    }
                }
                WatchEvent::Bookmark(mark) => {
                    if mark.metadata.annotations.contains_key(END_OF_LIST) {
                        self.replace(listing).await?;
                        return Ok((events, mark.metadata.resource_version));
                    }
                }
                WatchEvent::Error(status) => return Err(Lost::from_status(&status)),
            }
        }
    }

    /// Reads a list page by page; returns its version.
    async fn paged_list(&mut self, reader: &Reader) -> Result<String, Lost> {
        let mut listing = Listing::default();
        let mut next = String::new();
        loop {
            let text = self.page(&next).await?;
            let page: Value = serde_json::from_str(&text)
                .map_err(|error| Lost::Failed(format!("the list is no JSON: {error}")))?;
            drop(text);
            let Value::Object(mut page) = page else {
                return Err(Lost::Failed("the list is no object".to_owned()));
            };
            let field = |name: &str| {
                let metadata = page.get("metadata");
                let value = metadata.and_then(|m| m.get(name)).and_then(Value::as_str);
                value.unwrap_or_default().to_owned()
            };
            let (version, token) = (field("resourceVersion"), field("continue"));
            if let Some(Value::Array(items)) = page.remove("items") {
                items
                    .into_iter()
                    .filter_map(|item| reader.read(item))
                    .for_each(|read| listing.add(read));
            }
            if token.is_empty() {
                self.replace(listing).await?;
                return Ok(version);
            }
            next = format!("&continue={}", encode(&token));
        }
    }

    async fn page(&self, next: &str) -> Result<String, Lost> {
        let request = self.request(&format!("&limit={PAGE}{next}"))?;
        let page = time::timeout(PAGE_TIMEOUT, self.client.request_text(request)).await;
        let page = page.map_err(|_| Lost::Failed("the API server does not answer".to_owned()))?;
        Ok(page?)
    }

    /// Follows changes from a version on.
    async fn watch(&mut self, version: String, resume: &mut Option<String>) -> Lost {
        let query = format!("&resourceVersion={}", encode(&version));
        *resume = Some(version.clone());
        match self.open(&query).await {
            Ok(events) => {
                self.wake_others();
                let reader = self.reader();
                self.update(|entry| {
                    entry.phase = Phase::Synced;
                    entry.error = None;
                });
                self.follow(events, &reader, version, resume).await
            }
            Err(error) => error.into(),
        }
    }

    /// Opens a watch.
    async fn open(&self, query: &str) -> Result<Events, kube::Error> {
        let seconds = self.backoff.jitter(WATCH).as_secs();
        let query = format!("&watch=true&allowWatchBookmarks=true&timeoutSeconds={seconds}{query}");
        let request = self.request(&query).map_err(kube::Error::HttpError)?;
        let open = self.client.request_events::<Value>(request);
        match time::timeout(ANSWER_TIMEOUT, open).await {
            Ok(events) => Ok(events?.boxed()),
            Err(elapsed) => Err(kube::Error::Service(elapsed.into())),
        }
    }

    fn request(&self, query: &str) -> Result<http::Request<Vec<u8>>, http::Error> {
        let path = self.resource.path(self.resource.versions[self.served]);
        http::Request::get(format!("{path}{query}")).body(Vec::new())
    }

    fn reader(&self) -> Reader {
        let version = self.resource.versions[self.served];
        Reader::new(&self.resource, version, self.shared.cluster.clone())
    }

    /// Takes events until the watch ends. `resume` is where to go on then.
    async fn follow(
        &mut self,
        events: Events,
        reader: &Reader,
        version: String,
        resume: &mut Option<String>,
    ) -> Lost {
        let mut events = events.ready_chunks(TOGETHER);
        let version = resume.insert(version);
        let mut definitions = self.shared.definitions.clone();
        let kind = self.resource.kind;
        loop {
            let next = tokio::select! {
                next = time::timeout(SILENCE, events.next()) => next,
                Ok(known) = definitions.wait_for(|known| known.check(kind).is_err()) => {
                    match known.check(kind) {
                        Ok(()) => continue,
                        Err(too_old) => return Lost::TooOld(too_old),
                    }
                }
            };
            let Ok(Some(together)) = next else {
                return Lost::Ended;
            };
            let mut outcome = Outcome::default();
            let mut lost = None;
            let mut count = 0;
            for event in together {
                count += 1;
                match event {
                    Ok(WatchEvent::Added(value) | WatchEvent::Modified(value)) => {
                        if let Some(read) = reader.read(value) {
                            version.clone_from(&read.version);
                            outcome.extend(self.table.apply(read));
                        }
                    }
                    Ok(WatchEvent::Deleted(value)) => {
                        if let Some((name, at)) = identity(&value) {
                            *version = at;
                            outcome.extend(self.table.delete(&name));
                        }
                    }
                    Ok(WatchEvent::Bookmark(mark)) => *version = mark.metadata.resource_version,
                    Ok(WatchEvent::Error(status)) => lost = Some(Lost::from_status(&status)),
                    Err(error) => lost = Some(error.into()),
                }
            }
            if lost.is_none() {
                self.backoff.reset();
            }
            let delivered = self.deliver(outcome).await;
            self.update(|entry| entry.events += count);
            if delivered.is_err() {
                return Lost::Closed;
            }
            if let Some(lost) = lost {
                return lost;
            }
        }
    }

    /// Takes over a list that was read to its end.
    async fn replace(&mut self, listing: Listing) -> Result<(), Lost> {
        let outcome = self.table.replace(listing);
        self.deliver(outcome).await?;
        self.wake_others();
        self.backoff.reset();
        self.too_old = None;
        // Only now: what the table holds has been sent.
        self.update(|entry| {
            entry.phase = Phase::Synced;
            entry.lists += 1;
            entry.error = None;
        });
        Ok(())
    }

    /// Passes on what has changed, and says what there is to say.
    async fn deliver(&mut self, outcome: Outcome) -> Result<(), Lost> {
        for finding in &outcome.findings {
            match finding.severity {
                Severity::Error => tracing::error!("{finding}"),
                Severity::Warning => tracing::warn!("{finding}"),
                Severity::Ignored => tracing::info!("{finding}"),
            }
        }
        let sent = self.outlet.send(outcome.changes).await;
        let (objects, refused) = (self.table.len(), self.table.refused());
        self.update(|entry| {
            entry.objects = objects;
            entry.refused = refused;
        });
        sent.map_err(|_| Lost::Closed)
    }

    fn update(&self, change: impl FnOnce(&mut Entry)) {
        let Shared {
            cluster, tables, ..
        } = &self.shared;
        tables.update(cluster, self.resource.kind, change);
    }
}

impl From<http::Error> for Lost {
    fn from(error: http::Error) -> Self {
        Self::Failed(error.to_string())
    }
}

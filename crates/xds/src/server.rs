//! The server: what it serves now, who is connected, and how a new state reaches them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::admission::Admission;
use crate::class::{ClassCell, Classes, Published, SharedSet};
use crate::distribution::{Gone, Provenance};
use crate::observer::{Observer, StreamInfo};
use crate::offload::for_each;
use crate::peers::PeerCounts;
use crate::sync::Mutex;
use crate::{
    Change, Interest, Registry, ResourceSet, SetAside, Settings, Source, StreamStatus,
    SubscriptionStatus, Touched, TypeFacts, World,
};

/// An xDS server. Cheap to clone; all clones are one server.
pub struct Server<W: World> {
    hub: Arc<Hub<W>>,
}

impl<W: World> Server<W> {
    /// Creates a server. It refuses streams until the first [`publish`](Self::publish).
    pub fn new(
        world: W,
        registry: Registry<W>,
        settings: Settings,
        observer: impl Observer,
    ) -> Self {
        let hub = Hub {
            world,
            registry,
            pushes: Semaphore::new(settings.concurrent_pushes.max(1)),
            admission: Mutex::new(Admission::new(
                settings.streams_per_second,
                settings.stream_wait,
            )),
            settings,
            observer: Box::new(observer),
            classes: Classes::new(),
            provenance: Mutex::default(),
            gone: Mutex::default(),
            current: Mutex::new(None),
            publishing: Mutex::new(()),
            links: Mutex::new(BTreeMap::new()),
            streams: AtomicU64::new(0),
            peers: PeerCounts::default(),
        };
        Self { hub: Arc::new(hub) }
    }

    /// Makes `snapshot` the state of the world and starts pushing what `update` touches.
    ///
    /// It asks the world what was touched, on the pool for CPU work, and returns when every
    /// concerned connection knows; nothing is generated yet. Publications are serial. An endpoint
    /// change is published like any other change, as a new snapshot that shares the rest.
    ///
    /// Returns the number of the publication: publications have ascending numbers.
    pub fn publish(&self, snapshot: Arc<W::Snapshot>, update: &W::Update) -> u64 {
        self.hub.publish(snapshot, update)
    }

    /// Returns the service to mount on a transport, see [`serve`](crate::serve).
    pub fn service(&self) -> crate::AdsService<W> {
        crate::AdsService::new(Arc::clone(&self.hub))
    }

    /// Returns what all streams share.
    pub(crate) fn hub(&self) -> &Arc<Hub<W>> {
        &self.hub
    }

    /// Returns the registry.
    pub fn registry(&self) -> &Registry<W> {
        &self.hub.registry
    }

    /// Returns the world.
    pub fn world(&self) -> &W {
        &self.hub.world
    }

    /// Returns the number of streams.
    pub fn connected(&self) -> usize {
        self.hub.links.lock().len()
    }

    /// Returns what every stream asked for and got, in order of stream numbers.
    pub fn streams(&self) -> Vec<StreamStatus> {
        let links: Vec<Arc<Link<W>>> = self.hub.links.lock().values().cloned().collect();
        links
            .iter()
            .map(|link| StreamStatus {
                info: link.info.clone(),
                subscriptions: link.state.lock().subscriptions.clone(),
            })
            .collect()
    }

    /// Returns the objects that are set aside because clients rejected what was built from them,
    /// with the number of classes that do without each.
    pub fn set_aside(&self) -> Vec<(SetAside, usize)> {
        let mut aside: BTreeMap<Source, (SetAside, usize)> = BTreeMap::new();
        for cell in self.hub.classes.live() {
            for proved in cell.quarantine.lock().proved() {
                let entry = aside
                    .entry(Arc::clone(&proved.source))
                    .or_insert_with(|| (proved.clone(), 0));
                entry.1 += 1;
            }
        }
        aside.into_values().collect()
    }

    /// Calls `visit` for the client of every stream, in order of stream numbers.
    pub fn clients(&self, mut visit: impl FnMut(&StreamInfo, &W::Client)) {
        let links: Vec<Arc<Link<W>>> = self.hub.links.lock().values().cloned().collect();
        for link in links {
            visit(&link.info, &link.client);
        }
    }

    /// Ends the stream with this number. Returns whether there was one.
    pub fn disconnect(&self, stream: u64) -> bool {
        let link = self.hub.links.lock().get(&stream).cloned();
        link.inspect(|link| link.closing.cancel()).is_some()
    }

    /// Ends all streams, evenly spread over `time`, so that those who reconnect elsewhere do not
    /// all come at once: the first at once, and nothing is waited for after the last. New streams are
    /// refused from the start.
    pub async fn drain(&self, time: Duration) {
        self.hub.admission.lock().close();
        let links: Vec<Arc<Link<W>>> = self.hub.links.lock().values().cloned().collect();
        let pause = time / u32::try_from(links.len()).unwrap_or(u32::MAX).max(1);
        let mut next = Instant::now();
        for link in links {
            tokio::time::sleep_until(next).await;
            link.closing.cancel();
            next += pause;
        }
    }
}

impl<W: World> Clone for Server<W> {
    fn clone(&self) -> Self {
        Self {
            hub: Arc::clone(&self.hub),
        }
    }
}

impl<W: World> fmt::Debug for Server<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Server")
            .field("current", &*self.hub.current.lock())
            .field("streams", &self.hub.links.lock().len())
            .field("classes", &self.hub.classes)
            .finish_non_exhaustive()
    }
}

/// What all streams of a server share.
pub(crate) struct Hub<W: World> {
    pub(crate) world: W,
    pub(crate) registry: Registry<W>,
    pub(crate) settings: Settings,
    pub(crate) observer: Box<dyn Observer>,
    /// Slots of pushes; first come, first served, so that a busy connection starves none.
    pub(crate) pushes: Semaphore,
    pub(crate) admission: Mutex<Admission>,
    pub(crate) classes: Classes<W>,
    pub(crate) provenance: Mutex<Provenance<W>>,
    pub(crate) gone: Mutex<Gone<W>>,
    current: Mutex<Option<Arc<Published<W>>>>,
    publishing: Mutex<()>,
    pub(crate) links: Mutex<BTreeMap<u64, Arc<Link<W>>>>,
    streams: AtomicU64,
    /// Streams of each address.
    pub(crate) peers: PeerCounts,
}

/// One connection, as seen by publications.
pub(crate) struct Link<W: World> {
    pub(crate) info: StreamInfo,
    pub(crate) client: W::Client,
    /// Rings when a publication concerns it. One ring stands for all that were not yet heard: that
    /// is the one pending, merged push of a connection.
    pub(crate) wake: Notify,
    /// Ends the stream.
    pub(crate) closing: CancellationToken,
    pub(crate) state: Mutex<LinkState<W>>,
}

/// The part of a [`Link`] that changes.
pub(crate) struct LinkState<W: World> {
    /// The state of the world to serve; it only moves forward.
    pub(crate) view: Arc<Published<W>>,
    /// The class of the client in that state.
    pub(crate) cell: Arc<ClassCell<W>>,
    /// The sets that it follows.
    pub(crate) sets: Vec<Arc<SharedSet<W>>>,
    /// Since when a push waits.
    pub(crate) dirty_since: Option<Instant>,
    pub(crate) subscriptions: Vec<SubscriptionStatus>,
}

impl<W: World> Hub<W> {
    /// Returns the state of the world, unless there is none yet.
    pub(crate) fn current(&self) -> Option<Arc<Published<W>>> {
        self.current.lock().clone()
    }

    /// Returns the facts of a type of the registry.
    pub(crate) fn facts(&self, type_index: usize) -> Option<TypeFacts> {
        self.registry
            .types()
            .get(type_index)
            .map(crate::ServedType::facts)
    }

    fn publish(&self, snapshot: Arc<W::Snapshot>, update: &W::Update) -> u64 {
        let _serial = self.publishing.lock();
        let before = self.current();
        let seq = before.as_ref().map_or(1, |published| published.seq + 1);
        let root = self.world.root(&snapshot);
        let at = Instant::now();
        let published = Arc::new(Published {
            seq,
            snapshot,
            root,
            at,
        });
        // From here on a new connection starts in the new state, so none is missed below.
        *self.current.lock() = Some(Arc::clone(&published));
        let change = Change {
            from: before.as_ref().map(|published| &*published.snapshot),
            to: &*published.snapshot,
            update,
        };
        for_each(&self.classes.live(), |cell| {
            let changed = |object: &Source| self.world.changes(&change, object);
            let back = cell.quarantine.lock().on_published(seq, changed);
            for set in cell.live_sets() {
                let served = self.registry.types().get(set.type_index());
                let touched = served.map_or(Touched::Nothing, |served| {
                    self.world.touched(&change, cell.class(), served.type_url())
                });
                set.mark(seq, if back { Touched::Everything } else { touched });
            }
        });
        let regroup = self.world.regroups(&change);
        let links: Vec<Arc<Link<W>>> = self.links.lock().values().cloned().collect();
        let advance = |link: &Arc<Link<W>>| {
            let cell = regroup.then(|| {
                self.classes
                    .intern(self.world.classify(&published.snapshot, &link.client))
            });
            link.advance(&published, cell);
        };
        if regroup {
            for_each(&links, advance);
        } else {
            links.iter().for_each(advance);
        }
        seq
    }

    /// Publishes the same state of the world again, for one class that has to be built anew.
    pub(crate) fn rebuild(&self, rebuilt: &Arc<ClassCell<W>>) {
        let _serial = self.publishing.lock();
        let Some(before) = self.current() else { return };
        let published = Arc::new(Published {
            seq: before.seq + 1,
            snapshot: Arc::clone(&before.snapshot),
            root: Arc::clone(&before.root),
            at: Instant::now(),
        });
        *self.current.lock() = Some(Arc::clone(&published));
        for cell in self.classes.live() {
            let concerned = Arc::ptr_eq(&cell, rebuilt);
            for set in cell.live_sets() {
                let touched = if concerned {
                    Touched::Everything
                } else {
                    Touched::Nothing
                };
                set.mark(published.seq, touched);
            }
        }
        rebuilt.quarantine.lock().rebuilt(published.seq);
        let links: Vec<Arc<Link<W>>> = self.links.lock().values().cloned().collect();
        for link in links {
            link.advance(&published, None);
        }
    }

    /// Returns the classes that have connections.
    #[cfg(test)]
    pub(crate) fn live_classes(&self) -> Vec<Arc<ClassCell<W>>> {
        self.classes.live()
    }

    /// Registers an admitted client, in the newest state of the world.
    pub(crate) fn register(
        &self,
        info: impl FnOnce(u64) -> StreamInfo,
        client: W::Client,
        mut view: Arc<Published<W>>,
    ) -> Arc<Link<W>> {
        let id = self.streams.fetch_add(1, Ordering::Relaxed) + 1;
        loop {
            let cell = self
                .classes
                .intern(self.world.classify(&view.snapshot, &client));
            let mut links = self.links.lock();
            // Publications store the new state first and go over the links then.
            match self.current() {
                Some(newest) if newest.seq > view.seq => view = newest,
                _ => {
                    let state = LinkState {
                        view,
                        cell,
                        sets: Vec::new(),
                        dirty_since: None,
                        subscriptions: Vec::new(),
                    };
                    let link = Arc::new(Link {
                        info: info(id),
                        client,
                        wake: Notify::new(),
                        closing: CancellationToken::new(),
                        state: Mutex::new(state),
                    });
                    links.insert(id, Arc::clone(&link));
                    self.gone.lock().is_back(&link.info.node);
                    return link;
                }
            }
        }
    }

    /// Forgets a connection.
    pub(crate) fn deregister(&self, link: &Link<W>) {
        self.links.lock().remove(&link.info.id);
        self.gone.lock().leaves(link, Instant::now().into_std());
    }

    /// Runs the generator of a type. `None` when it panics.
    pub(crate) fn generate(
        &self,
        type_index: usize,
        view: &Published<W>,
        cell: &ClassCell<W>,
        interest: &Interest,
    ) -> Option<Arc<ResourceSet>> {
        let served = self.registry.types().get(type_index)?;
        let start = Instant::now();
        let run = || {
            let snapshot = cell.snapshot(&self.world, view);
            served
                .generator()
                .generate(&snapshot, cell.class(), interest)
        };
        let Ok(set) = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)) else {
            tracing::error!(type_url = served.type_url(), "generator panicked");
            self.observer.generator_failed(served.type_url());
            return None;
        };
        self.observer
            .generated(served.type_url(), set.len(), start.elapsed());
        Some(Arc::new(set).restrict(interest))
    }
}

impl<W: World> Link<W> {
    /// Moves on to a newer state of the world, and wakes the connection if that concerns it.
    fn advance(&self, published: &Arc<Published<W>>, cell: Option<Arc<ClassCell<W>>>) {
        let mut state = self.state.lock();
        if state.view.seq >= published.seq {
            return;
        }
        state.view = Arc::clone(published);
        let moved = cell.filter(|cell| !Arc::ptr_eq(cell, &state.cell));
        let concerned = moved.is_some() || state.sets.iter().any(|set| set.concerns(published.seq));
        if let Some(cell) = moved {
            state.cell = cell;
        }
        if concerned {
            state.dirty_since.get_or_insert(published.at);
            self.wake.notify_one();
        }
    }
}

impl<W: World> fmt::Debug for Hub<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Hub")
            .field("registry", &self.registry)
            .finish_non_exhaustive()
    }
}

impl<W: World> fmt::Debug for Link<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Link")
            .field("info", &self.info)
            .finish_non_exhaustive()
    }
}

//! What proxies of a class share: the class itself, and one resource set for each type.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use tokio::time::Instant;

use crate::interest::WeakNames;
use crate::offload::{later, offload};
use crate::quarantine::Quarantine;
use crate::server::Hub;
use crate::sync::Mutex;
use crate::{Interest, Names, Resource, ResourceSet, Source, Touched, World};

/// How many touches a set remembers one by one. One is added for each publication that nobody
/// asked the set for; beyond this many they are merged, which can only cost a larger rebuild.
const REMEMBERED_TOUCHES: usize = 16;

/// From how many names on they are looked for among those of other classes.
const SHARED_FROM: usize = 256;

/// One published state of the world.
pub(crate) struct Published<W: World> {
    /// Its number, from 1.
    pub(crate) seq: u64,
    pub(crate) snapshot: Arc<W::Snapshot>,
    pub(crate) root: Arc<str>,
    pub(crate) at: Instant,
}

type Cells<W> = HashMap<Arc<<W as World>::Class>, Weak<ClassCell<W>>>;
/// By the index of the type in the registry.
type Sets<W> = BTreeMap<(usize, Interest), Weak<SharedSet<W>>>;

/// The classes that have connections.
pub(crate) struct Classes<W: World> {
    cells: Mutex<Cells<W>>,
    /// Large sets of names that are asked for.
    names: Mutex<Vec<WeakNames>>,
}

/// One class.
pub(crate) struct ClassCell<W: World> {
    class: Arc<W::Class>,
    sets: Mutex<Sets<W>>,
    pub(crate) quarantine: Mutex<Quarantine>,
    /// The state of a publication without what is aside.
    without: Mutex<Option<Without<W>>>,
}

/// A state of the world without some objects.
struct Without<W: World> {
    seq: u64,
    objects: BTreeSet<Source>,
    snapshot: Arc<W::Snapshot>,
}

impl<W: World> Classes<W> {
    pub(crate) fn new() -> Self {
        Self {
            cells: Mutex::default(),
            names: Mutex::default(),
        }
    }

    /// Returns the one cell of a class.
    pub(crate) fn intern(&self, class: W::Class) -> Arc<ClassCell<W>> {
        let mut cells = self.cells.lock();
        if let Some(cell) = cells.get(&class).and_then(Weak::upgrade) {
            return cell;
        }
        let class = Arc::new(class);
        let cell = Arc::new(ClassCell {
            class: Arc::clone(&class),
            sets: Mutex::default(),
            quarantine: Mutex::default(),
            without: Mutex::default(),
        });
        // The key of a dead cell may stay behind an equal one; both are equal, so it serves.
        cells.insert(class, Arc::downgrade(&cell));
        cell
    }

    /// Returns names that are in memory once, whatever classes ask for them: many ask for the same
    /// tens of thousands.
    pub(crate) fn shared(&self, interest: &Interest) -> Interest {
        let Interest::Named(names) = interest else {
            return interest.clone();
        };
        if names.len() < SHARED_FROM {
            return interest.clone();
        }
        let mut known = self.names.lock();
        known.retain(|other| other.upgrade().is_some());
        let equal = known.iter().filter_map(WeakNames::upgrade);
        let equal = equal.into_iter().find(|other| other == names);
        let shared = equal.unwrap_or_else(|| {
            known.push(names.downgrade());
            names.clone()
        });
        Interest::Named(shared)
    }

    /// Returns the classes that have connections, and drops the others.
    pub(crate) fn live(&self) -> Vec<Arc<ClassCell<W>>> {
        let mut live = Vec::new();
        self.cells.lock().retain(|_, cell| {
            let cell = cell.upgrade();
            live.extend(cell.clone());
            cell.is_some()
        });
        live
    }
}

impl<W: World> ClassCell<W> {
    /// Returns the class.
    pub(crate) fn class(&self) -> &W::Class {
        &self.class
    }

    /// Returns the state of the world that the class is built from: without what is aside.
    pub(crate) fn snapshot(&self, world: &W, view: &Published<W>) -> Arc<W::Snapshot> {
        let objects = self.quarantine.lock().aside();
        if objects.is_empty() {
            return Arc::clone(&view.snapshot);
        }
        // Held while building, so that it is built once.
        let mut known = self.without.lock();
        if let Some(known) = &*known
            && known.seq == view.seq
            && known.objects == objects
        {
            return Arc::clone(&known.snapshot);
        }
        let snapshot = world.set_aside(&view.snapshot, &objects);
        let snapshot = snapshot.unwrap_or_else(|| Arc::clone(&view.snapshot));
        *known = Some(Without {
            seq: view.seq,
            objects,
            snapshot: Arc::clone(&snapshot),
        });
        snapshot
    }

    /// Returns the set of one type and interest, shared by all connections of the class.
    ///
    /// `like` is a set of the same type for another interest: what both have in common is taken
    /// from it.
    pub(crate) fn set(
        self: &Arc<Self>,
        type_index: usize,
        interest: &Interest,
        seq: u64,
        like: Option<&Arc<SharedSet<W>>>,
    ) -> Arc<SharedSet<W>> {
        let mut sets = self.sets.lock();
        let key = (type_index, interest.clone());
        if let Some(set) = sets.get(&key).and_then(Weak::upgrade) {
            return set;
        }
        sets.retain(|_, set| set.strong_count() > 0);
        let set = Arc::new(SharedSet {
            cell: Arc::clone(self),
            type_index,
            interest: interest.clone(),
            marks: Mutex::new(Marks {
                born: seq,
                covered: seq,
                floor: 0,
                touches: Vec::new(),
            }),
            touched_at: AtomicU64::new(0),
            built: tokio::sync::Mutex::new(History {
                like: like.map(Arc::downgrade),
                last: None,
                before: None,
            }),
            newest: Mutex::default(),
            indexed: Mutex::default(),
        });
        sets.insert(key, Arc::downgrade(&set));
        set
    }

    /// Returns the sets that connections use.
    pub(crate) fn live_sets(&self) -> Vec<Arc<SharedSet<W>>> {
        self.sets
            .lock()
            .values()
            .filter_map(Weak::upgrade)
            .collect()
    }
}

/// The resources of one (class, type, interest), kept up to date for whoever asks.
pub(crate) struct SharedSet<W: World> {
    cell: Arc<ClassCell<W>>,
    type_index: usize,
    interest: Interest,
    marks: Mutex<Marks>,
    /// The last publication that touched it.
    touched_at: AtomicU64,
    /// Held while building, so that a set is built once however many connections wait for it.
    built: tokio::sync::Mutex<History<W>>,
    /// The newest one built, for those who only look.
    newest: Mutex<Option<Built>>,
    /// The one that the index of provenance has taken in.
    pub(crate) indexed: Mutex<Option<Arc<ResourceSet>>>,
}

/// What publications touched.
struct Marks {
    /// The publication in which the set came to be: nobody noted what it and those before touched.
    born: u64,
    /// The last publication that was looked at.
    covered: u64,
    /// Touches up to here are merged, so that states before cannot be told apart.
    floor: u64,
    touches: Vec<(u64, Touched)>,
}

struct History<W: World> {
    like: Option<Weak<SharedSet<W>>>,
    last: Option<Built>,
    /// For pushes that are still in flight.
    before: Option<Built>,
}

/// A set and the publications that it holds for.
#[derive(Clone)]
struct Built {
    from: u64,
    through: u64,
    set: Arc<ResourceSet>,
}

impl<W: World> History<W> {
    fn at(&self, seq: u64) -> Option<Arc<ResourceSet>> {
        [&self.last, &self.before]
            .into_iter()
            .flatten()
            .find(|built| (built.from..=built.through).contains(&seq))
            .map(|built| Arc::clone(&built.set))
    }
}

/// What has to be generated, and what it goes over.
struct Plan {
    interest: Interest,
    base: Option<Arc<ResourceSet>>,
}

impl<W: World> SharedSet<W> {
    /// Returns the interest.
    pub(crate) fn interest(&self) -> &Interest {
        &self.interest
    }

    /// Returns the class it belongs to.
    pub(crate) fn cell(&self) -> &Arc<ClassCell<W>> {
        &self.cell
    }

    /// Returns the index of its type in the registry.
    pub(crate) fn type_index(&self) -> usize {
        self.type_index
    }

    /// Notes what a publication touched. Publications come in order.
    pub(crate) fn mark(&self, seq: u64, touched: Touched) {
        let mut marks = self.marks.lock();
        // A connection that lags behind may have made this set after a publication looked for sets.
        let missed = marks.covered + 1 < seq;
        let touched = if missed { Touched::Everything } else { touched };
        marks.covered = seq;
        if touched == Touched::Nothing {
            return;
        }
        self.touched_at.store(seq, Ordering::Relaxed);
        marks.touches.push((seq, touched));
        if marks.touches.len() > REMEMBERED_TOUCHES {
            let touches = std::mem::take(&mut marks.touches);
            let merged = touches
                .into_iter()
                .map(|(_, t)| t)
                .fold(Touched::Nothing, Touched::merge);
            marks.floor = seq;
            marks.touches.push((seq, merged));
        }
    }

    /// Returns whether a connection that follows this set must look at it for this publication.
    pub(crate) fn concerns(&self, seq: u64) -> bool {
        self.touched_at.load(Ordering::Relaxed) == seq || self.marks.lock().covered < seq
    }

    /// Returns what was touched since a set that holds through `built`, up to `seq`.
    fn touched_since(&self, built: u64, seq: u64) -> Touched {
        let marks = self.marks.lock();
        // A connection that lags behind may have built it as it was before it came to be.
        if marks.covered < seq || built < marks.born || (marks.floor > built && seq < marks.floor) {
            return Touched::Everything;
        }
        let since = marks
            .touches
            .iter()
            .filter(|(at, _)| (built + 1..=seq).contains(at));
        since
            .map(|(_, touched)| touched.clone())
            .fold(Touched::Nothing, Touched::merge)
    }

    /// Returns the newest set that was built, and whether it has in it what publication `seq`
    /// changed. Nothing is built.
    pub(crate) fn newest(&self, seq: u64) -> Option<(Arc<ResourceSet>, bool)> {
        let newest = self.newest.lock().clone()?;
        let through = newest.through;
        let covers = through >= seq || self.touched_since(through, seq) == Touched::Nothing;
        Some((newest.set, covers))
    }

    /// Returns the set as it is in the state of the world `view`, building what is missing.
    ///
    /// When the generator panics the set stays what it was.
    pub(crate) async fn at(
        self: &Arc<Self>,
        hub: &Arc<Hub<W>>,
        view: &Arc<Published<W>>,
    ) -> Arc<ResourceSet> {
        let mut history = self.built.lock().await;
        if let Some(set) = history.at(view.seq) {
            return set;
        }
        let last = history.last.clone();
        let newer = last.as_ref().is_none_or(|last| last.through < view.seq);
        let touched = match &last {
            Some(last) if newer => self.touched_since(last.through, view.seq),
            _ => Touched::Everything,
        };
        let like = history.like.take().and_then(|like| like.upgrade());
        let plan = match (touched, &last) {
            (Touched::Nothing, Some(last)) => {
                history.last = Some(Built {
                    through: view.seq,
                    ..last.clone()
                });
                self.newest.lock().clone_from(&history.last);
                return Arc::clone(&last.set);
            }
            (Touched::Named(names), Some(last)) => self.plan_named(names, &last.set),
            _ => self.plan_like(hub, like, view).await,
        };
        let set = match self.build(hub, view, plan).await {
            // The same content keeps the same set, so that nothing looks changed.
            Some(set) => match &last {
                Some(last) if last.set.fingerprint() == set.fingerprint() => Arc::clone(&last.set),
                _ => set,
            },
            None => last
                .as_ref()
                .map(|last| Arc::clone(&last.set))
                .unwrap_or_default(),
        };
        if newer {
            let unchanged = last.as_ref().filter(|last| Arc::ptr_eq(&last.set, &set));
            // Between two states that were not looked at one by one nothing is known.
            let from = unchanged
                .filter(|last| last.through + 1 == view.seq)
                .map_or(view.seq, |last| last.from);
            history.before = history.last.take().filter(|_| from == view.seq);
            history.last = Some(Built {
                from,
                through: view.seq,
                set: Arc::clone(&set),
            });
            self.newest.lock().clone_from(&history.last);
            let mut marks = self.marks.lock();
            if marks.covered < view.seq {
                // Made after the publication looked for sets, and already built by one connection
                // for it: those that the publication has yet to reach must look too.
                self.touched_at.store(view.seq, Ordering::Relaxed);
                marks.covered = view.seq;
            }
            marks.touches.retain(|(at, _)| *at > view.seq);
            drop(marks);
            if unchanged.is_none() {
                let (hub, this) = (Arc::clone(hub), Arc::clone(self));
                later(move || hub.provenance.lock().take_in(&this));
            }
        }
        set
    }

    fn plan_named(&self, names: Names, base: &Arc<ResourceSet>) -> Plan {
        let names = match &self.interest {
            Interest::Everything => names,
            Interest::Named(own) => names
                .iter()
                .filter(|name| own.contains(name))
                .cloned()
                .collect(),
        };
        Plan {
            interest: Interest::Named(names),
            base: Some(Arc::clone(base)),
        }
    }

    /// Plans a first build: with a set of other names of the same type at hand, only what those
    /// lack.
    async fn plan_like(&self, hub: &Hub<W>, like: Option<Arc<Self>>, view: &Published<W>) -> Plan {
        let all = Plan {
            interest: self.interest.clone(),
            base: None,
        };
        let independent = hub
            .facts(self.type_index)
            .is_some_and(|facts| !facts.wildcard);
        let (Some(like), true, Interest::Named(own)) = (like, independent, &self.interest) else {
            return all;
        };
        let Interest::Named(known) = &like.interest else {
            return all;
        };
        if !Arc::ptr_eq(&like.cell, &self.cell) {
            return all;
        }
        let Some(base) = like.built.lock().await.at(view.seq) else {
            return all;
        };
        Plan {
            interest: Interest::Named(own.difference(known)),
            base: Some(base.restrict(&self.interest)),
        }
    }

    /// Runs the generator. `None` when it panics.
    async fn build(
        self: &Arc<Self>,
        hub: &Arc<Hub<W>>,
        view: &Arc<Published<W>>,
        plan: Plan,
    ) -> Option<Arc<ResourceSet>> {
        if let (Interest::Named(names), Some(base)) = (&plan.interest, &plan.base)
            && names.is_empty()
        {
            return Some(Arc::clone(base));
        }
        let (this, hub, view) = (Arc::clone(self), Arc::clone(hub), Arc::clone(view));
        offload(move || {
            let new = hub.generate(this.type_index, &view, &this.cell, &plan.interest)?;
            let Some(base) = plan.base else {
                return Some(new);
            };
            let stays = |r: &&Arc<Resource>| !plan.interest.wants(r.name());
            Some(Arc::new(
                new.iter()
                    .chain(base.iter().filter(stays))
                    .cloned()
                    .collect(),
            ))
        })
        .await
        .ok()
        .flatten()
    }
}

impl<W: World> fmt::Debug for Published<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.root, self.seq)
    }
}

impl<W: World> fmt::Debug for Classes<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} classes", self.cells.lock().len())
    }
}

impl<W: World> fmt::Debug for ClassCell<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "class with {} sets", self.sets.lock().len())
    }
}

impl<W: World> fmt::Debug for SharedSet<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "type {} for {:?}", self.type_index, self.interest)
    }
}

//! Which resources are built from which objects: an index that is brought up to date whenever a set
//! was built, so that nobody who asks has to wait for it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::class::{ClassCell, SharedSet};
use crate::{Diff, Resource, ResourceSet, Source, World};

/// How much the index may grow, by entries of resources that are gone, before it is made anew.
const SLACK: usize = 100_000;

/// From objects to the names of the resources that are, or were, built from them in any class.
///
/// An entry that is no longer true costs a look-up, so entries are not removed one by one.
pub(crate) struct Provenance<W: World> {
    /// By the hash of the object.
    entries: HashMap<u64, Entries, BuildHasherDefault<Hashed>>,
    /// Entries of sets that were new.
    first: usize,
    /// Entries that came when sets changed. What was there before them may be gone.
    later: usize,
    /// For each type, the set that was looked at last, of whatever class: most classes have most
    /// resources in common.
    bases: BTreeMap<usize, Arc<ResourceSet>>,
    _world: std::marker::PhantomData<fn(W)>,
}

/// Names of resources, with the index of the type. Some may be there twice.
#[derive(Default)]
struct Entries {
    list: Vec<(usize, Arc<str>)>,
    /// How many of the first are in order, and there once.
    sorted: usize,
}

impl Entries {
    fn push(&mut self, index: usize, name: &Arc<str>) {
        self.list.push((index, Arc::clone(name)));
        // Most objects have a few names, some have all: these are put in order now and then, so that
        // what comes again and again does not stay.
        if self.list.len() > 2 * self.sorted + 16 {
            self.list.sort_unstable();
            self.list.dedup();
            self.sorted = self.list.len();
        }
    }
}

/// Keys that are hashes already.
#[derive(Default)]
struct Hashed(u64);

impl Hasher for Hashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = xxh3_64(bytes);
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

/// The names of resources that may be built from some objects, by index of the type.
#[derive(Debug, Default)]
pub(super) struct Found(BTreeSet<(usize, Arc<str>)>);

impl Found {
    /// Returns the names of one type.
    pub(super) fn of_type(&self, type_index: usize) -> impl Iterator<Item = &Arc<str>> {
        let first: (usize, Arc<str>) = (type_index, Arc::default());
        let from_here = self.0.range(first..);
        from_here
            .take_while(move |(index, _)| *index == type_index)
            .map(|(_, name)| name)
    }
}

impl<W: World> Default for Provenance<W> {
    fn default() -> Self {
        Self {
            entries: HashMap::default(),
            first: 0,
            later: 0,
            bases: BTreeMap::new(),
            _world: std::marker::PhantomData,
        }
    }
}

impl<W: World> Provenance<W> {
    /// Takes in the newest sets of all classes. What was taken in before costs next to nothing.
    pub(super) fn update(&mut self, cells: &[Arc<ClassCell<W>>]) {
        let anew = self.later > self.first + SLACK;
        if anew {
            self.entries.clear();
            (self.first, self.later) = (0, 0);
            self.bases.clear();
        }
        for set in cells.iter().flat_map(|cell| cell.live_sets()) {
            if anew {
                *set.indexed.lock() = None;
            }
            self.take_in(&set);
        }
    }

    /// Takes in the newest state of a set.
    pub(crate) fn take_in(&mut self, set: &SharedSet<W>) {
        let Some((newest, _)) = set.newest(0) else {
            return;
        };
        let mut indexed = set.indexed.lock();
        if indexed
            .as_ref()
            .is_some_and(|old| Arc::ptr_eq(old, &newest))
        {
            return;
        }
        let index = set.type_index();
        match (&*indexed, self.bases.get(&index).cloned()) {
            (Some(old), _) => {
                let diff = newest.diff_from(old);
                self.later += self.insert(index, diff.upserts(), old);
            }
            (None, Some(base)) => {
                let diff = Diff::between(&base, &newest);
                self.first += self.insert(index, diff.upserts(), &base);
            }
            (None, None) => {
                self.first += self.insert(index, newest.iter(), &ResourceSet::default());
            }
        }
        self.bases.insert(index, Arc::clone(&newest));
        *indexed = Some(newest);
    }

    /// Takes in resources; returns how many entries that made. What those of the same names in `known`
    /// are built from is there already: a route may have tens of thousands of sources, of which a change
    /// adds one.
    fn insert<'a>(
        &mut self,
        index: usize,
        resources: impl Iterator<Item = &'a Arc<Resource>>,
        known: &ResourceSet,
    ) -> usize {
        let mut inserted = 0;
        for resource in resources {
            let known = known.get(resource.name());
            let known = known.map_or(&[][..], |known| known.sources().lists());
            let shared: HashSet<*const Source> = known.iter().map(|list| list.as_ptr()).collect();
            for (at, list) in resource.sources().lists().iter().enumerate() {
                if shared.contains(&list.as_ptr()) {
                    continue;
                }
                let known = known.get(at).map_or(&[][..], |known| known);
                let mut known = known.iter().peekable();
                for source in list.iter() {
                    // Both are in ascending order.
                    while known.next_if(|other| *other < source).is_some() {}
                    if known.next_if_eq(&source).is_none() {
                        let entries = self.entries.entry(hash(source)).or_default();
                        entries.push(index, resource.name());
                        inserted += 1;
                    }
                }
            }
        }
        inserted
    }

    /// Returns the names of the resources that may be built from any of these objects.
    pub(super) fn find(&self, objects: &[Source]) -> Found {
        let mut found = BTreeSet::new();
        for object in objects {
            let entries = self.entries.get(&hash(object));
            found.extend(
                entries
                    .into_iter()
                    .flat_map(|entries| entries.list.iter().cloned()),
            );
        }
        Found(found)
    }
}

fn hash(object: &str) -> u64 {
    xxh3_64(object.as_bytes())
}

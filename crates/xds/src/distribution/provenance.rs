//! Which resources are built from which objects: an index that is brought up to date when somebody
//! asks.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

use crate::class::ClassCell;
use crate::{Diff, Resource, ResourceSet, Source, World};

/// How much the index may grow, by entries of resources that are gone, before it is made anew.
const SLACK: usize = 100_000;

/// From objects to the names of the resources that are, or were, built from them in any class.
///
/// An entry that is no longer true costs a look-up, so entries are not removed one by one.
pub(crate) struct Provenance<W: World> {
    /// Hash of the object, index of the type, name of the resource.
    entries: BTreeSet<(u64, usize, Arc<str>)>,
    /// Entries when the index was made.
    fresh: usize,
    /// For each type, the set that was looked at last, of whatever class: most classes have most
    /// resources in common.
    bases: BTreeMap<usize, Arc<ResourceSet>>,
    _world: std::marker::PhantomData<fn(W)>,
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
            entries: BTreeSet::new(),
            fresh: 0,
            bases: BTreeMap::new(),
            _world: std::marker::PhantomData,
        }
    }
}

impl<W: World> Provenance<W> {
    /// Takes in the newest sets of all classes. What was taken in before costs next to nothing.
    pub(super) fn update(&mut self, cells: &[Arc<ClassCell<W>>]) {
        let anew = self.entries.len() > 2 * self.fresh + SLACK;
        if anew {
            self.entries.clear();
            self.bases.clear();
        }
        let first = self.entries.is_empty();
        self.take_in(cells, anew);
        if first {
            self.fresh = self.entries.len();
        }
    }

    fn take_in(&mut self, cells: &[Arc<ClassCell<W>>], anew: bool) {
        for set in cells.iter().flat_map(|cell| cell.live_sets()) {
            let Some((newest, _)) = set.newest(0) else {
                continue;
            };
            let mut indexed = set.indexed.lock();
            if anew {
                *indexed = None;
            }
            if indexed
                .as_ref()
                .is_some_and(|old| Arc::ptr_eq(old, &newest))
            {
                continue;
            }
            let index = set.type_index();
            match (&*indexed, self.bases.get(&index).cloned()) {
                (Some(old), _) => {
                    let diff = newest.diff_from(old);
                    self.insert(index, diff.upserts(), old);
                }
                (None, Some(base)) => {
                    let diff = Diff::between(&base, &newest);
                    self.insert(index, diff.upserts(), &base);
                }
                (None, None) => self.insert(index, newest.iter(), &ResourceSet::default()),
            }
            self.bases.insert(index, Arc::clone(&newest));
            *indexed = Some(newest);
        }
    }

    /// Takes in resources. What those of the same names in `known` are built from is there already: a
    /// route may have tens of thousands of sources, of which a change adds one.
    fn insert<'a>(
        &mut self,
        index: usize,
        resources: impl Iterator<Item = &'a Arc<Resource>>,
        known: &ResourceSet,
    ) {
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
                        let entry = (hash(source), index, Arc::clone(resource.name()));
                        self.entries.insert(entry);
                    }
                }
            }
        }
    }

    /// Returns the names of the resources that may be built from any of these objects.
    pub(super) fn find(&self, objects: &[Source]) -> Found {
        let mut found = BTreeSet::new();
        for object in objects {
            let hash = hash(object);
            let first: (u64, usize, Arc<str>) = (hash, 0, Arc::default());
            let entries = self.entries.range(first..);
            let entries = entries.take_while(|(other, ..)| *other == hash);
            found.extend(entries.map(|(_, index, name)| (*index, Arc::clone(name))));
        }
        Found(found)
    }
}

fn hash(object: &str) -> u64 {
    xxh3_64(object.as_bytes())
}

//! Immutable sets of resources, and the difference between two of them.

use std::cmp::Ordering;
use std::fmt;
use std::sync::{Arc, Weak};

use xxhash_rust::xxh3::Xxh3Default;

use crate::sync::Mutex;
use crate::{Interest, Resource};

/// How many differences a set remembers. A class whose connections lag behind by different numbers
/// of pushes asks for one difference for each lag; beyond this many they are computed again.
const REMEMBERED_DIFFS: usize = 8;

/// An immutable list of resources of one type, sorted by name, one for each name.
///
/// All proxies of a class share one set, and a connection remembers what it sent as one `Arc` of
/// it. Build one with `collect()` from [`Resource`]s or `Arc<Resource>`s; of two resources with one
/// name the first stays.
pub struct ResourceSet {
    resources: Box<[Arc<Resource>]>,
    fingerprint: u64,
    bytes: usize,
    /// Whether any resource has aliases.
    aliased: bool,
    diffs: Mutex<Vec<(Weak<Self>, Arc<Diff>)>>,
}

impl ResourceSet {
    /// Returns the resource called `name`.
    pub fn get(&self, name: &str) -> Option<&Arc<Resource>> {
        let found = self
            .resources
            .binary_search_by(|probe| (**probe.name()).cmp(name))
            .ok()?;
        self.resources.get(found)
    }

    /// Returns the resource that has `name` as its name or, failing that, as an alias.
    pub fn find(&self, name: &str) -> Option<&Arc<Resource>> {
        let aliased = |r: &&Arc<Resource>| r.aliases().iter().any(|alias| &**alias == name);
        self.get(name)
            .or_else(|| self.resources.iter().filter(|_| self.aliased).find(aliased))
    }

    /// Returns a resource by its place in the order of names.
    pub(crate) fn nth(&self, index: usize) -> Option<&Arc<Resource>> {
        self.resources.get(index)
    }

    /// Iterates in order of names.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &Arc<Resource>> {
        self.resources.iter()
    }

    /// Returns the number of resources.
    pub fn len(&self) -> usize {
        self.resources.len()
    }

    /// Returns whether there is no resource.
    pub fn is_empty(&self) -> bool {
        self.resources.is_empty()
    }

    /// Returns the sum of the sizes of all bodies, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Returns a hash over names and contents: equal sets have equal fingerprints.
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// Returns what turns `from` into `self`.
    ///
    /// It is computed once for each pair and shared, as long as both sets live.
    pub fn diff_from(self: &Arc<Self>, from: &Arc<Self>) -> Arc<Diff> {
        if Arc::ptr_eq(self, from) || self.fingerprint == from.fingerprint {
            return Arc::default();
        }
        let mut known = self.diffs.lock();
        // A live weak pointer keeps its allocation, so equal addresses mean the same set.
        if let Some((_, diff)) = known
            .iter()
            .find(|(set, _)| set.as_ptr() == Arc::as_ptr(from))
        {
            return Arc::clone(diff);
        }
        let diff = Arc::new(Diff::between(from, self));
        known.retain(|(set, _)| set.strong_count() > 0);
        if known.len() >= REMEMBERED_DIFFS {
            known.remove(0);
        }
        known.push((Arc::downgrade(from), Arc::clone(&diff)));
        diff
    }

    /// Returns the part of the set that `interest` asks for, by name or by alias.
    pub fn restrict(self: &Arc<Self>, interest: &Interest) -> Arc<Self> {
        let Interest::Named(names) = interest else {
            return Arc::clone(self);
        };
        let wanted = |r: &Arc<Resource>| {
            names.contains(r.name()) || r.aliases().iter().any(|alias| names.contains(alias))
        };
        if self.resources.iter().all(wanted) {
            return Arc::clone(self);
        }
        Arc::new(self.iter().filter(|r| wanted(r)).cloned().collect())
    }

    /// Returns a set in which `decide` chose what stands for each resource: itself, another, or
    /// none. The same `Arc` comes back when nothing changes.
    pub(crate) fn revise(
        self: &Arc<Self>,
        mut decide: impl FnMut(&Arc<Resource>) -> Option<Arc<Resource>>,
    ) -> Arc<Self> {
        let revised: Self = self.iter().filter_map(&mut decide).collect();
        if revised.fingerprint == self.fingerprint {
            Arc::clone(self)
        } else {
            Arc::new(revised)
        }
    }

    /// Returns `self` with the resources of `newer` put over it.
    pub(crate) fn overlay<'a>(
        self: &'a Arc<Self>,
        newer: impl IntoIterator<Item = &'a Arc<Resource>>,
    ) -> Arc<Self> {
        let overlaid: Self = newer.into_iter().chain(self.iter()).cloned().collect();
        if overlaid.fingerprint == self.fingerprint {
            Arc::clone(self)
        } else {
            Arc::new(overlaid)
        }
    }
}

impl Default for ResourceSet {
    fn default() -> Self {
        std::iter::empty::<Arc<Resource>>().collect()
    }
}

impl FromIterator<Resource> for ResourceSet {
    fn from_iter<I: IntoIterator<Item = Resource>>(resources: I) -> Self {
        resources.into_iter().map(Arc::new).collect()
    }
}

impl FromIterator<Arc<Resource>> for ResourceSet {
    fn from_iter<I: IntoIterator<Item = Arc<Resource>>>(resources: I) -> Self {
        let mut resources: Vec<Arc<Resource>> = resources.into_iter().collect();
        // Stable, so that the first of two equal names stays.
        resources.sort_by(|a, b| a.name().cmp(b.name()));
        resources.dedup_by(|later, earlier| later.name() == earlier.name());
        let mut hasher = Xxh3Default::new();
        let mut bytes = 0;
        for resource in &resources {
            hasher.update(resource.name().as_bytes());
            hasher.update(&[0xff]);
            hasher.update(&resource.version().as_u64().to_le_bytes());
            bytes += resource.body().len();
        }
        let aliased = resources
            .iter()
            .any(|resource| !resource.aliases().is_empty());
        Self {
            aliased,
            resources: resources.into_boxed_slice(),
            fingerprint: hasher.digest(),
            bytes,
            diffs: Mutex::default(),
        }
    }
}

impl PartialEq for ResourceSet {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint && self.resources == other.resources
    }
}

impl Eq for ResourceSet {}

impl fmt::Debug for ResourceSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// What turns one set into another. Each list is sorted by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Diff {
    /// Resources whose name is new.
    pub added: Box<[Arc<Resource>]>,
    /// Resources whose content differs.
    pub changed: Box<[Arc<Resource>]>,
    /// Names that are gone.
    pub removed: Box<[Arc<str>]>,
}

impl Diff {
    /// Compares two sets in one pass over both.
    pub(crate) fn between(from: &ResourceSet, to: &ResourceSet) -> Self {
        let (mut added, mut changed, mut removed) = (Vec::new(), Vec::new(), Vec::new());
        let mut old = from.iter().peekable();
        let mut new = to.iter().peekable();
        loop {
            let order = match (old.peek(), new.peek()) {
                // What was not built again is the very same: most of it, most of the time.
                (Some(a), Some(b)) if Arc::ptr_eq(a, b) => {
                    old.next();
                    new.next();
                    continue;
                }
                (Some(old), Some(new)) => old.name().cmp(new.name()),
                (Some(_), None) => Ordering::Less,
                (None, Some(_)) => Ordering::Greater,
                (None, None) => break,
            };
            match order {
                Ordering::Less => removed.extend(old.next().map(|r| Arc::clone(r.name()))),
                Ordering::Greater => added.extend(new.next().cloned()),
                Ordering::Equal => {
                    let (old, new) = (old.next(), new.next());
                    changed.extend(new.filter(|new| old != Some(new)).cloned());
                }
            }
        }
        Self {
            added: added.into(),
            changed: changed.into(),
            removed: removed.into(),
        }
    }

    /// Iterates over everything that has to be sent: added, then changed.
    pub fn upserts(&self) -> impl Iterator<Item = &Arc<Resource>> {
        self.added.iter().chain(self.changed.iter())
    }

    /// Returns whether the resource called `name` has to be sent.
    pub(crate) fn upserts_name(&self, name: &str) -> bool {
        let has = |list: &[Arc<Resource>]| {
            list.binary_search_by(|probe| (**probe.name()).cmp(name))
                .is_ok()
        };
        has(&self.added) || has(&self.changed)
    }

    /// Returns whether both sets are equal.
    pub fn is_empty(&self) -> bool {
        self.added.is_empty() && self.changed.is_empty() && self.removed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(resources: &[(&str, &str)]) -> Arc<ResourceSet> {
        Arc::new(
            resources
                .iter()
                .map(|(n, b)| Resource::new(*n, b.as_bytes().to_vec()))
                .collect(),
        )
    }

    #[track_caller]
    fn check_diff(from: &[(&str, &str)], to: &[(&str, &str)], expected: [&[&str]; 3]) {
        let diff = set(to).diff_from(&set(from));
        let names = |list: &[Arc<Resource>]| {
            list.iter()
                .map(|r| r.name().to_string())
                .collect::<Vec<_>>()
        };
        assert_eq!(names(&diff.added), expected[0], "added");
        assert_eq!(names(&diff.changed), expected[1], "changed");
        let removed: Vec<&str> = diff.removed.iter().map(|name| &**name).collect();
        assert_eq!(removed, expected[2], "removed");
    }

    #[test]
    fn a_diff_names_what_was_added_changed_and_removed() {
        check_diff(&[], &[], [&[], &[], &[]]);
        check_diff(&[], &[("b", "1"), ("a", "1")], [&["a", "b"], &[], &[]]);
        check_diff(&[("a", "1"), ("b", "1")], &[], [&[], &[], &["a", "b"]]);
        check_diff(
            &[("a", "1"), ("b", "1"), ("d", "1")],
            &[("b", "2"), ("c", "1"), ("d", "1")],
            [&["c"], &["b"], &["a"]],
        );
    }

    #[test]
    fn a_diff_is_computed_once_for_a_pair() {
        let (from, to) = (set(&[("a", "1")]), set(&[("a", "2")]));
        assert!(Arc::ptr_eq(&to.diff_from(&from), &to.diff_from(&from)));
    }

    #[test]
    fn order_of_input_does_not_matter_and_the_first_of_a_name_stays() {
        assert_eq!(
            set(&[("a", "1"), ("b", "2")]),
            set(&[("b", "2"), ("a", "1")])
        );
        let doubled = set(&[("a", "1"), ("a", "2")]);
        assert_eq!(doubled, set(&[("a", "1")]));
        assert_ne!(set(&[("a", "1")]), set(&[("a", "2")]));
    }

    #[test]
    fn restriction_to_what_is_there_shares_the_set() {
        let all = set(&[("a", "1"), ("b", "1")]);
        assert!(Arc::ptr_eq(
            &all,
            &all.restrict(&Interest::named(["a", "b", "c"]))
        ));
        assert_eq!(
            all.restrict(&Interest::named(["b", "c"])),
            set(&[("b", "1")])
        );
    }
}

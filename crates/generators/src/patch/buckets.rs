//! Patches by their selective condition (envoyfilter §21.4, §21.5).

use std::hash::Hash;

use rustc_hash::FxHashMap;

/// Positions of patches in their order, each in one bucket: that of the first selective condition
/// it states, or the one for patches without.
///
/// A look-up returns a superset of what matches; the caller tests each candidate.
#[derive(Clone, Debug)]
pub(super) struct Buckets<K> {
    keyed: FxHashMap<K, Vec<u32>>,
    wildcard: Vec<u32>,
}

impl<K> Default for Buckets<K> {
    fn default() -> Self {
        Self {
            keyed: FxHashMap::default(),
            wildcard: Vec::new(),
        }
    }
}

impl<K: Hash + Eq> Buckets<K> {
    /// Adds the next patch in order.
    pub(super) fn push(&mut self, position: u32, key: Option<K>) {
        match key {
            Some(key) => self.keyed.entry(key).or_default().push(position),
            None => self.wildcard.push(position),
        }
    }

    /// Tells whether there is no patch.
    pub(super) fn is_empty(&self) -> bool {
        self.keyed.is_empty() && self.wildcard.is_empty()
    }

    /// Lists the positions of candidates, ascending, each once.
    pub(super) fn candidates(&self, probes: impl IntoIterator<Item = K>) -> Vec<u32> {
        let mut found = self.wildcard.clone();
        for probe in probes {
            if let Some(bucket) = self.keyed.get(&probe) {
                found.extend_from_slice(bucket);
            }
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Lists all positions, ascending.
    pub(super) fn all(&self) -> Vec<u32> {
        let mut all = self.wildcard.clone();
        // Sorted below, whatever the order here.
        self.keyed
            .values()
            .for_each(|bucket| all.extend_from_slice(bucket));
        all.sort_unstable();
        all
    }
}

/// Visits candidates in order while the object that they patch may change what is a candidate.
///
/// `find` lists the candidates of the object as it is; `visit` tests and applies one, and says
/// whether to go on. After a change of the object's keys the candidates are found anew and those
/// behind the last visited one follow, as a loop over all patches would have it.
pub(super) fn walk<T, K: PartialEq>(
    object: &mut T,
    keys: impl Fn(&T) -> K,
    find: impl Fn(&K) -> Vec<u32>,
    mut visit: impl FnMut(&mut T, u32) -> Step,
) {
    let mut current = keys(object);
    let mut candidates = find(&current);
    let mut at = 0;
    while let Some(&position) = candidates.get(at) {
        at += 1;
        match visit(object, position) {
            Step::Stop => return,
            Step::Untouched => {}
            Step::Changed => {
                let now = keys(object);
                if now != current {
                    candidates = find(&now);
                    at = candidates.partition_point(|c| *c <= position);
                    current = now;
                }
            }
        }
    }
}

/// What visiting a candidate did.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Step {
    /// It did not match.
    Untouched,
    /// It changed the object.
    Changed,
    /// It removed the object.
    Stop,
}

//! Patches by their selective condition (envoyfilter §21.4, §21.5).

use std::hash::{BuildHasher as _, Hash};

use rustc_hash::{FxBuildHasher, FxHashMap};

/// Positions of patches in their order, each in one bucket: that of the first selective condition
/// it states, or the one for patches without.
///
/// A look-up returns a superset of what matches, and the caller tests each candidate; so the hash of
/// a condition does for the condition. All keys of one value are of one type.
#[derive(Clone, Default, Debug)]
pub(super) struct Buckets {
    keyed: FxHashMap<u64, Bucket>,
    wildcard: Vec<u32>,
}

/// The positions of one bucket, most often one.
#[derive(Clone, Debug)]
struct Bucket {
    first: u32,
    rest: Vec<u32>,
}

impl Buckets {
    /// Adds the next patch in order.
    pub(super) fn push<K: Hash>(&mut self, position: u32, key: Option<K>) {
        let Some(key) = key else {
            self.wildcard.push(position);
            return;
        };
        self.keyed
            .entry(hash(&key))
            .and_modify(|bucket| bucket.rest.push(position))
            .or_insert(Bucket {
                first: position,
                rest: Vec::new(),
            });
    }

    /// Tells whether there is no patch.
    pub(super) fn is_empty(&self) -> bool {
        self.keyed.is_empty() && self.wildcard.is_empty()
    }

    /// Lists the positions of candidates, ascending, each once.
    pub(super) fn candidates<K: Hash>(&self, probes: impl IntoIterator<Item = K>) -> Vec<u32> {
        let mut found = self.wildcard.clone();
        for probe in probes {
            if let Some(bucket) = self.keyed.get(&hash(&probe)) {
                bucket.append_to(&mut found);
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
            .for_each(|bucket| bucket.append_to(&mut all));
        all.sort_unstable();
        all
    }
}

impl Bucket {
    fn append_to(&self, found: &mut Vec<u32>) {
        found.push(self.first);
        found.extend_from_slice(&self.rest);
    }
}

fn hash<K: Hash>(key: &K) -> u64 {
    FxBuildHasher.hash_one(key)
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::{collection::vec, option, prelude::*};

    use super::*;

    /// What the objects of the model are found by, and patches set.
    type Key = u8;

    /// A patch of the model: applies to objects that have `key` (all, if it states none).
    #[derive(Clone, Debug)]
    struct ModelPatch {
        key: Option<Key>,
        action: Action,
    }

    #[derive(Clone, Debug)]
    enum Action {
        Nothing,
        Add(Key),
        Take(Key),
        Remove,
    }

    fn patch() -> impl Strategy<Value = ModelPatch> {
        let key = 0..5_u8;
        let action = prop_oneof![
            3 => Just(Action::Nothing),
            3 => key.clone().prop_map(Action::Add),
            3 => key.clone().prop_map(Action::Take),
            1 => Just(Action::Remove),
        ];
        (option::of(key), action).prop_map(|(key, action)| ModelPatch { key, action })
    }

    /// Tests a patch against an object, applies it if it matches, and notes that.
    fn apply(
        patches: &[ModelPatch],
        position: u32,
        object: &mut BTreeSet<Key>,
        applied: &mut Vec<u32>,
    ) -> Step {
        let patch = &patches[position as usize];
        if patch.key.is_some_and(|key| !object.contains(&key)) {
            return Step::Untouched;
        }
        applied.push(position);
        match patch.action {
            Action::Nothing => {}
            Action::Add(key) => drop(object.insert(key)),
            Action::Take(key) => drop(object.remove(&key)),
            Action::Remove => return Step::Stop,
        }
        Step::Changed
    }

    proptest! {
        #[test]
        fn by_bucket_the_same_patches_apply_as_by_a_loop_over_all(
            patches in vec(patch(), 0..12),
            object in proptest::collection::btree_set(0..5_u8, 0..4),
        ) {
            let positions = 0..u32::try_from(patches.len()).expect("a few");
            let (mut looped, mut by_loop) = (object.clone(), Vec::new());
            for position in positions.clone() {
                if apply(&patches, position, &mut looped, &mut by_loop) == Step::Stop {
                    break;
                }
            }

            let mut buckets = Buckets::default();
            for position in positions {
                buckets.push(position, patches[position as usize].key);
            }
            let (mut walked, mut by_bucket) = (object, Vec::new());
            walk(
                &mut walked,
                Clone::clone,
                |keys: &BTreeSet<Key>| buckets.candidates(keys.iter().copied()),
                |object, position| apply(&patches, position, object, &mut by_bucket),
            );

            prop_assert_eq!(by_bucket, by_loop);
            prop_assert_eq!(walked, looped);
        }

        #[test]
        fn candidates_are_those_of_the_probes_and_those_without_a_key(
            keys in vec(option::of(0..5_u8), 0..12),
            probes in vec(0..5_u8, 0..4),
        ) {
            let mut buckets = Buckets::default();
            for (position, key) in (0..).zip(&keys) {
                buckets.push(position, *key);
            }
            let expected: Vec<u32> = (0..)
                .zip(&keys)
                .filter(|(_, key)| key.is_none_or(|key| probes.contains(&key)))
                .map(|(position, _)| position)
                .collect();
            prop_assert_eq!(buckets.candidates(probes), expected);
            let all: Vec<u32> = (0..).take(keys.len()).collect();
            prop_assert_eq!(buckets.all(), all);
        }
    }
}

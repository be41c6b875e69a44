//! What became of the patches of EnvoyFilters while resources were built (envoyfilter §18).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::atomic::{AtomicBool, Ordering},
};

use model::{ConfigKey, api::envoy_filter::ApplyTo};
use parking_lot::Mutex;

/// Failures whose first occurrence is remembered; beyond this many they are reported anew.
const REMEMBERED_FAILURES: usize = 10_000;

/// One patch of one EnvoyFilter.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct PatchId {
    /// The filter.
    pub filter: ConfigKey,
    /// The position among the patches of the filter, from 0.
    pub index: usize,
    /// What the patch applies to.
    pub apply_to: ApplyTo,
}

/// What became of one patch since somebody asked.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct PatchOutcome {
    /// Resources that it changed, added or removed, counted for each class that got them.
    pub resources: u64,
    /// Fingerprints of the classes for which it did.
    pub classes: BTreeSet<u64>,
    /// Why it could not be applied where it matched.
    pub failures: BTreeSet<String>,
    /// Why it had nothing to do where it matched, such as a filter that is not there.
    pub misses: BTreeSet<String>,
}

/// Collects outcomes. One for all snapshots that follow each other.
///
/// Failures are always collected. What was applied is collected only when asked for
/// ([`PatchOutcomes::track`]), as a large mesh applies patches to many resources.
#[derive(Debug, Default)]
pub struct PatchOutcomes {
    tracked: AtomicBool,
    collected: Mutex<Collected>,
}

#[derive(Debug, Default)]
struct Collected {
    outcomes: BTreeMap<PatchId, PatchOutcome>,
    /// Failures that were reported.
    known: BTreeSet<(PatchId, String)>,
}

impl PatchOutcomes {
    /// Says whether applied patches are collected too; they are not by default.
    pub fn track(&self, tracked: bool) {
        self.tracked.store(tracked, Ordering::Relaxed);
    }

    /// Tells whether applied patches are collected too.
    pub fn is_tracked(&self) -> bool {
        self.tracked.load(Ordering::Relaxed)
    }

    /// Notes that patches took effect on one resource of one class, where that is tracked.
    pub fn applied(&self, class: u64, patches: impl IntoIterator<Item = PatchId>) {
        if !self.is_tracked() {
            return;
        }
        let mut collected = self.collected.lock();
        for patch in patches {
            let outcome = collected.outcomes.entry(patch).or_default();
            outcome.resources += 1;
            outcome.classes.insert(class);
        }
    }

    /// Notes that a patch had nothing to do where it matched, where that is tracked.
    pub fn missed(&self, patch: PatchId, reason: &str) {
        if self.is_tracked() {
            let mut collected = self.collected.lock();
            let misses = &mut collected.outcomes.entry(patch).or_default().misses;
            misses.insert(reason.to_owned());
        }
    }

    /// Notes that a patch could not be applied; returns whether that is news.
    pub fn failed(&self, patch: PatchId, reason: &str) -> bool {
        let mut collected = self.collected.lock();
        let failures = &mut collected
            .outcomes
            .entry(patch.clone())
            .or_default()
            .failures;
        failures.insert(reason.to_owned());
        if collected.known.len() >= REMEMBERED_FAILURES {
            collected.known.clear();
        }
        collected.known.insert((patch, reason.to_owned()))
    }

    /// Takes out what was collected.
    pub fn take(&self) -> BTreeMap<PatchId, PatchOutcome> {
        std::mem::take(&mut self.collected.lock().outcomes)
    }
}

#[cfg(test)]
mod tests {
    use model::Kind;

    use super::*;

    fn patch(name: &str) -> PatchId {
        PatchId {
            filter: ConfigKey::new(Kind::EnvoyFilter, "ns", name),
            index: 0,
            apply_to: ApplyTo::Cluster,
        }
    }

    #[test]
    fn applied_patches_are_collected_only_when_tracked() {
        let outcomes = PatchOutcomes::default();
        outcomes.applied(1, [patch("a")]);
        outcomes.missed(patch("a"), "nothing there");
        assert_eq!(outcomes.take(), BTreeMap::new());
        outcomes.track(true);
        outcomes.applied(1, [patch("a"), patch("b")]);
        outcomes.applied(2, [patch("a")]);
        let taken = outcomes.take();
        assert_eq!(taken[&patch("a")].resources, 2);
        assert_eq!(taken[&patch("a")].classes, BTreeSet::from([1, 2]));
        assert_eq!(taken[&patch("b")].resources, 1);
        assert_eq!(outcomes.take(), BTreeMap::new());
    }

    #[test]
    fn a_failure_is_news_once() {
        let outcomes = PatchOutcomes::default();
        assert!(outcomes.failed(patch("a"), "no value"));
        assert!(!outcomes.failed(patch("a"), "no value"));
        assert!(outcomes.failed(patch("a"), "another type"));
        assert!(outcomes.failed(patch("b"), "no value"));
        assert_eq!(outcomes.take()[&patch("a")].failures.len(), 2);
        assert!(!outcomes.failed(patch("a"), "no value"), "taken, but known");
    }
}

//! One application of patches to one resource, and what became of each patch.

use std::{cell::RefCell, collections::BTreeSet, fmt::Display, sync::Arc};

use pushctx::PatchOutcomes;
use xds::Source;

use super::{Pass, Patch};

/// Patches at work: which traffic the resource is for, and what they did so far.
#[derive(Debug)]
pub(crate) struct Run {
    /// For which traffic the resource is made.
    pub pass: Pass,
    outcomes: RefCell<Outcomes>,
}

/// What became of patches that met one resource.
#[derive(Clone, Default, Debug)]
pub(crate) struct Outcomes {
    /// Those that took effect.
    pub(super) applied: Vec<Arc<Patch>>,
    /// Those that did not, in whole or at one place, with the reason.
    pub(super) skipped: Vec<(Arc<Patch>, Skip)>,
    /// The resource changed beyond what patches did.
    tidied: bool,
}

/// Why a patch did nothing where it matched.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Skip {
    /// It cannot be applied.
    Failed(String),
    /// There is nothing to apply it to.
    Missed(String),
}

impl Run {
    /// Starts a run over one resource.
    pub(crate) fn new(pass: Pass) -> Self {
        Self {
            pass,
            outcomes: RefCell::default(),
        }
    }

    /// Notes that a patch took effect.
    pub(super) fn applied(&self, patch: &Arc<Patch>) {
        let applied = &mut self.outcomes.borrow_mut().applied;
        // One that applies to everything comes again and again.
        if !applied.iter().rev().any(|known| Arc::ptr_eq(known, patch)) {
            applied.push(patch.clone());
        }
    }

    /// Notes that a patch cannot be applied, and is left out.
    pub(super) fn failed(&self, patch: &Arc<Patch>, reason: &dyn Display) {
        self.skip(patch, Skip::Failed(reason.to_string()));
    }

    /// Notes that there is nothing to apply a patch to.
    pub(super) fn missed(&self, patch: &Arc<Patch>, reason: &dyn Display) {
        self.skip(patch, Skip::Missed(reason.to_string()));
    }

    /// Notes that the resource changed without a patch.
    pub(super) fn tidied(&self) {
        self.outcomes.borrow_mut().tidied = true;
    }

    fn skip(&self, patch: &Arc<Patch>, skip: Skip) {
        let skipped = &mut self.outcomes.borrow_mut().skipped;
        let is_known =
            |(known, reason): &(Arc<Patch>, Skip)| Arc::ptr_eq(known, patch) && *reason == skip;
        if !skipped.iter().any(is_known) {
            skipped.push((patch.clone(), skip));
        }
    }

    /// Ends the run.
    pub(crate) fn finish(self) -> Outcomes {
        self.outcomes.into_inner()
    }
}

impl Outcomes {
    /// Tells whether the resource is still what it was.
    pub(super) fn is_untouched(&self) -> bool {
        self.applied.is_empty() && !self.tidied
    }

    /// Tells whether there is nothing to report.
    pub(super) fn is_empty(&self) -> bool {
        self.applied.is_empty() && self.skipped.is_empty()
    }

    /// The objects behind the patches that took effect.
    pub(super) fn sources(&self) -> BTreeSet<Source> {
        let sources = self.applied.iter();
        sources
            .map(|patch| patch.source.to_string().into())
            .collect()
    }

    /// Reports what happened for one class. A failure is logged when it is new.
    pub(super) fn report(&self, class: u64, to: &PatchOutcomes) {
        if to.is_tracked() {
            to.applied(class, self.applied.iter().map(|patch| patch.id()));
        }
        for (patch, skip) in &self.skipped {
            match skip {
                Skip::Failed(reason) => report_failure(&patch.id(), reason, to),
                Skip::Missed(reason) => to.missed(patch.id(), reason),
            }
        }
    }
}

/// Reports a patch that cannot be applied, and logs it when that is new.
pub(super) fn report_failure(patch: &pushctx::PatchId, reason: &str, to: &PatchOutcomes) {
    if to.failed(patch.clone(), reason) {
        tracing::warn!(
            config = %patch.filter,
            patch = patch.index,
            apply_to = %patch.apply_to,
            error = reason,
            "patch not applied"
        );
    }
}

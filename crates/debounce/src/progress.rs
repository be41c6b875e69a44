//! How much of what came in has been consumed.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

/// Counts events that entered and events whose batch was consumed; a cheap shared handle.
///
/// Equality of the two means that everything sent so far is reflected.
#[derive(Debug, Clone, Default)]
pub struct Progress {
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    inbound: AtomicU64,
    committed: AtomicU64,
    failed: AtomicU64,
}

impl Progress {
    /// Events sent so far, including those that bypass.
    pub fn inbound(&self) -> u64 {
        self.counts.inbound.load(Ordering::Acquire)
    }

    /// Events whose batch was consumed.
    pub fn committed(&self) -> u64 {
        self.counts.committed.load(Ordering::Acquire)
    }

    /// Events whose consumer panicked.
    pub fn failed(&self) -> u64 {
        self.counts.failed.load(Ordering::Acquire)
    }

    /// Whether nothing is waiting or being worked on.
    pub fn is_caught_up(&self) -> bool {
        // Done is read first: a later `inbound` can only err towards "not yet".
        let done = self.committed() + self.failed();
        done >= self.inbound()
    }

    pub(crate) fn enter(&self) {
        self.counts.inbound.fetch_add(1, Ordering::AcqRel);
    }

    /// Takes back an [`enter`](Self::enter) whose event was not accepted.
    pub(crate) fn leave(&self) {
        self.counts.inbound.fetch_sub(1, Ordering::AcqRel);
    }

    pub(crate) fn commit(&self, events: u64) {
        self.counts.committed.fetch_add(events, Ordering::AcqRel);
    }

    pub(crate) fn fail(&self, events: u64) {
        self.counts.failed.fetch_add(events, Ordering::AcqRel);
    }
}

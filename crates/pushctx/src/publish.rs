//! Publication of snapshots: one writer, many readers.

use std::sync::Arc;

use arc_swap::ArcSwap;

use crate::PushContext;

/// The one writer of the current snapshot. Not `Clone`.
#[derive(Debug)]
pub struct Publisher(Arc<ArcSwap<PushContext>>);

/// Reads the current snapshot.
#[derive(Clone, Debug)]
pub struct Reader(Arc<ArcSwap<PushContext>>);

impl Publisher {
    /// Starts with `first`; returns the writer and a reader.
    pub fn new(first: Arc<PushContext>) -> (Self, Reader) {
        let cell = Arc::new(ArcSwap::new(first));
        (Self(cell.clone()), Reader(cell))
    }

    /// Replaces the snapshot. The old one dies with its last reader.
    pub fn publish(&mut self, next: Arc<PushContext>) {
        self.0.store(next);
    }
}

impl Reader {
    /// Takes the current snapshot. Take one per push and pass it down.
    pub fn snapshot(&self) -> Arc<PushContext> {
        self.0.load_full()
    }
}

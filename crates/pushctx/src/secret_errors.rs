//! Secrets that could not be served.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts secrets that were asked for and not served.
#[derive(Debug, Default)]
pub struct SecretErrors(AtomicU64);

impl SecretErrors {
    /// Counts one.
    pub fn count(&self) {
        self.0.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns how many there were since this was last called.
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

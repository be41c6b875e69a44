//! How long to wait after failures in a row.

use std::{
    hash::{BuildHasher as _, Hasher as _, RandomState},
    time::Duration,
};

/// The first wait, and the longest one.
const FIRST: Duration = Duration::from_millis(400);
const LONGEST: Duration = Duration::from_secs(30);

/// Waits that double with each failure. Between half a wait and a whole one is waited, at random:
/// what failed together shall not come back together.
#[derive(Debug)]
pub(super) struct Backoff {
    failures: u32,
    random: RandomState,
}

impl Default for Backoff {
    fn default() -> Self {
        Self {
            failures: 0,
            random: RandomState::new(),
        }
    }
}

impl Backoff {
    /// Something worked.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }

    /// Something failed; returns how long to wait.
    pub(super) fn next(&mut self) -> Duration {
        let whole = FIRST
            .saturating_mul(1 << self.failures.min(16))
            .min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        self.jitter(whole)
    }

    /// Number of failures in a row.
    pub(super) fn failures(&self) -> u32 {
        self.failures
    }

    /// A time between half of `whole` and all of it.
    pub(super) fn jitter(&self, whole: Duration) -> Duration {
        // Each hasher of a state has the same keys; what is hashed must differ.
        let mut hasher = self.random.build_hasher();
        hasher.write_u32(self.failures);
        let share = u32::try_from(hasher.finish() % 1024).unwrap_or(0);
        whole / 2 + whole / 2048 * share
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_bound_and_start_again() {
        let mut backoff = Backoff::default();
        let mut whole = FIRST;
        for _ in 0..40 {
            let wait = backoff.next();
            assert!(wait >= whole / 2 && wait <= whole, "{wait:?} of {whole:?}");
            whole = (whole * 2).min(LONGEST);
        }
        backoff.reset();
        assert!(backoff.next() <= FIRST);
    }
}

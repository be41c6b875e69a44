//! What an event must be able to do.

use std::collections::BTreeSet;

/// Merges two events into one that stands for both.
///
/// Must be associative: `(a + b) + c` equals `a + (b + c)`, because where a batch is cut depends on
/// timing only. The receiver is the older event; a field in which the newer one wins is therefore
/// allowed.
pub trait Merge: Sized {
    /// Folds `newer` into `self`.
    fn merge(&mut self, newer: Self);
}

/// Union.
impl<T: Ord> Merge for BTreeSet<T> {
    fn merge(&mut self, newer: Self) {
        // Inserting the smaller side keeps a long batch linear in the number of its events.
        let mut other = newer;
        if other.len() > self.len() {
            std::mem::swap(self, &mut other);
        }
        self.extend(other);
    }
}

/// Concatenation, older first.
impl<T> Merge for Vec<T> {
    fn merge(&mut self, newer: Self) {
        self.extend(newer);
    }
}

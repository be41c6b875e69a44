//! Numbers by which each case is treated the same way each time.

use xxhash_rust::xxh3::xxh3_64_with_seed;

/// A small generator of numbers (xorshift).
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// Starts from a text and a number.
    pub(super) fn of(text: &str, seed: u64) -> Self {
        Self(xxh3_64_with_seed(text.as_bytes(), seed) | 1)
    }

    /// The next number below `limit`; 0 when that is 0.
    pub(super) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit.max(1) as u64).unwrap_or_default()
    }

    /// Brings the items into another order.
    pub(super) fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at + 1));
        }
    }
}

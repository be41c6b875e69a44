//! The content-addressed cache of built resources.
//!
//! The key is the fingerprint of a builder's inputs, so there is nothing to invalidate: an input that
//! changes is another key, and what is not asked for any more falls out.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

/// Locks that builders of one class contend for. Two cores hold two at a time, large machines some
/// dozens.
const SHARDS: usize = 64;

/// A bounded map from fingerprint to built value, for many threads.
///
/// Each shard keeps two generations. An entry that is used moves to the young one; when that is
/// full, it becomes the old one, and the entries of the previous old one are dropped. So between
/// half of the capacity and all of it is kept, the least recently used going first.
#[derive(Debug)]
pub struct Cache<V> {
    shards: Box<[Mutex<Generations<V>>]>,
    young_limit: usize,
    hits: AtomicU64,
    misses: AtomicU64,
    evictions: AtomicU64,
}

#[derive(Debug)]
struct Generations<V> {
    young: FxHashMap<u64, V>,
    old: FxHashMap<u64, V>,
}

/// What a cache did since it was made.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Stats {
    /// Values found.
    pub hits: u64,
    /// Values built.
    pub misses: u64,
    /// Values dropped for want of room.
    pub evictions: u64,
    /// Values held now.
    pub entries: usize,
}

impl<V: Clone> Cache<V> {
    /// Makes a cache for about `capacity` values; 0 keeps nothing.
    pub fn new(capacity: usize) -> Self {
        Self {
            shards: std::iter::repeat_with(|| {
                Mutex::new(Generations {
                    young: FxHashMap::default(),
                    old: FxHashMap::default(),
                })
            })
            .take(SHARDS)
            .collect(),
            young_limit: capacity.div_ceil(2 * SHARDS),
            hits: AtomicU64::new(0),
            misses: AtomicU64::new(0),
            evictions: AtomicU64::new(0),
        }
    }

    /// Returns the value under `key`, building it when it is not there.
    ///
    /// `build` runs without a lock. Two threads that miss at the same time both build; as the key
    /// determines the value, it does not matter whose stays.
    pub fn get_or_build(&self, key: u64, build: impl FnOnce() -> V) -> V {
        if let Some(value) = self.get(key) {
            self.hits.fetch_add(1, Ordering::Relaxed);
            return value;
        }
        self.misses.fetch_add(1, Ordering::Relaxed);
        let value = build();
        self.insert(key, value.clone());
        value
    }

    /// Counts and sizes.
    pub fn stats(&self) -> Stats {
        Stats {
            hits: self.hits.load(Ordering::Relaxed),
            misses: self.misses.load(Ordering::Relaxed),
            evictions: self.evictions.load(Ordering::Relaxed),
            entries: self
                .shards
                .iter()
                .map(|shard| {
                    let shard = shard.lock();
                    shard.young.len() + shard.old.len()
                })
                .sum(),
        }
    }

    fn shard(&self, key: u64) -> &Mutex<Generations<V>> {
        &self.shards[shard_of(key)]
    }

    fn get(&self, key: u64) -> Option<V> {
        let mut shard = self.shard(key).lock();
        if let Some(value) = shard.young.get(&key) {
            return Some(value.clone());
        }
        let value = shard.old.remove(&key)?;
        self.put(&mut shard, key, value.clone());
        Some(value)
    }

    fn insert(&self, key: u64, value: V) {
        if self.young_limit > 0 {
            self.put(&mut self.shard(key).lock(), key, value);
        }
    }

    fn put(&self, shard: &mut Generations<V>, key: u64, value: V) {
        if shard.young.len() >= self.young_limit {
            let dropped = std::mem::replace(&mut shard.old, std::mem::take(&mut shard.young));
            self.evictions
                .fetch_add(dropped.len() as u64, Ordering::Relaxed);
        }
        shard.young.insert(key, value);
    }
}

/// The shard of a key. Keys need not be well mixed, such as addresses.
fn shard_of(key: u64) -> usize {
    let mixed = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    usize::try_from(mixed >> 58).unwrap_or_default() % SHARDS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Keys of one shard, so that its limits show.
    fn get(cache: &Cache<u64>, key: u64) -> u64 {
        cache.get_or_build(key, || key.wrapping_mul(10))
    }

    #[test]
    fn a_value_is_built_once() {
        let cache = Cache::new(1000);
        assert_eq!(get(&cache, 1), 10);
        assert_eq!(cache.get_or_build(1, || panic!("cached")), 10);
        assert_eq!(
            cache.stats(),
            Stats {
                hits: 1,
                misses: 1,
                evictions: 0,
                entries: 1
            }
        );
    }

    #[test]
    fn what_is_used_stays_and_the_rest_falls_out() {
        // Two values a generation and shard.
        let cache = Cache::new(4 * SHARDS);
        let of_one_shard = (0..).filter(|key| shard_of(*key) == shard_of(0));
        let keys: Vec<u64> = of_one_shard.take(100).collect();
        for key in &keys {
            get(&cache, *key);
            get(&cache, 0);
        }
        let misses = cache.stats().misses;
        assert_eq!(misses, 100, "the value in use is never built again");
        assert!(cache.stats().entries <= 4);
        get(&cache, keys[1]);
        assert_eq!(cache.stats().misses, misses + 1);
    }

    #[test]
    fn addresses_are_spread_over_all_shards() {
        let cache = Cache::new(8 * SHARDS);
        for turn in 0..3 {
            for at in 0..2 * SHARDS as u64 {
                get(&cache, 0x7f12_3456_0000 + 64 * at);
            }
            assert!(turn == 0 || cache.stats().hits > 0);
        }
        let stats = cache.stats();
        assert!(stats.hits > stats.misses, "{stats:?}");
    }

    #[test]
    fn no_capacity_means_no_cache() {
        let cache = Cache::new(0);
        get(&cache, 1);
        get(&cache, 1);
        assert_eq!(
            cache.stats(),
            Stats {
                hits: 0,
                misses: 2,
                evictions: 0,
                entries: 0
            }
        );
    }
}

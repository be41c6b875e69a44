//! A persistent hash table for look-ups whose order reaches no output.

use imbl::{GenericHashMap, shared_ptr::DefaultSharedPtr};
use rustc_hash::FxBuildHasher;

/// Looked up, never iterated.
pub(crate) type HashTable<K, V> = GenericHashMap<K, V, FxBuildHasher, DefaultSharedPtr>;

/// A few values of one key, mostly one: sorted, without duplicates.
#[derive(Clone, Debug)]
pub(crate) enum Few<T> {
    One(T),
    More(std::sync::Arc<[T]>),
}

impl<T: Clone> Few<T> {
    pub(crate) fn as_slice(&self) -> &[T] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::More(values) => values,
        }
    }

    /// Makes a group of values that are sorted already; `None` when there is none.
    pub(crate) fn from_sorted(values: Vec<T>) -> Option<Self> {
        match <[T; 1]>::try_from(values) {
            Ok([value]) => Some(Self::One(value)),
            Err(values) if values.is_empty() => None,
            Err(values) => Some(Self::More(values.into())),
        }
    }
}

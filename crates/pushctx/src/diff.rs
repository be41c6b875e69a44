//! What differs between two persistent maps; cheap where they share structure.

use std::sync::Arc;

use imbl::{OrdMap, ordmap::DiffItem};

/// One difference between an old and a new map.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change<'a, K, V> {
    Added(&'a K, &'a Arc<V>),
    Removed(&'a K, &'a Arc<V>),
    Updated(&'a K, &'a Arc<V>, &'a Arc<V>),
}

impl<'a, K, V> Change<'a, K, V> {
    pub(crate) fn key(&self) -> &'a K {
        match self {
            Self::Added(key, _) | Self::Removed(key, _) | Self::Updated(key, _, _) => key,
        }
    }

    /// The old and the new value.
    pub(crate) fn both(&self) -> (Option<&'a Arc<V>>, Option<&'a Arc<V>>) {
        match *self {
            Self::Added(_, new) => (None, Some(new)),
            Self::Removed(_, old) => (Some(old), None),
            Self::Updated(_, old, new) => (Some(old), Some(new)),
        }
    }

    /// The old and the new value, as far as they exist.
    pub(crate) fn sides(&self) -> impl Iterator<Item = &'a Arc<V>> + use<'a, K, V> {
        let (old, new) = self.both();
        old.into_iter().chain(new)
    }
}

/// Lists the differences in key order; shared parts of the maps are not visited.
pub(crate) fn changes<'a, K: Ord, V: PartialEq>(
    old: &'a OrdMap<K, Arc<V>>,
    new: &'a OrdMap<K, Arc<V>>,
) -> impl Iterator<Item = Change<'a, K, V>> {
    old.diff(new).map(|item| match item {
        DiffItem::Add(key, new) => Change::Added(key, new),
        DiffItem::Remove(key, old) => Change::Removed(key, old),
        DiffItem::Update {
            old: (_, old),
            new: (key, new),
        } => Change::Updated(key, old, new),
    })
}

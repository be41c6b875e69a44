//! Values that carry their own order, kept in persistent sets.

use std::{cmp::Ordering, sync::Arc};

use model::{Config, Service};

use crate::{ResolvedVirtualService, sorted::Content};

/// A type with a total order that does not depend on how its values arrived.
pub(crate) trait CreationOrder {
    /// Compares by creation time and names (config-model §6.4); equal only for the same object.
    fn by_creation(&self, other: &Self) -> Ordering;
}

impl CreationOrder for Service {
    /// Creation time, attribute name, namespace; then Kubernetes first, then what tells services of
    /// one key apart.
    fn by_creation(&self, other: &Self) -> Ordering {
        self.creation_order()
            .cmp(&other.creation_order())
            .then_with(|| self.attributes.registry.cmp(&other.attributes.registry))
            .then_with(|| self.hostname.cmp(&other.hostname))
            .then_with(|| {
                self.attributes
                    .object_name
                    .cmp(&other.attributes.object_name)
            })
            .then_with(|| self.default_address.cmp(&other.default_address))
    }
}

impl<T> CreationOrder for Config<T> {
    fn by_creation(&self, other: &Self) -> Ordering {
        self.meta.creation_order().cmp(&other.meta.creation_order())
    }
}

impl CreationOrder for ResolvedVirtualService {
    fn by_creation(&self, other: &Self) -> Ordering {
        self.config.by_creation(&other.config)
    }
}

/// A shared value that sorts by creation.
#[derive(Debug)]
pub(crate) struct InOrder<T>(pub(crate) Arc<T>);

impl Content for InOrder<Service> {
    fn content(&self) -> u64 {
        self.0.fingerprint
    }
}

impl Content for InOrder<ResolvedVirtualService> {
    fn content(&self) -> u64 {
        self.0.fingerprint
    }
}

impl<T> Clone for InOrder<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T: CreationOrder> PartialEq for InOrder<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<T: CreationOrder> Eq for InOrder<T> {}

impl<T: CreationOrder> PartialOrd for InOrder<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: CreationOrder> Ord for InOrder<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        self.0.by_creation(&other.0)
    }
}

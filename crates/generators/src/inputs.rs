//! What makes a resource builder's inputs its cache key.
//!
//! A builder is a function of one struct. The struct derives [`Hash`], so that its fingerprint
//! covers every field by construction; large shared values in it are [`Shared`] and count by a
//! fingerprint that was computed when they were made.

use std::{
    hash::{Hash, Hasher},
    ops::Deref,
    sync::Arc,
};

use model::{ConfigKey, Kind, Service, ServiceEndpoints, fingerprint};
use pushctx::ConsolidatedRule;
use serde::Serialize;
use xds::Source;

/// A value that knows the hash of its own content.
pub trait Fingerprinted {
    /// Equal content gives equal fingerprints.
    fn fingerprint(&self) -> u64;
}

impl Fingerprinted for Service {
    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl Fingerprinted for ServiceEndpoints {
    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl Fingerprinted for ConsolidatedRule {
    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

/// A shared value that is compared and hashed by its fingerprint.
#[derive(Debug)]
pub struct Shared<T>(Arc<T>);

impl<T> Shared<T> {
    /// Shares a value that is in an `Arc` already.
    pub fn new(value: &Arc<T>) -> Self {
        Self(value.clone())
    }

    /// Returns the `Arc`.
    pub fn arc(&self) -> &Arc<T> {
        &self.0
    }
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Deref for Shared<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T: Fingerprinted> Hash for Shared<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.0.fingerprint());
    }
}

/// A value of the API, which has no [`Hash`] because of its floating-point fields: hashed by its JSON.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct ByJson<T>(pub T);

impl<T: Serialize> Hash for ByJson<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(fingerprint::of_json(&self.0));
    }
}

impl<T> Deref for ByJson<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

/// A value together with the fingerprint of its content.
#[derive(Debug)]
pub struct Sealed<T> {
    value: T,
    fingerprint: u64,
}

impl<T: Hash> Sealed<T> {
    /// Hashes `value` and makes it shareable.
    pub fn share(value: T) -> Shared<Self> {
        let fingerprint = fingerprint::of(&value);
        Shared(Arc::new(Self { value, fingerprint }))
    }
}

impl<T: Clone> Shared<Sealed<T>> {
    /// Copies the value: threads that each clone a copy of their own do not wait for each other's
    /// count of references.
    #[must_use]
    pub fn detached(&self) -> Self {
        Self(Arc::new(Sealed {
            value: self.0.value.clone(),
            fingerprint: self.0.fingerprint,
        }))
    }
}

impl<T> Fingerprinted for Sealed<T> {
    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl<T> Deref for Sealed<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

/// The objects behind a resource: that of its service and those of its rule.
pub fn sources(service: Option<&Service>, rule: Option<&ConsolidatedRule>) -> Arc<[Source]> {
    let of_service = service.map(|service| service.source.ids());
    let of_rule = rule.map_or(&[][..], |rule| &rule.sources);
    if let (Some(ids), []) = (of_service, of_rule) {
        return ids.clone();
    }
    let of_rule = of_rule.iter().map(|name| {
        let key = ConfigKey::new(
            Kind::DestinationRule,
            name.namespace.clone(),
            name.name.clone(),
        );
        Source::from(key.to_string())
    });
    let of_service = of_service.into_iter().flat_map(|ids| ids.iter().cloned());
    of_service.chain(of_rule).collect()
}

//! Proxy classes: the decisions that proxies share.

use std::{hash::Hash, net::IpAddr, sync::Arc};

use model::{Labels, Locality, Proxy, ServiceTarget, service::ServiceId};

use crate::SidecarScope;

/// The identity of a class: what is known of its proxies, whatever the rest of the mesh looks like.
///
/// Proxies with equal keys receive equal resources. The key stays the same from snapshot to snapshot
/// until something about the proxies themselves changes, so that connections keep their class;
/// [`PushContext::resolve`](crate::PushContext::resolve) says what the class sees in one snapshot.
/// Facts that only single proxies have (id, addresses, node name) are kept only where an output
/// depends on them.
#[derive(Clone, Debug)]
pub struct ClassKey {
    /// The proxy with its own identity blanked: `id` is empty and `addresses` holds unspecified
    /// ones of the same families.
    pub proxy: Arc<Proxy>,
    /// The real addresses, when some output depends on them: listeners that bind to them
    /// (interception mode NONE) or headless services that the proxy itself serves.
    pub addresses: Option<Arc<[IpAddr]>>,
    /// Workload labels with topology (xds-server §4.4).
    pub labels: Labels,
    /// Locality (xds-server §4.4).
    pub locality: Locality,
    /// Services that the workload serves: (service, service port, target port).
    pub targets: Vec<(ServiceId, u16, u16)>,
    /// Hash of everything above; keys with equal fingerprints are equal.
    pub fingerprint: u64,
}

impl PartialEq for ClassKey {
    fn eq(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

impl Eq for ClassKey {}

impl Hash for ClassKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.fingerprint.hash(state);
    }
}

/// A class as one snapshot sees it; what resource builders get.
///
/// A builder sees this and the snapshot, never the proxy: what is not here cannot reach an output.
#[derive(Clone, Debug)]
pub struct ProxyClass {
    /// The class's identity.
    pub key: Arc<ClassKey>,
    /// The proxy with its own identity blanked.
    pub proxy: Arc<Proxy>,
    /// The real addresses, when some output depends on them.
    pub addresses: Option<Arc<[IpAddr]>>,
    /// Workload labels with topology (xds-server §4.4).
    pub labels: Labels,
    /// Locality (xds-server §4.4).
    pub locality: Locality,
    /// Services that the workload serves, by creation time, then host name.
    pub targets: Vec<ServiceTarget>,
    /// What it can see.
    pub scope: Arc<SidecarScope>,
}

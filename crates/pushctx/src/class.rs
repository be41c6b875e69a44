//! Proxy classes: the decisions that proxies share.

use std::{net::IpAddr, sync::Arc};

use model::{Labels, Locality, Proxy, ServiceTarget};

use crate::SidecarScope;

/// Everything that decides what a proxy receives; equal proxies share one class.
///
/// A resource builder sees the class and the snapshot, never the proxy: what is not here cannot
/// reach an output. Facts that only single proxies have (id, addresses, node name) are kept only
/// where an output depends on them.
#[derive(Clone, Debug)]
pub struct ProxyClass {
    /// The proxy with its own identity blanked: `id` is empty and `addresses` holds
    /// representative ones of the same families (see [`ProxyClass::addresses`]).
    pub proxy: Arc<Proxy>,
    /// The real addresses, when some output depends on them: listeners that bind to them
    /// (interception mode NONE) or headless services that the proxy itself serves.
    pub addresses: Option<Arc<[IpAddr]>>,
    /// Workload labels with topology (xds-server §4.4).
    pub labels: Labels,
    /// Locality (xds-server §4.4).
    pub locality: Locality,
    /// Services that the workload serves, by creation time, then host name.
    pub targets: Vec<ServiceTarget>,
    /// What it can see.
    pub scope: Arc<SidecarScope>,
    /// Hash of everything above; equal classes have equal fingerprints.
    pub fingerprint: u64,
}

//! Proxy classes: the decisions that proxies share.

mod identity;
mod intern;
mod normalise;

use std::{hash::Hash, net::IpAddr, sync::Arc};

use model::{Labels, Locality, Proxy, ProxyType, Service, ServiceTarget, service::ServiceId};

use crate::{MergedGateway, PushContext, SidecarScope, Waypoint, Workload};

pub(crate) use intern::{Classes, Keys};
pub(crate) use normalise::Named;

/// The identity of a class: what is known of its proxies, whatever the rest of the mesh looks like.
///
/// Proxies with equal keys receive equal resources. The key stays the same from snapshot to snapshot
/// until something about the proxies themselves changes, so that connections keep their class;
/// [`PushContext::resolve`] says what the class sees in one snapshot. Facts that only single
/// proxies have (id, addresses, node name) are kept only where an output depends on them.
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
    /// Services that the workload serves: (service, number and name of its port, target port).
    pub targets: Vec<(ServiceId, (u16, Arc<str>), u16)>,
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
    /// What its Gateways say; `None` for proxies that are no routers, and without Gateways.
    pub gateway: Option<Arc<MergedGateway>>,
    /// What it handles for others; `None` for proxies that are no waypoints.
    pub waypoint: Option<Arc<Waypoint>>,
}

impl ProxyClass {
    /// Tells whether two resolutions of one key see the same.
    fn is_same(&self, other: &Self) -> bool {
        let same_target = |(a, b): (&ServiceTarget, &ServiceTarget)| {
            let same_service =
                Arc::ptr_eq(&a.service, &b.service) || a.service.same_content(&b.service);
            same_service && a.port == b.port && a.target_port == b.target_port
        };
        let gateway = |class: &Self| class.gateway.as_ref().map(|g| g.fingerprint);
        Arc::ptr_eq(&self.scope, &other.scope)
            && self.targets.len() == other.targets.len()
            && self.targets.iter().zip(&other.targets).all(same_target)
            && gateway(self) == gateway(other)
            && match (&self.waypoint, &other.waypoint) {
                (None, None) => true,
                (Some(a), Some(b)) => a.is_same(b),
                _ => false,
            }
    }

    /// The workload as policies see it.
    pub fn workload(&self) -> Workload<'_> {
        self.workload_for(&[])
    }

    /// The workload as policies see it where it handles these services, as a waypoint does.
    pub fn workload_for<'a>(&'a self, services: &'a [Arc<Service>]) -> Workload<'a> {
        Workload {
            namespace: &self.proxy.namespace,
            labels: &self.labels,
            is_waypoint: self.proxy.proxy_type == ProxyType::Waypoint,
            services,
        }
    }
}

impl PushContext {
    /// Finds out which class a proxy belongs to. Equal classes are one `Arc`, also across snapshots.
    pub fn classify(&self, proxy: &Proxy) -> Arc<ClassKey> {
        let (labels, locality) = self.labels_and_locality(proxy);
        let targets = self.service_targets(proxy);
        self.keys
            .intern(self.class_key(proxy, labels, locality, &targets))
    }

    /// Works out what a class sees in this snapshot, once per class.
    pub fn resolve(&self, key: &Arc<ClassKey>) -> Arc<ProxyClass> {
        self.classes.get(key, || {
            let proxy = &key.proxy;
            let targets = self.resolve_targets(key);
            let gateway = match proxy.proxy_type {
                ProxyType::Router => self.merged_gateway(&proxy.namespace, &key.labels, &targets),
                ProxyType::Sidecar | ProxyType::Waypoint | ProxyType::Ztunnel => None,
            };
            let waypoint = (proxy.proxy_type == ProxyType::Waypoint)
                .then(|| Arc::new(self.waypoint(&proxy.namespace, &targets)));
            ProxyClass {
                waypoint,
                proxy: proxy.clone(),
                addresses: key.addresses.clone(),
                labels: key.labels.clone(),
                locality: key.locality.clone(),
                targets,
                scope: self.scope(proxy.proxy_type, &proxy.namespace, &key.labels),
                gateway: gateway.map(Arc::new),
                key: key.clone(),
            }
        })
    }

    /// Returns what proxies of this type, namespace and labels see; computed once per Sidecar and
    /// namespace.
    pub fn scope(
        &self,
        proxy_type: ProxyType,
        namespace: &Arc<str>,
        labels: &Labels,
    ) -> Arc<SidecarScope> {
        self.scopes.of(self, proxy_type, namespace, labels)
    }

    /// The targets of a key as they are now; those whose service or port is gone are left out.
    fn resolve_targets(&self, key: &ClassKey) -> Vec<ServiceTarget> {
        key.targets
            .iter()
            .filter_map(|(id, (number, name), target_port)| {
                let service = self.services.attached(self.state.services.get(id)?);
                let named = service.port_by_name(name);
                let named = named.filter(|port| port.port == *number);
                let port = named.or_else(|| service.port(*number))?.clone();
                Some(ServiceTarget {
                    service,
                    port,
                    target_port: *target_port,
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests;

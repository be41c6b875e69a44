//! What waypoints handle: the services and workloads that ask for one (ambient mode).
//!
//! A service or workload names its waypoint by a label, else its namespace does. The waypoint is a
//! Gateway that is reached somewhere already; its proxies are those behind the address in its
//! status.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Config, Labels, MeshState, NamespacedName, Service, ServiceTarget,
    api::gateway_api::{FromNamespaces, Gateway},
};

use crate::{PushContext, ServiceIndex, attach::of_namespace};

/// Label that names the waypoint of a service, a workload or a whole namespace; `none` for none.
const USE_WAYPOINT: &str = "istio.io/use-waypoint";
/// Label that says in which namespace the waypoint is; unset means the same.
const USE_NAMESPACE: &str = "istio.io/use-waypoint-namespace";
/// Label of a waypoint that says what it is for; unset means services.
const WAYPOINT_FOR: &str = "istio.io/waypoint-for";
/// Label of what is deployed for Gateways, with the controller.
const MANAGED: &str = "gateway.istio.io/managed";
/// The controller of waypoints: their own services and pods have no waypoint.
const WAYPOINT_CONTROLLER: &str = "istio.io-mesh-controller";
/// Protocol and port of the listener that takes tunnels.
const TUNNEL: (&str, u32) = ("HBONE", 15008);

/// What one waypoint handles.
#[derive(Clone, Default, Debug)]
pub struct Waypoint {
    /// Services, by creation time, then name and namespace.
    pub services: Vec<Arc<Service>>,
    /// Addresses of workloads that are reached through it directly, sorted.
    pub workloads: BTreeSet<Arc<str>>,
}

impl Waypoint {
    /// Finds a service that the waypoint handles.
    pub fn service(&self, hostname: &str) -> Option<&Arc<Service>> {
        self.services
            .iter()
            .find(|service| *service.hostname == *hostname)
    }

    /// Tells whether both handle the same.
    pub(crate) fn is_same(&self, other: &Self) -> bool {
        let same = |(a, b): (&Arc<Service>, &Arc<Service>)| Arc::ptr_eq(a, b) || a.same_content(b);
        self.workloads == other.workloads
            && self.services.len() == other.services.len()
            && self.services.iter().zip(&other.services).all(same)
    }
}

/// What all waypoints handle, by Gateway.
#[derive(Default, Debug)]
pub(crate) struct WaypointIndex(BTreeMap<NamespacedName, Waypoint>);

impl WaypointIndex {
    pub(crate) fn build(state: &MeshState, services: &ServiceIndex) -> Self {
        let mut index = Self::default();
        if !state.features.ambient {
            return index;
        }
        let table = &state.objects.kubernetes_gateways;
        if !table.values().any(|gateway| is_reached(gateway)) {
            return index;
        }
        for service in state.services.values() {
            let attributes = &service.attributes;
            let winner = services.get(&service.hostname, &attributes.namespace);
            if winner.is_none_or(|winner| winner.id() != service.id()) {
                continue;
            }
            let found = waypoint_of(state, &attributes.namespace, &attributes.labels);
            if let Some(gateway) = found.filter(|gateway| handles(gateway, Traffic::Services)) {
                let name = gateway.meta.namespaced_name();
                let of_gateway = index.0.entry(name).or_default();
                of_gateway.services.push(services.attached(service));
            }
        }
        for waypoint in index.0.values_mut() {
            let services = &mut waypoint.services;
            services.sort_by(|a, b| a.creation_order().cmp(&b.creation_order()));
        }
        let mut add = |namespace: &str,
                       labels: &Labels,
                       addresses: &mut dyn Iterator<Item = &str>| {
            let found = waypoint_of(state, namespace, labels);
            if let Some(gateway) = found.filter(|gateway| handles(gateway, Traffic::Workloads)) {
                let name = gateway.meta.namespaced_name();
                let of_gateway = index.0.entry(name).or_default();
                let addresses = addresses.filter(|address| !address.is_empty());
                of_gateway.workloads.extend(addresses.map(Arc::from));
            }
        };
        for pod in state.objects.pods.values() {
            let status = &pod.spec.status;
            if matches!(status.phase.as_str(), "Failed" | "Succeeded") {
                continue;
            }
            let addresses = status.pod_ips.iter().map(|ip| ip.ip.as_str());
            let mut addresses = addresses.chain([status.pod_ip.as_str()]);
            add(&pod.meta.namespace, &pod.meta.labels, &mut addresses);
        }
        for entry in state.objects.workload_entries.values() {
            let address = Some(entry.spec.address.as_str());
            let mut address = address
                .filter(|a| a.parse::<std::net::IpAddr>().is_ok())
                .into_iter();
            add(&entry.meta.namespace, &entry.meta.labels, &mut address);
        }
        index
    }
}

/// What a waypoint may be for.
#[derive(Clone, Copy)]
enum Traffic {
    Services,
    Workloads,
}

/// The waypoint that an object of a namespace asks for, itself or by its namespace, and may use.
fn waypoint_of<'a>(
    state: &'a MeshState,
    namespace: &str,
    labels: &Labels,
) -> Option<&'a Arc<Config<Gateway>>> {
    if labels
        .get(MANAGED)
        .is_some_and(|by| by == WAYPOINT_CONTROLLER)
    {
        return None;
    }
    let of_namespace = state
        .objects
        .namespaces
        .get(&NamespacedName::new("", namespace))
        .map(|namespace| &namespace.meta.labels);
    let stated = [Some(labels), of_namespace].into_iter().flatten();
    let mut stated =
        stated.filter(|labels| labels.get(USE_WAYPOINT).is_some_and(|w| !w.is_empty()));
    let stated = stated.next()?;
    let name = stated.get(USE_WAYPOINT).filter(|name| *name != "none")?;
    let place = stated.get(USE_NAMESPACE).filter(|place| !place.is_empty());
    let key = NamespacedName::new(place.map_or(namespace, String::as_str), name.as_str());
    let gateway = state.objects.kubernetes_gateways.get(&key)?;
    let may_attach = || admits(gateway, namespace, of_namespace.unwrap_or(&Labels::new()));
    (is_reached(gateway) && may_attach()).then_some(gateway)
}

/// Tells whether a Gateway has an address: one without is not in service yet.
fn is_reached(gateway: &Config<Gateway>) -> bool {
    !gateway.spec.status.addresses.is_empty()
}

fn handles(gateway: &Config<Gateway>, traffic: Traffic) -> bool {
    let purpose = gateway.meta.labels.get(WAYPOINT_FOR).map(String::as_str);
    match purpose.unwrap_or("service") {
        "service" => matches!(traffic, Traffic::Services),
        "workload" => matches!(traffic, Traffic::Workloads),
        "all" => true,
        _ => false,
    }
}

/// Tells whether a waypoint takes traffic for objects of a namespace: as its listener admits routes.
fn admits(gateway: &Config<Gateway>, namespace: &str, labels: &Labels) -> bool {
    if *gateway.meta.namespace == *namespace {
        return true;
    }
    let mut listeners = gateway.spec.listeners.iter();
    let listener = listeners.find(|l| (l.protocol.as_str(), l.port) == TUNNEL);
    let allowed = listener.and_then(|l| l.allowed_routes.as_ref()?.namespaces.as_ref());
    match allowed.and_then(|namespaces| namespaces.from) {
        Some(FromNamespaces::All) => true,
        Some(FromNamespaces::Selector) => {
            let selector = allowed.and_then(|namespaces| namespaces.selector.as_ref());
            selector.is_some_and(|selector| selector.matches(labels))
        }
        _ => false,
    }
}

impl PushContext {
    /// Collects what the waypoints handle whose proxies serve `targets`.
    pub(crate) fn waypoint(&self, namespace: &str, targets: &[ServiceTarget]) -> Waypoint {
        let index = self
            .waypoints
            .get_or_init(|| WaypointIndex::build(&self.state, &self.services));
        let leads_here = |gateway: &Config<Gateway>| {
            let addresses = gateway.spec.status.addresses.iter();
            let mut addresses = addresses.filter_map(|address| address.value.as_deref());
            addresses.any(|address| targets.iter().any(|target| is_at(&target.service, address)))
        };
        let gateways = of_namespace(&self.state.objects.kubernetes_gateways, namespace);
        let mut found = Waypoint::default();
        for gateway in gateways.filter(|gateway| leads_here(gateway)) {
            if let Some(waypoint) = index.0.get(&gateway.meta.namespaced_name()) {
                found.services.extend(waypoint.services.iter().cloned());
                found.workloads.extend(waypoint.workloads.iter().cloned());
            }
        }
        found
    }
}

/// Tells whether a service is reached at an address: its host name, or one of its addresses.
fn is_at(service: &Service, address: &str) -> bool {
    let mut addresses = service.cluster_vips.values().flatten();
    *service.hostname == *address || addresses.any(|own| **own == *address)
}

#[cfg(test)]
mod tests;

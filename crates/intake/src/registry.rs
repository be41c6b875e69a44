//! The service registry: tables of objects to services and endpoints.
//!
//! Nothing here handles events. A changed object marks what depends on it as dirty; dirty keys are
//! then derived anew by pure functions of the tables, each key once, services independently of each
//! other. So the result depends on the tables alone, not on the order or number of events.
//!
//! Derivation runs in layers, each of which may mark keys of the next: settings, workloads (pods and
//! WorkloadEntries), services, endpoints, network gateways. An address whose pod is unknown is
//! *parked*: left out, and found again because its slice is filed under the pod's name.

mod derive;
mod entries;
mod filing;
mod foreign;
mod kubernetes;
mod labels;
mod networks;
mod publish;
mod settings;
mod slices;
mod vip;
mod workload;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::OrdMap;
use model::{
    ConfigKey, Kind, Labels, MeshState, NamespacedName, Object, PushRequest, Reason, Service,
    ServiceId, ServiceKey,
};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

pub(crate) use self::{foreign::Told, publish::note_endpoints};
use self::{
    labels::{LabelIndex, SelectorIndex},
    settings::Settings,
    slices::Parked,
    vip::LegacyAddresses,
    workload::Workload,
};
use crate::few::Few;

/// Fewest keys for which deriving in parallel pays.
const PARALLEL_FROM: usize = 64;

/// One object before and after.
#[derive(Clone, Debug)]
pub(crate) struct Update {
    pub(crate) key: ConfigKey,
    pub(crate) old: Option<Object>,
    pub(crate) new: Option<Object>,
}

/// How much was derived; for tests and metrics.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Derivations {
    /// Services of Kubernetes Services.
    pub services: u64,
    /// Endpoint lists of Kubernetes services.
    pub endpoints: u64,
    /// Services of ServiceEntries.
    pub entries: u64,
    /// Endpoint lists of hosts of ServiceEntries.
    pub hosts: u64,
}

/// What has to be derived anew.
#[derive(Default, Debug)]
struct Dirty {
    pods: Keys<NamespacedName>,
    workload_entries: Keys<NamespacedName>,
    services: Keys<NamespacedName>,
    endpoints: Keys<NamespacedName>,
    entries: Keys<NamespacedName>,
    hosts: Keys<ServiceKey>,
    gateways: bool,
}

/// A set that is filled, then read once in order.
#[derive(Debug)]
struct Keys<T>(Vec<T>);

impl<T> Default for Keys<T> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<T: Ord + Send> Keys<T> {
    fn insert(&mut self, key: T) {
        self.0.push(key);
    }

    fn extend(&mut self, keys: impl IntoIterator<Item = T>) {
        self.0.extend(keys);
    }

    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all keys out: sorted, each once.
    fn take(&mut self) -> Vec<T> {
        let mut keys = std::mem::take(&mut self.0);
        if keys.len() < PARALLEL_FROM {
            keys.sort_unstable();
        } else {
            keys.par_sort_unstable();
        }
        keys.dedup();
        keys
    }
}

/// What is derived of one ServiceEntry.
#[derive(Clone, Default, Debug)]
struct Entry {
    services: Vec<Arc<Service>>,
    /// It selects workloads, by the selector of its services.
    selects: bool,
}

impl Entry {
    /// The selector of workloads; `None` also for an entry without services.
    fn selector(&self) -> Option<&Labels> {
        self.services
            .first()
            .filter(|_| self.selects)
            .map(|s| &s.attributes.selector)
    }

    /// The keys of its services, sorted, each once.
    fn hosts(&self) -> Vec<ServiceKey> {
        let mut hosts: Vec<ServiceKey> = self.services.iter().map(|s| s.key()).collect();
        hosts.sort_unstable();
        hosts.dedup();
        hosts
    }
}

/// Indexes over the tables, and the derived values that are not part of the published state.
#[derive(Debug)]
pub(crate) struct Registry {
    settings: Settings,
    /// Workloads of pods that have neither failed nor finished.
    pods: FxHashMap<NamespacedName, Arc<Workload>>,
    /// Ready pods by label.
    pod_labels: LabelIndex,
    /// Pods by the addresses they claim.
    claims: FxHashMap<Arc<str>, Few<NamespacedName>>,
    pods_of_node: FxHashMap<String, Few<NamespacedName>>,
    workload_entries: FxHashMap<NamespacedName, Arc<Workload>>,
    workload_entry_labels: LabelIndex,
    /// Slices by owning service.
    slices: FxHashMap<NamespacedName, Few<Arc<str>>>,
    /// Slices by the pods they name.
    slices_of_pod: FxHashMap<NamespacedName, Few<NamespacedName>>,
    /// Slices by the (namespace, address) pairs that they list without a pod.
    slices_of_address: FxHashMap<NamespacedName, Few<NamespacedName>>,
    /// Selectors of Kubernetes Services, for WorkloadEntries.
    service_selectors: SelectorIndex,
    /// Selectors of ServiceEntries.
    entry_selectors: SelectorIndex,
    /// What is derived of each ServiceEntry.
    entries: FxHashMap<NamespacedName, Entry>,
    /// ServiceEntries by host.
    entries_of_host: FxHashMap<ServiceKey, Few<Arc<str>>>,
    /// Instances of each host, as far as they are published by address.
    addresses_of_host: FxHashMap<ServiceKey, Few<Arc<str>>>,
    legacy_addresses: LegacyAddresses,
    /// Addresses of the host names of network gateways.
    gateway_addresses: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Services whose addresses are those of nodes.
    node_port_services: BTreeSet<NamespacedName>,
    parked: BTreeMap<NamespacedName, Vec<Parked>>,
    /// Workloads that have changed, for whoever asked to be told.
    told: Option<Vec<Told>>,
    derivations: Derivations,
}

impl Registry {
    /// Makes the registry of a state without objects.
    pub(crate) fn new(state: &MeshState) -> Self {
        Self {
            settings: Settings::of(state),
            pods: FxHashMap::default(),
            pod_labels: LabelIndex::default(),
            claims: FxHashMap::default(),
            pods_of_node: FxHashMap::default(),
            workload_entries: FxHashMap::default(),
            workload_entry_labels: LabelIndex::default(),
            slices: FxHashMap::default(),
            slices_of_pod: FxHashMap::default(),
            slices_of_address: FxHashMap::default(),
            service_selectors: SelectorIndex::default(),
            entry_selectors: SelectorIndex::default(),
            entries: FxHashMap::default(),
            entries_of_host: FxHashMap::default(),
            addresses_of_host: FxHashMap::default(),
            legacy_addresses: LegacyAddresses::default(),
            gateway_addresses: BTreeMap::new(),
            node_port_services: BTreeSet::new(),
            parked: BTreeMap::new(),
            told: None,
            derivations: Derivations::default(),
        }
    }

    /// Tells whether nothing is kept of any object.
    #[cfg(test)]
    fn is_empty(&self) -> bool {
        self.pods.is_empty()
            && self.pod_labels.is_empty()
            && self.claims.is_empty()
            && self.pods_of_node.is_empty()
            && self.workload_entries.is_empty()
            && self.workload_entry_labels.is_empty()
            && self.slices.is_empty()
            && self.slices_of_pod.is_empty()
            && self.slices_of_address.is_empty()
            && self.service_selectors.is_empty()
            && self.entry_selectors.is_empty()
            && self.entries.is_empty()
            && self.entries_of_host.is_empty()
            && self.addresses_of_host.is_empty()
            && self.node_port_services.is_empty()
            && self.gateway_addresses.is_empty()
            && self.parked.is_empty()
    }

    /// Number of addresses that wait for their pods.
    pub(crate) fn parked(&self) -> usize {
        self.parked.values().map(Vec::len).sum()
    }

    /// How much was derived so far.
    pub(crate) fn derivations(&self) -> Derivations {
        self.derivations
    }

    /// Takes over the addresses of a gateway's host name; tells whether they are news.
    pub(crate) fn set_addresses(&mut self, name: Arc<str>, addresses: Vec<Arc<str>>) -> bool {
        let known = self.gateway_addresses.entry(name).or_default();
        let differ = *known != addresses;
        *known = addresses;
        differ
    }

    /// Brings the derived part of `state` up to date with its objects, of which `updates` have changed,
    /// and adds to `request` what that changed. `mesh_changed` says that the mesh configuration or
    /// the networks may have changed, too, `gateways_changed` that gateways have to be collected anew.
    /// `others` are the registries of other clusters, and `told` is what has changed of their workloads.
    pub(crate) fn apply(
        &mut self,
        state: &mut MeshState,
        updates: &[Update],
        mesh_changed: bool,
        gateways_changed: bool,
        (others, told): (&mut [&mut Self], &[Told]),
        request: &mut PushRequest,
    ) {
        let mut dirty = Dirty {
            gateways: gateways_changed,
            ..Dirty::default()
        };
        for workload in told {
            self.mark_told(workload, &mut dirty);
        }
        let settings_may_change = mesh_changed
            || updates.iter().any(|u| {
                u.key.kind == Kind::Namespace && u.key.name == state.identity.system_namespace
            });
        for update in updates {
            self.mark(state, update, &mut dirty, request);
        }
        if settings_may_change {
            let settings = Settings::of(state);
            if settings != self.settings {
                self.settings = settings;
                self.mark_everything(state, &mut dirty);
            }
        }
        self.derive_pods(state, &mut dirty, request);
        self.derive_workload_entries(state, &mut dirty);
        self.derive_services(state, &mut dirty, request);
        self.derive_entries(state, &mut dirty, request);
        self.derive_endpoints(state, others, &mut dirty, request);
        if dirty.gateways {
            self.derive_gateways(state, request);
        }
    }

    fn mark_everything(&self, state: &MeshState, dirty: &mut Dirty) {
        dirty.pods.extend(state.objects.pods.keys().cloned());
        dirty
            .workload_entries
            .extend(state.objects.workload_entries.keys().cloned());
        dirty
            .services
            .extend(state.objects.services.keys().cloned());
        dirty.endpoints.extend(self.slices.keys().cloned());
        dirty
            .entries
            .extend(state.objects.service_entries.keys().cloned());
        dirty.hosts.extend(self.entries_of_host.keys().cloned());
        dirty.gateways = true;
    }
}

/// Applies a function to all keys, in parallel where that pays; results keep the order of keys.
fn map_all<K: Send, T: Send>(keys: Vec<K>, derive: impl Fn(K) -> T + Sync + Send) -> Vec<T> {
    if keys.len() < PARALLEL_FROM {
        keys.into_iter().map(derive).collect()
    } else {
        keys.into_par_iter().map(derive).collect()
    }
}

/// Names a changed object in a request, unless that says "everything" already.
pub(crate) fn note(request: &mut PushRequest, key: ConfigKey, reason: Reason) {
    if !request.forced && request.changed.insert(key) {
        count(request, reason);
    }
}

pub(crate) fn count(request: &mut PushRequest, reason: Reason) {
    *request.reasons.entry(reason).or_default() += 1;
}

/// Files workloads by the label that leads `selector`.
fn prepare(
    index: &mut LabelIndex,
    workloads: &FxHashMap<NamespacedName, Arc<Workload>>,
    namespace: &Arc<str>,
    selector: &Labels,
) {
    index.prepare(namespace, selector, |name| {
        let key = NamespacedName {
            namespace: namespace.clone(),
            name: name.into(),
        };
        workloads.get(&key).map(|w| &*w.labels)
    });
}

/// Compares services as far as anything could depend on them, their order included.
pub(crate) fn same_service(old: Option<&Arc<Service>>, new: Option<&Arc<Service>>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            old.same_content(new) && old.created == new.created && old.id() == new.id()
        }
        (None, None) => true,
        (Some(_), None) | (None, Some(_)) => false,
    }
}

/// All services of a key, by id.
fn services_of<'a>(
    state: &'a MeshState,
    key: &'a ServiceKey,
) -> impl Iterator<Item = &'a Arc<Service>> {
    services_of_key(&state.services, key)
}

/// All services of a key in a table, by id.
pub(crate) fn services_of_key<'a>(
    services: &'a OrdMap<ServiceId, Arc<Service>>,
    key: &'a ServiceKey,
) -> impl Iterator<Item = &'a Arc<Service>> {
    let first = ServiceId {
        key: key.clone(),
        object: "".into(),
        address: "".into(),
    };
    services
        .range(first..)
        .take_while(move |(id, _)| id.key == *key)
        .map(|(_, service)| service)
}

/// The Kubernetes service of a key.
fn kubernetes_service<'a>(state: &'a MeshState, key: &'a ServiceKey) -> Option<&'a Arc<Service>> {
    services_of(state, key).find(|s| s.is_kubernetes())
}

fn replace_services(state: &mut MeshState, old: &[Arc<Service>], new: &[Arc<Service>]) {
    for service in old {
        state.services.remove(&service.id());
    }
    for service in new {
        state.services.insert(service.id(), service.clone());
    }
}

#[cfg(test)]
mod laws;
#[cfg(test)]
mod networks_tests;
#[cfg(test)]
mod scenarios;
#[cfg(test)]
mod tests;

//! The service registry: tables of objects to services and endpoints.
//!
//! Nothing here handles events. A changed object marks what depends on it as dirty; dirty keys are
//! then derived anew by pure functions of the tables, each key once, services independently of each
//! other. So the result depends on the tables alone, not on the order or number of events.
//!
//! Derivation runs in layers, each of which may mark keys of the next: settings, workloads (pods and
//! WorkloadEntries), services, endpoints, network gateways. An address whose pod is unknown is
//! *parked*: left out, and found again because its slice is filed under the pod's name.

mod entries;
mod kubernetes;
mod labels;
mod networks;
mod settings;
mod slices;
mod vip;
mod workload;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Config, ConfigKey, Endpoint, InstanceKey, Kind, Labels, MeshState, Meta, NamespacedName,
    Object, PushRequest, Reason, Resolution, Service, ServiceEndpoints, ServiceId, ServiceInstance,
    ServiceKey,
    api::kubernetes::{EndpointSlice, Pod},
    selects,
    service::{Registry as ServiceRegistry, ShardKey},
};
use rayon::prelude::*;
use rustc_hash::FxHashMap;

use self::{
    labels::{LabelIndex, SelectorIndex},
    settings::{NETWORK_LABEL, Settings},
    slices::Parked,
    vip::LegacyAddresses,
    workload::Workload,
};

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
    pods: BTreeSet<NamespacedName>,
    workload_entries: BTreeSet<NamespacedName>,
    services: BTreeSet<NamespacedName>,
    endpoints: BTreeSet<NamespacedName>,
    entries: BTreeSet<NamespacedName>,
    hosts: BTreeSet<ServiceKey>,
    gateways: bool,
}

/// What is derived of one ServiceEntry.
#[derive(Clone, Default, Debug)]
struct Entry {
    services: Vec<Arc<Service>>,
    selector: Option<Labels>,
}

/// Indexes over the tables, and the derived values that are not part of the published state.
#[derive(Debug)]
pub(crate) struct Registry {
    settings: Settings,
    /// Workloads of pods that have not failed.
    pods: BTreeMap<NamespacedName, Arc<Workload>>,
    /// Ready pods by label.
    pod_labels: LabelIndex,
    /// Pods by the addresses they claim.
    claims: FxHashMap<Arc<str>, BTreeSet<NamespacedName>>,
    pods_of_node: FxHashMap<String, BTreeSet<NamespacedName>>,
    workload_entries: BTreeMap<NamespacedName, Arc<Workload>>,
    workload_entry_labels: LabelIndex,
    /// Slices by owning service.
    slices: FxHashMap<NamespacedName, BTreeSet<Arc<str>>>,
    /// Slices by the pods they name.
    slices_of_pod: FxHashMap<NamespacedName, BTreeSet<NamespacedName>>,
    /// Slices by the (namespace, address) pairs that they list without a pod.
    slices_of_address: FxHashMap<NamespacedName, BTreeSet<NamespacedName>>,
    /// Selectors of Kubernetes Services, for WorkloadEntries.
    service_selectors: SelectorIndex,
    /// Selectors of ServiceEntries.
    entry_selectors: SelectorIndex,
    /// What is derived of each ServiceEntry.
    entries: BTreeMap<NamespacedName, Entry>,
    /// ServiceEntries by host.
    entries_of_host: FxHashMap<ServiceKey, BTreeSet<Arc<str>>>,
    /// Instances of each host, as far as they are published by address.
    addresses_of_host: FxHashMap<ServiceKey, BTreeSet<Arc<str>>>,
    legacy_addresses: LegacyAddresses,
    /// Services whose addresses are those of nodes.
    node_port_services: BTreeSet<NamespacedName>,
    parked: BTreeMap<NamespacedName, Vec<Parked>>,
    derivations: Derivations,
}

impl Registry {
    /// Makes the registry of a state without objects.
    pub(crate) fn new(state: &MeshState) -> Self {
        Self {
            settings: Settings::of(state),
            pods: BTreeMap::new(),
            pod_labels: LabelIndex::default(),
            claims: FxHashMap::default(),
            pods_of_node: FxHashMap::default(),
            workload_entries: BTreeMap::new(),
            workload_entry_labels: LabelIndex::default(),
            slices: FxHashMap::default(),
            slices_of_pod: FxHashMap::default(),
            slices_of_address: FxHashMap::default(),
            service_selectors: SelectorIndex::default(),
            entry_selectors: SelectorIndex::default(),
            entries: BTreeMap::new(),
            entries_of_host: FxHashMap::default(),
            addresses_of_host: FxHashMap::default(),
            legacy_addresses: LegacyAddresses::default(),
            node_port_services: BTreeSet::new(),
            parked: BTreeMap::new(),
            derivations: Derivations::default(),
        }
    }

    /// Number of addresses that wait for their pods.
    pub(crate) fn parked(&self) -> usize {
        self.parked.values().map(Vec::len).sum()
    }

    /// How much was derived so far.
    pub(crate) fn derivations(&self) -> Derivations {
        self.derivations
    }

    /// Brings the derived part of `state` up to date with its objects, of which `updates` have changed,
    /// and adds to `request` what that changed. `mesh_changed` says that the mesh configuration or
    /// the networks may have changed, too.
    pub(crate) fn apply(
        &mut self,
        state: &mut MeshState,
        updates: &[Update],
        mesh_changed: bool,
        request: &mut PushRequest,
    ) {
        let mut dirty = Dirty {
            gateways: mesh_changed,
            ..Dirty::default()
        };
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
        self.derive_endpoints(state, &dirty, request);
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

    /// Files a changed object and marks what is derived from it.
    fn mark(
        &mut self,
        state: &MeshState,
        update: &Update,
        dirty: &mut Dirty,
        request: &mut PushRequest,
    ) {
        let name = NamespacedName {
            namespace: update.key.namespace.clone(),
            name: update.key.name.clone(),
        };
        let old = update.old.as_ref();
        let new = update.new.as_ref();
        match update.key.kind {
            Kind::Namespace => {
                let (old, new) = (old.map(Object::meta), new.map(Object::meta));
                if kubernetes::distribution_differs(old, new) {
                    let namespace = &update.key.name;
                    dirty
                        .services
                        .extend(names_in(&state.objects.services, namespace));
                    dirty
                        .entries
                        .extend(names_in(&state.objects.service_entries, namespace));
                }
                let visible =
                    |m: Option<&Meta>| m.map(|m| (m.labels.clone(), m.annotations.clone()));
                if visible(old) != visible(new) {
                    note(request, update.key.clone(), Reason::Config);
                }
            }
            Kind::Node => {
                dirty.pods.extend(
                    self.pods_of_node
                        .get(&*name.name)
                        .into_iter()
                        .flatten()
                        .cloned(),
                );
                dirty
                    .services
                    .extend(self.node_port_services.iter().cloned());
            }
            Kind::Pod => {
                dirty.pods.insert(name.clone());
                let (old, new) = (pod(old), pod(new));
                self.file_node(&name, old, new);
                if pod_differs(old, new) {
                    note(request, update.key.clone(), Reason::Proxy);
                }
            }
            Kind::Service => {
                let (old, new) = (service(old), service(new));
                self.file_service(&name, old, new);
                if let (Some(old), Some(new)) = (old, new)
                    && kubernetes::target_ports_differ(old, new)
                {
                    note(request, update.key.clone(), Reason::Service);
                }
                let in_network = |s: Option<&Config<model::api::kubernetes::Service>>| {
                    s.is_some_and(|s| s.meta.labels.contains_key(NETWORK_LABEL))
                };
                dirty.gateways |= in_network(old) || in_network(new);
                dirty.services.insert(name);
            }
            Kind::EndpointSlice => self.file_slice(&name, slice(old), slice(new), dirty),
            Kind::ServiceEntry => {
                dirty.entries.insert(name);
            }
            Kind::WorkloadEntry => {
                dirty.workload_entries.insert(name);
            }
            Kind::KubernetesGateway => {
                let in_network = |o: Option<&Object>| {
                    o.is_some_and(|o| o.meta().labels.contains_key(NETWORK_LABEL))
                };
                dirty.gateways |= in_network(old) || in_network(new);
            }
            _ => {}
        }
    }

    fn file_node(
        &mut self,
        name: &NamespacedName,
        old: Option<&Config<Pod>>,
        new: Option<&Config<Pod>>,
    ) {
        let node = |p: Option<&Config<Pod>>| {
            p.map(|p| p.spec.spec.node_name.clone())
                .filter(|n| !n.is_empty())
        };
        let (old, new) = (node(old), node(new));
        if old == new {
            return;
        }
        if let Some(old) = old {
            unfile(&mut self.pods_of_node, &old, name);
        }
        if let Some(new) = new {
            self.pods_of_node
                .entry(new)
                .or_default()
                .insert(name.clone());
        }
    }

    fn file_service(
        &mut self,
        name: &NamespacedName,
        old: Option<&Config<model::api::kubernetes::Service>>,
        new: Option<&Config<model::api::kubernetes::Service>>,
    ) {
        let selector = |s: Option<&Config<model::api::kubernetes::Service>>| {
            s.map(|s| s.spec.spec.selector.clone())
                .filter(|s| !s.is_empty())
        };
        let (old_selector, new_selector) = (selector(old), selector(new));
        if old_selector != new_selector {
            if let Some(old) = old_selector {
                self.service_selectors
                    .remove(&name.namespace, &name.name, &old);
            }
            if let Some(new) = new_selector {
                self.service_selectors
                    .insert(&name.namespace, &name.name, &new);
            }
        }
        let at_nodes =
            new.is_some_and(|s| kubernetes::node_selector(&s.meta.annotations).is_some());
        if at_nodes {
            self.node_port_services.insert(name.clone());
        } else {
            self.node_port_services.remove(name);
        }
    }

    fn file_slice(
        &mut self,
        name: &NamespacedName,
        old: Option<&Config<EndpointSlice>>,
        new: Option<&Config<EndpointSlice>>,
        dirty: &mut Dirty,
    ) {
        let old_owner = old.and_then(kubernetes::slice_owner);
        let new_owner = new.and_then(kubernetes::slice_owner);
        if old_owner != new_owner {
            if let Some(owner) = &old_owner {
                unfile(&mut self.slices, owner, &name.name);
            }
            if let Some(owner) = &new_owner {
                self.slices
                    .entry(owner.clone())
                    .or_default()
                    .insert(name.name.clone());
            }
        }
        let (old_pods, old_addresses) = listed(old.filter(|_| old_owner.is_some()));
        let (new_pods, new_addresses) = listed(new.filter(|_| new_owner.is_some()));
        refile(&mut self.slices_of_pod, &old_pods, &new_pods, name);
        refile(
            &mut self.slices_of_address,
            &old_addresses,
            &new_addresses,
            name,
        );
        dirty.endpoints.extend(old_owner);
        dirty.endpoints.extend(new_owner);
    }

    fn derive_pods(&mut self, state: &MeshState, dirty: &mut Dirty, request: &mut PushRequest) {
        for name in std::mem::take(&mut dirty.pods) {
            let new = state.objects.pods.get(&name).and_then(|pod| {
                let node = NamespacedName::new("", pod.spec.spec.node_name.as_str());
                let node = state.objects.nodes.get(&node).map(|n| &**n);
                Workload::of_pod(pod, node, &self.settings).map(Arc::new)
            });
            let old = match &new {
                Some(new) => self.pods.insert(name.clone(), new.clone()),
                None => self.pods.remove(&name),
            };
            if old == new {
                continue;
            }
            if state.objects.pods.contains_key(&name) {
                let key = ConfigKey::new(Kind::Pod, name.namespace.clone(), name.name.clone());
                note(request, key, Reason::Proxy);
            }
            let none = Vec::new();
            let old_addresses = old.as_ref().map_or(&none, |w| &w.addresses);
            let new_addresses = new.as_ref().map_or(&none, |w| &w.addresses);
            for address in old_addresses.iter().filter(|a| !new_addresses.contains(a)) {
                unfile(&mut self.claims, address, &name);
            }
            for address in new_addresses.iter().filter(|a| !old_addresses.contains(a)) {
                self.claims
                    .entry(address.clone())
                    .or_default()
                    .insert(name.clone());
            }
            // Slices that name this pod, that list its addresses, or that name a pod which now has
            // lost or regained one of them.
            self.mark_slices(state, self.slices_of_pod.get(&name), dirty);
            for address in old_addresses.iter().chain(new_addresses) {
                let at = NamespacedName {
                    namespace: name.namespace.clone(),
                    name: address.clone(),
                };
                self.mark_slices(state, self.slices_of_address.get(&at), dirty);
                let rivals = self
                    .claims
                    .get(address)
                    .into_iter()
                    .flatten()
                    .filter(|p| **p != name);
                for rival in rivals {
                    self.mark_slices(state, self.slices_of_pod.get(rival), dirty);
                }
            }
            let ready = |w: &Option<Arc<Workload>>| {
                w.as_ref()
                    .filter(|w| w.selectable)
                    .map(|w| w.labels.clone())
            };
            let (old_labels, new_labels) = (ready(&old), ready(&new));
            self.pod_labels.replace(
                &name.namespace,
                &name.name,
                old_labels.as_deref(),
                new_labels.as_deref(),
            );
            if self.settings.features.service_entry_select_pods {
                self.mark_selecting_hosts(
                    &name,
                    old_labels.as_deref(),
                    new_labels.as_deref(),
                    dirty,
                );
            }
        }
    }

    fn mark_slices(
        &self,
        state: &MeshState,
        slices: Option<&BTreeSet<NamespacedName>>,
        dirty: &mut Dirty,
    ) {
        for name in slices.into_iter().flatten() {
            let slice = state.objects.endpoint_slices.get(name);
            dirty
                .endpoints
                .extend(slice.and_then(|s| kubernetes::slice_owner(s)));
        }
    }

    /// Marks the hosts of ServiceEntries that select a workload before or after.
    fn mark_selecting_hosts(
        &self,
        workload: &NamespacedName,
        old: Option<&Labels>,
        new: Option<&Labels>,
        dirty: &mut Dirty,
    ) {
        let namespace = &workload.namespace;
        for labels in [old, new].into_iter().flatten() {
            for entry in self.entry_selectors.candidates(namespace, labels) {
                let name = NamespacedName {
                    namespace: namespace.clone(),
                    name: entry.clone(),
                };
                let Some(entry) = self.entries.get(&name) else {
                    continue;
                };
                if entry.selector.as_ref().is_some_and(|s| selects(s, labels)) {
                    dirty.hosts.extend(entry.services.iter().map(|s| s.key()));
                }
            }
        }
    }

    fn derive_workload_entries(&mut self, state: &MeshState, dirty: &mut Dirty) {
        let names: Vec<NamespacedName> = std::mem::take(&mut dirty.workload_entries)
            .into_iter()
            .collect();
        let settings = &self.settings;
        let derived = map_all(names, |name| {
            let entry = state.objects.workload_entries.get(&name);
            let workload = entry.map(|e| Arc::new(Workload::of_entry(e, settings)));
            (name, workload)
        });
        for (name, new) in derived {
            let old = match &new {
                Some(new) => self.workload_entries.insert(name.clone(), new.clone()),
                None => self.workload_entries.remove(&name),
            };
            if old == new {
                continue;
            }
            let selectable = |w: &Option<Arc<Workload>>| {
                w.as_ref()
                    .filter(|w| w.selectable)
                    .map(|w| w.labels.clone())
            };
            let (old, new) = (selectable(&old), selectable(&new));
            let NamespacedName {
                namespace,
                name: own,
            } = &name;
            self.workload_entry_labels
                .replace(namespace, own, old.as_deref(), new.as_deref());
            for labels in [&old, &new].into_iter().flatten() {
                for service in self.service_selectors.candidates(namespace, labels) {
                    let service = NamespacedName {
                        namespace: namespace.clone(),
                        name: service.clone(),
                    };
                    let config = state.objects.services.get(&service);
                    if config.is_some_and(|c| selects(&c.spec.spec.selector, labels)) {
                        dirty.endpoints.insert(service);
                    }
                }
            }
            self.mark_selecting_hosts(&name, old.as_deref(), new.as_deref(), dirty);
        }
    }

    fn derive_services(
        &mut self,
        state: &mut MeshState,
        dirty: &mut Dirty,
        request: &mut PushRequest,
    ) {
        let names: Vec<NamespacedName> = std::mem::take(&mut dirty.services).into_iter().collect();
        self.derivations.services += names.len() as u64;
        let (settings, objects) = (&self.settings, &state.objects);
        let derived = map_all(names, |name| {
            let service = objects.services.get(&name).map(|config| {
                let namespace = objects
                    .namespaces
                    .get(&NamespacedName::new("", name.namespace.clone()));
                kubernetes::derive(config, namespace.map(|n| &n.meta), &objects.nodes, settings)
            });
            (name, service)
        });
        for (name, new) in derived {
            let key = self.settings.service_key(&name.namespace, &name.name);
            let old = kubernetes_service(state, &key).cloned();
            dirty.endpoints.insert(name.clone());
            if same_service(old.as_ref(), new.as_ref()) {
                continue;
            }
            if networks::concerns(old.as_deref(), new.as_deref(), state) {
                dirty.gateways = true;
            }
            replace_services(state, old.as_slice_ref(), new.as_slice_ref());
            let source = ConfigKey::new(Kind::Service, name.namespace.clone(), name.name.clone());
            note(request, source, Reason::Service);
        }
    }

    fn derive_entries(
        &mut self,
        state: &mut MeshState,
        dirty: &mut Dirty,
        request: &mut PushRequest,
    ) {
        if dirty.entries.is_empty() {
            return;
        }
        self.derive_legacy_addresses(state, dirty);
        let names: Vec<NamespacedName> = std::mem::take(&mut dirty.entries).into_iter().collect();
        self.derivations.entries += names.len() as u64;
        let (settings, objects, legacy) = (&self.settings, &state.objects, &self.legacy_addresses);
        let derived = map_all(names, |name| {
            let entry = objects.service_entries.get(&name).map(|entry| {
                let namespace = objects
                    .namespaces
                    .get(&NamespacedName::new("", name.namespace.clone()));
                Entry {
                    services: entries::services(
                        entry,
                        namespace.map(|n| &n.meta),
                        legacy,
                        settings,
                    ),
                    selector: entry
                        .spec
                        .workload_selector
                        .as_ref()
                        .map(|s| s.labels.clone()),
                }
            });
            (name, entry)
        });
        for (name, entry) in derived {
            let new = entry.clone().unwrap_or_default();
            let old = match entry {
                Some(entry) => self.entries.insert(name.clone(), entry),
                None => self.entries.remove(&name),
            };
            let old = old.unwrap_or_default();
            if old.selector != new.selector {
                if let Some(selector) = &old.selector {
                    self.entry_selectors
                        .remove(&name.namespace, &name.name, selector);
                }
                if let Some(selector) = &new.selector {
                    self.entry_selectors
                        .insert(&name.namespace, &name.name, selector);
                }
            }
            let old_hosts: BTreeSet<ServiceKey> = old.services.iter().map(|s| s.key()).collect();
            let new_hosts: BTreeSet<ServiceKey> = new.services.iter().map(|s| s.key()).collect();
            refile(
                &mut self.entries_of_host,
                &old_hosts,
                &new_hosts,
                &name.name,
            );
            dirty.hosts.extend(old_hosts);
            dirty.hosts.extend(new_hosts);
            let same = old.services.len() == new.services.len()
                && old
                    .services
                    .iter()
                    .zip(&new.services)
                    .all(|(o, n)| same_service(Some(o), Some(n)));
            if !same {
                replace_services(state, &old.services, &new.services);
                let NamespacedName { namespace, name } = name;
                note(
                    request,
                    ConfigKey {
                        kind: Kind::ServiceEntry,
                        namespace,
                        name,
                    },
                    Reason::Service,
                );
            }
        }
    }

    /// Hashes addresses for hosts anew, when that is how they get them.
    fn derive_legacy_addresses(&mut self, state: &MeshState, dirty: &mut Dirty) {
        let keys = if self.settings.features.ip_autoallocate {
            BTreeSet::new()
        } else {
            let hosts = state
                .objects
                .service_entries
                .values()
                .flat_map(|e| e.spec.hosts.iter().map(move |h| (e, h)));
            hosts
                .filter(|(entry, host)| entries::is_legacy_allocated(entry, host, &self.settings))
                .map(|(entry, host)| ServiceKey::new(entry.meta.namespace.clone(), host.as_str()))
                .collect()
        };
        let addresses = LegacyAddresses::allocate(&keys);
        if addresses != self.legacy_addresses {
            self.legacy_addresses = addresses;
            dirty
                .entries
                .extend(state.objects.service_entries.keys().cloned());
        }
    }

    fn derive_endpoints(
        &mut self,
        state: &mut MeshState,
        dirty: &Dirty,
        request: &mut PushRequest,
    ) {
        self.prepare_labels(state, dirty);
        let mut shards: BTreeMap<ServiceKey, Vec<(ShardKey, Vec<Arc<Endpoint>>)>> = BTreeMap::new();
        self.derive_kubernetes_endpoints(state, dirty, &mut shards);
        self.derive_host_endpoints(state, dirty, &mut shards);
        for (key, new) in shards {
            let old = state.endpoints.get(&key).cloned();
            let kept = old.iter().flat_map(|o| o.shards.iter());
            let kept: Vec<_> = kept
                .filter(|(shard, _)| new.iter().all(|(k, _)| k != *shard))
                .map(|(shard, endpoints)| (shard.clone(), endpoints.to_vec()))
                .collect();
            let collected = ServiceEndpoints::collect(kept.into_iter().chain(new));
            if old == collected {
                continue;
            }
            let accounts = |e: &Option<Arc<ServiceEndpoints>>| {
                e.as_ref()
                    .map(|e| e.service_accounts.clone())
                    .unwrap_or_default()
            };
            let accounts_differ = accounts(&old) != accounts(&collected);
            if old.is_some_and(|old| old.lost_any(collected.as_deref())) {
                request.removals.insert(key.clone());
            }
            match collected {
                Some(new) => state.endpoints.insert(key.clone(), new),
                None => state.endpoints.remove(&key),
            };
            count(request, Reason::Endpoint);
            for service in services_of(state, &key) {
                // Endpoints of these are part of clusters and listeners; so are identities.
                let (in_resources, reason) = match service.resolution {
                    Resolution::ClientSideLb | Resolution::Alias | Resolution::DynamicDns => {
                        (false, Reason::Service)
                    }
                    Resolution::Passthrough => (service.is_kubernetes(), Reason::HeadlessEndpoint),
                    Resolution::DnsLb | Resolution::DnsRoundRobinLb => (true, Reason::Service),
                };
                if in_resources || accounts_differ {
                    note(request, service.source.clone(), reason);
                }
            }
            request.endpoints.insert(key);
        }
    }

    /// Files workloads by the labels that lead the selectors about to be used.
    fn prepare_labels(&mut self, state: &MeshState, dirty: &Dirty) {
        let Self {
            pods,
            pod_labels,
            workload_entries,
            workload_entry_labels,
            ..
        } = self;
        for name in &dirty.endpoints {
            if let Some(service) = state.objects.services.get(name) {
                let selector = &service.spec.spec.selector;
                prepare(
                    workload_entry_labels,
                    workload_entries,
                    &name.namespace,
                    selector,
                );
            }
        }
        for host in &dirty.hosts {
            for entry in self.entries_of_host.get(host).into_iter().flatten() {
                let name = NamespacedName {
                    namespace: host.namespace.clone(),
                    name: entry.clone(),
                };
                if let Some(selector) = self.entries.get(&name).and_then(|e| e.selector.as_ref()) {
                    prepare(pod_labels, pods, &name.namespace, selector);
                    prepare(
                        workload_entry_labels,
                        workload_entries,
                        &name.namespace,
                        selector,
                    );
                }
            }
        }
    }

    fn derive_kubernetes_endpoints(
        &mut self,
        state: &MeshState,
        dirty: &Dirty,
        shards: &mut BTreeMap<ServiceKey, Vec<(ShardKey, Vec<Arc<Endpoint>>)>>,
    ) {
        self.derivations.endpoints += dirty.endpoints.len() as u64;
        let inputs = slices::Inputs {
            settings: &self.settings,
            slices: &state.objects.endpoint_slices,
            pods: &self.pods,
            claims: &self.claims,
            workload_entries: &self.workload_entries,
            workload_entry_labels: &self.workload_entry_labels,
        };
        let no_slices = BTreeSet::new();
        let derived = map_all(dirty.endpoints.iter().cloned().collect(), |name| {
            let key = self.settings.service_key(&name.namespace, &name.name);
            let config = state.objects.services.get(&name);
            let service = config.and_then(|c| Some((&**c, &**kubernetes_service(state, &key)?)));
            let slices = self.slices.get(&name).unwrap_or(&no_slices);
            let (endpoints, parked) = slices::derive(&name, service, slices, inputs);
            (name, key, endpoints, parked)
        });
        let shard = ShardKey {
            cluster: self.settings.cluster.clone(),
            registry: ServiceRegistry::Kubernetes,
        };
        for (name, key, endpoints, parked) in derived {
            if parked.is_empty() {
                self.parked.remove(&name);
            } else {
                self.parked.insert(name, parked);
            }
            shards
                .entry(key)
                .or_default()
                .push((shard.clone(), endpoints));
        }
    }

    fn derive_host_endpoints(
        &mut self,
        state: &mut MeshState,
        dirty: &Dirty,
        shards: &mut BTreeMap<ServiceKey, Vec<(ShardKey, Vec<Arc<Endpoint>>)>>,
    ) {
        self.derivations.hosts += dirty.hosts.len() as u64;
        let inputs = entries::Inputs {
            settings: &self.settings,
            entries: &state.objects.service_entries,
            derived: &self.entries,
            pods: &self.pods,
            pod_labels: &self.pod_labels,
            workload_entries: &self.workload_entries,
            workload_entry_labels: &self.workload_entry_labels,
        };
        let no_entries = BTreeSet::new();
        let derived = map_all(dirty.hosts.iter().cloned().collect(), |key: ServiceKey| {
            let entries = self.entries_of_host.get(&key).unwrap_or(&no_entries);
            let instances = entries::endpoints(&key.namespace, &key.hostname, entries, inputs);
            (key, instances)
        });
        let shard = ShardKey {
            cluster: self.settings.cluster.clone(),
            registry: ServiceRegistry::External,
        };
        for (key, instances) in derived {
            let endpoints = instances.iter().map(|i| i.endpoint.clone()).collect();
            self.publish_instances(state, &key, instances);
            shards
                .entry(key)
                .or_default()
                .push((shard.clone(), endpoints));
        }
    }

    /// Publishes the instances of a host by address.
    fn publish_instances(
        &mut self,
        state: &mut MeshState,
        key: &ServiceKey,
        instances: Vec<ServiceInstance>,
    ) {
        let mut by_address: BTreeMap<Arc<str>, Vec<ServiceInstance>> = BTreeMap::new();
        for instance in instances {
            let address = instance.endpoint.addresses.first();
            if let Some(address) = address.filter(|a| a.parse::<std::net::IpAddr>().is_ok()) {
                by_address
                    .entry(address.clone())
                    .or_default()
                    .push(instance);
            }
        }
        let at = |address: &Arc<str>| InstanceKey {
            address: address.clone(),
            service: key.clone(),
        };
        for address in self.addresses_of_host.get(key).into_iter().flatten() {
            if !by_address.contains_key(address) {
                state.instances.remove(&at(address));
            }
        }
        if by_address.is_empty() {
            self.addresses_of_host.remove(key);
        } else {
            self.addresses_of_host
                .insert(key.clone(), by_address.keys().cloned().collect());
        }
        for (address, instances) in by_address {
            let key = at(&address);
            if state
                .instances
                .get(&key)
                .is_none_or(|old| **old != *instances)
            {
                state.instances.insert(key, instances.into());
            }
        }
    }

    fn derive_gateways(&self, state: &mut MeshState, request: &mut PushRequest) {
        let gateways = networks::gateways(state, &self.settings);
        if *state.gateways != gateways {
            state.gateways = Arc::new(gateways);
            request.forced = true;
            count(request, Reason::Networks);
        }
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

fn note(request: &mut PushRequest, key: ConfigKey, reason: Reason) {
    if request.changed.insert(key) {
        count(request, reason);
    }
}

fn count(request: &mut PushRequest, reason: Reason) {
    *request.reasons.entry(reason).or_default() += 1;
}

/// Files workloads by the label that leads `selector`.
fn prepare(
    index: &mut LabelIndex,
    workloads: &BTreeMap<NamespacedName, Arc<Workload>>,
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

fn unfile<K, Q, N>(index: &mut FxHashMap<K, BTreeSet<N>>, key: &Q, name: &N)
where
    K: std::borrow::Borrow<Q> + Eq + std::hash::Hash,
    Q: Eq + std::hash::Hash + ?Sized,
    N: Ord,
{
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

/// Moves a name from the keys `old` to the keys `new`.
fn refile<K: Ord + Eq + std::hash::Hash + Clone, N: Ord + Clone>(
    index: &mut FxHashMap<K, BTreeSet<N>>,
    old: &BTreeSet<K>,
    new: &BTreeSet<K>,
    name: &N,
) {
    for key in old.difference(new) {
        unfile(index, key, name);
    }
    for key in new.difference(old) {
        index.entry(key.clone()).or_default().insert(name.clone());
    }
}

/// The pods that a slice names, and the (namespace, address) pairs that it lists without one.
fn listed(
    slice: Option<&Config<EndpointSlice>>,
) -> (BTreeSet<NamespacedName>, BTreeSet<NamespacedName>) {
    let (mut pods, mut addresses) = (BTreeSet::new(), BTreeSet::new());
    for (slice, endpoint) in slice
        .into_iter()
        .flat_map(|s| s.spec.endpoints.iter().map(move |e| (s, e)))
    {
        let namespace = &slice.meta.namespace;
        match slices::pod_behind(endpoint, namespace) {
            Some(pod) => {
                pods.insert(pod);
            }
            None => addresses.extend(endpoint.addresses.iter().map(|a| NamespacedName {
                namespace: namespace.clone(),
                name: a.as_str().into(),
            })),
        }
    }
    (pods, addresses)
}

fn names_in<'a, T>(
    table: &'a model::Table<T>,
    namespace: &'a Arc<str>,
) -> impl Iterator<Item = NamespacedName> + 'a {
    let first = NamespacedName {
        namespace: namespace.clone(),
        name: "".into(),
    };
    table
        .range(first..)
        .map(|(name, _)| name)
        .take_while(move |n| n.namespace == *namespace)
        .cloned()
}

fn pod(object: Option<&Object>) -> Option<&Config<Pod>> {
    match object {
        Some(Object::Pod(pod)) => Some(pod),
        _ => None,
    }
}

fn service(object: Option<&Object>) -> Option<&Config<model::api::kubernetes::Service>> {
    match object {
        Some(Object::Service(service)) => Some(service),
        _ => None,
    }
}

fn slice(object: Option<&Object>) -> Option<&Config<EndpointSlice>> {
    match object {
        Some(Object::EndpointSlice(slice)) => Some(slice),
        _ => None,
    }
}

/// Tells whether two states of a pod differ in what the proxy in it depends on; its addresses and
/// readiness are compared as parts of its workload.
fn pod_differs(old: Option<&Config<Pod>>, new: Option<&Config<Pod>>) -> bool {
    match (old, new) {
        (Some(old), Some(new)) => {
            old.meta.labels != new.meta.labels
                || old.meta.annotations != new.meta.annotations
                || old.spec.spec != new.spec.spec
        }
        (None, None) => false,
        (Some(_), None) | (None, Some(_)) => true,
    }
}

/// Compares services as far as anything could depend on them, their order included.
fn same_service(old: Option<&Arc<Service>>, new: Option<&Arc<Service>>) -> bool {
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
    let first = ServiceId {
        key: key.clone(),
        object: "".into(),
        address: "".into(),
    };
    state
        .services
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

/// Sees an optional value as a slice of none or one.
trait AsSliceRef<T> {
    fn as_slice_ref(&self) -> &[T];
}

impl<T> AsSliceRef<T> for Option<T> {
    fn as_slice_ref(&self) -> &[T] {
        self.as_ref().map_or(&[], std::slice::from_ref)
    }
}

#[cfg(test)]
mod tests;

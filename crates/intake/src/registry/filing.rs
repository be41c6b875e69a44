//! Filing objects in the registry's indexes, and marking what depends on them.
use std::{borrow::Borrow, hash::Hash, sync::Arc};

use model::{
    Config, Kind, Labels, MeshState, Meta, NamespacedName, Object, PushRequest, Reason, Table,
    api::kubernetes::{EndpointSlice, Pod, Service},
    selects,
};
use rustc_hash::FxHashMap;

use super::{Dirty, Registry, Update, kubernetes, note, settings::NETWORK_LABEL, slices};
use crate::few::Few;

impl Registry {
    /// Files a changed object and marks what is derived from it.
    pub(super) fn mark(
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
                        .flat_map(Few::iter)
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
                let in_network = |s: Option<&Config<Service>>| {
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
            unfile(&mut self.pods_of_node, &*old, name);
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
        old: Option<&Config<Service>>,
        new: Option<&Config<Service>>,
    ) {
        let selector = |s: Option<&Config<Service>>| {
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

    /// Marks the hosts of ServiceEntries that select a workload before or after.
    pub(super) fn mark_selecting_hosts(
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
                if entry.selector().is_some_and(|s| selects(s, labels)) {
                    dirty.hosts.extend(entry.services.iter().map(|s| s.key()));
                }
            }
        }
    }
}

/// Marks the services that own slices.
pub(super) fn mark_slices(
    state: &MeshState,
    slices: Option<&Few<NamespacedName>>,
    dirty: &mut Dirty,
) {
    for name in slices.into_iter().flat_map(Few::iter) {
        let slice = state.objects.endpoint_slices.get(name);
        dirty
            .endpoints
            .extend(slice.and_then(|s| kubernetes::slice_owner(s)));
    }
}

/// Takes a name out of an index.
pub(super) fn unfile<K, Q, N, M>(index: &mut FxHashMap<K, Few<N>>, key: &Q, name: &M)
where
    K: Borrow<Q> + Eq + Hash,
    Q: Eq + Hash + ?Sized,
    N: Ord + Borrow<M>,
    M: Ord + ?Sized,
{
    if let Some(names) = index.get_mut(key) {
        names.remove(name);
        if names.is_empty() {
            index.remove(key);
        }
    }
}

/// Moves a name from the keys `old` to the keys `new`; both are sorted.
pub(super) fn refile<K: Ord + Hash + Clone, N: Ord + Clone>(
    index: &mut FxHashMap<K, Few<N>>,
    old: &[K],
    new: &[K],
    name: &N,
) {
    for key in old.iter().filter(|k| new.binary_search(k).is_err()) {
        unfile(index, key, name);
    }
    for key in new.iter().filter(|k| old.binary_search(k).is_err()) {
        index.entry(key.clone()).or_default().insert(name.clone());
    }
}

/// The pods that a slice names, and the (namespace, address) pairs that it lists without one; both
/// sorted.
fn listed(slice: Option<&Config<EndpointSlice>>) -> (Vec<NamespacedName>, Vec<NamespacedName>) {
    let (mut pods, mut addresses) = (Vec::new(), Vec::new());
    for (slice, endpoint) in slice
        .into_iter()
        .flat_map(|s| s.spec.endpoints.iter().map(move |e| (s, e)))
    {
        let namespace = &slice.meta.namespace;
        match slices::pod_behind(endpoint, namespace) {
            Some(pod) => {
                pods.push(pod);
            }
            None => addresses.extend(endpoint.addresses.iter().map(|a| NamespacedName {
                namespace: namespace.clone(),
                name: a.as_str().into(),
            })),
        }
    }
    for names in [&mut pods, &mut addresses] {
        names.sort_unstable();
        names.dedup();
    }
    (pods, addresses)
}

fn names_in<'a, T>(
    table: &'a Table<T>,
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

fn service(object: Option<&Object>) -> Option<&Config<Service>> {
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

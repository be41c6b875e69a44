//! Deriving workloads and services of dirty keys.
use std::{collections::BTreeSet, sync::Arc};

use model::{ConfigKey, Kind, MeshState, NamespacedName, PushRequest, Reason, ServiceKey, selects};

use super::{
    Dirty, Entry, Registry, entries,
    filing::{mark_slices, refile, unfile},
    foreign::selectable,
    kubernetes, kubernetes_service, map_all, networks, note, replace_services, same_service,
    vip::LegacyAddresses,
    workload::Workload,
};
use crate::few::Few;

impl Registry {
    pub(super) fn derive_pods(
        &mut self,
        state: &MeshState,
        dirty: &mut Dirty,
        request: &mut PushRequest,
    ) {
        for name in dirty.pods.take() {
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
            mark_slices(state, self.slices_of_pod.get(&name), dirty);
            for address in old_addresses.iter().chain(new_addresses) {
                let at = NamespacedName {
                    namespace: name.namespace.clone(),
                    name: address.clone(),
                };
                mark_slices(state, self.slices_of_address.get(&at), dirty);
                let rivals = self
                    .claims
                    .get(address)
                    .into_iter()
                    .flat_map(Few::iter)
                    .filter(|p| **p != name);
                for rival in rivals {
                    mark_slices(state, self.slices_of_pod.get(rival), dirty);
                }
            }
            let (old_labels, new_labels) = (selectable(old.as_ref()), selectable(new.as_ref()));
            self.note_told(Kind::Pod, &name, old_labels.as_ref(), new_labels.as_ref());
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

    pub(super) fn derive_workload_entries(&mut self, state: &MeshState, dirty: &mut Dirty) {
        let names: Vec<NamespacedName> = dirty.workload_entries.take();
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
            let (old, new) = (selectable(old.as_ref()), selectable(new.as_ref()));
            self.note_told(Kind::WorkloadEntry, &name, old.as_ref(), new.as_ref());
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

    pub(super) fn derive_services(
        &mut self,
        state: &mut MeshState,
        dirty: &mut Dirty,
        request: &mut PushRequest,
    ) {
        let names: Vec<NamespacedName> = dirty.services.take();
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
            replace_services(state, old.as_slice(), new.as_slice());
            let source = ConfigKey::new(Kind::Service, name.namespace.clone(), name.name.clone());
            note(request, source, Reason::Service);
        }
    }

    pub(super) fn derive_entries(
        &mut self,
        state: &mut MeshState,
        dirty: &mut Dirty,
        request: &mut PushRequest,
    ) {
        if dirty.entries.is_empty() {
            return;
        }
        self.derive_legacy_addresses(state, dirty);
        let names: Vec<NamespacedName> = dirty.entries.take();
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
                    selects: entry.spec.workload_selector.is_some(),
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
            if old.selector() != new.selector() {
                let NamespacedName { namespace, name } = &name;
                if let Some(selector) = old.selector() {
                    self.entry_selectors.remove(namespace, name, selector);
                }
                if let Some(selector) = new.selector() {
                    self.entry_selectors.insert(namespace, name, selector);
                }
            }
            let (old_hosts, new_hosts) = (old.hosts(), new.hosts());
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
}

//! Services by visibility and by host (config-model §8.1, §9.1).

mod alias;
mod export;

use std::{collections::BTreeSet, sync::Arc};

use imbl::{OrdMap, OrdSet};
use model::{
    MeshState, Resolution, Service, ServiceKey,
    service::{ServiceId, TrafficDistribution},
};
use rayon::prelude::*;

use crate::{diff, order::InOrder};

use alias::Aliases;
pub(crate) use export::{Exports, default_set};

/// Services as clients of each namespace see them.
#[derive(Clone, Default, Debug)]
pub struct ServiceIndex {
    pub(crate) public: OrdSet<InOrder<Service>>,
    pub(crate) exported: OrdMap<Arc<str>, OrdSet<InOrder<Service>>>,
    by_host: OrdMap<(Arc<str>, Arc<str>), Arc<Service>>,
    /// Services whose endpoints depend on the client's node.
    node_sensitive: OrdSet<ServiceKey>,
    aliases: Aliases,
}

impl ServiceIndex {
    /// Lists the services visible to `namespace`: those exported to it first, then the public ones,
    /// each in creation order.
    pub fn visible_to(&self, namespace: &str) -> impl Iterator<Item = &Arc<Service>> {
        self.exported
            .get(namespace)
            .into_iter()
            .flatten()
            .chain(&self.public)
            .map(|service| &service.0)
    }

    /// Lists one service per namespace that has the host name, by namespace; hidden services are
    /// among them. Of several in one namespace a Kubernetes service wins, else the oldest.
    pub fn by_host(&self, hostname: &str) -> impl Iterator<Item = &Arc<Service>> {
        let first: (Arc<str>, Arc<str>) = (hostname.into(), "".into());
        self.by_host
            .range(first..)
            .take_while({
                let hostname: Arc<str> = hostname.into();
                move |((host, _), _)| *host == hostname
            })
            .map(|(_, service)| service)
    }

    /// Finds the winner of a host name in one namespace, hidden or not.
    pub fn get(&self, hostname: &str, namespace: &str) -> Option<&Arc<Service>> {
        let key: (Arc<str>, Arc<str>) = (hostname.into(), namespace.into());
        self.by_host.get(&key)
    }

    /// Returns a service of the registry as it is in the index: with its aliases.
    pub(crate) fn attached(&self, service: &Arc<Service>) -> Arc<Service> {
        self.aliases.attach(service.clone())
    }

    /// Counts the (host, namespace) pairs.
    pub fn len(&self) -> usize {
        self.by_host.len()
    }

    /// Tells whether there is no service at all.
    pub fn is_empty(&self) -> bool {
        self.by_host.is_empty()
    }

    /// Tells whether a visible service sends clients to endpoints of their own node.
    pub(crate) fn node_matters_to(&self, namespace: &str, exports: &Exports<'_>) -> bool {
        self.node_sensitive.iter().any(|key| {
            self.get(&key.hostname, &key.namespace)
                .is_some_and(|service| exports.is_visible(service, namespace))
        })
    }

    /// Indexes all services of `state`.
    pub(crate) fn build(state: &MeshState) -> Self {
        let exports = Exports::new(state);
        let aliases = Aliases::build(state);
        let services: Vec<&Arc<Service>> = state.services.values().collect();
        let services: Vec<Arc<Service>> = services
            .into_par_iter()
            .map(|s| aliases.attach(s.clone()))
            .collect();
        let (by_host, in_order) = rayon::join(
            || {
                let mut by_host: OrdMap<_, Arc<Service>> = OrdMap::new();
                for service in &services {
                    let key = (
                        service.hostname.clone(),
                        service.attributes.namespace.clone(),
                    );
                    if by_host.get(&key).is_none_or(|old| wins(service, old)) {
                        by_host.insert(key, service.clone());
                    }
                }
                by_host
            },
            || {
                let mut in_order: Vec<_> = services.iter().cloned().map(InOrder).collect();
                in_order.sort_unstable();
                in_order
            },
        );
        let mut index = Self {
            by_host,
            aliases,
            ..Self::default()
        };
        for service in in_order {
            index.place(service, &exports);
        }
        index
    }

    /// Brings the index from `old` to `new`; the cost is that of what changed.
    ///
    /// Returns the index and the keys of the services that may look different.
    pub(crate) fn next(&self, old: &MeshState, new: &MeshState) -> (Self, BTreeSet<ServiceKey>) {
        let mut dirty: BTreeSet<ServiceKey> = BTreeSet::new();
        let mut alias_changed = false;
        for change in diff::changes(&old.services, &new.services) {
            for service in change.sides() {
                alias_changed |= service.resolution == Resolution::Alias;
                dirty.insert(service.key());
            }
        }
        let (old_exports, new_exports) = (Exports::new(old), Exports::new(new));
        for namespace in new_exports.namespaces_that_differ(&old_exports) {
            let first = ServiceId::first_of(&ServiceKey::new(namespace.clone(), ""));
            dirty.extend(
                new.services
                    .range(first..)
                    .take_while(|(id, _)| id.key.namespace == namespace)
                    .map(|(id, _)| id.key.clone()),
            );
        }
        let mut index = self.clone();
        if alias_changed {
            index.aliases = Aliases::build(new);
            for host in index.aliases.hosts_that_differ(&self.aliases) {
                for namespace in self.by_host(&host).map(|s| &s.attributes.namespace) {
                    dirty.insert(ServiceKey::new(namespace.clone(), host.clone()));
                }
            }
        }
        for key in &dirty {
            for service in of_key(old, key) {
                index.displace(&InOrder(service.clone()), &old_exports);
            }
            let mut winner: Option<Arc<Service>> = None;
            for service in of_key(new, key) {
                let service = index.aliases.attach(service.clone());
                if winner.as_ref().is_none_or(|old| wins(&service, old)) {
                    winner = Some(service.clone());
                }
                index.place(InOrder(service), &new_exports);
            }
            let host_key = (key.hostname.clone(), key.namespace.clone());
            match winner {
                Some(service) => index.by_host.insert(host_key, service),
                None => index.by_host.remove(&host_key),
            };
        }
        (index, dirty)
    }

    /// Puts a service into the lists of those who see it.
    fn place(&mut self, service: InOrder<Service>, exports: &Exports<'_>) {
        if is_node_sensitive(&service.0) {
            self.node_sensitive.insert(service.0.key());
        }
        match audience(&service.0, exports) {
            Audience::Everybody => {
                self.public.insert(service);
            }
            Audience::Namespaces(namespaces) => {
                for namespace in namespaces {
                    self.exported
                        .entry(namespace)
                        .or_default()
                        .insert(service.clone());
                }
            }
        }
    }

    /// Undoes [`ServiceIndex::place`].
    fn displace(&mut self, service: &InOrder<Service>, exports: &Exports<'_>) {
        self.node_sensitive.remove(&service.0.key());
        match audience(&service.0, exports) {
            Audience::Everybody => {
                self.public.remove(service);
            }
            Audience::Namespaces(namespaces) => {
                for namespace in namespaces {
                    let Some(list) = self.exported.get_mut(&namespace) else {
                        continue;
                    };
                    list.remove(service);
                    if list.is_empty() {
                        self.exported.remove(&namespace);
                    }
                }
            }
        }
    }
}

/// Lists the services of one key, by their ids.
pub(crate) fn of_key<'a>(
    state: &'a MeshState,
    key: &'a ServiceKey,
) -> impl Iterator<Item = &'a Arc<Service>> {
    state
        .services
        .range(ServiceId::first_of(key)..)
        .take_while(move |(id, _)| id.key == *key)
        .map(|(_, service)| service)
}

/// Tells whether `new` takes the place of `old` among services of one host and namespace.
fn wins(new: &Service, old: &Service) -> bool {
    use crate::order::CreationOrder;
    match (new.is_kubernetes(), old.is_kubernetes()) {
        (true, false) => true,
        (false, true) => false,
        _ => new.by_creation(old).is_lt(),
    }
}

fn is_node_sensitive(service: &Service) -> bool {
    service.attributes.node_local
        || service.attributes.traffic_distribution == TrafficDistribution::PreferSameNode
}

/// Whose lists a service is in.
enum Audience {
    Everybody,
    Namespaces(BTreeSet<Arc<str>>),
}

/// Classifies a service by its export set; the first match of config-model §8.1 wins.
fn audience(service: &Service, exports: &Exports<'_>) -> Audience {
    let set = exports.of(service);
    if set.contains("*") {
        return Audience::Everybody;
    }
    if set.contains("~") {
        return Audience::Namespaces(BTreeSet::new());
    }
    let own = &service.attributes.namespace;
    Audience::Namespaces(
        set.0
            .iter()
            .map(|entry| {
                if entry == "." {
                    own.clone()
                } else {
                    entry.as_str().into()
                }
            })
            .collect(),
    )
}

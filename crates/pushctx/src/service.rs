//! Services by visibility and by host (config-model §8.1, §9.1).

mod alias;
mod export;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::{OrdMap, OrdSet};
use model::{
    MeshState, Resolution, Service, ServiceKey,
    service::{ServiceId, TrafficDistribution},
};

use crate::{
    diff,
    order::InOrder,
    sorted::SortedList,
    table::{Few, HashTable},
};

use alias::Aliases;
pub(crate) use export::{Exports, default_set};

/// Services in creation order.
pub(crate) type List = SortedList<InOrder<Service>>;

/// Services as clients of each namespace see them.
#[derive(Clone, Default, Debug)]
pub struct ServiceIndex {
    public: List,
    exported: OrdMap<Arc<str>, List>,
    /// For each host one service per namespace, by namespace.
    by_host: HashTable<Arc<str>, Few<Arc<Service>>>,
    /// Services whose endpoints depend on the client's node.
    node_sensitive: OrdSet<ServiceKey>,
    /// Services that declare identities.
    declaring: OrdSet<ServiceKey>,
    /// Hosts that several services have.
    shared_hosts: OrdSet<Arc<str>>,
    /// Services that their own namespace does not see.
    hidden: OrdSet<ServiceKey>,
    aliases: Aliases,
    exports: Exports,
}

impl ServiceIndex {
    /// Lists the services visible to `namespace`: those exported to it first, then the public ones,
    /// each in creation order.
    pub fn visible_to(&self, namespace: &str) -> impl Iterator<Item = &Arc<Service>> {
        let (exported, public) = self.lists(namespace);
        let exported = exported.into_iter().flat_map(List::iter);
        exported.chain(public.iter()).map(|service| &service.0)
    }

    /// The services exported to a namespace by name, and the public ones.
    pub(crate) fn lists(&self, namespace: &str) -> (Option<&List>, &List) {
        (self.exported.get(namespace), &self.public)
    }

    /// Lists all services with a host name that a namespace sees, in the order of
    /// [`ServiceIndex::visible_to`].
    pub(crate) fn visible_of_host(
        &self,
        state: &MeshState,
        hostname: &str,
        namespace: &str,
    ) -> Vec<Arc<Service>> {
        let keys: Vec<ServiceKey> = self.by_host(hostname).map(|s| s.key()).collect();
        let services = keys.iter().flat_map(|key| of_key(state, key));
        let mut visible: Vec<_> = services
            .filter(|service| self.is_listed(service, namespace))
            .map(|service| self.attached(service))
            .map(|s| {
                (
                    matches!(audience(&s, &self.exports), Audience::Everybody),
                    InOrder(s),
                )
            })
            .collect();
        visible.sort_unstable();
        visible.into_iter().map(|(_, service)| service.0).collect()
    }

    /// Tells whether a namespace may refer to a service.
    pub(crate) fn is_visible(&self, service: &Service, namespace: &str) -> bool {
        self.exports.is_visible(service, namespace)
    }

    /// Tells whether a service is among those that [`ServiceIndex::visible_to`] lists.
    pub(crate) fn is_listed(&self, service: &Service, namespace: &str) -> bool {
        audience(service, &self.exports).includes(namespace)
    }

    /// Lists the hosts that several services have.
    pub(crate) fn shared_hosts(&self) -> impl Iterator<Item = &Arc<str>> {
        self.shared_hosts.iter()
    }

    /// Lists the services that their own namespace does not list, of one namespace.
    pub(crate) fn hidden_in(&self, namespace: &Arc<str>) -> impl Iterator<Item = &ServiceKey> {
        let first = ServiceKey::new(namespace.clone(), "");
        self.hidden
            .range(first..)
            .take_while(move |key| key.namespace == *namespace)
    }

    /// Lists one service per namespace that has the host name, by namespace; hidden services are
    /// among them. Of several in one namespace a Kubernetes service wins, else the oldest.
    pub fn by_host(&self, hostname: &str) -> std::slice::Iter<'_, Arc<Service>> {
        self.by_host
            .get(hostname)
            .map_or(&[][..], Few::as_slice)
            .iter()
    }

    /// Finds the winner of a host name in one namespace, hidden or not.
    pub fn get(&self, hostname: &str, namespace: &str) -> Option<&Arc<Service>> {
        self.by_host(hostname)
            .find(|s| *s.attributes.namespace == *namespace)
    }

    /// Returns a service of the registry as it is in the index: with its aliases.
    pub(crate) fn attached(&self, service: &Arc<Service>) -> Arc<Service> {
        self.aliases.attach(service.clone())
    }

    /// Counts the host names.
    pub fn len(&self) -> usize {
        self.by_host.len()
    }

    /// Tells whether there is no service at all.
    pub fn is_empty(&self) -> bool {
        self.by_host.is_empty()
    }

    /// Tells whether a service with this key declares identities.
    pub(crate) fn declares_accounts(&self, key: &ServiceKey) -> bool {
        self.declaring.contains(key)
    }

    /// Tells whether a visible service sends clients to endpoints of their own node.
    pub(crate) fn node_matters_to(&self, namespace: &str) -> bool {
        self.node_sensitive.iter().any(|key| {
            self.get(&key.hostname, &key.namespace)
                .is_some_and(|service| self.is_visible(service, namespace))
        })
    }

    /// Indexes all services of `state`.
    pub(crate) fn build(state: &MeshState) -> Self {
        let exports = Exports::new(state);
        let aliases = Aliases::build(state);
        let services: Vec<Arc<Service>> = state
            .services
            .values()
            .map(|s| aliases.attach(s.clone()))
            .collect();
        let ((public, exported), (by_host, shared_hosts)) = rayon::join(
            || {
                let mut public = Vec::with_capacity(services.len());
                let mut exported: BTreeMap<Arc<str>, Vec<InOrder<Service>>> = BTreeMap::new();
                for service in &services {
                    match audience(service, &exports) {
                        Audience::Everybody => public.push(InOrder(service.clone())),
                        Audience::Namespaces(namespaces) => {
                            for namespace in namespaces {
                                let list = exported.entry(namespace).or_default();
                                list.push(InOrder(service.clone()));
                            }
                        }
                    }
                }
                let sorted = |mut list: Vec<InOrder<Service>>| {
                    list.sort_unstable();
                    SortedList::from_sorted(&list)
                };
                let exported = exported.into_iter().map(|(ns, list)| (ns, sorted(list)));
                (sorted(public), exported.collect())
            },
            || {
                let mut by_host = HashTable::default();
                let mut shared_hosts = OrdSet::new();
                for service in &services {
                    if !set_winner(&mut by_host, service) {
                        shared_hosts.insert(service.hostname.clone());
                    }
                }
                (by_host, shared_hosts)
            },
        );
        let sensitive = services.iter().filter(|s| is_node_sensitive(s));
        let hidden = services.iter().filter(|s| is_hidden(s, &exports));
        let declaring = services.iter().filter(|s| !s.service_accounts.is_empty());
        Self {
            public,
            exported,
            by_host,
            node_sensitive: sensitive.map(|s| s.key()).collect(),
            declaring: declaring.map(|s| s.key()).collect(),
            shared_hosts,
            hidden: hidden.map(|s| s.key()).collect(),
            aliases,
            exports,
        }
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
        let (old_exports, new_exports) = (&self.exports, Exports::new(new));
        for namespace in new_exports.namespaces_that_differ(old_exports) {
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
                index.displace(&InOrder(service.clone()), old_exports);
            }
            let rest = index
                .by_host
                .get(&key.hostname)
                .map_or(&[][..], Few::as_slice);
            let kept: Vec<Arc<Service>> = rest
                .iter()
                .filter(|s| s.attributes.namespace != key.namespace)
                .cloned()
                .collect();
            match Few::from_sorted(kept) {
                Some(owners) => index.by_host.insert(key.hostname.clone(), owners),
                None => index.by_host.remove(&key.hostname),
            };
            for service in of_key(new, key) {
                let service = index.aliases.attach(service.clone());
                set_winner(&mut index.by_host, &service);
                index.place(InOrder(service), &new_exports);
            }
            let owners = index.by_host(&key.hostname);
            let is_shared = owners.len() > 1
                || owners
                    .clone()
                    .any(|s| of_key(new, &s.key()).nth(1).is_some());
            if is_shared {
                index.shared_hosts.insert(key.hostname.clone());
            } else {
                index.shared_hosts.remove(&key.hostname);
            }
        }
        index.exports = new_exports;
        (index, dirty)
    }

    /// Puts a service into the lists of those who see it.
    fn place(&mut self, service: InOrder<Service>, exports: &Exports) {
        if is_hidden(&service.0, exports) {
            self.hidden.insert(service.0.key());
        }
        if is_node_sensitive(&service.0) {
            self.node_sensitive.insert(service.0.key());
        }
        if !service.0.service_accounts.is_empty() {
            self.declaring.insert(service.0.key());
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
    fn displace(&mut self, service: &InOrder<Service>, exports: &Exports) {
        self.hidden.remove(&service.0.key());
        self.node_sensitive.remove(&service.0.key());
        self.declaring.remove(&service.0.key());
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

/// Enters a service among those of its host, unless another of its namespace wins. Tells whether it
/// is the first of its host.
fn set_winner(
    by_host: &mut HashTable<Arc<str>, Few<Arc<Service>>>,
    service: &Arc<Service>,
) -> bool {
    let Some(owners) = by_host.get_mut(&service.hostname) else {
        by_host.insert(service.hostname.clone(), Few::One(service.clone()));
        return true;
    };
    let mut all = owners.as_slice().to_vec();
    let namespace = &service.attributes.namespace;
    match all.binary_search_by(|s| s.attributes.namespace.cmp(namespace)) {
        Ok(at) if wins(service, &all[at]) => all[at] = service.clone(),
        Ok(_) => return false,
        Err(at) => all.insert(at, service.clone()),
    }
    if let Some(all) = Few::from_sorted(all) {
        *owners = all;
    }
    false
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

/// Tells whether a service is not among those that its own namespace lists.
fn is_hidden(service: &Service, exports: &Exports) -> bool {
    !audience(service, exports).includes(&service.attributes.namespace)
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

impl Audience {
    fn includes(&self, namespace: &str) -> bool {
        match self {
            Self::Everybody => true,
            Self::Namespaces(namespaces) => namespaces.contains(namespace),
        }
    }
}

/// Classifies a service by its export set; the first match of config-model §8.1 wins.
fn audience(service: &Service, exports: &Exports) -> Audience {
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

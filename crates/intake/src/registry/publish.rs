//! Deriving endpoints, instances and network gateways, and publishing them in the state.
use std::{net::IpAddr, sync::Arc};

use imbl::OrdMap;
use model::{
    Endpoint, InstanceKey, MeshState, NamespacedName, PushRequest, Reason, Resolution, Service,
    ServiceEndpoints, ServiceId, ServiceInstance, ServiceKey,
    service::{Registry as ServiceRegistry, ShardKey},
};

use super::{
    Dirty, Registry, count, entries, kubernetes_service, map_all, networks, note, prepare,
    services_of_key, slices,
};
use crate::few::Few;

/// New endpoint lists of services, by shard.
type Shards = Vec<(ServiceKey, ShardKey, Vec<Arc<Endpoint>>)>;

impl Registry {
    pub(super) fn derive_endpoints(
        &mut self,
        state: &mut MeshState,
        others: &mut [&mut Self],
        dirty: &mut Dirty,
        request: &mut PushRequest,
    ) {
        let (services, hosts) = (dirty.endpoints.take(), dirty.hosts.take());
        self.prepare_labels(state, others, &services, &hosts);
        let mut shards = Shards::new();
        self.derive_kubernetes_endpoints(state, services, &mut shards);
        self.derive_host_endpoints(state, others, hosts, &mut shards);
        shards.sort_by(|(a, ..), (b, ..)| a.cmp(b));
        let services: Vec<Shards> = group(shards);
        let known = &state.endpoints;
        let collected = map_all(services, |shards| {
            let key = shards.first().map(|(key, ..)| key.clone())?;
            let old = known.get(&key).cloned();
            let new = merge(old.as_deref(), shards);
            (old != new).then_some((key, old, new))
        });
        for (key, old, new) in collected.into_iter().flatten() {
            match &new {
                Some(new) => state.endpoints.insert(key.clone(), new.clone()),
                None => state.endpoints.remove(&key),
            };
            note_endpoints(
                &state.services,
                &key,
                old.as_deref(),
                new.as_deref(),
                request,
            );
        }
    }

    /// Files workloads by the labels that lead the selectors about to be used.
    fn prepare_labels(
        &mut self,
        state: &MeshState,
        others: &mut [&mut Self],
        services: &[NamespacedName],
        hosts: &[ServiceKey],
    ) {
        let Self {
            pods,
            pod_labels,
            workload_entries,
            workload_entry_labels,
            entries,
            entries_of_host,
            ..
        } = self;
        for name in services {
            let namespace = &name.namespace;
            if let Some(service) = state.objects.services.get(name) {
                let selector = &service.spec.spec.selector;
                prepare(workload_entry_labels, workload_entries, namespace, selector);
            }
        }
        for host in hosts {
            let namespace = &host.namespace;
            for entry in entries_of_host.get(host).into_iter().flat_map(Few::iter) {
                let name = NamespacedName::new(namespace.clone(), entry.clone());
                let Some(selector) = entries.get(&name).and_then(|e| e.selector()) else {
                    continue;
                };
                prepare(pod_labels, pods, namespace, selector);
                prepare(workload_entry_labels, workload_entries, namespace, selector);
                for other in others.iter_mut() {
                    other.prepare_workloads(namespace, selector);
                }
            }
        }
    }

    fn derive_kubernetes_endpoints(
        &mut self,
        state: &MeshState,
        services: Vec<NamespacedName>,
        shards: &mut Shards,
    ) {
        self.derivations.endpoints += services.len() as u64;
        let inputs = slices::Inputs {
            settings: &self.settings,
            slices: &state.objects.endpoint_slices,
            pods: &self.pods,
            claims: &self.claims,
            workload_entries: &self.workload_entries,
            workload_entry_labels: &self.workload_entry_labels,
        };
        let no_slices = Few::None;
        let derived = map_all(services, |name| {
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
            shards.push((key, shard.clone(), endpoints));
        }
    }

    fn derive_host_endpoints(
        &mut self,
        state: &mut MeshState,
        others: &[&mut Self],
        hosts: Vec<ServiceKey>,
        shards: &mut Shards,
    ) {
        self.derivations.hosts += hosts.len() as u64;
        let clusters: Vec<&Self> = std::iter::once(&*self)
            .chain(others.iter().map(|other| &**other))
            .collect();
        let inputs = entries::Inputs {
            settings: &self.settings,
            entries: &state.objects.service_entries,
            derived: &self.entries,
            clusters: &clusters,
        };
        let no_entries = Few::None;
        let derived = map_all(hosts, |key: ServiceKey| {
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
            shards.push((key, shard.clone(), endpoints));
        }
    }

    /// Publishes the instances of a host by address.
    fn publish_instances(
        &mut self,
        state: &mut MeshState,
        key: &ServiceKey,
        instances: Vec<ServiceInstance>,
    ) {
        let mut addressed: Vec<(Arc<str>, ServiceInstance)> = instances
            .into_iter()
            .filter_map(|instance| {
                let address = instance.endpoint.addresses.first()?.clone();
                address
                    .parse::<IpAddr>()
                    .is_ok()
                    .then_some((address, instance))
            })
            .collect();
        // Instances of one address keep their order.
        addressed.sort_by(|(a, _), (b, _)| a.cmp(b));
        let at = |address: &Arc<str>| InstanceKey {
            address: address.clone(),
            service: key.clone(),
        };
        let mut addresses = Few::None;
        let mut rest = addressed.into_iter().peekable();
        while let Some((address, first)) = rest.next() {
            let mut instances = vec![first];
            while let Some((_, next)) = rest.next_if(|(a, _)| *a == address) {
                instances.push(next);
            }
            let at = at(&address);
            if state
                .instances
                .get(&at)
                .is_none_or(|old| **old != *instances)
            {
                state.instances.insert(at, instances.into());
            }
            addresses.insert(address);
        }
        let old = if addresses.is_empty() {
            self.addresses_of_host.remove(key)
        } else {
            self.addresses_of_host
                .insert(key.clone(), addresses.clone())
        };
        for address in old.iter().flat_map(Few::iter) {
            if !addresses.contains(address) {
                state.instances.remove(&at(address));
            }
        }
    }

    pub(super) fn derive_gateways(&mut self, state: &mut MeshState, request: &mut PushRequest) {
        let gateways = networks::gateways(state, &self.gateway_addresses, &self.settings);
        self.gateway_addresses
            .retain(|name, _| gateways.unresolved.iter().any(|g| g.address == *name));
        if *state.gateways != gateways {
            state.gateways = Arc::new(gateways);
            request.forced = true;
            count(request, Reason::Networks);
        }
    }
}

/// Adds to a request that the endpoints of a service are others, and what that means for its clusters
/// and listeners.
pub(crate) fn note_endpoints(
    services: &OrdMap<ServiceId, Arc<Service>>,
    key: &ServiceKey,
    old: Option<&ServiceEndpoints>,
    new: Option<&ServiceEndpoints>,
    request: &mut PushRequest,
) {
    let accounts =
        |e: Option<&ServiceEndpoints>| e.map(|e| e.service_accounts.clone()).unwrap_or_default();
    let accounts_differ = accounts(old) != accounts(new);
    count(request, Reason::Endpoint);
    if old.is_some_and(|old| old.lost_any(new)) {
        request.removals.insert(key.clone());
    } else if request.forced {
        return;
    }
    for service in services_of_key(services, key) {
        // Endpoints of these are part of clusters and listeners; so are identities.
        let (in_resources, reason) = match service.resolution {
            Resolution::ClientSideLb | Resolution::Alias | Resolution::DynamicDns => {
                (false, Reason::Service)
            }
            Resolution::Passthrough => (service.is_kubernetes(), Reason::HeadlessEndpoint),
            Resolution::DnsLb | Resolution::DnsRoundRobinLb => (true, Reason::Service),
        };
        if in_resources || accounts_differ {
            note(request, service.source.key().clone(), reason);
        }
    }
    request.endpoints.insert(key.clone());
}

/// Cuts a sorted list into those of single services.
fn group(shards: Shards) -> Vec<Shards> {
    let mut groups: Vec<Shards> = Vec::with_capacity(shards.len());
    for shard in shards {
        match groups.last_mut() {
            Some(group) if group.first().is_some_and(|(key, ..)| *key == shard.0) => {
                group.push(shard);
            }
            _ => groups.push(vec![shard]),
        }
    }
    groups
}

/// Lays new shards of one service over its old ones.
fn merge(old: Option<&ServiceEndpoints>, new: Shards) -> Option<Arc<ServiceEndpoints>> {
    let kept = old.into_iter().flat_map(|o| o.shards.iter());
    let kept: Vec<_> = kept
        .filter(|(shard, _)| new.iter().all(|(_, s, _)| s != *shard))
        .map(|(shard, endpoints)| (shard.clone(), endpoints.to_vec()))
        .collect();
    let new = new
        .into_iter()
        .map(|(_, shard, endpoints)| (shard, endpoints));
    ServiceEndpoints::collect(kept.into_iter().chain(new))
}

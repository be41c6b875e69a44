//! Which services a proxy's workload serves, and on which ports (service-registry §11).

use std::{collections::BTreeSet, sync::Arc};

use model::{
    Config, Labels, Proxy, Resolution, Service, ServiceTarget,
    api::{
        WorkloadEntry,
        kubernetes::{IntOrString, Pod, Service as KubernetesService, ServicePort},
    },
    selects,
};

use crate::{PushContext, attach::of_namespace, workload::is_vm};

impl PushContext {
    /// Lists the service ports that a proxy's workload serves, by creation time of the service, then
    /// host name; the ports of a service keep their order.
    pub fn service_targets(&self, proxy: &Proxy) -> Vec<ServiceTarget> {
        let mut targets = Vec::new();
        if self.is_of_own_cluster(proxy) {
            targets.extend(self.kubernetes_targets(proxy));
        }
        targets.extend(self.service_entry_targets(proxy));
        targets.sort_by(|a, b| {
            let (a, b) = (&a.service, &b.service);
            a.created
                .cmp(&b.created)
                .then_with(|| a.hostname.cmp(&b.hostname))
        });
        targets
    }

    fn kubernetes_targets(&self, proxy: &Proxy) -> Vec<ServiceTarget> {
        if let Some(entry) = self.workload_entry_at(proxy) {
            return self.targets_of_workload_entry(entry);
        }
        if let Some(pod) = self.pod_of(proxy)
            && !is_vm(proxy)
        {
            let mut services = self
                .selecting(&pod.meta.namespace, &pod.meta.labels)
                .peekable();
            if services.peek().is_none() {
                return self.targets_of_endpoints(proxy);
            }
            return services.flat_map(|s| self.targets_of_pod(s, pod)).collect();
        }
        self.targets_of_metadata(proxy)
    }

    /// Lists the Kubernetes services of a namespace that select a workload with these labels.
    fn selecting<'a>(
        &'a self,
        namespace: &'a str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<Config<KubernetesService>>> {
        self.kubernetes_services(namespace).filter(move |service| {
            let selector = &service.spec.spec.selector;
            !selector.is_empty() && selects(selector, labels)
        })
    }

    fn kubernetes_services<'a>(
        &'a self,
        namespace: &'a str,
    ) -> impl Iterator<Item = &'a Arc<Config<KubernetesService>>> {
        of_namespace(&self.state().objects.services, namespace)
    }

    /// Finds what the registry made of a Kubernetes service.
    fn derived(&self, service: &Config<KubernetesService>) -> Option<&Arc<Service>> {
        let meta = &service.meta;
        let hostname = model::host::expand(&meta.name, &meta.namespace, &self.identity().domain);
        self.services()
            .get(&hostname, &meta.namespace)
            .filter(|s| s.is_kubernetes())
    }

    /// Resolves the ports of a service on a pod. Ports that do not resolve are left out; of service
    /// ports that lead to one workload port the first counts.
    fn targets_of_pod(
        &self,
        service: &Config<KubernetesService>,
        pod: &Config<Pod>,
    ) -> Vec<ServiceTarget> {
        let Some(derived) = self.derived(service) else {
            return Vec::new();
        };
        let mut seen = BTreeSet::new();
        service
            .spec
            .spec
            .ports
            .iter()
            .filter_map(|port| {
                let number = match &port.target_port {
                    Some(IntOrString::String(name)) => container_port(&pod.spec, name, port)?,
                    _ => numeric_target(port)?,
                };
                let target = target(derived, port, number)?;
                seen.insert((number, transport(&port.protocol).to_owned()))
                    .then_some(target)
            })
            .collect()
    }

    /// Guesses from the proxy's metadata while its pod is not known. One port that does not resolve
    /// makes the whole answer empty.
    fn targets_of_metadata(&self, proxy: &Proxy) -> Vec<ServiceTarget> {
        let metadata = &proxy.metadata;
        if metadata.labels.is_empty() {
            return Vec::new();
        }
        let mut targets = Vec::new();
        for service in self.selecting(&proxy.namespace, &metadata.labels) {
            let Some(derived) = self.derived(service) else {
                return Vec::new();
            };
            let mut seen = BTreeSet::new();
            for port in &service.spec.spec.ports {
                let named = |name: &str| {
                    metadata
                        .pod_ports
                        .iter()
                        .find(|(n, _, p)| n == name && transport(p) == transport(&port.protocol))
                        .map(|(_, number, _)| *number)
                };
                let number = match &port.target_port {
                    Some(IntOrString::String(_)) if metadata.pod_ports.is_empty() => Some(0),
                    Some(IntOrString::String(name)) => named(name),
                    _ => numeric_target(port),
                };
                let Some(number) = number else {
                    return Vec::new();
                };
                let is_new = seen.insert((number, transport(&port.protocol).to_owned()));
                targets.extend(target(derived, port, number).filter(|_| is_new));
            }
        }
        targets
    }

    /// Services of the namespace, whatever they select, whose endpoints are at the proxy's first
    /// address.
    fn targets_of_endpoints(&self, proxy: &Proxy) -> Vec<ServiceTarget> {
        let Some(address) = proxy.addresses.first().map(ToString::to_string) else {
            return Vec::new();
        };
        let namespace = &*proxy.metadata.namespace;
        let mut targets = Vec::new();
        let services = self.kubernetes_services(namespace);
        for derived in services.filter_map(|service| self.derived(service)) {
            let endpoints = self
                .endpoints(&derived.key())
                .into_iter()
                .flat_map(|e| e.iter());
            for endpoint in endpoints.filter(|e| e.address() == address) {
                let Some(port) = derived.port_by_name(&endpoint.service_port_name) else {
                    continue;
                };
                targets.push(ServiceTarget {
                    service: derived.clone(),
                    port: port.clone(),
                    target_port: endpoint.port,
                });
            }
        }
        targets
    }

    /// Finds the WorkloadEntry with the proxy's first address: of several the one named like the
    /// proxy, else one of its namespace, else the first.
    fn workload_entry_at(&self, proxy: &Proxy) -> Option<&Arc<Config<WorkloadEntry>>> {
        let address = proxy.addresses.first()?.to_string();
        let names = self.workload_entries.at(&address);
        let table = &self.state().objects.workload_entries;
        let entries: Vec<_> = names.iter().filter_map(|name| table.get(name)).collect();
        let namespace = &*proxy.metadata.namespace;
        let is_named =
            |e: &Config<WorkloadEntry>| proxy.id == format!("{}.{}", e.meta.name, e.meta.namespace);
        entries
            .iter()
            .find(|e| is_named(e))
            .or_else(|| entries.iter().find(|e| *e.meta.namespace == *namespace))
            .or_else(|| entries.first())
            .copied()
    }

    /// Kubernetes services that select a WorkloadEntry (service-registry §14).
    fn targets_of_workload_entry(&self, entry: &Config<WorkloadEntry>) -> Vec<ServiceTarget> {
        let mut labels = entry.spec.labels.clone();
        labels.extend(entry.meta.labels.clone());
        let stated = |name: &str| {
            let port = entry.spec.ports.get(name).copied().filter(|p| *p > 0)?;
            u16::try_from(port).ok()
        };
        let mut targets = Vec::new();
        for service in self.selecting(&entry.meta.namespace, &labels) {
            let derived = self.derived(service);
            let Some(derived) = derived.filter(|s| s.resolution == Resolution::ClientSideLb) else {
                continue;
            };
            for port in &service.spec.spec.ports {
                let number = match &port.target_port {
                    Some(IntOrString::String(name)) => stated(name),
                    _ => stated(&port.name).or_else(|| numeric_target(port)),
                };
                targets.extend(number.and_then(|number| target(derived, port, number)));
            }
        }
        targets
    }

    /// Instances of ServiceEntries at the proxy's addresses.
    fn service_entry_targets(&self, proxy: &Proxy) -> Vec<ServiceTarget> {
        let namespace = &*proxy.metadata.namespace;
        proxy
            .addresses
            .iter()
            .map(ToString::to_string)
            .flat_map(|ip| self.state().instances_at(&ip).cloned().collect::<Vec<_>>())
            .filter(|i| namespace.is_empty() || *i.service.key.namespace == *namespace)
            .filter_map(|instance| {
                let service = self.state().services.get(&instance.service)?;
                Some(ServiceTarget {
                    service: service.clone(),
                    port: service.port(instance.service_port)?.clone(),
                    target_port: instance.endpoint.port,
                })
            })
            .collect()
    }
}

/// The transport protocol of a port; empty means TCP.
fn transport(protocol: &str) -> &str {
    if protocol.is_empty() { "TCP" } else { protocol }
}

/// A numeric target port; when absent, the service port.
fn numeric_target(port: &ServicePort) -> Option<u16> {
    match port.target_port {
        Some(IntOrString::Int(number)) if number != 0 => u16::try_from(number).ok(),
        Some(IntOrString::String(_)) => None,
        _ => u16::try_from(port.port).ok(),
    }
}

/// Finds a container port by name and transport; sidecar containers come last.
fn container_port(pod: &Pod, name: &str, port: &ServicePort) -> Option<u16> {
    let native_sidecars = pod
        .spec
        .init_containers
        .iter()
        .filter(|c| c.restart_policy.as_deref() == Some("Always"));
    pod.spec
        .containers
        .iter()
        .chain(native_sidecars)
        .flat_map(|container| &container.ports)
        .find(|p| p.name == name && transport(&p.protocol) == transport(&port.protocol))
        .and_then(|p| u16::try_from(p.container_port).ok())
}

fn target(service: &Arc<Service>, port: &ServicePort, target_port: u16) -> Option<ServiceTarget> {
    // A number may stand twice, once for each transport.
    let number = u16::try_from(port.port).ok()?;
    let named = service.port_by_name(&port.name);
    let named = named.filter(|named| named.port == number);
    let port = named.or_else(|| service.port(number))?.clone();
    Some(ServiceTarget {
        service: service.clone(),
        port,
        target_port,
    })
}

//! EndpointSlices, pods and WorkloadEntries to the endpoints of a Kubernetes service
//! (service-registry §5, §14).

use std::{collections::BTreeSet, sync::Arc};

use model::{
    Config, Endpoint, Health, NamespacedName, Service, Table,
    api::kubernetes::{self, IntOrString},
    selects,
    service::TrafficDistribution,
    turn::Turn,
};
use rustc_hash::FxHashMap;

use super::{
    labels::LabelIndex,
    settings::Settings,
    workload::{Workload, bare_endpoint},
};
use crate::few::Few;

/// An address that a slice lists for a pod that is not there (any more, or yet).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Parked {
    /// The pod that the slice names.
    pub(crate) pod: NamespacedName,
    /// The address.
    pub(crate) address: Arc<str>,
}

/// What the endpoints of services are derived from.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) settings: &'a Settings,
    pub(crate) slices: &'a Table<kubernetes::EndpointSlice>,
    pub(crate) pods: &'a FxHashMap<NamespacedName, Arc<Workload>>,
    /// Pods by address.
    pub(crate) claims: &'a FxHashMap<Arc<str>, Few<NamespacedName>>,
    pub(crate) workload_entries: &'a FxHashMap<NamespacedName, Arc<Workload>>,
    pub(crate) workload_entry_labels: &'a LabelIndex,
}

/// Facts of a Service that its endpoints depend on.
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
struct ServiceFacts {
    known: bool,
    drains: bool,
    dual_stack: bool,
    send_unhealthy: bool,
}

impl ServiceFacts {
    fn of(service: Option<(&Config<kubernetes::Service>, &Service)>, settings: &Settings) -> Self {
        let features = &settings.features;
        let has = |label: &str| {
            service.is_some_and(|(c, _)| c.meta.labels.get(label).is_some_and(|v| !v.is_empty()))
        };
        Self {
            known: service.is_some(),
            drains: has(&features.persistent_session_label)
                || has(&features.persistent_session_header_label),
            dual_stack: features.dual_stack
                && service.is_some_and(|(c, _)| c.spec.spec.cluster_ips.len() > 1),
            send_unhealthy: features.auto_send_unhealthy_endpoints
                || features.send_unhealthy_endpoints
                || service.is_some_and(|(_, s)| {
                    s.attributes.traffic_distribution != TrafficDistribution::Any
                }),
        }
    }

    /// The health of the endpoint of a pod whose turn it is, or is not, whatever its slices say.
    fn health_in_turn(&self, turn: Turn, conditions: &kubernetes::SliceConditions) -> Health {
        let ready = conditions.ready;
        let known = match turn {
            Turn::Coming if conditions.terminating != Some(true) => kubernetes::SliceConditions {
                ready: Some(true),
                ..conditions.clone()
            },
            Turn::Leaving => kubernetes::SliceConditions {
                ready: Some(false),
                serving: conditions.serving.or(ready),
                terminating: Some(true),
            },
            Turn::Listed | Turn::Coming => return self.health(conditions),
        };
        self.health(&known)
    }

    /// The health of an endpoint; unset `terminating` counts as terminating.
    fn health(&self, conditions: &kubernetes::SliceConditions) -> Health {
        if conditions.ready.unwrap_or(true) {
            return Health::Healthy;
        }
        let terminating = self.known && conditions.terminating.unwrap_or(true);
        match (
            terminating,
            self.drains && conditions.serving.unwrap_or(true),
        ) {
            (true, true) => Health::Draining,
            (true, false) => Health::Terminating,
            (false, _) => Health::Unhealthy,
        }
    }
}

/// Derives the endpoints of the service `name`, and the addresses that wait for their pods.
///
/// `slices` are the names of its slices. The Service itself may be unknown. Endpoints are in the order
/// of slice names, addresses, ports; of two for the same address and port the first counts.
pub(crate) fn derive(
    name: &NamespacedName,
    service: Option<(&Config<kubernetes::Service>, &Service)>,
    slices: &Few<Arc<str>>,
    inputs: Inputs<'_>,
) -> (Vec<Arc<Endpoint>>, Vec<Parked>) {
    let facts = ServiceFacts::of(service, inputs.settings);
    let mut collected = Collected::default();
    for slice in slices.iter() {
        let key = NamespacedName {
            namespace: name.namespace.clone(),
            name: slice.clone(),
        };
        if let Some(slice) = inputs.slices.get(&key) {
            from_slice(slice, &facts, inputs, &mut collected);
        }
    }
    if let Some((config, service)) = service {
        from_workload_entries(config, service, inputs, &mut collected);
    }
    collected.parked.sort_unstable();
    collected.parked.dedup();
    (collected.endpoints, collected.parked)
}

#[derive(Default)]
struct Collected {
    endpoints: Vec<Arc<Endpoint>>,
    seen: BTreeSet<(Arc<str>, Arc<str>)>,
    parked: Vec<Parked>,
}

impl Collected {
    fn push(&mut self, endpoint: Endpoint) {
        let address = endpoint.addresses.first().cloned().unwrap_or_default();
        if self
            .seen
            .insert((address, endpoint.service_port_name.clone()))
        {
            self.endpoints.push(Arc::new(endpoint));
        }
    }
}

fn from_slice(
    slice: &Config<kubernetes::EndpointSlice>,
    facts: &ServiceFacts,
    inputs: Inputs<'_>,
    collected: &mut Collected,
) {
    let settings = inputs.settings;
    let ports: Vec<(Arc<str>, u16)> = slice
        .spec
        .ports
        .iter()
        .filter_map(|p| {
            let number = u16::try_from(p.port.unwrap_or_default()).ok()?;
            Some((p.name.as_deref().unwrap_or_default().into(), number))
        })
        .collect();
    for listed in &slice.spec.endpoints {
        let expected = pod_behind(listed, &slice.meta.namespace);
        for address in &listed.addresses {
            let address: Arc<str> = address.as_str().into();
            let workload = if let Some(pod) = &expected {
                let Some(workload) = inputs
                    .pods
                    .get(pod)
                    .filter(|w| inputs.holds(pod, w, &address))
                else {
                    collected.parked.push(Parked {
                        pod: pod.clone(),
                        address,
                    });
                    continue;
                };
                Some(workload)
            } else {
                inputs.ready_pod_at(&address, &slice.meta.namespace)
            };
            let turn = workload.map_or(Turn::Listed, |workload| workload.turn);
            let health = facts.health_in_turn(turn, &listed.conditions);
            let mut addresses = vec![address.clone()];
            if let Some(workload) = workload
                && expected.is_some()
                && facts.dual_stack
                && workload.addresses.len() > 1
            {
                if slice.spec.address_type == "IPv6" {
                    continue;
                }
                addresses.clone_from(&workload.addresses);
            }
            for (port_name, port) in &ports {
                let mut endpoint = match workload {
                    Some(w) => w.endpoint(addresses.clone(), *port, port_name.clone(), settings),
                    None => bare_endpoint(address.clone(), *port, port_name.clone(), settings),
                };
                endpoint.health = health;
                endpoint.send_unhealthy = facts.send_unhealthy;
                collected.push(endpoint);
            }
        }
    }
}

/// The pod that a slice names for an endpoint.
pub(crate) fn pod_behind(
    listed: &kubernetes::SliceEndpoint,
    slice_namespace: &Arc<str>,
) -> Option<NamespacedName> {
    let target = listed.target_ref.as_ref().filter(|t| t.kind == "Pod")?;
    let namespace = if target.namespace.is_empty() {
        slice_namespace.clone()
    } else {
        target.namespace.as_str().into()
    };
    Some(NamespacedName {
        namespace,
        name: target.name.as_str().into(),
    })
}

impl<'a> Inputs<'a> {
    /// Tells whether a pod still has an address: it says so, and no other pod was given it since.
    fn holds(&self, pod: &NamespacedName, workload: &Workload, address: &Arc<str>) -> bool {
        if !workload.addresses.contains(address) {
            return false;
        }
        let others = self
            .claims
            .get(address)
            .into_iter()
            .flat_map(Few::iter)
            .filter(|other| *other != pod);
        !others
            .filter_map(|other| self.pods.get(other))
            .any(|other| other.supersedes(workload))
    }

    /// Finds the pod behind an address that a slice lists without naming one: a ready pod of the
    /// slice's namespace, the youngest, then the first by name.
    fn ready_pod_at(&self, address: &Arc<str>, namespace: &Arc<str>) -> Option<&'a Arc<Workload>> {
        let claims = self.claims.get(address)?;
        let pods = claims.iter().filter(|p| p.namespace == *namespace);
        let ready = pods
            .filter_map(|p| self.pods.get(p))
            .filter(|w| w.selectable);
        ready.reduce(|best, next| {
            if next.created > best.created {
                next
            } else {
                best
            }
        })
    }
}

/// Adds the WorkloadEntries that the service selects.
fn from_workload_entries(
    config: &Config<kubernetes::Service>,
    service: &Service,
    inputs: Inputs<'_>,
    collected: &mut Collected,
) {
    let settings = inputs.settings;
    if !selects_workload_entries(service, settings) {
        return;
    }
    let selector = &service.attributes.selector;
    let namespace = &config.meta.namespace;
    for name in inputs.workload_entry_labels.candidates(namespace, selector) {
        let key = NamespacedName {
            namespace: namespace.clone(),
            name: name.clone(),
        };
        let Some(workload) = inputs.workload_entries.get(&key) else {
            continue;
        };
        if workload.dns_only || !workload.selectable || !selects(selector, &workload.labels) {
            continue;
        }
        for spec in &config.spec.spec.ports {
            let Some(port) = service.port_by_name(&spec.name) else {
                continue;
            };
            let mapped = |name: &str| workload.ports.get(name).copied().filter(|p| *p != 0);
            let target = match &spec.target_port {
                Some(IntOrString::String(name)) => mapped(name),
                Some(IntOrString::Int(number)) if *number > 0 => {
                    mapped(&spec.name).or_else(|| u16::try_from(*number).ok())
                }
                Some(IntOrString::Int(_)) | None => Some(port.port),
            };
            let Some(target) = target else { continue };
            let addresses = workload.addresses.clone();
            collected.push(workload.endpoint(addresses, target, port.name.clone(), settings));
        }
    }
}

/// Tells whether a Kubernetes service takes WorkloadEntries as endpoints at all.
pub(crate) fn selects_workload_entries(service: &Service, settings: &Settings) -> bool {
    settings.features.kubernetes_select_workload_entries
        && service.is_kubernetes()
        && !service.mesh_external
        && service.resolution == model::Resolution::ClientSideLb
        && !service.attributes.selector.is_empty()
}

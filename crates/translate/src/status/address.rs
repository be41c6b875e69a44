//! Where gateways are reached.

use std::collections::BTreeSet;

use model::{
    MeshState, NamespacedName, Service, ServiceKey,
    api::kubernetes::{LoadBalancerIngress, Service as KubernetesService},
    service::ServiceType,
};
use serde_json::{Value, json};

use crate::report::{GatewayReport, Refusal, Verdict};

/// Where one Gateway is reached.
#[derive(Debug)]
pub(super) struct Reach {
    /// Host and port of the services that lead to it.
    pub services: Vec<String>,
    /// What to say where it is reached; empty when there is nothing to be said yet.
    pub addresses: Vec<Value>,
    /// Whether it can be reached.
    pub programmed: Verdict,
}

impl Reach {
    /// Looks for the services of a Gateway, and for their endpoints on `ports`.
    pub(super) fn find(
        state: &MeshState,
        report: &GatewayReport,
        ports: impl Iterator<Item = u32>,
    ) -> Self {
        let ports: BTreeSet<u32> = ports.collect();
        let (mut services, mut outside) = (Vec::new(), Vec::new());
        let (mut inside, mut warnings, mut pending) = (Vec::new(), Vec::new(), Vec::new());
        for host in &report.services {
            let mut all = state.services.values();
            // Hosts of Kubernetes say their namespace.
            let namespace = host.split('.').nth(1).unwrap_or_default();
            let found = crate::service(state, namespace, host)
                .or_else(|| all.find(|service| *service.hostname == **host));
            let Some(service) = found else {
                warnings.push(format!("hostname {host:?} not found"));
                continue;
            };
            let led = ports
                .iter()
                .filter(|port| match leads(state, service, **port) {
                    Ok(()) => true,
                    Err(warning) => {
                        warnings.push(warning);
                        false
                    }
                });
            let led: Vec<String> = led.map(|port| format!("{host}:{port}")).collect();
            if led.is_empty() {
                continue;
            }
            services.extend(led);
            let addresses = &service.attributes.cluster_external_addresses;
            let addresses = addresses.get(&state.identity.cluster);
            let object = NamespacedName::new(namespace, &*service.attributes.name);
            let named = state.objects.services.get(&object);
            outside.extend(of_service(named.map(|object| &object.spec), addresses));
            if service.attributes.service_type == ServiceType::LoadBalancer && outside.is_empty() {
                pending.push(host.clone());
            } else if report.by_address {
                let own = &*service.default_address;
                if !own.is_empty() && own != model::service::UNSPECIFIED_ADDRESS {
                    inside.push(json!({"type": "IPAddress", "value": own}));
                }
            } else {
                inside.push(json!({"type": "Hostname", "value": host}));
            }
        }
        let programmed = if let Some(host) = pending.first().filter(|_| outside.is_empty()) {
            let message = format!(
                "Assigned to service(s) {}, but failed to assign to all requested addresses: \
                 address pending for hostname {host:?}",
                services.join(" and ")
            );
            Err(Refusal::new("AddressNotAssigned", message))
        } else if warnings.is_empty() || ports.is_empty() {
            Ok(())
        } else if services.is_empty() {
            let message = format!(
                "Failed to assign to any requested addresses: {}",
                warnings.join("; ")
            );
            Err(Refusal::new("Invalid", message))
        } else {
            let message = format!(
                "Assigned to service(s) {}, but failed to assign to all requested addresses: {}",
                services.join(" and "),
                warnings.join("; ")
            );
            Err(Refusal::new("AddressNotAssigned", message))
        };
        Self {
            services,
            addresses: if outside.is_empty() { inside } else { outside },
            programmed,
        }
    }
}

/// Looks whether a port of a service leads anywhere.
///
/// # Errors
/// What is missing.
fn leads(state: &MeshState, service: &Service, port: u32) -> Result<(), String> {
    let host = &service.hostname;
    let known = u16::try_from(port).ok().and_then(|port| service.port(port));
    let Some(known) = known else {
        return Err(format!("port {port} not found for hostname {host:?}"));
    };
    let key = ServiceKey::new(service.attributes.namespace.clone(), host.clone());
    let endpoints = state.endpoints.get(&key);
    let mut endpoints = endpoints
        .into_iter()
        .flat_map(|endpoints| endpoints.shards.values())
        .flat_map(|shard| shard.iter());
    if endpoints.any(|endpoint| endpoint.service_port_name == known.name) {
        Ok(())
    } else {
        Err(format!("no instances found for hostname {host:?}"))
    }
}

/// Addresses outside the cluster that lead to a service: of its load balancer, and those it states.
fn of_service(
    object: Option<&KubernetesService>,
    known: Option<&Vec<std::sync::Arc<str>>>,
) -> Vec<Value> {
    let kind = |address: &str| match address.parse::<std::net::IpAddr>() {
        Ok(_) => json!({"type": "IPAddress", "value": address}),
        Err(_) => json!({"type": "Hostname", "value": address}),
    };
    let Some(object) = object else {
        return known
            .into_iter()
            .flatten()
            .map(|address| kind(address))
            .collect();
    };
    let balancer = object.status.load_balancer.ingress.iter();
    let balancer = balancer.flat_map(|ingress| [&ingress.ip, &ingress.hostname]);
    let all = balancer.chain(&object.spec.external_ips);
    all.filter(|address| !address.is_empty())
        .map(|address| kind(address))
        .collect()
}

/// Where Ingresses are reached (gateways §19.4): the addresses of the ingress service, or else those of the
/// node of a pod that serves them; sorted by name, then by address.
pub(super) fn of_ingresses(state: &MeshState) -> Vec<Value> {
    let (mesh, namespace) = (&state.mesh, &*state.features.ingress_namespace);
    let service = NamespacedName::new(namespace, &*mesh.ingress_service);
    let mut found: Vec<(String, String)> = match state.objects.services.get(&service) {
        Some(service) if service.spec.spec.r#type == "ExternalName" => {
            vec![(service.spec.spec.external_name.clone(), String::new())]
        }
        Some(service) => {
            let balancer = service.spec.status.load_balancer.ingress.iter();
            let balancer =
                balancer.map(|LoadBalancerIngress { ip, hostname }| (hostname.clone(), ip.clone()));
            let stated = service.spec.spec.external_ips.iter();
            balancer
                .chain(stated.map(|ip| (String::new(), ip.clone())))
                .collect()
        }
        None => of_nodes(state, namespace),
    };
    found.sort();
    found.dedup();
    let entry = |(name, ip): (String, String)| {
        let mut entry = serde_json::Map::new();
        for (field, value) in [("hostname", name), ("ip", ip)] {
            if !value.is_empty() {
                entry.insert(field.to_owned(), json!(value));
            }
        }
        Value::Object(entry)
    };
    found.into_iter().map(entry).collect()
}

/// External addresses of the node of the first running pod that serves Ingresses.
fn of_nodes(state: &MeshState, namespace: &str) -> Vec<(String, String)> {
    let selector = match &*state.mesh.ingress_selector {
        "" => "ingressgateway",
        selector => selector,
    };
    let objects = &state.objects;
    let pod = objects.pods.values().find(|pod| {
        *pod.meta.namespace == *namespace
            && pod.spec.status.phase == "Running"
            && pod
                .meta
                .labels
                .get("istio")
                .is_some_and(|label| label == selector)
    });
    let node = pod.and_then(|pod| {
        let name = NamespacedName::new("", pod.spec.spec.node_name.as_str());
        objects.nodes.get(&name)
    });
    let addresses = node.map_or(&[][..], |node| &node.spec.status.addresses);
    let outside = addresses
        .iter()
        .filter(|address| address.r#type == "ExternalIP");
    outside
        .map(|address| (String::new(), address.address.clone()))
        .collect()
}

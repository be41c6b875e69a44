//! ServiceEntries that describe one host in different ways.

use std::collections::{BTreeMap, BTreeSet};

use model::{ConfigKey, Resolution, Service};

use super::{Advice, list, name};
use crate::{PushContext, order::CreationOrder};

pub(super) fn check(context: &PushContext, advice: &mut Vec<Advice>) {
    let mut by_host: BTreeMap<&str, BTreeMap<&ConfigKey, &Service>> = BTreeMap::new();
    for service in context.state().services.values() {
        if !service.is_kubernetes() {
            // One entry has a service for each of its addresses; they describe the host alike.
            let entries = by_host.entry(&service.hostname).or_default();
            entries.entry(service.source.key()).or_insert(service);
        }
    }
    for (host, entries) in by_host.into_iter().filter(|(_, entries)| entries.len() > 1) {
        let mut services: Vec<&Service> = entries.into_values().collect();
        services.sort_by(|a, b| a.by_creation(b));
        for (at, later) in services.iter().enumerate() {
            let earlier = services[..at].iter().find_map(|earlier| {
                let differences = differences(earlier, later);
                (!differences.is_empty() && meet(context, earlier, later))
                    .then_some((earlier, differences))
            });
            let Some((earlier, differences)) = earlier else {
                continue;
            };
            advice.push(Advice {
                object: later.source.key().clone(),
                field: field(context, later.source.key(), host),
                reason: format!(
                    "{} has the host {host} too and says otherwise: {}; which of them counts \
                     depends on the client's namespace and on their age",
                    name(earlier.source.key()),
                    list(differences)
                ),
            });
        }
    }
}

/// Where an entry names a host.
fn field(context: &PushContext, entry: &ConfigKey, host: &str) -> String {
    let table = &context.state().objects.service_entries;
    let name = model::NamespacedName::new(entry.namespace.clone(), entry.name.clone());
    let hosts = table.get(&name).map_or(&[][..], |entry| &entry.spec.hosts);
    let at = hosts.iter().position(|h| h.eq_ignore_ascii_case(host));
    at.map_or_else(|| "spec.hosts".to_owned(), |at| format!("spec.hosts[{at}]"))
}

/// In what two entries contradict each other, as the later one and then the earlier one has it.
fn differences(earlier: &Service, later: &Service) -> Vec<String> {
    let mut differences = Vec::new();
    if earlier.resolution != later.resolution {
        let (is, was) = (resolution(later), resolution(earlier));
        differences.push(format!("resolution {is} here, {was} there"));
    }
    if earlier.mesh_external != later.mesh_external {
        let location = |service: &Service| {
            if service.mesh_external {
                "MESH_EXTERNAL"
            } else {
                "MESH_INTERNAL"
            }
        };
        let (is, was) = (location(later), location(earlier));
        differences.push(format!("location {is} here, {was} there"));
    }
    for port in &later.ports {
        let Some(other) = earlier.ports.iter().find(|other| other.port == port.port) else {
            continue;
        };
        if other.protocol != port.protocol {
            let (is, was) = (port.protocol.as_str(), other.protocol.as_str());
            differences.push(format!("port {} {is} here, {was} there", port.port));
        }
    }
    differences
}

fn resolution(service: &Service) -> &'static str {
    match service.resolution {
        Resolution::ClientSideLb => "STATIC",
        Resolution::DnsLb => "DNS",
        Resolution::DnsRoundRobinLb => "DNS_ROUND_ROBIN",
        Resolution::Passthrough => "NONE",
        Resolution::DynamicDns => "DYNAMIC_DNS",
        Resolution::Alias => "an alias",
    }
}

/// Tells whether clients of some namespace see both.
fn meet(context: &PushContext, a: &Service, b: &Service) -> bool {
    // No namespace has an empty name: it stands for those that nobody mentions.
    let mut namespaces = BTreeSet::from([""]);
    for service in [a, b] {
        let attributes = &service.attributes;
        namespaces.insert(&attributes.namespace);
        namespaces.extend(attributes.export_to.0.iter().map(String::as_str));
    }
    let sees = |service, namespace| context.is_visible(service, namespace);
    namespaces.into_iter().any(|n| sees(a, n) && sees(b, n))
}

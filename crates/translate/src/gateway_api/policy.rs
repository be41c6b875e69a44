//! `BackendTLSPolicy` objects as DestinationRules: one for each host, with the ports that policies
//! name on their own.

use std::{
    collections::{BTreeMap, BTreeSet, btree_map::Entry},
    sync::Arc,
};

use model::{
    Config, MeshState, Meta, NamespacedName,
    api::{
        DestinationRule,
        common::{ClientTlsMode, ClientTlsSettings, PortSelector},
        destination_rule::{PortTrafficPolicy, TrafficPolicy},
        gateway_api::{
            BackendTlsPolicy, BackendTlsTarget, BackendTlsValidation, SubjectAltNameType,
        },
    },
};

use super::{Attached, INFIX, PARENTS};
use crate::report::{PolicyReport, Refusal, Reports, Verdict};

/// Names a secret that is never served.
const INVALID: &str = "invalid://";

/// The rule of one host while it grows.
struct Rule<'a> {
    oldest: &'a Meta,
    name: String,
    tls: Option<ClientTlsSettings>,
    ports: BTreeMap<u32, ClientTlsSettings>,
}

pub(super) fn translate(
    state: &MeshState,
    attached: &Attached,
    output: &mut Vec<Config<DestinationRule>>,
    reports: &mut Reports,
) {
    let mut policies: Vec<_> = state.objects.backend_tls_policies.values().collect();
    policies.sort_by_key(|policy| policy.meta.creation_order());
    let mut rules: BTreeMap<(String, String), Rule<'_>> = BTreeMap::new();
    for policy in policies {
        let namespace = policy.meta.namespace.to_string();
        let resolved = check(state, &namespace, &policy.spec.validation);
        // It is for something as soon as one target takes it.
        let mut accepted = Err(Refusal::new("TargetNotFound", "no target is there"));
        let mut gateways = BTreeSet::new();
        for target in &policy.spec.target_refs {
            for (host, name) in hosts(state, &namespace, target) {
                gateways.extend(attached.gateways.get(&host).into_iter().flatten().cloned());
                let port = match &target.section_name {
                    Some(section) => {
                        let service = crate::service(state, &namespace, &host);
                        let port = service.and_then(|s| s.port_by_name(section));
                        let Some(port) = port else { continue };
                        Some(u32::from(port.port))
                    }
                    None => None,
                };
                let exists = crate::service(state, &namespace, &host).is_some();
                let taken = format!("an older policy is for {host}");
                let key = (namespace.clone(), host);
                let rule = rules.entry(key).or_insert_with(|| Rule {
                    oldest: &policy.meta,
                    name,
                    tls: None,
                    ports: BTreeMap::new(),
                });
                // Of policies for one target the oldest counts.
                let is_taken = match port {
                    Some(port) => match rule.ports.entry(port) {
                        Entry::Occupied(_) => true,
                        Entry::Vacant(free) => {
                            free.insert(settings(state, policy));
                            false
                        }
                    },
                    None if rule.tls.is_some() => true,
                    None => {
                        rule.tls = Some(settings(state, policy));
                        false
                    }
                };
                if !is_taken && exists {
                    accepted = Ok(());
                } else if exists && accepted.is_err() {
                    accepted = Err(Refusal::new("Conflicted", taken));
                }
            }
        }
        if resolved.is_err() && accepted.is_ok() {
            let message = "no certificate that verifies the backend can be used";
            accepted = Err(Refusal::new("NoValidCACertificate", message));
        }
        let report = PolicyReport {
            generation: policy.meta.generation,
            accepted,
            resolved,
            gateways,
        };
        let name = policy.meta.namespaced_name();
        reports.policies.insert(name, Arc::new(report));
    }
    for ((namespace, host), rule) in rules {
        let of_ports = rule
            .ports
            .into_iter()
            .map(|(number, tls)| PortTrafficPolicy {
                port: Some(PortSelector { number }),
                tls: Some(tls),
                ..PortTrafficPolicy::default()
            });
        let spec = DestinationRule {
            host,
            traffic_policy: Some(TrafficPolicy {
                tls: rule.tls,
                port_level_settings: of_ports.collect(),
                ..TrafficPolicy::default()
            }),
            ..DestinationRule::default()
        };
        output.push(crate::config(
            &namespace,
            &rule.name,
            rule.oldest,
            spec,
            |meta| {
                let parent = format!("BackendTLSPolicy/{}.{namespace}", rule.oldest.name);
                crate::annotate(meta, PARENTS, parent);
                // They come before what users write, whose rules are laid over them.
                meta.created = model::Timestamp::default();
            },
        ));
    }
}

/// Lists the hosts of a target, each with the name of its rule.
fn hosts(state: &MeshState, namespace: &str, target: &BackendTlsTarget) -> Vec<(String, String)> {
    match (target.group.as_str(), target.kind.as_str()) {
        ("", "Service") => {
            let host = crate::service_host(state, &target.name, namespace);
            vec![(host, format!("{}~{INFIX}", target.name))]
        }
        ("networking.istio.io", "ServiceEntry") => {
            let key = NamespacedName::new(namespace, target.name.as_str());
            let entry = state.objects.service_entries.get(&key);
            let hosts = entry.map_or(&[][..], |entry| &entry.spec.hosts);
            hosts
                .iter()
                .map(|host| {
                    let dashed = host.replace('.', "-");
                    (host.clone(), format!("{}~{dashed}~{INFIX}", target.name))
                })
                .collect()
        }
        _ => Vec::new(),
    }
}

fn settings(state: &MeshState, policy: &Config<BackendTlsPolicy>) -> ClientTlsSettings {
    let validation = &policy.spec.validation;
    let names = validation.subject_alt_names.iter();
    let names = names.filter_map(|name| match name.r#type {
        SubjectAltNameType::Hostname => name.hostname.clone(),
        SubjectAltNameType::Uri => name.uri.clone(),
    });
    ClientTlsSettings {
        mode: ClientTlsMode::Simple,
        sni: validation.hostname.clone(),
        subject_alt_names: names.collect(),
        credential_name: credential(state, &policy.meta.namespace, validation),
        ..ClientTlsSettings::default()
    }
}

/// Says whether the certificates of a policy can be used, as far as it names any.
fn check(state: &MeshState, namespace: &str, validation: &BackendTlsValidation) -> Verdict {
    let Some(reference) = validation.ca_certificate_refs.first() else {
        return Ok(());
    };
    if credential(state, namespace, validation) != INVALID {
        return Ok(());
    }
    let (group, kind, name) = (&reference.group, &reference.kind, &reference.name);
    if group.is_empty() && kind == "ConfigMap" {
        let message = format!("ConfigMap {namespace}/{name} holds no certificate");
        return Err(Refusal::new("InvalidCACertificateRef", message));
    }
    let message = format!("certificates of group {group:?} kind {kind:?} are not supported");
    Err(Refusal::new("InvalidKind", message))
}

/// Names the certificates that verify a backend: empty for those of the platform, and of the first
/// reference else. One that leads nowhere gives a name that is never served, so that traffic stops
/// instead of going unverified.
fn credential(state: &MeshState, namespace: &str, validation: &BackendTlsValidation) -> String {
    if validation.well_known_ca_certificates.is_some() {
        return String::new();
    }
    let Some(reference) = validation.ca_certificate_refs.first() else {
        return String::new();
    };
    let key = NamespacedName::new(namespace, reference.name.as_str());
    let found = match (reference.group.as_str(), reference.kind.as_str()) {
        ("", "ConfigMap") => state.objects.config_maps.get(&key),
        _ => None,
    };
    let has =
        |key: &str| found.is_some_and(|map| map.spec.data.get(key).is_some_and(|v| !v.is_empty()));
    if has("cacert") || has("ca.crt") {
        format!("configmap://{key}")
    } else {
        INVALID.to_owned()
    }
}

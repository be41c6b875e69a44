//! Routes to hosts, ports and subsets that do not exist.

use std::collections::BTreeMap;

use model::{
    Service,
    api::{DestinationRule, VirtualService, common::Destination},
    host,
};

use super::{Advice, Written, key, list, ports};
use crate::PushContext;

pub(super) fn check(context: &PushContext, written: &[Written<'_>], advice: &mut Vec<Advice>) {
    let rules = Rules::new(context);
    for vs in written {
        let namespace = &*vs.config.meta.namespace;
        each(&vs.spec, |field, destination| {
            if let Some((part, reason)) = problem(context, &rules, namespace, destination) {
                advice.push(Advice {
                    object: key(vs.config),
                    field: format!("{field}.{part}"),
                    reason,
                });
            }
        });
    }
}

/// Visits every destination with the path of its field.
fn each(spec: &VirtualService, mut visit: impl FnMut(String, &Destination)) {
    for (at, rule) in spec.http.iter().enumerate() {
        for (to, route) in rule.route.iter().enumerate() {
            if let Some(destination) = &route.destination {
                visit(
                    format!("spec.http[{at}].route[{to}].destination"),
                    destination,
                );
            }
        }
        if let Some(destination) = &rule.mirror {
            visit(format!("spec.http[{at}].mirror"), destination);
        }
        for (to, mirror) in rule.mirrors.iter().enumerate() {
            if let Some(destination) = &mirror.destination {
                visit(
                    format!("spec.http[{at}].mirrors[{to}].destination"),
                    destination,
                );
            }
        }
    }
    let tls = spec.tls.iter().map(|rule| &rule.route).enumerate();
    let tcp = spec.tcp.iter().map(|rule| &rule.route).enumerate();
    let tls = tls.map(|(at, routes)| ("tls", at, routes));
    for (list, at, routes) in tls.chain(tcp.map(|(at, routes)| ("tcp", at, routes))) {
        for (to, route) in routes.iter().enumerate() {
            if let Some(destination) = &route.destination {
                visit(
                    format!("spec.{list}[{at}].route[{to}].destination"),
                    destination,
                );
            }
        }
    }
}

/// The part of a destination that is wrong, and why.
fn problem(
    context: &PushContext,
    rules: &Rules<'_>,
    namespace: &str,
    destination: &Destination,
) -> Option<(&'static str, String)> {
    let hostname = &*destination.host;
    if hostname.is_empty() {
        return None;
    }
    let services: Vec<&Service> = context.services().by_host(hostname).map(|s| &**s).collect();
    if services.is_empty() {
        return unknown_host(context, hostname).map(|reason| ("host", reason));
    }
    if let Some(port) = destination.port.as_ref().filter(|port| port.number != 0) {
        let has = |s: &&Service| s.ports.iter().any(|p| u32::from(p.port) == port.number);
        if !services.iter().any(has) {
            let number = port.number;
            let known = ports(services[0]);
            let reason = format!("{hostname} has no port {number}, only {known}");
            return Some(("port.number", reason));
        }
    }
    let subset = &*destination.subset;
    if subset.is_empty() {
        return None;
    }
    let owners = services.iter().map(|s| &*s.attributes.namespace);
    let known = owners.clone().any(|owner| {
        let rules = context
            .destination_rules()
            .lookup(namespace, owner, hostname);
        rules
            .iter()
            .any(|rule| has_subset(&rule.config.spec, subset))
    });
    if known {
        return None;
    }
    rules
        .without(hostname, subset)
        .map(|reason| ("subset", reason))
}

/// Why no service has the host; nothing when the input cannot tell.
fn unknown_host(context: &PushContext, hostname: &str) -> Option<String> {
    let objects = &context.state().objects;
    let domain = format!(".svc.{}", context.identity().domain);
    let stem = hostname.strip_suffix(&domain);
    if stem.is_some() && objects.services.is_empty() {
        // A folder without a single Service leaves them to the cluster.
        return None;
    }
    let first = stem.and_then(|stem| stem.split('.').next());
    let alike = first.map(|first| {
        let services = objects.services.keys().filter(|s| *s.name == *first);
        list(services.map(|s| format!("{}.{}{domain}", s.name, s.namespace)))
    });
    if let Some(alike) = alike.filter(|alike| !alike.is_empty()) {
        return Some(format!(
            "no service has the host {hostname}; there is {alike}"
        ));
    }
    let wildcard = context.state().services.values().find(|service| {
        host::is_wildcard(&service.hostname) && host::matches(&service.hostname, hostname)
    });
    Some(match wildcard {
        Some(service) => format!(
            "no service has the host {hostname}: the {} has {}, and a destination has to be \
             written as the service's host is",
            super::name(service.source.key()),
            service.hostname
        ),
        None => format!("no service has the host {hostname}"),
    })
}

fn has_subset(rule: &DestinationRule, subset: &str) -> bool {
    rule.subsets.iter().any(|s| s.name == subset)
}

/// All DestinationRules as they are written, by expanded host.
struct Rules<'a>(BTreeMap<String, Vec<(String, &'a DestinationRule)>>);

impl<'a> Rules<'a> {
    fn new(context: &'a PushContext) -> Self {
        let mut rules: BTreeMap<String, Vec<_>> = BTreeMap::new();
        for config in context.state().objects.destination_rules.values() {
            let (meta, spec) = (&config.meta, &config.spec);
            let hostname = host::expand(&spec.host, &meta.namespace, &context.identity().domain);
            let name = format!("{}/{}", meta.namespace, meta.name);
            rules
                .entry(hostname.into_owned())
                .or_default()
                .push((name, spec));
        }
        Self(rules)
    }

    /// Why nobody has a subset of a host; nothing when some rule, in force here or not, has it.
    fn without(&self, hostname: &str, subset: &str) -> Option<String> {
        let exact = self.0.get(hostname).into_iter();
        let wildcards = self
            .0
            .iter()
            .filter(|(pattern, _)| host::is_wildcard(pattern) && host::matches(pattern, hostname));
        let all: Vec<_> = exact
            .chain(wildcards.map(|(_, rules)| rules))
            .flatten()
            .collect();
        if all.iter().any(|(_, rule)| has_subset(rule, subset)) {
            return None;
        }
        let known = all.iter().filter(|(_, rule)| !rule.subsets.is_empty());
        let known = known.map(|(name, rule)| {
            let subsets = list(rule.subsets.iter().map(|s| s.name.clone()));
            format!("DestinationRule {name} has {subsets}")
        });
        let known = list(known);
        let of = format!("{hostname} has no subset {subset:?}");
        Some(if known.is_empty() {
            format!("{of}: no DestinationRule of the host has subsets")
        } else {
            format!("{of}: {known}")
        })
    }
}

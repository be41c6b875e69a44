//! What routes attach to.

use std::{collections::BTreeSet, fmt::Write as _};

use model::{Config, MeshState, Meta, NamespacedName, api::gateway_api::ParentReference};

use super::{
    GROUP,
    listener::{Bound, hostname},
};
use crate::report::{self, ParentReport, Refusal, Reports, RouteReport, Verdict};

/// What a route attaches to.
#[derive(Clone, Debug)]
pub(super) enum Parent<'a> {
    /// A listener.
    Listener(&'a Bound),
    /// A host of the mesh; with a port only that.
    Mesh {
        host: String,
        namespace: String,
        port: Option<u32>,
    },
}

/// What became of a route's references to what it attaches to.
#[derive(Clone, Default, Debug)]
pub(super) struct Attachment<'a> {
    /// What it attaches to and what is served, in the order of its references, each once.
    pub parents: Vec<Parent<'a>>,
    /// Places of all listeners that it attaches to, served or not, each once.
    pub listeners: BTreeSet<usize>,
    /// Of references to what we configure: their places, and whether they lead anywhere.
    pub references: Vec<Referred>,
}

/// What became of one reference.
#[derive(Clone, Debug)]
pub(super) struct Referred {
    /// Its place.
    pub place: usize,
    /// It is for the mesh, not for a gateway.
    pub mesh: bool,
    /// Whether the route attaches.
    pub accepted: Verdict,
}

impl Attachment<'_> {
    /// Tells whether some reference is for the mesh, or for a gateway.
    pub(super) fn has(&self, mesh: bool) -> bool {
        self.references.iter().any(|r| r.mesh == mesh)
    }

    /// Makes the report of the route, of which all references of one sort say the same beside.
    pub(super) fn report(&self, meta: &Meta, of: impl Fn(bool) -> Outcome) -> RouteReport {
        let outcomes = [of(false), of(true)];
        let parents = self.references.iter().map(|referred| {
            let outcome = &outcomes[usize::from(referred.mesh)];
            let mut accepted = referred.accepted.clone();
            report::note(&mut accepted, outcome.accepted.clone());
            ParentReport {
                reference: referred.place,
                accepted,
                resolved: outcome.resolved.clone(),
            }
        });
        RouteReport {
            generation: meta.generation,
            parents: parents.collect(),
        }
    }
}

/// What became of a route's rules.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    /// Whether they can be served at all.
    pub accepted: Verdict,
    /// Whether all that they refer to is there and may be used.
    pub resolved: Verdict,
}

impl Default for Outcome {
    fn default() -> Self {
        Self {
            accepted: Ok(()),
            resolved: Ok(()),
        }
    }
}

/// Lists what a route of `kind` attaches to.
pub(super) fn resolve<'a, T>(
    state: &MeshState,
    (listeners, reports): (&'a [Bound], &Reports),
    kind: &str,
    route: &Config<T>,
    references: &[ParentReference],
    hostnames: &[String],
) -> Attachment<'a> {
    let own = &*route.meta.namespace;
    let mut result = Attachment::default();
    for (place, reference) in references.iter().enumerate() {
        let group = reference.group.as_deref().unwrap_or(GROUP);
        let parent_kind = reference.kind.as_deref().unwrap_or("Gateway");
        let namespace = reference.namespace.as_deref().unwrap_or(own);
        let mesh = |host: String| Parent::Mesh {
            host,
            namespace: namespace.to_owned(),
            port: reference.port,
        };
        let key = NamespacedName::new(namespace, reference.name.as_str());
        let (accepted, is_mesh) = match (group, parent_kind) {
            (GROUP, "Gateway" | "ListenerSet") => {
                let is_ours = match parent_kind {
                    "Gateway" => reports.gateways.contains_key(&key),
                    _ => reports.listener_sets.contains_key(&key),
                };
                if !is_ours {
                    continue;
                }
                let found = attach(
                    state,
                    listeners,
                    kind,
                    own,
                    (parent_kind, &key),
                    reference,
                    hostnames,
                );
                let accepted = match found {
                    Ok(found) => {
                        for place in found {
                            let bound = &listeners[place];
                            if result.listeners.insert(place) && bound.served {
                                result.parents.push(Parent::Listener(bound));
                            }
                        }
                        Ok(())
                    }
                    Err(refusal) => Err(refusal),
                };
                (accepted, false)
            }
            ("", "Service") => {
                let host = crate::service_host(state, &reference.name, namespace);
                let accepted = match crate::service(state, namespace, &host) {
                    None => Err(missing(parent_kind, &key)),
                    Some(service) => has_port(reference, |port| service.port(port).is_some()),
                };
                // A port that is not there takes nothing, and nothing of the others.
                if crate::service(state, namespace, &host).is_some() {
                    result.parents.push(mesh(host));
                }
                (accepted, true)
            }
            ("networking.istio.io", "ServiceEntry") => {
                let entry = state.objects.service_entries.get(&key);
                if let Some(entry) = entry {
                    result
                        .parents
                        .extend(entry.spec.hosts.iter().cloned().map(mesh));
                }
                let accepted = match entry {
                    None => Err(missing(parent_kind, &key)),
                    Some(entry) => has_port(reference, |port| {
                        let mut ports = entry.spec.ports.iter();
                        ports.any(|p| p.number == u32::from(port))
                    }),
                };
                (accepted, true)
            }
            _ => continue,
        };
        result.references.push(Referred {
            place,
            mesh: is_mesh,
            accepted,
        });
    }
    result
}

fn missing(kind: &str, name: &NamespacedName) -> Refusal {
    Refusal::new(
        "NoMatchingParent",
        format!("parent {kind} {name} not found"),
    )
}

/// Sees that a parent has the port that a reference names.
fn has_port(reference: &ParentReference, has: impl Fn(u16) -> bool) -> Verdict {
    let Some(port) = reference.port else {
        return Ok(());
    };
    if u16::try_from(port).is_ok_and(has) {
        return Ok(());
    }
    let message = format!("the parent {} has no port {port}", reference.name);
    Err(Refusal::new("NoMatchingParent", message))
}

/// Finds the listeners of one Gateway or `ListenerSet` that a route of `kind` and namespace `own`
/// attaches to.
fn attach(
    state: &MeshState,
    listeners: &[Bound],
    kind: &str,
    own: &str,
    (parent_kind, parent): (&str, &NamespacedName),
    reference: &ParentReference,
    hostnames: &[String],
) -> Result<Vec<usize>, Refusal> {
    let of_parent = listeners.iter().enumerate().filter(|(_, bound)| {
        bound.kind == parent_kind
            && bound.namespace == parent.namespace
            && bound.name == parent.name
    });
    let section = reference.section_name.as_deref();
    let port = reference.port;
    let named: Vec<_> = of_parent
        .filter(|(_, bound)| {
            section.is_none_or(|s| s == bound.listener.name)
                && port.is_none_or(|port| port == bound.listener.port)
        })
        .collect();
    if named.is_empty() {
        let mut what = String::new();
        if let Some(section) = section {
            // Writing to a string does not fail.
            write!(what, " named {section:?}").ok();
        }
        if let Some(port) = port {
            write!(what, " of port {port}").ok();
        }
        let message = format!("{parent_kind} {parent} has no listener{what}");
        return Err(Refusal::new("NoMatchingParent", message));
    }
    let admitting: Vec<_> = named
        .into_iter()
        .filter(|(_, bound)| bound.admits(state, kind, own))
        .collect();
    if admitting.is_empty() {
        let message = format!("no listener allows routes of kind {kind} and namespace {own:?}");
        return Err(Refusal::new("NotAllowedByListeners", message));
    }
    let fitting = admitting.iter().filter(|(_, bound)| {
        hostnames.is_empty() || hostnames.iter().any(|h| meet(h, hostname(&bound.listener)))
    });
    let fitting: Vec<usize> = fitting.map(|(place, _)| *place).collect();
    if fitting.is_empty() {
        let hosts: Vec<&str> = admitting
            .iter()
            .map(|(_, b)| hostname(&b.listener))
            .collect();
        let message = format!(
            "no hostnames matched parent hostname {:?}",
            hosts.join(", ")
        );
        return Err(Refusal::new("NoMatchingListenerHostname", message));
    }
    Ok(fitting)
}

/// Tells whether some host fits both patterns.
pub(super) fn meet(a: &str, b: &str) -> bool {
    covers(a, b) || covers(b, a)
}

/// Tells whether every host of a pattern fits another.
fn covers(pattern: &str, host: &str) -> bool {
    pattern == host
        || pattern
            .strip_prefix('*')
            .is_some_and(|suffix| host.strip_prefix('*').unwrap_or(host).ends_with(suffix))
}

/// What two patterns have in common: the narrower one.
pub(super) fn narrower<'a>(a: &'a str, b: &'a str) -> Option<&'a str> {
    if covers(a, b) {
        Some(b)
    } else {
        covers(b, a).then_some(a)
    }
}

/// Tells whether a listener serves a host of a route: the two meet, and no listener of the same
/// object, port and protocol is more specific for that host.
pub(super) fn serves(bound: &Bound, host: &str, listeners: &[Bound]) -> bool {
    let own = hostname(&bound.listener);
    let is_nearer = |other: &&Bound| {
        let name = hostname(&other.listener);
        other.served
            && other.kind == bound.kind
            && other.namespace == bound.namespace
            && other.name == bound.name
            && other.listener.port == bound.listener.port
            && other.listener.protocol == bound.listener.protocol
            && name != own
            && covers(own, name)
            && covers(name, host)
    };
    meet(own, host) && !listeners.iter().any(|other| is_nearer(&other))
}

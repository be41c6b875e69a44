//! What routes attach to.

use model::{Config, MeshState, NamespacedName, api::gateway_api::ParentReference};

use super::{
    GROUP,
    listener::{Bound, hostname},
};

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

/// Lists what a route of `kind` attaches to, in the order of its references, each once.
pub(super) fn resolve<'a, T>(
    state: &MeshState,
    listeners: &'a [Bound],
    kind: &str,
    route: &Config<T>,
    references: &[ParentReference],
    hostnames: &[String],
) -> Vec<Parent<'a>> {
    let own = &*route.meta.namespace;
    let mut result: Vec<Parent<'a>> = Vec::new();
    for reference in references {
        let group = reference.group.as_deref().unwrap_or(GROUP);
        let parent_kind = reference.kind.as_deref().unwrap_or("Gateway");
        let namespace = reference.namespace.as_deref().unwrap_or(own);
        let mesh = |host: String| Parent::Mesh {
            host,
            namespace: namespace.to_owned(),
            port: reference.port,
        };
        match (group, parent_kind) {
            (GROUP, "Gateway" | "ListenerSet") => {
                let fits = |bound: &&Bound| {
                    bound.kind == parent_kind
                        && *bound.namespace == *namespace
                        && *bound.name == *reference.name
                        && reference
                            .section_name
                            .as_deref()
                            .is_none_or(|s| s == bound.listener.name)
                        && reference
                            .port
                            .is_none_or(|port| port == bound.listener.port)
                        && bound.admits(state, kind, own)
                        && (hostnames.is_empty()
                            || hostnames.iter().any(|h| meet(h, hostname(&bound.listener))))
                };
                for bound in listeners.iter().filter(fits) {
                    let is_known = result
                        .iter()
                        .any(|p| matches!(p, Parent::Listener(l) if std::ptr::eq(*l, bound)));
                    if !is_known {
                        result.push(Parent::Listener(bound));
                    }
                }
            }
            ("", "Service") => {
                let host = crate::service_host(state, &reference.name, namespace);
                if crate::service(state, namespace, &host).is_some() {
                    result.push(mesh(host));
                }
            }
            ("networking.istio.io", "ServiceEntry") => {
                let key = NamespacedName::new(namespace, reference.name.as_str());
                if let Some(entry) = state.objects.service_entries.get(&key) {
                    result.extend(entry.spec.hosts.iter().cloned().map(mesh));
                }
            }
            _ => {}
        }
    }
    result
}

/// Tells whether some host fits both patterns.
fn meet(a: &str, b: &str) -> bool {
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
        other.kind == bound.kind
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

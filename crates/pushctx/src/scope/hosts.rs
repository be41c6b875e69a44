//! The host lists of egress listeners (config-model §13.2).

use std::{collections::BTreeMap, sync::Arc};

use model::host::{is_wildcard, matches, subset_of};
use rustc_hash::FxHashSet;

use crate::RouteSemantics;

/// What one listener imports, by namespace; `*` stands for every namespace.
#[derive(Clone, Debug)]
pub(crate) struct HostClasses {
    by_namespace: BTreeMap<Arc<str>, HostClass>,
    /// Every import names one host of one namespace.
    exact_only: bool,
}

/// What one listener imports from one namespace.
#[derive(Clone, Default, Debug)]
pub(crate) struct HostClass {
    exact: FxHashSet<String>,
    /// All imports, exact ones included, in order.
    patterns: Vec<String>,
    wildcards: Vec<String>,
    excluded: Vec<String>,
}

impl HostClasses {
    /// Reads `namespace/host` entries of a Sidecar as proxies of `own` see it. Malformed entries are
    /// logged and skipped.
    pub(crate) fn parse(hosts: &[String], own: &str) -> Self {
        let mut by_namespace: BTreeMap<Arc<str>, HostClass> = BTreeMap::new();
        let mut exact_only = true;
        for entry in hosts {
            let Some((namespace, dns)) = entry.split_once('/').filter(|(_, d)| !d.contains('/'))
            else {
                tracing::warn!(
                    host = entry,
                    "egress host is not of the form namespace/host"
                );
                continue;
            };
            let (namespace, excluded) = match namespace.strip_prefix('~') {
                Some("") => ("*", true),
                Some(namespace) => (namespace, true),
                None => (namespace, false),
            };
            let namespace = if namespace == "." { own } else { namespace };
            let class = by_namespace.entry(namespace.into()).or_default();
            if excluded {
                class.excluded.push(dns.to_owned());
                continue;
            }
            class.patterns.push(dns.to_owned());
            if is_wildcard(dns) {
                class.wildcards.push(dns.to_owned());
            } else {
                class.exact.insert(dns.to_owned());
            }
            exact_only &= !is_wildcard(dns) && namespace != "*";
        }
        Self {
            by_namespace,
            exact_only,
        }
    }

    /// Finds the class that imports a service host of `namespace`; `None` when it is not imported.
    pub(crate) fn importing(&self, hostname: &str, namespace: &str) -> Option<&HostClass> {
        let classes = self.classes(namespace);
        if classes
            .iter()
            .flatten()
            .any(|class| class.excludes(hostname))
        {
            return None;
        }
        classes
            .into_iter()
            .flatten()
            .find(|class| class.has_service(hostname))
    }

    /// Tells whether a VirtualService of `namespace` with these hosts is imported.
    pub(crate) fn imports_virtual_service(
        &self,
        hosts: &[String],
        namespace: &str,
        semantics: RouteSemantics,
    ) -> bool {
        let classes = self.classes(namespace);
        hosts.iter().any(|host| {
            !classes.iter().flatten().any(|class| class.excludes(host))
                && classes
                    .iter()
                    .flatten()
                    .any(|c| c.has_virtual_service(host, semantics))
        })
    }

    /// Lists (namespace, host) of all imports when each of them names one host of one namespace.
    pub(crate) fn exact(&self) -> Option<impl Iterator<Item = (&Arc<str>, &str)>> {
        self.exact_only.then(|| {
            self.by_namespace
                .iter()
                .flat_map(|(ns, class)| class.patterns.iter().map(move |host| (ns, host.as_str())))
        })
    }

    fn classes(&self, namespace: &str) -> [Option<&HostClass>; 2] {
        [self.by_namespace.get(namespace), self.by_namespace.get("*")]
    }
}

impl HostClass {
    /// Tells whether a service's host is among the imports, or covered by one.
    pub(crate) fn has_service(&self, hostname: &str) -> bool {
        self.exact.contains(hostname) || self.wildcards.iter().any(|p| subset_of(hostname, p))
    }

    fn has_virtual_service(&self, host: &str, semantics: RouteSemantics) -> bool {
        if self.exact.contains(host) {
            return true;
        }
        // Of two plain names only equal ones match, and those are in the exact set.
        let candidates = if is_wildcard(host) {
            &self.patterns
        } else {
            &self.wildcards
        };
        candidates.iter().any(|pattern| match semantics {
            RouteSemantics::Gateway => subset_of(host, pattern),
            RouteSemantics::Istio | RouteSemantics::Ingress => matches(host, pattern),
        })
    }

    fn excludes(&self, host: &str) -> bool {
        self.excluded.iter().any(|pattern| subset_of(host, pattern))
    }
}

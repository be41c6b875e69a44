//! Which scopes a change leaves as they are.
//!
//! A scope is kept when nothing that changed could have been imported into it. The tests err on the
//! side of computing again.

use std::{collections::BTreeSet, sync::Arc};

use model::{
    NamespacedName, Service, ServiceKey, fingerprint,
    host::{is_wildcard, subset_of},
};

use super::{ScopeOrigin, SidecarScope, hosts::HostClasses};
use crate::{PushContext, ResolvedVirtualService, service::of_key};

/// What a scope imports, whether it is there or not.
#[derive(Clone, Default, Debug)]
pub(super) struct Interest {
    /// Host lists of the egress listeners; none for gateways, which import everything visible.
    pub(super) listeners: Vec<HostClasses>,
    /// Hashes of the hosts that imported VirtualServices send traffic to, sorted.
    pub(super) destinations: Box<[u64]>,
}

impl Interest {
    pub(super) fn new<'a>(
        listeners: Vec<HostClasses>,
        destinations: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let mut hashes: Vec<u64> = destinations.into_iter().map(hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        Self {
            listeners,
            destinations: hashes.into(),
        }
    }

    fn has_service(&self, hostname: &str, namespace: &str) -> bool {
        self.listeners.is_empty()
            || self
                .listeners
                .iter()
                .any(|l| l.importing(hostname, namespace).is_some())
            || self.destinations.binary_search(&hash(hostname)).is_ok()
    }
}

fn hash(hostname: &str) -> u64 {
    fingerprint::of(&hostname)
}

/// What may look different in `new`, as far as scopes depend on it.
pub(crate) struct Changes<'a> {
    pub(crate) old: &'a PushContext,
    pub(crate) new: &'a PushContext,
    pub(crate) services: BTreeSet<ServiceKey>,
    pub(crate) virtual_services: BTreeSet<NamespacedName>,
    /// Namespace and host of consolidated rules.
    pub(crate) destination_rules: BTreeSet<(Arc<str>, Arc<str>)>,
    pub(crate) sidecars: bool,
}

impl Changes<'_> {
    /// Tells whether no scope can be touched.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0 && !self.sidecars
    }

    /// Counts what changed.
    pub(super) fn len(&self) -> usize {
        self.services.len() + self.virtual_services.len() + self.destination_rules.len()
    }

    /// Tells whether a scope may have to look different.
    pub(super) fn touch(&self, scope: &SidecarScope, interest: &Interest) -> bool {
        self.touch_sidecar(scope)
            || self.touch_services(scope, interest)
            || self.touch_virtual_services(scope, interest)
            || self.touch_destination_rules(scope)
    }

    fn touch_sidecar(&self, scope: &SidecarScope) -> bool {
        let ScopeOrigin::Sidecar(sidecar) = &scope.origin else {
            return false;
        };
        let table = &self.new.state().objects.sidecars;
        self.sidecars
            && table
                .get(&sidecar.meta.namespaced_name())
                .is_none_or(|new| !Arc::ptr_eq(new, sidecar) && new != sidecar)
    }

    fn touch_services(&self, scope: &SidecarScope, interest: &Interest) -> bool {
        if self.services.is_empty() {
            return false;
        }
        // A VirtualService may lead to a service of the own namespace that is exported elsewhere.
        let may_be_seen = |context: &PushContext, service: &Service| {
            service.attributes.namespace == scope.namespace
                || context.is_visible(service, &scope.namespace)
        };
        self.services.iter().any(|key| {
            interest.has_service(&key.hostname, &key.namespace)
                && [self.old, self.new].iter().any(|context| {
                    of_key(context.state(), key).any(|service| may_be_seen(context, service))
                })
        })
    }

    fn touch_virtual_services(&self, scope: &SidecarScope, interest: &Interest) -> bool {
        let imported = |vs: &ResolvedVirtualService| {
            let own = &vs.config.meta.namespace;
            let hosts = &vs.config.spec.hosts;
            let visible = vs.export_to.contains("*") || vs.export_to.contains(&scope.namespace);
            visible
                && vs.gateways().any(|gateway| gateway == "mesh")
                && (interest.listeners.is_empty()
                    || interest
                        .listeners
                        .iter()
                        .any(|l| l.imports_virtual_service(hosts, own, vs.semantics)))
        };
        let sides = [self.old, self.new].map(PushContext::virtual_services);
        self.virtual_services.iter().any(|name| {
            sides
                .iter()
                .filter_map(|index| index.get(name))
                .any(|vs| imported(vs))
        })
    }

    fn touch_destination_rules(&self, scope: &SidecarScope) -> bool {
        let root = self.new.root_namespace();
        self.destination_rules.iter().any(|(owner, host)| {
            let asks = |service: &Service| {
                *owner == scope.namespace
                    || **owner == *root
                    || *owner == service.attributes.namespace
            };
            if is_wildcard(host) {
                scope
                    .services
                    .iter()
                    .any(|s| subset_of(&s.hostname, host) && asks(s))
            } else {
                scope.service(host).is_some_and(|service| asks(service))
            }
        })
    }
}

//! Sidecar scopes: what a proxy of a namespace can see (config-model §13).

mod build;
mod carry;
mod hosts;
mod list;
mod lookup;
mod sidecars;
mod view;

use std::sync::Arc;

use model::{Config, Labels, Service, api, selects};

use self::lookup::Lookup;

#[cfg(test)]
pub(crate) use build::select_everything;
pub(crate) use carry::Changes;
pub use list::{ServiceIter, ServiceList, ServicePiece};
pub(crate) use sidecars::{Scopes, SidecarIndex};

use crate::{
    ConsolidatedRule, PushContext, ResolvedVirtualService, Routes, destination_rule::FoundRules,
};

/// Where a scope comes from.
#[derive(Clone, Debug)]
pub enum ScopeOrigin {
    /// A Sidecar of the namespace, or the root namespace's default one.
    Sidecar(Arc<Config<api::Sidecar>>),
    /// No Sidecar applies: everything visible is imported.
    Default,
    /// The scope of gateways.
    Gateway,
}

/// Everything that a proxy can see and must know of others.
#[derive(Clone, Debug)]
pub struct SidecarScope {
    /// The namespace that the scope was computed for.
    pub namespace: Arc<str>,
    /// Where it comes from.
    pub origin: ScopeOrigin,
    /// Services to make clusters for, in the order of config-model §13.3; one per host name.
    pub services: ServiceList,
    /// Egress listeners in order; one without port when the Sidecar states none.
    pub egress: Vec<EgressListener>,
    /// What happens to unknown destinations.
    pub outbound_policy: api::sidecar::OutboundTrafficPolicy,
    lookup: Lookup,
}

/// One egress listener of a scope.
#[derive(Clone, Debug)]
pub struct EgressListener {
    /// The Sidecar's own listener; `None` for gateways and for scopes without a Sidecar's egress.
    pub listener: Option<api::sidecar::EgressListener>,
    /// Imported services, narrowed to the listener's port where it has one; none for gateways.
    pub services: ServiceList,
    /// Imported VirtualServices of the mesh, in order.
    pub virtual_services: Arc<Routes>,
}

impl EgressListener {
    /// Finds the VirtualService that matches an imported service's host most specifically.
    pub fn virtual_service(&self, hostname: &str) -> Option<&Arc<ResolvedVirtualService>> {
        self.virtual_services.of_host(hostname)
    }
}

/// Computes what workloads of a Sidecar's namespace see with it, whether or not some have it.
pub(crate) fn for_sidecar(
    context: &PushContext,
    sidecar: &Arc<Config<api::Sidecar>>,
) -> SidecarScope {
    build::sidecar(context, &sidecar.meta.namespace, Some(sidecar)).0
}

impl SidecarScope {
    /// The Sidecar behind the scope.
    pub fn sidecar(&self) -> Option<&Arc<Config<api::Sidecar>>> {
        match &self.origin {
            ScopeOrigin::Sidecar(sidecar) => Some(sidecar),
            ScopeOrigin::Default | ScopeOrigin::Gateway => None,
        }
    }

    /// Finds a visible service by host name.
    pub fn service(&self, hostname: &str) -> Option<&Arc<Service>> {
        self.lookup.service(hostname, &self.namespace)
    }

    /// Finds the egress listener that serves a port or Unix path (config-model §13.5): in order, the
    /// first without port, or with this port; for port 0 the address must be the same too.
    pub fn egress_listener(&self, port: u16, bind: &str) -> Option<&EgressListener> {
        self.egress.iter().find(|egress| {
            let stated = egress.listener.as_ref();
            match stated.and_then(|l| Some((l, l.port.as_ref()?))) {
                None => true,
                Some((listener, stated)) => {
                    stated.number == u32::from(port) && (port != 0 || listener.bind == bind)
                }
            }
        })
    }

    /// Finds the connection limits of an inbound port: those of the Sidecar's listener for it, else
    /// the Sidecar's own.
    pub fn inbound_connection_pool(&self, port: u16) -> Option<&api::common::ConnectionPool> {
        let sidecar = &self.sidecar()?.spec;
        sidecar
            .ingress
            .iter()
            .find(|i| i.port.as_ref().is_some_and(|p| p.number == u32::from(port)))
            .and_then(|i| i.connection_pool.as_ref())
            .or(sidecar.inbound_connection_pool.as_ref())
    }

    /// Chooses the rule that a client with `labels` applies to an outbound service
    /// (config-model §11.5): the first selector of the scope's namespace that matches, else the
    /// last rule without selector.
    pub fn outbound_rule(&self, hostname: &str, labels: &Labels) -> Option<&Arc<ConsolidatedRule>> {
        let rules = self.lookup.rules(hostname, &self.namespace);
        let selected = |rule: &&Arc<ConsolidatedRule>| {
            rule.config
                .spec
                .workload_selector
                .as_ref()
                .is_some_and(|s| {
                    rule.config.meta.namespace == self.namespace && selects(&s.match_labels, labels)
                })
        };
        rules.iter().find(selected).or_else(|| last_plain(rules))
    }

    /// Chooses the rule for a workload's own service: rules with selector are ignored.
    pub fn inbound_rule(&self, hostname: &str) -> Option<&Arc<ConsolidatedRule>> {
        last_plain(self.lookup.rules(hostname, &self.namespace))
    }
}

fn last_plain(rules: FoundRules<'_>) -> Option<&Arc<ConsolidatedRule>> {
    rules
        .iter()
        .rfind(|rule| rule.config.spec.workload_selector.is_none())
}

#[cfg(test)]
mod tests;

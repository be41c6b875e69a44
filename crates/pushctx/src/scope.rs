//! Sidecar scopes: what a proxy of a namespace can see (config-model §13).

mod build;
mod carry;
mod hosts;
mod sidecars;

use std::{collections::BTreeMap, sync::Arc};

use model::{Config, Labels, Service, api, selects};

pub(crate) use carry::Changes;
pub(crate) use sidecars::{Scopes, SidecarIndex};

use crate::{ConsolidatedRule, ResolvedVirtualService};

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
    /// Services to make clusters for, in the order of config-model §13.3.
    pub services: Vec<Arc<Service>>,
    /// The same by host name.
    pub services_by_host: BTreeMap<Arc<str>, Arc<Service>>,
    /// Egress listeners in order; one without port when the Sidecar states none.
    pub egress: Vec<EgressListener>,
    /// What happens to unknown destinations.
    pub outbound_policy: api::sidecar::OutboundTrafficPolicy,
    /// Consolidated rules by service host name, in the order of config-model §11.4.
    pub destination_rules: BTreeMap<Arc<str>, Arc<[Arc<ConsolidatedRule>]>>,
    /// Content hash of everything above.
    pub fingerprint: u64,
}

/// One egress listener of a scope.
#[derive(Clone, Debug)]
pub struct EgressListener {
    /// The Sidecar's own listener; `None` for gateways and for scopes without a Sidecar's egress.
    pub listener: Option<api::sidecar::EgressListener>,
    /// Imported services, narrowed to the listener's port where it has one.
    pub services: Vec<Arc<Service>>,
    /// Imported VirtualServices of the mesh, in order.
    pub virtual_services: Vec<Arc<ResolvedVirtualService>>,
    /// For each imported service's host, the VirtualService that matches it most specifically.
    pub virtual_service_by_host: BTreeMap<Arc<str>, Arc<ResolvedVirtualService>>,
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
        self.services_by_host.get(hostname)
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
        let rules = self.destination_rules.get(hostname)?;
        rules
            .iter()
            .find(|r| {
                r.config.spec.workload_selector.as_ref().is_some_and(|s| {
                    r.config.meta.namespace == self.namespace && selects(&s.match_labels, labels)
                })
            })
            .or_else(|| Self::last_plain(rules))
    }

    /// Chooses the rule for a workload's own service: rules with selector are ignored.
    pub fn inbound_rule(&self, hostname: &str) -> Option<&Arc<ConsolidatedRule>> {
        self.destination_rules
            .get(hostname)
            .and_then(|rules| Self::last_plain(rules))
    }

    fn last_plain(rules: &[Arc<ConsolidatedRule>]) -> Option<&Arc<ConsolidatedRule>> {
        rules
            .iter()
            .rev()
            .find(|r| r.config.spec.workload_selector.is_none())
    }
}

#[cfg(test)]
mod tests;

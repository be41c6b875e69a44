//! Computation of scopes (config-model §13).

mod collect;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Config, Protocol, Service,
    api::{
        MeshConfig, Sidecar, VirtualService,
        mesh::MeshOutboundTrafficMode,
        sidecar::{EgressListener as ApiListener, OutboundTrafficMode, OutboundTrafficPolicy},
        virtual_service::HttpRoute,
    },
    fingerprint,
    host::HostMap,
};
use rustc_hash::{FxBuildHasher, FxHashMap};

use self::collect::Collector;
use super::{EgressListener, ScopeOrigin, SidecarScope, carry::Interest, hosts::HostClasses};
use crate::{
    PushContext, ResolvedVirtualService, RouteSemantics,
    destination_rule::RuleList,
    order::CreationOrder,
    service::Exports,
    virtual_service::destinations::{destinations, is_for_callers_in},
};

/// Computes what sidecars of `namespace` see with this Sidecar, or without any.
pub(super) fn sidecar(
    context: &PushContext,
    namespace: &Arc<str>,
    sidecar: Option<&Arc<Config<Sidecar>>>,
) -> (SidecarScope, Interest) {
    let builder = Builder::new(context, namespace);
    let everything = ["*/*".to_owned()];
    let stated = sidecar.map_or(&[][..], |s| &s.spec.egress);
    let listeners: Vec<(Option<&ApiListener>, HostClasses)> = if stated.is_empty() {
        vec![(None, HostClasses::parse(&everything, namespace))]
    } else {
        let classes = |l: &ApiListener| HostClasses::parse(&l.hosts, namespace);
        stated.iter().map(|l| (Some(l), classes(l))).collect()
    };
    let egress: Vec<EgressListener> = listeners
        .iter()
        .map(|(listener, classes)| builder.listener(*listener, classes))
        .collect();
    let mut services = Collector::default();
    for listener in &egress {
        for service in &listener.services {
            services.add(service);
        }
        let port = listener.listener.as_ref().and_then(bound_port);
        for vs in &listener.virtual_services {
            builder.add_destinations(&vs.config.spec, port, &mut services);
        }
    }
    let policy = sidecar
        .and_then(|s| s.spec.outbound_traffic_policy.clone())
        .unwrap_or_else(|| mesh_policy(context.mesh()));
    let origin = sidecar.map_or(ScopeOrigin::Default, |s| ScopeOrigin::Sidecar(s.clone()));
    let interest = {
        let specs = egress
            .iter()
            .flat_map(|l| &l.virtual_services)
            .map(|vs| &vs.config.spec);
        let own = |route: &HttpRoute| is_for_callers_in(route, namespace);
        let hosts = specs.flat_map(|spec| destinations(spec, own).into_keys());
        Interest::new(
            listeners.into_iter().map(|(_, classes)| classes).collect(),
            hosts,
        )
    };
    (
        builder.finish(origin, services.into_services(), egress, policy),
        interest,
    )
}

/// Computes what gateways and waypoints of `namespace` see.
pub(super) fn gateway(context: &PushContext, namespace: &Arc<str>) -> (SidecarScope, Interest) {
    let builder = Builder::new(context, namespace);
    let mut services = Collector::default();
    for service in context.services().visible_to(namespace) {
        services.add(service);
    }
    let listener = EgressListener {
        listener: None,
        services: Vec::new(),
        virtual_services: context.virtual_services().for_gateway(namespace, "mesh"),
        virtual_service_by_host: BTreeMap::new(),
    };
    let policy = mesh_policy(context.mesh());
    let scope = builder.finish(
        ScopeOrigin::Gateway,
        services.into_services(),
        vec![listener],
        policy,
    );
    (scope, Interest::default())
}

/// The mesh's policy in a Sidecar's form; only the mode is taken over.
fn mesh_policy(mesh: &MeshConfig) -> OutboundTrafficPolicy {
    let mode = match mesh.outbound_traffic_policy.mode {
        MeshOutboundTrafficMode::RegistryOnly => OutboundTrafficMode::RegistryOnly,
        MeshOutboundTrafficMode::AllowAny => OutboundTrafficMode::AllowAny,
        MeshOutboundTrafficMode::AllowAnyDynamicDns => OutboundTrafficMode::AllowAnyDynamicDns,
    };
    OutboundTrafficPolicy {
        mode,
        egress_proxy: None,
    }
}

/// The port that a listener's services must have; `None` when it takes all.
fn bound_port(listener: &ApiListener) -> Option<u16> {
    let port = listener.port.as_ref()?;
    let is_proxy = Protocol::parse(&port.protocol) == Protocol::HttpProxy;
    u16::try_from(port.number)
        .ok()
        .filter(|number| *number != 0 && !is_proxy)
}

struct Builder<'a> {
    context: &'a PushContext,
    namespace: &'a Arc<str>,
    exports: Exports<'a>,
}

impl<'a> Builder<'a> {
    fn new(context: &'a PushContext, namespace: &'a Arc<str>) -> Self {
        Self {
            context,
            namespace,
            exports: Exports::new(context.state()),
        }
    }

    fn listener(&self, listener: Option<&ApiListener>, classes: &HostClasses) -> EgressListener {
        let port = listener.and_then(bound_port);
        let services = self.one_namespace_per_host(self.select_services(classes, port));
        let virtual_services = self.select_virtual_services(classes);
        let virtual_service_by_host = most_specific(&services, &virtual_services);
        let listener = listener.cloned();
        EgressListener {
            listener,
            services,
            virtual_services,
            virtual_service_by_host,
        }
    }

    /// Selects the imported services, narrowed to the listener's port and to imported aliases.
    fn select_services(&self, classes: &HostClasses, port: Option<u16>) -> Vec<Arc<Service>> {
        let select = |service: &Arc<Service>| {
            let class = classes.importing(&service.hostname, &service.attributes.namespace)?;
            if let Some(number) = port {
                service.port(number)?;
            }
            let aliases = &service.attributes.aliases;
            let narrow_aliases = !aliases.iter().all(|a| class.has_service(&a.hostname));
            let narrow_ports = port.is_some() && service.ports.len() > 1;
            if !narrow_aliases && !narrow_ports {
                return Some(service.clone());
            }
            let mut narrowed = Service::clone(service);
            narrowed
                .attributes
                .aliases
                .retain(|a| class.has_service(&a.hostname));
            narrowed
                .ports
                .retain(|p| port.is_none_or(|number| p.port == number));
            Some(narrowed.seal())
        };
        let index = self.context.services();
        let Some(exact) = classes.exact() else {
            return index
                .visible_to(self.namespace)
                .filter_map(&select)
                .collect();
        };
        let mut services: Vec<Arc<Service>> = exact
            .filter_map(|(namespace, hostname)| index.get(hostname, namespace))
            .filter(|service| self.exports.is_visible(service, self.namespace))
            .filter_map(select)
            .collect();
        services.sort_by(|a, b| a.by_creation(b));
        services.dedup_by(|a, b| a.by_creation(b).is_eq());
        services
    }

    /// Keeps, of each host name, the services of one namespace: the own one, else that of a
    /// Kubernetes service, else the first.
    fn one_namespace_per_host(&self, services: Vec<Arc<Service>>) -> Vec<Arc<Service>> {
        use std::collections::hash_map::Entry;
        let prefer_kubernetes = self.context.features().unified_sidecar_scope;
        let mut unique = true;
        let mut picks: FxHashMap<&str, (&Arc<str>, bool)> =
            FxHashMap::with_capacity_and_hasher(services.len(), FxBuildHasher);
        for service in &services {
            let candidate = (&service.attributes.namespace, service.is_kubernetes());
            match picks.entry(&service.hostname) {
                Entry::Vacant(slot) => {
                    slot.insert(candidate);
                }
                Entry::Occupied(mut slot) => {
                    unique = false;
                    let (namespace, kubernetes) = *slot.get();
                    let better = prefer_kubernetes
                        && candidate.1
                        && !kubernetes
                        && namespace != self.namespace;
                    if candidate.0 == self.namespace || better {
                        slot.insert(candidate);
                    }
                }
            }
        }
        if unique {
            return services;
        }
        let keep: Vec<bool> = services
            .iter()
            .map(|s| *picks[&*s.hostname].0 == s.attributes.namespace)
            .collect();
        services
            .into_iter()
            .zip(keep)
            .filter_map(|(s, keep)| keep.then_some(s))
            .collect()
    }

    /// Selects the imported VirtualServices of the mesh (config-model §10.3).
    fn select_virtual_services(&self, classes: &HostClasses) -> Vec<Arc<ResolvedVirtualService>> {
        let gateway_api_here = |vs: &ResolvedVirtualService| {
            self.context.features().unified_sidecar_scope
                && vs.semantics == RouteSemantics::Gateway
                && vs.config.meta.namespace == *self.namespace
        };
        let mut selected = Vec::new();
        for list in self
            .context
            .virtual_services()
            .lists(self.namespace, "mesh")
        {
            let imported: Vec<_> = list
                .filter(|vs| {
                    let namespace = &vs.config.meta.namespace;
                    classes.imports_virtual_service(&vs.config.spec.hosts, namespace, vs.semantics)
                })
                .cloned()
                .collect();
            selected.extend(imported.iter().filter(|vs| gateway_api_here(vs)).cloned());
            selected.extend(imported.into_iter().filter(|vs| !gateway_api_here(vs)));
        }
        selected
    }

    /// Adds the services that a VirtualService sends traffic to (config-model §13.3).
    fn add_destinations(
        &self,
        spec: &VirtualService,
        listener_port: Option<u16>,
        services: &mut Collector,
    ) {
        let own = |route: &HttpRoute| is_for_callers_in(route, self.namespace);
        for (hostname, ports) in destinations(spec, own) {
            let Some(service) = self.destination(hostname) else {
                continue;
            };
            let ports = match listener_port {
                Some(port) => BTreeSet::from([u32::from(port)]),
                None => ports,
            };
            let wanted = |number: u16| ports.contains(&0) || ports.contains(&u32::from(number));
            let kept = service.ports.iter().filter(|p| wanted(p.port)).count();
            if kept == service.ports.len() {
                services.add(service);
            } else if kept > 0 {
                let mut narrowed = Service::clone(service);
                narrowed.ports.retain(|p| wanted(p.port));
                services.add(&narrowed.seal());
            }
        }
    }

    /// Chooses the namespace of a destination: the own one, else of those visible the Kubernetes
    /// service, else the oldest.
    fn destination(&self, hostname: &str) -> Option<&'a Arc<Service>> {
        let index = self.context.services();
        if let Some(own) = index.get(hostname, self.namespace) {
            return Some(own);
        }
        let mut visible = index
            .by_host(hostname)
            .filter(|s| self.exports.is_visible(s, self.namespace));
        if !self.context.features().sidecar_pick_best_service_namespace {
            return visible.next();
        }
        visible.min_by(|a, b| {
            b.is_kubernetes()
                .cmp(&a.is_kubernetes())
                .then_with(|| a.by_creation(b))
        })
    }

    fn finish(
        &self,
        origin: ScopeOrigin,
        services: Vec<Arc<Service>>,
        egress: Vec<EgressListener>,
        outbound_policy: OutboundTrafficPolicy,
    ) -> SidecarScope {
        let rules = self.context.destination_rules();
        let destination_rules: BTreeMap<Arc<str>, RuleList> = services
            .iter()
            .map(|service| {
                let owner = &service.attributes.namespace;
                let list = rules.lookup(self.namespace, owner, &service.hostname);
                (service.hostname.clone(), list)
            })
            .filter(|(_, list)| !list.is_empty())
            .collect();
        let fingerprint = {
            let services: Vec<u64> = services.iter().map(|s| s.fingerprint).collect();
            let listeners: Vec<_> = egress.iter().map(listener_fingerprint).collect();
            let rules: Vec<(&Arc<str>, Vec<u64>)> = destination_rules
                .iter()
                .map(|(host, list)| (host, list.iter().map(|r| r.fingerprint).collect()))
                .collect();
            let sidecar = match &origin {
                ScopeOrigin::Sidecar(s) => (
                    1,
                    fingerprint::of_json(&s.spec),
                    Some((&s.meta.namespace, &s.meta.name)),
                ),
                ScopeOrigin::Default => (2, 0, None),
                ScopeOrigin::Gateway => (3, 0, None),
            };
            let policy = fingerprint::of_json(&outbound_policy);
            fingerprint::of(&(self.namespace, sidecar, policy, services, listeners, rules))
        };
        SidecarScope {
            namespace: self.namespace.clone(),
            origin,
            services_by_host: services
                .iter()
                .map(|s| (s.hostname.clone(), s.clone()))
                .collect(),
            services,
            egress,
            outbound_policy,
            destination_rules,
            fingerprint,
        }
    }
}

fn listener_fingerprint(listener: &EgressListener) -> (u64, Vec<u64>, Vec<u64>) {
    (
        fingerprint::of_json(&listener.listener),
        listener.services.iter().map(|s| s.fingerprint).collect(),
        listener
            .virtual_services
            .iter()
            .map(|vs| vs.fingerprint)
            .collect(),
    )
}

/// For each service's host, finds the VirtualService that matches it most specifically; of those
/// with an identical host, the first.
fn most_specific(
    services: &[Arc<Service>],
    virtual_services: &[Arc<ResolvedVirtualService>],
) -> BTreeMap<Arc<str>, Arc<ResolvedVirtualService>> {
    let mut by_host: HostMap<&Arc<ResolvedVirtualService>> = HostMap::default();
    for vs in virtual_services {
        for host in &vs.config.spec.hosts {
            by_host.entry(host, || vs);
        }
    }
    if by_host.is_empty() {
        return BTreeMap::new();
    }
    services
        .iter()
        .filter_map(|s| {
            Some((
                s.hostname.clone(),
                Arc::clone(by_host.most_specific(&s.hostname)?.1),
            ))
        })
        .collect()
}

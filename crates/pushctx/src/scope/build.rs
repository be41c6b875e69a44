//! Computation of scopes (config-model §13).

mod collect;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{
    Config, Protocol, Service,
    api::{
        MeshConfig, Sidecar,
        mesh::MeshOutboundTrafficMode,
        sidecar::{EgressListener as ApiListener, OutboundTrafficMode, OutboundTrafficPolicy},
        virtual_service::HttpRoute,
    },
};
use rustc_hash::{FxBuildHasher, FxHashMap};

pub(super) use self::collect::Collector;
use super::{
    EgressListener, ScopeOrigin, SidecarScope,
    carry::Interest,
    hosts::HostClasses,
    list::ServiceList,
    lookup::{Indexes, Lookup},
};
use crate::{
    PushContext, ResolvedVirtualService, RouteSemantics, Routes,
    order::CreationOrder,
    virtual_service::destinations::{destinations, is_for_callers_in},
};

/// Computes what sidecars of `namespace` see with this Sidecar, or without any.
pub(super) fn sidecar(
    context: &PushContext,
    namespace: &Arc<str>,
    sidecar: Option<&Arc<Config<Sidecar>>>,
) -> (SidecarScope, Interest) {
    let builder = Builder::new(context, namespace);
    let policy = sidecar
        .and_then(|s| s.spec.outbound_traffic_policy.clone())
        .unwrap_or_else(|| mesh_policy(context.mesh()));
    let origin = sidecar.map_or(ScopeOrigin::Default, |s| ScopeOrigin::Sidecar(s.clone()));
    match sidecar.map_or(&[][..], |s| &s.spec.egress) {
        [] => builder.sidecar_view(origin, policy, None),
        [listener] if listener.hosts == [EVERYTHING] && bound_port(listener).is_none() => {
            builder.sidecar_view(origin, policy, Some(listener))
        }
        listeners => builder.sidecar_selection(origin, policy, listeners),
    }
}

/// Computes what gateways and waypoints of `namespace` see.
pub(super) fn gateway(context: &PushContext, namespace: &Arc<str>) -> (SidecarScope, Interest) {
    let builder = Builder::new(context, namespace);
    let everything = builder.everything(None);
    let virtual_services = context.virtual_services();
    let routes = virtual_services
        .public_routes(namespace)
        .unwrap_or_else(|| Arc::new(Routes::new(virtual_services.for_gateway(namespace, "mesh"))));
    let listener = EgressListener {
        listener: None,
        services: ServiceList::default(),
        virtual_services: routes,
    };
    let policy = mesh_policy(context.mesh());
    let lookup = builder.view_lookup(everything.special);
    let scope = SidecarScope {
        namespace: namespace.clone(),
        origin: ScopeOrigin::Gateway,
        services: everything.services,
        egress: vec![listener],
        outbound_policy: policy,
        lookup,
    };
    (scope, Interest::default())
}

/// The host list of a listener that imports everything.
const EVERYTHING: &str = "*/*";

/// Computes a scope that imports everything the way that narrower ones are.
#[cfg(test)]
pub(crate) fn select_everything(context: &PushContext, namespace: &Arc<str>) -> SidecarScope {
    let listener = ApiListener {
        hosts: vec![EVERYTHING.to_owned()],
        ..ApiListener::default()
    };
    let builder = Builder::new(context, namespace);
    let policy = mesh_policy(context.mesh());
    builder
        .sidecar_selection(ScopeOrigin::Default, policy, &[listener])
        .0
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

/// What a scope is computed from.
pub(super) struct Builder<'a> {
    pub(super) context: &'a PushContext,
    pub(super) namespace: &'a Arc<str>,
}

impl<'a> Builder<'a> {
    pub(super) fn new(context: &'a PushContext, namespace: &'a Arc<str>) -> Self {
        Self { context, namespace }
    }

    /// A scope with one listener that imports everything.
    fn sidecar_view(
        &self,
        origin: ScopeOrigin,
        outbound_policy: OutboundTrafficPolicy,
        listener: Option<&ApiListener>,
    ) -> (SidecarScope, Interest) {
        let classes = HostClasses::parse(&[EVERYTHING.to_owned()], self.namespace);
        let routes = self
            .context
            .virtual_services()
            .public_routes(self.namespace);
        let routes =
            routes.unwrap_or_else(|| Arc::new(Routes::new(self.select_virtual_services(&classes))));
        let everything = self.everything(Some(&routes));
        let egress = EgressListener {
            listener: listener.cloned(),
            services: everything.listener,
            virtual_services: routes,
        };
        let scope = SidecarScope {
            namespace: self.namespace.clone(),
            origin,
            services: everything.services,
            egress: vec![egress],
            outbound_policy,
            lookup: self.view_lookup(everything.special),
        };
        (scope, Interest::new(vec![classes], []))
    }

    fn view_lookup(&self, special: BTreeMap<Arc<str>, Option<Arc<Service>>>) -> Lookup {
        Lookup::View(Box::new(Indexes {
            services: self.context.services.clone(),
            rules: self.context.destination_rules.clone(),
            special,
        }))
    }

    /// A scope whose listeners select what they import.
    pub(super) fn sidecar_selection(
        &self,
        origin: ScopeOrigin,
        outbound_policy: OutboundTrafficPolicy,
        listeners: &[ApiListener],
    ) -> (SidecarScope, Interest) {
        let classes: Vec<HostClasses> = listeners
            .iter()
            .map(|l| HostClasses::parse(&l.hosts, self.namespace))
            .collect();
        let mut egress = Vec::new();
        let mut services = Collector::default();
        let mut leads_to: BTreeSet<&str> = BTreeSet::new();
        let own = |route: &HttpRoute| is_for_callers_in(route, self.namespace);
        for (listener, classes) in listeners.iter().zip(&classes) {
            let port = bound_port(listener);
            let imported = self.one_namespace_per_host(self.select_services(classes, port));
            for service in &imported {
                services.add(service);
            }
            let routes = self.select_virtual_services(classes);
            for vs in &routes {
                for (host, ports) in destinations(&vs.config.spec, own) {
                    let ports = port.map_or(ports, |port| BTreeSet::from([u32::from(port)]));
                    self.add_destination(host, &ports, &mut services);
                }
            }
            egress.push(EgressListener {
                listener: Some(listener.clone()),
                services: imported.into(),
                virtual_services: Arc::new(Routes::new(routes)),
            });
        }
        for vs in egress.iter().flat_map(|l| l.virtual_services.iter()) {
            leads_to.extend(destinations(&vs.config.spec, own).into_keys());
        }
        let interest = Interest::new(classes, leads_to);
        let services = services.into_services();
        let rules = self.context.destination_rules();
        let table = services.iter().map(|service| {
            let owner = &service.attributes.namespace;
            let rules = rules.lookup(self.namespace, owner, &service.hostname);
            (service.hostname.clone(), (service.clone(), rules))
        });
        let scope = SidecarScope {
            namespace: self.namespace.clone(),
            origin,
            lookup: Lookup::Own(table.collect()),
            services: services.into(),
            egress,
            outbound_policy,
        };
        (scope, interest)
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
            .filter(|service| index.is_visible(service, self.namespace))
            .filter_map(select)
            .collect();
        services.sort_by(|a, b| a.by_creation(b));
        services.dedup_by(|a, b| a.by_creation(b).is_eq());
        services
    }

    /// Keeps, of each host name, the services of one namespace: the own one, else that of a
    /// Kubernetes service, else the first.
    pub(super) fn one_namespace_per_host(&self, services: Vec<Arc<Service>>) -> Vec<Arc<Service>> {
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

    /// Adds a service that a VirtualService sends traffic to, on these ports; 0 stands for all of
    /// them (config-model §13.3).
    pub(super) fn add_destination(
        &self,
        hostname: &str,
        ports: &BTreeSet<u32>,
        services: &mut Collector,
    ) {
        let Some(service) = self.destination(hostname) else {
            return;
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

    /// Chooses the namespace of a destination: the own one, else of those visible the Kubernetes
    /// service, else the oldest.
    fn destination(&self, hostname: &str) -> Option<&'a Arc<Service>> {
        let index = self.context.services();
        if let Some(own) = index.get(hostname, self.namespace) {
            return Some(own);
        }
        let mut visible = index
            .by_host(hostname)
            .filter(|s| index.is_visible(s, self.namespace));
        if !self.context.features().sidecar_pick_best_service_namespace {
            return visible.next();
        }
        visible.min_by(|a, b| {
            b.is_kubernetes()
                .cmp(&a.is_kubernetes())
                .then_with(|| a.by_creation(b))
        })
    }
}

//! Kubernetes Ingress and Gateway API as Istio objects (config-model §3.15, §3.16).
//!
//! [`Translator::layer`] lays Gateways, VirtualServices and DestinationRules, derived from Ingresses
//! and Gateway API objects, over the tables of a state, for the snapshot alone: the configuration
//! store never holds them. It is a pure function of the state; what a translator remembers only
//! saves work and keeps unchanged objects and tables shared, so that the next snapshot finds no
//! difference where there is none.

mod gateway_api;
mod ingress;
pub mod report;
pub mod status;

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Config, MeshState, Meta, NamespacedName, Service, ServiceId, ServiceKey, Table,
    api::{DestinationRule, Gateway, VirtualService, common::StringMatch},
};

use report::Reports;

/// Says which translator wrote a VirtualService.
pub(crate) const ROUTE_SEMANTICS: &str = "internal.istio.io/route-semantics";

/// What translators write.
#[derive(Default, Debug)]
pub(crate) struct Output {
    pub gateways: Vec<Config<Gateway>>,
    pub virtual_services: Vec<Config<VirtualService>>,
    pub destination_rules: Vec<Config<DestinationRule>>,
    pub reports: Reports,
}

/// Lays derived objects over states, one after the other.
#[derive(Clone, Default, Debug)]
pub struct Translator {
    last: Option<MeshState>,
    gateways: Layer<Gateway>,
    virtual_services: Layer<VirtualService>,
    destination_rules: Layer<DestinationRule>,
    reports: Arc<Reports>,
}

impl Translator {
    /// What was decided about each object of the state that was laid over last.
    pub fn reports(&self) -> Arc<Reports> {
        self.reports.clone()
    }

    /// Adds the derived objects to a state. An object of a user is never replaced.
    #[must_use]
    pub fn layer(&mut self, mut state: MeshState) -> MeshState {
        if self
            .last
            .as_ref()
            .is_none_or(|last| !same_inputs(last, &state))
        {
            let mut output = Output::default();
            ingress::translate(&state, &mut output);
            if state.features.gateway_api {
                gateway_api::translate(&state, &mut output);
            }
            let Output { reports, .. } = &mut output;
            if *reports != *self.reports {
                reports.share(&self.reports);
                self.reports = Arc::new(std::mem::take(reports));
            }
            self.gateways.renew(output.gateways);
            self.virtual_services.renew(output.virtual_services);
            self.destination_rules.renew(output.destination_rules);
        }
        self.last = Some(state.clone());
        let objects = &mut state.objects;
        objects.gateways = self.gateways.over(&objects.gateways);
        objects.virtual_services = self.virtual_services.over(&objects.virtual_services);
        objects.destination_rules = self.destination_rules.over(&objects.destination_rules);
        state
    }
}

/// The derived objects of one kind.
#[derive(Clone, Debug)]
struct Layer<T> {
    derived: BTreeMap<NamespacedName, Arc<Config<T>>>,
    /// The last table of users with what came of it.
    last: Option<(Table<T>, Table<T>)>,
}

impl<T> Default for Layer<T> {
    fn default() -> Self {
        Self {
            derived: BTreeMap::new(),
            last: None,
        }
    }
}

impl<T: PartialEq> Layer<T> {
    /// Takes new objects, keeping those that are equal to the ones there.
    fn renew(&mut self, objects: Vec<Config<T>>) {
        let mut derived = BTreeMap::new();
        for object in objects {
            let name = object.meta.namespaced_name();
            let kept = self.derived.get(&name).filter(|old| ***old == object);
            let object = kept.cloned().unwrap_or_else(|| Arc::new(object));
            derived.entry(name).or_insert(object);
        }
        let is_same = derived.len() == self.derived.len()
            && derived
                .iter()
                .zip(&self.derived)
                .all(|((name, a), (before, b))| name == before && Arc::ptr_eq(a, b));
        if !is_same {
            self.derived = derived;
            self.last = None;
        }
    }

    fn over(&mut self, table: &Table<T>) -> Table<T> {
        if self.derived.is_empty() {
            return table.clone();
        }
        if let Some((below, layered)) = &self.last
            && below.ptr_eq(table)
        {
            return layered.clone();
        }
        let mut layered = table.clone();
        for (name, object) in &self.derived {
            if !table.contains_key(name) {
                layered.insert(name.clone(), object.clone());
            }
        }
        self.last = Some((table.clone(), layered.clone()));
        layered
    }
}

/// Tells whether two states agree in all that translators read.
fn same_inputs(old: &MeshState, new: &MeshState) -> bool {
    fn same<T: PartialEq>(old: &Arc<T>, new: &Arc<T>) -> bool {
        Arc::ptr_eq(old, new) || old == new
    }
    let (a, b) = (&old.objects, &new.objects);
    let of_mesh = same(&old.mesh, &new.mesh)
        && same(&old.identity, &new.identity)
        && same(&old.features, &new.features);
    let of_sources = a.ingresses.ptr_eq(&b.ingresses)
        && a.ingress_classes.ptr_eq(&b.ingress_classes)
        && a.gateway_classes.ptr_eq(&b.gateway_classes)
        && a.kubernetes_gateways.ptr_eq(&b.kubernetes_gateways)
        && a.listener_sets.ptr_eq(&b.listener_sets)
        && a.http_routes.ptr_eq(&b.http_routes)
        && a.grpc_routes.ptr_eq(&b.grpc_routes)
        && a.tcp_routes.ptr_eq(&b.tcp_routes)
        && a.tls_routes.ptr_eq(&b.tls_routes)
        && a.backend_tls_policies.ptr_eq(&b.backend_tls_policies);
    if !of_mesh || !of_sources {
        return false;
    }
    if is_idle(new) {
        return true;
    }
    a.namespaces.ptr_eq(&b.namespaces)
        && a.secrets.ptr_eq(&b.secrets)
        && a.config_maps.ptr_eq(&b.config_maps)
        && a.reference_grants.ptr_eq(&b.reference_grants)
        && a.service_entries.ptr_eq(&b.service_entries)
        && old.services.ptr_eq(&new.services)
}

/// Tells whether there is nothing to translate.
fn is_idle(state: &MeshState) -> bool {
    let objects = &state.objects;
    objects.ingresses.is_empty()
        && objects.kubernetes_gateways.is_empty()
        && objects.http_routes.is_empty()
        && objects.grpc_routes.is_empty()
        && objects.tcp_routes.is_empty()
        && objects.tls_routes.is_empty()
        && objects.backend_tls_policies.is_empty()
}

/// Makes an object that stems from another, with whose time and place of origin it goes.
pub(crate) fn config<T>(
    namespace: &str,
    name: &str,
    from: &Meta,
    spec: T,
    with: impl FnOnce(&mut Meta),
) -> Config<T> {
    let mut meta = Meta {
        name: name.into(),
        namespace: namespace.into(),
        created: from.created,
        origin: from.origin.clone(),
        ..Meta::default()
    };
    with(&mut meta);
    Config { meta, spec }
}

pub(crate) fn annotate(meta: &mut Meta, key: &str, value: impl Into<String>) {
    meta.annotations.insert(key.to_owned(), value.into());
}

/// The host of a Kubernetes service.
pub(crate) fn service_host(state: &MeshState, name: &str, namespace: &str) -> String {
    format!("{name}.{namespace}.svc.{}", state.identity.domain)
}

/// Finds a service.
pub(crate) fn service<'a>(
    state: &'a MeshState,
    namespace: &str,
    host: &str,
) -> Option<&'a Arc<Service>> {
    let key = ServiceKey::new(namespace, host);
    let first = ServiceId::first_of(&key);
    let (id, service) = state.services.range(first..).next()?;
    (id.key == key).then_some(service)
}

/// Matches a whole string.
pub(crate) fn exact(text: &str) -> StringMatch {
    StringMatch {
        exact: Some(text.to_owned()),
        ..StringMatch::default()
    }
}

/// Matches the start of a string.
pub(crate) fn prefix(text: &str) -> StringMatch {
    StringMatch {
        prefix: Some(text.to_owned()),
        ..StringMatch::default()
    }
}

/// Matches a whole string by expression.
pub(crate) fn regex(text: &str) -> StringMatch {
    StringMatch {
        regex: Some(text.to_owned()),
        ..StringMatch::default()
    }
}

#[cfg(test)]
mod tests;

//! What is accepted and still hardly meant: mistakes that show only when objects are seen together.
//!
//! Each check is a function over the snapshot, in a file of its own. They look at what users wrote:
//! objects that translators derive have checks of their own. A check speaks up only when no proxy
//! could make sense of what it sees; what some namespace may have a use for passes.

mod destinations;
mod service_entries;
mod shadows;
mod sidecars;
mod sniffing;

#[cfg(test)]
mod tests;

use std::sync::Arc;

use model::{
    Config, ConfigKey, Kind, Service,
    api::{
        VirtualService,
        virtual_service::{HttpMatchRequest, HttpRoute},
    },
};

use crate::{PushContext, ResolvedVirtualService, RouteSemantics, virtual_service::expand::expand};

/// One thing that looks wrong.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Advice {
    /// The object that should be looked at first.
    pub object: ConfigKey,
    /// Path of the field in it, such as `spec.http[0].route[1].destination.subset`.
    pub field: String,
    /// What is wrong, in words.
    pub reason: String,
}

impl PushContext {
    /// Lists what looks wrong, by object, field and reason.
    pub fn advice(&self) -> Vec<Advice> {
        let written: Vec<Written<'_>> = written(self);
        let mut advice = Vec::new();
        destinations::check(self, &written, &mut advice);
        shadows::check(self, &mut advice);
        service_entries::check(self, &mut advice);
        sidecars::check(self, &mut advice);
        sniffing::check(self, &mut advice);
        advice.sort_unstable();
        advice.dedup();
        advice
    }
}

/// A VirtualService as its author wrote it, delegates included, with names expanded.
struct Written<'a> {
    config: &'a Arc<Config<VirtualService>>,
    spec: VirtualService,
}

fn written(context: &PushContext) -> Vec<Written<'_>> {
    let of_users =
        |config: &&Arc<Config<VirtualService>>| RouteSemantics::of(config) == RouteSemantics::Istio;
    let table = context.state().objects.virtual_services.values();
    table
        .filter(of_users)
        .map(|config| {
            let mut spec = config.spec.clone();
            expand(
                &mut spec,
                &config.meta.namespace,
                &context.identity().domain,
            );
            Written { config, spec }
        })
        .collect()
}

/// The VirtualServices as they are in force, by namespace and name.
fn resolved(context: &PushContext) -> impl Iterator<Item = &Arc<ResolvedVirtualService>> {
    let names = context.state().objects.virtual_services.keys();
    names.filter_map(|name| context.virtual_services().get(name))
}

/// The key of a VirtualService.
fn key(config: &Config<VirtualService>) -> ConfigKey {
    let meta = &config.meta;
    ConfigKey::new(
        Kind::VirtualService,
        meta.namespace.clone(),
        meta.name.clone(),
    )
}

/// Names an object as people do: `VirtualService shop/web`.
fn name(key: &ConfigKey) -> String {
    format!("{} {}/{}", key.kind, key.namespace, key.name)
}

/// Joins what a sentence lists.
fn list(items: impl IntoIterator<Item = String>) -> String {
    items.into_iter().collect::<Vec<_>>().join(", ")
}

/// The ports of a service, for a sentence.
fn ports(service: &Service) -> String {
    list(service.ports.iter().map(|port| port.port.to_string()))
}

/// Tells whether some request on any port may come to a rule, whoever of the mesh sends it.
fn is_for_all_of_the_mesh(route: &HttpRoute) -> bool {
    let applies = |m: &HttpMatchRequest| {
        m.port == 0
            && m.source_labels.is_empty()
            && m.source_namespace.is_empty()
            && (m.gateways.is_empty() || m.gateways.iter().any(|gateway| gateway == "mesh"))
    };
    route.r#match.is_empty() || route.r#match.iter().any(applies)
}

//! Listeners (LDS).
//!
//! Three steps. *Planning* walks the class and the snapshot and decides what listeners there are and
//! what each chain does; its result is plain data ([`outbound::ListenerPlan`],
//! [`inbound::InboundPlan`]). [`parts::Parts`] holds what all listeners of the class share, largely
//! built. *Building* makes an Envoy listener of one plan and the parts, and of nothing else: their
//! fingerprints are its cache key, so an unchanged listener is never built again.

mod address;
mod by_host;
mod context;
mod dynamic_dns;
mod gateway;
mod hbone;
pub(crate) mod http_filters;
pub(crate) mod http_manager;
mod inbound;
pub(crate) mod listener_filters;
pub(crate) mod network_filters;
mod outbound;
pub(crate) mod parts;
mod stat_name;
mod virtual_outbound;
mod waypoint;

use std::{collections::BTreeSet, hash::Hash, sync::Arc};

use envoy_json::canonical;
use envoy_types::pb::envoy::config::listener::v3::Listener;
use model::{ConfigKey, ProxyType, fingerprint};
use pushctx::{ProxyClass, PushContext};
use xds::{Resource, ResourceSet, Source};

pub(crate) use hbone::CONNECT_TERMINATE;

use self::{context::Context, parts::Parts};
use crate::{
    cache::Cache,
    mtls::NamespacePolicies,
    names,
    patch::{ClassPatches, ListenerPatches, Pass, Patcher, Reach, Run},
    security::{PeerIdentity, PolicyFilters},
};

/// Listeners that are kept for classes that ask again. A mesh of 1 000 services and 10 classes has
/// some 10 000.
const CACHED_LISTENERS: usize = 50_000;

/// Builds the listeners of sidecars.
#[derive(Debug)]
pub struct Lds {
    cache: Cache<Arc<Resource>>,
    patcher: Patcher<ListenerPatches>,
}

impl Default for Lds {
    fn default() -> Self {
        Self {
            cache: Cache::new(CACHED_LISTENERS),
            patcher: Patcher::new(CACHED_LISTENERS),
        }
    }
}

impl Lds {
    /// Returns all listeners of a class of sidecars.
    pub fn generate(&self, snapshot: &PushContext, class: &ProxyClass) -> ResourceSet {
        let ctx = Context::new(snapshot, class);
        if class.proxy.is_router() {
            return self.of_gateway(&ctx);
        }
        if class.waypoint.is_some() {
            return self.of_waypoint(&ctx);
        }
        if class.proxy.proxy_type != ProxyType::Sidecar || ctx.mesh().proxy_listen_port <= 0 {
            return ResourceSet::default();
        }
        let parts = Parts::new(&ctx);
        let patches = self.patcher.resolve(snapshot, class);
        let patched = |built: Arc<Resource>, pass| self.patched(patches.as_ref(), built, pass);
        let mut resources = Vec::new();
        let outward = Pass::SidecarOutbound;
        for plan in outbound::plan(&ctx) {
            let build = |parts: &Parts| outbound::build(&plan, parts);
            resources.extend(patched(
                self.resource(&plan, &parts, &plan.sources, build),
                outward,
            ));
        }
        let none = BTreeSet::new();
        if let Some(plan) = virtual_outbound::plan_http_proxy(&ctx) {
            let build = |parts: &Parts| outbound::build(&plan, parts);
            resources.extend(patched(self.resource(&plan, &parts, &none, build), outward));
        }
        if let Some(plan) = virtual_outbound::plan(&ctx) {
            let build = |parts: &Parts| virtual_outbound::build(&plan, parts);
            resources.extend(patched(self.resource(&plan, &parts, &none, build), outward));
        }
        let modes = NamespacePolicies::new(
            &snapshot.state().objects.peer_authentications,
            snapshot.root_namespace(),
            &class.proxy.namespace,
        )
        .of_workload(&class.labels);
        let mut inbound = inbound::plan(&ctx, &modes);
        let logs = hbone::Loggers::resolve(&ctx);
        if hbone::listens(&ctx) {
            let inputs = hbone::TerminateInputs::gather(&ctx, &logs);
            let build = || hbone::connect_terminate(&inputs);
            resources.extend(patched(self.alone(&inputs, build), Pass::SidecarInbound));
            inbound.push(inbound::plan_internal(&ctx));
        }
        for plan in inbound {
            let build = |parts: &Parts| inbound::build(&plan, parts);
            let sources = plan.sources.union(&parts.policy_sources).cloned().collect();
            let built = self.resource(&plan, &parts, &sources, build);
            resources.extend(patched(built, Pass::SidecarInbound));
        }
        if hbone::sends(&ctx) {
            let baggage = hbone::baggage(&ctx);
            let build = || hbone::connect_originate(&logs, baggage);
            resources.push(self.alone(&(names::CONNECT_ORIGINATE, &logs, baggage), build));
        }
        for pass in [Pass::SidecarOutbound, Pass::SidecarInbound] {
            resources.extend(self.added(patches.as_ref(), pass));
        }
        resources.into_iter().collect()
    }

    /// Returns the listeners of a gateway.
    fn of_gateway(&self, ctx: &Context<'_>) -> ResourceSet {
        let patches = self.patcher.resolve(ctx.snapshot, ctx.class);
        let policies = PolicyFilters::resolve(ctx.snapshot, ctx.class, PeerIdentity::Connection);
        let parts = gateway::GatewayParts::new(ctx, policies);
        let mut resources = Vec::new();
        for plan in gateway::plan(ctx) {
            let key = fingerprint::of(&(&plan, parts.fingerprint));
            let built = self.cache.get_or_build(key, || {
                finish(&gateway::build(&plan, &parts), &plan.sources)
            });
            resources.extend(self.patched(patches.as_ref(), built, Pass::Gateway));
        }
        if hbone::sends(ctx) {
            let baggage = hbone::baggage(ctx);
            let logs = hbone::Loggers::resolve(ctx);
            let build = || hbone::connect_originate(&logs, baggage);
            resources.push(self.alone(&(names::CONNECT_ORIGINATE, &logs, baggage), build));
        }
        resources.extend(self.added(patches.as_ref(), Pass::Gateway));
        resources.into_iter().collect()
    }

    /// Returns the listeners of a waypoint. All of them are patched as inbound ones.
    fn of_waypoint(&self, ctx: &Context<'_>) -> ResourceSet {
        let patches = self.patcher.resolve(ctx.snapshot, ctx.class);
        let logs = hbone::Loggers::resolve(ctx);
        let inputs = hbone::TerminateInputs::gather(ctx, &logs);
        let plan = waypoint::plan(ctx);
        let baggage = hbone::baggage(ctx);
        let originate = &(names::CONNECT_ORIGINATE, &logs, baggage);
        let built = [
            self.alone(&inputs, || hbone::connect_terminate(&inputs)),
            self.cache.get_or_build(plan.fingerprint(), || {
                finish(&plan.build(), &plan.sources())
            }),
            self.alone(originate, || hbone::connect_originate(&logs, baggage)),
        ];
        let pass = Pass::SidecarInbound;
        let patched = |built| self.patched(patches.as_ref(), built, pass);
        let mut resources: Vec<_> = built.into_iter().filter_map(patched).collect();
        for pass in [Pass::SidecarOutbound, Pass::SidecarInbound] {
            resources.extend(self.added(patches.as_ref(), pass));
        }
        resources.into_iter().collect()
    }

    /// Patches a finished listener; `None` when a patch removes it.
    fn patched(
        &self,
        patches: Option<&ClassPatches<ListenerPatches>>,
        built: Arc<Resource>,
        pass: Pass,
    ) -> Option<Arc<Resource>> {
        let Some(patches) = patches else {
            return Some(built);
        };
        let index = patches.index();
        let apply = |listener, run: &Run| {
            let listener = index.apply(listener, run)?;
            Some((listener.name.clone(), listener))
        };
        let concerns = |listener: &Listener| index.concerns(listener, pass);
        // What is in a listener, only the listener tells.
        self.patcher
            .patched(&built, (patches, Reach::All), pass, concerns, apply)
    }

    /// The listeners that patches add.
    fn added(
        &self,
        patches: Option<&ClassPatches<ListenerPatches>>,
        pass: Pass,
    ) -> Vec<Arc<Resource>> {
        let Some(patches) = patches else {
            return Vec::new();
        };
        let name = |listener: &Listener| listener.name.clone();
        let adding = patches.index().adding(pass);
        self.patcher.added(patches, adding, name)
    }

    /// Returns a listener that shares nothing with others, built when it is not cached.
    fn alone(&self, inputs: &impl Hash, build: impl FnOnce() -> Listener) -> Arc<Resource> {
        let key = fingerprint::of(inputs);
        self.cache
            .get_or_build(key, || finish(&build(), &BTreeSet::new()))
    }

    /// Returns the listener of a plan, built when it is not cached.
    fn resource(
        &self,
        plan: &impl Hash,
        parts: &Parts,
        sources: &BTreeSet<ConfigKey>,
        build: impl FnOnce(&Parts) -> Listener,
    ) -> Arc<Resource> {
        let key = fingerprint::of(&(plan, parts.fingerprint));
        self.cache
            .get_or_build(key, || finish(&build(parts), sources))
    }
}

/// Encodes a finished listener.
fn finish(listener: &Listener, sources: &BTreeSet<ConfigKey>) -> Arc<Resource> {
    let sources: Vec<Source> = sources
        .iter()
        .map(|key| Source::from(key.to_string()))
        .collect();
    let resource = Resource::new(listener.name.as_str(), canonical(listener));
    Arc::new(resource.with_sources(sources))
}

#[cfg(test)]
mod tests;

//! RDS: HTTP route configurations by name.
//!
//! A sidecar asks for the names that its listeners refer to: `<port>`, `<host>:<port>` for sniffed
//! ports, `http_proxy`, or the bind of a Unix socket. Every name is answered; one for which nothing
//! can be built gets an empty configuration. Follows routes §2–§8.

mod catch_all;
mod domains;
mod frame;
mod gateway;
mod groups;
mod inputs;
mod large;
mod name;
mod virtual_hosts;

use std::sync::Arc;

use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use pushctx::{ProxyClass, PushContext};
use rayon::prelude::*;
use xds::{Interest, Resource, ResourceSet, Source};

pub(crate) use catch_all::virtual_host as catch_all_virtual_host;
pub(crate) use domains::alternative_names;
pub(crate) use inputs::{ClientView, RouteInputs};

use crate::{
    cache::Cache,
    convert,
    patch::{ClassPatches, Pass, Patcher, RouteNames, RoutePatches, Run},
};
use gateway::{GatewayParts, GatewayRouteInputs};
use large::{LARGE, LargeInputs, Parts};
use name::RouteName;

/// Route configurations that are kept. A class asks for one per HTTP port and sniffed service port.
const CACHED_ROUTES: usize = 20_000;

/// Builds route configurations. What was built for one class or snapshot is used again for all others
/// in which its inputs are the same.
#[derive(Debug)]
pub struct Rds {
    cache: Cache<Arc<Resource>>,
    parts: Parts,
    gateway_parts: GatewayParts,
    patcher: Patcher<RoutePatches>,
}

impl Default for Rds {
    fn default() -> Self {
        Self {
            cache: Cache::new(CACHED_ROUTES),
            parts: Parts::default(),
            gateway_parts: GatewayParts::default(),
            patcher: Patcher::new(CACHED_ROUTES),
        }
    }
}

impl Rds {
    /// Returns the configurations that `interest` names. Nothing can be asked for as a whole.
    pub fn generate(
        &self,
        context: &PushContext,
        class: &ProxyClass,
        interest: &Interest,
    ) -> ResourceSet {
        let Some(names) = interest.names() else {
            return ResourceSet::default();
        };
        let names: Vec<&Arc<str>> = names.iter().collect();
        let patches = self.patcher.resolve(context, class);
        names
            .par_iter()
            .map(|name| self.resource(context, class, name, patches.as_ref()))
            .collect::<Vec<_>>()
            .into_iter()
            .collect()
    }

    fn resource(
        &self,
        context: &PushContext,
        class: &ProxyClass,
        name: &str,
        patches: Option<&ClassPatches<RoutePatches>>,
    ) -> Arc<Resource> {
        if class.proxy.is_router() {
            return self.of_gateway(context, class, name, patches);
        }
        let Some(parsed) = RouteName::parse(name) else {
            return Arc::new(Resource::new(name, envoy_json::canonical(&empty(name))));
        };
        let at_once = |inputs: &RouteInputs| {
            let body = envoy_json::canonical(&build(inputs));
            Arc::new(Resource::new(name, body).with_sources(inputs.sources()))
        };
        let how = (LARGE, &self.parts);
        let built = if let Some(inputs) = LargeInputs::gather(context, class, name, &parsed, how) {
            self.cache.get_or_build(inputs.fingerprint(), || {
                match inputs.assemble(&self.parts) {
                    Some((body, sources)) => {
                        Arc::new(Resource::new(name, body).with_sources(sources))
                    }
                    None => at_once(&inputs.whole()),
                }
            })
        } else {
            let inputs = RouteInputs::gather(context, class, name, parsed);
            self.cache
                .get_or_build(inputs.fingerprint(), || at_once(&inputs))
        };
        let names = || RouteNames::of_sidecar(name);
        self.patched(built, patches, names, Pass::SidecarOutbound)
    }

    fn of_gateway(
        &self,
        context: &PushContext,
        class: &ProxyClass,
        name: &str,
        patches: Option<&ClassPatches<RoutePatches>>,
    ) -> Arc<Resource> {
        let merged = class.gateway.as_deref();
        let gathered = merged.and_then(|gateway| {
            let inputs = GatewayRouteInputs::gather(context, class, gateway, name)?;
            Some((gateway, inputs))
        });
        let Some((gateway, inputs)) = gathered else {
            // Such an answer is not patched either (envoyfilter §7).
            return Arc::new(Resource::new(name, envoy_json::canonical(&empty(name))));
        };
        let built = self.cache.get_or_build(inputs.fingerprint(), || {
            let sources = || -> Vec<Source> {
                let keys = inputs.provenance().into_iter();
                keys.map(|key| key.to_string().into()).collect()
            };
            let (body, sources) =
                rayon::join(|| gateway::build(&inputs, &self.gateway_parts), sources);
            Arc::new(Resource::new(name, body).with_sources(sources))
        });
        let names = || RouteNames::of_gateway(name, Arc::new(gateway.target_ports.clone()));
        self.patched(built, patches, names, Pass::Gateway)
    }

    fn patched(
        &self,
        built: Arc<Resource>,
        patches: Option<&ClassPatches<RoutePatches>>,
        names: impl FnOnce() -> RouteNames,
        pass: Pass,
    ) -> Arc<Resource> {
        let Some(patches) = patches else { return built };
        let names = names();
        let reach = patches.index().reach(&names, pass);
        let apply = |mut routes: RouteConfiguration, run: &Run| {
            patches.index().apply(&mut routes, &names, run);
            Some((routes.name.clone(), routes))
        };
        self.patcher
            .patched(&built, (patches, reach), pass, |_| true, apply)
            .unwrap_or(built)
    }
}

/// Builds a sidecar's outbound route configuration.
fn build(inputs: &RouteInputs) -> RouteConfiguration {
    let mut virtual_hosts = virtual_hosts::build(inputs);
    if !inputs.is_sniffed() {
        virtual_hosts.push(catch_all::virtual_host(&inputs.client));
    }
    RouteConfiguration {
        name: inputs.name.clone(),
        virtual_hosts,
        ..frame::settings()
    }
}

/// The answer to a name for which nothing can be built.
fn empty(name: &str) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        validate_clusters: convert::bool_value(false),
        ..RouteConfiguration::default()
    }
}

//! RDS: HTTP route configurations by name.
//!
//! A sidecar asks for the names that its listeners refer to: `<port>`, `<host>:<port>` for sniffed
//! ports, `http_proxy`, or the bind of a Unix socket. Every name is answered; one for which nothing
//! can be built gets an empty configuration. Follows routes §2–§8.

mod catch_all;
mod domains;
mod gateway;
mod groups;
mod inputs;
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
use gateway::GatewayRouteInputs;
use name::RouteName;

/// Route configurations that are kept. A class asks for one per HTTP port and sniffed service port.
const CACHED_ROUTES: usize = 20_000;
/// Virtual hosts that one thread encodes at a time.
const HOSTS_OF_PART: usize = 256;
/// Size limit of direct responses, in bytes.
const MAX_DIRECT_RESPONSE_BYTES: u32 = 1024 * 1024;

/// Builds route configurations. What was built for one class or snapshot is used again for all others
/// in which its inputs are the same.
#[derive(Debug)]
pub struct Rds {
    cache: Cache<Arc<Resource>>,
    patcher: Patcher<RoutePatches>,
}

impl Default for Rds {
    fn default() -> Self {
        Self {
            cache: Cache::new(CACHED_ROUTES),
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
        let inputs = RouteInputs::gather(context, class, name, parsed);
        let built = self.cache.get_or_build(inputs.fingerprint(), || {
            let sources = || -> Vec<Source> {
                let keys = inputs.provenance();
                keys.iter().map(|key| key.to_string().into()).collect()
            };
            let (body, sources) = rayon::join(|| encode(build(&inputs)), sources);
            Arc::new(Resource::new(name, body).with_sources(sources))
        });
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
            let sources: Vec<Source> = inputs
                .provenance()
                .iter()
                .map(|key| key.to_string().into())
                .collect();
            let body = envoy_json::canonical(&gateway::build(&inputs));
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
        validate_clusters: convert::bool_value(false),
        max_direct_response_body_size_bytes: convert::u32_value(MAX_DIRECT_RESPONSE_BYTES),
        ignore_port_in_host_matching: true,
        ..RouteConfiguration::default()
    }
}

/// Encodes a configuration canonically, a large one by several threads.
///
/// Encoded messages that follow each other are one message, with their repeated fields joined: name,
/// parts of the virtual hosts, and the fields behind them are encoded on their own.
fn encode(mut routes: RouteConfiguration) -> Vec<u8> {
    if routes.virtual_hosts.len() <= HOSTS_OF_PART {
        return envoy_json::encode::canonical_vec(&routes);
    }
    let head = RouteConfiguration {
        name: std::mem::take(&mut routes.name),
        ..RouteConfiguration::default()
    };
    let hosts = std::mem::take(&mut routes.virtual_hosts);
    let part = |virtual_hosts| {
        envoy_json::encode::canonical_vec(&RouteConfiguration {
            virtual_hosts,
            ..RouteConfiguration::default()
        })
    };
    let parts: Vec<Vec<u8>> = hosts
        .into_par_iter()
        .chunks(HOSTS_OF_PART)
        .map(part)
        .collect();
    let head = envoy_json::encode::canonical_vec(&head);
    let tail = envoy_json::encode::canonical_vec(&routes);
    let parts: Vec<&[u8]> = std::iter::once(&head)
        .chain(&parts)
        .chain([&tail])
        .map(Vec::as_slice)
        .collect();
    parts.concat()
}

/// The answer to a name for which nothing can be built.
fn empty(name: &str) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        validate_clusters: convert::bool_value(false),
        ..RouteConfiguration::default()
    }
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::config::route::v3::VirtualHost;

    use super::*;

    #[test]
    fn parts_of_a_configuration_make_the_whole() {
        let routes = |count: usize| RouteConfiguration {
            name: "80".to_owned(),
            virtual_hosts: (0..count)
                .map(|n| VirtualHost {
                    name: format!("host-{n}"),
                    ..VirtualHost::default()
                })
                .collect(),
            ..empty("80")
        };
        for count in [0, HOSTS_OF_PART, HOSTS_OF_PART + 1, 5 * HOSTS_OF_PART - 1] {
            let whole = envoy_json::canonical(&routes(count));
            assert_eq!(encode(routes(count)), whole, "{count} virtual hosts");
        }
    }
}

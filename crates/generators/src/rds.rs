//! RDS: HTTP route configurations by name.
//!
//! A sidecar asks for the names that its listeners refer to: `<port>`, `<host>:<port>` for sniffed
//! ports, `http_proxy`, or the bind of a Unix socket. Every name is answered; one for which nothing
//! can be built gets an empty configuration. Follows routes §2–§8.

mod catch_all;
mod domains;
mod groups;
mod inputs;
mod name;
mod virtual_hosts;

use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;
use pushctx::{ProxyClass, PushContext};

pub(crate) use catch_all::virtual_host as catch_all_virtual_host;
pub(crate) use domains::alternative_names;
pub(crate) use inputs::{ClientView, RouteInputs};

use crate::convert;
use name::RouteName;

/// Size limit of direct responses, in bytes.
const MAX_DIRECT_RESPONSE_BYTES: u32 = 1024 * 1024;

/// Gathers what the configuration of `name` is built from. `None` for a name that means nothing.
pub(crate) fn inputs(context: &PushContext, class: &ProxyClass, name: &str) -> Option<RouteInputs> {
    RouteName::parse(name).map(|parsed| RouteInputs::gather(context, class, name, parsed))
}

/// Builds a sidecar's outbound route configuration.
pub(crate) fn build(inputs: &RouteInputs) -> RouteConfiguration {
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

/// The answer to a name for which nothing can be built.
pub(crate) fn empty(name: &str) -> RouteConfiguration {
    RouteConfiguration {
        name: name.to_owned(),
        validate_clusters: convert::bool_value(false),
        ..RouteConfiguration::default()
    }
}

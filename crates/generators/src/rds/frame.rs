//! What is around the virtual hosts of an outbound configuration, and its parts as bytes.
//!
//! Encoded messages that follow each other are one message, with their repeated fields joined: head,
//! virtual hosts and tail make a configuration, in canonical order.

use envoy_json::encode::canonical_vec;
use envoy_types::pb::envoy::config::route::v3::{RouteConfiguration, VirtualHost};

use prost::{Name as _, encoding};

use crate::convert;

/// `RouteConfiguration.virtual_hosts`.
const VIRTUAL_HOSTS: u32 = 2;
/// Size limit of direct responses, in bytes.
pub(super) const MAX_DIRECT_RESPONSE_BYTES: u32 = 1024 * 1024;

/// The settings of all outbound configurations.
pub(super) fn settings() -> RouteConfiguration {
    RouteConfiguration {
        validate_clusters: convert::bool_value(false),
        max_direct_response_body_size_bytes: convert::u32_value(MAX_DIRECT_RESPONSE_BYTES),
        ignore_port_in_host_matching: true,
        ..RouteConfiguration::default()
    }
}

/// Encodes what comes before the virtual hosts.
pub(super) fn head(name: &str) -> Vec<u8> {
    canonical_vec(&RouteConfiguration {
        name: name.to_owned(),
        ..RouteConfiguration::default()
    })
}

/// Encodes a virtual host, behind what is in `bytes`.
pub(super) fn host(host: &VirtualHost, bytes: &mut Vec<u8>) {
    encoding::message::encode(VIRTUAL_HOSTS, host, bytes);
}

/// Puts encoded virtual hosts into canonical order.
pub(super) fn canonicalize(bytes: &mut [u8]) {
    envoy_json::encode::canonicalize(&RouteConfiguration::full_name(), bytes);
}

/// Encodes what comes behind the virtual hosts.
pub(super) fn tail() -> Vec<u8> {
    canonical_vec(&settings())
}

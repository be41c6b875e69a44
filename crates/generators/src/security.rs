//! Security policies as filters and TLS contexts of listeners (security-policy).

mod authz;
pub(crate) mod inbound_tls;
pub(crate) mod jwt;
mod policies;
pub(crate) mod server_tls;

pub(crate) use policies::of_tunnels;

use std::collections::BTreeSet;

use envoy_types::pb::envoy::{
    config::listener::v3::Filter,
    extensions::filters::network::http_connection_manager::v3::HttpFilter,
};
use model::ConfigKey;

/// Where RBAC finds who the peer is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PeerIdentity {
    /// In the certificate of the connection.
    Connection,
    /// In the filter state that the end of an HBONE tunnel left.
    FilterState,
}

/// Filters that decide who may do what, in the order in which they stand.
///
/// Computed once for each class and put into all of its chains; sidecars have them on inbound chains
/// only.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct PolicyFilters {
    /// External authorization of requests: pairs of a shadow RBAC filter and `ext_authz`.
    pub http_custom: Vec<HttpFilter>,
    /// Verification of tokens.
    pub jwt: Option<HttpFilter>,
    /// RBAC of requests: AUDIT, DENY, ALLOW.
    pub http_rbac: Vec<HttpFilter>,
    /// External authorization of connections.
    pub tcp_custom: Vec<Filter>,
    /// RBAC of connections: AUDIT, DENY, ALLOW.
    pub tcp_rbac: Vec<Filter>,
    /// The policies behind all of these.
    pub sources: BTreeSet<ConfigKey>,
}

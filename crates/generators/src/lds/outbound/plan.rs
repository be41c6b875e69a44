//! Outbound listeners as decided, before any of Envoy's messages is built.
//!
//! A plan is plain data with a hash: together with the parts that all listeners of a class share it
//! is all that a listener is built from, and so its cache key.

use std::{collections::BTreeSet, sync::Arc};

use model::{ConfigKey, NamespacedName, Protocol, api};

/// One listener of a bind and port.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ListenerPlan {
    /// The port number; 0 for a Unix socket.
    pub port: u16,
    /// Protocol of the port that came first.
    pub port_protocol: Protocol,
    /// Addresses; the first names the listener.
    pub binds: Vec<Arc<str>>,
    /// The listener really binds, rather than being found through the capture listener.
    pub bound: bool,
    /// Chains in order.
    pub chains: Vec<ChainPlan>,
    /// Protocol by which conflicts are judged.
    pub protocol: Protocol,
    /// The objects that went in.
    pub sources: BTreeSet<ConfigKey>,
}

/// One filter chain.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ChainPlan {
    /// Which connections it takes.
    pub matching: ChainMatch,
    /// The VirtualService that is named in its metadata.
    pub config: Option<NamespacedName>,
    /// What it does.
    pub content: ChainContent,
}

/// Which connections a chain takes; empty parts match everything.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ChainMatch {
    /// Server names.
    pub sni_hosts: Vec<String>,
    /// Destination addresses and ranges, as written.
    pub cidrs: Vec<Arc<str>>,
    /// Plain-text HTTP only.
    pub plain_http: bool,
}

/// What a chain does.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum ChainContent {
    /// Routes requests.
    Http(HttpPlan),
    /// Forwards bytes.
    Tcp(TcpPlan),
}

/// An HTTP chain.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HttpPlan {
    /// Name of the route configuration.
    pub route_name: String,
    /// The port that made the chain speaks gRPC-Web.
    pub grpc_web: bool,
    /// The service is a wildcard host that is resolved for each request.
    pub dynamic_dns: Option<Arc<str>>,
    /// The mesh's HTTP proxy listener.
    pub is_proxy: bool,
}

/// A chain that forwards bytes.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TcpPlan {
    /// Protocol of the port; decides the terminal filter.
    pub protocol: Protocol,
    /// Prefix of statistics.
    pub stat_prefix: String,
    /// Where to.
    pub destination: TcpDestination,
    /// Idle timeout of connections.
    pub idle_timeout: Option<api::Duration>,
    /// Longest life of a connection.
    pub max_connection_duration: Option<api::Duration>,
    /// Connections of one source address go to one host.
    pub hash_source_ip: bool,
    /// Tunnel to the destination.
    pub tunnel: Option<TunnelPlan>,
    /// The service is a wildcard host that is resolved for each server name.
    pub dynamic_dns: Option<Arc<str>>,
}

/// Where a chain forwards to.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum TcpDestination {
    /// One cluster.
    Cluster(String),
    /// Clusters by weight.
    Weighted(Vec<(String, u32)>),
}

/// A tunnel through the destination.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct TunnelPlan {
    /// Host and port that the tunnel leads to.
    pub hostname: String,
    /// POST rather than CONNECT.
    pub use_post: bool,
}

impl TcpPlan {
    /// Plans forwarding to one cluster without any settings; the cluster names the statistics.
    pub(crate) fn to_cluster(cluster: &str, idle_timeout: Option<api::Duration>) -> Self {
        Self {
            protocol: Protocol::Tcp,
            stat_prefix: cluster.to_owned(),
            destination: TcpDestination::Cluster(cluster.to_owned()),
            idle_timeout,
            max_connection_duration: None,
            hash_source_ip: false,
            tunnel: None,
            dynamic_dns: None,
        }
    }
}

impl TcpDestination {
    /// The cluster, or the first of several.
    pub(crate) fn first_cluster(&self) -> &str {
        match self {
            Self::Cluster(cluster) => cluster,
            Self::Weighted(clusters) => clusters.first().map_or("", |(name, _)| name),
        }
    }
}

impl ChainMatch {
    /// Takes every connection (listeners §4.5).
    pub(crate) fn is_match_all(&self) -> bool {
        !self.has_server_names() && !self.plain_http && self.cidrs.is_empty()
    }

    /// Server names restrict the connections.
    pub(crate) fn has_server_names(&self) -> bool {
        !self.sni_hosts.is_empty() && !self.sni_hosts.iter().any(|host| host == "*")
    }
}

impl ListenerPlan {
    /// Name of the listener.
    pub(crate) fn name(&self) -> String {
        super::super::address::listener_name(self.binds.first().map_or("", |b| b), self.port)
    }
}

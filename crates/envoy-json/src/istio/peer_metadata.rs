//! Config of the HTTP filter `istio.metadata_exchange`.

/// Says how the peer of a request is found and told about us (`io.istio.http.peer_metadata.Config`).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct Config {
    /// Ways to know the client, the first that succeeds wins.
    #[prost(message, repeated, tag = "1")]
    pub downstream_discovery: Vec<DiscoveryMethod>,
    /// Ways to know the server, the first that succeeds wins.
    #[prost(message, repeated, tag = "2")]
    pub upstream_discovery: Vec<DiscoveryMethod>,
    /// How the client is told, on the response.
    #[prost(message, repeated, tag = "3")]
    pub downstream_propagation: Vec<PropagationMethod>,
    /// How the server is told, on the request.
    #[prost(message, repeated, tag = "4")]
    pub upstream_propagation: Vec<PropagationMethod>,
    /// Whether upstream filters see what was found.
    #[prost(bool, tag = "5")]
    pub shared_with_upstream: bool,
    /// Further workload labels to exchange.
    #[prost(string, repeated, tag = "6")]
    pub additional_labels: Vec<String>,
}

/// A way to know the peer.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct DiscoveryMethod {
    /// The way.
    #[prost(oneof = "Discovery", tags = "1, 2, 3")]
    pub method_specifier: Option<Discovery>,
}

/// The ways to know the peer.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Discovery {
    /// The `baggage` header.
    #[prost(message, tag = "1")]
    Baggage(Baggage),
    /// The workload discovery service.
    #[prost(message, tag = "2")]
    WorkloadDiscovery(WorkloadDiscovery),
    /// Istio's own headers.
    #[prost(message, tag = "3")]
    IstioHeaders(IstioHeaders),
}

/// A way to tell the peer.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct PropagationMethod {
    /// The way.
    #[prost(oneof = "Propagation", tags = "1")]
    pub method_specifier: Option<Propagation>,
}

/// The ways to tell the peer.
#[derive(Clone, Copy, PartialEq, Eq, prost::Oneof)]
pub enum Propagation {
    /// Istio's own headers.
    #[prost(message, tag = "1")]
    IstioHeaders(IstioHeaders),
}

/// The `baggage` header.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct Baggage {}

/// The workload discovery service.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct WorkloadDiscovery {}

/// Istio's own headers.
#[derive(Clone, Copy, PartialEq, Eq, prost::Message)]
pub struct IstioHeaders {
    /// Whether servers outside of the mesh are not told.
    #[prost(bool, tag = "1")]
    pub skip_external_clusters: bool,
}

super::name!("io.istio.http.peer_metadata",
    Config => "Config",
    DiscoveryMethod => "Config.DiscoveryMethod",
    PropagationMethod => "Config.PropagationMethod",
    Baggage => "Config.Baggage",
    WorkloadDiscovery => "Config.WorkloadDiscovery",
    IstioHeaders => "Config.IstioHeaders",
);

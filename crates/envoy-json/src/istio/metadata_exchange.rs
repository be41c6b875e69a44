//! Config of the network filter `istio.metadata_exchange`.

/// Says how two proxies tell each other who they are on a TCP connection
/// (`envoy.tcp.metadataexchange.config.MetadataExchange`).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct MetadataExchange {
    /// The ALPN protocol by which a peer says that it takes part.
    #[prost(string, tag = "1")]
    pub protocol: String,
    /// Whether to look the peer up when it does not take part.
    #[prost(bool, tag = "2")]
    pub enable_discovery: bool,
    /// Further workload labels to exchange.
    #[prost(string, repeated, tag = "3")]
    pub additional_labels: Vec<String>,
}

super::name!("envoy.tcp.metadataexchange.config", MetadataExchange => "MetadataExchange");

//! Config of the HTTP filter `istio.alpn`.

/// Says which ALPN protocols to offer upstream (`istio.envoy.config.filter.http.alpn.v2alpha1`).
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct FilterConfig {
    /// What to offer for each protocol of the upstream.
    #[prost(message, repeated, tag = "1")]
    pub alpn_override: Vec<AlpnOverride>,
}

/// What to offer for one protocol of the upstream.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub struct AlpnOverride {
    /// The protocol spoken upstream.
    #[prost(enumeration = "Protocol", tag = "1")]
    pub upstream_protocol: i32,
    /// The ALPN protocols to offer, in order.
    #[prost(string, repeated, tag = "2")]
    pub alpn_override: Vec<String>,
}

/// A protocol spoken upstream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, prost::Enumeration)]
#[repr(i32)]
pub enum Protocol {
    /// HTTP/1.0.
    Http10 = 0,
    /// HTTP/1.1.
    Http11 = 1,
    /// HTTP/2.
    Http2 = 2,
}

super::name!("istio.envoy.config.filter.http.alpn.v2alpha1",
    FilterConfig => "FilterConfig",
    AlpnOverride => "FilterConfig.AlpnOverride",
);

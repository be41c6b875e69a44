//! Messages of the `xds` packages that `envoy-types` lacks, as `proto/xds` describes them.

use envoy_types::pb::xds::{core::v3::CidrRange, r#type::matcher::v3::matcher::OnMatch};

/// Matches an address against possibly overlapping ranges (`xds.type.matcher.v3.IPMatcher`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct IpMatcher {
    /// Ranges, each with what to do; the longest prefix wins.
    #[prost(message, repeated, tag = "1")]
    pub range_matchers: Vec<IpRangeMatcher>,
}

/// Ranges, and what to do with an address in one of them.
#[derive(Clone, PartialEq, prost::Message)]
pub struct IpRangeMatcher {
    /// The ranges.
    #[prost(message, repeated, tag = "1")]
    pub ranges: Vec<CidrRange>,
    /// What to do.
    #[prost(message, optional, tag = "2")]
    pub on_match: Option<OnMatch>,
    /// Whether a shorter prefix is not tried when the nested condition of this one fails.
    #[prost(bool, tag = "3")]
    pub exclusive: bool,
}

crate::istio::name!("xds.type.matcher.v3",
    IpMatcher => "IPMatcher",
    IpRangeMatcher => "IPMatcher.IPRangeMatcher",
);

//! DNS caches of destinations that are resolved for each request (listeners §4.6, §10).

use envoy_json::any;
use envoy_types::pb::envoy::{
    config::{
        cluster::v3::cluster::DnsLookupFamily,
        core::v3::{Address, TypedExtensionConfig},
    },
    extensions::{
        common::dynamic_forward_proxy::v3::DnsCacheConfig,
        network::dns_resolver::cares::v3::CaresDnsResolverConfig,
    },
};
use model::{
    Features,
    proxy::{IpMode, Proxy},
};

use crate::{convert, names};

/// Cache of the mesh-wide mode.
const MESH_CACHE: &str = "allow_any_dfp_dns_cache";
/// Where the agent answers names when the metadata does not say.
const AGENT: (&str, u16) = ("127.0.0.1", 15053);

/// Which addresses of a name a proxy uses.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Lookup {
    family: DnsLookupFamily,
}

impl Lookup {
    /// Chooses by the proxy's families.
    pub(crate) fn of(proxy: &Proxy, features: &Features) -> Self {
        let family = match proxy.ip_mode {
            IpMode::Dual if features.dual_stack => DnsLookupFamily::All,
            IpMode::V4 | IpMode::Dual => DnsLookupFamily::V4Only,
            IpMode::V6 if features.v4_outbound_for_v6 => DnsLookupFamily::All,
            IpMode::V6 => DnsLookupFamily::V6Only,
        };
        Self { family }
    }

    /// The cache of one wildcard host.
    pub(crate) fn cache_of(self, hostname: &str) -> DnsCacheConfig {
        DnsCacheConfig {
            name: names::dns_cache(hostname),
            dns_lookup_family: self.family.into(),
            ..DnsCacheConfig::default()
        }
    }

    /// The cache of the mesh-wide mode. A proxy that captures DNS asks its agent.
    pub(crate) fn mesh_cache(self, proxy: &Proxy, features: &Features) -> DnsCacheConfig {
        DnsCacheConfig {
            name: MESH_CACHE.to_owned(),
            dns_lookup_family: self.family.into(),
            max_hosts: convert::u32_value(features.dynamic_dns_max_hosts),
            typed_dns_resolver_config: proxy.metadata.dns_capture.then(|| resolver(proxy)),
            ..DnsCacheConfig::default()
        }
    }
}

fn resolver(proxy: &Proxy) -> TypedExtensionConfig {
    convert::extension(
        "envoy.network.dns_resolver.cares",
        any(&CaresDnsResolverConfig {
            resolvers: vec![agent_address(&proxy.metadata.dns_proxy_addr)],
            ..CaresDnsResolverConfig::default()
        }),
    )
}

fn agent_address(stated: &str) -> Address {
    let parsed = stated.rsplit_once(':').and_then(|(host, port)| {
        let host = host.trim_start_matches('[').trim_end_matches(']');
        let host = if host == "localhost" { AGENT.0 } else { host };
        Some((host, port.parse::<u16>().ok()?))
    });
    let (host, port) = parsed.filter(|(host, _)| !host.is_empty()).unwrap_or(AGENT);
    convert::socket_address(host, port)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(stated: &str, host: &str, port: u16) {
        assert_eq!(agent_address(stated), convert::socket_address(host, port));
    }

    #[test]
    fn the_agent_is_found_by_metadata_or_default() {
        check("", "127.0.0.1", 15053);
        check("localhost:15054", "127.0.0.1", 15054);
        check("[::1]:53", "::1", 53);
        check("nonsense", "127.0.0.1", 15053);
    }
}

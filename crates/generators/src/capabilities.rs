//! What a proxy's build of Envoy has (law: stock Envoy is a first-class client).

use std::collections::BTreeSet;

use model::Proxy;

/// Which of Istio's own extensions a proxy has.
///
/// A proxy that states no extensions is taken for Istio's build and has all of them. One that
/// states its extensions gets only what it named: a resource with an unknown filter would be
/// rejected as a whole.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each extension is there or not"
)]
pub struct Capabilities {
    /// Exchange of peer metadata over TCP (network filter, also as a cluster's filter).
    pub metadata_exchange: bool,
    /// Exchange of peer metadata over HTTP, and discovery of peers by address.
    pub peer_metadata: bool,
    /// The filter that overrides the ALPN by the downstream protocol.
    pub alpn: bool,
    /// Istio's metrics.
    pub stats: bool,
    /// An agent beside the proxy serves its certificates. Istio's agent starts Istio's build, so one
    /// that has no extension of Istio's is not taken to have an agent: it may wait for certificates
    /// only as long as it can do without them.
    pub agent: bool,
}

impl Capabilities {
    /// Everything that Istio's build has.
    pub const ISTIO: Self = Self {
        metadata_exchange: true,
        peer_metadata: true,
        alpn: true,
        stats: true,
        agent: true,
    };

    /// What `proxy` has.
    pub fn of(proxy: &Proxy) -> Self {
        proxy.extensions.as_ref().map_or(Self::ISTIO, Self::stated)
    }

    /// Names are those of Envoy's registered factories; builds differ in the spelling of some.
    fn stated(extensions: &BTreeSet<String>) -> Self {
        let has = |names: &[&str]| names.iter().any(|name| extensions.contains(*name));
        let mut stated = Self {
            metadata_exchange: has(&[
                "istio.metadata_exchange",
                "envoy.filters.network.metadata_exchange",
                "envoy.filters.network.upstream.metadata_exchange",
            ]),
            peer_metadata: has(&["envoy.filters.http.peer_metadata", "istio.peer_metadata"]),
            alpn: has(&["istio.alpn", "istio_alpn"]),
            stats: has(&["istio.stats", "envoy.filters.http.istio_stats"]),
            agent: false,
        };
        stated.agent =
            stated.metadata_exchange || stated.peer_metadata || stated.alpn || stated.stats;
        stated
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stated_list_is_taken_literally() {
        let stock = BTreeSet::from(["envoy.filters.http.router".to_owned()]);
        assert_eq!(
            Capabilities::stated(&stock),
            Capabilities {
                metadata_exchange: false,
                peer_metadata: false,
                alpn: false,
                stats: false,
                agent: false,
            }
        );
        let istio = [
            "istio.metadata_exchange",
            "envoy.filters.http.peer_metadata",
            "istio.alpn",
            "istio.stats",
        ];
        let istio: BTreeSet<String> = istio.into_iter().map(str::to_owned).collect();
        assert_eq!(Capabilities::stated(&istio), Capabilities::ISTIO);
    }
}

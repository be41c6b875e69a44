//! The HTTP filters of a connection manager, in order, with their conditions (listeners §10).
//!
//! This is the one place that knows the order. What a filter needs is resolved elsewhere and comes
//! in through [`HttpFilterParts`] (the same for every chain of a side) and [`HttpChain`] (what
//! differs from chain to chain).

use std::sync::Arc;

use envoy_json::{
    any,
    istio::alpn::{AlpnOverride, FilterConfig as AlpnConfig, Protocol as AlpnProtocol},
};
use envoy_types::pb::{
    envoy::extensions::{
        common::dynamic_forward_proxy::v3::DnsCacheConfig,
        filters::{
            http::{
                cors::v3::Cors,
                dynamic_forward_proxy::v3::{
                    FilterConfig as DynamicForwardProxy, filter_config::ImplementationSpecifier,
                },
                fault::v3::HttpFault,
                grpc_stats::v3::{
                    FilterConfig as GrpcStats, filter_config::PerMethodStatSpecifier,
                },
                grpc_web::v3::GrpcWeb,
                router::v3::Router,
                stateful_session::v3::StatefulSession,
            },
            network::http_connection_manager::v3::{HttpFilter, http_filter},
        },
    },
    google::protobuf::Any,
};

use super::dynamic_dns;
use crate::{
    convert,
    extensions::Extensions,
    security::PolicyFilters,
    telemetry::{metadata_exchange, stats},
};

/// Filters that all chains of one side share.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct HttpFilterParts {
    /// Exchange of peer metadata; `None` when it is off or the proxy lacks it.
    pub metadata_exchange: Option<Any>,
    /// The same for the mesh's HTTP proxy listener.
    pub proxy_metadata_exchange: Option<Any>,
    /// Authentication and authorization; empty on outbound sides.
    pub policies: PolicyFilters,
    /// The ALPN filter of outbound sides.
    pub alpn: bool,
    /// Configs of the metrics filter, one for each provider.
    pub stats: Vec<Any>,
    /// Filters that users add.
    pub extensions: Extensions,
    /// Persistent sessions may be asked for by routes.
    pub sessions: bool,
    /// Destinations are resolved for each request, in the whole mesh.
    pub dynamic_dns: Option<Any>,
    /// How names of single services are resolved.
    pub dns: dynamic_dns::Lookup,
    /// Leaves `x-envoy-` headers out of responses.
    pub suppress_envoy_headers: bool,
    /// What only the chains of waypoints have.
    pub waypoint: Option<WaypointFilters>,
}

/// What only the chains of waypoints have; their filters stand in an order of their own.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct WaypointFilters {
    /// Says by a header who asks; `None` when that is not wanted.
    pub client_identity: Option<Any>,
    /// Finds out who answers; `None` when the proxy lacks it.
    pub upstream_metadata: Option<Any>,
}

/// What differs from chain to chain.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct HttpChain {
    /// The port that made the chain speaks gRPC-Web.
    pub grpc_web: bool,
    /// The service is a wildcard host that is resolved for each request.
    pub dynamic_dns: Option<Arc<str>>,
    /// The chain is the mesh's HTTP proxy listener.
    pub is_proxy: bool,
    /// The connection comes out of an HBONE tunnel, which told the peer already.
    pub hbone: bool,
    /// The port that extensions compare with theirs.
    pub extension_port: u16,
}

impl HttpFilterParts {
    /// Lists the filters of a chain.
    pub(crate) fn list(&self, chain: &HttpChain) -> Vec<HttpFilter> {
        let mut filters = Vec::with_capacity(16);
        let exchange = if chain.is_proxy {
            &self.proxy_metadata_exchange
        } else {
            &self.metadata_exchange
        };
        if let Some(config) = exchange.as_ref().filter(|_| !chain.hbone) {
            filters.push(filter(metadata_exchange::NAME, config.clone()));
        }
        let identity = self
            .waypoint
            .iter()
            .filter_map(|w| w.client_identity.clone());
        filters.extend(identity.map(|config| filter(CLIENT_IDENTITY, config)));
        let extensions = self.extensions.http(chain.extension_port);
        filters.extend_from_slice(&self.policies.http_custom);
        filters.extend(extensions.authn);
        filters.extend(self.policies.jwt.clone());
        filters.extend(extensions.authz);
        filters.extend_from_slice(&self.policies.http_rbac);
        let mut later = extensions.stats;
        later.extend(extensions.unspecified);
        if self.waypoint.is_none() {
            filters.append(&mut later);
        }
        if chain.grpc_web {
            filters.push(filter("envoy.filters.http.grpc_web", any(&GrpcWeb {})));
        }
        filters.push(filter("envoy.filters.http.grpc_stats", any(&grpc_stats())));
        if self.alpn {
            filters.push(filter("istio.alpn", any(&alpn())));
        }
        filters.push(filter(
            "envoy.filters.http.fault",
            any(&HttpFault::default()),
        ));
        filters.push(filter("envoy.filters.http.cors", any(&Cors {})));
        let mut dynamic_dns = chain.dynamic_dns.as_ref().map(|host| {
            let config = dynamic_forward_proxy(self.dns.cache_of(host));
            filter(DYNAMIC_FORWARD_PROXY, config)
        });
        if let Some(waypoint) = &self.waypoint {
            filters.extend(dynamic_dns.take());
            filters.append(&mut later);
            let upstream = waypoint.upstream_metadata.iter().cloned();
            filters.extend(upstream.map(|config| filter(UPSTREAM_METADATA, config)));
        }
        filters.extend(
            self.stats
                .iter()
                .map(|config| filter(stats::NAME, config.clone())),
        );
        if self.sessions {
            let config = any(&StatefulSession::default());
            filters.push(filter("envoy.filters.http.stateful_session", config));
        }
        filters.extend(dynamic_dns);
        if let Some(config) = &self.dynamic_dns {
            filters.push(filter(DYNAMIC_FORWARD_PROXY, config.clone()));
        }
        filters.push(filter("envoy.filters.http.router", any(&self.router())));
        filters
    }

    fn router(&self) -> Router {
        Router {
            suppress_envoy_headers: self.suppress_envoy_headers,
            ..Router::default()
        }
    }
}

const CLIENT_IDENTITY: &str = "istio.waypoint.xfcc_client_identity";
const UPSTREAM_METADATA: &str = "waypoint_upstream_peer_metadata";
const DYNAMIC_FORWARD_PROXY: &str = "envoy.filters.http.dynamic_forward_proxy";

/// Builds a filter with its packed config.
pub(crate) fn filter(name: &str, config: Any) -> HttpFilter {
    HttpFilter {
        name: name.to_owned(),
        config_type: Some(http_filter::ConfigType::TypedConfig(config)),
        ..HttpFilter::default()
    }
}

/// Packs the config of a filter that resolves destinations through `cache`.
pub(crate) fn dynamic_forward_proxy(cache: DnsCacheConfig) -> Any {
    any(&DynamicForwardProxy {
        implementation_specifier: Some(ImplementationSpecifier::DnsCacheConfig(cache)),
        ..DynamicForwardProxy::default()
    })
}

fn grpc_stats() -> GrpcStats {
    GrpcStats {
        emit_filter_state: true,
        per_method_stat_specifier: convert::bool_value(false)
            .map(PerMethodStatSpecifier::StatsForAllMethods),
        ..GrpcStats::default()
    }
}

fn alpn() -> AlpnConfig {
    let entry = |protocol: AlpnProtocol, offers: [&str; 3]| AlpnOverride {
        upstream_protocol: protocol.into(),
        alpn_override: offers.map(str::to_owned).to_vec(),
    };
    AlpnConfig {
        alpn_override: vec![
            entry(
                AlpnProtocol::Http10,
                ["istio-http/1.0", "istio", "http/1.0"],
            ),
            entry(
                AlpnProtocol::Http11,
                ["istio-http/1.1", "istio", "http/1.1"],
            ),
            entry(AlpnProtocol::Http2, ["istio-h2", "istio", "h2"]),
        ],
    }
}

#[cfg(test)]
mod tests {
    use model::api::extensions::PluginPhase;

    use super::*;

    #[track_caller]
    fn check(parts: &HttpFilterParts, chain: &HttpChain, expected: &[&str]) {
        let filters = parts.list(chain);
        let names: Vec<&str> = filters
            .iter()
            .map(|f| {
                [
                    "envoy.filters.http.",
                    "extensions.istio.io/trafficextension/x.",
                ]
                .iter()
                .find_map(|prefix| f.name.strip_prefix(prefix))
                .unwrap_or(&f.name)
            })
            .collect();
        assert_eq!(names, expected);
    }

    #[test]
    fn filters_stand_in_order() {
        let any = Some(Any::default());
        let named = |name: &str| filter(name, Any::default());
        let parts = HttpFilterParts {
            metadata_exchange: any.clone(),
            policies: PolicyFilters {
                http_custom: vec![named("ext_authz")],
                jwt: Some(named("jwt_authn")),
                http_rbac: vec![named("rbac")],
                ..PolicyFilters::default()
            },
            alpn: true,
            stats: vec![Any::default(), Any::default()],
            extensions: Extensions::of_scripts([
                ("d", PluginPhase::Unspecified),
                ("c", PluginPhase::Stats),
                ("b", PluginPhase::Authz),
                ("a", PluginPhase::Authn),
            ]),
            sessions: true,
            dynamic_dns: any,
            ..HttpFilterParts::default()
        };
        let chain = HttpChain {
            grpc_web: true,
            dynamic_dns: Some("*.com".into()),
            ..HttpChain::default()
        };
        check(
            &parts,
            &chain,
            &[
                "istio.metadata_exchange",
                "ext_authz",
                "a",
                "jwt_authn",
                "b",
                "rbac",
                "c",
                "d",
                "grpc_web",
                "grpc_stats",
                "istio.alpn",
                "fault",
                "cors",
                "istio.stats",
                "istio.stats",
                "stateful_session",
                "dynamic_forward_proxy",
                "dynamic_forward_proxy",
                "router",
            ],
        );
    }

    #[test]
    fn waypoints_have_an_order_of_their_own() {
        let parts = HttpFilterParts {
            policies: PolicyFilters {
                jwt: Some(filter("jwt_authn", Any::default())),
                http_rbac: vec![filter("rbac", Any::default())],
                ..PolicyFilters::default()
            },
            stats: vec![Any::default()],
            extensions: Extensions::of_scripts([
                ("d", PluginPhase::Unspecified),
                ("c", PluginPhase::Stats),
                ("b", PluginPhase::Authz),
                ("a", PluginPhase::Authn),
            ]),
            waypoint: Some(WaypointFilters {
                client_identity: Some(Any::default()),
                upstream_metadata: Some(Any::default()),
            }),
            ..HttpFilterParts::default()
        };
        check(
            &parts,
            &HttpChain {
                dynamic_dns: Some("*.com".into()),
                ..HttpChain::default()
            },
            &[
                "istio.waypoint.xfcc_client_identity",
                "a",
                "jwt_authn",
                "b",
                "rbac",
                "grpc_stats",
                "fault",
                "cors",
                "dynamic_forward_proxy",
                "c",
                "d",
                "waypoint_upstream_peer_metadata",
                "istio.stats",
                "router",
            ],
        );
    }

    #[test]
    fn stock_proxies_get_no_filter_of_istio() {
        let parts = HttpFilterParts::default();
        check(
            &parts,
            &HttpChain::default(),
            &["grpc_stats", "fault", "cors", "router"],
        );
    }
}

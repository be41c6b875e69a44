//! What the listeners of one class share, resolved and largely built once.

use std::collections::BTreeSet;

use envoy_json::encode::canonical_vec;
use envoy_types::pb::envoy::config::{
    accesslog::v3::AccessLog, core::v3::TransportSocket, listener::v3::Filter,
    route::v3::VirtualHost,
};
use model::{ConfigKey, Features, api, proxy::InterceptionMode};
use prost::{Message, Name};
use pushctx::TrafficSide;
use xxhash_rust::xxh3::Xxh3;

use super::{
    context::Context,
    dynamic_dns, hbone,
    http_filters::{HttpFilterParts, WaypointFilters, dynamic_forward_proxy},
    http_manager::{ManagerParts, Side},
    network_filters::{PolicedChains, ProtocolFilters, TcpParts},
    outbound::{TcpPlan, catch_all},
};
use crate::{
    capabilities::Capabilities,
    extensions::Extensions,
    rds::{ClientView, catch_all_virtual_host},
    security::{PeerIdentity, PolicyFilters, inbound_tls},
    telemetry::{ListenerClass, Telemetry, metadata_exchange},
};

/// Parts of listeners, and the hash of all of them.
#[derive(Debug)]
pub(crate) struct Parts {
    /// Facts that are plain values.
    pub facts: Facts,
    /// Chains of outbound listeners.
    pub outbound: SideParts,
    /// Chains of inbound listeners.
    pub inbound: SideParts,
    /// The policies behind filters of inbound chains.
    pub policy_sources: BTreeSet<ConfigKey>,
    /// Chains behind the end of HBONE tunnels; `None` where there is none.
    pub tunnelled: Option<SideParts>,
    /// Where outbound traffic to unknown destinations goes.
    pub catch_all: TcpPlan,
    /// Socket of mutual TLS for chains of HTTP.
    pub mesh_tls_http: TransportSocket,
    /// Socket of mutual TLS for chains that forward bytes.
    pub mesh_tls_tcp: TransportSocket,
    /// Retries of inbound requests; `None` means none.
    pub inbound_retry: Option<api::common::HttpRetry>,
    /// Routes of HTTP to unknown destinations, where these are resolved for each request.
    pub dynamic_dns_routes: Option<VirtualHost>,
    /// Pattern of names of inbound statistics; empty means the cluster's name.
    pub inbound_stat_name: String,
    /// Equal parts have equal fingerprints.
    pub fingerprint: u64,
}

/// Chains of one side.
#[derive(Debug)]
pub(crate) struct SideParts {
    /// Connection managers.
    pub manager: ManagerParts,
    /// Filters of connections.
    pub tcp: TcpParts,
    /// Loggers of listeners.
    pub listener_logs: Vec<AccessLog>,
}

/// Plain values that listeners depend on.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent switches")]
pub(crate) struct Facts {
    /// Outbound chains wait so long for TLS; `None` means without limit.
    pub connect_timeout: Option<api::Duration>,
    /// ALPN protocols of plain-text HTTP.
    pub plain_http: Vec<&'static str>,
    /// Connections that a bound listener accepts at a time.
    pub accepted_at_once: Option<u32>,
    /// How long protocols are sniffed.
    pub detection_timeout: api::Duration,
    /// Outbound listeners spread connections evenly.
    pub outbound_exact_balance: bool,
    /// Inbound listeners spread connections evenly.
    pub inbound_exact_balance: bool,
    /// Idle timeout of connections whose rule has none.
    pub idle_timeout: Option<api::Duration>,
    /// Virtual listeners keep source addresses.
    pub transparent: bool,
    /// Destinations are resolved for each request, in the whole mesh.
    pub any_dynamic_dns: bool,
}

impl Parts {
    /// Resolves the parts of a class.
    pub(crate) fn new(ctx: &Context<'_>) -> Self {
        let features = ctx.features();
        let facts = Facts::of(ctx);
        let capabilities = Capabilities::of(ctx.proxy());
        let exchanges = features.metadata_exchange && capabilities.metadata_exchange;
        let tls =
            |tcp| inbound_tls::mesh_socket(ctx.mesh(), features, ctx.proxy(), tcp && exchanges);
        let policies = |peer| PolicyFilters::resolve(ctx.snapshot, ctx.class, peer);
        let own = policies(PeerIdentity::Connection);
        let mut parts = Self {
            outbound: SideParts::outbound(ctx, &facts, &own, capabilities),
            policy_sources: own.sources.clone(),
            tunnelled: hbone::listens(ctx).then(|| {
                SideParts::inbound(ctx, policies(PeerIdentity::FilterState), capabilities)
            }),
            inbound: SideParts::inbound(ctx, own, capabilities),
            facts,
            catch_all: catch_all(ctx),
            mesh_tls_http: tls(false),
            mesh_tls_tcp: tls(true),
            inbound_retry: ctx.mesh().default_inbound_http_retry_policy.clone(),
            dynamic_dns_routes: is_any_dynamic_dns(ctx)
                .then(|| catch_all_virtual_host(&ClientView::of(ctx.snapshot, ctx.class))),
            inbound_stat_name: ctx.mesh().inbound_cluster_stat_name.clone(),
            fingerprint: 0,
        };
        parts.fingerprint = parts.digest();
        parts
    }

    fn digest(&self) -> u64 {
        let Self {
            facts,
            outbound,
            inbound,
            policy_sources,
            tunnelled,
            catch_all,
            mesh_tls_http,
            mesh_tls_tcp,
            inbound_retry,
            dynamic_dns_routes,
            inbound_stat_name,
            fingerprint: _,
        } = self;
        let mut digest = Digest::default();
        digest.value(&(facts, catch_all, inbound_stat_name));
        digest.value(&model::fingerprint::of_json(inbound_retry));
        digest.messages(dynamic_dns_routes);
        digest.messages([mesh_tls_http, mesh_tls_tcp]);
        let sides = [outbound, inbound];
        digest.value(&(policy_sources, tunnelled.is_some()));
        for SideParts {
            manager,
            tcp,
            listener_logs,
        } in sides.into_iter().chain(tunnelled)
        {
            manager.fingerprint(&mut digest);
            tcp.fingerprint(&mut digest);
            digest.messages(listener_logs);
        }
        digest.finish()
    }
}

impl Facts {
    fn of(ctx: &Context<'_>) -> Self {
        let features = ctx.features();
        let metadata = ctx.metadata();
        let timeout = api::Duration::from(features.transport_socket_connect_timeout);
        Self {
            connect_timeout: (!timeout.is_zero()).then_some(timeout),
            plain_http: plain_http(features),
            accepted_at_once: Some(features.max_connections_per_socket_event)
                .filter(|connections| *connections > 0),
            detection_timeout: ctx.mesh().protocol_detection_timeout,
            outbound_exact_balance: metadata.outbound_exact_balance,
            inbound_exact_balance: metadata.inbound_exact_balance,
            idle_timeout: ctx.idle_timeout(),
            transparent: ctx.interception() == InterceptionMode::Tproxy,
            any_dynamic_dns: is_any_dynamic_dns(ctx),
        }
    }
}

/// ALPN protocols that the HTTP inspector finds in plain text.
fn plain_http(features: &Features) -> Vec<&'static str> {
    if features.http10 {
        vec!["http/1.0", "http/1.1", "h2c"]
    } else {
        vec!["http/1.1", "h2c"]
    }
}

fn is_any_dynamic_dns(ctx: &Context<'_>) -> bool {
    ctx.scope().outbound_policy.mode == api::sidecar::OutboundTrafficMode::AllowAnyDynamicDns
}

impl SideParts {
    fn outbound(
        ctx: &Context<'_>,
        facts: &Facts,
        policies: &PolicyFilters,
        capabilities: Capabilities,
    ) -> Self {
        let features = ctx.features();
        let class = ListenerClass::SidecarOutbound;
        let telemetry = Telemetry::resolve(ctx.snapshot, ctx.class, class);
        let extensions = Extensions::resolve(ctx.snapshot, ctx.class, TrafficSide::Client);
        let dns = dynamic_dns::Lookup::of(ctx.proxy(), features);
        let exchanges = features.metadata_exchange && capabilities.peer_metadata;
        let in_mesh = metadata_exchange::is_in_mesh_only(ctx.proxy_config());
        let exchange =
            |in_mesh| exchanges.then(|| metadata_exchange::http_client(features, in_mesh));
        let filters = HttpFilterParts {
            metadata_exchange: exchange(in_mesh),
            proxy_metadata_exchange: exchange(false),
            alpn: features.alpn_filter && capabilities.alpn,
            sessions: features.persistent_session,
            dynamic_dns: facts
                .any_dynamic_dns
                .then(|| dynamic_forward_proxy(dns.mesh_cache(ctx.proxy(), features))),
            ..HttpFilterParts::of(
                ctx,
                &telemetry,
                extensions.clone(),
                PolicyFilters::default(),
            )
        };
        Self {
            manager: ManagerParts::new(ctx, Side::Outbound, &telemetry, filters),
            tcp: TcpParts {
                custom_policies: policies.tcp_custom.clone(),
                rbac: policies.tcp_rbac.clone(),
                policies_on: PolicedChains::DynamicDns,
                ..TcpParts::of(ctx, &telemetry, extensions)
            },
            listener_logs: telemetry.listener_logs,
        }
    }

    fn inbound(ctx: &Context<'_>, policies: PolicyFilters, capabilities: Capabilities) -> Self {
        let features = ctx.features();
        let class = ListenerClass::SidecarInbound;
        let telemetry = Telemetry::resolve(ctx.snapshot, ctx.class, class);
        let extensions = Extensions::resolve(ctx.snapshot, ctx.class, TrafficSide::Server);
        let tcp = TcpParts {
            metadata_exchange: (features.metadata_exchange && capabilities.metadata_exchange)
                .then(|| metadata_exchange::tcp(features)),
            custom_policies: policies.tcp_custom.clone(),
            rbac: policies.tcp_rbac.clone(),
            ..TcpParts::of(ctx, &telemetry, extensions.clone())
        };
        let filters = HttpFilterParts {
            metadata_exchange: (features.metadata_exchange && capabilities.peer_metadata)
                .then(|| metadata_exchange::http_server(features)),
            ..HttpFilterParts::of(ctx, &telemetry, extensions, policies)
        };
        Self {
            manager: ManagerParts::new(ctx, Side::Inbound, &telemetry, filters),
            tcp,
            listener_logs: telemetry.listener_logs,
        }
    }
}

impl HttpFilterParts {
    /// What all sides have.
    pub(crate) fn of(
        ctx: &Context<'_>,
        telemetry: &Telemetry,
        extensions: Extensions,
        policies: PolicyFilters,
    ) -> Self {
        let headers = ctx.proxy_config().proxy_headers.as_ref();
        Self {
            policies,
            extensions,
            stats: telemetry.stats.clone(),
            dns: dynamic_dns::Lookup::of(ctx.proxy(), ctx.features()),
            suppress_envoy_headers: headers
                .and_then(|h| h.envoy_debug_headers.as_ref())
                .is_some_and(|switch| switch.disabled == Some(true)),
            ..Self::default()
        }
    }

    /// Adds everything that filters are built from to `digest`.
    pub(crate) fn fingerprint(&self, digest: &mut Digest) {
        let Self {
            metadata_exchange,
            proxy_metadata_exchange,
            policies:
                PolicyFilters {
                    http_custom,
                    jwt,
                    http_rbac,
                    tcp_custom,
                    tcp_rbac,
                    sources,
                },
            alpn,
            stats,
            extensions,
            sessions,
            dynamic_dns,
            dns,
            suppress_envoy_headers,
            waypoint,
        } = self;
        let of_waypoint = waypoint.as_ref().map(|waypoint| {
            let WaypointFilters {
                client_identity,
                upstream_metadata,
            } = waypoint;
            (client_identity, upstream_metadata)
        });
        digest.value(&of_waypoint);
        digest.value(sources);
        digest.value(&(alpn, sessions, suppress_envoy_headers, dns));
        digest.value(&(
            metadata_exchange,
            proxy_metadata_exchange,
            stats,
            dynamic_dns,
        ));
        extensions.fingerprint(digest);
        digest.messages(http_custom);
        digest.messages(jwt);
        digest.messages(http_rbac);
        digest.messages(tcp_custom);
        digest.messages(tcp_rbac);
    }
}

impl TcpParts {
    /// What all sides have.
    pub(crate) fn of(ctx: &Context<'_>, telemetry: &Telemetry, extensions: Extensions) -> Self {
        let features = ctx.features();
        Self {
            extensions,
            stats: telemetry.stats.clone(),
            logs: telemetry.tcp_logs.clone(),
            protocols: ProtocolFilters {
                mongo: features.mongo_filter,
                mysql: features.mysql_filter,
                redis: features.redis_filter,
            },
            dns: dynamic_dns::Lookup::of(ctx.proxy(), features),
            ..Self::default()
        }
    }

    /// Adds everything that filters are built from to `digest`.
    pub(crate) fn fingerprint(&self, digest: &mut Digest) {
        let Self {
            metadata_exchange,
            custom_policies,
            rbac,
            policies_on,
            stats,
            extensions,
            logs,
            protocols,
            dns,
        } = self;
        digest.value(&(metadata_exchange, policies_on, stats, protocols, dns));
        extensions.fingerprint(digest);
        digest.messages(custom_policies);
        digest.messages(rbac);
        digest.messages(logs);
    }
}

/// A hash over values and messages; every list counts its length.
#[derive(Default)]
pub(crate) struct Digest(Xxh3);

impl Digest {
    /// Adds a value.
    pub(crate) fn value(&mut self, value: &impl std::hash::Hash) {
        value.hash(&mut self.0);
    }

    /// Adds a message.
    pub(crate) fn message<M: Message + Name>(&mut self, message: &M) {
        self.value(&canonical_vec(message));
    }

    /// Adds messages.
    pub(crate) fn messages<'a, M: Message + Name + 'a>(
        &mut self,
        messages: impl IntoIterator<Item = &'a M>,
    ) {
        let mut count = 0_usize;
        for message in messages {
            self.message(message);
            count += 1;
        }
        self.value(&count);
    }

    /// The hash.
    pub(crate) fn finish(&self) -> u64 {
        self.0.digest()
    }
}

/// The filters of a chain that takes what nothing else takes.
pub(crate) fn catch_all_filters(parts: &Parts) -> Vec<Filter> {
    parts.outbound.tcp.catch_all(&parts.catch_all)
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::{
        envoy::extensions::filters::network::http_connection_manager::v3::HttpFilter,
        google::protobuf::Any,
    };
    use model::{Kind, Node, Proxy, api::extensions::PluginPhase};

    use super::*;
    use crate::lds::http_filters::WaypointFilters;
    use crate::testing::flips::{Flip, check_fields};

    fn any() -> Any {
        Any {
            type_url: "t".to_owned(),
            value: Vec::new(),
        }
    }

    fn digest(add: impl FnOnce(&mut Digest)) -> u64 {
        let mut digest = Digest::default();
        add(&mut digest);
        digest.finish()
    }

    impl Flip for Extensions {
        fn flip(&mut self) {
            *self = Self::of_scripts([("a", PluginPhase::Authn)]);
        }
    }

    impl Flip for HttpFilterParts {
        fn flip(&mut self) {
            self.alpn.flip();
        }
    }

    /// Policies with something of everything.
    fn policies() -> PolicyFilters {
        PolicyFilters {
            http_custom: vec![HttpFilter::default()],
            jwt: Some(HttpFilter::default()),
            http_rbac: vec![HttpFilter::default()],
            tcp_custom: vec![Filter::default()],
            tcp_rbac: vec![Filter::default()],
            sources: [ConfigKey::new(Kind::AuthorizationPolicy, "a", "b")].into(),
        }
    }

    fn http() -> HttpFilterParts {
        HttpFilterParts {
            metadata_exchange: Some(any()),
            proxy_metadata_exchange: Some(any()),
            policies: policies(),
            stats: vec![any()],
            dynamic_dns: Some(any()),
            waypoint: Some(WaypointFilters {
                client_identity: Some(any()),
                upstream_metadata: Some(any()),
            }),
            ..HttpFilterParts::default()
        }
    }

    #[test]
    fn every_part_counts() {
        let node = Node {
            id: "sidecar~::1~p.a~a.svc.cluster.local".to_owned(),
            ..Node::default()
        };
        let other_dns =
            dynamic_dns::Lookup::of(&Proxy::parse(&node).unwrap(), &Features::default());
        check_fields!(
            http,
            |parts: &HttpFilterParts| digest(|d| parts.fingerprint(d)),
            HttpFilterParts {
                metadata_exchange,
                proxy_metadata_exchange,
                policies: PolicyFilters::default(),
                alpn,
                stats,
                extensions,
                sessions,
                dynamic_dns,
                dns: other_dns,
                suppress_envoy_headers,
                waypoint,
            }
        );
        let with = |policies| HttpFilterParts { policies, ..http() };
        check_fields!(
            policies,
            |policies: &PolicyFilters| digest(|d| with(policies.clone()).fingerprint(d)),
            PolicyFilters {
                http_custom,
                jwt,
                http_rbac,
                tcp_custom,
                tcp_rbac,
                sources
            }
        );
        check_fields!(
            || TcpParts {
                metadata_exchange: Some(any()),
                custom_policies: vec![Filter::default()],
                rbac: vec![Filter::default()],
                stats: vec![any()],
                logs: vec![AccessLog::default()],
                ..TcpParts::default()
            },
            |parts: &TcpParts| digest(|d| parts.fingerprint(d)),
            TcpParts {
                metadata_exchange,
                custom_policies,
                rbac,
                policies_on: PolicedChains::DynamicDns,
                stats,
                extensions,
                logs,
                protocols: ProtocolFilters {
                    redis: true,
                    ..ProtocolFilters::default()
                },
                dns: other_dns,
            }
        );
    }

    #[test]
    fn every_fact_counts() {
        let facts = || Facts {
            connect_timeout: Some(api::Duration::default()),
            plain_http: vec!["h2c"],
            accepted_at_once: Some(1),
            detection_timeout: api::Duration::default(),
            outbound_exact_balance: false,
            inbound_exact_balance: false,
            idle_timeout: Some(api::Duration::default()),
            transparent: false,
            any_dynamic_dns: false,
        };
        check_fields!(
            facts,
            Facts {
                connect_timeout,
                plain_http,
                accepted_at_once,
                detection_timeout: std::time::Duration::from_secs(1).into(),
                outbound_exact_balance,
                inbound_exact_balance,
                idle_timeout,
                transparent,
                any_dynamic_dns,
            }
        );
    }
}

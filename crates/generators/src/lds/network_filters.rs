//! Network filters of chains that forward bytes (listeners §8).

use std::sync::Arc;

use envoy_json::{any, contrib::MySqlProxy};
use envoy_types::pb::{
    envoy::{
        config::{
            accesslog::v3::AccessLog,
            listener::v3::{Filter, filter},
        },
        extensions::filters::network::{
            mongo_proxy::v3::MongoProxy,
            redis_proxy::v3::{
                RedisProxy,
                redis_proxy::{ConnPoolSettings, PrefixRoutes, prefix_routes::Route},
            },
            sni_dynamic_forward_proxy::v3::{
                FilterConfig as SniDynamicForwardProxy, filter_config::PortSpecifier,
            },
            tcp_proxy::v3::{
                TcpProxy,
                tcp_proxy::{
                    ClusterSpecifier, TunnelingConfig, WeightedCluster,
                    weighted_cluster::ClusterWeight,
                },
            },
        },
        r#type::v3::{HashPolicy, hash_policy},
    },
    google::protobuf::Any,
};
use model::Protocol;
use prost::{Message, Name};

use super::{
    dynamic_dns,
    outbound::{TcpDestination, TcpPlan},
};
use crate::{
    convert,
    extensions::Extensions,
    telemetry::{metadata_exchange, stats},
};

const TCP_PROXY: &str = "envoy.filters.network.tcp_proxy";
const REDIS_TIMEOUT_SECONDS: i64 = 5;

/// What chains of one side that forward bytes share.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct TcpParts {
    /// Exchange of peer metadata; inbound sides only.
    pub metadata_exchange: Option<Any>,
    /// External authorization.
    pub custom_policies: Vec<Filter>,
    /// RBAC.
    pub rbac: Vec<Filter>,
    /// Which chains have the two.
    pub policies_on: PolicedChains,
    /// Configs of the metrics filter, one for each provider.
    pub stats: Vec<Any>,
    /// Filters that users add.
    pub extensions: Extensions,
    /// Loggers of TCP proxies.
    pub logs: Vec<AccessLog>,
    /// Which protocols have a filter of their own.
    pub protocols: ProtocolFilters,
    /// How names of single services are resolved.
    pub dns: dynamic_dns::Lookup,
}

/// Which chains of a side are under the policies of the workload.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) enum PolicedChains {
    /// All: the side is inbound.
    #[default]
    All,
    /// Those to wildcard hosts that are resolved for each connection. Istio has the policies of the
    /// workload, which are meant for inbound traffic, on these outbound chains too.
    DynamicDns,
}

/// Which protocols have a filter of their own.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ProtocolFilters {
    /// Mongo.
    pub mongo: bool,
    /// `MySQL`.
    pub mysql: bool,
    /// Redis.
    pub redis: bool,
}

impl TcpParts {
    /// Builds the filters of a chain. `port` is the one that extensions compare with theirs, and the
    /// listener's for names that are resolved by server name.
    pub(crate) fn chain(&self, plan: &TcpPlan, port: u16) -> Vec<Filter> {
        let extensions = self.extensions.network(port);
        let mut filters = Vec::with_capacity(4);
        filters.extend(self.metadata_exchange());
        let policed = match self.policies_on {
            PolicedChains::All => true,
            PolicedChains::DynamicDns => plan.dynamic_dns.is_some(),
        };
        let (custom, rbac): (&[Filter], &[Filter]) = if policed {
            (&self.custom_policies, &self.rbac)
        } else {
            (&[], &[])
        };
        filters.extend_from_slice(custom);
        filters.extend(extensions.authn);
        filters.extend(extensions.authz);
        filters.extend_from_slice(rbac);
        filters.extend(extensions.stats);
        filters.extend(extensions.unspecified);
        filters.extend(self.stats());
        if let Some(host) = &plan.dynamic_dns {
            filters.push(self.sni_dynamic_forward_proxy(host, port));
        }
        self.push_terminal(plan, &self.logs, &mut filters);
        filters
    }

    /// Builds the filters of a chain that takes what nothing else takes.
    pub(crate) fn catch_all(&self, plan: &TcpPlan) -> Vec<Filter> {
        let mut filters: Vec<Filter> = self.stats().collect();
        self.push_terminal(plan, &self.logs, &mut filters);
        filters
    }

    /// Builds the filters of a chain that drops everything; nothing is logged.
    pub(crate) fn black_hole(&self) -> Vec<Filter> {
        let plan = TcpPlan::to_cluster(crate::names::BLACK_HOLE, None);
        let mut filters: Vec<Filter> = self.metadata_exchange().into_iter().collect();
        filters.extend(self.stats());
        self.push_terminal(&plan, &[], &mut filters);
        filters
    }

    /// The filter that exchanges peer metadata on the connection.
    pub(crate) fn metadata_exchange(&self) -> Option<Filter> {
        self.metadata_exchange
            .as_ref()
            .map(|c| packed(metadata_exchange::NAME, c.clone()))
    }

    fn stats(&self) -> impl Iterator<Item = Filter> {
        self.stats
            .iter()
            .map(|config| packed(stats::NAME, config.clone()))
    }

    fn sni_dynamic_forward_proxy(&self, host: &Arc<str>, port: u16) -> Filter {
        network(
            "envoy.extensions.filters.network.sni_dynamic_forward_proxy",
            &SniDynamicForwardProxy {
                dns_cache_config: Some(self.dns.cache_of(host)),
                port_specifier: Some(PortSpecifier::PortValue(port.into())),
                ..SniDynamicForwardProxy::default()
            },
        )
    }

    fn push_terminal(&self, plan: &TcpPlan, logs: &[AccessLog], filters: &mut Vec<Filter>) {
        let stat_prefix = plan.stat_prefix.clone();
        match plan.protocol {
            Protocol::Redis if self.protocols.redis => {
                filters.push(redis(stat_prefix, plan.destination.first_cluster()));
                return;
            }
            Protocol::Mongo if self.protocols.mongo => filters.push(network(
                "envoy.filters.network.mongo_proxy",
                &MongoProxy {
                    stat_prefix,
                    ..MongoProxy::default()
                },
            )),
            Protocol::MySql if self.protocols.mysql => filters.push(network(
                "envoy.filters.network.mysql_proxy",
                &MySqlProxy {
                    stat_prefix,
                    ..MySqlProxy::default()
                },
            )),
            _ => {}
        }
        filters.push(network(TCP_PROXY, &tcp_proxy(plan, logs)));
    }
}

/// Builds a filter with its config.
pub(crate) fn network<M: Message + Name>(name: &str, config: &M) -> Filter {
    packed(name, any(config))
}

/// Builds a filter with its packed config.
pub(crate) fn packed(name: &str, config: Any) -> Filter {
    Filter {
        name: name.to_owned(),
        config_type: Some(filter::ConfigType::TypedConfig(config)),
    }
}

fn tcp_proxy(plan: &TcpPlan, logs: &[AccessLog]) -> TcpProxy {
    TcpProxy {
        stat_prefix: plan.stat_prefix.clone(),
        cluster_specifier: Some(match &plan.destination {
            TcpDestination::Cluster(cluster) => ClusterSpecifier::Cluster(cluster.clone()),
            TcpDestination::Weighted(clusters) => {
                let weigh = |(name, weight): &(String, u32)| ClusterWeight {
                    name: name.clone(),
                    weight: *weight,
                    metadata_match: None,
                };
                let clusters = clusters.iter().map(weigh).collect();
                ClusterSpecifier::WeightedClusters(WeightedCluster { clusters })
            }
        }),
        idle_timeout: plan.idle_timeout.map(convert::duration),
        max_downstream_connection_duration: plan.max_connection_duration.map(convert::duration),
        hash_policy: plan
            .hash_source_ip
            .then(source_ip_hash)
            .into_iter()
            .collect(),
        tunneling_config: plan.tunnel.as_ref().map(|tunnel| TunnelingConfig {
            hostname: tunnel.hostname.clone(),
            use_post: tunnel.use_post,
            ..TunnelingConfig::default()
        }),
        access_log: logs.to_vec(),
        ..TcpProxy::default()
    }
}

fn source_ip_hash() -> HashPolicy {
    HashPolicy {
        policy_specifier: Some(hash_policy::PolicySpecifier::SourceIp(
            hash_policy::SourceIp {},
        )),
    }
}

fn redis(stat_prefix: String, cluster: &str) -> Filter {
    network(
        "envoy.filters.network.redis_proxy",
        &RedisProxy {
            stat_prefix,
            latency_in_micros: true,
            settings: Some(ConnPoolSettings {
                op_timeout: Some(convert::seconds(REDIS_TIMEOUT_SECONDS)),
                ..ConnPoolSettings::default()
            }),
            prefix_routes: Some(PrefixRoutes {
                catch_all_route: Some(Route {
                    cluster: cluster.to_owned(),
                    ..Route::default()
                }),
                ..PrefixRoutes::default()
            }),
            ..RedisProxy::default()
        },
    )
}

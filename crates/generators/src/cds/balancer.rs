//! Load balancing of outbound clusters (clusters-endpoints §7, §8.2).

use envoy_types::pb::envoy::config::{
    cluster::v3::{
        Cluster,
        cluster::{
            ClusterDiscoveryType, CommonLbConfig, DiscoveryType, LbConfig, LbPolicy,
            LeastRequestLbConfig, MaglevLbConfig, RingHashLbConfig, RoundRobinLbConfig,
            SlowStartConfig,
            common_lb_config::{
                LocalityConfigSpecifier, LocalityWeightedLbConfig, ZoneAwareLbConfig,
            },
        },
    },
    core::v3::RuntimeDouble,
};
use model::{
    ProxyType,
    api::destination_rule::{ConsistentHashLb, LoadBalancer, SimpleLb},
};

use super::client::Client;
use crate::{convert, locality::LocalitySetting};

/// Size of a hash ring that nobody chose.
const DEFAULT_RING_SIZE: u64 = 1024;
/// The runtime key that Istio writes, parenthesis and all; Envoy finds no value under it.
const AGGRESSION_KEY: &str = "(";

/// Tells whether a cluster sends to the original destination.
pub(super) fn is_original_dst(cluster: &Cluster) -> bool {
    cluster.cluster_discovery_type
        == Some(ClusterDiscoveryType::Type(
            DiscoveryType::OriginalDst.into(),
        ))
}

/// Applies the balancer of a policy. The locality settings are separate ([`apply_locality`]).
pub(super) fn apply(
    cluster: &mut Cluster,
    balancer: Option<&LoadBalancer>,
    port: model::Protocol,
    client: &Client,
) {
    if is_original_dst(cluster) {
        cluster.lb_policy = LbPolicy::ClusterProvided.into();
        return;
    }
    if port == model::Protocol::Redis && client.flags.redis_filter {
        cluster.lb_policy = LbPolicy::Maglev.into();
        return;
    }
    let slow_start = balancer.and_then(slow_start);
    match balancer.and_then(|b| b.simple).unwrap_or_default() {
        SimpleLb::Unspecified | SimpleLb::LeastConn | SimpleLb::LeastRequest => {
            cluster.lb_policy = LbPolicy::LeastRequest.into();
            if slow_start.is_some() {
                cluster.lb_config = Some(LbConfig::LeastRequestLbConfig(LeastRequestLbConfig {
                    slow_start_config: slow_start,
                    ..LeastRequestLbConfig::default()
                }));
            }
        }
        SimpleLb::RoundRobin => {
            cluster.lb_policy = LbPolicy::RoundRobin.into();
            if slow_start.is_some() {
                cluster.lb_config = Some(LbConfig::RoundRobinLbConfig(RoundRobinLbConfig {
                    slow_start_config: slow_start,
                }));
            }
        }
        SimpleLb::Random => cluster.lb_policy = LbPolicy::Random.into(),
        SimpleLb::Passthrough => {
            cluster.lb_policy = LbPolicy::ClusterProvided.into();
            cluster.cluster_discovery_type = Some(ClusterDiscoveryType::Type(
                DiscoveryType::OriginalDst.into(),
            ));
            cluster.load_assignment = None;
        }
    }
    if let Some(hash) = balancer.and_then(|b| b.consistent_hash.as_ref()) {
        apply_hash(cluster, hash);
    }
}

fn apply_hash(cluster: &mut Cluster, hash: &ConsistentHashLb) {
    if let Some(maglev) = &hash.maglev {
        cluster.lb_policy = LbPolicy::Maglev.into();
        if maglev.table_size != 0 {
            cluster.lb_config = Some(LbConfig::MaglevLbConfig(MaglevLbConfig {
                table_size: convert::u64_value(maglev.table_size),
            }));
        }
        return;
    }
    cluster.lb_policy = LbPolicy::RingHash.into();
    let size = match (&hash.ring_hash, hash.minimum_ring_size) {
        (Some(ring), _) => ring.minimum_ring_size,
        (None, 0) => DEFAULT_RING_SIZE,
        (None, size) => size,
    };
    if size != 0 {
        cluster.lb_config = Some(LbConfig::RingHashLbConfig(RingHashLbConfig {
            minimum_ring_size: convert::u64_value(size),
            ..RingHashLbConfig::default()
        }));
    }
}

fn slow_start(balancer: &LoadBalancer) -> Option<SlowStartConfig> {
    if let Some(warmup) = &balancer.warmup {
        return Some(SlowStartConfig {
            slow_start_window: warmup.duration.map(convert::duration),
            aggression: Some(RuntimeDouble {
                default_value: warmup.aggression.unwrap_or(1.0),
                runtime_key: AGGRESSION_KEY.to_owned(),
            }),
            min_weight_percent: convert::percent(warmup.minimum_percent.unwrap_or(10.0)),
        });
    }
    balancer.warmup_duration_secs.map(|window| SlowStartConfig {
        slow_start_window: Some(convert::duration(window)),
        ..SlowStartConfig::default()
    })
}

/// Marks a cluster as weighted by locality or aware of zones.
pub(super) fn apply_locality(cluster: &mut Cluster, setting: LocalitySetting<'_>, client: &Client) {
    let failover = setting.failover_active(cluster.outlier_detection.is_some());
    let weighted = LocalityConfigSpecifier::LocalityWeightedLbConfig(LocalityWeightedLbConfig {});
    let always = client.flags.locality_weighted.then_some(weighted);
    let specifier = match setting {
        LocalitySetting::ZoneAware(zone) if client.proxy_type != ProxyType::Waypoint => Some(
            LocalityConfigSpecifier::ZoneAwareLbConfig(ZoneAwareLbConfig {
                routing_enabled: (zone.enabled == Some(false)).then(Default::default),
                min_cluster_size: zone
                    .min_cluster_size
                    .and_then(|n| convert::u64_value(n.into())),
                ..ZoneAwareLbConfig::default()
            }),
        ),
        LocalitySetting::ZoneAware(_) | LocalitySetting::None => always,
        LocalitySetting::Locality(_) | LocalitySetting::Forced(_) => {
            let prefers = !setting.failover().is_empty() || !setting.failover_priority().is_empty();
            if !setting.distribute().is_empty() || (failover && prefers) {
                Some(weighted)
            } else {
                always
            }
        }
    };
    if specifier.is_some() {
        let common: &mut CommonLbConfig = cluster.common_lb_config.get_or_insert_default();
        common.locality_config_specifier = specifier;
    }
}

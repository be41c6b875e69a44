//! Connection pools: thresholds, timeouts, keep-alive, HTTP limits (clusters-endpoints §5).

use envoy_types::pb::envoy::config::{
    cluster::v3::{
        CircuitBreakers, Cluster, UpstreamConnectionOptions,
        circuit_breakers::{Thresholds, thresholds::RetryBudget},
    },
    core::v3::{KeepaliveSettings, TcpKeepalive},
};
use model::api::{
    common::{self, ConnectionPool, H2UpgradePolicy},
    destination_rule,
};

use super::{
    client::{Client, ClientFacts},
    http::{HttpOptions, Protocol},
    parts,
};
use crate::{convert, policy::Policy};

/// Applies the pool and the retry budget of a policy. A missing pool counts as an empty one.
pub(super) fn apply(
    cluster: &mut Cluster,
    http: &mut HttpOptions,
    policy: &Policy<'_>,
    client: &Client,
) {
    let pool = policy.connection_pool;
    let tcp = pool.and_then(|p| p.tcp.as_ref());
    cluster.circuit_breakers = Some(circuit_breakers(pool, policy.retry_budget, client));
    cluster.connect_timeout = Some(convert::duration(
        tcp.and_then(|t| t.connect_timeout)
            .unwrap_or(client.mesh.connect_timeout),
    ));
    let keepalive = tcp.and_then(|t| t.tcp_keepalive.as_ref());
    cluster.upstream_connection_options = keepalive_options(keepalive, client);
    if let Some(pool) = pool {
        apply_http(http, pool);
    }
}

/// Lays a rule's keep-alive over the mesh's, attribute by attribute.
pub(super) fn keepalive_options(
    own: Option<&common::TcpKeepalive>,
    client: &ClientFacts,
) -> Option<UpstreamConnectionOptions> {
    let mesh = client.mesh.tcp_keepalive.as_ref();
    if mesh.is_none() && own.is_none() {
        return None;
    }
    let mut keepalive = TcpKeepalive::default();
    let whole_seconds = |duration: Option<model::api::Duration>| {
        duration
            .and_then(|d| u32::try_from(d.seconds()).ok())
            .and_then(convert::u32_value)
    };
    for layer in [mesh, own].into_iter().flatten() {
        if layer.probes > 0 {
            keepalive.keepalive_probes = convert::u32_value(layer.probes);
        }
        keepalive.keepalive_time = whole_seconds(layer.time).or(keepalive.keepalive_time);
        keepalive.keepalive_interval =
            whole_seconds(layer.interval).or(keepalive.keepalive_interval);
    }
    Some(UpstreamConnectionOptions {
        tcp_keepalive: Some(keepalive),
        ..UpstreamConnectionOptions::default()
    })
}

fn circuit_breakers(
    pool: Option<&ConnectionPool>,
    budget: Option<&destination_rule::RetryBudget>,
    client: &Client,
) -> CircuitBreakers {
    if pool.is_none() && budget.is_none() {
        return client.parts().unlimited.clone();
    }
    let mut thresholds: Thresholds = parts::thresholds(client);
    if let Some(tcp) = pool.and_then(|p| p.tcp.as_ref()) {
        set(&mut thresholds.max_connections, tcp.max_connections);
    }
    if let Some(http) = pool.and_then(|p| p.http.as_ref()) {
        set(
            &mut thresholds.max_pending_requests,
            http.http1_max_pending_requests,
        );
        set(&mut thresholds.max_requests, http.http2_max_requests);
        set(&mut thresholds.max_retries, http.max_retries);
    }
    thresholds.retry_budget = budget.map(|budget| RetryBudget {
        budget_percent: convert::percent(budget.percent.unwrap_or(20.0)),
        budget_interval: budget.budget_interval.map(convert::duration),
        min_retry_concurrency: convert::u32_value(match budget.min_retry_concurrency {
            0 => 3,
            concurrency => concurrency,
        }),
    });
    CircuitBreakers {
        thresholds: vec![thresholds],
        ..CircuitBreakers::default()
    }
}

/// Replaces a limit by a positive number.
fn set(limit: &mut Option<envoy_types::pb::google::protobuf::UInt32Value>, value: i32) {
    *limit = convert::positive(value).or(*limit);
}

fn apply_http(options: &mut HttpOptions, pool: &ConnectionPool) {
    let http = pool.http.as_ref();
    let tcp = pool.tcp.as_ref();
    let idle_timeout = http
        .and_then(|h| h.idle_timeout)
        .or_else(|| tcp.and_then(|t| t.idle_timeout));
    let max_duration = tcp.and_then(|t| t.max_connection_duration);
    let max_requests = http.and_then(|h| convert::positive(h.max_requests_per_connection));
    let max_streams = http.and_then(|h| convert::positive(h.max_concurrent_streams));
    let keepalive = http.and_then(|h| h.http2_keep_alive.as_ref());
    let any_given = idle_timeout.is_some()
        || max_duration.is_some()
        || max_requests.is_some()
        || max_streams.is_some()
        || keepalive.is_some();
    if !any_given {
        return;
    }
    let common = options.common();
    common.idle_timeout = idle_timeout.map(convert::duration);
    common.max_connection_duration = max_duration.map(convert::duration);
    common.max_requests_per_connection = max_requests;
    if let Protocol::Http2(http2) = &mut options.protocol {
        if max_streams.is_some() {
            http2.max_concurrent_streams = max_streams;
        }
        if let Some(keepalive) = keepalive {
            http2.connection_keepalive = Some(KeepaliveSettings {
                interval: keepalive.interval.map(convert::duration),
                timeout: keepalive.timeout.map(convert::duration),
                ..KeepaliveSettings::default()
            });
        }
    }
}

/// Tells whether a port is upgraded to HTTP/2 (§5.4).
pub(super) fn upgrades(
    pool: Option<&ConnectionPool>,
    port: model::Protocol,
    client: &Client,
) -> bool {
    let http = pool.and_then(|p| p.http.as_ref());
    if http.is_some_and(|h| h.use_client_protocol) {
        return false;
    }
    match http.map_or(H2UpgradePolicy::Default, |h| h.h2_upgrade_policy) {
        H2UpgradePolicy::Upgrade => true,
        H2UpgradePolicy::DoNotUpgrade => false,
        H2UpgradePolicy::Default => client.mesh.h2_upgrade && port.is_http(),
    }
}

/// Tells whether a pool wants the client's protocol kept.
pub(super) fn uses_client_protocol(pool: Option<&ConnectionPool>) -> bool {
    pool.and_then(|p| p.http.as_ref())
        .is_some_and(|h| h.use_client_protocol)
}

//! Connection pools, outlier detection, retries, locality settings: what several kinds share.

use super::Scope;
use super::names;
use crate::api::Duration;
use crate::api::common::{
    ConnectionPool, H2UpgradePolicy, HttpRetry, LocalityFailover, LocalityLbSetting,
    OutlierDetection, TcpKeepalive, ZoneAwareLbSetting,
};

/// Checks a duration if there is one.
pub(crate) fn optional_duration(scope: &Scope<'_>, key: &str, value: Option<Duration>) {
    if let Some(value) = value {
        scope.field(key).check(names::duration(value));
    }
}

/// Checks a connection pool.
pub(crate) fn connection_pool(scope: &Scope<'_>, pool: &ConnectionPool) {
    if pool.tcp.is_none() && pool.http.is_none() {
        scope.error("the connection pool is empty, it must have tcp or http settings");
    }
    if let Some(tcp) = &pool.tcp {
        let scope = scope.field("tcp");
        scope
            .field("maxConnections")
            .check(names::not_negative(tcp.max_connections));
        optional_duration(&scope, "connectTimeout", tcp.connect_timeout);
        optional_duration(&scope, "maxConnectionDuration", tcp.max_connection_duration);
        // Zero switches the timeout off.
        optional_duration(
            &scope,
            "idleTimeout",
            tcp.idle_timeout.filter(|idle| !idle.is_zero()),
        );
        if let Some(keepalive) = &tcp.tcp_keepalive {
            tcp_keepalive(&scope.field("tcpKeepalive"), keepalive);
        }
    }
    if let Some(http) = &pool.http {
        let scope = scope.field("http");
        for (key, value) in [
            ("http1MaxPendingRequests", http.http1_max_pending_requests),
            ("http2MaxRequests", http.http2_max_requests),
            ("maxRequestsPerConnection", http.max_requests_per_connection),
            ("maxRetries", http.max_retries),
            ("maxConcurrentStreams", http.max_concurrent_streams),
        ] {
            scope.field(key).check(names::not_negative(value));
        }
        optional_duration(&scope, "idleTimeout", http.idle_timeout);
        if http.h2_upgrade_policy == H2UpgradePolicy::Upgrade && http.use_client_protocol {
            scope
                .field("useClientProtocol")
                .error("cannot be combined with h2UpgradePolicy UPGRADE");
        }
        if let Some(keepalive) = &http.http2_keep_alive {
            let scope = scope.field("http2KeepAlive");
            for (key, value) in [
                ("interval", keepalive.interval),
                ("timeout", keepalive.timeout),
            ] {
                match value {
                    None => scope.field(key).error("must be set"),
                    Some(value) => scope.field(key).check(names::duration(value)),
                }
            }
        }
    }
}

/// Checks TCP keep-alive settings.
pub(crate) fn tcp_keepalive(scope: &Scope<'_>, keepalive: &TcpKeepalive) {
    optional_duration(scope, "time", keepalive.time);
    optional_duration(scope, "interval", keepalive.interval);
}

/// Checks outlier detection.
pub(crate) fn outlier_detection(scope: &Scope<'_>, outlier: &OutlierDetection) {
    optional_duration(scope, "interval", outlier.interval);
    optional_duration(scope, "baseEjectionTime", outlier.base_ejection_time);
    if outlier.consecutive_errors != 0 {
        scope.field("consecutiveErrors").warning(
            "deprecated and without effect, use consecutiveGatewayErrors or consecutive5xxErrors",
        );
    }
    let local = outlier
        .consecutive_local_origin_failures
        .unwrap_or_default();
    if local > 0 && !outlier.split_external_local_origin_errors {
        scope
            .field("consecutiveLocalOriginFailures")
            .error(format_args!(
                "{local} is only counted with splitExternalLocalOriginErrors: true"
            ));
    }
    scope
        .field("maxEjectionPercent")
        .check(names::percent(outlier.max_ejection_percent));
    scope
        .field("minHealthPercent")
        .check(names::percent(outlier.min_health_percent));
    scope.each(
        "outlierDetectionHttpErrorCodes",
        &outlier.outlier_detection_http_error_codes,
        |scope, code| {
            if !(100..600).contains(code) {
                scope.error(format_args!(
                    "{code} is not an HTTP status, allowed are 100 to 599"
                ));
            }
        },
    );
}

/// Conditions on which a request may be retried, besides HTTP statuses.
const RETRY_ON: [&str; 16] = [
    "5xx",
    "gateway-error",
    "reset",
    "reset-before-request",
    "connect-failure",
    "retriable-4xx",
    "refused-stream",
    "retriable-status-codes",
    "retriable-headers",
    "envoy-ratelimited",
    "http3-post-connect-failure",
    "cancelled",
    "deadline-exceeded",
    "internal",
    "resource-exhausted",
    "unavailable",
];

/// Tells whether a number is an HTTP status with a name.
fn is_known_status(text: &str) -> bool {
    let known = |status: u16| {
        matches!(status, 100..=103 | 200..=208 | 226 | 300..=305 | 307 | 308 | 400..=418 | 421..=426
            | 428 | 429 | 431 | 451 | 500..=508 | 510 | 511)
    };
    text.parse().is_ok_and(known)
}

/// Checks retries.
pub(crate) fn retries(scope: &Scope<'_>, retry: &HttpRetry) {
    if retry.attempts < 0 {
        scope
            .field("attempts")
            .error(format_args!("{} is negative", retry.attempts));
    }
    let configured = retry.per_try_timeout.is_some()
        || !retry.retry_on.is_empty()
        || retry.retry_remote_localities.is_some();
    if retry.attempts == 0 && configured {
        scope
            .field("attempts")
            .error("0 switches retries off, the other settings have no effect");
    }
    optional_duration(scope, "perTryTimeout", retry.per_try_timeout);
    optional_duration(scope, "backoff", retry.backoff);
    if retry.retry_on.is_empty() {
        return;
    }
    for condition in retry.retry_on.split(',') {
        if !RETRY_ON.contains(&condition) && !is_known_status(condition) {
            scope.field("retryOn").error(format_args!(
                "{condition:?} is not a retry condition; allowed are HTTP statuses and {} \
                 (separated by commas without spaces)",
                RETRY_ON.join(", ")
            ));
        }
    }
}

/// Labels of the topology that cannot be combined with `failover`.
const TOPOLOGY_LABELS: [&str; 3] = [
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.istio.io/subzone",
];

/// Checks locality load balancing. `outlier` tells whether hosts are ejected, without which nothing
/// ever fails over; `None` leaves that open.
pub(crate) fn locality(scope: &Scope<'_>, setting: &LocalityLbSetting, outlier: Option<bool>) {
    if !setting.distribute.is_empty() && !setting.failover.is_empty() {
        scope.error("distribute and failover cannot be combined");
    }
    let mut sources: Vec<&str> = Vec::new();
    scope.each("distribute", &setting.distribute, |scope, distribute| {
        locality_form(&scope.field("from"), &distribute.from, &mut sources);
        let mut destinations: Vec<&str> = Vec::new();
        let to = scope.field("to");
        for (destination, weight) in &distribute.to {
            let scope = to.field(destination);
            locality_form(&scope, destination, &mut destinations);
            if !(1..=100).contains(weight) {
                scope.error(format_args!(
                    "weight {weight} is out of range, allowed are 1 to 100"
                ));
            }
        }
        let total: u64 = distribute
            .to
            .values()
            .map(|weight| u64::from(*weight))
            .sum();
        if total != 100 {
            to.error(format_args!(
                "the weights sum to {total}, they must sum to 100"
            ));
        }
    });
    failover(
        scope,
        &setting.failover,
        &setting.failover_priority,
        outlier,
    );
}

/// Checks zone-aware load balancing.
pub(crate) fn zone_aware(scope: &Scope<'_>, setting: &ZoneAwareLbSetting, outlier: Option<bool>) {
    if setting.min_cluster_size == Some(0) {
        scope
            .field("minClusterSize")
            .error("0 is too small, it must be at least 1");
    }
    failover(
        scope,
        &setting.failover,
        &setting.failover_priority,
        outlier,
    );
}

fn failover(
    scope: &Scope<'_>,
    failover: &[LocalityFailover],
    priority: &[String],
    outlier: Option<bool>,
) {
    if !failover.is_empty() {
        scope.each("failoverPriority", priority, |scope, label| {
            let key = label.split('=').next().unwrap_or(label);
            if TOPOLOGY_LABELS.contains(&key) {
                scope.error(format_args!(
                    "the topology label {label:?} cannot be combined with failover"
                ));
            }
        });
    }
    if outlier == Some(false) && !(failover.is_empty() && priority.is_empty()) {
        scope.warning("without outlierDetection no endpoint ever fails over");
    }
    scope.each("failover", failover, |scope, failover| {
        if failover.from == failover.to {
            scope.error(format_args!(
                "region {:?} cannot fail over to itself",
                failover.from
            ));
        }
        for (key, region) in [("from", &failover.from), ("to", &failover.to)] {
            if region.contains(['/', '*']) || region.is_empty() {
                scope.field(key).error(format_args!(
                    "{region:?} is not a region: zones and wildcards are not allowed"
                ));
            }
        }
    });
}

/// Checks the form of a locality, and that none of those before overlaps with it.
fn locality_form<'l>(scope: &Scope<'_>, locality: &'l str, before: &mut Vec<&'l str>) {
    let parts: Vec<&str> = locality.split('/').collect();
    let inner_wildcard = locality.strip_suffix('*').unwrap_or(locality).contains('*');
    let partial_wildcard = parts
        .iter()
        .any(|part| part.len() > 1 && part.contains('*'));
    if parts.len() > 3
        || parts.iter().any(|part| part.is_empty())
        || inner_wildcard
        || partial_wildcard
    {
        scope.error(format_args!(
            "{locality:?} is not a locality: the form is region/zone/subzone, with \"*\" only as the last part"
        ));
        return;
    }
    if let Some(other) = before.iter().find(|other| overlap(other, locality)) {
        scope.error(format_args!("{locality:?} overlaps with {other:?}"));
    }
    before.push(locality);
}

/// Tells whether one locality lies within the other.
fn overlap(one: &str, other: &str) -> bool {
    let parts = |locality: &str| -> Vec<String> {
        locality
            .split('/')
            .filter(|part| *part != "*")
            .map(str::to_owned)
            .collect()
    };
    let (one, other) = (parts(one), parts(other));
    one.iter().zip(&other).all(|(one, other)| one == other)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn localities_overlap_when_one_contains_the_other() {
        assert!(overlap("r/*", "r/z/s"));
        assert!(overlap("*", "r"));
        assert!(overlap("r/z", "r/z/*"));
        assert!(!overlap("r/z/*", "r/y/*"));
        assert!(!overlap("r1", "r2"));
    }

    #[test]
    fn statuses_are_those_with_a_name() {
        assert!(is_known_status("503"));
        assert!(!is_known_status("599"));
        assert!(!is_known_status(" 503"));
        assert!(!is_known_status("306"));
    }
}

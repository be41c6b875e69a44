//! Load balancing of a DestinationRule.

use super::super::traffic::{self, optional_duration};
use super::{Scope, names};
use crate::api::destination_rule::{ConsistentHashLb, HttpCookie, LoadBalancer, Maglev};

/// Envoy's limit of Maglev tables.
const MAGLEV_LIMIT: u64 = 5_000_011;

pub(super) fn validate(scope: &Scope<'_>, balancer: &LoadBalancer, has_outlier: bool) {
    let algorithms = [
        balancer.simple.is_some(),
        balancer.consistent_hash.is_some(),
        balancer.backend_utilization.is_some(),
    ];
    if algorithms.iter().filter(|given| **given).count() > 1 {
        scope.error("only one of simple, consistentHash and backendUtilization can be set");
    }
    if let Some(hash) = &balancer.consistent_hash {
        consistent_hash(&scope.field("consistentHash"), hash);
    }
    if let Some(utilization) = &balancer.backend_utilization {
        let scope = scope.field("backendUtilization");
        for (key, period) in [
            (
                "weightExpirationPeriod",
                utilization.weight_expiration_period,
            ),
            (
                "weightStabilizationPeriod",
                utilization.weight_stabilization_period,
            ),
            ("weightUpdatePeriod", utilization.weight_update_period),
        ] {
            optional_duration(&scope, key, period);
        }
    }
    if balancer.locality_lb_setting.is_some() && balancer.zone_aware_lb_setting.is_some() {
        scope
            .field("zoneAwareLbSetting")
            .error("cannot be combined with localityLbSetting");
    }
    if let Some(setting) = &balancer.locality_lb_setting {
        traffic::locality(
            &scope.field("localityLbSetting"),
            setting,
            Some(has_outlier),
        );
    }
    if let Some(setting) = &balancer.zone_aware_lb_setting {
        traffic::zone_aware(
            &scope.field("zoneAwareLbSetting"),
            setting,
            Some(has_outlier),
        );
    }
    if balancer.warmup_duration_secs.is_some() {
        scope
            .field("warmupDurationSecs")
            .warning("deprecated, use warmup.duration");
        optional_duration(scope, "warmupDurationSecs", balancer.warmup_duration_secs);
    }
    if let Some(warmup) = &balancer.warmup {
        let scope = scope.field("warmup");
        match warmup.duration {
            None => scope.field("duration").error("must be set"),
            Some(duration) => scope.field("duration").check(names::duration(duration)),
        }
        if let Some(percent) = warmup.minimum_percent
            && !(0.0..=100.0).contains(&percent)
        {
            scope.field("minimumPercent").error(format_args!(
                "{percent} is not a percentage, allowed are 0 to 100"
            ));
        }
        if let Some(aggression) = warmup.aggression
            && (aggression <= 0.0 || aggression.is_nan())
        {
            scope
                .field("aggression")
                .error(format_args!("{aggression} is not above zero"));
        }
    }
}

fn consistent_hash(scope: &Scope<'_>, hash: &ConsistentHashLb) {
    let keys = [
        hash.http_header_name.is_some(),
        hash.http_cookie.is_some(),
        hash.use_source_ip.is_some(),
        hash.http_query_parameter_name.is_some(),
    ];
    if keys.iter().filter(|given| **given).count() > 1 {
        scope.error(
            "only one of httpHeaderName, httpCookie, useSourceIp and httpQueryParameterName can be set",
        );
    }
    if let Some(key) = &hash.http_cookie {
        cookie(&scope.field("httpCookie"), key);
    }
    if hash.ring_hash.is_some() && hash.maglev.is_some() {
        scope
            .field("maglev")
            .error("cannot be combined with ringHash");
    }
    if hash.minimum_ring_size != 0 {
        scope
            .field("minimumRingSize")
            .warning("deprecated, use ringHash.minimumRingSize");
        if hash.ring_hash.is_some() || hash.maglev.is_some() {
            scope
                .field("minimumRingSize")
                .error("cannot be combined with ringHash or maglev");
        }
    }
    if let Some(table) = &hash.maglev {
        maglev(&scope.field("maglev"), table);
    }
}

fn cookie(scope: &Scope<'_>, cookie: &HttpCookie) {
    if cookie.name.is_empty() {
        scope.field("name").error("the cookie has no name");
    }
    for (index, attribute) in cookie.attributes.iter().enumerate() {
        let field = scope.field("attributes");
        let scope = field.index(index);
        if attribute.name.is_empty() {
            scope.field("name").error("the attribute has no name");
        }
        if cookie.attributes[..index]
            .iter()
            .any(|other| other.name == attribute.name)
        {
            scope.field("name").error(format_args!(
                "another attribute has the name {:?}",
                attribute.name
            ));
        }
    }
    if let Some(ttl) = cookie.ttl
        && ttl.is_negative()
    {
        scope.field("ttl").error(format_args!("{ttl} is negative"));
    }
}

fn maglev(scope: &Scope<'_>, table: &Maglev) {
    let size = table.table_size;
    if size == 0 || size >= MAGLEV_LIMIT || !is_prime(size) {
        scope.field("tableSize").error(format_args!(
            "{size} is not a prime number below {MAGLEV_LIMIT}"
        ));
    }
}

fn is_prime(number: u64) -> bool {
    number >= 2
        && (2..number)
            .take_while(|divisor| divisor * divisor <= number)
            .all(|divisor| !number.is_multiple_of(divisor))
}

//! Retry policies (routes §13.8, §17).

use envoy_types::pb::envoy::{
    config::route::v3::{
        RetryPolicy,
        retry_policy::{
            RetryBackOff, RetryHostPredicate, RetryPriority, retry_host_predicate, retry_priority,
        },
    },
    extensions::retry::{
        host::previous_hosts::v3::PreviousHostsPredicate,
        priority::previous_priorities::v3::PreviousPrioritiesConfig,
    },
};
use model::api;

use crate::convert;

const DEFAULT_CONDITIONS: &str =
    "connect-failure,refused-stream,unavailable,cancelled,retriable-status-codes";
const STATUS_CODES: &str = "retriable-status-codes";
const DEFAULT_ATTEMPTS: u32 = 2;
const HOST_SELECTION_ATTEMPTS: i64 = 5;

/// Builds the retry policy of an outbound route. `hashed` tells that requests are bound to a host
/// by a consistent hash, so that avoiding earlier hosts makes no sense. `None` switches retries off.
pub(super) fn retry_policy(
    policy: Option<&api::common::HttpRetry>,
    hashed: bool,
) -> Option<RetryPolicy> {
    let mut result = RetryPolicy {
        num_retries: convert::u32_value(DEFAULT_ATTEMPTS),
        retry_on: DEFAULT_CONDITIONS.to_owned(),
        host_selection_retry_max_attempts: HOST_SELECTION_ATTEMPTS,
        ..RetryPolicy::default()
    };
    let mut avoid_previous = !hashed;
    if let Some(policy) = policy {
        let attempts = u32::try_from(policy.attempts).ok().filter(|n| *n > 0)?;
        result.num_retries = convert::u32_value(attempts);
        if !policy.retry_on.is_empty() {
            (result.retry_on, result.retriable_status_codes) = parse_conditions(&policy.retry_on);
        }
        avoid_previous = policy.retry_ignore_previous_hosts.unwrap_or(avoid_previous);
        result.per_try_timeout = policy.per_try_timeout.map(convert::duration);
        result.retry_back_off = back_off(policy);
        if policy.retry_remote_localities == Some(true) {
            result.retry_priority = Some(previous_priorities());
        }
    }
    if avoid_previous {
        result.retry_host_predicate = vec![previous_hosts()];
    }
    Some(result)
}

/// Builds the retry policy of inbound routes from the mesh's default; `None` switches retries off.
pub(crate) fn inbound_retry(policy: Option<&api::common::HttpRetry>) -> Option<RetryPolicy> {
    let mut result = RetryPolicy {
        num_retries: convert::u32_value(DEFAULT_ATTEMPTS),
        retry_on: "reset-before-request".to_owned(),
        ..RetryPolicy::default()
    };
    if let Some(policy) = policy {
        let attempts = u32::try_from(policy.attempts).ok().filter(|n| *n > 0)?;
        result.num_retries = convert::u32_value(attempts);
        if !policy.retry_on.is_empty() {
            (result.retry_on, result.retriable_status_codes) = parse_conditions(&policy.retry_on);
        }
        result.retry_back_off = back_off(policy);
    }
    Some(result)
}

fn back_off(policy: &api::common::HttpRetry) -> Option<RetryBackOff> {
    policy.backoff.map(|base| RetryBackOff {
        base_interval: Some(convert::duration(base)),
        max_interval: None,
    })
}

fn previous_hosts() -> RetryHostPredicate {
    RetryHostPredicate {
        name: "envoy.retry_host_predicates.previous_hosts".to_owned(),
        config_type: Some(retry_host_predicate::ConfigType::TypedConfig(
            envoy_json::encode::any(&PreviousHostsPredicate {}),
        )),
    }
}

fn previous_priorities() -> RetryPriority {
    RetryPriority {
        name: "envoy.retry_priorities.previous_priorities".to_owned(),
        config_type: Some(retry_priority::ConfigType::TypedConfig(
            envoy_json::encode::any(&PreviousPrioritiesConfig {
                update_frequency: 2,
            }),
        )),
    }
}

/// Splits conditions into Envoy's conditions and status codes; codes need a condition of their own,
/// which is added where it is missing.
fn parse_conditions(text: &str) -> (String, Vec<u32>) {
    let mut codes = Vec::new();
    let mut conditions = Vec::new();
    for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
        match part.parse::<u32>() {
            Ok(code) if is_status(code) => codes.push(code),
            _ => conditions.push(part),
        }
    }
    let mut conditions = conditions.join(",");
    if !codes.is_empty() && !conditions.contains(STATUS_CODES) {
        conditions.push(',');
        conditions.push_str(STATUS_CODES);
    }
    (conditions, codes)
}

const fn is_status(code: u32) -> bool {
    matches!(
        code,
        100..=103
            | 200..=208
            | 226
            | 300..=305
            | 307
            | 308
            | 400..=418
            | 421..=426
            | 428
            | 429
            | 431
            | 451
            | 500..=508
            | 510
            | 511
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_and_codes_are_told_apart() {
        for (text, conditions, codes) in [
            ("5xx,503", "5xx,retriable-status-codes", vec![503]),
            ("503", ",retriable-status-codes", vec![503]),
            (" gateway-error , 599 ", "gateway-error,599", vec![]),
            (
                "retriable-status-codes,404",
                "retriable-status-codes",
                vec![404],
            ),
        ] {
            assert_eq!(
                parse_conditions(text),
                (conditions.to_owned(), codes),
                "{text}"
            );
        }
    }

    #[test]
    fn zero_attempts_switch_retries_off() {
        let off = api::common::HttpRetry {
            attempts: 0,
            ..api::common::HttpRetry::default()
        };
        assert_eq!(retry_policy(Some(&off), false), None);
        assert_eq!(inbound_retry(Some(&off)), None);
    }

    #[test]
    fn hashed_routes_may_return_to_a_host() {
        let policy = retry_policy(None, true).expect("the default retries");
        assert!(policy.retry_host_predicate.is_empty());
        let asked = api::common::HttpRetry {
            attempts: 1,
            retry_ignore_previous_hosts: Some(true),
            ..api::common::HttpRetry::default()
        };
        let policy = retry_policy(Some(&asked), true).expect("one attempt");
        assert_eq!(policy.retry_host_predicate.len(), 1);
    }
}

//! Per-route filter configuration: faults and CORS (routes §15).

use envoy_types::pb::envoy::{
    config::{core::v3::RuntimeFractionalPercent, route::v3::Route},
    extensions::filters::{
        common::fault::v3::{FaultDelay, fault_delay::FaultDelaySecifier},
        http::{
            cors::v3::CorsPolicy,
            fault::v3::{FaultAbort, HttpFault, fault_abort::ErrorType},
        },
    },
    r#type::{
        matcher::v3::{StringMatcher, string_matcher::MatchPattern},
        v3::FractionalPercent,
    },
};
use model::api;

use super::{action::millionths, matching};
use crate::convert;

/// Adds the filters' configuration that a rule asks for.
pub(super) fn apply(rule: &api::virtual_service::HttpRoute, route: &mut Route) {
    if let Some(fault) = &rule.fault {
        route.typed_per_filter_config.insert(
            "envoy.filters.http.fault".to_owned(),
            envoy_json::encode::any(&http_fault(fault)),
        );
    }
    if let Some(cors) = &rule.cors_policy {
        route.typed_per_filter_config.insert(
            "envoy.filters.http.cors".to_owned(),
            envoy_json::encode::any(&cors_policy(cors)),
        );
    }
}

fn http_fault(fault: &api::virtual_service::HttpFaultInjection) -> HttpFault {
    HttpFault {
        delay: fault.delay.as_ref().and_then(delay),
        abort: fault.abort.as_ref().and_then(abort),
        ..HttpFault::default()
    }
}

fn delay(delay: &api::virtual_service::FaultDelay) -> Option<FaultDelay> {
    let fixed = delay.fixed_delay?;
    let percentage = match &delay.percentage {
        Some(percent) => millionths(percent.value),
        None => FractionalPercent {
            numerator: u32::try_from(delay.percent).unwrap_or_default(),
            ..FractionalPercent::default()
        },
    };
    Some(FaultDelay {
        percentage: Some(percentage),
        fault_delay_secifier: Some(FaultDelaySecifier::FixedDelay(convert::duration(fixed))),
    })
}

fn abort(abort: &api::virtual_service::FaultAbort) -> Option<FaultAbort> {
    let error = if let Some(status) = abort.http_status {
        ErrorType::HttpStatus(u32::try_from(status).unwrap_or_default())
    } else {
        ErrorType::GrpcStatus(grpc_status(abort.grpc_status.as_deref()?))
    };
    Some(FaultAbort {
        percentage: abort.percentage.as_ref().map(|p| millionths(p.value)),
        error_type: Some(error),
        ..FaultAbort::default()
    })
}

/// The number of a gRPC status by its name; unknown names are 0, as for OK.
fn grpc_status(name: &str) -> u32 {
    const NAMES: [&str; 17] = [
        "OK",
        "CANCELLED",
        "UNKNOWN",
        "INVALID_ARGUMENT",
        "DEADLINE_EXCEEDED",
        "NOT_FOUND",
        "ALREADY_EXISTS",
        "PERMISSION_DENIED",
        "RESOURCE_EXHAUSTED",
        "FAILED_PRECONDITION",
        "ABORTED",
        "OUT_OF_RANGE",
        "UNIMPLEMENTED",
        "INTERNAL",
        "UNAVAILABLE",
        "DATA_LOSS",
        "UNAUTHENTICATED",
    ];
    NAMES
        .iter()
        .zip(0..)
        .find(|(n, _)| **n == name)
        .map_or(0, |(_, number)| number)
}

fn cors_policy(cors: &api::virtual_service::CorsPolicy) -> CorsPolicy {
    let origins = if cors.allow_origins.is_empty() {
        cors.allow_origin
            .iter()
            .map(|origin| StringMatcher {
                match_pattern: Some(MatchPattern::Exact(origin.clone())),
                ..StringMatcher::default()
            })
            .collect()
    } else {
        cors.allow_origins
            .iter()
            .filter_map(matching::string_matcher)
            .collect()
    };
    CorsPolicy {
        allow_origin_string_match: origins,
        allow_methods: cors.allow_methods.join(","),
        allow_headers: cors.allow_headers.join(","),
        expose_headers: cors.expose_headers.join(","),
        max_age: cors
            .max_age
            .map(|age| age.seconds().to_string())
            .unwrap_or_default(),
        allow_credentials: cors.allow_credentials.and_then(convert::bool_value),
        filter_enabled: Some(RuntimeFractionalPercent {
            default_value: Some(FractionalPercent {
                numerator: 100,
                ..FractionalPercent::default()
            }),
            ..RuntimeFractionalPercent::default()
        }),
        forward_not_matching_preflights: convert::bool_value(
            cors.unmatched_preflights != api::virtual_service::UnmatchedPreflights::Ignore,
        ),
        ..CorsPolicy::default()
    }
}

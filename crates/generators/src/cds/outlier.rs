//! Outlier detection and the panic threshold (clusters-endpoints §6).

use envoy_types::pb::{
    envoy::{
        config::{
            cluster::v3::{Cluster, OutlierDetection},
            common::matcher::v3::{HttpHeadersMatch, MatchPredicate, match_predicate},
            route::v3::{HeaderMatcher, header_matcher::HeaderMatchSpecifier},
        },
        extensions::upstreams::http::v3::http_protocol_options,
        r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern},
    },
    google::protobuf::UInt32Value,
};
use model::{Service, TrafficDistribution, api::common};

use super::{client::Flags, http::HttpOptions};
use crate::convert;

/// Applies outlier detection, and the panic threshold that goes with it or without it.
pub(super) fn apply(
    cluster: &mut Cluster,
    http: &mut HttpOptions,
    detection: Option<&common::OutlierDetection>,
    service: &Service,
    flags: &Flags,
) {
    if let Some(detection) = detection {
        cluster.outlier_detection = Some(outlier_detection(detection));
        http.outlier_detection = error_matcher(&detection.outlier_detection_http_error_codes);
    }
    let threshold = match detection {
        _ if forces_unhealthy(service, flags) => Some(0.0),
        Some(detection) => {
            (detection.min_health_percent >= 0).then(|| detection.min_health_percent.into())
        }
        None => flags.auto_send_unhealthy.then_some(0.0),
    };
    if let Some(threshold) = threshold {
        cluster
            .common_lb_config
            .get_or_insert_default()
            .healthy_panic_threshold = convert::percent(threshold);
    }
}

/// Tells whether unhealthy endpoints of a service are sent whatever a rule wants.
pub(super) fn forces_unhealthy(service: &Service, flags: &Flags) -> bool {
    flags.send_unhealthy || service.attributes.traffic_distribution != TrafficDistribution::Any
}

fn outlier_detection(from: &common::OutlierDetection) -> OutlierDetection {
    let enforcing = |limit: u32| convert::u32_value(if limit > 0 { 100 } else { 0 });
    let mut to = OutlierDetection {
        enforcing_success_rate: convert::u32_value(0),
        interval: from.interval.map(convert::duration),
        base_ejection_time: from.base_ejection_time.map(convert::duration),
        max_ejection_percent: convert::positive(from.max_ejection_percent),
        ..OutlierDetection::default()
    };
    if let Some(errors) = from.consecutive_5xx_errors {
        to.consecutive_5xx = convert::u32_value(errors);
        to.enforcing_consecutive_5xx = enforcing(errors);
    }
    if let Some(errors) = from.consecutive_gateway_errors {
        to.consecutive_gateway_failure = convert::u32_value(errors);
        to.enforcing_consecutive_gateway_failure = enforcing(errors);
    }
    if from.split_external_local_origin_errors {
        to.split_external_local_origin_errors = true;
        to.enforcing_local_origin_success_rate = convert::u32_value(0);
        let failures = from.consecutive_local_origin_failures.filter(|f| *f > 0);
        to.consecutive_local_origin_failure = failures.map(|value| UInt32Value { value });
        to.enforcing_consecutive_local_origin_failure =
            failures.and_then(|_| convert::u32_value(100));
    }
    to
}

/// Matches answers with one of the status codes.
fn error_matcher(codes: &[u32]) -> Option<http_protocol_options::OutlierDetection> {
    let predicate = |rule| MatchPredicate { rule: Some(rule) };
    let matcher = |code: &u32| {
        let pattern = StringMatcher {
            match_pattern: Some(MatchPattern::Exact(code.to_string())),
            ..StringMatcher::default()
        };
        let header = HeaderMatcher {
            name: ":status".to_owned(),
            header_match_specifier: Some(HeaderMatchSpecifier::StringMatch(pattern)),
            ..HeaderMatcher::default()
        };
        predicate(match_predicate::Rule::HttpResponseHeadersMatch(
            HttpHeadersMatch {
                headers: vec![header],
            },
        ))
    };
    let error_matcher = match codes {
        [] => return None,
        [code] => matcher(code),
        codes => predicate(match_predicate::Rule::OrMatch(match_predicate::MatchSet {
            rules: codes.iter().map(matcher).collect(),
        })),
    };
    Some(http_protocol_options::OutlierDetection {
        error_matcher: Some(error_matcher),
    })
}

#![expect(clippy::needless_pass_by_value, reason = "values are written in place")]

use serde_json::json;

use super::*;

const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";

/// Reads `input` as a message and writes it again.
#[track_caller]
fn check(message: &str, input: Value, expected: Value) {
    let read = from_json(message, &input, Unknown::Ignore).unwrap();
    let written = to_json(message, &encode(&read)).unwrap();
    assert_eq!(written, expected);
}

#[track_caller]
fn check_error(message: &str, input: Value, unknown: Unknown, expected: &str) {
    let error = from_json(message, &input, unknown).unwrap_err();
    assert_eq!(error.to_string(), expected);
}

#[test]
fn both_spellings_are_read_and_camel_case_wins() {
    check(
        CLUSTER,
        json!({"connect_timeout": "1s", "connectTimeout": "500ms", "alt_stat_name": "x"}),
        json!({"connectTimeout": "0.500s", "altStatName": "x"}),
    );
}

#[test]
fn numbers_may_be_text_and_integral_doubles() {
    check(
        CLUSTER,
        json!({
            "perConnectionBufferLimitBytes": "4",
            "circuitBreakers": {"thresholds": [{"maxRetries": 5.0, "maxRequests": 1e3}]},
            "type": 3.0,
            "lbPolicy": "MAGLEV",
        }),
        json!({
            "perConnectionBufferLimitBytes": 4,
            "circuitBreakers": {"thresholds": [{"maxRetries": 5, "maxRequests": 1000}]},
            "type": "EDS",
            "lbPolicy": "MAGLEV",
        }),
    );
}

#[test]
fn defaults_are_left_out_but_presence_is_kept() {
    check(
        CLUSTER,
        json!({"name": "", "type": "STATIC", "respectDnsTtl": false, "upstreamBindConfig": {}, "filters": []}),
        json!({"type": "STATIC", "upstreamBindConfig": {}}),
    );
    // Wrappers have presence, 64-bit numbers are text.
    check(
        "envoy.config.route.v3.RetryPolicy",
        json!({"numRetries": 0, "hostSelectionRetryMaxAttempts": 5}),
        json!({"numRetries": 0, "hostSelectionRetryMaxAttempts": "5"}),
    );
}

#[test]
fn null_is_absent_but_a_value() {
    check(
        CLUSTER,
        json!({"connectTimeout": null, "name": null}),
        json!({}),
    );
    check(
        "envoy.config.core.v3.Metadata",
        json!({"filterMetadata": {"a": {"b": null, "c": [null, {"d": 1.5}], "e": 2}}}),
        json!({"filterMetadata": {"a": {"b": null, "c": [null, {"d": 1.5}], "e": 2}}}),
    );
}

#[test]
fn the_member_of_a_oneof_that_is_declared_later_wins() {
    check(
        "envoy.config.route.v3.RouteMatch",
        json!({"path": "/a", "prefix": "/b", "safeRegex": {"regex": "c"}}),
        json!({"safeRegex": {"regex": "c"}}),
    );
}

#[test]
fn packed_messages_are_expanded() {
    let buffer = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer";
    let message = "envoy.config.core.v3.TypedExtensionConfig";
    let config = json!({"name": "b", "typedConfig": {"@type": buffer, "maxRequestBytes": 5}});
    check(message, config.clone(), config);
    // A doubled prefix resolves, and stays as it is written.
    let doubled = format!("type.googleapis.com/{buffer}");
    let config = json!({"typedConfig": {"@type": doubled, "max_request_bytes": 5}});
    check(
        message,
        config,
        json!({"typedConfig": {"@type": doubled, "maxRequestBytes": 5}}),
    );
    // Types with a form of their own stand beside the type.
    let text = json!({"@type": "type.googleapis.com/google.protobuf.StringValue", "value": "{}"});
    check(
        message,
        json!({"typedConfig": text}),
        json!({"typedConfig": text}),
    );
    check(
        message,
        json!({"typedConfig": {}}),
        json!({"typedConfig": {}}),
    );
    let other =
        json!({"@type": "x/udpa.type.v1.TypedStruct", "typeUrl": "u", "value": {"a": {"b": 1}}});
    check(
        message,
        json!({"typedConfig": other}),
        json!({"typedConfig": other}),
    );
}

#[test]
fn an_unknown_packed_type_does_not_spoil_the_rest() {
    let any = |type_url: &str| Any {
        type_url: type_url.to_owned(),
        value: vec![1, 2, 255],
    };
    let unknown = any("type.googleapis.com/company.Unknown");
    assert_eq!(
        any_to_json(&unknown),
        json!({"@type": unknown.type_url, "value": "AQL/"})
    );
    let broken = any("type.googleapis.com/envoy.config.cluster.v3.Cluster");
    assert_eq!(
        any_to_json(&broken),
        json!({"@type": broken.type_url, "value": "AQL/"})
    );
}

#[test]
fn floats_are_shortest() {
    check(
        "envoy.type.v3.DoubleRange",
        json!({"start": "0.1", "end": 100}),
        json!({"start": 0.1, "end": 100}),
    );
    check("google.protobuf.FloatValue", json!(0.1), json!(0.1));
    check(
        "google.protobuf.DoubleValue",
        json!("Infinity"),
        json!("Infinity"),
    );
    check("google.protobuf.BytesValue", json!("AQL/"), json!("AQL/"));
    check(
        "google.protobuf.FieldMask",
        json!("fooBar,baz"),
        json!("fooBar,baz"),
    );
    check(
        "google.protobuf.Timestamp",
        json!("2024-01-01T00:00:00.5Z"),
        json!("2024-01-01T00:00:00.500Z"),
    );
}

#[test]
fn errors_name_the_path() {
    let lenient = Unknown::Ignore;
    let thresholds = |value: Value| json!({"circuitBreakers": {"thresholds": [{}, value]}});
    check_error(
        CLUSTER,
        thresholds(json!({"maxRetries": 1.5})),
        lenient,
        "circuit_breakers.thresholds[1].max_retries: expected an integer, got 1.5",
    );
    check_error(
        CLUSTER,
        thresholds(json!({"maxRetries": -1})),
        lenient,
        "circuit_breakers.thresholds[1].max_retries: -1 is out of range",
    );
    check_error(
        CLUSTER,
        json!({"name": true}),
        lenient,
        "name: expected a string, got true",
    );
    check_error(
        CLUSTER,
        json!({"respectDnsRate": 1, "respectDnsTtl": "true"}),
        lenient,
        "respect_dns_ttl: expected true or false, got \"true\"",
    );
    check_error(
        CLUSTER,
        json!({"lbPolicy": "FASTEST"}),
        lenient,
        "lb_policy: \"FASTEST\" is no envoy.config.cluster.v3.Cluster.LbPolicy",
    );
    check_error(
        CLUSTER,
        json!({"connectTimeout": 5}),
        lenient,
        "connect_timeout: expected a string, got 5",
    );
    check_error(CLUSTER, json!([]), lenient, "expected an object, got []");
    let options = |any: Value| json!({"typedExtensionProtocolOptions": {"a": any}});
    check_error(
        CLUSTER,
        options(json!({"@type": "x/company.Unknown"})),
        lenient,
        "typed_extension_protocol_options[\"a\"]: unknown type x/company.Unknown",
    );
    check_error(
        CLUSTER,
        options(json!({"value": 1})),
        lenient,
        "typed_extension_protocol_options[\"a\"]: has no \"@type\"",
    );
    check_error(
        CLUSTER,
        options(json!({"@type": "x/google.protobuf.Struct", "a": 1})),
        lenient,
        "typed_extension_protocol_options[\"a\"]: has no \"value\", which google.protobuf.Struct needs",
    );
    check_error(
        "company.Unknown",
        json!({}),
        lenient,
        "unknown type company.Unknown",
    );
}

#[test]
fn unknown_fields_are_ignored_or_refused_at_every_depth() {
    let input = json!({"name": "x", "typedExtensionProtocolOptions": {"a": {
        "@type": "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer", "size": 1,
    }}});
    let read = from_json(CLUSTER, &input, Unknown::Ignore).unwrap();
    assert_eq!(read.get_field_by_name("name").unwrap().as_str(), Some("x"));
    check_error(
        CLUSTER,
        input,
        Unknown::Refuse,
        "typed_extension_protocol_options[\"a\"]: \
        unknown field \"size\" of envoy.extensions.filters.http.buffer.v3.Buffer",
    );
    check_error(
        CLUSTER,
        json!({"nam": 1}),
        Unknown::Refuse,
        "unknown field \"nam\" of envoy.config.cluster.v3.Cluster",
    );
}

#![expect(clippy::needless_pass_by_value, reason = "values are written in place")]

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use serde_json::json;

use super::*;
use crate::json::{Unknown, any_from_json, any_to_json, dynamic_to_json, from_json};

const CLUSTER: &str = "envoy.config.cluster.v3.Cluster";
const VIRTUAL_HOST: &str = "envoy.config.route.v3.VirtualHost";

fn message(name: &str, value: &serde_json::Value) -> DynamicMessage {
    from_json(name, value, Unknown::Refuse).unwrap()
}

#[track_caller]
fn check(
    name: &str,
    lists: Lists,
    target: serde_json::Value,
    patch: serde_json::Value,
    expected: serde_json::Value,
) {
    let mut merged = message(name, &target);
    merge(&mut merged, &message(name, &patch), lists).unwrap();
    assert_eq!(dynamic_to_json(&merged), expected);
}

#[test]
fn scalars_overwrite_but_unpopulated_ones_do_not() {
    check(
        CLUSTER,
        Lists::Append,
        json!({"name": "a", "altStatName": "x", "lbPolicy": "RANDOM"}),
        json!({"name": "b", "altStatName": "", "lbPolicy": "ROUND_ROBIN"}),
        json!({"name": "b", "altStatName": "x", "lbPolicy": "RANDOM"}),
    );
}

#[test]
fn optional_scalars_overwrite_even_by_zero() {
    check(
        "envoy.config.route.v3.WeightedCluster.ClusterWeight",
        Lists::Append,
        json!({"hostRewriteLiteral": "a"}),
        json!({"hostRewriteLiteral": ""}),
        json!({"hostRewriteLiteral": ""}),
    );
}

#[test]
fn durations_are_replaced_as_a_whole() {
    check(
        CLUSTER,
        Lists::Append,
        json!({"connectTimeout": "10.500s", "circuitBreakers": {}}),
        json!({"connectTimeout": "3s"}),
        json!({"connectTimeout": "3s", "circuitBreakers": {}}),
    );
    // Also by an explicit zero.
    check(
        CLUSTER,
        Lists::Append,
        json!({"connectTimeout": "10.500s"}),
        json!({"connectTimeout": "0s"}),
        json!({"connectTimeout": "0s"}),
    );
}

#[test]
fn wrappers_are_merged_so_zero_does_not_override() {
    check(
        CLUSTER,
        Lists::Append,
        json!({"perConnectionBufferLimitBytes": 32768, "connectTimeout": "10s"}),
        json!({"perConnectionBufferLimitBytes": 0, "waitForWarmOnInit": false}),
        json!({"perConnectionBufferLimitBytes": 32768, "connectTimeout": "10s", "waitForWarmOnInit": false}),
    );
}

#[test]
fn messages_are_merged_recursively() {
    check(
        CLUSTER,
        Lists::Append,
        json!({"edsClusterConfig": {"serviceName": "a"}}),
        json!({"edsClusterConfig": {"edsConfig": {"ads": {}}}}),
        json!({"edsClusterConfig": {"serviceName": "a", "edsConfig": {"ads": {}}}}),
    );
}

#[test]
fn another_member_clears_a_oneof_and_the_same_is_merged() {
    let typed = json!({"type": "EDS"});
    let custom = |name: &str| json!({"clusterType": {"name": name}});
    check(CLUSTER, Lists::Append, typed, custom("x"), custom("x"));
    let message = "envoy.config.core.v3.Address";
    check(
        message,
        Lists::Append,
        json!({"socketAddress": {"address": "::1"}}),
        json!({"socketAddress": {"portValue": 80}}),
        json!({"socketAddress": {"address": "::1", "portValue": 80}}),
    );
}

#[test]
fn lists_are_appended_or_replaced_but_only_where_the_patch_has_one() {
    let target = json!({"name": "v", "domains": ["a"], "routes": [{"name": "r1"}]});
    let patch = json!({"domains": ["b"]});
    check(
        VIRTUAL_HOST,
        Lists::Append,
        target.clone(),
        patch.clone(),
        json!({"name": "v", "domains": ["a", "b"], "routes": [{"name": "r1"}]}),
    );
    check(
        VIRTUAL_HOST,
        Lists::Replace,
        target,
        patch,
        json!({"name": "v", "domains": ["b"], "routes": [{"name": "r1"}]}),
    );
    let thresholds =
        |number: u32| json!({"circuitBreakers": {"thresholds": [{"maxRetries": number}]}});
    check(
        CLUSTER,
        Lists::Replace,
        thresholds(1),
        thresholds(2),
        thresholds(2),
    );
}

#[test]
fn entries_of_maps_are_replaced() {
    let options = |name: &str, value: serde_json::Value| {
        let url = "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
        let mut any = json!({"@type": url});
        any.as_object_mut()
            .unwrap()
            .extend(value.as_object().unwrap().clone());
        json!({"typedExtensionProtocolOptions": {name: any}})
    };
    check(
        CLUSTER,
        Lists::Append,
        options(
            "a",
            json!({"commonHttpProtocolOptions": {"idleTimeout": "60s"}}),
        ),
        options(
            "a",
            json!({"explicitHttpConfig": {"http2ProtocolOptions": {}}}),
        ),
        options(
            "a",
            json!({"explicitHttpConfig": {"http2ProtocolOptions": {}}}),
        ),
    );
    check(
        "envoy.config.core.v3.Metadata",
        Lists::Append,
        json!({"filterMetadata": {"a": {"x": 1}, "b": {"x": 1}}}),
        json!({"filterMetadata": {"a": {"y": 1}}}),
        json!({"filterMetadata": {"a": {"y": 1}, "b": {"x": 1}}}),
    );
}

#[test]
fn the_keys_of_a_struct_are_replaced_one_by_one() {
    check(
        "udpa.type.v1.TypedStruct",
        Lists::Append,
        json!({"value": {"a": {"x": 1}, "b": 1}}),
        json!({"value": {"a": {"y": 1}}}),
        json!({"value": {"a": {"y": 1}, "b": 1}}),
    );
}

#[test]
fn a_packed_message_without_body_keeps_the_old_bytes() {
    let buffer = "type.googleapis.com/envoy.extensions.filters.http.buffer.v3.Buffer";
    let raw = "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer";
    let socket = |config: serde_json::Value| json!({"transportSocket": {"name": "x", "typedConfig": config}});
    let mut merged = message(
        CLUSTER,
        &socket(json!({"@type": buffer, "maxRequestBytes": 7})),
    );
    merge(
        &mut merged,
        &message(CLUSTER, &socket(json!({"@type": raw}))),
        Lists::Append,
    )
    .unwrap();
    let merged: Cluster = to_typed(&merged).unwrap();
    let Some(config) = merged.transport_socket.unwrap().config_type else {
        panic!("no config")
    };
    let envoy_types::pb::envoy::config::core::v3::transport_socket::ConfigType::TypedConfig(any) =
        config;
    assert_eq!(any.type_url, raw);
    assert!(!any.value.is_empty());
}

#[test]
fn unknown_fields_are_appended() {
    // Field 1000 of no cluster, as a varint.
    let unknown = [0xc0, 0x3e, 0x05];
    let mut merged = message(CLUSTER, &json!({"name": "a"}));
    let patch = json::decode(CLUSTER, &unknown).unwrap();
    merge(&mut merged, &patch, Lists::Append).unwrap();
    assert_eq!(
        merged.encode_to_vec(),
        [&b"\x0a\x01a"[..], &unknown].concat()
    );
}

#[test]
fn packed_messages_are_merged_by_what_they_hold() {
    let lua = |value: serde_json::Value| any_from_json(&value, Unknown::Refuse).unwrap();
    let url = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault";
    // The patch may spell the URL in another way; the result has the usual one.
    let mut target = lua(
        json!({"@type": "x/envoy.extensions.filters.http.fault.v3.HTTPFault",
        "downstreamNodes": ["a"], "maxActiveFaults": 5}),
    );
    let patch = lua(json!({"@type": url, "downstreamNodes": ["b"], "upstreamCluster": "u"}));
    merge_any(&mut target, &patch).unwrap();
    assert_eq!(
        any_to_json(&target),
        json!({"@type": url, "downstreamNodes": ["a", "b"], "upstreamCluster": "u", "maxActiveFaults": 5})
    );

    let before = target.clone();
    let other = lua(json!({"@type": "x/envoy.extensions.filters.http.cors.v3.Cors"}));
    assert!(matches!(
        merge_any(&mut target, &other),
        Err(MergeError::Types { .. })
    ));
    let unknown = Any {
        type_url: "x/company.Unknown".to_owned(),
        value: vec![],
    };
    assert!(matches!(
        merge_any(&mut target, &unknown),
        Err(MergeError::Json(_))
    ));
    assert_eq!(target, before);
}

#[test]
fn typed_messages_are_patched() {
    let mut cluster = Cluster {
        name: "a".to_owned(),
        ..Cluster::default()
    };
    let patch = message(CLUSTER, &json!({"altStatName": "x"}));
    merge_typed(&mut cluster, &patch, Lists::Append).unwrap();
    assert_eq!(
        (cluster.name.as_str(), cluster.alt_stat_name.as_str()),
        ("a", "x")
    );
    let patch = message(VIRTUAL_HOST, &json!({}));
    assert!(merge_typed(&mut cluster, &patch, Lists::Append).is_err());
}

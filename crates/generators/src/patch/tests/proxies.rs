//! Preparation (§3), conditions on proxies, extension configurations (§16).

use model::api::envoy_filter::Operation;

use super::*;
use crate::patch::ExtensionPatches;

#[track_caller]
fn check_version(expression: &str, version: &str, expected: bool) {
    let matching = json!({"proxy": {"proxyVersion": expression}});
    let prepared = prepared(&[patch("CLUSTER", &matching, "REMOVE", &Value::Null)]);
    let suits = prepared.patches[0].suits(&proxy(version, json!({})));
    assert_eq!(suits, expected, "{expression:?} of {version:?}");
}

#[test]
fn versions_are_searched_in_not_matched_as_a_whole() {
    check_version("", "1.20.0", true);
    check_version("", "", true);
    check_version(r"^1\.19.*", "1.19.3", true);
    check_version(r"^1\.19.*", "1.20.0", false);
    check_version(r"1\.19.*", "11.19", true);
    check_version(r"1\.19.*", "foo1.19", true);
    check_version(r"^1\.19.*", "", false);
    check_version(".*", "", false);
}

#[test]
fn bad_versions_match_all_and_long_ones_none() {
    check_version("(", "1.20.0", true);
    check_version("(", "", true);
    check_version(&"1".repeat(1024), "1.20.0", false);
    check_version(&"(".repeat(1025), "1.20.0", false);
    check_version(&".".repeat(1025), "", false);
}

#[test]
fn metadata_is_compared_as_text_that_is_text() {
    let matching = json!({"proxy": {"metadata": {"A": "1", "B": "x"}}});
    let prepared = prepared(&[patch("CLUSTER", &matching, "REMOVE", &Value::Null)]);
    let check = |metadata: Value, expected: bool| {
        let suits = prepared.patches[0].suits(&proxy("", metadata.clone()));
        assert_eq!(suits, expected, "{metadata}");
    };
    check(json!({"A": "1", "B": "x"}), true);
    check(json!({"A": "1"}), false);
    check(json!({"A": 1, "B": "x"}), false);
    check(json!({"A": true, "B": "x"}), false);
    check(json!({"A": {"1": "1"}, "B": "x"}), false);
    assert_eq!(
        prepared.metadata_keys,
        ["A".to_owned(), "B".to_owned()].into()
    );
}

#[test]
fn a_patch_that_cannot_be_read_goes_alone() {
    let unknown =
        json!({"name": "a", "typed_config": {"@type": "type.googleapis.com/no.such.Type"}});
    let patches = [
        patch("CLUSTER", &json!({}), "ADD", &json!({"name": "a"})),
        patch("CLUSTER", &json!({}), "ADD", &json!({"name": 1})),
        json!({"applyTo": "CLUSTER"}),
        patch("HTTP_FILTER", &json!({}), "ADD", &unknown),
        json!({"applyTo": "CLUSTER", "patch": {
            "operation": "ADD", "filterClass": "AUTHZ", "value": {"name": "e", "noSuchField": 1}}}),
    ];
    let prepared = prepared(&patches);
    assert_eq!(ids(prepared.patches), [0, 4]);
    let failed: Vec<_> = prepared.failures.iter().map(|(id, _)| id.index).collect();
    assert_eq!(failed, [1, 3]);
    assert!(
        prepared.failures[1].1.contains("no.such.Type"),
        "{:?}",
        prepared.failures
    );
}

#[test]
fn inserting_is_adding_where_there_is_no_order() {
    let ordered = [
        "HTTP_FILTER",
        "NETWORK_FILTER",
        "HTTP_ROUTE",
        "LISTENER_FILTER",
    ];
    for (_, text, apply_to) in ApplyTo::ALL {
        for operation in ["INSERT_BEFORE", "INSERT_AFTER", "INSERT_FIRST"] {
            let patches = [patch(text, &json!({}), operation, &json!({"name": "a"}))];
            let prepared = prepared(&patches);
            let Some(patch) = prepared.patches.first() else {
                // A bootstrap has no name, an unknown kind no message.
                assert!(matches!(apply_to, ApplyTo::Bootstrap | ApplyTo::Invalid));
                continue;
            };
            let stays = ordered.contains(text);
            assert_eq!(
                patch.operation != Operation::Add,
                stays,
                "{text} {operation}"
            );
        }
    }
}

#[test]
fn contexts_choose_passes_and_additions_come_once_for_each_proxy() {
    let check = |context: &str, modified: [bool; 3], added: [bool; 3]| {
        let value = json!({"name": "a"});
        let matching = json!({"context": context});
        let patches = prepared(&[patch("CLUSTER", &matching, "ADD", &value)]);
        let patch = &patches.patches[0];
        assert_eq!(
            Pass::ALL.map(|pass| patch.is_for(pass)),
            modified,
            "{context}"
        );
        assert_eq!(
            Pass::ALL.map(|pass| patch.adds_in(pass)),
            added,
            "{context}"
        );
    };
    // Inbound, outbound, gateway.
    check("ANY", [true, true, true], [false, true, true]);
    check(
        "SIDECAR_INBOUND",
        [true, false, false],
        [true, false, false],
    );
    check(
        "SIDECAR_OUTBOUND",
        [false, true, false],
        [false, true, false],
    );
    check("GATEWAY", [false, false, true], [false, false, true]);
    check("WAYPOINT", [false; 3], [false; 3]);
}

#[test]
fn extension_configurations_are_added_whatever_the_context() {
    let value = json!({"name": "a"});
    let at = |context: &str, operation: &str| {
        patch(
            "EXTENSION_CONFIG",
            &json!({"context": context}),
            operation,
            &value,
        )
    };
    let patches: ExtensionPatches = index(&[
        at("GATEWAY", "ADD"),
        at("WAYPOINT", "INSERT_FIRST"),
        at("ANY", "MERGE"),
        at("ANY", "REMOVE"),
        at("ANY", "REPLACE"),
        at("SIDECAR_INBOUND", "INSERT_BEFORE"),
    ]);
    assert_eq!(ids(patches.adding()), [0, 1, 5]);
}

#[test]
fn two_patches_of_one_content_are_two() {
    let one = patch("CLUSTER", &json!({}), "ADD", &json!({"name": "a"}));
    let prepared = prepared(&[one.clone(), one]);
    assert_ne!(
        prepared.patches[0].fingerprint,
        prepared.patches[1].fingerprint
    );
}

//! Clusters (§9).

#![expect(
    clippy::needless_pass_by_value,
    reason = "values are written where they are passed"
)]

use envoy_types::pb::envoy::config::cluster::v3::Cluster;

use super::*;
use crate::patch::{ClusterPatches, Reach};

const TLS: &str =
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext";
const RAW: &str = "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer";

type Reports = (Vec<usize>, Vec<usize>, Vec<usize>);

/// Patches a cluster; gives what is left and what was reported.
#[track_caller]
fn patched(patches: &[Value], cluster: &Value, hosts: &[&str], pass: Pass) -> (Value, Reports) {
    let index: ClusterPatches = index(patches);
    let hosts: Vec<Arc<str>> = hosts.iter().copied().map(Arc::from).collect();
    let run = run(pass);
    let cluster = read::<Cluster>(cluster);
    let reach = index.reach(&cluster.name, &hosts, pass);
    let result = index.apply(cluster, &hosts, &run);
    let outcomes = run.finish();
    assert!(
        reach != Reach::Nothing || outcomes.is_empty(),
        "what applies is among what may apply"
    );
    (
        result.map_or(Value::Null, |c| write(&c)),
        reported(&outcomes),
    )
}

/// Whether a match finds a cluster.
#[track_caller]
fn check_match(matching: Value, name: &str, hosts: &[&str], expected: bool) {
    let matching = json!({"cluster": matching});
    let patches = [patch("CLUSTER", &matching, "REMOVE", &Value::Null)];
    let (left, _) = patched(
        &patches,
        &json!({"name": name}),
        hosts,
        Pass::SidecarInbound,
    );
    assert_eq!(left.is_null(), expected, "{matching} on {name}");
}

#[test]
fn a_name_overrides_all_other_conditions() {
    check_match(
        json!({"name": "x", "service": "b", "portNumber": 1}),
        "x",
        &[],
        true,
    );
    check_match(json!({"name": "y"}), "x", &[], false);
    check_match(json!({}), "anything", &[], true);
}

#[test]
fn names_are_parsed_in_both_forms() {
    let a = "outbound|80|v1|a.ns";
    check_match(json!({"service": "a.ns"}), a, &[], true);
    check_match(json!({"service": "a"}), a, &[], false);
    check_match(json!({"service": "a.ns", "portNumber": 80}), a, &[], true);
    check_match(json!({"service": "a.ns", "portNumber": 81}), a, &[], false);
    check_match(json!({"subset": "v1"}), a, &[], true);
    check_match(json!({"subset": "v2", "portNumber": 80}), a, &[], false);
    check_match(
        json!({"portNumber": 80}),
        "outbound_.80_.v1_.a.ns",
        &[],
        true,
    );
    check_match(
        json!({"service": "a.ns"}),
        "outbound_.80_.v1_.a.ns",
        &[],
        true,
    );
    check_match(
        json!({"service": "BlackHoleCluster"}),
        "BlackHoleCluster",
        &[],
        false,
    );
    check_match(json!({"portNumber": 80}), "outbound|http||a.ns", &[], false);
}

#[test]
fn inbound_clusters_are_found_by_the_services_behind_them() {
    let name = "inbound|8080||";
    check_match(json!({"service": "a.ns"}), name, &["b.ns", "a.ns"], true);
    check_match(json!({"service": "c.ns"}), name, &["b.ns", "a.ns"], false);
    check_match(json!({"service": "a.ns"}), name, &[], false);
    check_match(
        json!({"service": "a.ns", "portNumber": 8080}),
        name,
        &["a.ns"],
        true,
    );
    check_match(
        json!({"service": "a.ns", "portNumber": 80}),
        name,
        &["a.ns"],
        false,
    );
    // Elsewhere they do not count.
    check_match(
        json!({"service": "b.ns"}),
        "outbound|80||a.ns",
        &["b.ns"],
        false,
    );
    check_match(
        json!({"service": "a.ns"}),
        "outbound|80||a.ns",
        &["b.ns"],
        true,
    );
}

/// Applies operations to `outbound|80||a` in order.
#[track_caller]
fn check(
    patches: &[(&str, Value, Value)],
    cluster: Value,
    expected: &Value,
    reports: (&[usize], &[usize], &[usize]),
) {
    let patches: Vec<Value> = patches
        .iter()
        .map(|(operation, matching, value)| patch("CLUSTER", matching, operation, value))
        .collect();
    let (left, reported) = patched(&patches, &cluster, &[], Pass::SidecarOutbound);
    assert_eq!(&left, expected);
    let reports = (reports.0.to_vec(), reports.1.to_vec(), reports.2.to_vec());
    assert_eq!(reported, reports);
}

#[test]
fn merging_follows_the_order_and_the_current_name() {
    check(
        &[
            (
                "MERGE",
                json!({"cluster": {"service": "a"}}),
                json!({"name": "outbound|81||a"}),
            ),
            (
                "MERGE",
                json!({"cluster": {"portNumber": 80}}),
                json!({"connect_timeout": "1s"}),
            ),
            (
                "MERGE",
                json!({"cluster": {"portNumber": 81}}),
                json!({"connect_timeout": "500ms"}),
            ),
            (
                "MERGE",
                json!({"context": "GATEWAY"}),
                json!({"connect_timeout": "9s"}),
            ),
        ],
        json!({"name": "outbound|80||a", "connectTimeout": "10s"}),
        &json!({"name": "outbound|81||a", "connectTimeout": "0.500s"}),
        (&[0, 2], &[], &[]),
    );
}

#[test]
fn lists_are_appended_or_replaced() {
    let value = json!({"health_checks": [{"timeout": "1s"}]});
    let cluster = json!({"name": "c", "healthChecks": [{"interval": "5s"}]});
    check(
        &[("MERGE", json!({}), value.clone())],
        cluster.clone(),
        &json!({"name": "c", "healthChecks": [{"interval": "5s"}, {"timeout": "1s"}]}),
        (&[0], &[], &[]),
    );
    check(
        &[("MERGE_AND_REPLACE_LIST", json!({}), value)],
        cluster,
        &json!({"name": "c", "healthChecks": [{"timeout": "1s"}]}),
        (&[0], &[], &[]),
    );
}

#[test]
fn removal_ends_it_and_the_rest_does_nothing() {
    check(
        &[
            ("REPLACE", json!({}), json!({"name": "d"})),
            ("ADD", json!({}), json!({"name": "e"})),
            ("MERGE", json!({}), Value::Null),
            ("REMOVE", json!({}), Value::Null),
            ("MERGE", json!({}), json!({"connect_timeout": "1s"})),
        ],
        json!({"name": "c"}),
        &Value::Null,
        (&[3], &[2], &[0]),
    );
}

fn socket(name: &str, kind: &str, sni: &str) -> Value {
    let mut config = json!({"@type": kind});
    if !sni.is_empty() {
        config["sni"] = sni.into();
    }
    json!({"name": name, "typedConfig": config})
}

#[test]
fn a_transport_socket_swallows_the_rest_of_its_patch() {
    let tls = |sni: &str| socket("tls", TLS, sni);
    let merge = |socket: Value| {
        let value = json!({"transport_socket": socket, "connect_timeout": "3s"});
        [("MERGE", json!({}), value)]
    };
    let of = |socket: Value| json!({"name": "c", "transportSocket": socket});
    // The same name: merged.
    check(
        &merge(tls("b")),
        of(tls("a")),
        &of(tls("b")),
        (&[0], &[], &[]),
    );
    // Another name, or none: replaced.
    let raw = socket("raw", RAW, "");
    check(&merge(tls("b")), of(raw), &of(tls("b")), (&[0], &[], &[]));
    check(
        &merge(tls("b")),
        json!({"name": "c"}),
        &of(tls("b")),
        (&[0], &[], &[]),
    );
    // The same name and another type: nothing.
    check(
        &merge(socket("tls", RAW, "")),
        of(tls("a")),
        &of(tls("a")),
        (&[], &[0], &[]),
    );
    // Matches: the first of that name, or nothing.
    let matches = |first: Value| {
        json!({"name": "c", "transportSocketMatches": [
            {"name": "m0", "transportSocket": socket("raw", RAW, "")},
            {"name": "m1", "transportSocket": first},
            {"name": "m2", "transportSocket": tls("z")}]})
    };
    check(
        &merge(tls("b")),
        matches(tls("a")),
        &matches(tls("b")),
        (&[0], &[], &[]),
    );
    check(
        &merge(socket("other", TLS, "b")),
        matches(tls("a")),
        &matches(tls("a")),
        (&[], &[], &[0]),
    );
}

#[test]
fn what_changes_names_makes_every_patch_count() {
    let patches = |second: &str| {
        index::<ClusterPatches>(&[
            patch(
                "CLUSTER",
                &json!({"cluster": {"name": "a"}}),
                "MERGE",
                &json!({"name": "b"}),
            ),
            patch(
                "CLUSTER",
                &json!({"cluster": {"name": second}}),
                "MERGE",
                &json!({"alt_stat_name": "x"}),
            ),
        ])
    };
    assert_eq!(patches("b").reach("a", &[], Pass::Gateway), Reach::All);
    let other = patches("b").reach("b", &[], Pass::Gateway);
    assert!(matches!(other, Reach::Some(_)), "{other:?}");
    assert_eq!(patches("b").reach("c", &[], Pass::Gateway), Reach::Nothing);
}

//! Route configurations, virtual hosts and routes (§15).

#![expect(
    clippy::needless_pass_by_value,
    reason = "values are written where they are passed"
)]

use std::collections::{BTreeMap, BTreeSet};

use envoy_types::pb::envoy::config::route::v3::RouteConfiguration;

use super::*;
use crate::patch::{Reach, RouteNames, RoutePatches};

type Reports = (Vec<usize>, Vec<usize>, Vec<usize>);

#[track_caller]
fn patched_as(
    names: &RouteNames,
    pass: Pass,
    patches: &[Value],
    routes: &Value,
) -> (Value, Reports) {
    let index: RoutePatches = index(patches);
    let run = run(pass);
    let mut routes: RouteConfiguration = read(routes);
    let reach = index.reach(names, pass);
    index.apply(&mut routes, names, &run);
    let outcomes = run.finish();
    assert!(
        reach != Reach::Nothing || outcomes.is_empty(),
        "what applies is among what may apply"
    );
    (write(&routes), reported(&outcomes))
}

fn patched(patches: &[Value], routes: &Value) -> (Value, Reports) {
    let name = routes["name"].as_str().unwrap_or_default();
    patched_as(
        &RouteNames::of_sidecar(name),
        Pass::SidecarOutbound,
        patches,
        routes,
    )
}

fn of(matching: Value) -> Value {
    json!({"routeConfiguration": matching})
}

#[track_caller]
fn check_match(names: &RouteNames, pass: Pass, name: &str, matching: Value, expected: bool) {
    let value = json!({"request_headers_to_remove": ["x"]});
    let patches = [patch(
        "ROUTE_CONFIGURATION",
        &of(matching.clone()),
        "MERGE",
        &value,
    )];
    let (_, (applied, ..)) = patched_as(names, pass, &patches, &json!({"name": name}));
    assert_eq!(!applied.is_empty(), expected, "{matching} on {name}");
}

#[test]
fn a_sidecars_ports_are_those_of_names() {
    let check = |name: &str, matching: Value, expected: bool| {
        let names = RouteNames::of_sidecar(name);
        check_match(&names, Pass::SidecarOutbound, name, matching, expected);
    };
    check("80", json!({}), true);
    check("80", json!({"name": "80"}), true);
    check("80", json!({"name": "81"}), false);
    check(
        "80",
        json!({"portNumber": 80, "portName": "ignored", "gateway": "ignored"}),
        true,
    );
    check("80", json!({"portNumber": 81}), false);
    check("inbound|8080||", json!({"portNumber": 8080}), true);
    check("a.ns:8080", json!({"portNumber": 8080}), false);
    check("http_proxy", json!({"portNumber": 80}), false);
}

#[test]
fn a_gateways_ports_are_those_of_servers() {
    let servers = Arc::new(BTreeMap::from([(8080, BTreeSet::from([80, 90]))]));
    let check = |name: &str, matching: Value, expected: bool| {
        let names = RouteNames::of_gateway(name, servers.clone());
        check_match(&names, Pass::Gateway, name, matching, expected);
    };
    // E9.
    check("http.8080", json!({"portNumber": 80}), true);
    check("http.8080", json!({"portNumber": 90}), true);
    check("http.8080", json!({"portNumber": 8080}), false);
    check("http.8081", json!({"portNumber": 8081}), true);
    let https = "https.443.main.gw.ns";
    check(
        https,
        json!({"portNumber": 443, "portName": "main", "gateway": "ns/gw"}),
        true,
    );
    check(https, json!({"portName": "other"}), false);
    check(https, json!({"gateway": "ns/other"}), false);
    check(https, json!({"gateway": "gw"}), false);
    check("http.8081", json!({"gateway": "ns/gw"}), false);
    check("something.else", json!({"portNumber": 1}), false);
    check("something.else", json!({"name": "something.else"}), true);
}

#[test]
fn a_new_name_decides_about_the_patches_that_follow() {
    let merge = |matching: Value, value: Value| {
        patch("ROUTE_CONFIGURATION", &of(matching), "MERGE", &value)
    };
    let patches = [
        merge(json!({"portNumber": 80}), json!({"name": "81"})),
        merge(
            json!({"portNumber": 80}),
            json!({"request_headers_to_remove": ["x"]}),
        ),
        merge(
            json!({"portNumber": 81}),
            json!({"request_headers_to_remove": ["y"]}),
        ),
        patch(
            "ROUTE_CONFIGURATION",
            &of(json!({})),
            "REMOVE",
            &Value::Null,
        ),
        patch(
            "ROUTE_CONFIGURATION",
            &of(json!({})),
            "ADD",
            &json!({"name": "z"}),
        ),
    ];
    let (left, reports) = patched(&patches, &json!({"name": "80"}));
    assert_eq!(left, json!({"name": "81", "requestHeadersToRemove": ["y"]}));
    assert_eq!(reports, (vec![0, 2], vec![], vec![3, 4]));
}

fn host(name: &str, domains: &[&str], routes: &[Value]) -> Value {
    let mut host = json!({"name": name, "domains": domains});
    if !routes.is_empty() {
        host["routes"] = routes.into();
    }
    host
}

fn configuration(hosts: &[Value]) -> Value {
    json!({"name": "80", "virtualHosts": hosts})
}

#[test]
fn virtual_hosts_are_found_by_name_and_domain() {
    let check = |wanted: Value, expected: bool| {
        let matching = of(json!({"vhost": wanted}));
        let patches = [patch("VIRTUAL_HOST", &matching, "REMOVE", &Value::Null)];
        let (left, _) = patched(&patches, &configuration(&[host("v", &["a", "*.b"], &[])]));
        assert_eq!(left["virtualHosts"].is_null(), expected, "{wanted}");
    };
    check(json!({}), true);
    check(json!({"name": "v"}), true);
    check(json!({"name": "w"}), false);
    check(json!({"domainName": "a"}), true);
    check(json!({"domainName": "x.b"}), false);
    check(json!({"domainName": "*.b"}), true);
    check(json!({"name": "v", "domainName": "c"}), false);
}

#[test]
fn virtual_hosts_are_changed_in_order() {
    let at = |name: &str, operation: &str, value: Value| {
        patch(
            "VIRTUAL_HOST",
            &of(json!({"vhost": {"name": name}})),
            operation,
            &value,
        )
    };
    // E7, and what replaces one is what later patches see.
    let (left, reports) = patched(
        &[
            at("v", "MERGE", json!({"domains": ["b"]})),
            at("w", "MERGE_AND_REPLACE_LIST", json!({"domains": ["b"]})),
            at("x", "REPLACE", json!({"name": "y", "domains": ["y"]})),
            at("x", "MERGE", json!({"domains": ["never"]})),
            at("y", "MERGE", json!({"domains": ["z"]})),
            at("v", "REPLACE", Value::Null),
        ],
        &configuration(&[
            host("v", &["a"], &[]),
            host("w", &["a"], &[]),
            host("x", &["x"], &[]),
        ]),
    );
    let expected = [
        host("v", &["a", "b"], &[]),
        host("w", &["b"], &[]),
        host("y", &["y", "z"], &[]),
    ];
    assert_eq!(left["virtualHosts"], json!(expected));
    assert_eq!(reports, (vec![0, 1, 2, 4], vec![5], vec![]));
}

#[test]
fn removal_is_by_name_and_after_additions() {
    // E6.
    let remove = of(json!({"vhost": {"domainName": "a"}}));
    let patches = [
        patch("VIRTUAL_HOST", &remove, "REMOVE", &Value::Null),
        patch(
            "VIRTUAL_HOST",
            &of(json!({"vhost": {"name": "ignored"}})),
            "ADD",
            &host("v", &["n"], &[]),
        ),
        patch(
            "VIRTUAL_HOST",
            &of(json!({})),
            "INSERT_FIRST",
            &host("n", &["m"], &[]),
        ),
        patch(
            "VIRTUAL_HOST",
            &of(json!({"vhost": {"name": "n"}})),
            "MERGE",
            &json!({"domains": ["never"]}),
        ),
        patch(
            "HTTP_ROUTE",
            &of(json!({"vhost": {"name": "n"}})),
            "ADD",
            &json!({"name": "never"}),
        ),
        patch(
            "VIRTUAL_HOST",
            &of(json!({"portNumber": 81})),
            "ADD",
            &host("other", &["o"], &[]),
        ),
    ];
    let hosts = [
        host("v", &["a"], &[]),
        host("v", &["b"], &[]),
        host("w", &["c"], &[]),
    ];
    let (left, _) = patched(&patches, &configuration(&hosts));
    assert_eq!(
        left["virtualHosts"],
        json!([host("w", &["c"], &[]), host("n", &["m"], &[])])
    );
}

/// Routes `f`, `r`, `d`, `n`, that forward, redirect, answer, and do nothing.
fn routes() -> Vec<Value> {
    vec![
        json!({"name": "f", "route": {"cluster": "c"}}),
        json!({"name": "r", "redirect": {}}),
        json!({"name": "d", "directResponse": {"status": 200}}),
        json!({"name": "n", "nonForwardingAction": {}}),
    ]
}

/// The names of the routes that an operation leaves.
fn after(wanted: Option<Value>, operation: &str) -> (String, Reports) {
    let vhost = wanted.map_or(json!({}), |route| json!({"route": route}));
    let value = match operation {
        "REMOVE" => Value::Null,
        "MERGE" | "MERGE_AND_REPLACE_LIST" => json!({"name": "m"}),
        _ => json!({"name": "x"}),
    };
    let patches = [patch(
        "HTTP_ROUTE",
        &of(json!({"vhost": vhost})),
        operation,
        &value,
    )];
    let (left, reports) = patched(&patches, &configuration(&[host("v", &["a"], &routes())]));
    let routes = left["virtualHosts"][0]["routes"].as_array().cloned();
    let names = routes.into_iter().flatten();
    let names: Vec<String> = names
        .map(|r| r["name"].as_str().unwrap().to_owned())
        .collect();
    (names.join(" "), reports)
}

#[test]
fn routes_find_their_places() {
    let check = |operation: &str, expected: [&str; 3]| {
        let wanted = [
            None,
            Some(json!({"name": "r"})),
            Some(json!({"name": "absent"})),
        ];
        for (wanted, expected) in wanted.into_iter().zip(expected) {
            let (left, (applied, failed, _)) = after(wanted.clone(), operation);
            assert_eq!(left, expected, "{operation} {wanted:?}");
            assert_eq!(
                applied.is_empty(),
                expected == "f r d n",
                "{operation} {wanted:?}"
            );
            assert!(failed.is_empty());
        }
    };
    check("ADD", ["f r d n x", "f r d n x", "f r d n x"]);
    check("INSERT_AFTER", ["f r d n x", "f r x d n", "f r d n"]);
    check("INSERT_BEFORE", ["x f r d n", "f x r d n", "f r d n"]);
    check("INSERT_FIRST", ["x f r d n", "x f r d n", "f r d n"]);
    check("REPLACE", ["f r d n", "f r d n", "f r d n"]);
    check("REMOVE", ["", "f d n", "f r d n"]);
    check("MERGE", ["m m m m", "f m d n", "f r d n"]);
    check("MERGE_AND_REPLACE_LIST", ["m m m m", "f m d n", "f r d n"]);
}

#[test]
fn routes_are_found_by_action_and_others_match_any() {
    let check = |action: &str, expected: &str| {
        let (left, _) = after(Some(json!({"action": action})), "REMOVE");
        assert_eq!(left, expected, "{action}");
    };
    check("ANY", "");
    check("ROUTE", "r d");
    check("REDIRECT", "f d");
    check("DIRECT_RESPONSE", "f r");
}

#[test]
fn removed_routes_keep_their_place_until_the_end() {
    let at = |name: &str, operation: &str, value: Value| {
        let matching = of(json!({"vhost": {"route": {"name": name}}}));
        patch("HTTP_ROUTE", &matching, operation, &value)
    };
    let patches = [
        at("r", "REMOVE", Value::Null),
        at("r", "MERGE", json!({"name": "never"})),
        at("r", "INSERT_BEFORE", json!({"name": "never"})),
        at("d", "MERGE", json!({"name": "e"})),
        at("d", "INSERT_BEFORE", json!({"name": "never"})),
        at("e", "INSERT_BEFORE", json!({"name": "x"})),
    ];
    let (left, reports) = patched(&patches, &configuration(&[host("v", &["a"], &routes())]));
    let routes = left["virtualHosts"][0]["routes"].as_array().unwrap();
    let names: Vec<_> = routes.iter().map(|r| r["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["f", "x", "e", "n"]);
    assert_eq!(reports, (vec![0, 3, 5], vec![], vec![2, 4]));
}

#[test]
fn patches_for_other_configurations_do_not_reach() {
    let reach = |matching: Value| {
        let patches = [patch("VIRTUAL_HOST", &of(matching), "REMOVE", &Value::Null)];
        let index: RoutePatches = index(&patches);
        let reach = |name: &str| {
            index.reach(&RouteNames::of_sidecar(name), Pass::SidecarOutbound) != Reach::Nothing
        };
        [reach("80"), reach("81")]
    };
    assert_eq!(reach(json!({"name": "80"})), [true, false]);
    assert_eq!(reach(json!({"portNumber": 81})), [false, true]);
    assert_eq!(reach(json!({"vhost": {"name": "v"}})), [true, true]);
    assert_eq!(
        reach(json!({"name": "80", "portNumber": 81})),
        [false, false]
    );
}

//! Listeners, their filters and chains (§10 to §14).

#![expect(
    clippy::needless_pass_by_value,
    reason = "values are written where they are passed"
)]

use envoy_types::pb::envoy::config::listener::v3::Listener;

use super::*;
use crate::patch::ListenerPatches;

const ECHO: &str = "type.googleapis.com/envoy.extensions.filters.network.echo.v3.Echo";
const TCP: &str = "type.googleapis.com/envoy.extensions.filters.network.tcp_proxy.v3.TcpProxy";
const MANAGER: &str = "type.googleapis.com/envoy.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager";
const FAULT: &str = "type.googleapis.com/envoy.extensions.filters.http.fault.v3.HTTPFault";
const INSPECTOR: &str =
    "type.googleapis.com/envoy.extensions.filters.listener.tls_inspector.v3.TlsInspector";
const TLS: &str =
    "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.DownstreamTlsContext";
const HTTP_MANAGER: &str = "envoy.filters.network.http_connection_manager";

type Reports = (Vec<usize>, Vec<usize>, Vec<usize>);

#[track_caller]
fn patched_in(pass: Pass, patches: &[Value], listener: &Value) -> (Value, Reports) {
    let index: ListenerPatches = index(patches);
    let run = run(pass);
    let listener: Listener = read(listener);
    let concerned = index.concerns(&listener, pass);
    let result = index.apply(listener, &run);
    let outcomes = run.finish();
    assert!(
        concerned || outcomes.is_empty(),
        "what applies is among what may apply"
    );
    (
        result.map_or(Value::Null, |l| write(&l)),
        reported(&outcomes),
    )
}

fn patched(patches: &[Value], listener: &Value) -> (Value, Reports) {
    patched_in(Pass::SidecarOutbound, patches, listener)
}

fn address(port: u32) -> Value {
    json!({"socketAddress": {"address": "0.0.0.0", "portValue": port}})
}

fn filter(name: &str, kind: &str) -> Value {
    json!({"name": name, "typedConfig": {"@type": kind}})
}

fn chain(name: &str, filters: &[Value]) -> Value {
    json!({"name": name, "filters": filters})
}

/// A listener `name` on a port with one chain for a destination port.
fn listener(name: &str, port: u32, destination: u32) -> Value {
    json!({
        "name": name,
        "address": address(port),
        "filterChains": [{
            "name": "c",
            "filterChainMatch": {
                "destinationPort": destination,
                "serverNames": ["a.example", "*.b.example"],
                "transportProtocol": "tls",
                "applicationProtocols": ["istio", "h2"],
            },
            "filters": [filter("echo", ECHO)],
        }],
    })
}

/// Whether a removal of `apply_to` finds the listener, or its chain.
#[track_caller]
fn check_match(apply_to: &str, matching: Value, listener: &Value, expected: bool) {
    let matching = json!({"listener": matching});
    let patches = [patch(apply_to, &matching, "REMOVE", &Value::Null)];
    let (_, (applied, ..)) = patched(&patches, listener);
    assert_eq!(!applied.is_empty(), expected, "{apply_to} {matching}");
}

#[test]
fn listeners_are_found_by_name_and_bound_port() {
    let own = listener("l", 80, 0);
    check_match("LISTENER", json!({}), &own, true);
    check_match("LISTENER", json!({"name": "l"}), &own, true);
    check_match("LISTENER", json!({"name": "m"}), &own, false);
    check_match(
        "LISTENER",
        json!({"portNumber": 80, "portName": "ignored"}),
        &own,
        true,
    );
    check_match("LISTENER", json!({"portNumber": 81}), &own, false);
    check_match(
        "LISTENER",
        json!({"name": "l", "portNumber": 81}),
        &own,
        false,
    );
    let inbound = listener("virtualInbound", 15006, 9080);
    check_match("LISTENER", json!({"portNumber": 15006}), &inbound, true);
    check_match("LISTENER", json!({"portNumber": 9080}), &inbound, false);
    let internal = json!({"name": "main_internal", "internalListener": {}});
    check_match(
        "LISTENER",
        json!({"name": "main_internal"}),
        &internal,
        true,
    );
    check_match("LISTENER", json!({"portNumber": 80}), &internal, false);
}

#[test]
fn on_virtual_listeners_ports_are_those_of_chains() {
    let inbound = listener("virtualInbound", 15006, 9080);
    check_match("FILTER_CHAIN", json!({"portNumber": 9080}), &inbound, true);
    check_match(
        "FILTER_CHAIN",
        json!({"portNumber": 15006}),
        &inbound,
        false,
    );
    check_match(
        "FILTER_CHAIN",
        json!({"name": "virtualInbound", "portNumber": 9080}),
        &inbound,
        true,
    );
    let own = listener("l", 80, 9080);
    check_match("FILTER_CHAIN", json!({"portNumber": 9080}), &own, false);
    check_match("FILTER_CHAIN", json!({"portNumber": 80}), &own, true);
}

#[test]
fn chains_are_found_by_what_they_match() {
    let own = listener("l", 80, 9080);
    let check = |chain: Value, expected: bool| {
        check_match(
            "FILTER_CHAIN",
            json!({"filterChain": chain}),
            &own,
            expected,
        );
    };
    check(json!({}), true);
    check(json!({"name": "c", "transportSocket": "ignored"}), true);
    check(json!({"name": "d"}), false);
    check(json!({"sni": "a.example"}), true);
    check(json!({"sni": "x.b.example"}), false);
    check(json!({"sni": "*.b.example"}), true);
    check(json!({"transportProtocol": "tls"}), true);
    check(json!({"transportProtocol": "raw_buffer"}), false);
    check(json!({"applicationProtocols": "h2"}), true);
    check(json!({"applicationProtocols": "h2,istio"}), true);
    check(json!({"applicationProtocols": "h2, istio"}), false);
    check(json!({"applicationProtocols": "h2,http/1.1"}), false);
    check(json!({"destinationPort": 9080}), true);
    check(json!({"destinationPort": 9081}), false);
    check(json!({"sni": "a.example", "destinationPort": 9081}), false);
    let bare = json!({"name": "l", "filterChains": [chain("", &[filter("echo", ECHO)])]});
    for wanted in [
        json!({"sni": "a"}),
        json!({"transportProtocol": "tls"}),
        json!({"applicationProtocols": "h2"}),
        json!({"destinationPort": 1}),
    ] {
        check_match("FILTER_CHAIN", json!({"filterChain": wanted}), &bare, false);
    }
}

#[test]
fn a_listener_is_merged_renamed_and_removed() {
    let merge = |matching: Value, value: Value| {
        patch("LISTENER", &json!({"listener": matching}), "MERGE", &value)
    };
    let patches = [
        patch("LISTENER", &json!({}), "REPLACE", &json!({"name": "never"})),
        merge(json!({"name": "l"}), json!({"name": "m"})),
        merge(json!({"name": "l"}), json!({"tcp_backlog_size": 1})),
        merge(json!({"name": "m"}), json!({"tcp_backlog_size": 2})),
        merge(json!({"name": "m"}), Value::Null),
    ];
    let (left, reports) = patched(&patches, &json!({"name": "l"}));
    assert_eq!(left, json!({"name": "m", "tcpBacklogSize": 2}));
    assert_eq!(reports, (vec![1, 3], vec![4], vec![0]));
    let index: ListenerPatches = index(&[
        patch("LISTENER", &json!({}), "ADD", &json!({"name": "a"})),
        patch(
            "LISTENER",
            &json!({"listener": {"name": "l"}}),
            "INSERT_FIRST",
            &json!({"name": "b"}),
        ),
        patch(
            "LISTENER",
            &json!({"context": "GATEWAY"}),
            "ADD",
            &json!({"name": "c"}),
        ),
    ]);
    assert_eq!(ids(index.adding(Pass::SidecarInbound)), Vec::<usize>::new());
    assert_eq!(ids(index.adding(Pass::SidecarOutbound)), [0, 1]);
    assert_eq!(ids(index.adding(Pass::Gateway)), [0, 1, 2]);
}

#[test]
fn chains_without_filters_go_and_emptied_ones_stay() {
    let mut listener = json!({
        "name": "l",
        "filterChains": [chain("bare", &[]), chain("full", &[filter("echo", ECHO)])],
        "defaultFilterChain": {"name": "default"},
    });
    let remove = |name: &str| {
        let matching = json!({"listener": {"filterChain": {"filter": {"name": name}}}});
        patch("NETWORK_FILTER", &matching, "REMOVE", &Value::Null)
    };
    let (left, _) = patched(&[remove("echo")], &listener);
    let names = |left: &Value| -> Vec<String> {
        let chains = left["filterChains"].as_array().unwrap();
        chains.iter().map(|c| c["name"].to_string()).collect()
    };
    assert_eq!(names(&left), ["\"full\""]);
    assert_eq!(left["defaultFilterChain"]["name"], "default");
    // Also when no patch does anything.
    let (left, reports) = patched(&[], &listener);
    assert_eq!(
        (names(&left), reports.0),
        (vec!["\"full\"".to_owned()], vec![])
    );
    listener["defaultFilterChain"] = chain("default", &[filter("echo", ECHO)]);
    let matching = json!({"listener": {"filterChain": {"name": "default"}}});
    let (left, _) = patched(
        &[patch("FILTER_CHAIN", &matching, "REMOVE", &Value::Null)],
        &listener,
    );
    assert_eq!(left["defaultFilterChain"], Value::Null);
}

/// Applies operations on named filters to a list `a, b, a`, without and with the name `b`.
#[track_caller]
fn check_list(
    apply_to: &str,
    operation: &str,
    anchored: impl Fn(Option<&str>) -> Value,
    around: impl Fn(&[Value]) -> Value,
    kind: &str,
    read_names: impl Fn(&Value) -> Vec<String>,
    expected: [&str; 3],
) {
    let anchors = [None, Some("a"), Some("absent")];
    for (anchor, expected) in anchors.into_iter().zip(expected) {
        let filters = ["a", "b", "a"].map(|name| filter(name, kind));
        let value = filter("n", kind);
        let value = if operation == "REMOVE" {
            Value::Null
        } else {
            value
        };
        let patches = [patch(apply_to, &anchored(anchor), operation, &value)];
        let (left, (applied, failed, missed)) = patched(&patches, &around(&filters));
        let names = read_names(&left).join(" ");
        assert_eq!(names, expected, "{apply_to} {operation} {anchor:?}");
        let changed = expected != "a b a";
        assert_eq!(
            !applied.is_empty(),
            changed,
            "{apply_to} {operation} {anchor:?}"
        );
        assert!(failed.is_empty() && missed.is_empty() == changed);
    }
}

/// Without an anchor, with that of two filters, with that of none.
const POSITIONS: [(&str, [&str; 3]); 6] = [
    ("ADD", ["a b a n", "a b a n", "a b a n"]),
    ("INSERT_FIRST", ["n a b a", "n a b a", "n a b a"]),
    ("INSERT_AFTER", ["a b a n", "a n b a", "a b a"]),
    ("INSERT_BEFORE", ["n a b a", "n a b a", "a b a"]),
    ("REPLACE", ["a b a", "n b a", "a b a"]),
    ("REMOVE", ["a b a", "b", "a b a"]),
];

fn names(list: &Value) -> Vec<String> {
    let list = list.as_array().into_iter().flatten();
    list.map(|f| f["name"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn listener_filters_find_their_places() {
    for (operation, expected) in POSITIONS {
        check_list(
            "LISTENER_FILTER",
            operation,
            |anchor| json!({"listener": {"listenerFilter": anchor.unwrap_or_default()}}),
            |filters| json!({"name": "l", "listenerFilters": filters}),
            INSPECTOR,
            |left| names(&left["listenerFilters"]),
            expected,
        );
    }
}

#[test]
fn network_filters_find_their_places() {
    for (operation, expected) in POSITIONS {
        check_list(
            "NETWORK_FILTER",
            operation,
            |anchor| match anchor {
                Some(name) => json!({"listener": {"filterChain": {"filter": {"name": name}}}}),
                None => json!({"listener": {"filterChain": {}}}),
            },
            |filters| json!({"name": "l", "filterChains": [chain("c", filters)]}),
            ECHO,
            |left| names(&left["filterChains"][0]["filters"]),
            expected,
        );
    }
}

fn manager(filters: &[Value]) -> Value {
    json!({"name": "l", "filterChains": [chain("c", &[json!({
        "name": HTTP_MANAGER, "typedConfig": {"@type": MANAGER, "httpFilters": filters}})])]})
}

fn http_filters(left: &Value) -> &Value {
    &left["filterChains"][0]["filters"][0]["typedConfig"]["httpFilters"]
}

fn sub(name: Option<&str>) -> Value {
    let mut filter = json!({"name": HTTP_MANAGER});
    if let Some(name) = name {
        filter["subFilter"] = json!({"name": name});
    }
    json!({"listener": {"filterChain": {"filter": filter}}})
}

#[test]
fn http_filters_find_their_places() {
    for (operation, expected) in POSITIONS {
        check_list(
            "HTTP_FILTER",
            operation,
            sub,
            manager,
            FAULT,
            |left| names(http_filters(left)),
            expected,
        );
    }
}

#[test]
fn http_filters_are_not_found_by_an_old_name_or_in_other_filters() {
    let insert = |name: &str| {
        let matching = json!({"listener": {"filterChain": {"filter": {"name": name}}}});
        [patch("HTTP_FILTER", &matching, "ADD", &filter("n", FAULT))]
    };
    let listener = manager(&[filter("a", FAULT)]);
    for (name, expected) in [
        ("envoy.http_connection_manager", "a"),
        (HTTP_MANAGER, "a n"),
        ("", "a n"),
    ] {
        let (left, _) = patched(&insert(name), &listener);
        assert_eq!(names(http_filters(&left)).join(" "), expected, "{name}");
    }
    let mut other = listener;
    other["filterChains"][0]["filters"][0]["name"] = "mine".into();
    let (left, _) = patched(&insert(""), &other);
    assert_eq!(left, other);
}

#[test]
fn what_changes_lists_comes_before_what_merges() {
    // E5.
    let rename = json!({"name": "g0"});
    let nodes =
        json!({"name": "fault", "typed_config": {"@type": FAULT, "downstream_nodes": ["foo"]}});
    let patches = |first: Value| {
        [
            patch("HTTP_FILTER", &sub(Some("fault")), "MERGE", &nodes),
            patch("HTTP_FILTER", &sub(None), "INSERT_FIRST", &first),
            patch("HTTP_FILTER", &sub(Some("f2")), "REMOVE", &Value::Null),
            patch("HTTP_FILTER", &sub(Some("f0")), "MERGE", &rename),
        ]
    };
    let listener = manager(&[filter("fault", FAULT), filter("f2", FAULT)]);
    let (left, _) = patched(&patches(filter("f0", FAULT)), &listener);
    assert_eq!(names(http_filters(&left)), ["g0", "fault"]);
    let nodes = &http_filters(&left)[1]["typedConfig"]["downstreamNodes"];
    assert_eq!(*nodes, json!(["foo"]));
    // Without a configuration of its own it keeps its name.
    let discovered = json!({"name": "f0", "configDiscovery": {"typeUrls": [FAULT]}});
    let (left, reports) = patched(&patches(discovered), &listener);
    assert_eq!(names(http_filters(&left)), ["f0", "fault"]);
    assert_eq!(reports.2, [3]);
}

#[test]
fn network_filters_are_merged_and_renamed() {
    let tcp = |name: &str, cluster: &str| json!({"name": name, "typedConfig": {"@type": TCP, "statPrefix": "s", "cluster": cluster}});
    let listener = json!({"name": "l", "filterChains": [chain("c", &[filter("echo", ECHO), tcp("tcp", "a")])]});
    let at = |filter: Value| json!({"listener": {"filterChain": {"filter": filter}}});
    let patches = [
        patch(
            "NETWORK_FILTER",
            &at(json!({"name": "tcp"})),
            "MERGE",
            &tcp("other", "b"),
        ),
        patch(
            "NETWORK_FILTER",
            &at(json!({"name": "tcp"})),
            "MERGE",
            &tcp("", "c"),
        ),
        patch(
            "NETWORK_FILTER",
            &at(json!({"name": "other"})),
            "MERGE_AND_REPLACE_LIST",
            &tcp("", "d"),
        ),
        // Without a name all are meant, and one of them is of another type.
        patch(
            "NETWORK_FILTER",
            &json!({}),
            "MERGE",
            &json!({"typed_config": {"@type": TCP, "idle_timeout": "5s"}}),
        ),
    ];
    let (left, reports) = patched(&patches, &listener);
    let mut expected = tcp("other", "b");
    expected["typedConfig"]["idleTimeout"] = "5s".into();
    assert_eq!(
        left["filterChains"][0]["filters"],
        json!([filter("echo", ECHO), expected])
    );
    assert_eq!(reports, (vec![0, 3], vec![3], vec![2]));
}

#[test]
fn listener_filters_are_merged_by_name_and_keep_it() {
    let listener = json!({"name": "virtualInbound", "listenerFilters": [filter("tls", INSPECTOR), filter("x", ECHO)]});
    let value = json!({"name": "renamed", "typed_config": {"@type": INSPECTOR, "enable_ja3_fingerprinting": true}});
    let at = |name: &str| json!({"listener": {"portNumber": 9080, "listenerFilter": name}});
    let patches = [
        patch("LISTENER_FILTER", &at("tls"), "MERGE", &value),
        patch("LISTENER_FILTER", &at(""), "MERGE", &value),
        patch("LISTENER_FILTER", &at("x"), "MERGE", &value),
        patch(
            "LISTENER_FILTER",
            &at("tls"),
            "MERGE_AND_REPLACE_LIST",
            &value,
        ),
    ];
    let (left, reports) = patched(&patches, &listener);
    let mut merged = filter("tls", INSPECTOR);
    merged["typedConfig"]["enableJa3Fingerprinting"] = true.into();
    assert_eq!(left["listenerFilters"], json!([merged, filter("x", ECHO)]));
    assert_eq!((reports.0, reports.1), (vec![0], vec![2]));
}

#[test]
fn sockets_of_chains_swallow_only_what_is_merged_into_them() {
    let socket = |name: &str, cert: bool| json!({"name": name, "typedConfig": {"@type": TLS, "requireClientCertificate": cert}});
    let of = |socket: Option<Value>, timeout: Option<&str>| {
        let mut chain = chain("c", &[filter("echo", ECHO)]);
        if let Some(socket) = socket {
            chain["transportSocket"] = socket;
        }
        if let Some(timeout) = timeout {
            chain["transportSocketConnectTimeout"] = timeout.into();
        }
        json!({"name": "l", "filterChains": [chain]})
    };
    let value =
        json!({"transport_socket": socket("tls", true), "transport_socket_connect_timeout": "4s"});
    let merge = [patch("FILTER_CHAIN", &json!({}), "MERGE", &value)];
    let check = |before: Option<Value>, timeout: Option<&str>| {
        let (left, _) = patched(&merge, &of(before.clone(), None));
        assert_eq!(left, of(Some(socket("tls", true)), timeout), "{before:?}");
    };
    let without_cert = json!({"name": "tls", "typedConfig": {"@type": TLS}});
    check(None, Some("4s"));
    check(Some(without_cert), None);
    check(Some(socket("other", true)), Some("4s"));
}

#[test]
fn chains_are_added_to_every_listener_that_matches() {
    let added = chain("n", &[filter("echo", ECHO)]);
    let at = |listener: Value, operation: &str, value: &Value| {
        patch(
            "FILTER_CHAIN",
            &json!({"listener": listener}),
            operation,
            value,
        )
    };
    let patches = [
        at(
            json!({"portNumber": 1, "filterChain": {"name": "ignored"}}),
            "ADD",
            &added,
        ),
        at(json!({"name": "l"}), "INSERT_BEFORE", &added),
        at(json!({"portNumber": 80}), "ADD", &json!({"name": "bare"})),
        at(json!({"portNumber": 80}), "REPLACE", &added),
    ];
    let chains = |name: &str| {
        let (left, reports) = patched(&patches, &listener(name, 80, 9080));
        (names(&left["filterChains"]).join(" "), reports)
    };
    assert_eq!(chains("l"), ("c n".to_owned(), (vec![1], vec![2], vec![3])));
    // There ports are not tested.
    let (left, (applied, ..)) = chains("virtualInbound");
    assert_eq!((left, applied), ("c n".to_owned(), vec![0]));
}

#[test]
fn inbound_routes_are_patched_as_they_were_generated() {
    let manager = |name: &str| {
        json!({"name": name, "filterChains": [chain("c", &[json!({
            "name": HTTP_MANAGER,
            "typedConfig": {"@type": MANAGER, "routeConfig": {"name": "inbound|8080||"}}})])]})
    };
    let matching = json!({"routeConfiguration": {"portNumber": 8080}});
    let value = json!({"request_headers_to_remove": ["a"]});
    let more = json!({"typed_config": {"@type": MANAGER, "route_config": {"request_headers_to_remove": ["b"]}}});
    let patches = [
        patch("NETWORK_FILTER", &json!({}), "MERGE", &more),
        patch("ROUTE_CONFIGURATION", &matching, "MERGE", &value),
    ];
    let removed = |pass: Pass, name: &str| {
        let (left, _) = patched_in(pass, &patches, &manager(name));
        left["filterChains"][0]["filters"][0]["typedConfig"]["routeConfig"]["requestHeadersToRemove"]
            .clone()
    };
    assert_eq!(
        removed(Pass::SidecarInbound, "virtualInbound"),
        json!(["a", "b"])
    );
    assert_eq!(
        removed(Pass::SidecarInbound, "connect_terminate"),
        json!(["b"])
    );
    assert_eq!(removed(Pass::SidecarOutbound, "l"), json!(["b"]));
}

//! What waypoints send: chains by service and port, routes to what they handle and to others, and
//! policies of single services.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]
#![expect(clippy::disallowed_methods, reason = "changes say when they came")]

use std::{collections::BTreeMap, time::Instant};

use generators::{cds::Cds, eds::Eds, lds::Lds};
use intake::{Change, Decoder, Intake, Options};
use model::{Features, Node, Proxy};
use pushctx::PushContext;
use serde_json::{Value, json};
use xds::{Interest, ResourceSet, type_url};

const MESH: &str = r#"
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: w, namespace: a, labels: {istio.io/waypoint-for: all}}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
status: {addresses: [{type: Hostname, value: w.a.svc.cluster.local}]}
---
apiVersion: v1
kind: Service
metadata: {name: w, namespace: a}
spec:
  clusterIP: 10.1.0.1
  clusterIPs: [10.1.0.1]
  selector: {gateway.networking.k8s.io/gateway-name: w}
  ports: [{name: mesh, port: 15008, appProtocol: hbone}]
---
apiVersion: v1
kind: Pod
metadata: {name: w-0, namespace: a, labels: {gateway.networking.k8s.io/gateway-name: w}}
status: {phase: Running, podIP: 10.0.0.1, podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Service
metadata: {name: shop, namespace: a, labels: {istio.io/use-waypoint: w}, creationTimestamp: "2024-01-01T00:00:00Z"}
spec:
  clusterIP: 10.1.0.2
  clusterIPs: [10.1.0.2]
  selector: {app: shop}
  ports: [{name: http, port: 80}, {name: tcp-db, port: 5432}, {name: any, port: 9000}]
---
apiVersion: v1
kind: Pod
metadata: {name: shop-0, namespace: a, labels: {app: shop, version: v1, istio.io/use-waypoint: w}, annotations: {ambient.istio.io/redirection: enabled}}
status: {phase: Running, podIP: 10.0.0.2, podIPs: [{ip: 10.0.0.2}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: shop-1, namespace: a, labels: {kubernetes.io/service-name: shop}}
addressType: IPv4
endpoints: [{addresses: [10.0.0.2], conditions: {ready: true}, targetRef: {kind: Pod, name: shop-0, namespace: a}}]
ports: [{name: http, port: 8080}, {name: tcp-db, port: 5432}, {name: any, port: 9000}]
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: b, creationTimestamp: "2024-01-02T00:00:00Z"}
spec:
  clusterIP: 10.1.0.3
  clusterIPs: [10.1.0.3]
  ports: [{name: http, port: 80}]
---
"#;

const ROUTES: &str = r"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: a}
spec:
  hosts: [shop]
  http:
  - match: [{uri: {prefix: /other}}]
    route: [{destination: {host: other.b.svc.cluster.local}}]
  - route:
    - {destination: {host: shop, subset: v1}, weight: 90}
    - {destination: {host: shop}, weight: 10}
  tcp:
  - match: [{port: 5432}]
    route: [{destination: {host: shop, subset: v1, port: {number: 5432}}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: a}
spec:
  host: shop
  trafficPolicy: {tls: {mode: SIMPLE, sni: shop}}
  subsets: [{name: v1, labels: {version: v1}}]
---
";

const POLICIES: &str = r#"
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: of-service, namespace: a}
spec:
  targetRefs: [{kind: Service, group: "", name: shop}]
  action: DENY
  rules: [{from: [{source: {namespaces: [bad]}}]}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: of-selector, namespace: a}
spec:
  selector: {matchLabels: {gateway.networking.k8s.io/gateway-name: w}}
  action: ALLOW
  rules: [{}]
---
"#;

/// What the waypoint gets, as JSON by name.
struct Sent {
    clusters: BTreeMap<String, Value>,
    assignments: BTreeMap<String, Value>,
    listeners: BTreeMap<String, Value>,
}

fn sent(yaml: &str) -> Sent {
    sent_with(yaml, Features::default())
}

fn sent_with(yaml: &str, features: Features) -> Sent {
    sent_to(yaml, features, &json!({}))
}

/// What a waypoint with these annotations gets.
fn sent_to(yaml: &str, features: Features, annotations: &Value) -> Sent {
    let features = Features {
        ambient: true,
        ..features
    };
    let mut intake = Intake::new(Options {
        features,
        ..Options::default()
    });
    let decoder = Decoder {
        admitted: true,
        ..Decoder::default()
    };
    let decoded = decoder.decode("mesh.yaml", yaml);
    assert!(!decoded.broken, "{:?}", decoded.findings);
    let changes: Vec<Change> = decoded.objects.into_iter().map(Change::Apply).collect();
    intake.apply(changes, Instant::now());
    let snapshot = PushContext::build(intake.state());
    let metadata = json!({
        "NAMESPACE": "a",
        "CLUSTER_ID": "Kubernetes",
        "INSTANCE_IPS": "10.0.0.1",
        "LABELS": {"gateway.networking.k8s.io/gateway-name": "w"},
        "ANNOTATIONS": annotations,
    });
    let proxy = Proxy::parse(&Node {
        id: "waypoint~10.0.0.1~w-0.a~a.svc.cluster.local".to_owned(),
        metadata: metadata.as_object().cloned().unwrap(),
        ..Node::default()
    })
    .unwrap();
    let class = snapshot.resolve(&snapshot.classify(&proxy));
    let everything = Interest::Everything;
    let named = |set: ResourceSet, type_url: &str| {
        let json = |r: &xds::Resource| envoy_json::to_json(type_url, &r.body().to_bytes()).unwrap();
        set.iter()
            .map(|r| (r.name().to_string(), json(r)))
            .collect()
    };
    Sent {
        clusters: named(
            Cds::new(100).generate(&snapshot, &class, &everything),
            type_url::CLUSTER,
        ),
        assignments: named(
            Eds::new(100).generate(&snapshot, &class, &everything),
            type_url::ENDPOINT,
        ),
        listeners: named(
            Lds::default().generate(&snapshot, &class),
            type_url::LISTENER,
        ),
    }
}

impl Sent {
    fn chains(&self) -> Vec<&str> {
        let chains = self.listeners["main_internal"]["filterChains"].as_array();
        let chains = chains.unwrap().iter();
        chains.map(|c| c["name"].as_str().unwrap()).collect()
    }

    /// The last filter of a chain: what terminates it.
    fn last_filter(&self, name: &str) -> &Value {
        let chains = self.listeners["main_internal"]["filterChains"].as_array();
        let mut chains = chains.unwrap().iter();
        let chain = chains.find(|c| c["name"] == name).unwrap();
        &chain["filters"].as_array().unwrap().last().unwrap()["typedConfig"]
    }
}

fn vip(port: u16, kind: &str) -> String {
    format!("inbound-vip|{port}|{kind}|shop.a.svc.cluster.local")
}

#[test]
fn every_port_has_chains_for_what_it_may_speak() {
    let sent = sent(MESH);
    assert_eq!(
        sent.chains(),
        [
            &vip(80, "http"),
            &vip(5432, "tcp"),
            &vip(9000, "tcp"),
            &vip(9000, "http"),
            "direct-tcp",
            "direct-http",
        ]
    );
    let listener = &sent.listeners["main_internal"];
    let matched = &listener["filterChainMatcher"]["matcherTree"]["customMatch"]["typedConfig"];
    let [service, direct] = matched["rangeMatchers"].as_array().unwrap().as_slice() else {
        panic!("{matched}");
    };
    assert_eq!(
        service["ranges"],
        json!([{"addressPrefix": "10.1.0.2", "prefixLen": 32}])
    );
    assert_eq!(
        direct["ranges"],
        json!([{"addressPrefix": "10.0.0.2", "prefixLen": 32}])
    );
    let by_port = &service["onMatch"]["matcher"]["matcherTree"]["exactMatchMap"]["map"];
    assert_eq!(by_port["5432"]["action"]["name"], vip(5432, "tcp"));
    let sniffed = &by_port["9000"]["matcher"];
    assert_eq!(sniffed["onNoMatch"]["action"]["name"], vip(9000, "tcp"));
    let protocols = &sniffed["matcherTree"]["exactMatchMap"]["map"];
    assert_eq!(protocols["'h2c'"]["action"]["name"], vip(9000, "http"));
    // Workloads have any ports, and speak anything there.
    let inspector = &listener["listenerFilters"][1];
    assert_eq!(inspector["name"], "envoy.filters.listener.http_inspector");
    assert_eq!(inspector["filterDisabled"], Value::Null);
    let clusters: Vec<&String> = sent.clusters.keys().collect();
    assert_eq!(
        clusters,
        [
            "connect_originate",
            "encap",
            &vip(5432, "tcp"),
            &vip(80, "http"),
            &vip(9000, "http"),
            &vip(9000, "tcp"),
            "main_internal",
        ]
    );
    let address = &sent.assignments[&vip(80, "http")]["endpoints"][0]["lbEndpoints"][0];
    let address = &address["endpoint"]["address"]["envoyInternalAddress"];
    assert_eq!(address["endpointId"], "10.0.0.2:8080");
}

/// The waypoint of services only.
fn of_services(yaml: &str) -> String {
    yaml.replace(
        "istio.io/waypoint-for: all",
        "istio.io/waypoint-for: service",
    )
}

#[test]
fn nothing_is_looked_for_where_the_protocol_is_known() {
    let inspectors = |yaml: &str| {
        let sent = sent(yaml);
        let filters = sent.listeners["main_internal"]["listenerFilters"].as_array();
        let filters = filters.unwrap().iter().skip(1);
        filters
            .map(|f| (f["name"].clone(), f["filterDisabled"].clone()))
            .collect::<Vec<_>>()
    };
    let range = |port: u16| json!({"destinationPortRange": {"start": port, "end": port + 1}});
    let but = |ports: &[u16]| match ports {
        [only] => range(*only),
        _ => json!({"orMatch": {"rules": ports.iter().map(|p| range(*p)).collect::<Vec<_>>()}}),
    };
    let (http, tls) = (
        "envoy.filters.listener.http_inspector",
        "envoy.filters.listener.tls_inspector",
    );
    let mesh = of_services(MESH);
    assert_eq!(inspectors(&mesh), [(json!(http), but(&[80, 5432]))]);
    // HTTP is HTTP of whatever version. Where one service speaks it and another does not, both are looked
    // at. Server names are looked for where any service speaks TLS.
    assert_eq!(
        inspectors(&(mesh + MORE_SERVICES)),
        [
            (json!(http), but(&[80, 443])),
            (json!(tls), but(&[80, 5432, 9000])),
        ]
    );
}

const MORE_SERVICES: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: calls, namespace: a, labels: {istio.io/use-waypoint: w}, creationTimestamp: "2024-01-03T00:00:00Z"}
spec:
  clusterIP: 10.1.0.4
  clusterIPs: [10.1.0.4]
  ports: [{name: grpc, port: 80}, {name: http-db, port: 5432}, {name: tls, port: 443}]
---
"#;

#[test]
fn headless_services_share_no_ports() {
    let headless = |name: &str, port: u16| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: a, \
             labels: {{istio.io/use-waypoint: w}}}}\n\
             spec:\n  clusterIP: None\n  ports: [{{name: http, port: {port}}}]\n---\n"
        )
    };
    let yaml = of_services(MESH) + &headless("one", 80) + &headless("two", 81);
    let sent = sent(&yaml);
    let matcher = &sent.listeners["main_internal"]["filterChainMatcher"]["matcherTree"];
    let entries = matcher["customMatch"]["typedConfig"]["rangeMatchers"].as_array();
    let ports = |entry: &Value| {
        let map = &entry["onMatch"]["matcher"]["matcherTree"]["exactMatchMap"]["map"];
        map.as_object().unwrap().keys().cloned().collect::<Vec<_>>()
    };
    let ports: Vec<_> = entries.unwrap().iter().map(ports).collect();
    assert_eq!(ports.len(), 3, "{ports:?}");
    assert!(ports.contains(&vec!["80".to_owned()]), "{ports:?}");
    assert!(ports.contains(&vec!["81".to_owned()]), "{ports:?}");
}

const SEVERAL_ROUTES: &str = r#"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: first, namespace: a, creationTimestamp: "2024-01-01T00:00:00Z"}
spec:
  hosts: [shop]
  http:
  - match: [{uri: {prefix: /labels}, sourceLabels: {app: shop}}]
    route: [{destination: {host: shop}}]
  - match: [{uri: {prefix: /first}}]
    route: [{destination: {host: shop, port: {number: 5432}}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: second, namespace: a, creationTimestamp: "2024-01-02T00:00:00Z"}
spec:
  hosts: ["*.a.svc.cluster.local"]
  http:
  - match: [{uri: {prefix: /second}}]
    route: [{destination: {host: unknown.test}}]
  - match: [{uri: {prefix: /outside}}]
    route: [{destination: {host: outside.test}}]
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: foreign, namespace: b, creationTimestamp: "2024-01-01T00:00:00Z"}
spec:
  hosts: [shop.a.svc.cluster.local]
  http: [{route: [{destination: {host: other.b.svc.cluster.local}}]}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: a, labels: {istio.io/use-waypoint: w}}
spec:
  hosts: [outside.test]
  addresses: [10.2.0.1]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{number: 80, name: http, protocol: HTTP}]
  endpoints: [{address: 192.0.2.1}]
---
"#;

#[test]
fn all_virtual_services_of_a_service_count_that_are_of_its_namespace() {
    let sent = sent(&[MESH, SEVERAL_ROUTES].concat());
    let http = sent.last_filter(&vip(80, "http"));
    let routes = http["routeConfig"]["virtualHosts"][0]["routes"].as_array();
    let routes: Vec<_> = routes
        .unwrap()
        .iter()
        .map(|r| {
            (
                r["match"]["prefix"].as_str().unwrap(),
                r["route"]["cluster"].as_str().unwrap(),
            )
        })
        .collect();
    assert_eq!(
        routes,
        [
            ("/first", &*vip(5432, "tcp")),
            ("/second", "inbound-vip|80|http|unknown.test"),
            ("/outside", "inbound-vip|80|http|outside.test"),
        ]
    );
    assert!(
        sent.clusters
            .contains_key("inbound-vip|80|http|outside.test")
    );
}

const CONNECTIONS: &str = r"
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: a}
spec:
  hosts: [shop]
  tls:
  - match: [{port: 9000, sniHosts: [elsewhere.test]}]
    route: [{destination: {host: other.b.svc.cluster.local}}]
  - match: [{port: 9000, sniHosts: [shop.a.svc.cluster.local]}]
    route: [{destination: {host: shop, subset: v1}}]
  tcp:
  - match: [{port: 5432, sourceLabels: {app: shop}}, {port: 5432, sourceNamespace: a}]
    route: [{destination: {host: other.b.svc.cluster.local}}]
  - match: [{port: 5432}, {port: 9000}]
    route:
    - {destination: {host: shop}, weight: 3}
    - {destination: {host: other.b.svc.cluster.local}, weight: 1}
    - {destination: {host: shop, subset: v1}, weight: 0}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: a}
spec:
  host: shop
  trafficPolicy:
    connectionPool: {tcp: {idleTimeout: 7s, maxConnectionDuration: 70s}}
  subsets: [{name: v1, labels: {version: v1}}]
---
";

#[test]
fn connections_go_where_rules_say_with_the_settings_of_the_first_destination() {
    let sent = sent(&[MESH, CONNECTIONS].concat());
    let proxy = sent.last_filter(&vip(5432, "tcp"));
    assert_eq!(
        proxy["weightedClusters"]["clusters"],
        json!([
            {"name": vip(5432, "tcp"), "weight": 3},
            {"name": "outbound|80||other.b.svc.cluster.local", "weight": 1},
        ])
    );
    assert_eq!(proxy["idleTimeout"], "7s");
    assert_eq!(proxy["maxDownstreamConnectionDuration"], "70s");
    assert_eq!(proxy["statPrefix"], vip(5432, "tcp"));
    // What anybody may speak has clusters of both kinds.
    let proxy = sent.last_filter(&vip(9000, "tcp"));
    assert_eq!(proxy["cluster"], vip(9000, "http/v1"));
}

#[test]
fn clusters_name_the_rules_that_say_something_of_them() {
    let rule = |spec: &str| {
        let yaml = format!(
            "{MESH}apiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
             metadata: {{name: shop, namespace: a}}\nspec:\n  host: shop\n{spec}\n---\n"
        );
        let sent = sent(&yaml);
        let kinds = [vip(80, "http"), vip(80, "http/v1")];
        kinds.map(|kind| sent.clusters[&kind]["metadata"]["filterMetadata"]["istio"].clone())
    };
    let named = json!("/apis/networking.istio.io/v1/namespaces/a/destination-rule/shop");
    let subsets = "  subsets: [{name: v1, labels: {version: v1}}]";
    let [whole, subset] = rule(subsets);
    assert_eq!([&whole["config"], &subset["config"]], [&Value::Null; 2]);
    assert_eq!(subset["subset"], "http/v1");
    let [whole, subset] = rule(&format!("  trafficPolicy: {{}}\n{subsets}"));
    assert_eq!([&whole["config"], &subset["config"]], [&named; 2]);
    let subsets = "  subsets: [{name: v1, labels: {version: v1}, trafficPolicy: {}}]";
    let [whole, subset] = rule(subsets);
    assert_eq!(
        [&whole["config"], &subset["config"]],
        [&Value::Null, &named]
    );
}

#[test]
fn routes_lead_to_what_is_handled_and_to_others() {
    let sent = sent(&[MESH, ROUTES].concat());
    let http = sent.last_filter(&vip(80, "http"));
    let routes = &http["routeConfig"]["virtualHosts"][0]["routes"];
    assert_eq!(
        routes[0]["route"]["cluster"],
        "outbound|80||other.b.svc.cluster.local"
    );
    let weighted = &routes[1]["route"]["weightedClusters"]["clusters"];
    assert_eq!(weighted[0]["name"], vip(80, "http/v1"));
    assert_eq!(weighted[1]["name"], vip(80, "http"));
    assert_eq!(
        sent.last_filter(&vip(5432, "tcp"))["cluster"],
        vip(5432, "tcp/v1")
    );
    let others = sent
        .clusters
        .keys()
        .filter(|name| name.starts_with("outbound"));
    assert_eq!(
        others.collect::<Vec<_>>(),
        ["outbound|80||other.b.svc.cluster.local"]
    );
    let tunnel = &sent.clusters[&vip(80, "http/v1")]["transportSocket"];
    assert_eq!(tunnel["name"], "internal_upstream");
    let within = &tunnel["typedConfig"]["transportSocket"];
    assert_eq!(within["name"], "envoy.transport_sockets.tls");
    assert_eq!(within["typedConfig"]["sni"], "shop");
    let of_subset = &sent.assignments[&vip(80, "http/v1")]["endpoints"];
    assert_eq!(of_subset.as_array().unwrap().len(), 1);
}

#[test]
fn policies_of_a_service_are_in_its_chains_only() {
    let sent = sent(&[MESH, POLICIES].concat());
    let filters = |chain: &str| {
        let http = sent.last_filter(chain);
        let filters = http["httpFilters"].as_array().unwrap().iter();
        filters
            .filter(|f| f["name"] == "envoy.filters.http.rbac")
            .map(Value::to_string)
            .collect::<Vec<_>>()
    };
    let [deny] = filters(&vip(80, "http")).try_into().unwrap();
    assert!(
        deny.contains("DENY") && deny.contains("io.istio.peer_principal"),
        "{deny}"
    );
    assert_eq!(filters("direct-http"), Vec::<String>::new());
}

#[test]
fn policies_that_select_the_waypoint_are_where_tunnels_end_if_asked_for() {
    let yaml = [MESH, POLICIES].concat();
    let policed = |sent: &Sent| {
        let chains = &sent.listeners["connect_terminate"]["filterChains"];
        let manager = &chains[0]["filters"][0]["typedConfig"];
        let first = &manager["httpFilters"][0];
        (first["name"] == "envoy.filters.http.rbac").then(|| first.to_string())
    };
    assert_eq!(policed(&sent(&yaml)), None);
    let layered = Features {
        layered_waypoint_policies: true,
        ..Features::default()
    };
    let first = policed(&sent_with(&yaml, layered)).unwrap();
    assert!(first.contains("policy[of-selector]"), "{first}");
    assert!(!first.contains("of-service"), "{first}");
}

#[test]
fn baggage_tells_who_is_at_the_ends_of_tunnels_if_asked_for() {
    let baggage = Features {
        ambient_baggage: true,
        ..Features::default()
    };
    let sent = sent_with(&[MESH, ROUTES].concat(), baggage);
    let originate = &sent.listeners["connect_originate"]["filterChains"][0]["filters"];
    assert_eq!(originate[0]["name"], "upstream_hbone_peer_metadata");
    let tunnel = &originate[1]["typedConfig"]["tunnelingConfig"];
    assert_eq!(tunnel["propagateResponseHeaders"], true);
    assert_eq!(
        tunnel["headersToAdd"],
        json!([{
            "header": {"key": "baggage", "value": "%FILTER_STATE(io.istio.baggage:PLAIN)%"},
            "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD",
        }])
    );
    let terminate = &sent.listeners["connect_terminate"]["filterChains"][0]["filters"][0];
    let peers = &terminate["typedConfig"]["httpFilters"][0]["typedConfig"]["value"];
    assert_eq!(
        peers["downstream_discovery"],
        json!([{"workload_discovery": {}}, {"baggage": {}}])
    );
    assert_eq!(peers["downstream_propagation"], json!([{"baggage": {}}]));
    let http = sent.last_filter(&vip(80, "http"));
    let filters = http["httpFilters"].as_array().unwrap().iter();
    let mut upstream = filters.filter(|f| f["name"] == "waypoint_upstream_peer_metadata");
    assert_eq!(
        upstream.next().unwrap()["typedConfig"]["value"]["upstream_discovery"][1],
        json!({"upstream_filter_state": {"peer_metadata_key": "upstream_peer"}})
    );
    let filters = |cluster: &str| {
        let filters = sent.clusters[cluster]["filters"].as_array().unwrap().iter();
        filters
            .map(|f| f["name"].as_str().unwrap())
            .collect::<Vec<_>>()
    };
    let peers = "upstream_hbone_peer_metadata";
    assert_eq!(
        filters("outbound|80||other.b.svc.cluster.local"),
        ["istio.metadata_exchange", peers]
    );
    assert_eq!(filters("encap"), [peers]);
    assert_eq!(filters(&vip(80, "http/v1")), [peers]);
    // Within TLS of its own a peer says nothing, and nothing may be put before it.
    let cluster = &sent.clusters[&vip(80, "http/v1")];
    let metadata = &cluster["metadata"]["filterMetadata"]["istio.peer_metadata"];
    assert_eq!(*metadata, json!({"disable_baggage_discovery": true}));
    let passed = &cluster["transportSocket"]["typedConfig"]["passthroughMetadata"];
    assert_eq!(
        passed[2],
        json!({"kind": {"cluster": {}}, "name": "istio.peer_metadata"})
    );
}

const OUTSIDE: &str = r#"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: a, labels: {istio.io/use-waypoint: w}}
spec:
  hosts: ["*.outside.test"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: 80, name: http, protocol: HTTP}, {number: 443, name: tls, protocol: TLS}]
status: {addresses: [{value: 240.240.0.1, host: "*.outside.test"}]}
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: outside, namespace: a}
spec:
  host: "*.outside.test"
  trafficPolicy: {portLevelSettings: [{port: {number: 80}, tls: {mode: SIMPLE}}]}
---
"#;

#[test]
fn wildcard_hosts_are_resolved_by_what_is_asked_for() {
    let name = |port: u16, kind: &str| format!("inbound-vip|{port}|{kind}|*.outside.test");
    let (http, tls) = (name(80, "http"), name(443, "tcp"));
    let yaml = [MESH, OUTSIDE].concat();
    let sent = sent(&yaml);
    let matcher = &sent.listeners["main_internal"]["filterChainMatcher"]["matcherTree"];
    let entries = &matcher["customMatch"]["typedConfig"]["rangeMatchers"];
    assert!(entries.to_string().contains("240.240.0.1"), "{entries}");
    let cluster = &sent.clusters[&http];
    let kind = &cluster["clusterType"];
    assert_eq!(kind["name"], "envoy.clusters.dynamic_forward_proxy");
    let cache = json!({"name": "*.outside.test_dfp_dns_cache", "dnsLookupFamily": "V4_ONLY"});
    assert_eq!(kind["typedConfig"]["dnsCacheConfig"], cache);
    assert_eq!(
        kind["typedConfig"]["allowInsecureClusterOptions"],
        Value::Null
    );
    assert_eq!(cluster["lbPolicy"], "CLUSTER_PROVIDED");
    let within = &cluster["transportSocket"]["typedConfig"]["transportSocket"];
    assert_eq!(within["name"], "envoy.transport_sockets.tls");

    let manager = sent.last_filter(&http);
    let filters = manager["httpFilters"].as_array().unwrap().iter();
    let mut dynamic = filters.filter(|f| f["name"] == "envoy.filters.http.dynamic_forward_proxy");
    assert_eq!(
        dynamic.next().unwrap()["typedConfig"]["dnsCacheConfig"],
        cache
    );
    let host = &manager["routeConfig"]["virtualHosts"][0];
    assert_eq!(host["domains"], json!(["*.outside.test"]));
    assert_eq!(host["routes"][0]["route"]["cluster"], *http);
    // A server name is what the client says.
    assert!(!sent.clusters.contains_key(&tls) && !sent.chains().contains(&&*tls));

    let trusted = Features {
        wildcard_tls_entries: true,
        ..Features::default()
    };
    let sent = sent_with(&yaml, trusted);
    assert!(sent.clusters[&tls]["clusterType"].is_object());
    let chains = sent.listeners["main_internal"]["filterChains"].as_array();
    let mut chains = chains.unwrap().iter();
    let chain = chains.find(|c| c["name"] == *tls).unwrap();
    let filters = chain["filters"].as_array().unwrap();
    let [.., resolver, proxy] = filters.as_slice() else {
        panic!("{filters:?}");
    };
    let resolver = &resolver["typedConfig"];
    assert_eq!(
        (&resolver["dnsCacheConfig"], &resolver["portValue"]),
        (&cache, &json!(443))
    );
    assert_eq!(proxy["typedConfig"]["cluster"], *tls);
}

#[test]
fn services_are_told_who_asks_if_the_waypoint_is_annotated() {
    let told = |value: &str| {
        let annotations = json!({"ambient.istio.io/xfcc-include-client-identity": value});
        let sent = sent_to(MESH, Features::default(), &annotations);
        [vip(80, "http"), "direct-http".to_owned()].map(|chain| {
            let first = &sent.last_filter(&chain)["httpFilters"][0];
            let is_told = first["name"] == "istio.waypoint.xfcc_client_identity";
            is_told.then(|| first["typedConfig"]["mutations"]["requestMutations"].clone())
        })
    };
    let header = json!([{"append": {
        "header": {
            "key": "x-forwarded-client-cert",
            "value": "URI=%FILTER_STATE(io.istio.peer_principal:PLAIN)%",
        },
        "appendAction": "OVERWRITE_IF_EXISTS_OR_ADD",
    }}]);
    assert_eq!(told("True"), [Some(header.clone()), Some(header)]);
    assert_eq!(told("1"), [None, None]);
}

#[test]
fn tunnels_have_windows_of_their_own_if_asked_for() {
    let options = |features| {
        let sent = sent_with(MESH, features);
        let options = &sent.clusters["connect_originate"]["typedExtensionProtocolOptions"];
        let options = &options["envoy.extensions.upstreams.http.v3.HttpProtocolOptions"];
        options["explicitHttpConfig"]["http2ProtocolOptions"].clone()
    };
    assert_eq!(options(Features::default()), json!({"allowConnect": true}));
    let windows = Features {
        hbone_stream_window: 1 << 20,
        hbone_connection_window: 1 << 21,
        ..Features::default()
    };
    let expected = json!({
        "allowConnect": true,
        "initialStreamWindowSize": 1 << 20,
        "initialConnectionWindowSize": 1 << 21,
    });
    assert_eq!(options(windows), expected);
}

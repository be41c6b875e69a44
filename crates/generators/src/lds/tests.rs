//! Listeners as the examples of listeners §26 have them, and the laws they are under.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use envoy_json::to_json;
use model::{
    Config, ConfigKey, ExportTo, Kind, Labels, MeshState, Meta, NamespacedName, Node, Port,
    Protocol, Proxy, Resolution, Service, Timestamp, TrafficDistribution, api,
    service::{Attributes, Registry, ServiceType},
};
use pushctx::PushContext;
use serde_json::{Value, json};
use xds::ResourceSet;

use super::Lds;

/// A mesh with a few services, seen by one proxy of namespace `default`.
struct Mesh {
    state: MeshState,
    metadata: Value,
    extensions: Option<BTreeSet<String>>,
}

impl Mesh {
    fn new() -> Self {
        Self {
            state: MeshState::default(),
            metadata: json!({}),
            extensions: None,
        }
    }

    /// Adds a service with one port; `address` is `0.0.0.0` for none.
    fn service(
        mut self,
        hostname: &str,
        address: &str,
        number: u16,
        protocol: Protocol,
        created: i64,
    ) -> Self {
        let registry = if hostname.ends_with(".svc.cluster.local") {
            Registry::Kubernetes
        } else {
            Registry::External
        };
        let service = service(hostname, address, number, protocol, registry, created).seal();
        self.state.services.insert(service.id(), service);
        self
    }

    fn virtual_service(mut self, name: &str, spec: &Value) -> Self {
        let meta = Meta {
            name: name.into(),
            namespace: "default".into(),
            ..Meta::default()
        };
        let spec = api::decode(spec).expect("a VirtualService").value;
        self.state.objects.virtual_services.insert(
            NamespacedName::new("default", name),
            Arc::new(Config { meta, spec }),
        );
        self
    }

    fn mesh_config(mut self, change: impl FnOnce(&mut api::MeshConfig)) -> Self {
        change(Arc::make_mut(&mut self.state.mesh));
        self
    }

    fn generate(&self, lds: &Lds) -> ResourceSet {
        let proxy = Proxy::parse(&Node {
            id: "sidecar~10.1.1.1~a-0.default~default.svc.cluster.local".to_owned(),
            metadata: self.metadata.as_object().cloned().unwrap_or_default(),
            extensions: self.extensions.clone(),
            ..Node::default()
        })
        .expect("a node");
        let snapshot = PushContext::build(self.state.clone());
        let class = snapshot.resolve(&snapshot.classify(&proxy));
        lds.generate(&snapshot, &class)
    }

    /// Generates listeners as JSON, by name.
    fn listeners(&self) -> BTreeMap<String, Value> {
        self.generate(&Lds::default())
            .iter()
            .map(|r| {
                let json =
                    to_json(xds::type_url::LISTENER, &r.body().to_bytes()).expect("a listener");
                (r.name().to_string(), json)
            })
            .collect()
    }
}

fn service(
    hostname: &str,
    address: &str,
    number: u16,
    protocol: Protocol,
    registry: Registry,
    created: i64,
) -> Service {
    let name = hostname.split('.').next().unwrap_or_default();
    Service {
        hostname: hostname.into(),
        ports: vec![Port {
            name: "p".into(),
            port: number,
            protocol,
        }],
        cluster_vips: BTreeMap::new(),
        default_address: address.into(),
        auto_allocated_v4: "".into(),
        auto_allocated_v6: "".into(),
        resolution: Resolution::ClientSideLb,
        mesh_external: registry == Registry::External,
        service_accounts: Vec::new(),
        created: Timestamp(created),
        resource_version: String::new(),
        attributes: Attributes {
            registry,
            name: name.into(),
            namespace: "default".into(),
            labels: Labels::new(),
            selector: Labels::new(),
            export_to: ExportTo::default(),
            aliases: Vec::new(),
            cluster_external_addresses: BTreeMap::new(),
            cluster_external_ports: BTreeMap::new(),
            passthrough_target_ports: BTreeMap::new(),
            service_type: ServiceType::ClusterIp,
            external_name: "".into(),
            node_local: false,
            traffic_distribution: TrafficDistribution::Any,
            object_name: "".into(),
            race_first_connect: false,
            publish_not_ready_addresses: false,
        },
        source: ConfigKey::new(Kind::Service, "default", name).into(),
        fingerprint: 0,
    }
}

/// Shows the chains of a listener: match and where the last filter leads, the default chain last.
fn chains(listener: &Value) -> Vec<String> {
    let show = |chain: &Value, mark: &str| {
        let matching = &chain["filterChainMatch"];
        let mut text = mark.to_owned();
        for (key, short) in [("serverNames", "sni"), ("applicationProtocols", "alpn")] {
            if let Some(list) = matching[key].as_array() {
                let list: Vec<&str> = list.iter().filter_map(Value::as_str).collect();
                text.extend([short, "=", &list.join(","), " "]);
            }
        }
        let last = chain["filters"]
            .as_array()
            .and_then(|f| f.last())
            .expect("filters");
        let config = &last["typedConfig"];
        match config["rds"]["routeConfigName"].as_str() {
            Some(routes) => text + "rds " + routes,
            None => text + config["cluster"].as_str().unwrap_or("weighted"),
        }
    };
    let list = listener["filterChains"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let mut shown: Vec<String> = list.iter().map(|chain| show(chain, "")).collect();
    if listener["defaultFilterChain"].is_object() {
        shown.push(show(&listener["defaultFilterChain"], "default "));
    }
    shown
}

#[track_caller]
fn check(mesh: &Mesh, listener: &str, expected: &[&str]) {
    let listeners = mesh.listeners();
    let names: Vec<&String> = listeners.keys().collect();
    let found = listeners
        .get(listener)
        .unwrap_or_else(|| panic!("{listener} not in {names:?}"));
    assert_eq!(chains(found), expected);
}

#[test]
fn http_shares_the_wildcard_and_falls_through() {
    let mesh = Mesh::new()
        .service(
            "reviews.default.svc.cluster.local",
            "10.96.1.1",
            80,
            Protocol::Http,
            1,
        )
        .service(
            "ratings.default.svc.cluster.local",
            "10.96.1.2",
            80,
            Protocol::Grpc,
            2,
        );
    check(
        &mesh,
        "0.0.0.0_80",
        &["alpn=http/1.1,h2c rds 80", "default PassthroughCluster"],
    );
}

#[test]
fn tcp_listens_on_the_address_of_the_service() {
    let mesh = Mesh::new().service(
        "db.default.svc.cluster.local",
        "10.96.2.2",
        3306,
        Protocol::Tcp,
        1,
    );
    let expected = ["outbound|3306||db.default.svc.cluster.local"];
    check(&mesh, "10.96.2.2_3306", &expected);
}

#[test]
fn undeclared_ports_are_sniffed_on_their_address() {
    let host = "cache.default.svc.cluster.local";
    let mesh = Mesh::new().service(host, "10.96.3.3", 6000, Protocol::Unsupported, 1);
    check(
        &mesh,
        "10.96.3.3_6000",
        &[
            "alpn=http/1.1,h2c rds cache.default.svc.cluster.local:6000",
            "default outbound|6000||cache.default.svc.cluster.local",
        ],
    );
}

#[test]
fn a_mixed_port_serves_http_and_the_oldest_tcp() {
    let mesh = Mesh::new()
        .service("db.example.com", "0.0.0.0", 8080, Protocol::Tcp, 1)
        .service(
            "web.default.svc.cluster.local",
            "10.96.4.4",
            8080,
            Protocol::Http,
            2,
        )
        .service("late.example.com", "0.0.0.0", 8080, Protocol::Tcp, 3);
    check(
        &mesh,
        "0.0.0.0_8080",
        &[
            "alpn=http/1.1,h2c rds 8080",
            "default outbound|8080||db.example.com",
        ],
    );
}

#[test]
fn tls_without_address_is_told_apart_by_server_name() {
    let mesh = Mesh::new()
        .service("a.example.com", "0.0.0.0", 443, Protocol::Tls, 1)
        .service("b.example.com", "0.0.0.0", 443, Protocol::Tls, 2)
        .virtual_service(
            "b",
            &json!({
                "hosts": ["b.example.com"],
                "tls": [{
                    "match": [{"port": 443, "sniHosts": ["b.example.com"]}],
                    "route": [
                        {"destination": {"host": "b.example.com", "subset": "v1"}, "weight": 90},
                        {"destination": {"host": "b.example.com", "subset": "v2"}, "weight": 10},
                    ],
                }],
            }),
        );
    check(
        &mesh,
        "0.0.0.0_443",
        &[
            "sni=a.example.com outbound|443||a.example.com",
            "sni=b.example.com weighted",
            "default PassthroughCluster",
        ],
    );
    let set = mesh.generate(&Lds::default());
    let sources: Vec<&str> = set
        .get("0.0.0.0_443")
        .expect("it")
        .sources()
        .iter()
        .map(|s| &**s)
        .collect();
    assert_eq!(
        sources,
        [
            "Service/default/a",
            "Service/default/b",
            "VirtualService/default/b"
        ],
        "whatever went in is named"
    );
}

#[test]
fn nothing_visible_leaves_the_virtual_listeners() {
    let names: Vec<String> = Mesh::new().listeners().into_keys().collect();
    assert_eq!(names, ["virtualInbound", "virtualOutbound"]);
}

#[test]
fn a_mesh_without_capture_port_has_no_listeners() {
    let mesh = Mesh::new().mesh_config(|mesh| mesh.proxy_listen_port = 0);
    assert_eq!(mesh.listeners().len(), 0);
}

/// Types of Istio's own extensions.
const ISTIO_TYPES: [&str; 4] = [
    "io.istio.http.peer_metadata.Config",
    "envoy.tcp.metadataexchange.config.MetadataExchange",
    "istio.envoy.config.filter.http.alpn.v2alpha1.FilterConfig",
    "stats.PluginConfig",
];

fn mixed() -> Mesh {
    Mesh::new()
        .service(
            "web.default.svc.cluster.local",
            "10.96.4.4",
            80,
            Protocol::Http,
            1,
        )
        .service(
            "db.default.svc.cluster.local",
            "10.96.5.5",
            3306,
            Protocol::Tcp,
            1,
        )
        .mesh_config(|mesh| mesh.default_providers.metrics = vec!["prometheus".to_owned()])
}

#[test]
fn stock_proxies_get_nothing_that_they_lack() {
    let text = |mesh: &Mesh| json!(mesh.listeners()).to_string();
    let istio = text(&mixed());
    assert!(ISTIO_TYPES.iter().all(|name| istio.contains(name)));
    let stock = Mesh {
        extensions: Some(BTreeSet::from(["envoy.filters.http.router".to_owned()])),
        ..mixed()
    };
    let stock = text(&stock);
    assert!(ISTIO_TYPES.iter().all(|name| !stock.contains(name)));
    assert!(
        !stock.contains(r#""alpnProtocols":["istio-peer-exchange""#),
        "nobody would answer it"
    );
}

#[test]
fn an_unchanged_listener_is_not_built_again() {
    let lds = Lds::default();
    let before = mixed().generate(&lds);
    let after = mixed()
        .service(
            "new.default.svc.cluster.local",
            "10.96.6.6",
            3306,
            Protocol::Tcp,
            9,
        )
        .generate(&lds);
    assert_eq!(after.len(), before.len() + 1);
    for old in before.iter() {
        let new = after.get(old.name()).expect("still there");
        assert!(Arc::ptr_eq(old, new), "{} was built again", old.name());
    }
}

#[test]
fn what_a_listener_depends_on_changes_its_cache_key() {
    let lds = Lds::default();
    let before = mixed().generate(&lds);
    let changed = mixed().mesh_config(|mesh| mesh.access_log_file = "/dev/stdout".to_owned());
    let cached = changed.generate(&lds);
    assert_eq!(
        cached,
        changed.generate(&Lds::default()),
        "cached equals uncached"
    );
    for old in before.iter() {
        assert_ne!(cached.get(old.name()), Some(old), "{}", old.name());
    }
}

//! Law 3: what comes from the cache is what would have been built, whoever filled the cache.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use generators::{cds::Cds, eds::Eds};
use model::{
    Config, ConfigKey, Endpoint, ExportTo, Health, Kind, Labels, Locality, MeshState, Meta, Node,
    Port, Protocol, Proxy, Resolution, Service, ServiceEndpoints, Timestamp,
    network::{NetworkGateway, NetworkGateways},
    service::{Attributes, Registry, ServiceType, ShardKey, TrafficDistribution},
};
use pushctx::PushContext;
use serde_json::{Value, json};
use xds::{Interest, ResourceSet};

/// Proxies that differ in one fact each, as far as clusters and endpoints can tell.
fn nodes() -> Vec<Node> {
    let node = |kind: &str, namespace: &str, locality: &str, metadata: Value| Node {
        id: format!("{kind}~10.0.0.1~p.{namespace}~{namespace}.svc.cluster.local"),
        locality: Locality::parse(locality),
        metadata: metadata.as_object().cloned().unwrap_or_default(),
        ..Node::default()
    };
    let mut nodes = Vec::new();
    for kind in ["sidecar", "router"] {
        for namespace in ["a", "b"] {
            for locality in ["r1/z1", "r2/z1", ""] {
                nodes.push(node(kind, namespace, locality, json!({})));
            }
        }
    }
    for metadata in [
        json!({"INSTANCE_IPS": "fd00::1"}),
        json!({"INSTANCE_IPS": "10.0.0.1,fd00::1"}),
        json!({"NETWORK": "n1"}),
        json!({"NETWORK": "n2"}),
        json!({"REQUESTED_NETWORK_VIEW": "n1"}),
        json!({"CLUSTER_ID": "c2"}),
        json!({"LABELS": {"app": "x"}}),
        json!({"TLS_CLIENT_CERT_CHAIN": "/c", "TLS_CLIENT_KEY": "/k", "TLS_CLIENT_ROOT_CERT": "/r"}),
        json!({"credential": "true"}),
        json!({"file-credential": "true"}),
        json!({"PROXY_CONFIG": {"proxyHeaders": {"preserveHttp1HeaderCase": true}}}),
    ] {
        nodes.push(node("sidecar", "a", "r1/z1", metadata));
    }
    let mut stock = node("sidecar", "a", "r1/z1", json!({}));
    stock.extensions = Some(["envoy.filters.http.router".to_owned()].into());
    nodes.push(stock);
    nodes
}

fn mesh() -> PushContext {
    let mut state = MeshState::default();
    let services = [
        ("plain", Resolution::ClientSideLb, TrafficDistribution::Any),
        (
            "near",
            Resolution::ClientSideLb,
            TrafficDistribution::PreferSameZone,
        ),
        (
            "headless",
            Resolution::Passthrough,
            TrafficDistribution::Any,
        ),
        ("named", Resolution::DnsLb, TrafficDistribution::Any),
        ("ruled", Resolution::ClientSideLb, TrafficDistribution::Any),
    ];
    for (name, resolution, distribution) in services {
        let service = service(name, resolution, distribution);
        let places = [("r1/z1", "n1", "c1"), ("r2/z1", "n2", "c2"), ("", "", "c1")];
        let endpoints = places
            .iter()
            .enumerate()
            .map(|(n, (locality, network, cluster))| {
                let address = match resolution {
                    Resolution::DnsLb => format!("h{n}.example.com"),
                    _ => format!("10.1.0.{n}"),
                };
                Arc::new(endpoint(&address, locality, network, cluster))
            });
        let shard = ShardKey {
            cluster: "c1".into(),
            registry: Registry::Kubernetes,
        };
        let endpoints = ServiceEndpoints::collect([(shard, endpoints.collect())]);
        state
            .endpoints
            .extend(endpoints.map(|e| (service.key(), e)));
        state.services.insert(service.id(), service);
    }
    for (namespace, name, spec) in rules() {
        let meta = Meta {
            name: name.into(),
            namespace: namespace.into(),
            ..Meta::default()
        };
        let spec = serde_json::from_value(spec).unwrap();
        let rule = Arc::new(Config { meta, spec });
        state
            .objects
            .destination_rules
            .insert(rule.meta.namespaced_name(), rule);
    }
    state.gateways = Arc::new(NetworkGateways {
        resolved: vec![NetworkGateway {
            network: "n2".into(),
            cluster: "c2".into(),
            address: "1.2.3.4".into(),
            port: 15443,
            hbone_port: 0,
            service_account: "".into(),
        }],
        ..NetworkGateways::default()
    });
    PushContext::build(state)
}

fn rules() -> [(&'static str, &'static str, Value); 4] {
    let ruled = json!({
        "host": "ruled.a.svc.cluster.local",
        "trafficPolicy": {
            "outlierDetection": {},
            "tls": {"mode": "SIMPLE", "caCertificates": "/ca"},
        },
        "subsets": [{"name": "v1", "labels": {"version": "v1"}, "trafficPolicy": {
            "loadBalancer": {"localityLbSetting": {"distribute": [
                {"from": "r1/*", "to": {"r1/*": 90, "r2/*": 10}}]}}}}],
    });
    let own = json!({
        "host": "plain.a.svc.cluster.local",
        "trafficPolicy": {"tls": {"mode": "ISTIO_MUTUAL"}},
    });
    let selective = json!({
        "host": "plain.a.svc.cluster.local",
        "workloadSelector": {"matchLabels": {"app": "x"}},
        "trafficPolicy": {"loadBalancer": {"simple": "PASSTHROUGH"}},
    });
    let named = json!({"host": "named.example.com", "trafficPolicy": {"outlierDetection": {}}});
    [
        ("a", "ruled", ruled),
        ("b", "own", own),
        ("a", "selective", selective),
        ("a", "named", named),
    ]
}

fn service(name: &str, resolution: Resolution, distribution: TrafficDistribution) -> Arc<Service> {
    let external = resolution == Resolution::DnsLb;
    let domain = if external {
        "example.com"
    } else {
        "a.svc.cluster.local"
    };
    Service {
        hostname: format!("{name}.{domain}").into(),
        ports: vec![Port {
            name: "http".into(),
            port: 80,
            protocol: Protocol::Unsupported,
        }],
        cluster_vips: BTreeMap::new(),
        default_address: "10.96.0.1".into(),
        auto_allocated_v4: "".into(),
        auto_allocated_v6: "".into(),
        resolution,
        mesh_external: false,
        service_accounts: Vec::new(),
        created: Timestamp(1),
        resource_version: String::new(),
        attributes: Attributes {
            registry: if external {
                Registry::External
            } else {
                Registry::Kubernetes
            },
            name: name.into(),
            namespace: "a".into(),
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
            traffic_distribution: distribution,
            object_name: "".into(),
            race_first_connect: false,
            publish_not_ready_addresses: false,
        },
        source: ConfigKey::new(Kind::Service, "a", name).into(),
        fingerprint: 0,
    }
    .seal()
}

fn endpoint(address: &str, locality: &str, network: &str, cluster: &str) -> Endpoint {
    let locality = Locality::parse(locality);
    let labels = [
        ("version", "v1"),
        ("topology.kubernetes.io/region", &*locality.region),
        ("topology.kubernetes.io/zone", &*locality.zone),
        ("topology.istio.io/network", network),
    ];
    Endpoint {
        addresses: vec![address.into()],
        port: 8080,
        service_port_name: "http".into(),
        legacy_port_key: 0,
        labels: Arc::new(labels.map(|(k, v)| (k.to_owned(), v.to_owned())).into()),
        service_account: "spiffe://cluster.local/ns/a/sa/s".into(),
        network: network.into(),
        locality,
        cluster: cluster.into(),
        weight: 0,
        tls_mode: "istio".into(),
        namespace: "a".into(),
        workload_name: "w".into(),
        hostname: "".into(),
        subdomain: "".into(),
        same_cluster_only: false,
        health: Health::Healthy,
        send_unhealthy: true,
        node_name: "".into(),
    }
}

fn generate(context: &PushContext, node: &Node, cds: &Cds, eds: &Eds) -> [ResourceSet; 2] {
    let class = context.resolve(&context.classify(&Proxy::parse(node).unwrap()));
    let clusters = cds.generate(context, &class, &Interest::Everything);
    let names: Vec<Arc<str>> = clusters.iter().map(|r| r.name().clone()).collect();
    let endpoints = eds.generate(context, &class, &Interest::named(names));
    [clusters, endpoints]
}

#[test]
fn a_cache_filled_by_others_changes_nothing() {
    let context = mesh();
    let nodes = nodes();
    let (cds, eds) = (Cds::new(10_000), Eds::new(10_000));
    for node in &nodes {
        generate(&context, node, &cds, &eds);
    }
    let mut distinct = BTreeSet::new();
    for node in &nodes {
        let shared = generate(&context, node, &cds, &eds);
        let alone = generate(&context, node, &Cds::new(0), &Eds::new(0));
        assert_eq!(shared, alone, "{} {:?}", node.id, node.metadata);
        distinct.insert(shared.map(|set| set.fingerprint()));
    }
    // Otherwise the test would prove nothing.
    assert!(
        distinct.len() > nodes.len() / 2,
        "{} of {} differ",
        distinct.len(),
        nodes.len()
    );
    assert!(cds.stats().hits > 0 && eds.stats().hits > 0);
}

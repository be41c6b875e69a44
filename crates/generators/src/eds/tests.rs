//! Load assignments as the examples of clusters-endpoints §22 have them.

use std::sync::Arc;

use envoy_types::pb::envoy::config::endpoint::v3::{LocalityLbEndpoints, lb_endpoint};
use model::{
    Config, Endpoint, Features, Health, Labels, Locality, Meta, NamespacedName, Node, Protocol,
    Proxy, ProxyType, Resolution, Service, ServiceEndpoints, TrafficDistribution,
    api::mesh::MeshConfig,
    network::{NetworkGateway, NetworkGateways},
    proxy::IpMode,
    service::{Registry, ShardKey},
};
use serde_json::{Value, json};

use super::{
    assignment::{AssignmentInputs, Purpose},
    local::LocalInputs,
    network::Horizon,
    view::{EndpointView, Place},
};
use crate::{
    inputs::{ByJson, Sealed, Shared},
    locality::MeshLocality,
    mtls::NamespacePolicies,
    testing::{
        consolidated,
        flips::{Flip, check_fields},
        service,
    },
};

/// What differs between cases.
struct Case {
    /// The proxy's locality.
    locality: &'static str,
    /// The proxy's network.
    network: &'static str,
    endpoints: Vec<Endpoint>,
    gateways: Vec<NetworkGateway>,
    rule: Option<Value>,
    distribution: TrafficDistribution,
    purpose: Purpose,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            locality: "r1/z1/s1",
            network: "",
            endpoints: Vec::new(),
            gateways: Vec::new(),
            rule: None,
            distribution: TrafficDistribution::Any,
            purpose: Purpose::Assignment,
        }
    }
}

impl Case {
    fn inputs(self) -> AssignmentInputs {
        let node = Node {
            id: "sidecar~10.0.0.1~client.default~default.svc.cluster.local".to_owned(),
            metadata: json!({"NETWORK": self.network})
                .as_object()
                .cloned()
                .unwrap(),
            ..Node::default()
        };
        let proxy = Proxy::parse(&node).unwrap();
        let view = EndpointView::new(&proxy, &MeshConfig::default(), &Features::default());
        let locality = Locality::parse(self.locality);
        let labels = topology(&locality, self.network);
        let mut service: Service = service(
            Registry::Kubernetes,
            Resolution::ClientSideLb,
            &[("http", 80, Protocol::Http)],
        );
        service.attributes.traffic_distribution = self.distribution;
        let shard = ShardKey {
            cluster: "c1".into(),
            registry: Registry::Kubernetes,
        };
        let endpoints = self.endpoints.into_iter().map(Arc::new).collect();
        let gateways = NetworkGateways {
            resolved: self.gateways,
            ..NetworkGateways::default()
        };
        AssignmentInputs {
            view: Sealed::share(view),
            place: Some(Sealed::share(Place { locality, labels })),
            service: Shared::new(&service.seal()),
            port: 80,
            subset: String::new(),
            rule: self
                .rule
                .map(|spec| Shared::new(&Arc::new(consolidated(spec)))),
            endpoints: ServiceEndpoints::collect([(shard, endpoints)])
                .as_ref()
                .map(Shared::new),
            horizon: Sealed::share(Horizon::new(&Arc::new(gateways))),
            peer_authentications: Sealed::share(NamespacePolicies::default()),
            cluster_local: false,
            purpose: self.purpose,
        }
    }
}

fn topology(locality: &Locality, network: &str) -> Labels {
    [
        ("topology.kubernetes.io/region", &*locality.region),
        ("topology.kubernetes.io/zone", &*locality.zone),
        ("topology.istio.io/subzone", &*locality.subzone),
        ("topology.istio.io/network", network),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

fn endpoint(address: &str, locality: &str) -> Endpoint {
    in_network(address, locality, "", "c1")
}

fn in_network(address: &str, locality: &str, network: &str, cluster: &str) -> Endpoint {
    let locality = Locality::parse(locality);
    Endpoint {
        addresses: vec![address.into()],
        port: 8080,
        service_port_name: "http".into(),
        legacy_port_key: 0,
        labels: Arc::new(topology(&locality, network)),
        service_account: "".into(),
        network: network.into(),
        locality,
        cluster: cluster.into(),
        weight: 0,
        tls_mode: "istio".into(),
        namespace: "default".into(),
        workload_name: "w".into(),
        hostname: "".into(),
        subdomain: "".into(),
        same_cluster_only: false,
        health: Health::Healthy,
        send_unhealthy: true,
        node_name: "".into(),
    }
}

fn gateway(network: &str, cluster: &str, address: &str) -> NetworkGateway {
    NetworkGateway {
        network: network.into(),
        cluster: cluster.into(),
        address: address.into(),
        port: 15443,
        hbone_port: 0,
        service_account: "".into(),
    }
}

/// One group in short: `region/zone/subzone pPRIORITY wWEIGHT: address*weight …`.
fn short(group: &LocalityLbEndpoints) -> String {
    let locality = group.locality.as_ref().unwrap();
    let place = [&*locality.region, &locality.zone, &locality.sub_zone].join("/");
    let weight = |value: Option<u32>| value.map_or("-".to_owned(), |w| w.to_string());
    let members = group.lb_endpoints.iter().map(|member| {
        let Some(lb_endpoint::HostIdentifier::Endpoint(endpoint)) = &member.host_identifier else {
            return "?".to_owned();
        };
        let address = endpoint.address.as_ref().and_then(|a| a.address.as_ref());
        let text = match address {
            Some(envoy_types::pb::envoy::config::core::v3::address::Address::SocketAddress(a)) => {
                a.address.clone()
            }
            other => format!("{other:?}"),
        };
        format!(
            "{text}*{}",
            weight(member.load_balancing_weight.map(|w| w.value))
        )
    });
    let members: Vec<String> = members.collect();
    format!(
        "{place} p{} w{}: {}",
        group.priority,
        weight(group.load_balancing_weight.map(|w| w.value)),
        members.join(" ")
    )
}

#[track_caller]
fn check(case: Case, expected: &[&str]) {
    let groups = case.inputs().build();
    assert_eq!(groups.iter().map(short).collect::<Vec<_>>(), expected);
}

#[test]
fn one_endpoint_in_full() {
    let mut reviews = endpoint("10.0.0.1", "");
    reviews.workload_name = "reviews-v1".into();
    reviews.labels = Arc::new(
        [("app", "reviews"), ("version", "v1")]
            .map(|(k, v)| (k.into(), v.into()))
            .into(),
    );
    reviews.cluster = "Kubernetes".into();
    let case = Case {
        endpoints: vec![reviews],
        ..Case::default()
    };
    let assignment = envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment {
        cluster_name: "c".to_owned(),
        endpoints: case.inputs().build(),
        ..Default::default()
    };
    let name = <envoy_types::pb::envoy::config::endpoint::v3::ClusterLoadAssignment as prost::Name>::full_name();
    let found = envoy_json::to_json(&name, &envoy_json::canonical(&assignment)).unwrap();
    assert_eq!(
        found["endpoints"],
        json!([{"locality": {}, "loadBalancingWeight": 1, "lbEndpoints": [{
        "endpoint": {"address": {"socketAddress": {"address": "10.0.0.1", "portValue": 8080}}},
        "healthStatus": "HEALTHY", "loadBalancingWeight": 1, "metadata": {"filterMetadata": {
            "envoy.transport_socket_match": {"tlsMode": "istio"},
            "istio": {"workload": "reviews-v1;default;reviews;v1;Kubernetes"}}}}]}])
    );
}

#[test]
fn outlier_detection_alone_enables_failover() {
    let endpoints = || {
        vec![
            endpoint("10.0.0.1", "r1/z1/s1"),
            endpoint("10.0.0.2", "r1/z2/s1"),
            endpoint("10.0.0.3", "r2/z1/s1"),
            endpoint("10.0.0.4", ""),
        ]
    };
    check(
        Case {
            endpoints: endpoints(),
            rule: Some(json!({"host": "a", "trafficPolicy": {"outlierDetection": {}}})),
            ..Case::default()
        },
        &[
            "// p2 w1: 10.0.0.4*1",
            "r1/z1/s1 p0 w1: 10.0.0.1*1",
            "r1/z2/s1 p1 w1: 10.0.0.2*1",
            "r2/z1/s1 p2 w1: 10.0.0.3*1",
        ],
    );
    check(
        Case {
            endpoints: endpoints(),
            ..Case::default()
        },
        &[
            "// p0 w1: 10.0.0.4*1",
            "r1/z1/s1 p0 w1: 10.0.0.1*1",
            "r1/z2/s1 p0 w1: 10.0.0.2*1",
            "r2/z1/s1 p0 w1: 10.0.0.3*1",
        ],
    );
}

#[test]
fn distribution_shares_by_weight_and_empties_the_rest() {
    let localities = [
        "r1/z1/a", "r1/z1/a", "r1/z1/b", "r1/z2/a", "r2/z1/a", "r2/z1/a", "r2/z1/a",
    ];
    let endpoints = localities.iter().enumerate();
    check(
        Case {
            endpoints: endpoints
                .map(|(n, l)| endpoint(&format!("10.0.0.{n}"), l))
                .collect(),
            rule: Some(
                json!({"host": "a", "trafficPolicy": {"loadBalancer": {"localityLbSetting": {
                "distribute": [{"from": "r1/*", "to": {"r1/z1/*": 80, "r1/z2/*": 20}}]}}}}),
            ),
            ..Case::default()
        },
        &[
            "r1/z1/a p0 w54: 10.0.0.0*1 10.0.0.1*1",
            "r1/z1/b p0 w27: 10.0.0.2*1",
            "r1/z2/a p0 w20: 10.0.0.3*1",
            "r2/z1/a p0 w3: ",
        ],
    );
}

#[test]
fn traffic_distribution_prefers_network_region_and_zone() {
    check(
        Case {
            locality: "r1/z1",
            network: "n1",
            distribution: TrafficDistribution::PreferSameZone,
            endpoints: vec![
                in_network("10.0.0.1", "r1/z1", "n1", "c1"),
                in_network("10.0.0.2", "r1/z2", "n1", "c1"),
                in_network("10.0.0.3", "r2/z1", "n1", "c1"),
                in_network("10.0.0.4", "r1/z1", "n2", "c1"),
            ],
            ..Case::default()
        },
        &[
            "r1/z1/ p0 w1: 10.0.0.1*1",
            "r1/z1/ p3 w1: 10.0.0.4*1",
            "r1/z2/ p1 w1: 10.0.0.2*1",
            "r2/z1/ p2 w1: 10.0.0.3*1",
        ],
    );
}

#[test]
fn endpoints_of_other_networks_become_gateways() {
    let case = |plain: bool| {
        let mut endpoints = vec![
            in_network("10.0.0.1", "", "net1", "c1"),
            in_network("10.0.0.2", "", "net2", "c2a"),
            in_network("10.0.0.3", "", "net2", "c2b"),
            in_network("10.0.0.4", "", "net2", "c2b"),
        ];
        if plain {
            endpoints[2].tls_mode = "disabled".into();
        }
        Case {
            network: "net1",
            endpoints,
            gateways: vec![
                gateway("net1", "c1", "1.0.0.1"),
                gateway("net2", "c2a", "2.0.0.1"),
                gateway("net2", "c2b", "2.0.0.2"),
                gateway("net2", "c2b", "2.0.0.3"),
            ],
            ..Case::default()
        }
    };
    check(
        case(false),
        &["// p0 w24: 10.0.0.1*6 2.0.0.1*6 2.0.0.2*6 2.0.0.3*6"],
    );
    check(
        case(true),
        &["// p0 w18: 10.0.0.1*6 2.0.0.1*6 2.0.0.2*3 2.0.0.3*3"],
    );
}

#[test]
fn peers_of_other_networks_get_mutual_tls_only() {
    let mut plain = endpoint("10.0.0.2", "r1/z1/s1");
    plain.tls_mode = "disabled".into();
    let mut alone = endpoint("10.0.0.3", "r1/z2/s1");
    alone.tls_mode = "disabled".into();
    check(
        Case {
            endpoints: vec![endpoint("10.0.0.1", "r1/z1/s1"), plain, alone],
            purpose: Purpose::SniDnat,
            ..Case::default()
        },
        &["r1/z1/s1 p0 w1: 10.0.0.1*1", "r1/z2/s1 p0 w-: "],
    );
}

#[test]
fn the_place_of_a_proxy_counts_only_where_it_matters() {
    let fingerprint = |locality, rule: Option<Value>| {
        let inputs = Case {
            locality,
            rule,
            ..Case::default()
        }
        .inputs();
        let matters = super::assignment::depends_on_place(
            &inputs.service,
            &inputs.locality_setting(),
            inputs.detects_outliers(),
        );
        let place = inputs.place.clone().filter(|_| matters);
        model::fingerprint::of(&AssignmentInputs { place, ..inputs })
    };
    let rule = || Some(json!({"host": "a", "trafficPolicy": {"outlierDetection": {}}}));
    assert_eq!(fingerprint("r1/z1", None), fingerprint("r2/z1", None));
    assert_ne!(fingerprint("r1/z1", rule()), fingerprint("r2/z1", rule()));
}

impl Flip for Place {
    fn flip(&mut self) {
        self.locality.region.flip();
    }
}

impl Flip for EndpointView {
    fn flip(&mut self) {
        self.cluster.flip();
    }
}

/// Counts by its content.
impl Flip for Shared<Sealed<Horizon>> {
    fn flip(&mut self) {
        *self = Sealed::share(Horizon::new(&Arc::default()));
    }
}

impl Flip for NamespacePolicies {
    fn flip(&mut self) {
        let strict = Config {
            meta: Meta {
                name: "default".into(),
                namespace: "default".into(),
                ..Meta::default()
            },
            spec: serde_json::from_value(json!({"mtls": {"mode": "STRICT"}})).unwrap(),
        };
        let name = NamespacedName::new("default", "default");
        let policies = [(name, Arc::new(strict))].into_iter().collect();
        *self = Self::new(&policies, "istio-system", "default");
    }
}

/// Inputs with something of everything.
pub(crate) fn sample() -> AssignmentInputs {
    Case {
        endpoints: vec![endpoint("10.0.0.1", "r1/z1/s1")],
        gateways: vec![gateway("n2", "c2", "1.2.3.4")],
        rule: Some(json!({"host": "reviews"})),
        ..Case::default()
    }
    .inputs()
}

#[test]
fn every_field_of_the_inputs_counts() {
    let view = || EndpointView {
        network_view: vec!["n".to_owned()],
        ..EndpointView::clone(&sample().view)
    };
    check_fields!(
        sample,
        AssignmentInputs {
            view,
            place,
            service,
            port,
            subset,
            rule,
            endpoints,
            horizon,
            peer_authentications,
            cluster_local,
            purpose: Purpose::SniDnat,
        }
    );
    check_fields!(
        || Place::clone(&sample().place.unwrap()),
        Place {
            locality: Locality::default(),
            labels
        }
    );
    check_fields!(
        view,
        EndpointView {
            proxy_type: ProxyType::Router,
            ip_mode: IpMode::Dual,
            cluster,
            network,
            network_view,
            hbone,
            locality: ByJson(MeshLocality {
                zone_aware: Some(model::api::common::ZoneAwareLbSetting::default()),
                ..Default::default()
            }),
            dual_stack,
            prefer_hbone,
            send_unhealthy,
            auto_send_unhealthy,
            telemetry,
            canonical_external,
            session_label,
            draining_label,
        }
    );
    check_fields!(
        || LocalInputs {
            assignment: sample(),
            workload: "w".to_owned(),
            hashes: ["1".to_owned(), "2".to_owned()],
            region: "r1".into(),
        },
        LocalInputs {
            assignment: AssignmentInputs {
                port: 81,
                ..sample()
            },
            workload,
            hashes,
            region,
        }
    );
}

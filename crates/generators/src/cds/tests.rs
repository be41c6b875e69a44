//! Clusters as the examples of clusters-endpoints §22 and the recorded bases have them.

use std::{collections::BTreeSet, sync::Arc};

use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use model::{
    Features, Node, Protocol, Proxy, Resolution, Service, api::mesh::MeshConfig, service::Registry,
};
use serde_json::{Value, json};

use super::{
    client::Client,
    fixed,
    forward_proxy::ForwardProxyInputs,
    inbound::{Destination, InboundClusterInputs},
    outbound::OutboundClusterInputs,
    upstream_tls::ServerMode,
};
use crate::{
    inputs::{ByJson, Shared},
    testing::{
        consolidated,
        flips::{Flip, check_fields},
        service,
    },
};

/// What differs between cases.
struct Case {
    kind: &'static str,
    metadata: Value,
    extensions: Option<BTreeSet<String>>,
    mesh: MeshConfig,
    features: Features,
}

impl Default for Case {
    fn default() -> Self {
        Self {
            kind: "sidecar",
            metadata: json!({}),
            extensions: None,
            mesh: MeshConfig::default(),
            features: Features::default(),
        }
    }
}

impl Case {
    fn client(&self) -> Shared<Client> {
        let node = Node {
            id: format!(
                "{}~10.0.0.1~client.default~default.svc.cluster.local",
                self.kind
            ),
            metadata: self.metadata.as_object().cloned().unwrap_or_default(),
            extensions: self.extensions.clone(),
            ..Node::default()
        };
        let proxy = Proxy::parse(&node).unwrap();
        Shared::new(&Arc::new(Client::new(&proxy, &self.mesh, &self.features)))
    }

    fn outbound(&self, service: Service, port: u16, rule: Option<Value>) -> OutboundClusterInputs {
        OutboundClusterInputs {
            client: self.client(),
            service: Shared::new(&service.seal()),
            port,
            subset: None,
            rule: rule.map(|spec| Shared::new(&Arc::new(consolidated(spec)))),
            sni_dnat: false,
            accounts: Arc::from(["spiffe://cluster.local/ns/default/sa/reviews".into()]),
            certificate: None,
            server: ServerMode::Offered,
            all_tunnelled: false,
            inline: None,
        }
    }
}

#[test]
fn gateways_present_a_certificate_where_a_rule_asks_for_tls_without_one() {
    let case = Case {
        kind: "router",
        ..Case::default()
    };
    let ports = [("http", 80, Protocol::Http)];
    let presented = |mode: &str| {
        let tls = json!({"mode": mode, "credentialName": "roots", "sni": "a"});
        let rule = json!({"host": "reviews", "trafficPolicy": {"tls": tls}});
        let inputs = OutboundClusterInputs {
            certificate: Some("kubernetes-gateway://edge/c".into()),
            ..case.outbound(reviews(&ports), 80, Some(rule))
        };
        let cluster = to_json(&inputs.build().unwrap());
        let context = &cluster["transportSocket"]["typedConfig"]["commonTlsContext"];
        context["tlsCertificateSdsSecretConfigs"][0]["name"].clone()
    };
    assert_eq!(presented("SIMPLE"), "kubernetes-gateway://edge/c");
    assert_eq!(presented("MUTUAL"), "kubernetes://roots");
    assert_eq!(presented("DISABLE"), Value::Null);
}

fn reviews(ports: &[(&str, u16, Protocol)]) -> Service {
    service(Registry::Kubernetes, Resolution::ClientSideLb, ports)
}

/// Replaces the abbreviations of the specification.
fn expand(value: Value) -> Value {
    match value {
        Value::String(text) => match text.as_str() {
            "CB" => {
                let max = u32::MAX;
                json!({"thresholds": [{"maxConnections": max, "maxPendingRequests": max,
                    "maxRequests": max, "maxRetries": max}]})
            }
            "MX" => json!({"name": "istio.metadata_exchange", "typedConfig": {
                "@type": "type.googleapis.com/udpa.type.v1.TypedStruct",
                "typeUrl": "type.googleapis.com/envoy.tcp.metadataexchange.config.MetadataExchange",
                "value": {"protocol": "istio-peer-exchange", "enable_discovery": true}}}),
            "SDS(default)" => sds("default"),
            "SDS(ROOTCA)" => sds("ROOTCA"),
            "TLSPARAMS" => json!({"tlsMinimumProtocolVersion": "TLSv1_2",
                "tlsMaximumProtocolVersion": "TLSv1_3"}),
            "RAW" => json!({"name": "envoy.transport_sockets.raw_buffer", "typedConfig": {
                "@type": "type.googleapis.com/envoy.extensions.transport_sockets.raw_buffer.v3.RawBuffer"}}),
            _ => Value::String(text),
        },
        Value::Array(items) => items.into_iter().map(expand).collect(),
        Value::Object(map) => map.into_iter().map(|(k, v)| (k, expand(v))).collect(),
        other => other,
    }
}

fn sds(name: &str) -> Value {
    json!({"name": name, "sdsConfig": {
        "apiConfigSource": {"apiType": "GRPC", "grpcServices": [{"envoyGrpc": {"clusterName": "sds-grpc"}}],
            "setNodeOnFirstMessageOnly": true, "transportApiVersion": "V3"},
        "initialFetchTimeout": "0s", "resourceApiVersion": "V3"}})
}

fn to_json(cluster: &Cluster) -> Value {
    let name = <Cluster as prost::Name>::full_name();
    envoy_json::to_json(&name, &envoy_json::canonical(cluster)).unwrap()
}

/// The whole cluster.
#[track_caller]
fn check(cluster: &Cluster, expected: Value) {
    let (found, expected) = (to_json(cluster), expand(expected));
    assert_eq!(found, expected, "\nfound    {found}\nexpected {expected}");
}

/// Some fields of the cluster; a field that is expected to be null must be absent.
#[track_caller]
fn check_fields(cluster: &Cluster, expected: Value) {
    let found = to_json(cluster);
    let Value::Object(expected) = expand(expected) else {
        panic!("an object of fields")
    };
    for (key, value) in expected {
        assert_eq!(found[&key], value, "{key}");
    }
}

#[test]
fn a_service_with_automatic_mutual_tls() {
    let service = reviews(&[("http", 80, Protocol::Http)]);
    let cluster = Case::default().outbound(service, 80, None).build().unwrap();
    check(
        &cluster,
        json!({
            "name": "outbound|80||reviews.default.svc.cluster.local", "type": "EDS",
            "edsClusterConfig": {"serviceName": "outbound|80||reviews.default.svc.cluster.local",
                "edsConfig": {"ads": {}, "initialFetchTimeout": "0s", "resourceApiVersion": "V3"}},
            "connectTimeout": "10s", "lbPolicy": "LEAST_REQUEST", "circuitBreakers": "CB",
            "commonLbConfig": {"healthyPanicThreshold": {}},
            "altStatName": "outbound|80||reviews.default.svc.cluster.local;",
            "metadata": {"filterMetadata": {"istio": {"services": [
                {"host": "reviews.default.svc.cluster.local", "name": "reviews", "namespace": "default"}]}}},
            "filters": ["MX"],
            "transportSocketMatches": [
                {"name": "tlsMode-istio", "match": {"tlsMode": "istio"}, "transportSocket": {
                    "name": "envoy.transport_sockets.tls", "typedConfig": {
                        "@type": "type.googleapis.com/envoy.extensions.transport_sockets.tls.v3.UpstreamTlsContext",
                        "sni": "outbound_.80_._.reviews.default.svc.cluster.local",
                        "commonTlsContext": {"tlsParams": "TLSPARAMS",
                            "alpnProtocols": ["istio-peer-exchange", "istio"],
                            "tlsCertificateSdsSecretConfigs": ["SDS(default)"],
                            "combinedValidationContext": {
                                "defaultValidationContext": {"matchSubjectAltNames": [
                                    {"exact": "spiffe://cluster.local/ns/default/sa/reviews"}]},
                                "validationContextSdsSecretConfig": "SDS(ROOTCA)"}}}}},
                {"name": "tlsMode-disabled", "match": {}, "transportSocket": "RAW"}],
        }),
    );
}

#[test]
fn subset_pool_and_outlier_detection_on_a_grpc_port() {
    let service = || reviews(&[("grpc", 9090, Protocol::Grpc)]);
    let rule = || {
        json!({
            "host": "reviews.default.svc.cluster.local",
            "trafficPolicy": {
                "connectionPool": {"http": {"maxConcurrentStreams": 50, "http2MaxRequests": 10},
                    "tcp": {"connectTimeout": "2s"}},
                "outlierDetection": {"consecutive5xxErrors": 3, "interval": "5s"}},
            "subsets": [{"name": "v1", "labels": {"version": "v1"}, "trafficPolicy": {
                "connectionPool": {"http": {"maxRetries": 4}}}}],
        })
    };
    let options = |options: Value| {
        let mut options = options;
        options["@type"] =
            "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions".into();
        json!({"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": options})
    };
    let max = u32::MAX;
    let mut inputs = Case::default().outbound(service(), 9090, Some(rule()));
    check_fields(
        &inputs.build().unwrap(),
        json!({
            "connectTimeout": "2s",
            "circuitBreakers": {"thresholds": [{"maxConnections": max, "maxPendingRequests": max,
                "maxRequests": 10, "maxRetries": max}]},
            "typedExtensionProtocolOptions": options(json!({"commonHttpProtocolOptions": {},
                "explicitHttpConfig": {"http2ProtocolOptions": {"maxConcurrentStreams": 50}}})),
            "outlierDetection": {"consecutive5xx": 3, "enforcingConsecutive5xx": 100,
                "enforcingSuccessRate": 0, "interval": "5s"},
        }),
    );
    inputs.subset = Some(0);
    let subset = inputs.build().unwrap();
    check_fields(
        &subset,
        json!({
            "name": "outbound|9090|v1|reviews.default.svc.cluster.local",
            "connectTimeout": "10s",
            "circuitBreakers": {"thresholds": [{"maxConnections": max, "maxPendingRequests": max,
                "maxRequests": max, "maxRetries": 4}]},
            "typedExtensionProtocolOptions":
                options(json!({"explicitHttpConfig": {"http2ProtocolOptions": {}}})),
            "metadata": {"filterMetadata": {"istio": {
                "config": "/apis/networking.istio.io/v1/namespaces/default/destination-rule/r",
                "subset": "v1",
                "services": [{"host": "reviews.default.svc.cluster.local", "name": "reviews",
                    "namespace": "default"}]}}},
        }),
    );
    let sni =
        &to_json(&subset)["transportSocketMatches"][0]["transportSocket"]["typedConfig"]["sni"];
    assert_eq!(sni, "outbound_.9090_.v1_.reviews.default.svc.cluster.local");
}

#[test]
fn headless_services_by_client_and_endpoints() {
    let headless = || {
        service(
            Registry::Kubernetes,
            Resolution::Passthrough,
            &[("tcp", 5432, Protocol::Tcp)],
        )
    };
    let build = |kind, server| {
        let case = Case {
            kind,
            ..Case::default()
        };
        let inputs = OutboundClusterInputs {
            server,
            ..case.outbound(headless(), 5432, None)
        };
        inputs.build().unwrap()
    };
    let original = json!({"type": "ORIGINAL_DST", "lbPolicy": "CLUSTER_PROVIDED",
        "edsClusterConfig": null, "transportSocketMatches": null});
    let mutual = build("sidecar", ServerMode::Offered);
    check_fields(&mutual, original.clone());
    assert!(mutual.transport_socket.is_some());
    {
        let modes = ServerMode::Disable;
        let plain = build("sidecar", modes);
        check_fields(&plain, original);
        assert!(plain.transport_socket.is_none());
        let router = build("router", modes);
        check_fields(&router, json!({"type": "EDS", "lbPolicy": "LEAST_REQUEST"}));
        assert!(router.transport_socket.is_none() && router.transport_socket_matches.is_empty());
    }
    assert_eq!(
        build("router", ServerMode::Offered)
            .transport_socket_matches
            .len(),
        2
    );
}

#[test]
fn stock_envoy_gets_no_filter_of_istios_build() {
    let case = Case {
        extensions: Some(BTreeSet::from(["envoy.filters.http.router".to_owned()])),
        ..Case::default()
    };
    let service = reviews(&[("http", 80, Protocol::Http)]);
    let cluster = case.outbound(service, 80, None).build().unwrap();
    assert!(cluster.filters.is_empty());
    let tls = &to_json(&cluster)["transportSocketMatches"][0]["transportSocket"]["typedConfig"];
    assert_eq!(tls["commonTlsContext"]["alpnProtocols"], json!(["istio"]));
}

#[test]
fn fixed_clusters() {
    let client = Case::default().client();
    check(
        &fixed::black_hole(&client),
        json!({"name": "BlackHoleCluster", "type": "STATIC",
        "connectTimeout": "10s", "altStatName": "BlackHoleCluster;"}),
    );
    check(
        &fixed::inbound_passthrough(&client),
        json!({
            "name": "InboundPassthroughCluster", "type": "ORIGINAL_DST", "connectTimeout": "10s",
            "lbPolicy": "CLUSTER_PROVIDED", "altStatName": "PassthroughCluster;", "circuitBreakers": "CB",
            "typedExtensionProtocolOptions": {"envoy.extensions.upstreams.http.v3.HttpProtocolOptions": {
                "@type": "type.googleapis.com/envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
                "commonHttpProtocolOptions": {"idleTimeout": "300s"},
                "useDownstreamProtocolConfig": {"httpProtocolOptions": {}, "http2ProtocolOptions": {}}}},
            "upstreamBindConfig": {"sourceAddress": {"address": "127.0.0.6", "portValue": 0}},
        }),
    );
}

#[test]
fn an_inbound_port_and_a_unix_socket() {
    let service = reviews(&[("http", 80, Protocol::Http)]).seal();
    let mut inputs = InboundClusterInputs {
        client: Case::default().client(),
        target_port: 9080,
        port: service.ports[0].clone(),
        destination: Destination::Original,
        primary: Some(Shared::new(&service)),
        placeholder: String::new(),
        services: vec![Shared::new(&service)],
        rule: None,
        pool: ByJson(None),
    };
    check(
        &inputs.build(),
        json!({
            "name": "inbound|9080||", "type": "ORIGINAL_DST", "connectTimeout": "10s",
            "lbPolicy": "CLUSTER_PROVIDED", "circuitBreakers": "CB", "commonLbConfig": {},
            "cleanupInterval": "9223372035s", "altStatName": "inbound|9080||;",
            "upstreamBindConfig": {"sourceAddress": {"address": "127.0.0.6", "portValue": 0}},
            "metadata": {"filterMetadata": {"istio": {"services": [
                {"host": "reviews.default.svc.cluster.local", "name": "reviews", "namespace": "default"}]}}},
        }),
    );
    inputs.destination = Destination::Pipe("/var/run/app.sock".to_owned());
    check_fields(
        &inputs.build(),
        json!({
            "type": "STATIC", "lbPolicy": null, "cleanupInterval": null,
            "upstreamBindConfig": {"sourceAddress": {"address": "127.0.0.6", "portValue": 0}},
            "loadAssignment": {"clusterName": "inbound|9080||", "endpoints": [{"lbEndpoints": [
                {"endpoint": {"address": {"pipe": {"path": "/var/run/app.sock"}}}}]}]},
        }),
    );
}

/// Counts by its content.
impl Flip for Shared<Client> {
    fn flip(&mut self) {
        let kind = "router";
        *self = Case {
            kind,
            ..Case::default()
        }
        .client();
    }
}

#[test]
fn every_field_of_the_inputs_counts() {
    let ports = [("http", 80, Protocol::Http)];
    let client = || Case::default().client();
    let service = || Shared::new(&reviews(&ports).seal());
    let rule = || {
        Some(Shared::new(&Arc::new(consolidated(
            json!({"host": "reviews"}),
        ))))
    };
    let accounts = || Arc::from(["spiffe://cluster.local/ns/default/sa/reviews".into()]);
    check_fields!(
        || OutboundClusterInputs {
            subset: Some(0),
            inline: Some(crate::eds::tests::sample()),
            ..Case::default().outbound(reviews(&ports), 80, Some(json!({"host": "reviews"})))
        },
        OutboundClusterInputs {
            client,
            service,
            port,
            subset,
            rule,
            sni_dnat,
            accounts,
            certificate: Some("kubernetes-gateway://a/b".into()),
            server: ServerMode::Disable,
            all_tunnelled,
            inline,
        }
    );
    check_fields!(
        || ForwardProxyInputs {
            client: client(),
            service: service(),
            port: 80,
            rule: rule(),
            accounts: accounts(),
            server: ServerMode::Offered,
        },
        ForwardProxyInputs {
            client,
            service,
            port,
            rule,
            accounts,
            server: ServerMode::Disable
        }
    );
    check_fields!(
        || InboundClusterInputs {
            client: client(),
            target_port: 9080,
            port: service().ports[0].clone(),
            destination: Destination::Original,
            primary: Some(service()),
            placeholder: String::new(),
            services: vec![service()],
            rule: rule(),
            pool: ByJson(None),
        },
        InboundClusterInputs {
            client,
            target_port,
            port: reviews(&[("http", 81, Protocol::Http)]).ports[0].clone(),
            destination: Destination::Pipe("/var/run/app.sock".to_owned()),
            primary,
            placeholder,
            services,
            rule,
            pool: ByJson(Some(model::api::common::ConnectionPool::default())),
        }
    );
}

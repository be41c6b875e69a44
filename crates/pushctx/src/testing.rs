//! States and proxies of unit tests.

use std::{collections::BTreeMap, sync::Arc};

use intake::Decoder;
use model::{
    ConfigKey, ExportTo, Kind, Labels, MeshState, Node, Object, Port, Protocol, Proxy, Resolution,
    Service, Timestamp,
    service::{Attributes, Registry, ServiceType, TrafficDistribution},
};

use crate::PushContext;

/// Reads objects from YAML; every one must be read without findings.
#[track_caller]
pub(crate) fn state(yaml: &str) -> MeshState {
    let mut state = MeshState::default();
    add(&mut state, yaml);
    state
}

/// Adds objects to a state.
#[track_caller]
pub(crate) fn add(state: &mut MeshState, yaml: &str) {
    for object in read(yaml) {
        state.objects.insert(object);
    }
}

/// Reads objects, in order.
#[track_caller]
pub(crate) fn read(yaml: &str) -> Vec<Object> {
    let decoded = Decoder {
        admitted: true,
        ..Decoder::default()
    }
    .decode("test.yaml", yaml);
    let mut errors = decoded
        .findings
        .iter()
        .filter(|f| f.severity == intake::Severity::Error);
    assert!(
        !decoded.broken && errors.next().is_none(),
        "{:#?}",
        decoded.findings
    );
    decoded.objects
}

/// A service that tests bend to their needs before they add it.
pub(crate) fn service(hostname: &str, namespace: &str, ports: &[u16]) -> Service {
    let is_kubernetes = hostname.contains(".svc.");
    let name = if is_kubernetes {
        hostname.split('.').next().unwrap()
    } else {
        hostname
    };
    let port = |number: &u16| Port {
        name: format!("http-{number}").into(),
        port: *number,
        protocol: Protocol::Http,
    };
    Service {
        hostname: hostname.into(),
        ports: ports.iter().map(port).collect(),
        cluster_vips: BTreeMap::new(),
        default_address: "10.0.0.1".into(),
        auto_allocated_v4: "".into(),
        auto_allocated_v6: "".into(),
        resolution: Resolution::ClientSideLb,
        mesh_external: false,
        service_accounts: Vec::new(),
        created: Timestamp(0),
        resource_version: String::new(),
        attributes: Attributes {
            registry: if is_kubernetes {
                Registry::Kubernetes
            } else {
                Registry::External
            },
            name: name.into(),
            namespace: namespace.into(),
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
            object_name: if is_kubernetes {
                "".into()
            } else {
                hostname.into()
            },
            race_first_connect: false,
            publish_not_ready_addresses: false,
        },
        source: ConfigKey::new(Kind::Service, namespace, name).into(),
        fingerprint: 0,
    }
}

/// A Kubernetes service named `name.namespace`.
pub(crate) fn kubernetes(name: &str, ports: &[u16]) -> Service {
    let (_, namespace) = name.split_once('.').unwrap();
    service(&format!("{name}.svc.cluster.local"), namespace, ports)
}

/// Adds services to a state.
pub(crate) fn add_services(state: &mut MeshState, services: impl IntoIterator<Item = Service>) {
    for service in services {
        let service = service.seal();
        state.services.insert(service.id(), service);
    }
}

/// A sidecar of pod `name.namespace` with an address, labels from `metadata`.
pub(crate) fn sidecar(name: &str, ip: &str, metadata: serde_json::Value) -> Proxy {
    let (_, namespace) = name.split_once('.').unwrap();
    let serde_json::Value::Object(mut metadata) = metadata else {
        panic!("not an object")
    };
    metadata.insert("NAMESPACE".into(), namespace.into());
    metadata.insert("CLUSTER_ID".into(), "Kubernetes".into());
    let id = format!("sidecar~{ip}~{name}~{namespace}.svc.cluster.local");
    Proxy::parse(&Node {
        id,
        metadata,
        ..Node::default()
    })
    .unwrap()
}

/// Host names without the part that all Kubernetes services share.
pub(crate) fn hosts<'a>(services: impl IntoIterator<Item = &'a Arc<Service>>) -> Vec<String> {
    services
        .into_iter()
        .map(|s| {
            let ports: Vec<_> = s.ports.iter().map(|p| p.port.to_string()).collect();
            format!(
                "{}:{}",
                s.hostname.trim_end_matches(".svc.cluster.local"),
                ports.join(",")
            )
        })
        .collect()
}

/// Builds a snapshot of objects and services.
#[track_caller]
pub(crate) fn snapshot(yaml: &str, services: impl IntoIterator<Item = Service>) -> PushContext {
    let mut state = state(yaml);
    add_services(&mut state, services);
    PushContext::build(state)
}

//! Kubernetes Service to service (service-registry §4).

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Config, ConfigKey, ExportTo, Kind, Labels, Meta, NamespacedName, Port, Protocol, Resolution,
    Service, Table,
    api::kubernetes,
    selects,
    service::{Attributes, Registry, ServiceType, TrafficDistribution, UNSPECIFIED_ADDRESS},
};

use super::settings::Settings;

const EXPORT_TO_ANNOTATION: &str = "networking.istio.io/exportTo";
const CANONICAL_ACCOUNTS_ANNOTATION: &str = "alpha.istio.io/canonical-serviceaccounts";
const KUBERNETES_ACCOUNTS_ANNOTATION: &str = "alpha.istio.io/kubernetes-serviceaccounts";
const TRAFFIC_DISTRIBUTION_ANNOTATION: &str = "networking.istio.io/traffic-distribution";
const NODE_SELECTOR_ANNOTATION: &str = "traffic.istio.io/nodeSelector";

/// `clusterIP` of headless services.
const HEADLESS: &str = "None";

/// Tells whether a Service is headless: clients use the addresses of its pods.
pub(crate) fn is_headless(spec: &kubernetes::ServiceSpec) -> bool {
    spec.cluster_ip == HEADLESS
}

/// Derives the service of a Kubernetes Service.
pub(crate) fn derive(
    config: &Config<kubernetes::Service>,
    namespace: Option<&Meta>,
    nodes: &Table<kubernetes::Node>,
    settings: &Settings,
) -> Arc<Service> {
    let Config {
        meta,
        spec: kubernetes::Service { spec, .. },
    } = config;
    let external = spec.r#type == "ExternalName" && !spec.external_name.is_empty();
    let resolution = if is_headless(spec) {
        Resolution::Passthrough
    } else if external {
        Resolution::Alias
    } else {
        Resolution::ClientSideLb
    };
    let vips = vips(spec);
    let service_type = match spec.r#type.as_str() {
        "NodePort" => ServiceType::NodePort,
        "LoadBalancer" => ServiceType::LoadBalancer,
        "ExternalName" => ServiceType::ExternalName,
        _ => ServiceType::ClusterIp,
    };
    let node_selector = match service_type {
        ServiceType::NodePort => node_selector(&meta.annotations),
        ServiceType::ClusterIp | ServiceType::LoadBalancer | ServiceType::ExternalName => None,
    };
    let addresses = external_addresses(config, service_type, node_selector.as_ref(), nodes);
    let node_ports: BTreeMap<u16, u16> = spec
        .ports
        .iter()
        .filter(|p| node_selector.is_some() && p.node_port != 0)
        .filter_map(|p| {
            Some((
                u16::try_from(p.port).ok()?,
                u16::try_from(p.node_port).ok()?,
            ))
        })
        .collect();
    let key = settings.service_key(&meta.namespace, &meta.name);
    Service {
        hostname: key.hostname,
        ports: spec.ports.iter().filter_map(port).collect(),
        default_address: vips[0].clone(),
        cluster_vips: BTreeMap::from([(settings.cluster.clone(), vips)]),
        auto_allocated_v4: settings.words.empty.clone(),
        auto_allocated_v6: settings.words.empty.clone(),
        resolution,
        mesh_external: external,
        service_accounts: service_accounts(meta, settings),
        created: meta.created,
        resource_version: meta.resource_version.clone(),
        attributes: Attributes {
            registry: Registry::Kubernetes,
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            labels: meta.labels.clone(),
            selector: spec.selector.clone(),
            export_to: list(&meta.annotations, EXPORT_TO_ANNOTATION)
                .map(ExportTo::new)
                .unwrap_or_default(),
            aliases: Vec::new(),
            cluster_external_addresses: of_cluster(settings, addresses),
            cluster_external_ports: of_cluster(settings, node_ports),
            passthrough_target_ports: BTreeMap::new(),
            service_type,
            external_name: if external {
                spec.external_name.as_str().into()
            } else {
                settings.words.empty.clone()
            },
            node_local: spec.internal_traffic_policy == "Local",
            traffic_distribution: distribution_field(&spec.traffic_distribution)
                .unwrap_or_else(|| traffic_distribution(&meta.annotations, namespace)),
            object_name: settings.words.empty.clone(),
            race_first_connect: false,
            publish_not_ready_addresses: spec.publish_not_ready_addresses,
        },
        source: ConfigKey {
            kind: Kind::Service,
            namespace: meta.namespace.clone(),
            name: meta.name.clone(),
        }
        .into(),
        fingerprint: 0,
    }
    .seal()
}

/// The virtual addresses; never none: a service without has the unspecified one.
fn vips(spec: &kubernetes::ServiceSpec) -> Vec<Arc<str>> {
    let stated: Vec<Arc<str>> = if spec.cluster_ips.len() > 1 || spec.cluster_ip.is_empty() {
        spec.cluster_ips.iter().map(|a| a.as_str().into()).collect()
    } else {
        vec![spec.cluster_ip.as_str().into()]
    };
    let none = is_headless(spec) || stated.is_empty() || stated.iter().any(|a| **a == *HEADLESS);
    if none {
        vec![UNSPECIFIED_ADDRESS.into()]
    } else {
        stated
    }
}

fn port(port: &kubernetes::ServicePort) -> Option<Port> {
    let number = u16::try_from(port.port).ok()?;
    let protocol = Protocol::of_kubernetes_port(
        number,
        &port.name,
        &port.protocol,
        port.app_protocol.as_deref(),
    );
    Some(Port {
        name: port.name.as_str().into(),
        port: number,
        protocol,
    })
}

fn of_cluster<T: Default + PartialEq>(settings: &Settings, value: T) -> BTreeMap<Arc<str>, T> {
    if value == T::default() {
        return BTreeMap::new();
    }
    BTreeMap::from([(settings.cluster.clone(), value)])
}

fn service_accounts(meta: &Meta, settings: &Settings) -> Vec<Arc<str>> {
    let verbatim = list(&meta.annotations, CANONICAL_ACCOUNTS_ANNOTATION);
    let local = list(&meta.annotations, KUBERNETES_ACCOUNTS_ANNOTATION);
    let verbatim = verbatim.into_iter().flatten().map(Arc::from);
    let local = local
        .into_iter()
        .flatten()
        .map(|a| settings.identity(&meta.namespace, a));
    verbatim.chain(local).collect()
}

/// Splits a comma list in an annotation; `None` when there is none or it is empty.
fn list<'a>(annotations: &'a Labels, key: &str) -> Option<impl Iterator<Item = &'a str>> {
    annotations
        .get(key)
        .filter(|v| !v.is_empty())
        .map(|v| v.split(','))
}

/// The nodes on which a NodePort service is reached from other networks; `None` when it is not.
pub(crate) fn node_selector(annotations: &Labels) -> Option<Labels> {
    serde_json::from_str(annotations.get(NODE_SELECTOR_ANNOTATION)?).ok()
}

fn external_addresses(
    config: &Config<kubernetes::Service>,
    service_type: ServiceType,
    node_selector: Option<&Labels>,
    nodes: &Table<kubernetes::Node>,
) -> Vec<Arc<str>> {
    let kubernetes::Service { spec, status } = &config.spec;
    let mut addresses: Vec<Arc<str>> = Vec::new();
    if service_type == ServiceType::LoadBalancer {
        let ingress = &status.load_balancer.ingress;
        let stated = ingress
            .iter()
            .map(|i| if i.ip.is_empty() { &i.hostname } else { &i.ip });
        addresses.extend(
            stated
                .filter(|a| !a.is_empty())
                .map(|a| Arc::from(a.as_str())),
        );
    }
    if let Some(selector) = node_selector {
        let selected = nodes.values().filter(|n| selects(selector, &n.meta.labels));
        let external = selected.filter_map(|n| {
            n.spec
                .status
                .addresses
                .iter()
                .find(|a| a.r#type == "ExternalIP" && !a.address.is_empty())
        });
        addresses.extend(external.map(|a| Arc::from(a.address.as_str())));
    }
    addresses.extend(spec.external_ips.iter().map(|a| Arc::from(a.as_str())));
    addresses
}

/// Reads `spec.trafficDistribution`; `None` when something else decides.
fn distribution_field(value: &str) -> Option<TrafficDistribution> {
    match value {
        "PreferClose" | "PreferSameZone" => Some(TrafficDistribution::PreferSameZone),
        "PreferSameNode" => Some(TrafficDistribution::PreferSameNode),
        _ => None,
    }
}

/// Reads the annotation of an object or of its namespace; an unknown value means no preference.
pub(crate) fn traffic_distribution(own: &Labels, namespace: Option<&Meta>) -> TrafficDistribution {
    let value = own
        .get(TRAFFIC_DISTRIBUTION_ANNOTATION)
        .or_else(|| namespace?.annotations.get(TRAFFIC_DISTRIBUTION_ANNOTATION));
    match value.map(|v| v.to_ascii_lowercase()).as_deref() {
        Some("preferclose" | "prefersamezone") => TrafficDistribution::PreferSameZone,
        Some("prefersamenode") => TrafficDistribution::PreferSameNode,
        _ => TrafficDistribution::Any,
    }
}

/// Tells whether two states of a namespace give its services different traffic distributions.
pub(crate) fn distribution_differs(old: Option<&Meta>, new: Option<&Meta>) -> bool {
    traffic_distribution(&Labels::new(), old) != traffic_distribution(&Labels::new(), new)
}

/// Tells whether two states of a Service have different target ports, which inbound listeners read.
pub(crate) fn target_ports_differ(
    old: &Config<kubernetes::Service>,
    new: &Config<kubernetes::Service>,
) -> bool {
    old.spec.spec.ports != new.spec.spec.ports
}

/// The name of the service that owns a slice; `None` when the slice is of no use.
pub(crate) fn slice_owner(slice: &Config<kubernetes::EndpointSlice>) -> Option<NamespacedName> {
    let labels = &slice.meta.labels;
    if labels.contains_key("multicluster.kubernetes.io/service-name")
        || slice.spec.address_type == "FQDN"
    {
        return None;
    }
    let service = labels.get("kubernetes.io/service-name")?;
    Some(NamespacedName {
        namespace: slice.meta.namespace.clone(),
        name: service.as_str().into(),
    })
}

//! The parts of Kubernetes objects that are read (config-model.md §1.2, service-registry.md).
//!
//! Each struct is the object without its `metadata`, but for what tells how a Pod ends; everything that nothing reads is left out.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::Base64;
use super::codec::message;
use super::common::Labels;
use super::confidential::{ConfidentialBytes, ConfidentialText};

message! {
    /// A Service.
    pub struct Service {
        /// What is wanted.
        spec: ServiceSpec,
        /// What is there.
        status: ServiceStatus,
    }

    /// What a Service wants.
    pub struct ServiceSpec {
        /// `ClusterIP` (also when empty), `NodePort`, `LoadBalancer` or `ExternalName`.
        r#type: String,
        /// First address; `None` is headless, empty is pending.
        #[serde(rename = "clusterIP")]
        cluster_ip: String,
        /// All addresses.
        #[serde(rename = "clusterIPs")]
        cluster_ips: Vec<String>,
        /// Further addresses, routed by others.
        #[serde(rename = "externalIPs")]
        external_ips: Vec<String>,
        /// Name that this one stands for.
        external_name: String,
        /// `Local` or `Cluster`.
        internal_traffic_policy: String,
        /// IP families.
        ip_families: Vec<String>,
        /// `SingleStack`, `PreferDualStack` or `RequireDualStack`.
        ip_family_policy: String,
        /// Ports.
        ports: Vec<ServicePort>,
        /// Whether endpoints count that are not ready.
        publish_not_ready_addresses: bool,
        /// Labels of its pods.
        selector: Labels,
        /// Preference for near endpoints.
        traffic_distribution: String,
    }

    /// A port of a Service.
    pub struct ServicePort {
        /// Name; may be empty when there is only one.
        name: String,
        /// Number.
        port: u32,
        /// Number or name of the pods' port.
        target_port: Option<IntOrString>,
        /// Port on every node.
        node_port: u32,
        /// `TCP` (also when empty), `UDP` or `SCTP`.
        protocol: String,
        /// Application protocol.
        app_protocol: Option<String>,
    }

    /// What is there of a Service.
    pub struct ServiceStatus {
        /// Its load balancer.
        load_balancer: LoadBalancerStatus,
    }

    /// A load balancer.
    pub struct LoadBalancerStatus {
        /// Where it is reached.
        ingress: Vec<LoadBalancerIngress>,
    }

    /// Where a load balancer is reached.
    pub struct LoadBalancerIngress {
        /// By address.
        ip: String,
        /// By name.
        hostname: String,
    }

    /// An EndpointSlice.
    pub struct EndpointSlice {
        /// `IPv4`, `IPv6` or `FQDN`.
        address_type: String,
        /// Endpoints.
        endpoints: Vec<SliceEndpoint>,
        /// Their ports.
        ports: Vec<SlicePort>,
    }

    /// An endpoint of a slice.
    pub struct SliceEndpoint {
        /// Addresses.
        addresses: Vec<String>,
        /// State.
        conditions: SliceConditions,
        /// Host name.
        hostname: Option<String>,
        /// Node it runs on.
        node_name: Option<String>,
        /// Object behind it.
        target_ref: Option<ObjectReference>,
        /// Zone.
        zone: Option<String>,
    }

    /// State of an endpoint; unset is unknown.
    pub struct SliceConditions {
        /// Accepts new connections.
        ready: Option<bool>,
        /// Answers.
        serving: Option<bool>,
        /// Is going away.
        terminating: Option<bool>,
    }

    /// A port of a slice.
    pub struct SlicePort {
        /// Name of the Service's port.
        name: Option<String>,
        /// Number on the endpoints.
        port: Option<u32>,
        /// `TCP` (also when unset), `UDP` or `SCTP`.
        protocol: Option<String>,
        /// Application protocol.
        app_protocol: Option<String>,
    }

    /// Names another object.
    pub struct ObjectReference {
        /// Kind.
        kind: String,
        /// Namespace.
        namespace: String,
        /// Name.
        name: String,
    }

    /// A Pod.
    pub struct Pod {
        /// Of its metadata, what tells how it ends.
        metadata: PodMetadata,
        /// What is wanted.
        spec: PodSpec,
        /// What is there.
        status: PodStatus,
    }

    /// How a Pod ends.
    pub struct PodMetadata {
        /// When it is to be gone: its deletion, and the grace period; empty while nobody deletes it.
        deletion_timestamp: String,
        /// The grace period in seconds.
        deletion_grace_period_seconds: Option<i64>,
        /// Who wants it to stay until something is done.
        finalizers: Vec<String>,
    }

    /// A condition beside those of Kubernetes that a Pod needs to be ready.
    pub struct ReadinessGate {
        /// Which one.
        condition_type: String,
    }

    /// What a Pod wants.
    pub struct PodSpec {
        /// Service account.
        service_account_name: String,
        /// Node it runs on.
        node_name: String,
        /// Uses the node's network.
        host_network: bool,
        /// Host name.
        hostname: String,
        /// Subdomain.
        subdomain: String,
        /// Containers.
        containers: Vec<Container>,
        /// Containers that run first, or alongside when they restart always.
        init_containers: Vec<Container>,
        /// What its readiness needs beside that of its containers.
        readiness_gates: Vec<ReadinessGate>,
    }

    /// A container.
    pub struct Container {
        /// Name.
        name: String,
        /// Ports.
        ports: Vec<ContainerPort>,
        /// `Always` makes an init container run alongside.
        restart_policy: Option<String>,
    }

    /// A port of a container.
    pub struct ContainerPort {
        /// Name.
        name: String,
        /// Number.
        container_port: u32,
        /// `TCP` (also when empty), `UDP` or `SCTP`.
        protocol: String,
    }

    /// What is there of a Pod.
    pub struct PodStatus {
        /// `Pending`, `Running`, `Succeeded`, `Failed` or `Unknown`.
        phase: String,
        /// First address.
        #[serde(rename = "podIP")]
        pod_ip: String,
        /// All addresses.
        #[serde(rename = "podIPs")]
        pod_ips: Vec<PodIp>,
        /// State.
        conditions: Vec<Condition>,
    }

    /// An address of a Pod.
    pub struct PodIp {
        /// The address.
        ip: String,
    }

    /// A state that something is in or not.
    pub struct Condition {
        /// Which one.
        r#type: String,
        /// `True`, `False` or `Unknown`.
        status: String,
        /// When that changed last; empty when nobody says.
        last_transition_time: String,
    }

    /// A Node.
    pub struct Node {
        /// What is there.
        status: NodeStatus,
    }

    /// What is there of a Node.
    pub struct NodeStatus {
        /// Addresses.
        addresses: Vec<NodeAddress>,
    }

    /// An address of a Node.
    pub struct NodeAddress {
        /// `InternalIP`, `ExternalIP`, `Hostname`, …
        r#type: String,
        /// The address.
        address: String,
    }

    /// A Namespace; only its metadata is read.
    pub struct Namespace {}

    /// A Secret.
    pub struct Secret {
        /// Type.
        r#type: String,
        /// Values.
        data: BTreeMap<String, ConfidentialBytes>,
        /// Values as text; they win over `data`.
        string_data: BTreeMap<String, ConfidentialText>,
    }

    /// A ConfigMap.
    pub struct ConfigMap {
        /// Values.
        data: BTreeMap<String, String>,
        /// Binary values.
        binary_data: BTreeMap<String, Base64>,
    }

    /// An Ingress.
    pub struct Ingress {
        /// What is wanted.
        spec: IngressSpec,
    }

    /// What an Ingress wants.
    pub struct IngressSpec {
        /// Class.
        ingress_class_name: Option<String>,
        /// Backend for everything else.
        default_backend: Option<IngressBackend>,
        /// TLS.
        tls: Vec<IngressTls>,
        /// Rules.
        rules: Vec<IngressRule>,
    }

    /// TLS of an Ingress.
    pub struct IngressTls {
        /// Hosts.
        hosts: Vec<String>,
        /// Secret with the certificate.
        secret_name: String,
    }

    /// A rule of an Ingress.
    pub struct IngressRule {
        /// Host; empty means all.
        host: String,
        /// Paths.
        http: Option<HttpIngressRule>,
    }

    /// Paths of an Ingress rule.
    pub struct HttpIngressRule {
        /// The paths.
        paths: Vec<HttpIngressPath>,
    }

    /// A path of an Ingress.
    pub struct HttpIngressPath {
        /// The path.
        path: String,
        /// `Exact`, `Prefix` or `ImplementationSpecific`.
        path_type: Option<String>,
        /// Where it leads.
        backend: IngressBackend,
    }

    /// Where a path leads.
    pub struct IngressBackend {
        /// A Service.
        service: Option<IngressServiceBackend>,
    }

    /// A Service behind a path.
    pub struct IngressServiceBackend {
        /// Its name.
        name: String,
        /// Its port.
        port: ServiceBackendPort,
    }

    /// A port by name or number.
    pub struct ServiceBackendPort {
        /// By name.
        name: String,
        /// By number.
        number: u32,
    }

    /// A class of Ingress objects.
    pub struct IngressClass {
        /// What is wanted.
        spec: IngressClassSpec,
    }

    /// What such a class wants.
    pub struct IngressClassSpec {
        /// Who serves it.
        controller: String,
    }
}

/// A number or a name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum IntOrString {
    /// A number.
    Int(i32),
    /// A name.
    String(String),
}

impl Secret {
    /// Finds a value by its key; what is given as text wins.
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        let text = self.string_data.get(key);
        text.map(|text| text.as_str().as_bytes())
            .or_else(|| self.data.get(key).map(ConfidentialBytes::as_slice))
    }
}

impl ConfigMap {
    /// Finds a value by its key.
    pub fn value(&self, key: &str) -> Option<&[u8]> {
        let text = self.data.get(key).map(String::as_bytes);
        text.or_else(|| self.binary_data.get(key).map(|bytes| &bytes.0[..]))
    }
}

impl Serialize for IntOrString {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Int(number) => serializer.serialize_i32(*number),
            Self::String(text) => serializer.serialize_str(text),
        }
    }
}

impl<'de> Deserialize<'de> for IntOrString {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Visitor;

        impl de::Visitor<'_> for Visitor {
            type Value = IntOrString;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number or a name")
            }

            fn visit_i64<E: de::Error>(self, number: i64) -> Result<IntOrString, E> {
                i32::try_from(number)
                    .map(IntOrString::Int)
                    .map_err(|_| E::custom(format_args!("{number} is out of range")))
            }

            fn visit_u64<E: de::Error>(self, number: u64) -> Result<IntOrString, E> {
                i32::try_from(number)
                    .map(IntOrString::Int)
                    .map_err(|_| E::custom(format_args!("{number} is out of range")))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<IntOrString, E> {
                Ok(IntOrString::String(text.to_owned()))
            }
        }

        deserializer.deserialize_any(Visitor)
    }
}

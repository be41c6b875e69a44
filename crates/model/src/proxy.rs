//! A connected proxy: what its node message says (xds-server §4).

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use serde_json::{Map, Value};

use crate::{api, config::Labels, service::Locality};

/// What kind of proxy connects.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ProxyType {
    /// A workload's sidecar.
    Sidecar,
    /// A gateway.
    Router,
    /// A waypoint of ambient mode.
    Waypoint,
    /// The node proxy of ambient mode.
    Ztunnel,
}

/// Address families that a proxy has.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum IpMode {
    /// IPv4 only.
    V4,
    /// IPv6 only.
    V6,
    /// Both.
    Dual,
}

/// How traffic reaches a sidecar.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum InterceptionMode {
    /// iptables REDIRECT.
    #[default]
    Redirect,
    /// iptables TPROXY.
    Tproxy,
    /// No interception; listeners bind to ports.
    None,
}

/// A version of Istio: major, minor, patch. Unknown versions count as the newest.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct IstioVersion(pub u16, pub u16, pub u16);

impl IstioVersion {
    /// What an unknown version counts as.
    pub const NEWEST: Self = Self(u16::MAX, u16::MAX, u16::MAX);

    /// Parses `ISTIO_VERSION` (xds-server §4.1): an optional `release-`, then `major.minor[.patch]`.
    pub fn parse(text: &str) -> Self {
        let text = text.strip_prefix("release-").unwrap_or(text);
        let digits = |s: &str| {
            s.chars()
                .take_while(char::is_ascii_digit)
                .collect::<String>()
        };
        let Some((major, rest)) = text.split_once('.') else {
            return Self::NEWEST;
        };
        if major.is_empty() || !major.chars().all(|c| ('1'..='9').contains(&c)) {
            return Self::NEWEST;
        }
        let minor = digits(rest);
        let patch = rest[minor.len()..]
            .strip_prefix('.')
            .map(digits)
            .unwrap_or_default();
        match (major.parse(), minor.parse()) {
            (Ok(major), Ok(minor)) => Self(major, minor, patch.parse().unwrap_or(u16::MAX)),
            _ => Self::NEWEST,
        }
    }
}

/// Metadata that changes what a proxy receives (xds-server §4.3), typed.
#[derive(Clone, Default, PartialEq, Debug)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "independent switches of the node's metadata"
)]
pub struct NodeMetadata {
    /// `NAMESPACE`.
    pub namespace: String,
    /// `CLUSTER_ID`.
    pub cluster_id: String,
    /// `NETWORK`.
    pub network: String,
    /// `REQUESTED_NETWORK_VIEW`; empty means all.
    pub requested_network_view: Vec<String>,
    /// `LABELS`.
    pub labels: Labels,
    /// `STATIC_LABELS`.
    pub static_labels: Labels,
    /// `ANNOTATIONS`.
    pub annotations: Labels,
    /// `ISTIO_VERSION` as sent.
    pub istio_version: String,
    /// `PROXY_CONFIG`: replaces the mesh's default for this proxy.
    pub proxy_config: Option<Arc<api::MeshProxyConfig>>,
    /// `INTERCEPTION_MODE`.
    pub interception_mode: InterceptionMode,
    /// `IDLE_TIMEOUT`, as sent.
    pub idle_timeout: String,
    /// `HTTP10` is `1`.
    pub http10: bool,
    /// `HTTP_PROXY_PORT`, as sent.
    pub http_proxy_port: String,
    /// `SERVICE_ACCOUNT`.
    pub service_account: String,
    /// `WORKLOAD_NAME`.
    pub workload_name: String,
    /// `MESH_ID`.
    pub mesh_id: String,
    /// `NODE_NAME`.
    pub node_name: String,
    /// `POD_PORTS`: (name, container port, protocol).
    pub pod_ports: Vec<(String, u16, String)>,
    /// `GENERATOR`.
    pub generator: String,
    /// `DNS_CAPTURE`.
    pub dns_capture: bool,
    /// `DNS_AUTO_ALLOCATE`.
    pub dns_auto_allocate: bool,
    /// `DNS_PROXY_ADDR`.
    pub dns_proxy_addr: String,
    /// `ENABLE_HBONE`.
    pub enable_hbone: bool,
    /// `DISABLE_HBONE_SEND`.
    pub disable_hbone_send: bool,
    /// `ENABLE_SELF_DISCOVERY`.
    pub enable_self_discovery: bool,
    /// `UNPRIVILEGED_POD` is `true`.
    pub unprivileged_pod: bool,
    /// `TLS_SERVER_CERT_CHAIN`.
    pub tls_server_cert_chain: String,
    /// `TLS_SERVER_KEY`.
    pub tls_server_key: String,
    /// `TLS_SERVER_ROOT_CERT`.
    pub tls_server_root_cert: String,
    /// `TLS_CLIENT_CERT_CHAIN`.
    pub tls_client_cert_chain: String,
    /// `TLS_CLIENT_KEY`.
    pub tls_client_key: String,
    /// `TLS_CLIENT_ROOT_CERT`.
    pub tls_client_root_cert: String,
    /// `ENVOY_STATUS_PORT`, `ENVOY_PROMETHEUS_PORT`, `ENVOY_SECURE_METRICS_PORT`,
    /// `ENVOY_SECURE_MERGED_METRICS_PORT`: ports of static listeners.
    pub reserved_ports: BTreeSet<u16>,
    /// `INBOUND_LISTENER_EXACT_BALANCE`.
    pub inbound_exact_balance: bool,
    /// `OUTBOUND_LISTENER_EXACT_BALANCE`.
    pub outbound_exact_balance: bool,
}

/// What a client says of itself, before it is understood.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct Node {
    /// `<type>~<ip>~<id>~<dns domain>`.
    pub id: String,
    /// Service cluster.
    pub cluster: String,
    /// Locality of the node message.
    pub locality: Locality,
    /// Metadata as JSON.
    pub metadata: Map<String, Value>,
    /// Names of the extensions that the client states it has; `None` when it states none.
    pub extensions: Option<BTreeSet<String>>,
}

/// A proxy that was admitted.
#[derive(Clone, PartialEq, Debug)]
pub struct Proxy {
    /// Third part of the node id, by convention `<pod>.<namespace>`.
    pub id: String,
    /// What kind of proxy it is.
    pub proxy_type: ProxyType,
    /// Addresses; the first identifies the proxy.
    pub addresses: Vec<IpAddr>,
    /// The service cluster of the node message: how tracers name the workload.
    pub service_cluster: String,
    /// Suffix for short host names.
    pub dns_domain: String,
    /// Namespace of its configuration.
    pub namespace: Arc<str>,
    /// Address families.
    pub ip_mode: IpMode,
    /// Parsed `ISTIO_VERSION`.
    pub version: IstioVersion,
    /// Locality of the node message.
    pub locality: Locality,
    /// Typed metadata.
    pub metadata: NodeMetadata,
    /// All metadata as sent, for EnvoyFilter's `match.proxy.metadata`.
    pub raw_metadata: Map<String, Value>,
    /// Extensions that the proxy has; `None` when unknown (then it has all of Istio's).
    pub extensions: Option<BTreeSet<String>>,
    /// Who it has proved to be; `None` when it has proved nothing.
    pub identity: Option<Identity>,
}

/// Who a proxy has proved to be: a service account, and so a namespace.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// Namespace of the service account.
    pub namespace: Arc<str>,
    /// Name of the service account.
    pub service_account: Arc<str>,
    /// It may list the Secrets of its namespace.
    pub reads_secrets: bool,
    /// It was known when the proxy connected, so that the Gateways of the proxy count: the proxy may
    /// have the Secrets that they refer to.
    pub owns_gateways: bool,
}

impl Identity {
    /// The identity that a proxy claims, with all rights that it may have; for where claims need no
    /// proof.
    pub fn claimed(proxy: &Proxy) -> Self {
        Self {
            namespace: proxy.namespace.clone(),
            service_account: proxy.metadata.service_account.as_str().into(),
            reads_secrets: true,
            owns_gateways: true,
        }
    }
}

/// Why a node cannot be served; the stream ends with `InvalidArgument`.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NodeError {
    /// The id does not have four parts.
    #[error("node id {0:?} does not have the form type~ip~id~domain")]
    Id(String),
    /// The type is unknown.
    #[error("node type {0:?} is not one of sidecar, router, waypoint, ztunnel")]
    Type(String),
    /// No usable address.
    #[error("node {0:?} has no valid IP address")]
    Address(String),
    /// A metadata value has the wrong type.
    #[error("node metadata {key}: {reason}")]
    Metadata {
        /// The metadata key.
        key: &'static str,
        /// What is wrong.
        reason: String,
    },
}

impl Proxy {
    /// Understands a node message.
    ///
    /// # Errors
    /// [`NodeError`] for a malformed id, an unknown type, no valid address, or metadata of a wrong type.
    pub fn parse(node: &Node) -> Result<Self, NodeError> {
        let parts: Vec<&str> = node.id.split('~').collect();
        let [kind, ip, id, domain] = parts[..] else {
            return Err(NodeError::Id(node.id.clone()));
        };
        let proxy_type = match kind {
            "sidecar" => ProxyType::Sidecar,
            "router" => ProxyType::Router,
            "waypoint" => ProxyType::Waypoint,
            "ztunnel" => ProxyType::Ztunnel,
            other => return Err(NodeError::Type(other.to_owned())),
        };
        let reader = Reader(&node.metadata);
        let metadata = reader.metadata()?;
        let stated: Vec<Option<IpAddr>> = reader
            .list("INSTANCE_IPS")?
            .iter()
            .map(|a| a.parse().ok())
            .collect();
        let mut addresses: Vec<IpAddr> = stated.iter().flatten().copied().collect();
        if addresses.is_empty() || addresses.len() != stated.len() {
            let address = ip
                .parse()
                .map_err(|_| NodeError::Address(node.id.clone()))?;
            addresses = vec![address];
        }
        let v4 = addresses.iter().any(IpAddr::is_ipv4);
        let v6 = addresses.iter().any(IpAddr::is_ipv6);
        let namespace = if metadata.namespace.is_empty() {
            domain.split_once('.').map_or("", |(first, _)| first)
        } else {
            &metadata.namespace
        };
        Ok(Self {
            id: id.to_owned(),
            proxy_type,
            service_cluster: node.cluster.clone(),
            dns_domain: domain.to_owned(),
            namespace: namespace.into(),
            ip_mode: match (v4, v6) {
                (true, false) => IpMode::V4,
                (false, true) => IpMode::V6,
                _ => IpMode::Dual,
            },
            version: IstioVersion::parse(&metadata.istio_version),
            locality: node.locality.clone(),
            metadata,
            raw_metadata: node.metadata.clone(),
            extensions: node.extensions.clone(),
            identity: None,
            addresses,
        })
    }

    /// Tells whether the proxy can use IPv4.
    pub fn supports_v4(&self) -> bool {
        self.ip_mode != IpMode::V6
    }

    /// Tells whether the proxy can use IPv6.
    pub fn supports_v6(&self) -> bool {
        self.ip_mode != IpMode::V4
    }

    /// Tells whether this is a gateway.
    pub fn is_router(&self) -> bool {
        self.proxy_type == ProxyType::Router
    }
}

/// Reads metadata with its legacy encodings (xds-server §4.2).
struct Reader<'a>(&'a Map<String, Value>);

impl Reader<'_> {
    fn wrong(key: &'static str, expected: &str, value: &Value) -> NodeError {
        NodeError::Metadata {
            key,
            reason: format!("expected {expected}, got {value}"),
        }
    }

    fn string(&self, key: &'static str) -> Result<String, NodeError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(String::new()),
            Some(Value::String(s)) => Ok(s.clone()),
            Some(other) => Err(Self::wrong(key, "a string", other)),
        }
    }

    fn bool(&self, key: &'static str) -> Result<bool, NodeError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(false),
            Some(Value::String(s)) => match s.as_str() {
                "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
                "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
                _ => Err(Self::wrong(key, "\"true\" or \"false\"", &self.0[key])),
            },
            Some(other) => Err(Self::wrong(key, "\"true\" or \"false\" as a string", other)),
        }
    }

    fn list(&self, key: &'static str) -> Result<Vec<String>, NodeError> {
        let text = self.string(key)?;
        if text.is_empty() {
            return Ok(Vec::new());
        }
        Ok(text.split(',').map(str::to_owned).collect())
    }

    fn port(&self, key: &'static str) -> Result<Option<u16>, NodeError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(None),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "range checked"
            )]
            Some(Value::Number(n)) => match n.as_f64() {
                Some(n) if (0.0..=65535.0).contains(&n) => Ok(Some(n as u16).filter(|p| *p != 0)),
                _ => Err(Self::wrong(key, "a port number", &self.0[key])),
            },
            Some(other) => Err(Self::wrong(key, "a number", other)),
        }
    }

    fn labels(&self, key: &'static str) -> Result<Labels, NodeError> {
        match self.0.get(key) {
            None | Some(Value::Null) => Ok(Labels::new()),
            Some(Value::Object(map)) => map
                .iter()
                .map(|(k, v)| match v {
                    Value::String(s) => Ok((k.clone(), s.clone())),
                    other => Err(Self::wrong(key, "an object of strings", other)),
                })
                .collect::<Result<Labels, _>>(),
            Some(other) => Err(Self::wrong(key, "an object of strings", other)),
        }
    }

    fn pod_ports(&self) -> Result<Vec<(String, u16, String)>, NodeError> {
        const KEY: &str = "POD_PORTS";
        #[derive(serde::Deserialize)]
        #[serde(rename_all = "camelCase", default)]
        #[derive(Default)]
        struct PodPort {
            name: String,
            container_port: u16,
            protocol: String,
        }
        let text = self.string(KEY)?;
        if text.is_empty() {
            return Ok(Vec::new());
        }
        let ports: Vec<PodPort> = serde_json::from_str(&text).map_err(|e| NodeError::Metadata {
            key: KEY,
            reason: e.to_string(),
        })?;
        Ok(ports
            .into_iter()
            .map(|p| (p.name, p.container_port, p.protocol))
            .collect())
    }

    fn metadata(&self) -> Result<NodeMetadata, NodeError> {
        let mut reserved_ports = BTreeSet::new();
        for key in [
            "ENVOY_STATUS_PORT",
            "ENVOY_PROMETHEUS_PORT",
            "ENVOY_SECURE_METRICS_PORT",
            "ENVOY_SECURE_MERGED_METRICS_PORT",
        ] {
            reserved_ports.extend(self.port(key)?);
        }
        let proxy_config = match self.0.get("PROXY_CONFIG") {
            None | Some(Value::Null) => None,
            Some(value) => Some(Arc::new(serde_json::from_value(value.clone()).map_err(
                |e| NodeError::Metadata {
                    key: "PROXY_CONFIG",
                    reason: e.to_string(),
                },
            )?)),
        };
        Ok(NodeMetadata {
            namespace: self.string("NAMESPACE")?,
            cluster_id: self.string("CLUSTER_ID")?,
            network: self.string("NETWORK")?,
            requested_network_view: self.list("REQUESTED_NETWORK_VIEW")?,
            labels: self.labels("LABELS")?,
            static_labels: self.labels("STATIC_LABELS")?,
            annotations: self.labels("ANNOTATIONS")?,
            istio_version: self.string("ISTIO_VERSION")?,
            proxy_config,
            interception_mode: match self.string("INTERCEPTION_MODE")?.as_str() {
                "TPROXY" => InterceptionMode::Tproxy,
                "NONE" => InterceptionMode::None,
                _ => InterceptionMode::Redirect,
            },
            idle_timeout: self.string("IDLE_TIMEOUT")?,
            http10: self.string("HTTP10")? == "1",
            http_proxy_port: self.string("HTTP_PROXY_PORT")?,
            service_account: self.string("SERVICE_ACCOUNT")?,
            workload_name: self.string("WORKLOAD_NAME")?,
            mesh_id: self.string("MESH_ID")?,
            node_name: self.string("NODE_NAME")?,
            pod_ports: self.pod_ports()?,
            generator: self.string("GENERATOR")?,
            dns_capture: self.bool("DNS_CAPTURE")?,
            dns_auto_allocate: self.bool("DNS_AUTO_ALLOCATE")?,
            dns_proxy_addr: self.string("DNS_PROXY_ADDR")?,
            enable_hbone: self.bool("ENABLE_HBONE")?,
            disable_hbone_send: self.bool("DISABLE_HBONE_SEND")?,
            enable_self_discovery: self.bool("ENABLE_SELF_DISCOVERY")?,
            unprivileged_pod: self.string("UNPRIVILEGED_POD")? == "true",
            tls_server_cert_chain: self.string("TLS_SERVER_CERT_CHAIN")?,
            tls_server_key: self.string("TLS_SERVER_KEY")?,
            tls_server_root_cert: self.string("TLS_SERVER_ROOT_CERT")?,
            tls_client_cert_chain: self.string("TLS_CLIENT_CERT_CHAIN")?,
            tls_client_key: self.string("TLS_CLIENT_KEY")?,
            tls_client_root_cert: self.string("TLS_CLIENT_ROOT_CERT")?,
            reserved_ports,
            inbound_exact_balance: self.bool("INBOUND_LISTENER_EXACT_BALANCE")?,
            outbound_exact_balance: self.bool("OUTBOUND_LISTENER_EXACT_BALANCE")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn parse(id: &str, metadata: Value) -> Result<Proxy, NodeError> {
        let Value::Object(metadata) = metadata else {
            panic!("metadata is an object")
        };
        Proxy::parse(&Node {
            id: id.to_owned(),
            metadata,
            ..Node::default()
        })
    }

    #[test]
    fn versions() {
        assert_eq!(IstioVersion::parse("1.32.0"), IstioVersion(1, 32, 0));
        assert_eq!(
            IstioVersion::parse("release-1.9-dev"),
            IstioVersion(1, 9, u16::MAX)
        );
        assert_eq!(IstioVersion::parse("10.2"), IstioVersion::NEWEST);
        assert_eq!(IstioVersion::parse(""), IstioVersion::NEWEST);
    }

    #[test]
    fn instance_ips_win_unless_one_is_invalid() {
        let id = "sidecar~10.0.0.1~a.b~b.svc.cluster.local";
        let proxy = parse(id, json!({"INSTANCE_IPS": "10.0.0.2,fd00::1"})).unwrap();
        assert_eq!(proxy.addresses[0].to_string(), "10.0.0.2");
        assert_eq!(proxy.ip_mode, IpMode::Dual);
        assert_eq!(&*proxy.namespace, "b");
        let proxy = parse(id, json!({"INSTANCE_IPS": "10.0.0.2,x"})).unwrap();
        assert_eq!(proxy.addresses[0].to_string(), "10.0.0.1");
    }

    #[test]
    fn bad_nodes_are_refused() {
        assert!(matches!(
            parse("sidecar~1.1.1.1~a", json!({})),
            Err(NodeError::Id(_))
        ));
        assert!(matches!(
            parse("car~1.1.1.1~a~b", json!({})),
            Err(NodeError::Type(_))
        ));
        assert!(matches!(
            parse("sidecar~~a~b", json!({})),
            Err(NodeError::Address(_))
        ));
        let real_bool = parse("sidecar~1.1.1.1~a~b", json!({"DNS_CAPTURE": true}));
        assert!(matches!(
            real_bool,
            Err(NodeError::Metadata {
                key: "DNS_CAPTURE",
                ..
            })
        ));
    }
}

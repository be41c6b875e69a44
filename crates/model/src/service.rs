//! Services and their endpoints, as the registry derives them (service-registry §1).

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::{self, Write as _},
    sync::Arc,
};

use crate::{
    SmallMap,
    config::{ConfigKey, Labels, Timestamp},
    fingerprint,
    protocol::Protocol,
    visibility::ExportTo,
};

/// Address of a service that has none of its own.
pub const UNSPECIFIED_ADDRESS: &str = "0.0.0.0";

/// Namespace and host name: what endpoints, rules and pushes refer to.
///
/// Several services can share a key (a ServiceEntry with several addresses).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServiceKey {
    /// The service's namespace.
    pub namespace: Arc<str>,
    /// The fully qualified host name; a wildcard for some ServiceEntries.
    pub hostname: Arc<str>,
}

impl ServiceKey {
    /// Makes a key from its parts.
    pub fn new(namespace: impl Into<Arc<str>>, hostname: impl Into<Arc<str>>) -> Self {
        Self {
            namespace: namespace.into(),
            hostname: hostname.into(),
        }
    }
}

impl fmt::Display for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.hostname)
    }
}

impl fmt::Debug for ServiceKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Distinguishes services that share a key: object name, then default address.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ServiceId {
    /// The key.
    pub key: ServiceKey,
    /// The ServiceEntry's name; empty for Kubernetes services.
    pub object: Arc<str>,
    /// The service's default address.
    pub address: Arc<str>,
}

impl ServiceId {
    /// The smallest possible id of a key: where a scan of the key's services starts.
    pub fn first_of(key: &ServiceKey) -> Self {
        Self {
            key: key.clone(),
            object: "".into(),
            address: "".into(),
        }
    }
}

/// How clients find the endpoints of a service.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Resolution {
    /// Known endpoints, balanced by the client (EDS).
    ClientSideLb,
    /// DNS name, all addresses (`STRICT_DNS`).
    DnsLb,
    /// DNS name, the first address (`LOGICAL_DNS`).
    DnsRoundRobinLb,
    /// The original destination (`ORIGINAL_DST`).
    Passthrough,
    /// A Kubernetes ExternalName: an alias of another host.
    Alias,
    /// Resolved per request (dynamic forward proxy).
    DynamicDns,
}

/// Which registry a service comes from.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Registry {
    /// Kubernetes Services.
    Kubernetes,
    /// ServiceEntries.
    External,
}

/// The type of a Kubernetes service, as far as it matters.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum ServiceType {
    /// ClusterIP, also of ServiceEntries.
    #[default]
    ClusterIp,
    /// NodePort.
    NodePort,
    /// LoadBalancer.
    LoadBalancer,
    /// ExternalName.
    ExternalName,
}

/// Preference for near endpoints (`trafficDistribution`).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum TrafficDistribution {
    /// No preference.
    #[default]
    Any,
    /// Same network, region, zone, subzone first.
    PreferSameZone,
    /// As `PreferSameZone`, the same node first of all.
    PreferSameNode,
    /// Same network and region, zone and subzone first (ServiceEntry forms).
    PreferSameNetwork,
}

/// One port of a service.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Port {
    /// The port's name.
    pub name: Arc<str>,
    /// The service port number.
    pub port: u16,
    /// The application protocol.
    pub protocol: Protocol,
}

/// One service (service-registry §1.1).
#[derive(Clone, PartialEq, Debug)]
pub struct Service {
    /// Fully qualified host name, or a ServiceEntry host (may be a wildcard).
    pub hostname: Arc<str>,
    /// Ports in declaration order.
    pub ports: Vec<Port>,
    /// Virtual addresses per cluster id; only Kubernetes services have entries.
    pub cluster_vips: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// One address or CIDR; [`UNSPECIFIED_ADDRESS`] means none.
    pub default_address: Arc<str>,
    /// Auto-allocated IPv4 address (service-registry §13); empty when there is none.
    pub auto_allocated_v4: Arc<str>,
    /// Auto-allocated IPv6 address; empty when there is none.
    pub auto_allocated_v6: Arc<str>,
    /// How endpoints are found.
    pub resolution: Resolution,
    /// Outside the mesh: no mutual TLS is assumed.
    pub mesh_external: bool,
    /// Declared identities (annotations, `subjectAltNames`), in order.
    pub service_accounts: Vec<Arc<str>>,
    /// Creation time, for ordering; not part of what counts as a change.
    pub created: Timestamp,
    /// The stored object's version; not part of what counts as a change.
    pub resource_version: String,
    /// Everything else.
    pub attributes: Attributes,
    /// The object that the service was derived from.
    pub source: ServiceSource,
    /// Hash of all content that proxies could see; set by [`Service::seal`].
    pub fingerprint: u64,
}

/// The object that a service was derived from, with its id in the form in which resources name what
/// they are built from: all resources of the service share it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ServiceSource {
    key: ConfigKey,
    ids: Arc<[Arc<str>]>,
}

impl ServiceSource {
    /// The object's key.
    pub fn key(&self) -> &ConfigKey {
        &self.key
    }

    /// The id, as a list of one.
    pub fn ids(&self) -> &Arc<[Arc<str>]> {
        &self.ids
    }
}

impl From<ConfigKey> for ServiceSource {
    fn from(key: ConfigKey) -> Self {
        let ConfigKey {
            kind,
            namespace,
            name,
        } = &key;
        let mut id = String::with_capacity(kind.name().len() + namespace.len() + name.len() + 2);
        // Writing to a string cannot fail.
        let _ = write!(id, "{key}");
        Self {
            ids: Arc::new([id.into()]),
            key,
        }
    }
}

/// Secondary facts of a service.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Attributes {
    /// Where the service comes from.
    pub registry: Registry,
    /// Kubernetes: the object's name; ServiceEntry: the host name.
    pub name: Arc<str>,
    /// The namespace.
    pub namespace: Arc<str>,
    /// Labels of the object.
    pub labels: Labels,
    /// Labels of the selected workloads.
    pub selector: Labels,
    /// Declared visibility; empty means the mesh's default.
    pub export_to: ExportTo,
    /// ExternalName aliases of this service; filled only in the snapshot.
    pub aliases: Vec<ServiceKey>,
    /// Load balancer, node and external addresses per cluster.
    pub cluster_external_addresses: BTreeMap<Arc<str>, Vec<Arc<str>>>,
    /// Service port to node port, per cluster.
    pub cluster_external_ports: BTreeMap<Arc<str>, BTreeMap<u16, u16>>,
    /// Service port to target port, for ServiceEntries with resolution NONE.
    pub passthrough_target_ports: BTreeMap<u16, u16>,
    /// Type of the Kubernetes service.
    pub service_type: ServiceType,
    /// Target of an ExternalName service.
    pub external_name: Arc<str>,
    /// `internalTrafficPolicy: Local`.
    pub node_local: bool,
    /// Preference for near endpoints.
    pub traffic_distribution: TrafficDistribution,
    /// The ServiceEntry's name; empty for Kubernetes services.
    pub object_name: Arc<str>,
    /// `istio.io/connect-strategy` of a ServiceEntry is `RACE_FIRST_TCP_CONNECT`.
    pub race_first_connect: bool,
    /// `publishNotReadyAddresses`.
    pub publish_not_ready_addresses: bool,
}

impl Service {
    /// Computes the fingerprint and makes the service shareable.
    pub fn seal(mut self) -> Arc<Self> {
        // Named one by one, so that a new field cannot be forgotten.
        let Self {
            hostname,
            ports,
            cluster_vips,
            default_address,
            auto_allocated_v4,
            auto_allocated_v6,
            resolution,
            mesh_external,
            service_accounts,
            created: _,
            resource_version: _,
            attributes,
            source: _,
            fingerprint: _,
        } = &self;
        self.fingerprint = fingerprint::of(&(
            (hostname, ports, cluster_vips, default_address),
            (auto_allocated_v4, auto_allocated_v6),
            (resolution, mesh_external),
            (service_accounts, attributes),
        ));
        Arc::new(self)
    }

    /// Namespace and host name.
    pub fn key(&self) -> ServiceKey {
        ServiceKey {
            namespace: self.attributes.namespace.clone(),
            hostname: self.hostname.clone(),
        }
    }

    /// The identity among services of one key.
    pub fn id(&self) -> ServiceId {
        ServiceId {
            key: self.key(),
            object: self.attributes.object_name.clone(),
            address: self.default_address.clone(),
        }
    }

    /// The sort key of "creation order": time, then attribute name, then namespace.
    pub fn creation_order(&self) -> (Timestamp, &str, &str) {
        (
            self.created,
            &self.attributes.name,
            &self.attributes.namespace,
        )
    }

    /// Finds a port by number. UDP ports are passed over: nothing is made for them, and one may have
    /// the number of a TCP port.
    pub fn port(&self, number: u16) -> Option<&Port> {
        self.ports
            .iter()
            .find(|p| p.port == number && p.protocol != Protocol::Udp)
    }

    /// Finds a port by name.
    pub fn port_by_name(&self, name: &str) -> Option<&Port> {
        self.ports.iter().find(|p| &*p.name == name)
    }

    /// No cluster address: clients use endpoint addresses (Kubernetes headless services and
    /// ServiceEntries without resolution).
    pub fn is_passthrough(&self) -> bool {
        self.resolution == Resolution::Passthrough
    }

    /// Tells whether this is a Kubernetes service.
    pub fn is_kubernetes(&self) -> bool {
        self.attributes.registry == Registry::Kubernetes
    }

    /// Equality as far as proxies could see a difference: everything but creation time and version.
    pub fn same_content(&self, other: &Self) -> bool {
        self.fingerprint == other.fingerprint
    }
}

/// Region, zone and subzone; empty parts are unknown.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Locality {
    /// Region.
    pub region: Arc<str>,
    /// Zone.
    pub zone: Arc<str>,
    /// Subzone.
    pub subzone: Arc<str>,
}

impl Locality {
    /// Parses `region/zone/subzone`; missing parts are empty, further ones are ignored.
    pub fn parse(text: &str) -> Self {
        let mut parts = text.splitn(4, '/');
        let mut next = || Arc::from(parts.next().unwrap_or_default());
        Self {
            region: next(),
            zone: next(),
            subzone: next(),
        }
    }

    /// Tells whether no part is known.
    pub fn is_empty(&self) -> bool {
        self.region.is_empty() && self.zone.is_empty() && self.subzone.is_empty()
    }
}

impl fmt::Display for Locality {
    /// Writes `region/zone/subzone` without trailing empty parts.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.region)?;
        if !self.zone.is_empty() || !self.subzone.is_empty() {
            write!(f, "/{}", self.zone)?;
        }
        if !self.subzone.is_empty() {
            write!(f, "/{}", self.subzone)?;
        }
        Ok(())
    }
}

/// Health of an endpoint, as Kubernetes conditions or a health check say.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Health {
    /// Not stated, as for workloads outside Kubernetes; counts as healthy.
    #[default]
    Unknown,
    /// Ready.
    Healthy,
    /// Not ready.
    Unhealthy,
    /// Terminating but still serving, for services with persistent sessions.
    Draining,
    /// Terminating.
    Terminating,
}

/// One endpoint of one service port (service-registry §1.2).
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Endpoint {
    /// The first is the identity; more only for dual stack. May be a host name, a Unix path
    /// (`unix://…`), or empty when reachable only through a network gateway.
    pub addresses: Vec<Arc<str>>,
    /// Target port; 0 for Unix sockets.
    pub port: u16,
    /// The service port's name that this endpoint serves.
    pub service_port_name: Arc<str>,
    /// ServiceEntry only: the service port's number, by which the endpoint is found; 0 otherwise.
    pub legacy_port_key: u16,
    /// Workload labels with topology labels.
    pub labels: Arc<Labels>,
    /// SPIFFE identity, or empty.
    pub service_account: Arc<str>,
    /// Network id, or empty.
    pub network: Arc<str>,
    /// Locality.
    pub locality: Locality,
    /// The cluster that the endpoint lives in.
    pub cluster: Arc<str>,
    /// Weight; 0 means 1.
    pub weight: u32,
    /// `istio`, `disabled` or any other label value.
    pub tls_mode: Arc<str>,
    /// Namespace of the workload.
    pub namespace: Arc<str>,
    /// Name of the workload (Deployment and the like).
    pub workload_name: Arc<str>,
    /// Host name of the pod, for names of headless services.
    pub hostname: Arc<str>,
    /// Subdomain of the pod.
    pub subdomain: Arc<str>,
    /// Only proxies of the same cluster may use it (multi-cluster services).
    pub same_cluster_only: bool,
    /// Health.
    pub health: Health,
    /// Unhealthy endpoints of this service are sent too.
    pub send_unhealthy: bool,
    /// The node's name.
    pub node_name: Arc<str>,
}

impl Endpoint {
    /// The first address; empty when there is none.
    pub fn address(&self) -> &str {
        self.addresses.first().map_or("", |a| a)
    }
}

/// Which registry of which cluster contributed endpoints.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ShardKey {
    /// The cluster's id.
    pub cluster: Arc<str>,
    /// The registry.
    pub registry: Registry,
}

/// All endpoints of one service, by shard.
///
/// Within a shard the endpoints keep the order in which the registry derived them.
#[derive(Clone, Default, PartialEq, Debug)]
pub struct ServiceEndpoints {
    /// Endpoints per shard.
    pub shards: SmallMap<ShardKey, Arc<[Arc<Endpoint>]>>,
    /// Identities of all endpoints, sorted.
    pub service_accounts: Arc<[Arc<str>]>,
    /// Content hash, for caches.
    pub fingerprint: u64,
}

impl ServiceEndpoints {
    /// Collects shards; empty ones are left out. `None` when nothing is left.
    pub fn collect(
        shards: impl IntoIterator<Item = (ShardKey, Vec<Arc<Endpoint>>)>,
    ) -> Option<Arc<Self>> {
        let shards: SmallMap<ShardKey, Arc<[Arc<Endpoint>]>> = shards
            .into_iter()
            .filter(|(_, s)| !s.is_empty())
            .map(|(k, s)| (k, s.into()))
            .collect();
        if shards.is_empty() {
            return None;
        }
        let mut accounts: Vec<Arc<str>> = shards
            .values()
            .flat_map(|s| s.iter())
            .map(|e| &e.service_account)
            .filter(|a| !a.is_empty())
            .cloned()
            .collect();
        accounts.sort_unstable();
        accounts.dedup();
        let service_accounts = accounts.into();
        let fingerprint = fingerprint::of(&shards);
        Some(Arc::new(Self {
            shards,
            service_accounts,
            fingerprint,
        }))
    }

    /// Lists all endpoints, shard by shard.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<Endpoint>> {
        self.shards.values().flat_map(|s| s.iter())
    }

    /// Tells whether some endpoint that was fit for traffic here is gone from `newer`, or no longer fit.
    pub fn lost_any(&self, newer: Option<&Self>) -> bool {
        let fit = |e: &&Arc<Endpoint>| matches!(e.health, Health::Unknown | Health::Healthy);
        let place = |e: &Arc<Endpoint>| (e.addresses.clone(), e.port);
        let there: BTreeSet<_> = newer
            .iter()
            .flat_map(|n| n.iter())
            .filter(fit)
            .map(place)
            .collect();
        self.iter().filter(fit).any(|e| !there.contains(&place(e)))
    }
}

/// A service port that a proxy's own workload serves; the input of its inbound listeners.
#[derive(Clone, PartialEq, Debug)]
pub struct ServiceTarget {
    /// The service.
    pub service: Arc<Service>,
    /// The service's port.
    pub port: Port,
    /// The port on the workload.
    pub target_port: u16,
}

//! Clusters of the workload's own ports (clusters-endpoints §13).

use std::net::{IpAddr, SocketAddr};

use envoy_types::pb::envoy::config::{
    cluster::v3::{
        Cluster,
        cluster::{CommonLbConfig, DiscoveryType, LbPolicy},
    },
    core::v3::Address,
};
use model::{
    Port, Protocol as PortProtocol, Service, ServiceTarget,
    api::{
        common::ConnectionPool,
        sidecar::{IngressListener, Sidecar},
    },
    proxy::InterceptionMode,
};
use pushctx::{ConsolidatedRule, ProxyClass};

use super::{
    client::Client,
    fixed,
    http::{HttpOptions, Protocol},
    metadata::IstioMetadata,
    outbound::finish_http,
    pool,
    stat_name::{StatNameParts, alt_stat_name},
};
use crate::{
    convert,
    inputs::{ByJson, Shared},
    names,
    policy::Policy,
};

/// Idle hosts of clusters to the original destination are never cleaned up.
const CLEANUP_SECONDS: i64 = 9_223_372_035;

/// Everything that the cluster of one workload port depends on.
#[derive(Hash, Debug)]
pub(super) struct InboundClusterInputs {
    /// Facts of the class and the mesh.
    pub client: Shared<Client>,
    /// The workload port, or the port of the Sidecar's listener.
    pub target_port: u16,
    /// The port by which the primary service is reached, or that of the Sidecar's listener.
    pub port: Port,
    /// Where traffic goes.
    pub destination: Destination,
    /// The oldest service of the port; `None` when there is none.
    pub primary: Option<Shared<Service>>,
    /// The host name that stands for the missing service in statistics.
    pub placeholder: String,
    /// Services that are reached by the same port, the primary first.
    pub services: Vec<Shared<Service>>,
    /// The rule of the primary service.
    pub rule: Option<Shared<ConsolidatedRule>>,
    /// The pool that the Sidecar sets for the port.
    pub pool: ByJson<Option<ConnectionPool>>,
}

/// Where an inbound cluster sends.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Destination {
    /// To the address that the client asked for.
    Original,
    /// To a port of this address.
    Socket(IpAddr, u16),
    /// To a Unix socket.
    Pipe(String),
}

impl InboundClusterInputs {
    /// Builds the cluster.
    pub(super) fn build(&self) -> Cluster {
        let client = &*self.client;
        let name = names::inbound(self.target_port);
        let mut cluster = Cluster {
            alt_stat_name: self.stat_name(&name),
            common_lb_config: Some(CommonLbConfig::default()),
            ..Cluster::default()
        };
        let pod_bind = || Some(fixed::bind_config(client, self.binds_both()));
        let mut to = |address: Address| {
            cluster.cluster_discovery_type = fixed::kind(DiscoveryType::Static);
            cluster.load_assignment = Some(fixed::one_endpoint(&name, address));
        };
        match &self.destination {
            Destination::Original => {
                cluster.cluster_discovery_type = fixed::kind(DiscoveryType::OriginalDst);
                cluster.lb_policy = LbPolicy::ClusterProvided.into();
                cluster.cleanup_interval = Some(convert::seconds(CLEANUP_SECONDS));
                cluster.upstream_bind_config = pod_bind();
            }
            Destination::Socket(ip, port) => {
                to(convert::socket_address(ip.to_string(), *port));
                if !ip.is_loopback() {
                    cluster.upstream_bind_config = pod_bind();
                }
            }
            Destination::Pipe(path) => {
                to(convert::pipe_address(path.clone()));
                cluster.upstream_bind_config = pod_bind();
            }
        }
        cluster.name = name;

        let spec = self.rule.as_ref().map(|r| &r.config.spec);
        let default = client.mesh.default_policy.as_ref();
        let mut policy = Policy::resolve(spec, None, self.port.port, default).unwrap_or_default();
        policy.connection_pool = self.pool.as_ref().or(policy.connection_pool);
        let mut http = HttpOptions::of(Protocol::of_port(
            self.port.protocol,
            false,
            client.preserve_header_case,
        ));
        pool::apply(&mut cluster, &mut http, &policy, client);
        if pool::uses_client_protocol(policy.connection_pool) {
            http.follow_downstream();
        }
        cluster.metadata = self.metadata().message();
        finish_http(&mut cluster, http, client);
        cluster
    }

    fn binds_both(&self) -> bool {
        let flags = &self.client.flags;
        flags.dual_stack && self.client.ip_mode == model::proxy::IpMode::Dual
    }

    /// The host names of the services behind the port, for conditions of patches.
    pub(super) fn hostnames(&self) -> Vec<std::sync::Arc<str>> {
        if self.services.is_empty() && !self.placeholder.is_empty() {
            return vec![self.placeholder.as_str().into()];
        }
        self.services
            .iter()
            .map(|service| service.hostname.clone())
            .collect()
    }

    fn stat_name(&self, name: &str) -> String {
        let parts = StatNameParts {
            service: self.primary.as_deref(),
            hostname: self
                .primary
                .as_ref()
                .map_or(&self.placeholder, |s| &s.hostname),
            port: &self.port,
            subset: "",
            target_port: self.target_port,
        };
        alt_stat_name(&self.client.mesh.inbound_stat_name, name, &parts)
    }

    fn metadata(&self) -> IstioMetadata {
        let mut metadata = IstioMetadata::default();
        let named = self.primary.as_ref().is_some_and(|s| !s.mesh_external);
        if named && self.client.flags.telemetry_label {
            metadata.services(self.services.iter().map(|s| &**s));
        }
        let rule = self
            .rule
            .as_ref()
            .filter(|r| r.config.spec.traffic_policy.is_some());
        if let Some(rule) = rule.filter(|_| !metadata.is_empty()) {
            metadata.rule(&rule.config.meta);
        }
        metadata
    }
}

/// Plans the inbound clusters of a class, by ascending workload port.
pub(super) fn plan(
    class: &ProxyClass,
    client: &Shared<Client>,
    merge: bool,
) -> Vec<InboundClusterInputs> {
    let sidecar = class.scope.sidecar().map(|s| &s.spec);
    let ingress = sidecar.map_or(&[][..], |s| s.ingress.as_slice());
    let planner = Planner {
        class,
        client,
        sidecar,
    };
    if ingress.is_empty() {
        if class.proxy.metadata.interception_mode == InterceptionMode::None {
            return Vec::new();
        }
        return planner.of_targets(|_| true);
    }
    let numbers: Vec<u16> = ingress
        .iter()
        .filter_map(listener_port)
        .map(|p| p.port)
        .collect();
    let mut plans = if merge {
        planner.of_targets(|target| !numbers.contains(&target.target_port))
    } else {
        Vec::new()
    };
    plans.extend(
        ingress
            .iter()
            .filter_map(|listener| planner.of_listener(listener)),
    );
    plans
}

struct Planner<'a> {
    class: &'a ProxyClass,
    client: &'a Shared<Client>,
    sidecar: Option<&'a Sidecar>,
}

impl Planner<'_> {
    /// One cluster for each workload port of the services that the workload serves.
    fn of_targets(&self, wanted: impl Fn(&ServiceTarget) -> bool) -> Vec<InboundClusterInputs> {
        let mut groups: std::collections::BTreeMap<u16, Vec<&ServiceTarget>> =
            std::collections::BTreeMap::new();
        for target in self.class.targets.iter().filter(|t| wanted(t)) {
            groups.entry(target.target_port).or_default().push(target);
        }
        let destination = |port| {
            if self.client.mesh.inbound_localhost {
                Destination::Socket(self.client.loopback(), port)
            } else {
                Destination::Original
            }
        };
        groups
            .into_iter()
            .map(|(port, targets)| {
                let primary = targets[0];
                let mut services: Vec<Shared<Service>> = Vec::new();
                for target in targets.iter().filter(|t| t.port.port == primary.port.port) {
                    if services
                        .iter()
                        .all(|s| s.hostname != target.service.hostname)
                    {
                        services.push(Shared::new(&target.service));
                    }
                }
                InboundClusterInputs {
                    client: self.client.clone(),
                    target_port: port,
                    port: primary.port.clone(),
                    destination: destination(port),
                    primary: Some(Shared::new(&primary.service)),
                    placeholder: String::new(),
                    services,
                    rule: self.rule(&primary.service),
                    pool: self.pool(port),
                }
            })
            .collect()
    }

    /// The cluster of one listener of the Sidecar; `None` when its endpoint cannot be understood.
    fn of_listener(&self, listener: &IngressListener) -> Option<InboundClusterInputs> {
        let port = listener_port(listener)?;
        let destination = self.destination(&listener.default_endpoint)?;
        let target = self
            .class
            .targets
            .iter()
            .find(|t| t.target_port == port.port);
        let service = target.map(|t| &t.service);
        let origin = self.class.scope.sidecar();
        Some(InboundClusterInputs {
            client: self.client.clone(),
            target_port: port.port,
            destination,
            primary: service.map(Shared::new),
            placeholder: origin
                .map(|s| format!("{}.{}", s.meta.name, s.meta.namespace))
                .unwrap_or_default(),
            services: service.map(Shared::new).into_iter().collect(),
            rule: service.and_then(|s| self.rule(s)),
            pool: self.pool(port.port),
            port,
        })
    }

    fn rule(&self, service: &Service) -> Option<Shared<ConsolidatedRule>> {
        self.class
            .scope
            .inbound_rule(&service.hostname)
            .map(Shared::new)
    }

    /// The pool for a port: that of its listener, else that of all inbound traffic.
    fn pool(&self, port: u16) -> ByJson<Option<ConnectionPool>> {
        ByJson(self.sidecar.and_then(|sidecar| {
            sidecar
                .ingress
                .iter()
                .filter(|l| l.port.as_ref().is_some_and(|p| p.number == u32::from(port)))
                .find_map(|l| l.connection_pool.clone())
                .or_else(|| sidecar.inbound_connection_pool.clone())
        }))
    }

    fn destination(&self, endpoint: &str) -> Option<Destination> {
        // Without a host nothing says where the workload listens.
        if endpoint.is_empty() || endpoint.starts_with(':') {
            return Some(Destination::Original);
        }
        if let Some(path) = endpoint.strip_prefix("unix://") {
            return Some(Destination::Pipe(path.to_owned()));
        }
        let address: SocketAddr = endpoint.parse().ok()?;
        let loopback = |v6: bool| -> IpAddr {
            if v6 {
                std::net::Ipv6Addr::LOCALHOST.into()
            } else {
                std::net::Ipv4Addr::LOCALHOST.into()
            }
        };
        let has = |v6: bool| {
            let proxy = &self.class.proxy;
            if v6 {
                proxy.supports_v6()
            } else {
                proxy.supports_v4()
            }
        };
        let v6 = address.is_ipv6();
        let ip = if address.ip().is_unspecified() {
            let own = self.class.addresses.iter().flat_map(|a| a.iter());
            own.copied()
                .find(|ip| ip.is_ipv6() == v6)
                .unwrap_or_else(|| loopback(v6))
        } else {
            loopback(v6 == has(v6))
        };
        Some(Destination::Socket(ip, address.port()))
    }
}

/// The port of a Sidecar's listener as that of a service.
fn listener_port(listener: &IngressListener) -> Option<Port> {
    let port = listener.port.as_ref()?;
    Some(Port {
        name: port.name.as_str().into(),
        port: u16::try_from(port.number).ok()?,
        protocol: PortProtocol::parse(&port.protocol),
    })
}

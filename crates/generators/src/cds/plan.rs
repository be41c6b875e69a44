//! Collects the inputs of builders from a snapshot and a class.

use std::{
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use model::{
    Port, Protocol, ProxyType, Resolution, Service,
    api::{self, destination_rule::TrafficPolicy},
};
use pushctx::{ConsolidatedRule, ProxyClass, PushContext};

use super::{
    client::Client,
    forward_proxy::ForwardProxyInputs,
    gateway::{self, NeededServices},
    outbound::{self, OutboundClusterInputs},
    upstream_tls::ServerMode,
};
use crate::{
    eds::{AssignmentInputs, EndpointPlanner},
    inputs::Shared,
    policy::{self, Policy},
};

/// Label that makes a service one of an inference pool.
const SEMANTICS_LABEL: &str = "internal.istio.io/service-semantics";
/// The annotation of rules that names the Gateway API objects behind them.
const PARENTS: &str = "internal.istio.io/parents";
/// Where the proxy's agent answers DNS when the node does not say.
const AGENT_DNS: (Ipv4Addr, u16) = (Ipv4Addr::LOCALHOST, 15053);

/// Everything that planning looks at, collected once per class.
#[derive(Debug)]
pub(super) struct Planner<'a> {
    snapshot: &'a PushContext,
    class: &'a ProxyClass,
    client: Shared<Client>,
    endpoints: EndpointPlanner<'a>,
    sni_dnat: bool,
    needed: Option<NeededServices>,
}

impl<'a> Planner<'a> {
    /// Collects what all clusters of a class share.
    pub(super) fn new(snapshot: &'a PushContext, class: &'a ProxyClass) -> Self {
        let client = Client::new(&class.proxy, snapshot.mesh(), snapshot.features());
        Self {
            snapshot,
            class,
            client: Shared::new(&Arc::new(client)),
            endpoints: EndpointPlanner::new(snapshot, class),
            sni_dnat: gateway::passes_through(class),
            needed: NeededServices::new(snapshot, class),
        }
    }

    /// Facts of the class and the mesh.
    pub(super) fn client(&self) -> &Shared<Client> {
        &self.client
    }

    /// Inputs of endpoints.
    pub(super) fn endpoints(&self) -> &EndpointPlanner<'a> {
        &self.endpoints
    }

    /// Services that have clusters. An alias has none: its target answers for it. Waypoints have
    /// few.
    pub(super) fn services(&self) -> impl Iterator<Item = &'a Arc<Service>> {
        let all = self.class.scope.services.iter();
        all.filter(|service| self.has_clusters(service))
    }

    fn has_clusters(&self, service: &Service) -> bool {
        let needed = self.needed.as_ref();
        let needed = needed.filter(|_| self.class.waypoint.is_some());
        service.resolution != Resolution::Alias
            && needed.is_none_or(|needed| needed.contains(service))
    }

    /// The one of [`Planner::services`] that has this host name.
    pub(super) fn service(&self, host: &str) -> Option<&'a Arc<Service>> {
        let service = self.class.scope.service(host)?;
        self.has_clusters(service).then_some(service)
    }

    /// Inputs for all ports and subsets of a service, default clusters first.
    pub(super) fn outbound(&self, service: &Arc<Service>) -> Vec<OutboundClusterInputs> {
        let rule = self.rule(service);
        let subsets = rule.map_or(0, |r| r.config.spec.subsets.len());
        let accounts = self.snapshot.service_accounts(service);
        let kind = outbound::discovery_type(service, &self.client);
        let certificate = self.client_certificate(rule);
        let mut inputs = Vec::with_capacity(service.ports.len() * (1 + subsets));
        let mut add = |port: &Port, subset: Option<usize>, sni_dnat: bool| {
            let own = own_policy(rule, subset);
            let shared_rule = rule.map(Shared::new);
            let mut input = OutboundClusterInputs {
                client: self.client.clone(),
                service: Shared::new(service),
                port: port.port,
                subset,
                rule: shared_rule,
                sni_dnat,
                accounts: accounts.clone(),
                certificate: certificate.clone(),
                server: self.server(service, port, policy::asks_passthrough(own)),
                all_tunnelled: self.client.hbone && all_tunnelled(self.snapshot, service, port),
                inline: None,
            };
            if outbound::is_dns(kind) {
                input.inline = Some(self.inline(service, port, subset, rule));
            }
            inputs.push(input);
        };
        for port in cluster_ports(service) {
            for sni_dnat in [false, true] {
                let exists = if sni_dnat {
                    // Peers of other networks may ask for any service.
                    self.sni_dnat && !service.mesh_external
                } else {
                    self.needed
                        .as_ref()
                        .is_none_or(|needed| needed.contains(service))
                };
                if !exists {
                    continue;
                }
                add(port, None, sni_dnat);
                for at in 0..subsets {
                    add(port, Some(at), sni_dnat);
                }
            }
        }
        inputs
    }

    /// The certificate that a gateway presents to servers that a policy of the Gateway API verifies.
    fn client_certificate(&self, rule: Option<&Arc<ConsolidatedRule>>) -> Option<Arc<str>> {
        let certificate = self.class.gateway.as_ref()?.client_certificate.as_ref()?;
        let parents = rule?.config.meta.annotations.get(PARENTS)?;
        parents
            .starts_with("BackendTLSPolicy/")
            .then(|| certificate.clone())
    }

    /// Inputs for the forward proxies of a wildcard service.
    pub(super) fn forward_proxies(&self, service: &Arc<Service>) -> Vec<ForwardProxyInputs> {
        let accounts = self.snapshot.service_accounts(service);
        service
            .ports
            .iter()
            .map(|port| ForwardProxyInputs {
                client: self.client.clone(),
                service: Shared::new(service),
                port: port.port,
                rule: self.rule(service).map(Shared::new),
                accounts: accounts.clone(),
                server: self.server(service, port, false),
            })
            .collect()
    }

    /// Where the forward proxy for any host resolves; `None` when there is no such cluster.
    #[expect(
        clippy::option_option,
        reason = "no cluster, no resolver of its own, or this one"
    )]
    pub(super) fn allow_any_dynamic_dns(&self) -> Option<Option<SocketAddr>> {
        let wanted = self.client.proxy_type == ProxyType::Sidecar
            && self.class.scope.outbound_policy.mode
                == api::sidecar::OutboundTrafficMode::AllowAnyDynamicDns;
        let metadata = &self.class.proxy.metadata;
        let agent = || {
            metadata
                .dns_proxy_addr
                .parse()
                .unwrap_or_else(|_| AGENT_DNS.into())
        };
        wanted.then(|| metadata.dns_capture.then(agent))
    }

    /// Tells whether the proxy listens for HBONE.
    pub(super) fn listens_hbone(&self) -> bool {
        let features = self.snapshot.features();
        features.ambient && self.class.proxy.metadata.enable_hbone
    }

    /// Tells whether service ports that no listener of the Sidecar names keep their clusters.
    pub(super) fn merges_inbound(&self) -> bool {
        self.snapshot.features().sidecar_inbound_merge
    }

    fn rule(&self, service: &Service) -> Option<&'a Arc<ConsolidatedRule>> {
        self.class
            .scope
            .outbound_rule(&service.hostname, &self.class.labels)
    }

    /// What is believed of a server. Of the policies only the destination level tells whether the
    /// original destination is used (§9.1).
    fn server(&self, service: &Service, port: &Port, original_dst: bool) -> ServerMode {
        ServerMode::of(self.snapshot.infer_mtls(service, port, original_dst))
    }

    fn inline(
        &self,
        service: &Arc<Service>,
        port: &Port,
        subset: Option<usize>,
        rule: Option<&Arc<ConsolidatedRule>>,
    ) -> AssignmentInputs {
        let spec = rule.map(|r| &r.config.spec);
        let subset = subset.and_then(|at| spec?.subsets.get(at));
        let default = self.client.mesh.default_policy.as_ref();
        let policy = Policy::resolve(spec, subset, port.port, default).unwrap_or_default();
        let name = subset.map_or("", |s| s.name.as_str());
        self.endpoints.inputs(
            service,
            port.port,
            name,
            rule,
            outbound::inline_purpose(&policy),
        )
    }
}

/// The policy that a default cluster's rule or a subset states itself.
fn own_policy(
    rule: Option<&Arc<ConsolidatedRule>>,
    subset: Option<usize>,
) -> Option<&TrafficPolicy> {
    let spec = rule.map(|r| &r.config.spec)?;
    match subset {
        Some(at) => spec.subsets.get(at)?.traffic_policy.as_ref(),
        None => spec.traffic_policy.as_ref(),
    }
}

/// Ports that have a cluster.
fn cluster_ports(service: &Service) -> impl Iterator<Item = &Port> {
    let pool = service
        .attributes
        .labels
        .get(SEMANTICS_LABEL)
        .is_some_and(|s| s == "inferencepool");
    let limit = if pool { 1 } else { usize::MAX };
    service
        .ports
        .iter()
        .take(limit)
        .filter(|port| port.protocol != Protocol::Udp)
}

/// Tells whether every endpoint of a port can be reached through a tunnel, and there is one.
fn all_tunnelled(snapshot: &PushContext, service: &Service, port: &Port) -> bool {
    let mut endpoints = snapshot.endpoints_of_port(service, port).peekable();
    endpoints.peek().is_some() && endpoints.all(|endpoint| crate::eds::tunnels(endpoint))
}

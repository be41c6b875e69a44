//! Collects the inputs of builders from a snapshot and a class.

use std::{
    collections::BTreeSet,
    net::{Ipv4Addr, SocketAddr},
    sync::Arc,
};

use model::{Port, Protocol, ProxyType, Resolution, Service, ServiceEndpoints, api};
use pushctx::{ConsolidatedRule, ProxyClass, PushContext};

use super::{
    client::Client,
    forward_proxy::ForwardProxyInputs,
    gateway,
    outbound::{self, EndpointModes, OutboundClusterInputs},
};
use crate::{
    eds::{AssignmentInputs, EndpointPlanner},
    inputs::Shared,
    policy::{self, Policy},
};

/// Label that makes a service one of an inference pool.
const SEMANTICS_LABEL: &str = "internal.istio.io/service-semantics";
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
            sni_dnat: gateway::passes_through(snapshot, class),
        }
    }

    /// Facts of the class and the mesh.
    pub(super) fn client(&self) -> &Shared<Client> {
        &self.client
    }

    /// Services that have clusters. An alias has none: its target answers for it.
    pub(super) fn services(&self) -> impl Iterator<Item = &'a Arc<Service>> {
        let all = self.class.scope.services.iter();
        all.filter(|service| service.resolution != Resolution::Alias)
    }

    /// Inputs for all ports and subsets of a service, default clusters first.
    pub(super) fn outbound(&self, service: &Arc<Service>) -> Vec<OutboundClusterInputs> {
        let rule = self.rule(service);
        let subsets = rule.map_or(0, |r| r.config.spec.subsets.len());
        let endpoints = self.snapshot.endpoints(&service.key());
        let accounts = accounts(
            service,
            endpoints,
            &self.snapshot.mesh().trust_domain_aliases,
        );
        let kind = outbound::discovery_type(service, &self.client);
        let passes_through = service.is_passthrough() || rule.is_some_and(|r| asks_anywhere(r));
        let mut inputs = Vec::with_capacity(service.ports.len() * (1 + subsets));
        let mut add = |port: &Port, subset: Option<usize>, sni_dnat: bool| {
            let modes = passes_through.then(|| endpoint_modes(service, port, endpoints));
            let shared_rule = rule.map(Shared::new);
            let mut input = OutboundClusterInputs {
                client: self.client.clone(),
                service: Shared::new(service),
                port: port.port,
                subset,
                rule: shared_rule,
                sni_dnat,
                accounts: accounts.clone(),
                namespace_mode: self.endpoints.policies(service).namespace_mode(),
                endpoint_modes: modes,
                all_tunnelled: self.client.hbone && all_tunnelled(service, port, endpoints),
                inline: None,
            };
            if outbound::is_dns(kind) {
                input.inline = Some(self.inline(service, port, subset, rule));
            }
            inputs.push(input);
        };
        for port in cluster_ports(service) {
            for sni_dnat in [false, true] {
                if sni_dnat && (!self.sni_dnat || service.mesh_external) {
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

    /// Inputs for the forward proxies of a wildcard service.
    pub(super) fn forward_proxies(&self, service: &Arc<Service>) -> Vec<ForwardProxyInputs> {
        let endpoints = self.snapshot.endpoints(&service.key());
        let accounts = accounts(
            service,
            endpoints,
            &self.snapshot.mesh().trust_domain_aliases,
        );
        service
            .ports
            .iter()
            .map(|port| ForwardProxyInputs {
                client: self.client.clone(),
                service: Shared::new(service),
                port: port.port,
                rule: self.rule(service).map(Shared::new),
                accounts: accounts.clone(),
                namespace_mode: self.endpoints.policies(service).namespace_mode(),
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

/// Identities of a service: of its endpoints and declared ones, repeated for every alias of the trust
/// domain, sorted (§9.1).
fn accounts(
    service: &Service,
    endpoints: Option<&Arc<ServiceEndpoints>>,
    aliases: &[String],
) -> Arc<[Arc<str>]> {
    let found = endpoints.map(|e| &e.service_accounts);
    if service.service_accounts.is_empty() && aliases.is_empty() {
        return found.cloned().unwrap_or_default();
    }
    let all = found
        .into_iter()
        .flat_map(|a| a.iter())
        .chain(&service.service_accounts);
    let mut accounts = BTreeSet::new();
    for account in all {
        accounts.insert(account.clone());
        let rest = account
            .strip_prefix("spiffe://")
            .and_then(|id| id.split_once('/'));
        if let Some((_, rest)) = rest {
            accounts.extend(
                aliases
                    .iter()
                    .map(|a| Arc::from(format!("spiffe://{a}/{rest}"))),
            );
        }
    }
    accounts.into_iter().collect()
}

/// Tells whether any level of a rule asks for the original destination.
fn asks_anywhere(rule: &ConsolidatedRule) -> bool {
    let spec = &rule.config.spec;
    let subsets = spec.subsets.iter().map(|s| s.traffic_policy.as_ref());
    std::iter::once(spec.traffic_policy.as_ref())
        .chain(subsets)
        .any(policy::asks_passthrough)
}

/// The endpoints that serve one service port, in whatever shard.
fn at_port<'a>(
    service: &'a Service,
    port: &'a Port,
    endpoints: Option<&'a Arc<ServiceEndpoints>>,
) -> impl Iterator<Item = &'a Arc<model::Endpoint>> {
    let serves = move |endpoint: &&Arc<model::Endpoint>| match endpoint.legacy_port_key {
        0 => service
            .port_by_name(&endpoint.service_port_name)
            .is_some_and(|p| p.port == port.port),
        key => key == port.port,
    };
    endpoints.into_iter().flat_map(|e| e.iter()).filter(serves)
}

fn endpoint_modes(
    service: &Service,
    port: &Port,
    endpoints: Option<&Arc<ServiceEndpoints>>,
) -> EndpointModes {
    let mut modes = EndpointModes::Empty;
    for endpoint in at_port(service, port, endpoints) {
        if &*endpoint.tls_mode == "disabled" {
            return EndpointModes::SomePlain;
        }
        modes = EndpointModes::AllMutual;
    }
    modes
}

fn all_tunnelled(
    service: &Service,
    port: &Port,
    endpoints: Option<&Arc<ServiceEndpoints>>,
) -> bool {
    let mut any = false;
    let all = at_port(service, port, endpoints).all(|endpoint| {
        any = true;
        crate::eds::tunnels(endpoint)
    });
    any && all
}

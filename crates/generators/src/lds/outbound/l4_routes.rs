//! TCP and TLS rules of VirtualServices as filter chains (listeners §4.2, §4.3).

use std::{collections::BTreeSet, sync::Arc};

use model::{ConfigKey, Labels, Resolution, Service, api, host, selects};
use pushctx::ResolvedVirtualService;

use super::{
    destination::{self, PortRef},
    plan::{ChainContent, ChainMatch, ChainPlan},
};
use crate::{
    lds::{by_host::ByHost, context::Context},
    rds::alternative_names,
};

/// One service port on its way to filter chains.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServicePort<'a> {
    /// The service.
    pub service: &'a Arc<Service>,
    /// The port that is listened to.
    pub port: PortRef<'a>,
    /// The first bind of the listener.
    pub bind: &'a str,
    /// The address of the service as the proxy sees it; a range for some.
    pub address: &'a str,
    /// Destinations that chains of the service itself are limited to.
    pub cidrs: &'a [Arc<str>],
    /// The listener belongs to one endpoint of a headless service on the wildcard: no server names.
    pub headless: bool,
}

/// Chains that forward bytes, and the VirtualServices that they come from.
#[derive(Default, Debug)]
pub(crate) struct L4Chains {
    /// Chains in order.
    pub chains: Vec<ChainPlan>,
    /// The VirtualServices.
    pub sources: BTreeSet<ConfigKey>,
}

impl L4Chains {
    fn push(&mut self, chain: Option<ChainPlan>, vs: Option<&ResolvedVirtualService>) {
        if let Some(chain) = chain {
            self.chains.push(chain);
            self.sources
                .extend(vs.into_iter().flat_map(|vs| vs.sources.iter().cloned()));
        }
    }
}

/// Plans the chains of one service port that forward bytes.
pub(crate) fn plan(ctx: &Context<'_>, rules: &ByHost<'_>, target: ServicePort<'_>) -> L4Chains {
    let mut result = L4Chains::default();
    if target.port.protocol.is_tls() {
        plan_tls(ctx, rules, target, &mut result);
    } else {
        plan_tcp(ctx, rules, target, &mut result);
    }
    result
}

fn plan_tls(ctx: &Context<'_>, rules: &ByHost<'_>, target: ServicePort<'_>, result: &mut L4Chains) {
    let mut seen = BTreeSet::new();
    let mut cidrs: Vec<Arc<str>> = target.cidrs.to_vec();
    for vs in rules.matching(&target.service.hostname) {
        for route in vs.config.spec.tls.iter().filter(|r| !r.route.is_empty()) {
            for matched in route
                .r#match
                .iter()
                .filter(|m| Static::of_tls(m).holds(ctx, target))
            {
                if !matched.destination_subnets.is_empty() && target.port.number != 0 {
                    // Later matches without subnets inherit these, as Istio does.
                    cidrs = shared(&matched.destination_subnets);
                }
                let key = (
                    matched.sni_hosts.join(","),
                    matched.destination_subnets.join(","),
                );
                if !seen.insert(key) {
                    continue;
                }
                let content = destination::routed(ctx, &route.route, target.port, vs);
                let matching = ChainMatch {
                    sni_hosts: matched.sni_hosts.clone(),
                    cidrs: cidrs.clone(),
                    plain_http: false,
                };
                result.push(
                    content.map(|c| routed_chain(matching, Some(vs), c)),
                    Some(vs),
                );
            }
        }
    }
    if result.chains.is_empty() {
        let matching = ChainMatch {
            sni_hosts: if needs_server_name(ctx, target) {
                server_names(ctx, target.service)
            } else {
                Vec::new()
            },
            cidrs: target.cidrs.to_vec(),
            plain_http: false,
        };
        let content = destination::default(ctx, target.service, target.port);
        result.push(Some(routed_chain(matching, None, content)), None);
    }
}

/// Tells whether the chain of a TLS service without rules takes its host name only.
fn needs_server_name(ctx: &Context<'_>, target: ServicePort<'_>) -> bool {
    if target.headless {
        return false;
    }
    let wildcard = &**ctx.local.wildcard();
    !target.cidrs.is_empty()
        || target.address.is_empty()
        || target.address.contains('/')
        || (target.address == wildcard && target.bind == wildcard)
        || (host::is_wildcard(&target.service.hostname)
            && target.service.resolution == Resolution::DynamicDns)
}

/// Lists the names of a service in TLS: its host, and its aliases with their short forms.
fn server_names(ctx: &Context<'_>, service: &Service) -> Vec<String> {
    let mut names = vec![service.hostname.to_string()];
    for alias in &service.attributes.aliases {
        names.push(alias.hostname.to_string());
        names.extend(alternative_names(
            &alias.hostname,
            &ctx.proxy().dns_domain,
            ctx.features().absolute_fqdn_vhost_domain,
        ));
    }
    names
}

fn plan_tcp(ctx: &Context<'_>, rules: &ByHost<'_>, target: ServicePort<'_>, result: &mut L4Chains) {
    let mut wants_default = true;
    for vs in rules.matching(&target.service.hostname) {
        for route in vs.config.spec.tcp.iter().filter(|r| !r.route.is_empty()) {
            let content = || destination::routed(ctx, &route.route, target.port, vs);
            let mut subnets = Vec::new();
            let mut terminal = route.r#match.is_empty();
            for matched in route
                .r#match
                .iter()
                .filter(|m| Static::of_tcp(m).holds(ctx, target))
            {
                if matched.destination_subnets.is_empty() || target.port.number == 0 {
                    terminal = true;
                    break;
                }
                subnets.extend(shared(&matched.destination_subnets));
            }
            if terminal {
                let matching = ChainMatch {
                    cidrs: target.cidrs.to_vec(),
                    ..ChainMatch::default()
                };
                result.push(
                    content().map(|c| routed_chain(matching, Some(vs), c)),
                    Some(vs),
                );
                return;
            }
            if !subnets.is_empty() {
                wants_default &= !same_set(&subnets, target.cidrs);
                let matching = ChainMatch {
                    cidrs: subnets,
                    ..ChainMatch::default()
                };
                // Istio gives these chains no metadata.
                result.push(content().map(|c| routed_chain(matching, None, c)), Some(vs));
            }
        }
    }
    if wants_default {
        let matching = ChainMatch {
            cidrs: target.cidrs.to_vec(),
            ..ChainMatch::default()
        };
        let content = destination::default(ctx, target.service, target.port);
        result.push(Some(routed_chain(matching, None, content)), None);
    }
}

fn routed_chain(
    matching: ChainMatch,
    vs: Option<&ResolvedVirtualService>,
    content: super::plan::TcpPlan,
) -> ChainPlan {
    ChainPlan {
        matching,
        config: vs.map(|vs| vs.config.meta.namespaced_name()),
        content: ChainContent::Tcp(content),
    }
}

fn shared(texts: &[String]) -> Vec<Arc<str>> {
    texts.iter().map(|t| Arc::from(t.as_str())).collect()
}

fn same_set(a: &[Arc<str>], b: &[Arc<str>]) -> bool {
    let sorted = |list: &[Arc<str>]| {
        let mut list = list.to_vec();
        list.sort();
        list
    };
    sorted(a) == sorted(b)
}

/// The conditions of a match that are decided while generating.
struct Static<'a> {
    gateways: &'a [String],
    source_labels: &'a Labels,
    source_namespace: &'a str,
    port: u32,
}

impl<'a> Static<'a> {
    fn of_tcp(matched: &'a api::virtual_service::L4MatchAttributes) -> Self {
        Self {
            gateways: &matched.gateways,
            source_labels: &matched.source_labels,
            source_namespace: &matched.source_namespace,
            port: matched.port,
        }
    }

    fn of_tls(matched: &'a api::virtual_service::TlsMatchAttributes) -> Self {
        Self {
            gateways: &matched.gateways,
            source_labels: &matched.source_labels,
            source_namespace: &matched.source_namespace,
            port: matched.port,
        }
    }

    fn holds(&self, ctx: &Context<'_>, target: ServicePort<'_>) -> bool {
        (self.gateways.is_empty() || self.gateways.iter().any(|g| g == "mesh"))
            && selects(self.source_labels, &ctx.class.labels)
            && (self.port == 0 || self.port == u32::from(target.port.number))
            && (self.source_namespace.is_empty()
                || self.source_namespace == ctx.metadata().namespace)
    }
}

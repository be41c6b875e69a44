//! TLS that gateways pass through: by rules of VirtualServices, or by the names of the mesh's own
//! services (gateways §14, §15).

use std::sync::Arc;

use model::{Protocol, Service, host};
use pushctx::GatewayServer;

use super::{
    plan::{GatewayChain, GatewayContent, UsedNames, server_names, tcp_chain},
    tcp,
};
use crate::lds::{
    context::Context,
    outbound::{PortRef, routed, to_server_name},
};

/// ALPN protocols by which sidecars of the mesh are recognised.
const MESH_PROTOCOLS: [&str; 5] = [
    "istio",
    "istio-peer-exchange",
    "istio-http/1.0",
    "istio-http/1.1",
    "istio-h2",
];

/// Plans a chain for each match of a TLS rule; server names that an earlier chain of the same port
/// has are skipped.
pub(super) fn of_rules(
    ctx: &Context<'_>,
    server: &GatewayServer,
    port: PortRef<'_>,
    used: &mut UsedNames,
) -> Vec<GatewayChain> {
    let mut chains = Vec::new();
    for vs in tcp::candidates(ctx, server) {
        for rule in vs
            .config
            .spec
            .tls
            .iter()
            .filter(|rule| !rule.route.is_empty())
        {
            for matched in &rule.r#match {
                if !tcp::applies(matched.port, &matched.gateways, server, port) {
                    continue;
                }
                let keys: Vec<_> = matched
                    .sni_hosts
                    .iter()
                    .map(|host| (server.port, server.server.bind.clone(), host.clone()))
                    .collect();
                if keys.iter().any(|key| used.contains(key)) {
                    continue;
                }
                used.extend(keys);
                if let Some(plan) = routed(ctx, &rule.route, port, &vs) {
                    let names = server_names(&matched.sni_hosts);
                    let mut chain = tcp_chain(names, port.number, plan, false, None);
                    chain.reads_tls = true;
                    chains.push(chain);
                }
            }
        }
    }
    chains
}

/// Plans chains for every service port of the mesh, and every subset, whose host the server admits.
pub(super) fn of_services(ctx: &Context<'_>, server: &GatewayServer) -> Vec<GatewayChain> {
    let admitted = |service: &&Arc<Service>| {
        !service.mesh_external
            && server
                .sni_hosts
                .iter()
                .any(|wanted| host::subset_of(&service.hostname, wanted))
    };
    let mut chains = Vec::new();
    for service in ctx.scope().services.iter().filter(admitted) {
        let rule = ctx.outbound_rule(&service.hostname);
        let subsets: Vec<&str> = std::iter::once("")
            .chain(
                rule.iter()
                    .flat_map(|r| &r.config.spec.subsets)
                    .map(|s| s.name.as_str()),
            )
            .collect();
        for port in service.ports.iter().filter(|p| p.protocol != Protocol::Udp) {
            for subset in &subsets {
                let reference = PortRef {
                    number: port.port,
                    name: &port.name,
                    protocol: port.protocol,
                };
                let (name, plan) = to_server_name(ctx, service, reference, subset);
                chains.push(GatewayChain {
                    server_names: vec![name],
                    protocols: MESH_PROTOCOLS.to_vec(),
                    content: GatewayContent::Mesh {
                        port: port.port,
                        plan,
                    },
                    tls: None,
                    reads_tls: false,
                });
            }
        }
    }
    chains
}

//! Which listeners a gateway has, and what their chains do (gateways §7, §8, §16).

use std::{collections::BTreeSet, sync::Arc};

use envoy_types::pb::google::protobuf::Any;
use model::{
    ConfigKey, Kind, Protocol,
    api::gateway::{ServerTlsMode, ServerTlsSettings},
};
use pushctx::{GatewayServer, MergedServers, ServerPort};

use super::{passthrough, tcp};
use crate::{
    capabilities::Capabilities,
    lds::{
        address::{has_further_wildcards, is_unix, listener_name},
        context::Context,
        outbound::{PortRef, TcpPlan},
    },
    provider,
    security::server_tls::{self, ServerSide},
    tls::{SecretProvider, SecretServices},
};

/// One listener; equal plans make equal listeners.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct GatewayPlan {
    /// Name of the listener.
    pub name: String,
    /// Addresses; the first names the listener.
    pub binds: Vec<Arc<str>>,
    /// The port; 0 for a Unix socket.
    pub port: u16,
    /// It speaks QUIC.
    pub quic: bool,
    /// Its chains, in order.
    pub chains: Vec<GatewayChain>,
    /// The objects that went in.
    pub sources: BTreeSet<ConfigKey>,
}

/// One filter chain.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct GatewayChain {
    /// Server names that it takes; empty means all.
    pub server_names: Vec<String>,
    /// ALPN protocols that it takes; empty means all.
    pub protocols: Vec<&'static str>,
    /// What it does.
    pub content: GatewayContent,
    /// Packed TLS context, when it terminates TLS.
    pub tls: Option<Any>,
    /// What TLS says decides: the first bytes of connections are looked at.
    pub reads_tls: bool,
}

/// What a chain does.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum GatewayContent {
    /// Routes requests.
    Http {
        /// Name of the route configuration.
        route_name: String,
        /// Prefix of statistics; empty means the listener's name.
        stat_prefix: String,
        /// The servers' protocol is gRPC-Web.
        grpc_web: bool,
    },
    /// Forwards bytes, after policies.
    Tcp {
        /// The port as the server's author wrote it.
        port: u16,
        /// Where to.
        plan: TcpPlan,
        /// Both sides are of the mesh.
        mutual: bool,
    },
    /// Forwards bytes to a cluster of the mesh by server name; policies are the other side's.
    Mesh {
        /// The port of the service.
        port: u16,
        /// Where to.
        plan: TcpPlan,
    },
}

/// Plans the listeners of a gateway, in the order of their port keys.
pub(crate) fn plan(ctx: &Context<'_>) -> Vec<GatewayPlan> {
    let Some(gateway) = &ctx.class.gateway else {
        return Vec::new();
    };
    let mut planner = Planner {
        ctx,
        provider: provider::secrets(ctx.snapshot),
        used: BTreeSet::new(),
        plans: Vec::new(),
    };
    for (port, servers) in &gateway.ports {
        planner.add(port, servers, false);
    }
    for (port, servers) in &gateway.quic {
        planner.add(port, servers, true);
    }
    planner.plans.retain(|plan| !plan.chains.is_empty());
    planner.plans
}

/// Server names that passthrough chains of a port and bind have taken.
pub(super) type UsedNames = BTreeSet<(u16, String, String)>;

struct Planner<'a> {
    ctx: &'a Context<'a>,
    /// Who serves `sds://` names.
    provider: Option<SecretProvider>,
    used: UsedNames,
    plans: Vec<GatewayPlan>,
}

impl Planner<'_> {
    fn add(&mut self, port: &ServerPort, servers: &MergedServers, quic: bool) {
        let unprivileged = self.ctx.metadata().unprivileged_pod;
        if port.number < 1024 && unprivileged {
            return;
        }
        let binds = self.binds(port);
        let number = if is_unix(&port.bind) { 0 } else { port.number };
        let address = listener_name(binds.first().map_or("", |b| b), number);
        let name = if quic {
            format!("udp_{address}")
        } else {
            address
        };
        let chains = self.chains(port, servers, quic);
        let sources = servers.servers.iter().map(|server| {
            let gateway = &server.gateway;
            ConfigKey::new(
                Kind::Gateway,
                gateway.namespace.clone(),
                gateway.name.clone(),
            )
        });
        match self.plans.iter_mut().find(|plan| plan.name == name) {
            Some(plan) => {
                plan.chains.extend(chains);
                plan.sources.extend(sources);
            }
            None => self.plans.push(GatewayPlan {
                name,
                binds,
                port: number,
                quic,
                chains,
                sources: sources.collect(),
            }),
        }
    }

    fn binds(&self, port: &ServerPort) -> Vec<Arc<str>> {
        if !port.bind.is_empty() {
            return vec![port.bind.as_str().into()];
        }
        let local = &self.ctx.local;
        if has_further_wildcards(self.ctx.features(), local) {
            local.wildcards.clone()
        } else {
            vec![local.wildcard().clone()]
        }
    }

    fn chains(
        &mut self,
        port: &ServerPort,
        servers: &MergedServers,
        quic: bool,
    ) -> Vec<GatewayChain> {
        let protocol = Protocol::parse(&port.protocol);
        if protocol.is_http() {
            return vec![GatewayChain {
                server_names: Vec::new(),
                protocols: Vec::new(),
                content: GatewayContent::Http {
                    route_name: servers.route_name.clone(),
                    stat_prefix: String::new(),
                    grpc_web: protocol == Protocol::GrpcWeb,
                },
                tls: None,
                reads_tls: false,
            }];
        }
        servers
            .servers
            .iter()
            .flat_map(|server| self.of_server(server, quic))
            .collect()
    }

    fn of_server(&mut self, server: &Arc<GatewayServer>, quic: bool) -> Vec<GatewayChain> {
        let ctx = self.ctx;
        let written = written_port(server);
        let Some(tls) = &server.server.tls else {
            return tcp::routed(ctx, server, written)
                .map(|plan| tcp_chain(Vec::new(), written.number, plan, false, None))
                .into_iter()
                .collect();
        };
        match tls.mode {
            ServerTlsMode::Passthrough => {
                passthrough::of_rules(ctx, server, written, &mut self.used)
            }
            ServerTlsMode::AutoPassthrough => passthrough::of_services(ctx, server),
            ServerTlsMode::Simple
            | ServerTlsMode::Mutual
            | ServerTlsMode::OptionalMutual
            | ServerTlsMode::IstioMutual => self.terminated(server, tls, written, quic),
        }
    }

    fn terminated(
        &self,
        server: &Arc<GatewayServer>,
        tls: &ServerTlsSettings,
        written: PortRef<'_>,
        quic: bool,
    ) -> Vec<GatewayChain> {
        let ctx = self.ctx;
        let is_http = written.protocol == Protocol::Https;
        let mutual = tls.mode == ServerTlsMode::IstioMutual;
        let context = self.tls_context(tls, quic, mutual && !is_http);
        let names = server_names(&server.sni_hosts);
        if is_http {
            return vec![GatewayChain {
                server_names: names,
                protocols: Vec::new(),
                content: GatewayContent::Http {
                    route_name: server.route_name.clone(),
                    stat_prefix: server.server.name.clone(),
                    grpc_web: false,
                },
                tls: Some(context),
                reads_tls: true,
            }];
        }
        tcp::routed(ctx, server, written)
            .map(|plan| tcp_chain(names, written.number, plan, mutual, Some(context)))
            .into_iter()
            .collect()
    }

    fn tls_context(&self, tls: &ServerTlsSettings, quic: bool, exchanges: bool) -> Any {
        let ctx = self.ctx;
        let features = ctx.features();
        let mut alpn: Vec<String> = Vec::new();
        if quic {
            alpn.push("h3".to_owned());
        } else {
            // Who offers the exchange has to do it.
            let capable = Capabilities::of(ctx.proxy()).metadata_exchange;
            if exchanges && capable && !features.disable_mx_alpn {
                alpn.push("istio-peer-exchange".to_owned());
            }
            alpn.extend(["h2".to_owned(), "http/1.1".to_owned()]);
        }
        let raw = &ctx.proxy().raw_metadata;
        let side = ServerSide {
            mesh: ctx.mesh(),
            features,
            proxy: ctx.proxy(),
            secrets: SecretServices {
                socket: raw.get("credential").and_then(|v| v.as_str()) == Some("true"),
                provider: self.provider.as_ref(),
            },
            quic,
        };
        envoy_json::any(&server_tls::context(tls, alpn, side))
    }
}

/// The port as the server's author wrote it.
fn written_port(server: &GatewayServer) -> PortRef<'_> {
    let port = server.server.port.as_ref();
    PortRef {
        number: port
            .and_then(|p| u16::try_from(p.number).ok())
            .unwrap_or_default(),
        name: port.map_or("", |p| p.name.as_str()),
        protocol: Protocol::parse(port.map_or("", |p| p.protocol.as_str())),
    }
}

/// Sorted server names of a chain; `*` among them means all.
pub(super) fn server_names(hosts: &[String]) -> Vec<String> {
    if hosts.iter().any(|host| host == "*") {
        return Vec::new();
    }
    let mut names = hosts.to_vec();
    names.sort();
    names
}

/// A chain that forwards bytes.
pub(super) fn tcp_chain(
    server_names: Vec<String>,
    port: u16,
    plan: TcpPlan,
    mutual: bool,
    tls: Option<Any>,
) -> GatewayChain {
    GatewayChain {
        server_names,
        protocols: Vec::new(),
        content: GatewayContent::Tcp { port, plan, mutual },
        reads_tls: tls.is_some(),
        tls,
    }
}

//! Inbound listeners as decided, before any of Envoy's messages is built (listeners §11).

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use envoy_types::pb::envoy::config::core::v3::TransportSocket;
use model::{ConfigKey, Kind, NamespacedName, Protocol, api, proxy::InterceptionMode};

use crate::{
    lds::{
        address::{WantedPort, has_further_wildcards},
        context::Context,
        stat_name::ServiceNames,
    },
    mtls::{MtlsMode, WorkloadModes},
    names,
    security::{
        inbound_tls,
        server_tls::{self, ServerSide},
    },
    tls::SecretServices,
};

/// Name of the port of chains that take what has no chain of its own.
const PASSTHROUGH_PORT: &str = "virtualInbound";

/// One inbound listener.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct InboundPlan {
    /// Where it is.
    pub placement: Placement,
    /// Ports in order.
    pub ports: Vec<PortPlan>,
    /// The objects that went in.
    pub sources: BTreeSet<ConfigKey>,
}

/// Where an inbound listener is.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Placement {
    /// The listener that captured traffic arrives at.
    Virtual {
        /// Addresses that it binds.
        binds: Vec<Arc<str>>,
        /// Its port.
        port: u16,
    },
    /// A listener that really binds the workload's port.
    Bound {
        /// Addresses that it binds.
        binds: Vec<Arc<str>>,
        /// The workload port.
        port: u16,
    },
    /// Behind the listener that takes HBONE tunnels.
    Internal {
        /// The proxy's own addresses, which its chains are limited to.
        addresses: Vec<IpAddr>,
    },
}

/// One inbound port, or what takes all ports without one.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct PortPlan {
    /// Port of the workload; 0 for all.
    pub target_port: u16,
    /// Port of the service.
    pub service_port: u16,
    /// Protocol of the port.
    pub protocol: Protocol,
    /// Name of the service's port.
    pub port_name: Arc<str>,
    /// Address in names of chains and statistics.
    pub bind: Arc<str>,
    /// Cluster that leads to the workload.
    pub cluster: String,
    /// Names of the service, for statistics and traces.
    pub names: ServiceNames,
    /// The Sidecar that declares the port.
    pub sidecar: Option<NamespacedName>,
    /// What the port demands of clients.
    pub mode: MtlsMode,
    /// The Sidecar's own TLS.
    pub custom_tls: Option<TransportSocket>,
    /// Takes what has no chain of its own.
    pub passthrough: bool,
    /// Behind an HBONE tunnel.
    pub hbone: bool,
}

/// A port with what decides where its chains go.
struct Candidate {
    plan: PortPlan,
    binds: Vec<Arc<str>>,
    bound: bool,
    sources: BTreeSet<ConfigKey>,
}

/// Plans the inbound listeners of a class: the virtual one, then bound ones by port.
pub(crate) fn plan(ctx: &Context<'_>, modes: &WorkloadModes) -> Vec<InboundPlan> {
    let policy_sources: BTreeSet<ConfigKey> = modes.sources.iter().cloned().collect();
    let candidates = candidates(ctx, modes);
    let mut bound = Vec::new();
    let mut captured = Vec::new();
    let mut captured_sources = policy_sources.clone();
    for candidate in candidates.into_values() {
        if candidate.bound {
            let mut sources = candidate.sources;
            sources.extend(policy_sources.iter().cloned());
            bound.push(InboundPlan {
                placement: Placement::Bound {
                    binds: candidate.binds,
                    port: candidate.plan.target_port,
                },
                ports: vec![candidate.plan],
                sources,
            });
        } else {
            captured_sources.extend(candidate.sources);
            captured.push(candidate.plan);
        }
    }
    let mut plans = Vec::new();
    if let Some(placement) = virtual_placement(ctx) {
        let mut ports = vec![passthrough(ctx, 0, modes.mode)];
        for port in passthrough_ports(ctx, modes) {
            ports.push(passthrough(ctx, port, modes.of_port(port)));
        }
        ports.extend(captured);
        plans.push(InboundPlan {
            placement,
            ports,
            sources: captured_sources,
        });
    }
    plans.extend(bound);
    plans
}

/// Plans the listener behind the one that takes HBONE tunnels; mutual TLS ended there.
pub(crate) fn plan_internal(ctx: &Context<'_>) -> InboundPlan {
    let mut ports = Vec::new();
    let mut sources = BTreeSet::new();
    for candidate in candidates(ctx, &WorkloadModes::default()).into_values() {
        ports.push(PortPlan {
            mode: MtlsMode::Disable,
            custom_tls: None,
            hbone: true,
            ..candidate.plan
        });
        sources.extend(candidate.sources);
    }
    ports.push(passthrough(ctx, 0, MtlsMode::Disable));
    let placement = Placement::Internal {
        addresses: ctx.own_addresses().to_vec(),
    };
    InboundPlan {
        placement,
        ports,
        sources,
    }
}

fn virtual_placement(ctx: &Context<'_>) -> Option<Placement> {
    if ctx.interception() == InterceptionMode::None {
        return None;
    }
    let port = u16::try_from(ctx.mesh().proxy_inbound_listen_port).ok()?;
    let mut binds = vec![ctx.local.wildcard().clone()];
    if has_further_wildcards(ctx.features(), &ctx.local) {
        binds.extend_from_slice(&ctx.local.wildcards[1..]);
    }
    Some(Placement::Virtual { binds, port })
}

fn passthrough(ctx: &Context<'_>, target_port: u16, mode: MtlsMode) -> PortPlan {
    PortPlan {
        target_port,
        service_port: 0,
        protocol: Protocol::Unsupported,
        port_name: PASSTHROUGH_PORT.into(),
        bind: ctx.local.wildcard().clone(),
        cluster: names::INBOUND_PASSTHROUGH.to_owned(),
        names: ServiceNames::default(),
        sidecar: None,
        mode,
        custom_tls: None,
        passthrough: true,
        hbone: false,
    }
}

/// Ports with a mode of their own that no port's own chains take care of.
fn passthrough_ports(ctx: &Context<'_>, modes: &WorkloadModes) -> Vec<u16> {
    let handled: BTreeSet<u16> = match ingress(ctx) {
        Some((_, listeners)) => listeners.iter().filter_map(port_number).collect(),
        None => ctx
            .class
            .targets
            .iter()
            .map(|target| target.target_port)
            .collect(),
    };
    modes
        .ports
        .keys()
        .copied()
        .filter(|port| !handled.contains(port))
        .collect()
}

/// The Sidecar of the class with its ingress listeners, when it has any.
fn ingress<'a>(ctx: &Context<'a>) -> Option<(NamespacedName, &'a [api::sidecar::IngressListener])> {
    let sidecar = ctx.scope().sidecar()?;
    let listeners = sidecar.spec.ingress.as_slice();
    (!listeners.is_empty()).then(|| (sidecar.meta.namespaced_name(), listeners))
}

fn port_number(listener: &api::sidecar::IngressListener) -> Option<u16> {
    u16::try_from(listener.port.as_ref()?.number).ok()
}

/// Collects the ports of the class by workload port; the first to claim a port wins.
fn candidates(ctx: &Context<'_>, modes: &WorkloadModes) -> BTreeMap<u16, Candidate> {
    let mut found = BTreeMap::new();
    match ingress(ctx) {
        Some((name, listeners)) => {
            let declared: BTreeSet<u16> = listeners.iter().filter_map(port_number).collect();
            if ctx.features().sidecar_inbound_merge {
                from_services(ctx, modes, &declared, &mut found);
            }
            from_sidecar(ctx, modes, &name, listeners, &mut found);
        }
        None => {
            if ctx.interception() != InterceptionMode::None {
                from_services(ctx, modes, &BTreeSet::new(), &mut found);
            }
        }
    }
    found
}

fn from_services(
    ctx: &Context<'_>,
    modes: &WorkloadModes,
    declared: &BTreeSet<u16>,
    found: &mut BTreeMap<u16, Candidate>,
) {
    let wildcards = &ctx.local.wildcards;
    let bound = ctx.interception() == InterceptionMode::None;
    let taken = ctx.taken_ports();
    for target in &ctx.class.targets {
        let port = target.target_port;
        if declared.contains(&port) {
            continue;
        }
        let refused = taken.refuses(WantedPort {
            bind: ctx.local.wildcard(),
            port,
            protocol: target.port.protocol,
            bound,
            sidecar_ingress: false,
        });
        if refused {
            continue;
        }
        if let Some(winner) = found.get(&port) {
            let differs = winner.plan.protocol != target.port.protocol
                && winner.plan.names.fqdn != *target.service.hostname;
            if differs {
                tracing::debug!(
                    port,
                    kept = %winner.plan.names.fqdn,
                    dropped = %target.service.hostname,
                    "inbound port conflict"
                );
            }
            continue;
        }
        let plan = PortPlan {
            target_port: port,
            service_port: target.port.port,
            protocol: target.port.protocol,
            port_name: target.port.name.clone(),
            bind: ctx.local.wildcard().clone(),
            cluster: names::inbound(port),
            names: ServiceNames::of(&target.service.hostname, &target.service.attributes),
            sidecar: None,
            mode: modes.of_port(port),
            custom_tls: None,
            passthrough: false,
            hbone: false,
        };
        let sources = BTreeSet::from([target.service.source.key().clone()]);
        found.insert(
            port,
            Candidate {
                plan,
                binds: wildcards.clone(),
                bound,
                sources,
            },
        );
    }
}

fn from_sidecar(
    ctx: &Context<'_>,
    modes: &WorkloadModes,
    sidecar: &NamespacedName,
    listeners: &[api::sidecar::IngressListener],
    found: &mut BTreeMap<u16, Candidate>,
) {
    let own: Option<Arc<str>> = ctx
        .own_addresses()
        .iter()
        .find(|address| is_global(address))
        .map(|address| address.to_string().into());
    let taken = ctx.taken_ports();
    let source = ConfigKey::new(
        Kind::Sidecar,
        sidecar.namespace.clone(),
        sidecar.name.clone(),
    );
    for listener in listeners {
        let (Some(port), Some(number)) = (&listener.port, port_number(listener)) else {
            continue;
        };
        let bound = match listener.capture_mode {
            api::sidecar::CaptureMode::None => true,
            api::sidecar::CaptureMode::Iptables => false,
            api::sidecar::CaptureMode::Default => ctx.interception() == InterceptionMode::None,
        };
        let binds = if listener.bind.is_empty() {
            own.clone()
                .map_or_else(|| ctx.local.wildcards.clone(), |own| vec![own])
        } else {
            vec![listener.bind.as_str().into()]
        };
        let mut protocol = Protocol::parse(&port.protocol);
        let refused = taken.refuses(WantedPort {
            bind: &listener.bind,
            port: number,
            protocol,
            bound,
            sidecar_ingress: true,
        });
        if refused || found.contains_key(&number) {
            continue;
        }
        let settings = listener
            .tls
            .as_ref()
            .filter(|_| ctx.features().tls_on_sidecar_ingress);
        if settings.is_some() {
            protocol = after_termination(protocol);
        }
        let host = format!("{}.{}", sidecar.name, sidecar.namespace);
        let plan = PortPlan {
            target_port: number,
            service_port: number,
            protocol,
            port_name: port.name.as_str().into(),
            bind: binds.first().cloned().unwrap_or_default(),
            cluster: names::inbound(number),
            names: ServiceNames {
                short: host.clone(),
                name: String::new(),
                fqdn: host,
            },
            sidecar: Some(sidecar.clone()),
            mode: modes.of_port(number),
            custom_tls: settings.map(|settings| custom_socket(ctx, settings)),
            passthrough: false,
            hbone: false,
        };
        let sources = BTreeSet::from([source.clone()]);
        found.insert(
            number,
            Candidate {
                plan,
                binds,
                bound,
                sources,
            },
        );
    }
}

fn custom_socket(ctx: &Context<'_>, settings: &api::gateway::ServerTlsSettings) -> TransportSocket {
    let side = ServerSide {
        mesh: ctx.mesh(),
        features: ctx.features(),
        proxy: ctx.proxy(),
        secrets: SecretServices::default(),
        quic: false,
    };
    let alpn = ["h2", "http/1.1"].map(str::to_owned).to_vec();
    inbound_tls::socket(&server_tls::context(settings, alpn, side))
}

/// What a port speaks once TLS is taken off.
const fn after_termination(protocol: Protocol) -> Protocol {
    match protocol {
        Protocol::Https => Protocol::Http,
        Protocol::Tls => Protocol::Tcp,
        other => other,
    }
}

/// An address that others can reach: not loopback, link-local, multicast, broadcast or unspecified.
fn is_global(address: &IpAddr) -> bool {
    let link_local = match address {
        IpAddr::V4(v4) => v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    };
    !(address.is_unspecified() || address.is_loopback() || address.is_multicast() || link_local)
}

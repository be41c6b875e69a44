//! Where listeners bind: wildcards, loopback addresses, names, and ports that are taken
//! (listeners §2.2, §2.3, §2.6).

use std::{net::IpAddr, sync::Arc};

use envoy_types::pb::envoy::config::{
    core::v3::{Address, Pipe, SocketAddress, address, socket_address::PortSpecifier},
    listener::v3::AdditionalAddress,
};
use ipnet::IpNet;
use model::{
    Features, Protocol, api,
    proxy::{IpMode, Proxy},
};

/// Prefix of a bind that is a Unix socket.
const UNIX: &str = "unix://";

/// The addresses that stand for "all" and "this host" on a proxy; the first ones are primary.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct LocalAddresses {
    /// All addresses of the proxy's families.
    pub wildcards: Vec<Arc<str>>,
    /// Loopback addresses of the proxy's families.
    pub localhosts: Vec<Arc<str>>,
}

impl LocalAddresses {
    /// Chooses the addresses of a proxy's families.
    pub(crate) fn of(mode: IpMode) -> Self {
        let list = |addresses: &[&str]| addresses.iter().map(|a| Arc::from(*a)).collect();
        let (wildcards, localhosts): (&[&str], &[&str]) = match mode {
            IpMode::V4 => (&["0.0.0.0"], &["127.0.0.1"]),
            IpMode::V6 => (&["::"], &["::1"]),
            IpMode::Dual => (&["0.0.0.0", "::"], &["127.0.0.1", "::1"]),
        };
        Self {
            wildcards: list(wildcards),
            localhosts: list(localhosts),
        }
    }

    /// The primary wildcard.
    pub(crate) fn wildcard(&self) -> &Arc<str> {
        &self.wildcards[0]
    }
}

/// Returns the name of a listener or chain at `bind` and `port`.
pub(crate) fn listener_name(bind: &str, port: u16) -> String {
    format!("{bind}_{port}")
}

/// Tells whether a bind is a Unix socket.
pub(crate) fn is_unix(bind: &str) -> bool {
    bind.starts_with(UNIX)
}

/// Builds the address of a listener: a socket, or a pipe when `port` is 0.
pub(crate) fn address(bind: &str, port: u16) -> Address {
    let address = if port == 0 {
        address::Address::Pipe(Pipe {
            path: bind.strip_prefix(UNIX).unwrap_or(bind).to_owned(),
            mode: 0,
        })
    } else {
        address::Address::SocketAddress(SocketAddress {
            address: bind.to_owned(),
            port_specifier: Some(PortSpecifier::PortValue(port.into())),
            ..SocketAddress::default()
        })
    };
    Address {
        address: Some(address),
    }
}

/// Builds the further addresses of a listener; empty binds are skipped.
pub(crate) fn additional_addresses(binds: &[Arc<str>], port: u16) -> Vec<AdditionalAddress> {
    binds
        .iter()
        .filter(|bind| !bind.is_empty())
        .map(|bind| AdditionalAddress {
            address: Some(address(bind, port)),
            ..AdditionalAddress::default()
        })
        .collect()
}

/// Ports that the bootstrap's static listeners and the virtual listeners hold.
#[derive(Debug)]
pub(crate) struct TakenPorts<'a> {
    proxy: &'a Proxy,
    mesh: &'a api::MeshConfig,
    wildcard: Arc<str>,
}

/// A port that a listener asks for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WantedPort<'a> {
    /// The explicit bind; empty when the services decide.
    pub bind: &'a str,
    /// The port.
    pub port: u16,
    /// Its protocol.
    pub protocol: Protocol,
    /// The listener really binds.
    pub bound: bool,
    /// The listener is one of `Sidecar.ingress`, which may take the ports of the virtual listeners.
    pub sidecar_ingress: bool,
}

impl<'a> TakenPorts<'a> {
    /// Reads what `proxy` and the mesh reserve.
    pub(crate) fn new(proxy: &'a Proxy, mesh: &'a api::MeshConfig, local: &LocalAddresses) -> Self {
        Self {
            proxy,
            mesh,
            wildcard: local.wildcard().clone(),
        }
    }

    /// Tells whether a listener must not take a port.
    pub(crate) fn refuses(&self, wanted: WantedPort<'_>) -> bool {
        let metadata = &self.proxy.metadata;
        if wanted.bound && (1..1024).contains(&wanted.port) && metadata.unprivileged_pod {
            return true;
        }
        let on_wildcard = if wanted.bind.is_empty() {
            wanted.protocol.is_http()
        } else {
            wanted.bind == &*self.wildcard
        };
        if !on_wildcard {
            return false;
        }
        let equals = |port: i32| port == i32::from(wanted.port);
        metadata.reserved_ports.contains(&wanted.port)
            || (!wanted.sidecar_ingress
                && (equals(self.mesh.proxy_listen_port)
                    || equals(self.mesh.proxy_inbound_listen_port)))
    }
}

/// Tells whether the further wildcards of virtual and inbound listeners are emitted.
pub(crate) fn has_further_wildcards(features: &Features, local: &LocalAddresses) -> bool {
    features.dual_stack && local.wildcards.len() > 1
}

/// Reads an address or range; an address alone is a range of one.
pub(crate) fn parse_cidr(text: &str) -> Option<IpNet> {
    text.parse()
        .ok()
        .or_else(|| text.parse::<IpAddr>().ok().map(IpNet::from))
}

//! Which listeners and chains a patch means (envoyfilter §10.2, §12.1).

use envoy_types::pb::envoy::config::{
    core::v3::{address::Address, socket_address::PortSpecifier},
    listener::v3::{FilterChain, Listener},
};
use model::api::envoy_filter::{ApplyTo, FilterChainMatch, ListenerMatch};

use super::Patch;

/// The selective condition of patches of listeners.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum ListenerKey {
    Name(String),
    Port(u32),
}

impl ListenerKey {
    pub(super) fn of(matching: Option<&ListenerMatch>) -> Option<Self> {
        let matching = matching?;
        if !matching.name.is_empty() {
            return Some(Self::Name(matching.name.clone()));
        }
        (matching.port_number != 0).then_some(Self::Port(matching.port_number))
    }
}

/// What of a listener conditions look at.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct ListenerKeys {
    name: String,
    port: Option<u32>,
}

impl ListenerKeys {
    pub(super) fn of(listener: &Listener) -> Self {
        let address = listener.address.as_ref().and_then(|a| a.address.as_ref());
        let port = match address {
            Some(Address::SocketAddress(socket)) => match socket.port_specifier {
                Some(PortSpecifier::PortValue(port)) => Some(port),
                _ => Some(0),
            },
            _ => None,
        };
        Self {
            name: listener.name.clone(),
            port,
        }
    }

    /// Tells whether this is one of the two capture listeners, whose ports are those of chains.
    pub(super) fn is_virtual(&self) -> bool {
        matches!(self.name.as_str(), "virtualInbound" | "virtualOutbound")
    }

    pub(super) fn probes(&self) -> Vec<ListenerKey> {
        let port = self.port.map(ListenerKey::Port);
        [ListenerKey::Name(self.name.clone())]
            .into_iter()
            .chain(port)
            .collect()
    }

    /// Tells whether a patch means the listener.
    pub(super) fn matches(&self, patch: &Patch) -> bool {
        let Some(matching) = &patch.matching.listener else {
            return true;
        };
        if !matching.name.is_empty() && matching.name != self.name {
            return false;
        }
        if patch.apply_to != ApplyTo::Listener && self.is_virtual() {
            return true;
        }
        matching.port_number == 0 || self.port == Some(matching.port_number)
    }
}

/// The selective condition of patches of chains and of what is in them.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum ChainKey {
    Listener(String),
    Chain(String),
    Sni(String),
    Port(u32),
    DestinationPort(u32),
}

impl ChainKey {
    pub(super) fn of(matching: Option<&ListenerMatch>) -> Option<Self> {
        let matching = matching?;
        let text = |t: &String| (!t.is_empty()).then(|| t.clone());
        let number = |n: u32| (n != 0).then_some(n);
        let chain = matching.filter_chain.as_ref();
        text(&matching.name)
            .map(Self::Listener)
            .or_else(|| chain.and_then(|c| text(&c.name)).map(Self::Chain))
            .or_else(|| chain.and_then(|c| text(&c.sni)).map(Self::Sni))
            .or_else(|| number(matching.port_number).map(Self::Port))
            .or_else(|| {
                chain
                    .and_then(|c| number(c.destination_port))
                    .map(Self::DestinationPort)
            })
    }
}

/// What of a chain and its listener conditions look at.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub(super) struct ChainKeys {
    listener: ListenerKeys,
    name: String,
    matching: Option<Matching>,
}

/// A chain's own match.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Matching {
    names: Vec<String>,
    transport: String,
    protocols: Vec<String>,
    port: Option<u32>,
}

impl ChainKeys {
    pub(super) fn of(listener: &ListenerKeys, chain: &FilterChain) -> Self {
        Self {
            listener: listener.clone(),
            name: chain.name.clone(),
            matching: chain.filter_chain_match.as_ref().map(|m| Matching {
                names: m.server_names.clone(),
                transport: m.transport_protocol.clone(),
                protocols: m.application_protocols.clone(),
                port: m.destination_port.map(|p| p.value),
            }),
        }
    }

    fn destination_port(&self) -> Option<u32> {
        self.matching.as_ref().and_then(|m| m.port)
    }

    pub(super) fn probes(&self) -> Vec<ChainKey> {
        let mut probes = vec![
            ChainKey::Listener(self.listener.name.clone()),
            ChainKey::Chain(self.name.clone()),
        ];
        let names = self.matching.iter().flat_map(|m| &m.names);
        probes.extend(names.cloned().map(ChainKey::Sni));
        let port = if self.listener.is_virtual() {
            self.destination_port()
        } else {
            self.listener.port
        };
        probes.extend(port.map(ChainKey::Port));
        probes.extend(self.destination_port().map(ChainKey::DestinationPort));
        probes
    }

    /// Tells whether a patch means the chain.
    pub(super) fn matches(&self, patch: &Patch) -> bool {
        if !self.listener.matches(patch) {
            return false;
        }
        let Some(matching) = &patch.matching.listener else {
            return true;
        };
        let port_of_chain = self.listener.is_virtual() && matching.port_number != 0;
        if port_of_chain && self.destination_port() != Some(matching.port_number) {
            return false;
        }
        matching
            .filter_chain
            .as_ref()
            .is_none_or(|chain| self.matches_chain(chain))
    }

    fn matches_chain(&self, wanted: &FilterChainMatch) -> bool {
        let own = self.matching.as_ref();
        let name = wanted.name.is_empty() || wanted.name == self.name;
        let sni = wanted.sni.is_empty() || own.is_some_and(|m| m.names.contains(&wanted.sni));
        let transport = wanted.transport_protocol.is_empty()
            || own.is_some_and(|m| m.transport == wanted.transport_protocol);
        let protocols = wanted.application_protocols.is_empty()
            || own.is_some_and(|m| {
                wanted
                    .application_protocols
                    .split(',')
                    .all(|p| m.protocols.iter().any(|o| o == p))
            });
        let port = wanted.destination_port == 0
            || self.destination_port() == Some(wanted.destination_port);
        name && sni && transport && protocols && port
    }
}

//! Services that meet on one bind and port (listeners §5).

use std::{collections::BTreeSet, net::IpAddr};

use ipnet::IpNet;
use model::Protocol;

use super::plan::{ChainMatch, ChainPlan, ListenerPlan};
use crate::lds::address::parse_cidr;

/// The class of a port's protocol as listeners see it (listeners §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum PortClass {
    /// Routed by request.
    Http,
    /// Forwarded as bytes.
    Tcp,
    /// Told apart by sniffing.
    Auto,
    /// Not listened to.
    None,
}

impl PortClass {
    /// Classifies a protocol.
    pub(crate) const fn of(protocol: Protocol) -> Self {
        match protocol {
            Protocol::Http
            | Protocol::HttpProxy
            | Protocol::Http2
            | Protocol::Grpc
            | Protocol::GrpcWeb => Self::Http,
            Protocol::Tcp
            | Protocol::Mongo
            | Protocol::Redis
            | Protocol::MySql
            | Protocol::Https
            | Protocol::Tls => Self::Tcp,
            Protocol::Unsupported => Self::Auto,
            Protocol::Udp => Self::None,
        }
    }

    const fn word(self) -> &'static str {
        match self {
            Self::Http => "HTTP",
            Self::Tcp => "TCP",
            Self::Auto | Self::None => "UNKNOWN",
        }
    }
}

/// What a service port brings to a listener that may be there already.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    /// The listener that it would make alone. `protocol` is the one it would be recorded with.
    pub plan: ListenerPlan,
    /// How many of the chains, from the first, forward bytes; the rest is HTTP.
    pub tcp_chains: usize,
    /// Protocol of the arriving port.
    pub protocol: Protocol,
}

/// Puts `arrival` into the listener that holds its place; returns how many of its chains were
/// dropped because an older one takes the same connections.
pub(crate) fn resolve(current: &mut ListenerPlan, mut arrival: Arrival) -> usize {
    if server_first(arrival.protocol, current.protocol) {
        return 0;
    }
    match (
        PortClass::of(arrival.protocol),
        PortClass::of(current.protocol),
    ) {
        (PortClass::Http, PortClass::Http | PortClass::Auto) | (PortClass::None, _) => {
            // Served already, through the routes of the port.
            0
        }
        (PortClass::Auto, PortClass::Http) => {
            *current = ListenerPlan {
                protocol: Protocol::Unsupported,
                ..arrival.plan
            };
            0
        }
        (PortClass::Auto, PortClass::Auto) => {
            arrival.plan.chains.truncate(arrival.tcp_chains);
            merge(current, arrival.plan)
        }
        (PortClass::Tcp, PortClass::Tcp | PortClass::Auto) => merge(current, arrival.plan),
        (PortClass::Tcp, PortClass::Http)
        | (PortClass::Http | PortClass::Auto, PortClass::Tcp)
        | (_, PortClass::None) => {
            current.protocol = Protocol::Unsupported;
            merge(current, arrival.plan)
        }
    }
}

/// Protocols in which the server speaks first cannot be sniffed and share with no other.
fn server_first(incoming: Protocol, current: Protocol) -> bool {
    let first = |p: Protocol| matches!(p, Protocol::Mongo | Protocol::MySql);
    incoming != current && (first(incoming) || first(current))
}

fn merge(current: &mut ListenerPlan, mut incoming: ListenerPlan) -> usize {
    let mut dropped = 0;
    let mut kept: Vec<MatchKey> = current.chains.iter().map(MatchKey::of).collect();
    for chain in incoming.chains {
        let key = MatchKey::of(&chain);
        if kept.contains(&key) {
            dropped += 1;
        } else {
            kept.push(key);
            current.chains.push(chain);
        }
    }
    current.sources.append(&mut incoming.sources);
    dropped
}

/// Writes what happened when chains were dropped, in Istio's words.
pub(crate) fn report(current: &ListenerPlan, rejected: Protocol, hostname: &str) -> String {
    format!(
        "Listener={} Accepted={} Rejected={} ({hostname})",
        current.name(),
        PortClass::of(current.port_protocol).word(),
        PortClass::of(rejected).word(),
    )
}

/// The connections that a chain takes, in a form in which equal ones are equal.
#[derive(PartialEq, Eq)]
struct MatchKey {
    plain_http: bool,
    sni_hosts: BTreeSet<String>,
    cidrs: BTreeSet<IpNet>,
}

impl MatchKey {
    fn of(chain: &ChainPlan) -> Self {
        let ChainMatch {
            sni_hosts,
            cidrs,
            plain_http,
        } = &chain.matching;
        Self {
            plain_http: *plain_http,
            sni_hosts: sni_hosts.iter().filter(|h| *h != "*").cloned().collect(),
            cidrs: cidrs
                .iter()
                .filter_map(|cidr| parse_cidr(cidr))
                .filter(|net| net.addr() != IpAddr::from([0, 0, 0, 0]))
                .map(|net| net.trunc())
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lds::outbound::plan::{ChainContent, HttpPlan, TcpPlan};

    /// Plans what one port of `protocol` on the wildcard brings.
    fn arrival(protocol: Protocol, sni: Option<&str>) -> Arrival {
        let chain = |matching, content| ChainPlan {
            matching,
            config: None,
            content,
        };
        let mut chains = Vec::new();
        let class = PortClass::of(protocol);
        if class != PortClass::Http {
            let sni_hosts = sni.map(str::to_owned).into_iter().collect();
            let matching = ChainMatch {
                sni_hosts,
                ..ChainMatch::default()
            };
            chains.push(chain(
                matching,
                ChainContent::Tcp(TcpPlan::to_cluster("c", None)),
            ));
        }
        let tcp_chains = chains.len();
        if class != PortClass::Tcp {
            let matching = ChainMatch {
                plain_http: true,
                ..ChainMatch::default()
            };
            chains.push(chain(matching, ChainContent::Http(HttpPlan::default())));
        }
        let plan = ListenerPlan {
            port: 80,
            port_protocol: protocol,
            binds: vec!["0.0.0.0".into()],
            bound: false,
            chains,
            protocol: if class == PortClass::Http {
                Protocol::Unsupported
            } else {
                protocol
            },
            sources: BTreeSet::new(),
        };
        Arrival {
            plan,
            tcp_chains,
            protocol,
        }
    }

    /// Lets ports arrive in order; `expected` shows each chain that is left.
    #[track_caller]
    fn check(ports: &[(Protocol, Option<&str>)], expected: &[&str], dropped: usize) {
        let mut arrivals = ports.iter().map(|(protocol, sni)| arrival(*protocol, *sni));
        let mut current = arrivals.next().expect("a first port").plan;
        let lost: usize = arrivals.map(|next| resolve(&mut current, next)).sum();
        let shown: Vec<String> = current
            .chains
            .iter()
            .map(|chain| match &chain.content {
                ChainContent::Http(_) => "http".to_owned(),
                ChainContent::Tcp(_) => format!("tcp {}", chain.matching.sni_hosts.join(",")),
            })
            .collect();
        assert_eq!(shown, expected);
        assert_eq!(lost, dropped);
    }

    #[test]
    fn http_is_served_once() {
        check(
            &[(Protocol::Http, None), (Protocol::Grpc, None)],
            &["http"],
            0,
        );
    }

    #[test]
    fn http_and_tcp_share_a_port_in_either_order() {
        check(
            &[(Protocol::Http, None), (Protocol::Tcp, None)],
            &["http", "tcp "],
            0,
        );
        check(
            &[(Protocol::Tcp, None), (Protocol::Http, None)],
            &["tcp ", "http"],
            0,
        );
    }

    #[test]
    fn the_younger_of_two_equal_chains_is_dropped() {
        check(
            &[(Protocol::Tcp, None), (Protocol::Tcp, None)],
            &["tcp "],
            1,
        );
        let tls = [
            (Protocol::Tls, Some("a")),
            (Protocol::Tls, Some("b")),
            (Protocol::Tls, Some("a")),
        ];
        check(&tls, &["tcp a", "tcp b"], 1);
        check(
            &[(Protocol::Unsupported, None), (Protocol::Unsupported, None)],
            &["tcp ", "http"],
            1,
        );
    }

    #[test]
    fn protocols_in_which_the_server_speaks_first_share_with_none() {
        check(
            &[(Protocol::MySql, None), (Protocol::Http, None)],
            &["tcp "],
            0,
        );
        check(
            &[(Protocol::Http, None), (Protocol::Mongo, None)],
            &["http"],
            0,
        );
    }

    #[test]
    fn ranges_are_compared_without_host_bits() {
        let mut first = arrival(Protocol::Tcp, None).plan;
        let mut second = arrival(Protocol::Tcp, None);
        first.chains[0].matching.cidrs = vec!["10.1.2.3/8".into()];
        second.plan.chains[0].matching.cidrs = vec!["10.9.9.9/8".into(), "0.0.0.0/0".into()];
        assert_eq!(resolve(&mut first, second), 1);
        assert_eq!(first.chains.len(), 1);
    }
}

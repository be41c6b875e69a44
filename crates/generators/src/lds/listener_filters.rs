//! Filters that look at a connection before a chain is chosen (listeners §6, §15.2).

use std::collections::BTreeMap;

use envoy_json::any;
use envoy_types::pb::{
    envoy::{
        config::listener::v3::{
            FilterChain, ListenerFilter, ListenerFilterChainMatchPredicate, listener_filter,
            listener_filter_chain_match_predicate::{MatchSet, Rule},
        },
        extensions::filters::listener::{
            http_inspector::v3::HttpInspector, original_dst::v3::OriginalDst,
            original_src::v3::OriginalSrc, tls_inspector::v3::TlsInspector,
        },
        r#type::v3::Int32Range,
    },
    google::protobuf::Any,
};

use crate::convert;

/// Bytes that the TLS inspector reads at first; most client hellos fit.
const TLS_INSPECTOR_BUFFER: u32 = 512;
/// Mark of packets that keep their source address.
const ORIGINAL_SRC_MARK: u32 = 1337;

/// Finds the server name and ALPN of TLS.
pub(crate) fn tls_inspector(disabled: Option<ListenerFilterChainMatchPredicate>) -> ListenerFilter {
    let config = TlsInspector {
        initial_read_buffer_size: convert::u32_value(TLS_INSPECTOR_BUFFER),
        ..TlsInspector::default()
    };
    filter(
        "envoy.filters.listener.tls_inspector",
        any(&config),
        disabled,
    )
}

/// Tells HTTP from other plain text.
pub(crate) fn http_inspector(
    disabled: Option<ListenerFilterChainMatchPredicate>,
) -> ListenerFilter {
    filter(
        "envoy.filters.listener.http_inspector",
        any(&HttpInspector {}),
        disabled,
    )
}

/// Tells HTTP from other plain text, but not on these ports.
pub(crate) fn http_inspector_but(known: impl Iterator<Item = u16>) -> ListenerFilter {
    http_inspector(ports(known))
}

/// Finds the server name and ALPN of TLS, but not on these ports.
pub(crate) fn tls_inspector_but(known: impl Iterator<Item = u16>) -> ListenerFilter {
    tls_inspector(ports(known))
}

/// Restores the destination that the connection was captured from.
pub(crate) fn original_dst() -> ListenerFilter {
    filter(
        "envoy.filters.listener.original_dst",
        any(&OriginalDst {}),
        None,
    )
}

/// Keeps the source address upstream.
pub(crate) fn original_src() -> ListenerFilter {
    let config = OriginalSrc {
        mark: ORIGINAL_SRC_MARK,
        ..OriginalSrc::default()
    };
    filter("envoy.filters.listener.original_src", any(&config), None)
}

fn filter(
    name: &str,
    config: Any,
    filter_disabled: Option<ListenerFilterChainMatchPredicate>,
) -> ListenerFilter {
    ListenerFilter {
        name: name.to_owned(),
        filter_disabled,
        config_type: Some(listener_filter::ConfigType::TypedConfig(config)),
    }
}

/// Which ports of an inbound listener need which inspector; 0 stands for ports without chains of
/// their own.
#[derive(Default, Debug)]
pub(crate) struct Inspection {
    ports: BTreeMap<u16, Needs>,
}

#[derive(Clone, Copy, Default, Debug)]
struct Needs {
    tls: bool,
    http: bool,
}

impl Inspection {
    /// Reads what `chains` match on.
    pub(crate) fn of(chains: &[FilterChain]) -> Self {
        let mut inspection = Self::default();
        for chain in chains {
            let Some(matching) = &chain.filter_chain_match else {
                continue;
            };
            let port = matching.destination_port.map_or(0, |p| p.value);
            let needs = inspection
                .ports
                .entry(u16::try_from(port).unwrap_or_default())
                .or_default();
            needs.tls |= matching.transport_protocol == "tls";
            needs.http |= matching
                .application_protocols
                .iter()
                .any(|p| p == "http/1.1" || p == "h2c");
        }
        inspection
    }

    /// Adds a port whose chains need no inspector.
    pub(crate) fn with_plain_port(mut self, port: u16) -> Self {
        self.ports.entry(port).or_default();
        self
    }

    /// Lists the inspectors that some port needs, limited to the ports that need them.
    pub(crate) fn inspectors(&self) -> Vec<ListenerFilter> {
        let mut filters = Vec::new();
        if self.ports.values().any(|needs| needs.tls) {
            filters.push(tls_inspector(self.tls_disabled()));
        }
        if self.ports.values().any(|needs| needs.http) {
            let not_http = self.ports.iter().filter(|(_, needs)| !needs.http);
            filters.push(http_inspector(ports(not_http.map(|(port, _)| *port))));
        }
        filters
    }

    fn tls_disabled(&self) -> Option<ListenerFilterChainMatchPredicate> {
        let explicit = |wanted: bool| {
            let ports = self.ports.iter();
            ports
                .filter(move |(port, n)| **port != 0 && n.tls == wanted)
                .map(|(port, _)| *port)
        };
        if self.ports.get(&0).is_some_and(|needs| needs.tls) {
            return ports(explicit(false));
        }
        ports(explicit(true)).map(|enabled| ListenerFilterChainMatchPredicate {
            rule: Some(Rule::NotMatch(Box::new(enabled))),
        })
    }
}

/// A predicate on destination ports; `None` without any.
fn ports(list: impl Iterator<Item = u16>) -> Option<ListenerFilterChainMatchPredicate> {
    let mut rules: Vec<ListenerFilterChainMatchPredicate> = list
        .map(|port| ListenerFilterChainMatchPredicate {
            rule: Some(Rule::DestinationPortRange(Int32Range {
                start: port.into(),
                end: i32::from(port) + 1,
            })),
        })
        .collect();
    match rules.len() {
        0 => None,
        1 => rules.pop(),
        _ => Some(ListenerFilterChainMatchPredicate {
            rule: Some(Rule::OrMatch(MatchSet { rules })),
        }),
    }
}

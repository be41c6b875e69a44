//! How a waypoint chooses a chain: by address, then by port, then by what is spoken.

use std::{collections::HashMap, net::IpAddr, sync::Arc};

use envoy_json::{
    any,
    xds::{IpMatcher, IpRangeMatcher},
};
use envoy_types::pb::{
    envoy::extensions::matching::common_inputs::network::v3::{
        ApplicationProtocolInput, DestinationIpInput, DestinationPortInput,
    },
    google::protobuf::StringValue,
    xds::{
        core::v3::{CidrRange, TypedExtensionConfig},
        r#type::matcher::v3::{
            Matcher,
            matcher::{
                MatcherTree, MatcherType, OnMatch,
                matcher_tree::{MatchMap, TreeType},
                on_match,
            },
        },
    },
};
use prost::{Message, Name};

use crate::convert;

/// The chains of a port: of bytes, of requests, or of both where what is spoken decides.
#[derive(Clone, Debug)]
pub(super) struct Chain {
    /// Of bytes.
    pub tcp: Option<String>,
    /// Of requests.
    pub http: Option<String>,
}

/// Collects who is reached by which chain.
#[derive(Debug)]
pub(super) struct Dispatch {
    http10: bool,
    entries: Vec<(Vec<CidrRange>, OnMatch)>,
}

impl Dispatch {
    /// Starts without chains; `http10` makes HTTP/1.0 count as HTTP.
    pub(super) fn new(http10: bool) -> Self {
        Self {
            http10,
            entries: Vec::new(),
        }
    }

    /// Leads ports of the addresses of a service to chains.
    pub(super) fn add_ports(
        &mut self,
        addresses: &[Arc<str>],
        ports: impl Iterator<Item = (u16, Chain)>,
    ) {
        let map: HashMap<String, OnMatch> = ports
            .filter_map(|(port, chain)| Some((port.to_string(), self.target(&chain)?)))
            .collect();
        if !map.is_empty() {
            let target = nested(exactly(input("port", &DestinationPortInput {}), map));
            self.add(addresses, target);
        }
    }

    /// Leads all ports of some addresses to a chain.
    pub(super) fn add_all(&mut self, addresses: &[Arc<str>], chain: &Chain) {
        if let Some(target) = self.target(chain) {
            self.add(addresses, target);
        }
    }

    fn add(&mut self, addresses: &[Arc<str>], target: OnMatch) {
        let ranges: Vec<_> = addresses.iter().filter_map(|a| range(a)).collect();
        // Envoy takes no entry without addresses.
        if !ranges.is_empty() {
            self.entries.push((ranges, target));
        }
    }

    fn target(&self, chain: &Chain) -> Option<OnMatch> {
        Some(match (&chain.tcp, &chain.http) {
            (Some(tcp), Some(http)) => nested(self.by_protocol(tcp, http)),
            (Some(only), None) | (None, Some(only)) => named(only),
            (None, None) => return None,
        })
    }

    /// What the HTTP inspector found; quoted, as it names them.
    fn by_protocol(&self, tcp: &str, http: &str) -> Matcher {
        let mut protocols = vec!["'h2c'", "'http/1.1'"];
        if self.http10 {
            protocols.push("'http/1.0'");
        }
        let map = protocols.into_iter().map(|p| (p.to_owned(), named(http)));
        let input = input("application-protocol", &ApplicationProtocolInput {});
        Matcher {
            on_no_match: Some(Box::new(named(tcp))),
            ..exactly(input, map.collect())
        }
    }

    /// Builds the matcher. Where nobody is reached, it matches nothing.
    pub(super) fn finish(self) -> Matcher {
        let range_matchers = self
            .entries
            .into_iter()
            .map(|(ranges, target)| IpRangeMatcher {
                ranges,
                on_match: Some(target),
                exclusive: false,
            });
        let by_address = IpMatcher {
            range_matchers: range_matchers.collect(),
        };
        tree(
            input("ip", &DestinationIpInput {}),
            TreeType::CustomMatch(input("ip", &by_address)),
        )
    }
}

/// An address, or a range of addresses.
fn range(text: &str) -> Option<CidrRange> {
    let (address, length) = match text.split_once('/') {
        Some((address, length)) => (address, Some(length.parse().ok()?)),
        None => (text, None),
    };
    let whole = match address.parse().ok()? {
        IpAddr::V4(_) => 32,
        IpAddr::V6(_) => 128,
    };
    Some(CidrRange {
        address_prefix: address.to_owned(),
        prefix_len: convert::u32_value(length.unwrap_or(whole)),
    })
}

fn input<M: Message + Name>(name: &str, config: &M) -> TypedExtensionConfig {
    TypedExtensionConfig {
        name: name.to_owned(),
        typed_config: Some(any(config)),
    }
}

fn exactly(input: TypedExtensionConfig, map: HashMap<String, OnMatch>) -> Matcher {
    tree(input, TreeType::ExactMatchMap(MatchMap { map }))
}

fn tree(input: TypedExtensionConfig, tree_type: TreeType) -> Matcher {
    Matcher {
        matcher_type: Some(MatcherType::MatcherTree(MatcherTree {
            input: Some(input),
            tree_type: Some(tree_type),
        })),
        on_no_match: None,
    }
}

fn nested(matcher: Matcher) -> OnMatch {
    OnMatch {
        on_match: Some(on_match::OnMatch::Matcher(Box::new(matcher))),
        ..OnMatch::default()
    }
}

/// Chooses a chain by its name.
fn named(chain: &str) -> OnMatch {
    let value = StringValue {
        value: chain.to_owned(),
    };
    OnMatch {
        on_match: Some(on_match::OnMatch::Action(input(chain, &value))),
        ..OnMatch::default()
    }
}

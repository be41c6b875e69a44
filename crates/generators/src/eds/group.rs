//! Endpoints by locality (clusters-endpoints §19.5).

use std::collections::BTreeMap;

use envoy_types::pb::envoy::config::{
    core::v3,
    endpoint::v3::{LbEndpoint, LocalityLbEndpoints},
};
use model::{Endpoint, Labels, Locality};

use crate::convert;

/// One endpoint, or a gateway that stands for some.
#[derive(Clone, Debug)]
pub(super) struct Member<'a> {
    /// The message, but for its weight.
    pub message: LbEndpoint,
    /// Its weight.
    pub weight: u32,
    /// It is marked for mutual TLS.
    pub mtls: bool,
    /// Where its labels come from.
    pub source: Source<'a>,
}

/// What a member stands for.
#[derive(Clone, Copy, Debug)]
pub(super) enum Source<'a> {
    /// An endpoint.
    Endpoint(&'a Endpoint),
    /// A gateway of a network.
    Gateway {
        /// The network.
        network: &'a str,
        /// The gateway's cluster.
        cluster: &'a str,
    },
}

impl Source<'_> {
    /// A label's value; empty when it is missing.
    pub(crate) fn label(&self, key: &str) -> &str {
        match self {
            Self::Endpoint(endpoint) => {
                let labels: &Labels = &endpoint.labels;
                labels.get(key).map_or("", String::as_str)
            }
            Self::Gateway { network, cluster } => match key {
                "topology.istio.io/network" => network,
                "topology.istio.io/cluster" => cluster,
                _ => "",
            },
        }
    }
}

/// Members of one locality.
#[derive(Clone, Debug)]
pub(super) struct Group<'a> {
    /// The locality.
    pub locality: Locality,
    /// The members, in order.
    pub members: Vec<Member<'a>>,
    /// The weight of the group; `None` is not written.
    pub weight: Option<u32>,
    /// The priority; 0 is used first.
    pub priority: u32,
}

impl<'a> Group<'a> {
    /// A group of `members` that weighs as much as they do together.
    pub(crate) fn new(locality: Locality, members: Vec<Member<'a>>) -> Self {
        let mut group = Self {
            locality,
            members,
            weight: None,
            priority: 0,
        };
        group.weigh();
        group
    }

    /// Sets the weight to the sum of the members' weights.
    pub(crate) fn weigh(&mut self) {
        let sum = self
            .members
            .iter()
            .fold(0, |sum: u32, m| sum.saturating_add(m.weight));
        self.weight = (!self.members.is_empty()).then_some(sum);
    }

    /// Keeps some members and weighs again. The group stays, even when nothing is left.
    pub(crate) fn retain(&mut self, keep: impl FnMut(&Member<'a>) -> bool) {
        self.members.retain(keep);
        self.weigh();
    }

    /// Makes the message.
    pub(crate) fn message(self) -> LocalityLbEndpoints {
        let with_weight = |member: Member<'_>| LbEndpoint {
            load_balancing_weight: convert::u32_value(member.weight),
            ..member.message
        };
        LocalityLbEndpoints {
            locality: Some(v3::Locality {
                region: self.locality.region.to_string(),
                zone: self.locality.zone.to_string(),
                sub_zone: self.locality.subzone.to_string(),
            }),
            lb_endpoints: self.members.into_iter().map(with_weight).collect(),
            load_balancing_weight: self.weight.and_then(convert::u32_value),
            priority: self.priority,
            ..LocalityLbEndpoints::default()
        }
    }
}

/// Groups members by locality, those without one first; members keep their order.
pub(super) fn by_locality(members: Vec<Member<'_>>) -> Vec<Group<'_>> {
    let mut groups: BTreeMap<String, Group<'_>> = BTreeMap::new();
    for member in members {
        let Source::Endpoint(endpoint) = member.source else {
            continue;
        };
        let locality = &endpoint.locality;
        let label = if locality.is_empty() {
            String::new()
        } else {
            format!("{}/{}/{}", locality.region, locality.zone, locality.subzone)
        };
        groups
            .entry(label)
            .or_insert_with(|| Group::new(locality.clone(), Vec::new()))
            .members
            .push(member);
    }
    let mut groups: Vec<Group<'_>> = groups.into_values().collect();
    groups.iter_mut().for_each(Group::weigh);
    groups
}

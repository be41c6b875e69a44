//! Split horizon: endpoints of other networks are reached through gateways (clusters-endpoints §19.6).

use std::{collections::BTreeMap, net::IpAddr, sync::Arc};

use model::{
    ProxyType,
    network::{NetworkGateway, NetworkGateways},
    proxy::IpMode,
};

use super::{
    group::{Group, Member, Source},
    lb_endpoint,
    view::EndpointView,
};

/// The gateways between networks, and the factor that keeps shares of weights whole.
#[derive(Clone, Hash, Debug)]
pub(crate) struct Horizon {
    gateways: Arc<NetworkGateways>,
    scale: u32,
}

impl Horizon {
    /// Computes the factor.
    pub(crate) fn new(gateways: &Arc<NetworkGateways>) -> Self {
        Self {
            scale: gateways.scale_factor(),
            gateways: gateways.clone(),
        }
    }

    /// Tells whether there is any gateway.
    pub(crate) fn is_multi_network(&self) -> bool {
        self.gateways.is_multi_network()
    }

    /// The gateways that lead to endpoints of a cluster in a network: those that stand in the
    /// cluster, else all of the network.
    fn leading_to(&self, network: &str, cluster: &str) -> Vec<&NetworkGateway> {
        let all = &self.gateways.resolved;
        let of_network = || all.iter().filter(|g| &*g.network == network);
        let near: Vec<_> = of_network().filter(|g| &*g.cluster == cluster).collect();
        if near.is_empty() {
            of_network().collect()
        } else {
            near
        }
    }
}

/// Replaces members of other networks by gateways, and scales all weights so that shares stay whole.
pub(super) fn split<'a>(groups: &mut [Group<'a>], view: &EndpointView, horizon: &'a Horizon) {
    for group in groups {
        let mut shares: BTreeMap<(&str, u16), (u32, &NetworkGateway)> = BTreeMap::new();
        let mut direct = Vec::with_capacity(group.members.len());
        for mut member in std::mem::take(&mut group.members) {
            let Source::Endpoint(endpoint) = member.source else {
                continue;
            };
            member.weight = member.weight.saturating_mul(horizon.scale);
            let mut lead = horizon.leading_to(&endpoint.network, &endpoint.cluster);
            lead.retain(|g| view.proxy_type != ProxyType::Sidecar || g.port != 0);
            let same = endpoint.network.is_empty() || endpoint.network == view.network;
            if same || lead.is_empty() {
                if !endpoint.address().is_empty() {
                    direct.push(member);
                }
                continue;
            }
            // The gateway routes by SNI, which only mutual TLS has.
            lead.retain(|g| reaches(view.ip_mode, &g.address));
            if !member.mtls || lead.is_empty() {
                continue;
            }
            let share = member.weight / u32::try_from(lead.len()).unwrap_or(u32::MAX);
            for gateway in lead {
                let entry = shares
                    .entry((&gateway.address, gateway.port))
                    .or_insert((0, gateway));
                entry.0 = entry.0.saturating_add(share);
            }
        }
        group.members = direct;
        group
            .members
            .extend(shares.into_values().map(|(weight, gateway)| Member {
                message: lb_endpoint::gateway(
                    &gateway.address,
                    gateway.port,
                    &gateway.cluster,
                    view.telemetry,
                ),
                weight: weight.max(1),
                mtls: true,
                source: Source::Gateway {
                    network: &gateway.network,
                    cluster: &gateway.cluster,
                },
            }));
        group.weigh();
    }
}

/// Tells whether a proxy of these families can connect to an address.
fn reaches(mode: IpMode, address: &str) -> bool {
    match mode {
        IpMode::Dual => true,
        IpMode::V4 => address.parse().is_ok_and(|ip: IpAddr| ip.is_ipv4()),
        IpMode::V6 => address.parse().is_ok_and(|ip: IpAddr| ip.is_ipv6()),
    }
}

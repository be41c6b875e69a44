//! Split horizon: endpoints of other networks are reached through gateways (clusters-endpoints §19.6).

use std::{collections::BTreeMap, net::IpAddr};

use model::{ProxyType, proxy::IpMode};
use pushctx::{NetworkGateway, NetworkGateways};

use super::{
    group::{Group, Member, Source},
    lb_endpoint,
    view::EndpointView,
};

/// Replaces members of other networks by gateways, and scales all weights so that shares stay whole.
pub(super) fn split<'a>(
    groups: &mut [Group<'a>],
    view: &EndpointView,
    gateways: &'a NetworkGateways,
) {
    let scale = gateways.scale_factor();
    for group in groups {
        let mut shares: BTreeMap<(&str, u16), (u32, &NetworkGateway)> = BTreeMap::new();
        let mut direct = Vec::with_capacity(group.members.len());
        for mut member in std::mem::take(&mut group.members) {
            let Source::Endpoint(endpoint) = member.source else { continue };
            member.weight = member.weight.saturating_mul(scale);
            let lead: Vec<&NetworkGateway> = gateways
                .leading_to(&endpoint.network, &endpoint.cluster)
                .iter()
                .filter(|g| view.proxy_type != ProxyType::Sidecar || g.port != 0)
                .collect();
            let same = endpoint.network.is_empty() || endpoint.network == view.network;
            if same || lead.is_empty() {
                if !endpoint.address().is_empty() {
                    direct.push(member);
                }
                continue;
            }
            // The gateway routes by SNI, which only mutual TLS has.
            let reachable: Vec<&NetworkGateway> =
                lead.into_iter().filter(|g| reaches(view.ip_mode, &g.address)).collect();
            if !member.mtls || reachable.is_empty() {
                continue;
            }
            let share = member.weight / u32::try_from(reachable.len()).unwrap_or(u32::MAX);
            for gateway in reachable {
                let entry =
                    shares.entry((&gateway.address, gateway.port)).or_insert((0, gateway));
                entry.0 = entry.0.saturating_add(share);
            }
        }
        group.members = direct;
        group.members.extend(shares.into_values().map(|(weight, gateway)| Member {
            message: lb_endpoint::gateway(
                &gateway.address,
                gateway.port,
                &gateway.cluster,
                view.telemetry,
            ),
            weight: weight.max(1),
            mtls: true,
            source: Source::Gateway { network: &gateway.network, cluster: &gateway.cluster },
        }));
        group.weigh();
    }
}

/// Tells whether a proxy of these families can connect to an address.
fn reaches(mode: IpMode, address: &str) -> bool {
    match (mode, address.parse()) {
        (IpMode::Dual, _) => true,
        (IpMode::V4, Ok(IpAddr::V4(_))) | (IpMode::V6, Ok(IpAddr::V6(_))) => true,
        (IpMode::V4 | IpMode::V6, _) => false,
    }
}

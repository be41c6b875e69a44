//! Networks and the gateways between them (service-registry §16).

use std::{collections::BTreeMap, sync::Arc};

/// One way into a network.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NetworkGateway {
    /// The network that it leads into.
    pub network: Arc<str>,
    /// The cluster that it stands in; empty when unknown.
    pub cluster: Arc<str>,
    /// IP address or host name.
    pub address: Arc<str>,
    /// Port for mutual TLS with automatic passthrough; 0 when it has none.
    pub port: u16,
    /// Port for HBONE; 0 when it has none.
    pub hbone_port: u16,
    /// The gateway's service account as `namespace/name`, for HBONE; empty when unknown.
    pub service_account: Arc<str>,
}

/// All gateways between networks.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct NetworkGateways {
    /// Gateways with IP addresses, sorted by network, then address, then port.
    pub resolved: Vec<NetworkGateway>,
    /// Gateways as configured, host names among them, in the same order.
    pub unresolved: Vec<NetworkGateway>,
}

impl NetworkGateways {
    /// Sorts gateways and drops repetitions.
    pub fn sort(gateways: &mut Vec<NetworkGateway>) {
        gateways.sort_by(|a, b| {
            (
                &a.network,
                &a.address,
                a.port,
                &a.cluster,
                a.hbone_port,
                &a.service_account,
            )
                .cmp(&(
                    &b.network,
                    &b.address,
                    b.port,
                    &b.cluster,
                    b.hbone_port,
                    &b.service_account,
                ))
        });
        gateways.dedup();
    }

    /// Tells whether the mesh has several networks: at least one gateway exists.
    pub fn is_multi_network(&self) -> bool {
        !self.resolved.is_empty()
    }

    /// Lists the gateways into `network`, sorted by address, then port.
    pub fn of_network<'a>(&'a self, network: &'a str) -> impl Iterator<Item = &'a NetworkGateway> {
        self.resolved.iter().filter(move |g| &*g.network == network)
    }

    /// Lists the gateways into `network` that stand in `cluster`, sorted by address, then port.
    pub fn of_network_and_cluster<'a>(
        &'a self,
        network: &'a str,
        cluster: &'a str,
    ) -> impl Iterator<Item = &'a NetworkGateway> {
        self.of_network(network)
            .filter(move |g| &*g.cluster == cluster)
    }

    /// The least common multiple of the numbers of gateways per network and per (network, cluster):
    /// weights times this can be divided among any of them. 1 without gateways.
    pub fn scale_factor(&self) -> u32 {
        let mut sizes: BTreeMap<(&str, Option<&str>), u32> = BTreeMap::new();
        for gateway in &self.resolved {
            *sizes.entry((&gateway.network, None)).or_default() += 1;
            *sizes
                .entry((&gateway.network, Some(&gateway.cluster)))
                .or_default() += 1;
        }
        sizes.values().fold(1, |lcm, size| {
            lcm / greatest_common_divisor(lcm, *size) * size
        })
    }
}

fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(network: &str, cluster: &str, address: &str) -> NetworkGateway {
        NetworkGateway {
            network: network.into(),
            cluster: cluster.into(),
            address: address.into(),
            port: 15443,
            hbone_port: 0,
            service_account: "".into(),
        }
    }

    #[test]
    fn weights_can_be_divided_among_all_gateways() {
        let gateways = |of: &[(&str, &str)]| NetworkGateways {
            resolved: of.iter().map(|(n, a)| gateway(n, "c", a)).collect(),
            unresolved: Vec::new(),
        };
        assert_eq!(gateways(&[]).scale_factor(), 1);
        assert_eq!(gateways(&[("a", "1"), ("a", "2")]).scale_factor(), 2);
        let mixed = gateways(&[("a", "1"), ("a", "2"), ("b", "1"), ("b", "2"), ("b", "3")]);
        assert_eq!(mixed.scale_factor(), 6);
    }
}

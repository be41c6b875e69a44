//! Settings of what is written into a cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;

use super::{Reader, Source};

/// The part of the settings that concerns what is written into a cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WriteSettings {
    /// Of several replicas one writes; without, each behaves as the only one;
    /// `ENABLE_LEADER_ELECTION`, true.
    pub elects: bool,
    /// ConfigMap of every namespace that holds the root certificate; `PILOT_CA_CERT_CONFIGMAP`,
    /// `istio-ca-root-cert`.
    pub root_config_map: String,
    /// Secret of the control plane's namespace that holds a self-signed authority: `istio-ca-secret`, or
    /// `cacerts` with `USE_CACERTS_FOR_SELF_SIGNED_CA`, false.
    pub authority_secret: String,
    /// Ranges of which hosts of ServiceEntries get addresses, IPv4 and IPv6;
    /// `PILOT_IP_AUTOALLOCATE_IPV4_PREFIX`, 240.240.0.0/16, and `PILOT_IP_AUTOALLOCATE_IPV6_PREFIX`,
    /// `2001:2::/48`.
    pub addresses: (IpNet, IpNet),
    /// Statuses of Gateway API objects and Ingresses are written; `PILOT_ENABLE_GATEWAY_API_STATUS`, true.
    pub gateway_statuses: bool,
}

impl WriteSettings {
    /// Reads them.
    pub(super) fn read(reader: &mut Reader<'_, impl Source>) -> Self {
        let gateway_statuses = reader.flag("PILOT_ENABLE_GATEWAY_API_STATUS", true);
        let in_cacerts = reader.flag("USE_CACERTS_FOR_SELF_SIGNED_CA", false);
        let name = |text: &str| Some(text.to_owned());
        Self {
            gateway_statuses,
            elects: reader.flag("ENABLE_LEADER_ELECTION", true),
            root_config_map: reader.parsed(
                "PILOT_CA_CERT_CONFIGMAP",
                "istio-ca-root-cert".to_owned(),
                "a name",
                name,
            ),
            authority_secret: if in_cacerts {
                "cacerts"
            } else {
                "istio-ca-secret"
            }
            .to_owned(),
            addresses: (
                reader.parsed(
                    "PILOT_IP_AUTOALLOCATE_IPV4_PREFIX",
                    IpNet::new_assert(IpAddr::V4(Ipv4Addr::new(240, 240, 0, 0)), 16),
                    "a range of IPv4 addresses",
                    |text| text.parse().ok().map(IpNet::V4),
                ),
                reader.parsed(
                    "PILOT_IP_AUTOALLOCATE_IPV6_PREFIX",
                    IpNet::new_assert(IpAddr::V6(Ipv6Addr::new(0x2001, 2, 0, 0, 0, 0, 0, 0)), 48),
                    "a range of IPv6 addresses",
                    |text| text.parse().ok().map(IpNet::V6),
                ),
            ),
        }
    }
}

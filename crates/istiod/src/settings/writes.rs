//! Settings of what is written into a cluster.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    time::Duration,
};

use controllers::pods::Limits;
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
    /// The root certificate is also written into further clusters whose system namespace says by the
    /// annotation `topology.istio.io/controlPlaneClusters` that this cluster manages them;
    /// `EXTERNAL_ISTIOD`, false.
    pub manages_remotes: bool,
    /// Statuses of Gateway API objects and Ingresses are written; `PILOT_ENABLE_GATEWAY_API_STATUS`, true.
    pub gateway_statuses: bool,
    /// How long pods wait for the distribution of their endpoints at most, with
    /// `PILOT_ENABLE_POD_DISTRIBUTION`: to be gone, from their deletion,
    /// `PILOT_POD_RELEASE_TIMEOUT`, 1m; to be ready, from the moment that their containers are,
    /// `PILOT_POD_READY_TIMEOUT`, 1m. Not variables of the Go istiod.
    pub pods: Limits,
    /// Istio objects say in their status how many proxies have them; `PILOT_ENABLE_STATUS`, false; looked
    /// at every `PILOT_STATUS_UPDATE_INTERVAL`, 500ms. `None` when they do not.
    pub statuses: Option<Duration>,
    /// What is deployed for gateways: `PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER`, true;
    /// `PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER`, true; the image of proxies
    /// (`GATEWAY_PROXY_IMAGE`, else what the injector uses), where they find the control plane (`GATEWAY_CONTROL_PLANE`,
    /// `istiod.istio-system.svc:15012` with the own namespace) and the ConfigMap with templates
    /// (`GATEWAY_TEMPLATES`, `istio-gateway-templates`) are settings of this control plane alone.
    pub deployment: DeploymentSettings,
}

impl WriteSettings {
    /// Reads them.
    pub(super) fn read(reader: &mut Reader<'_, impl Source>, namespace: &str) -> Self {
        let gateway_statuses = reader.flag("PILOT_ENABLE_GATEWAY_API_STATUS", true);
        let name = |text: &str| Some(text.to_owned());
        let limits = Limits::default();
        let deployment = DeploymentSettings {
            gateways: reader.flag("PILOT_ENABLE_GATEWAY_API_DEPLOYMENT_CONTROLLER", true),
            classes: reader.flag("PILOT_ENABLE_GATEWAY_API_GATEWAYCLASS_CONTROLLER", true),
            image: reader.parsed("GATEWAY_PROXY_IMAGE", None, "an image", |text| {
                Some(Some(text.to_owned()))
            }),
            address: reader.parsed(
                "GATEWAY_CONTROL_PLANE",
                format!("istiod.{namespace}.svc:15012"),
                "host and port",
                name,
            ),
            templates: reader.parsed(
                "GATEWAY_TEMPLATES",
                "istio-gateway-templates".to_owned(),
                "a name",
                name,
            ),
        };
        let in_cacerts = reader.flag("USE_CACERTS_FOR_SELF_SIGNED_CA", false);
        Self {
            deployment,
            gateway_statuses,
            manages_remotes: reader.flag("EXTERNAL_ISTIOD", false),
            elects: reader.flag("ENABLE_LEADER_ELECTION", true),
            root_config_map: reader.parsed(
                "PILOT_CA_CERT_CONFIGMAP",
                "istio-ca-root-cert".to_owned(),
                "a name",
                name,
            ),
            statuses: {
                let interval =
                    reader.duration("PILOT_STATUS_UPDATE_INTERVAL", Duration::from_millis(500));
                // More often is of no use to anybody.
                let interval = interval.max(Duration::from_millis(100));
                let written = reader.flag("PILOT_ENABLE_STATUS", false);
                written.then_some(interval)
            },
            pods: Limits {
                release: reader.duration("PILOT_POD_RELEASE_TIMEOUT", limits.release),
                ready: reader.duration("PILOT_POD_READY_TIMEOUT", limits.ready),
            },
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

/// What gateways that are deployed have in common.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeploymentSettings {
    /// Gateways are deployed.
    pub gateways: bool,
    /// Classes that are missing are made.
    pub classes: bool,
    /// The image of proxies; `None` when it is the one that the injector's values say.
    pub image: Option<String>,
    /// Where proxies find the control plane.
    pub address: String,
    /// ConfigMap of the control plane's namespace with templates that take the place of the built-in ones.
    pub templates: String,
}

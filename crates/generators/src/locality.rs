//! Which locality or zone-aware setting is in force (clusters-endpoints §8.1).

use model::{
    TrafficDistribution,
    api::{
        common::{LocalityDistribute, LocalityFailover, LocalityLbSetting, ZoneAwareLbSetting},
        destination_rule::LoadBalancer,
    },
};

/// Failover labels of `PreferClose` and `PreferSameZone`.
const SAME_ZONE: [&str; 3] = [
    "topology.istio.io/network",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];
/// Failover labels of `PreferSameNetwork`.
const SAME_NETWORK: [&str; 1] = ["topology.istio.io/network"];
/// Failover labels of `PreferSameNode`.
const SAME_NODE: [&str; 5] = [
    "topology.istio.io/network",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
    "topology.istio.io/subzone",
    "kubernetes.io/hostname",
];

/// The mesh's own settings, the last to be asked.
#[derive(Clone, Default, PartialEq, Debug, serde::Serialize)]
pub struct MeshLocality {
    /// `localityLbSetting`.
    pub locality: Option<LocalityLbSetting>,
    /// `zoneAwareLbSetting`.
    pub zone_aware: Option<ZoneAwareLbSetting>,
}

/// The setting in force for one cluster.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum LocalitySetting<'a> {
    /// No locality awareness.
    None,
    /// A locality setting of a rule or of the mesh.
    Locality(&'a LocalityLbSetting),
    /// The traffic distribution of the service: failover by these labels, whatever the outlier
    /// detection.
    Forced(&'static [&'static str]),
    /// A zone-aware setting, enabled or not.
    ZoneAware(&'a ZoneAwareLbSetting),
}

impl<'a> LocalitySetting<'a> {
    /// Finds the setting: that of the policy, of the service, of the mesh.
    pub fn find(
        balancer: Option<&'a LoadBalancer>,
        distribution: TrafficDistribution,
        mesh: &'a MeshLocality,
    ) -> Self {
        if let Some(zone_aware) = balancer.and_then(|b| b.zone_aware_lb_setting.as_ref()) {
            return Self::ZoneAware(zone_aware);
        }
        if let Some(locality) = balancer.and_then(|b| b.locality_lb_setting.as_ref()) {
            return Self::unless_disabled(locality);
        }
        match distribution {
            TrafficDistribution::Any => {}
            TrafficDistribution::PreferSameZone => return Self::Forced(&SAME_ZONE),
            TrafficDistribution::PreferSameNode => return Self::Forced(&SAME_NODE),
            TrafficDistribution::PreferSameNetwork => return Self::Forced(&SAME_NETWORK),
        }
        if let Some(zone_aware) = &mesh.zone_aware {
            return Self::ZoneAware(zone_aware);
        }
        mesh.locality
            .as_ref()
            .map_or(Self::None, Self::unless_disabled)
    }

    fn unless_disabled(locality: &'a LocalityLbSetting) -> Self {
        if locality.enabled == Some(false) {
            Self::None
        } else {
            Self::Locality(locality)
        }
    }

    /// Tells whether priorities may be assigned: forced, or the cluster detects outliers.
    pub fn failover_active(&self, outlier_detection: bool) -> bool {
        matches!(self, Self::Forced(_)) || outlier_detection
    }

    /// The entries of `distribute`.
    pub fn distribute(&self) -> &'a [LocalityDistribute] {
        match self {
            Self::Locality(setting) => &setting.distribute,
            Self::None | Self::Forced(_) | Self::ZoneAware(_) => &[],
        }
    }

    /// The entries of `failover`.
    pub fn failover(&self) -> &'a [LocalityFailover] {
        match self {
            Self::Locality(setting) => &setting.failover,
            Self::ZoneAware(setting) => &setting.failover,
            Self::None | Self::Forced(_) => &[],
        }
    }

    /// The labels of `failoverPriority`.
    pub fn failover_priority(&self) -> Vec<&'a str> {
        match self {
            Self::Locality(setting) => strings(&setting.failover_priority),
            Self::ZoneAware(setting) => strings(&setting.failover_priority),
            Self::Forced(labels) => labels.to_vec(),
            Self::None => Vec::new(),
        }
    }
}

fn strings(list: &[String]) -> Vec<&str> {
    list.iter().map(String::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(
        balancer: Option<&LoadBalancer>,
        distribution: TrafficDistribution,
        mesh: &MeshLocality,
        expected: &str,
    ) {
        let found = match LocalitySetting::find(balancer, distribution, mesh) {
            LocalitySetting::None => "none",
            LocalitySetting::Locality(_) => "locality",
            LocalitySetting::Forced(labels) if labels.len() == 5 => "node",
            LocalitySetting::Forced(_) => "zone",
            LocalitySetting::ZoneAware(_) => "zone aware",
        };
        assert_eq!(found, expected);
    }

    fn locality(enabled: Option<bool>) -> LocalityLbSetting {
        LocalityLbSetting {
            enabled,
            ..LocalityLbSetting::default()
        }
    }

    #[test]
    fn the_first_that_says_anything_decides() {
        use TrafficDistribution::{Any, PreferSameNode, PreferSameZone};
        let mesh = MeshLocality {
            locality: Some(locality(Some(true))),
            zone_aware: None,
        };
        let off = MeshLocality {
            locality: Some(locality(Some(false))),
            zone_aware: None,
        };
        let aware = MeshLocality {
            zone_aware: Some(ZoneAwareLbSetting::default()),
            ..mesh.clone()
        };
        let rule = |enabled| {
            Some(LoadBalancer {
                locality_lb_setting: Some(locality(enabled)),
                ..LoadBalancer::default()
            })
        };
        check(None, Any, &mesh, "locality");
        check(None, Any, &off, "none");
        check(None, Any, &MeshLocality::default(), "none");
        check(None, Any, &aware, "zone aware");
        check(None, PreferSameZone, &aware, "zone");
        check(None, PreferSameNode, &off, "node");
        check(rule(Some(false)).as_ref(), PreferSameZone, &mesh, "none");
        check(rule(None).as_ref(), PreferSameZone, &off, "locality");
        let zone_off = LoadBalancer {
            zone_aware_lb_setting: Some(ZoneAwareLbSetting {
                enabled: Some(false),
                ..ZoneAwareLbSetting::default()
            }),
            ..LoadBalancer::default()
        };
        check(Some(&zone_off), PreferSameZone, &mesh, "zone aware");
    }
}

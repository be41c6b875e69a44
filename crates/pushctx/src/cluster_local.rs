//! Hosts whose traffic stays in the client's cluster (config-model §9.3).

use std::collections::BTreeSet;

use model::{
    MeshState,
    host::{HostMap, subset_of},
};

/// Hosts with whether they are cluster-local; the most specific one decides.
#[derive(Clone, Default, Debug)]
pub(crate) struct ClusterLocalHosts(HostMap<bool>);

impl ClusterLocalHosts {
    pub(crate) fn build(state: &MeshState) -> Self {
        let domain = &*state.identity.domain;
        let discovery = &state.mesh.default_config.discovery_address;
        let mut discovery = discovery
            .rsplit_once(':')
            .map_or(discovery.as_str(), |(host, _)| host)
            .to_owned();
        if !discovery.is_empty() && !discovery.ends_with(domain) {
            discovery = format!("{discovery}.{domain}");
        }
        let mut defaults = BTreeSet::from([
            format!("*.kube-system.svc.{domain}"),
            format!("kubernetes.default.svc.{domain}"),
            discovery,
        ]);
        defaults.remove("");
        let mut hosts = HostMap::default();
        for entry in &state.mesh.service_settings {
            let local = entry.settings.as_ref().is_some_and(|s| s.cluster_local);
            for host in &entry.hosts {
                if !local {
                    defaults.retain(|default| !subset_of(host, default));
                }
                *hosts.entry(host, || local) = local;
            }
        }
        for default in &defaults {
            *hosts.entry(default, || true) = true;
        }
        Self(hosts)
    }

    pub(crate) fn contains(&self, hostname: &str) -> bool {
        self.0
            .most_specific(hostname)
            .is_some_and(|(_, local)| *local)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use model::api::{
        MeshConfig,
        mesh::{ServiceSetting, ServiceSettings},
    };

    use super::*;

    #[track_caller]
    fn check(settings: &[(bool, &str)], expected: &[(&str, bool)]) {
        let service_settings = settings
            .iter()
            .map(|(cluster_local, host)| ServiceSettings {
                settings: Some(ServiceSetting {
                    cluster_local: *cluster_local,
                }),
                hosts: vec![(*host).to_owned()],
            })
            .collect();
        let mesh = Arc::new(MeshConfig {
            service_settings,
            ..MeshConfig::default()
        });
        let hosts = ClusterLocalHosts::build(&MeshState {
            mesh,
            ..MeshState::default()
        });
        for (host, local) in expected {
            assert_eq!(hosts.contains(host), *local, "{host}");
        }
    }

    #[test]
    fn defaults_hold_until_a_setting_takes_them_away() {
        check(
            &[],
            &[
                ("dns.kube-system.svc.cluster.local", true),
                ("kubernetes.default.svc.cluster.local", true),
                ("istiod.istio-system.svc.cluster.local", true),
                ("a.b.svc.cluster.local", false),
            ],
        );
        check(
            &[
                (false, "dns.kube-system.svc.cluster.local"),
                (true, "*.b.svc.cluster.local"),
            ],
            &[
                ("dns.kube-system.svc.cluster.local", false),
                ("x.kube-system.svc.cluster.local", false),
                ("a.b.svc.cluster.local", true),
            ],
        );
        check(
            &[
                (true, "*.b.svc.cluster.local"),
                (false, "a.b.svc.cluster.local"),
            ],
            &[
                ("a.b.svc.cluster.local", false),
                ("c.b.svc.cluster.local", true),
            ],
        );
    }
}

//! Hosts whose endpoints only proxies of the same cluster use (config-model §9.3).

use model::{api::mesh::MeshConfig, host, host::HostMap};

/// Answers by the most specific host that the mesh says something about.
#[derive(Debug)]
pub(super) struct ClusterLocalHosts(HostMap<bool>);

impl ClusterLocalHosts {
    /// Collects the hosts: built-in ones that no setting takes back, and those of the settings.
    pub(crate) fn new(mesh: &MeshConfig, domain: &str) -> Self {
        let mut defaults = vec![
            format!("*.kube-system.svc.{domain}"),
            format!("kubernetes.default.svc.{domain}"),
        ];
        defaults.extend(discovery_host(
            &mesh.default_config.discovery_address,
            domain,
        ));
        let mut hosts = HostMap::default();
        for settings in &mesh.service_settings {
            let local = settings.settings.as_ref().is_some_and(|s| s.cluster_local);
            for host in &settings.hosts {
                if !local {
                    defaults.retain(|default| !host::subset_of(default, host));
                }
                *hosts.entry(host, || local) = local;
            }
        }
        for host in defaults {
            *hosts.entry(&host, || true) = true;
        }
        Self(hosts)
    }

    /// Tells whether a host is local to clusters.
    pub(crate) fn contains(&self, hostname: &str) -> bool {
        self.0
            .most_specific(hostname)
            .is_some_and(|(_, local)| *local)
    }
}

/// The host of the control plane, in full.
fn discovery_host(address: &str, domain: &str) -> Option<String> {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    if host.is_empty() {
        return None;
    }
    let suffix = format!(".{domain}");
    Some(if host.ends_with(&suffix) {
        host.to_owned()
    } else {
        format!("{host}{suffix}")
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(settings: serde_json::Value, expected: &[(&str, bool)]) {
        let mesh = MeshConfig {
            service_settings: serde_json::from_value(settings).unwrap(),
            ..MeshConfig::default()
        };
        let hosts = ClusterLocalHosts::new(&mesh, "cluster.local");
        for (host, local) in expected {
            assert_eq!(hosts.contains(host), *local, "{host}");
        }
    }

    #[test]
    fn settings_add_and_take_back() {
        let dns = "dns.kube-system.svc.cluster.local";
        let istiod = "istiod.istio-system.svc.cluster.local";
        check(
            json!([]),
            &[
                (dns, true),
                (istiod, true),
                ("a.b.svc.cluster.local", false),
            ],
        );
        check(
            json!([
                {"settings": {"clusterLocal": false}, "hosts": ["*.kube-system.svc.cluster.local"]},
                {"settings": {"clusterLocal": true}, "hosts": ["*.b.svc.cluster.local"]},
                {"settings": {"clusterLocal": false}, "hosts": ["c.b.svc.cluster.local"]},
            ]),
            &[
                (dns, false),
                ("a.b.svc.cluster.local", true),
                ("c.b.svc.cluster.local", false),
                (istiod, true),
            ],
        );
    }
}

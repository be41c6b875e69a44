//! Aliases: Kubernetes ExternalName services that stand for other hosts (config-model §9.1).

use std::{collections::BTreeMap, sync::Arc};

use model::{MeshState, Resolution, Service, ServiceKey};

/// For each concrete host, the aliases that lead to it, by namespace and host.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct Aliases(Arc<BTreeMap<Arc<str>, Vec<ServiceKey>>>);

impl Aliases {
    /// Follows every chain of aliases to its end; cycles lead nowhere.
    pub(crate) fn build(state: &MeshState) -> Self {
        let aliases = || {
            state
                .services
                .values()
                .filter(|s| s.resolution == Resolution::Alias)
        };
        let targets: BTreeMap<&str, &Arc<str>> = aliases()
            .map(|s| (&*s.hostname, &s.attributes.external_name))
            .collect();
        let mut by_host: BTreeMap<Arc<str>, Vec<ServiceKey>> = BTreeMap::new();
        for alias in aliases() {
            let mut end = &alias.attributes.external_name;
            // A chain without a cycle visits each alias at most once.
            let mut steps = targets.len();
            while let Some(next) = targets.get(&**end)
                && steps > 0
            {
                end = next;
                steps -= 1;
            }
            if !targets.contains_key(&**end) {
                by_host.entry(end.clone()).or_default().push(alias.key());
            }
        }
        for keys in by_host.values_mut() {
            keys.sort_unstable();
            keys.dedup();
        }
        Self(Arc::new(by_host))
    }

    /// Returns the service with its aliases filled in; the same one when it has none.
    pub(crate) fn attach(&self, service: Arc<Service>) -> Arc<Service> {
        match self.0.get(&service.hostname) {
            Some(aliases) if service.resolution != Resolution::Alias => {
                let mut service = Service::clone(&service);
                service.attributes.aliases.clone_from(aliases);
                service.seal()
            }
            _ => service,
        }
    }

    /// Lists the hosts whose aliases differ from those in `other`.
    pub(crate) fn hosts_that_differ(&self, other: &Self) -> Vec<Arc<str>> {
        let changed = self
            .0
            .iter()
            .filter(|(host, keys)| other.0.get(*host) != Some(*keys));
        let gone = other.0.keys().filter(|host| !self.0.contains_key(*host));
        changed.map(|(host, _)| host).chain(gone).cloned().collect()
    }
}

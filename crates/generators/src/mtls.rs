//! PeerAuthentication: the mutual TLS mode of workloads and of namespaces (security-policy §2).

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Config, ConfigKey, Kind, Labels, NamespacedName, Table,
    api::{
        PeerAuthentication,
        security::{MutualTls, MutualTlsMode},
    },
    selects,
};

/// What a port demands of its clients.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MtlsMode {
    /// Plain text.
    Disable,
    /// Both.
    #[default]
    Permissive,
    /// Mutual TLS.
    Strict,
}

impl MtlsMode {
    fn of(mode: MutualTlsMode) -> Option<Self> {
        match mode {
            MutualTlsMode::Unset => None,
            MutualTlsMode::Disable => Some(Self::Disable),
            MutualTlsMode::Permissive => Some(Self::Permissive),
            MutualTlsMode::Strict => Some(Self::Strict),
        }
    }
}

/// The policies that decide for the workloads of one namespace.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct NamespacePolicies {
    /// The mode of workloads that no policy of the namespace selects.
    mode: MtlsMode,
    /// Policies with selectors, oldest first.
    workload: Vec<WorkloadPolicy>,
    /// Policies for the whole mesh and the whole namespace, for provenance.
    sources: Vec<ConfigKey>,
}

/// A policy for some workloads of a namespace.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct WorkloadPolicy {
    key: ConfigKey,
    selector: Labels,
    mode: Option<MtlsMode>,
    ports: BTreeMap<u16, Option<MtlsMode>>,
}

impl NamespacePolicies {
    /// Picks the policies of `namespace` and of the mesh, whose namespace is `root`.
    ///
    /// Of those without selector the oldest counts alone. Those with one count outside the root
    /// namespace only.
    pub fn new(table: &Table<PeerAuthentication>, root: &str, namespace: &str) -> Self {
        let mut policies = Self::default();
        let mut take = |policy: Option<&Arc<Config<PeerAuthentication>>>| {
            let Some(policy) = policy else { return };
            policies.sources.push(key_of(policy));
            if let Some(mode) = mode_of(policy) {
                policies.mode = mode;
            }
        };
        take(
            oldest_first(table, root)
                .into_iter()
                .find(|p| selector(p).is_none()),
        );
        if namespace == root {
            return policies;
        }
        let own = oldest_first(table, namespace);
        take(own.iter().copied().find(|p| selector(p).is_none()));
        policies.workload = own.into_iter().filter_map(WorkloadPolicy::new).collect();
        policies
    }

    /// The mode for all workloads that have no policy of their own.
    pub fn namespace_mode(&self) -> MtlsMode {
        self.mode
    }

    /// The mode of a workload with `labels` at one of its ports.
    pub fn mode(&self, labels: &Labels, port: u16) -> MtlsMode {
        let Some(policy) = self.workload.iter().find(|p| selects(&p.selector, labels)) else {
            return self.mode;
        };
        let overall = policy.mode.unwrap_or(self.mode);
        policy
            .ports
            .get(&port)
            .map_or(overall, |mode| mode.unwrap_or(overall))
    }

    /// The modes of all ports of a workload with `labels`.
    pub fn of_workload(&self, labels: &Labels) -> WorkloadModes {
        let mut modes = WorkloadModes {
            mode: self.mode,
            ports: BTreeMap::new(),
            sources: self.sources.clone(),
        };
        if let Some(policy) = self.workload.iter().find(|p| selects(&p.selector, labels)) {
            modes.mode = policy.mode.unwrap_or(self.mode);
            let ports = policy.ports.iter();
            modes.ports = ports
                .map(|(port, mode)| (*port, mode.unwrap_or(modes.mode)))
                .collect();
            modes.sources.push(policy.key.clone());
        }
        modes
    }

    /// The policies without selector that decided.
    pub fn sources(&self) -> &[ConfigKey] {
        &self.sources
    }
}

/// What the ports of one workload demand of their clients.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub struct WorkloadModes {
    /// The mode of ports without their own.
    pub mode: MtlsMode,
    /// Modes by workload port.
    pub ports: BTreeMap<u16, MtlsMode>,
    /// The policies that decided.
    pub sources: Vec<ConfigKey>,
}

impl WorkloadModes {
    /// The mode of a workload port.
    pub fn of_port(&self, port: u16) -> MtlsMode {
        self.ports.get(&port).copied().unwrap_or(self.mode)
    }
}

impl WorkloadPolicy {
    fn new(policy: &Arc<Config<PeerAuthentication>>) -> Option<Self> {
        let port = |(port, mtls): (&u32, &MutualTls)| {
            Some((u16::try_from(*port).ok()?, MtlsMode::of(mtls.mode)))
        };
        Some(Self {
            key: key_of(policy),
            selector: selector(policy)?.clone(),
            mode: mode_of(policy),
            ports: policy
                .spec
                .port_level_mtls
                .iter()
                .filter_map(port)
                .collect(),
        })
    }
}

fn key_of(policy: &Config<PeerAuthentication>) -> ConfigKey {
    let meta = &policy.meta;
    ConfigKey::new(
        Kind::PeerAuthentication,
        meta.namespace.clone(),
        meta.name.clone(),
    )
}

fn mode_of(policy: &Config<PeerAuthentication>) -> Option<MtlsMode> {
    policy
        .spec
        .mtls
        .as_ref()
        .and_then(|mtls| MtlsMode::of(mtls.mode))
}

/// The selector; one without labels is none.
fn selector(policy: &Config<PeerAuthentication>) -> Option<&Labels> {
    policy
        .spec
        .selector
        .as_ref()
        .map(|s| &s.match_labels)
        .filter(|labels| !labels.is_empty())
}

fn oldest_first<'a>(
    table: &'a Table<PeerAuthentication>,
    namespace: &str,
) -> Vec<&'a Arc<Config<PeerAuthentication>>> {
    let mut policies: Vec<_> = table
        .range(NamespacedName::new(namespace, "")..)
        .map(|(_, policy)| policy)
        .take_while(|policy| &*policy.meta.namespace == namespace)
        .collect();
    policies.sort_by(|a, b| a.meta.creation_order().cmp(&b.meta.creation_order()));
    policies
}

#[cfg(test)]
mod tests {
    use model::{Meta, Timestamp, api::common::WorkloadSelector};

    use super::*;

    fn policy(
        key: &str,
        created: i64,
        app: Option<&str>,
        mode: MutualTlsMode,
        ports: &[(u32, MutualTlsMode)],
    ) -> Arc<Config<PeerAuthentication>> {
        let (namespace, name) = key.split_once('/').unwrap();
        let labels = app.map(|app| Labels::from([("app".to_owned(), app.to_owned())]));
        Arc::new(Config {
            meta: Meta {
                name: name.into(),
                namespace: namespace.into(),
                created: Timestamp(created),
                ..Meta::default()
            },
            spec: PeerAuthentication {
                selector: labels.map(|match_labels| WorkloadSelector { match_labels }),
                mtls: Some(MutualTls { mode }),
                port_level_mtls: ports
                    .iter()
                    .map(|(p, m)| (*p, MutualTls { mode: *m }))
                    .collect(),
            },
        })
    }

    /// The mode of the namespace, and that of a workload `app: a` at ports 80 and 81.
    #[track_caller]
    fn check(policies: &[Arc<Config<PeerAuthentication>>], expected: (MtlsMode, [MtlsMode; 2])) {
        let table = policies
            .iter()
            .map(|p| (p.meta.namespaced_name(), p.clone()))
            .collect();
        let labels = Labels::from([("app".to_owned(), "a".to_owned())]);
        let found = NamespacePolicies::new(&table, "root", "ns");
        let ports = [found.mode(&labels, 80), found.mode(&labels, 81)];
        assert_eq!((found.namespace_mode(), ports), expected);
        let workload = found.of_workload(&labels);
        assert_eq!([workload.of_port(80), workload.of_port(81)], ports);
    }

    #[test]
    fn the_narrower_policy_wins() {
        use MtlsMode::{Disable, Permissive, Strict};
        use MutualTlsMode as Given;
        check(&[], (Permissive, [Permissive; 2]));
        let mesh = policy("root/m", 5, None, Given::Strict, &[]);
        check(std::slice::from_ref(&mesh), (Strict, [Strict; 2]));
        let namespace = policy("ns/n", 5, None, Given::Disable, &[(80, Given::Strict)]);
        check(&[mesh.clone(), namespace.clone()], (Disable, [Disable; 2]));
        let ports = [(80, Given::Strict), (81, Given::Unset)];
        let workload = policy("ns/w", 5, Some("a"), Given::Unset, &ports);
        check(
            &[mesh.clone(), namespace, workload],
            (Disable, [Strict, Disable]),
        );
        let in_root = policy(
            "root/w",
            1,
            Some("a"),
            Given::Permissive,
            &[(80, Given::Disable)],
        );
        check(&[mesh, in_root], (Strict, [Strict; 2]));
    }

    #[test]
    fn the_oldest_of_a_level_counts_alone() {
        use MtlsMode::{Disable, Permissive, Strict};
        use MutualTlsMode as Given;
        let newer = policy(
            "ns/a",
            2,
            Some("a"),
            Given::Disable,
            &[(80, Given::Disable)],
        );
        let older = policy("ns/b", 1, Some("a"), Given::Strict, &[]);
        check(&[newer, older], (Permissive, [Strict; 2]));
        let by_name = [
            policy("ns/b", 1, None, Given::Strict, &[]),
            policy("ns/a", 1, None, Given::Disable, &[]),
        ];
        check(&by_name, (Disable, [Disable; 2]));
    }
}

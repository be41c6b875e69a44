//! The mutual TLS mode of inbound ports (security-policy §2).

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Config, Labels, NamespacedName, Table,
    api::{self, security::MutualTlsMode},
    selects,
};
use pushctx::{ProxyClass, PushContext};

/// What a port demands of its clients.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum MtlsMode {
    /// Plain text.
    Disable,
    /// Both.
    #[default]
    Permissive,
    /// Mutual TLS.
    Strict,
}

/// The modes of a workload's ports.
#[derive(Clone, Default, PartialEq, Eq, Hash, Debug)]
pub(crate) struct MtlsModes {
    /// Mode of all ports without their own.
    pub mode: MtlsMode,
    /// Modes by workload port.
    pub ports: BTreeMap<u16, MtlsMode>,
    /// The policies that decided, for provenance.
    pub sources: Vec<NamespacedName>,
}

impl MtlsModes {
    /// Resolves the modes of a class from the policies of the mesh, the namespace and the workload.
    pub(crate) fn resolve(snapshot: &PushContext, class: &ProxyClass) -> Self {
        Self::of_policies(
            &snapshot.state().objects.peer_authentications,
            snapshot.root_namespace(),
            &class.proxy.namespace,
            &class.labels,
        )
    }

    /// Tells the mode of a workload port.
    pub(crate) fn of_port(&self, port: u16) -> MtlsMode {
        self.ports.get(&port).copied().unwrap_or(self.mode)
    }

    fn of_policies(
        policies: &Table<api::PeerAuthentication>,
        root: &str,
        namespace: &str,
        labels: &Labels,
    ) -> Self {
        let mesh = oldest(policies, root, |selector| selector.is_none());
        let own = (namespace != root).then_some(namespace);
        let in_own = |wanted: &dyn Fn(Option<&Labels>) -> bool| {
            own.and_then(|namespace| oldest(policies, namespace, wanted))
        };
        let of_namespace = in_own(&|selector| selector.is_none());
        let of_workload =
            in_own(&|selector| selector.is_some_and(|selector| selects(selector, labels)));

        let mut modes = Self::default();
        for policy in [mesh, of_namespace, of_workload].into_iter().flatten() {
            modes.sources.push(policy.meta.namespaced_name());
            if let Some(mode) = policy
                .spec
                .mtls
                .as_ref()
                .and_then(|mtls| mode_of(mtls.mode))
            {
                modes.mode = mode;
            }
        }
        if let Some(policy) = of_workload {
            modes.ports = policy
                .spec
                .port_level_mtls
                .iter()
                .filter_map(|(port, mtls)| {
                    let port = u16::try_from(*port).ok()?;
                    Some((port, mode_of(mtls.mode).unwrap_or(modes.mode)))
                })
                .collect();
        }
        modes
    }
}

fn mode_of(mode: MutualTlsMode) -> Option<MtlsMode> {
    match mode {
        MutualTlsMode::Unset => None,
        MutualTlsMode::Disable => Some(MtlsMode::Disable),
        MutualTlsMode::Permissive => Some(MtlsMode::Permissive),
        MutualTlsMode::Strict => Some(MtlsMode::Strict),
    }
}

/// Finds the oldest policy of a namespace whose selector is `wanted`; one without labels is none.
fn oldest<'a>(
    policies: &'a Table<api::PeerAuthentication>,
    namespace: &str,
    wanted: impl Fn(Option<&Labels>) -> bool,
) -> Option<&'a Arc<Config<api::PeerAuthentication>>> {
    policies
        .range(NamespacedName::new(namespace, "")..)
        .map(|(_, policy)| policy)
        .take_while(|policy| &*policy.meta.namespace == namespace)
        .filter(|policy| {
            let selector = policy.spec.selector.as_ref().map(|s| &s.match_labels);
            wanted(selector.filter(|labels| !labels.is_empty()))
        })
        .min_by(|a, b| a.meta.creation_order().cmp(&b.meta.creation_order()))
}

#[cfg(test)]
mod tests {
    use model::{Meta, Timestamp, api::security::MutualTls};

    use super::*;

    fn policy(
        key: &str,
        created: i64,
        app: Option<&str>,
        mode: MutualTlsMode,
        ports: &[(u32, MutualTlsMode)],
    ) -> Arc<Config<api::PeerAuthentication>> {
        let (namespace, name) = key.split_once('/').unwrap();
        let labels = app.map(|app| Labels::from([("app".to_owned(), app.to_owned())]));
        Arc::new(Config {
            meta: Meta {
                name: name.into(),
                namespace: namespace.into(),
                created: Timestamp(created),
                ..Meta::default()
            },
            spec: api::PeerAuthentication {
                selector: labels.map(|match_labels| api::common::WorkloadSelector { match_labels }),
                mtls: Some(MutualTls { mode }),
                port_level_mtls: ports
                    .iter()
                    .map(|(p, mode)| (*p, MutualTls { mode: *mode }))
                    .collect(),
            },
        })
    }

    #[track_caller]
    fn check(
        policies: &[Arc<Config<api::PeerAuthentication>>],
        mode: MtlsMode,
        ports: &[(u16, MtlsMode)],
    ) {
        let table = policies
            .iter()
            .map(|p| (p.meta.namespaced_name(), p.clone()))
            .collect();
        let labels = Labels::from([("app".to_owned(), "a".to_owned())]);
        let modes = MtlsModes::of_policies(&table, "root", "ns", &labels);
        assert_eq!(
            (modes.mode, modes.ports),
            (mode, ports.iter().copied().collect())
        );
    }

    #[test]
    fn the_narrower_policy_wins() {
        use MutualTlsMode::{Disable, Permissive, Strict, Unset};
        check(&[], MtlsMode::Permissive, &[]);
        let mesh = policy("root/m", 5, None, Strict, &[]);
        check(std::slice::from_ref(&mesh), MtlsMode::Strict, &[]);
        let namespace = policy("ns/n", 5, None, Disable, &[(80, Strict)]);
        check(&[mesh.clone(), namespace.clone()], MtlsMode::Disable, &[]);
        let workload = policy("ns/w", 5, Some("a"), Unset, &[(80, Strict), (81, Unset)]);
        check(
            &[mesh.clone(), namespace, workload],
            MtlsMode::Disable,
            &[(80, MtlsMode::Strict), (81, MtlsMode::Disable)],
        );
        let in_root = policy("root/w", 1, Some("a"), Permissive, &[(80, Disable)]);
        check(&[mesh, in_root], MtlsMode::Strict, &[]);
    }

    #[test]
    fn the_oldest_of_a_level_wins_alone() {
        use MutualTlsMode::{Disable, Strict};
        check(
            &[
                policy("ns/b", 1, Some("a"), Strict, &[]),
                policy("ns/a", 2, Some("a"), Disable, &[(80, Disable)]),
            ],
            MtlsMode::Strict,
            &[],
        );
        check(
            &[
                policy("ns/b", 1, None, Strict, &[]),
                policy("ns/a", 1, None, Disable, &[]),
            ],
            MtlsMode::Disable,
            &[],
        );
    }
}

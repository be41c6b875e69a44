//! The root certificate in further clusters that this control plane manages.

use std::{collections::BTreeMap, sync::Arc};

use controllers::leader::{self, Duties, Inputs, View};
use intake::{
    Intake,
    kubernetes::{Connections, connect::Connection},
};
use model::NamespacedName;
use tokio::{sync::watch, task::JoinSet};
use tokio_util::sync::CancellationToken;

/// Annotation of a cluster's system namespace: ids of the clusters whose control planes manage it, with
/// commas between, `*` for any.
const MANAGERS: &str = "topology.istio.io/controlPlaneClusters";

/// What the leader reads of further clusters, by their ids.
pub(crate) type Views = BTreeMap<Arc<str>, View>;

/// What the leader reads of further clusters now.
pub(crate) fn views(intake: &Intake) -> Views {
    let selectors = intake.state().mesh.discovery_selectors.clone();
    let namespaces = intake.namespaces_of_others().into_iter();
    let views = namespaces.map(|(cluster, namespaces)| {
        let view = View {
            namespaces,
            selectors: selectors.clone(),
            ..View::default()
        };
        (cluster, view)
    });
    views.collect()
}

/// Further clusters as they come, change and go.
#[derive(Debug)]
pub(crate) struct Remotes {
    /// The ways to them.
    pub(crate) connections: watch::Receiver<Connections>,
    /// What is known of them.
    pub(crate) views: watch::Receiver<Views>,
    /// Id of the own cluster.
    pub(crate) cluster: String,
    /// The system namespace.
    pub(crate) namespace: String,
}

/// A cluster that is managed.
#[derive(Debug)]
struct Managed {
    connection: Arc<Connection>,
    views: watch::Sender<Option<View>>,
    stop: CancellationToken,
}

impl Remotes {
    /// Writes the root certificate wherever it belongs while this replica leads, until it is told to
    /// stop.
    pub(super) async fn run(
        mut self,
        config_map: String,
        roots: watch::Receiver<String>,
        leads: watch::Receiver<bool>,
        stop: CancellationToken,
    ) {
        let mut managed: BTreeMap<Arc<str>, Managed> = BTreeMap::new();
        let mut tasks = JoinSet::new();
        loop {
            let connections = self.connections.borrow_and_update().clone();
            let mut views = self.views.borrow_and_update().clone();
            views.retain(|_, view| is_managed(view, &self.namespace, &self.cluster));
            managed.retain(|cluster, known| {
                let connection = connections.get(cluster);
                let stays = views.contains_key(cluster)
                    && connection.is_some_and(|new| Arc::ptr_eq(new, &known.connection));
                if !stays {
                    known.stop.cancel();
                }
                stays
            });
            for (cluster, view) in views {
                if let Some(known) = managed.get(&cluster) {
                    known.views.send_replace(Some(view));
                } else if let Some(connection) = connections.get(&cluster) {
                    tracing::info!(%cluster, "managing the root certificate of this cluster");
                    let (sender, seen) = watch::channel(Some(view));
                    let inputs = Inputs {
                        views: seen,
                        roots: roots.clone(),
                        leads: leads.clone(),
                        wanted: watch::channel(Vec::new()).1,
                    };
                    let duties = Duties {
                        root_config_map: Some(config_map.clone()),
                        addresses: None,
                    };
                    let stop = stop.child_token();
                    let client = connection.client.clone();
                    tasks.spawn(leader::run(client, duties, inputs, stop.clone()));
                    let known = Managed {
                        connection: connection.clone(),
                        views: sender,
                        stop,
                    };
                    managed.insert(cluster, known);
                }
            }
            tokio::select! {
                () = stop.cancelled() => break,
                Ok(()) = self.connections.changed() => {}
                Ok(()) = self.views.changed() => {}
                Some(_) = tasks.join_next() => {}
                else => break,
            }
        }
        while tasks.join_next().await.is_some() {}
    }
}

/// Tells whether a cluster says that the control plane of the cluster `own` manages it.
fn is_managed(view: &View, namespace: &str, own: &str) -> bool {
    let namespace = view.namespaces.get(&NamespacedName::new("", namespace));
    let managers = namespace.and_then(|namespace| namespace.meta.annotations.get(MANAGERS));
    managers.is_some_and(|managers| {
        managers
            .split(',')
            .any(|one| matches!(one.trim(), "*") || one.trim() == own)
    })
}

#[cfg(test)]
mod tests {
    use intake::{Change, Decoder};

    use super::*;

    #[track_caller]
    fn check(annotations: &str, managed: bool) {
        let text = format!(
            "{{apiVersion: v1, kind: Namespace, metadata: {{name: istio-system, annotations: {annotations}}}}}"
        );
        let decoded = Decoder::default().decode("test", &text);
        let changes = decoded.objects.into_iter().map(Change::Apply).collect();
        let mut intake = Intake::new(intake::Options::default());
        let change = Change::Cluster {
            cluster: "far".into(),
            fresh: true,
            changes,
        };
        intake.apply([change], tokio::time::Instant::now().into_std());
        let views = views(&intake);
        assert_eq!(is_managed(&views["far"], "istio-system", "own"), managed);
    }

    #[test]
    fn a_cluster_says_who_manages_it() {
        check("{}", false);
        check("{topology.istio.io/controlPlaneClusters: 'own'}", true);
        check("{topology.istio.io/controlPlaneClusters: 'a, own'}", true);
        check("{topology.istio.io/controlPlaneClusters: '*'}", true);
        check("{topology.istio.io/controlPlaneClusters: 'owner'}", false);
        check("{controlPlaneClusters: 'own'}", false);
    }
}

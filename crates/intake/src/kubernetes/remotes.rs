//! Further clusters, which Secrets name (service-registry §15.3).

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use model::{Kind, NamespacedName, Object, api::kubernetes::Secret};
use tokio::{
    sync::{mpsc, watch},
    task::{AbortHandle, JoinSet},
    time,
};

use super::{
    connect::{Access, Connection, connect},
    source::{ClusterSource, SourceOptions, Turn},
    status::Tables,
};
use crate::intake::Change;

/// Label of Secrets whose values are kubeconfigs.
const LABEL: &str = "istio/multiCluster";

/// What is read of a further cluster: what services and endpoints are made of.
const KINDS: [Kind; 6] = [
    Kind::Namespace,
    Kind::Node,
    Kind::Pod,
    Kind::Service,
    Kind::EndpointSlice,
    Kind::WorkloadEntry,
];

/// Batches of one cluster that may wait; the cluster waits then, and no other.
const QUEUE: usize = 16;

/// The ways to clusters that have been read, by their ids. Other credentials make another way.
pub type Connections = BTreeMap<Arc<str>, Arc<Connection>>;

/// Kubeconfigs by the id of their cluster.
type Kubeconfigs = BTreeMap<Arc<str>, Arc<str>>;

/// Finds the Secrets of further clusters among all.
#[derive(Debug)]
pub struct RemoteSecrets {
    own: Arc<str>,
    namespace: Arc<str>,
    secrets: BTreeMap<NamespacedName, Kubeconfigs>,
    clusters: watch::Sender<Kubeconfigs>,
}

impl RemoteSecrets {
    /// Makes one for the Secrets of `namespace`; `own` is the id of the cluster that they are in.
    pub fn new(own: Arc<str>, namespace: Arc<str>) -> Self {
        Self {
            own,
            namespace,
            secrets: BTreeMap::new(),
            clusters: watch::Sender::default(),
        }
    }

    /// The clusters as they come and go.
    pub fn remotes(&self) -> Remotes {
        Remotes {
            clusters: self.clusters.subscribe(),
            read: watch::Sender::default(),
        }
    }

    /// Takes the Secrets of clusters out of the changes of all Secrets: nobody else is to see them.
    pub fn turn(mut self) -> Turn {
        Box::new(move |change| {
            let (name, secret) = match &change {
                Change::Apply(object @ Object::Secret(secret)) => {
                    let meta = object.meta();
                    let named = meta.labels.get(LABEL).is_some_and(|value| value == "true");
                    let ours = named && meta.namespace == self.namespace;
                    (meta.namespaced_name(), ours.then_some(&secret.spec))
                }
                Change::Delete(key) => {
                    let name = NamespacedName {
                        namespace: key.namespace.clone(),
                        name: key.name.clone(),
                    };
                    (name, None)
                }
                _ => return vec![change],
            };
            let known = self.secrets.contains_key(&name);
            match secret {
                Some(secret) => {
                    self.secrets.insert(name, kubeconfigs(secret));
                }
                None => {
                    self.secrets.remove(&name);
                }
            }
            let is_ours = secret.is_some();
            if known || is_ours {
                self.publish();
            }
            // One that was a cluster's before is news to all others.
            if is_ours { Vec::new() } else { vec![change] }
        })
    }

    /// Says which clusters there are. Of two Secrets for one cluster the first by name counts.
    fn publish(&self) {
        let mut clusters = Kubeconfigs::new();
        for (secret, kubeconfigs) in &self.secrets {
            for (cluster, kubeconfig) in kubeconfigs {
                if *cluster == self.own {
                    tracing::warn!(%cluster, %secret, "the own cluster is not read as a remote one");
                } else if clusters.contains_key(cluster) {
                    tracing::warn!(%cluster, %secret, "another secret has this cluster already");
                } else {
                    clusters.insert(cluster.clone(), kubeconfig.clone());
                }
            }
        }
        self.clusters.send_if_modified(|known| {
            let modified = *known != clusters;
            *known = clusters;
            modified
        });
    }
}

fn kubeconfigs(secret: &Secret) -> Kubeconfigs {
    let keys: BTreeSet<&String> = secret
        .data
        .keys()
        .chain(secret.string_data.keys())
        .collect();
    let text = |key: &str| String::from_utf8(secret.value(key)?.to_vec()).ok();
    let kubeconfigs = keys
        .into_iter()
        .filter_map(|key| Some((key.as_str().into(), text(key)?.into())));
    kubeconfigs.collect()
}

/// Further clusters, and which of them have been read.
#[derive(Debug)]
pub struct Remotes {
    clusters: watch::Receiver<Kubeconfigs>,
    read: watch::Sender<Connections>,
}

impl Remotes {
    /// Tells when the clusters have been read.
    pub fn progress(&self) -> Progress {
        Progress {
            clusters: self.clusters.clone(),
            read: self.read.subscribe(),
        }
    }

    /// Reads the clusters until nobody takes changes any more. None of them waits for another. A
    /// cluster whose credentials change keeps what is known of it until it has been read with the new
    /// ones.
    pub async fn run(mut self, changes: mpsc::Sender<Vec<Change>>, tables: Tables) {
        let mut tasks = JoinSet::new();
        let mut running: BTreeMap<Arc<str>, (Arc<str>, AbortHandle)> = BTreeMap::new();
        loop {
            let clusters = self.clusters.borrow_and_update().clone();
            let gone: Vec<Arc<str>> = running
                .keys()
                .filter(|cluster| !clusters.contains_key(*cluster))
                .cloned()
                .collect();
            for cluster in gone {
                if let Some((_, task)) = running.remove(&cluster) {
                    task.abort();
                }
                tracing::info!(%cluster, "remote cluster removed");
                tables.forget(&cluster);
                self.read.send_modify(|read| {
                    read.remove(&cluster);
                });
                let gone = vec![Change::ClusterGone(cluster)];
                if changes.send(gone).await.is_err() {
                    return;
                }
            }
            for (cluster, kubeconfig) in clusters {
                match running.get(&cluster) {
                    Some((known, _)) if *known == kubeconfig => continue,
                    Some((_, task)) => task.abort(),
                    None => {}
                }
                self.read.send_modify(|read| {
                    read.remove(&cluster);
                });
                let follow = follow(
                    cluster.clone(),
                    kubeconfig.clone(),
                    changes.clone(),
                    tables.clone(),
                    self.read.clone(),
                );
                running.insert(cluster, (kubeconfig, tasks.spawn(follow)));
            }
            tokio::select! {
                changed = self.clusters.changed() => {
                    if changed.is_err() {
                        // The source of the Secrets is gone; what was read stays.
                        changes.closed().await;
                        return;
                    }
                }
                () = changes.closed() => return,
                Some(Err(error)) = tasks.join_next() => {
                    if error.is_panic() {
                        std::panic::resume_unwind(error.into_panic());
                    }
                }
            }
        }
    }
}

/// Reads one cluster: all of it first, which counts at once, then what changes.
async fn follow(
    cluster: Arc<str>,
    kubeconfig: Arc<str>,
    changes: mpsc::Sender<Vec<Change>>,
    tables: Tables,
    read: watch::Sender<Connections>,
) {
    let access = Access::Foreign(kubeconfig.as_ref().to_owned());
    let connection = match connect(&access).await {
        Ok(connection) => connection,
        Err(error) => {
            let error = super::causes(&error);
            tracing::error!(%cluster, %error, "remote cluster cannot be read");
            return;
        }
    };
    tracing::info!(%cluster, server = connection.server, "reading remote cluster");
    let options = SourceOptions {
        cluster: cluster.clone(),
        kinds: KINDS.to_vec(),
    };
    let source = ClusterSource::new(connection.client.clone(), options, tables.clone());
    let (sender, mut own) = mpsc::channel(QUEUE);
    let mut tasks = JoinSet::new();
    tasks.spawn(source.run(sender));
    let mut first = Vec::new();
    loop {
        tokio::select! {
            Some(batch) = own.recv() => first.extend(batch),
            () = tables.settled(&cluster) => break,
        }
    }
    while let Ok(batch) = own.try_recv() {
        first.extend(batch);
    }
    let of_cluster = |changes, fresh| {
        let cluster = cluster.clone();
        vec![Change::Cluster {
            cluster,
            fresh,
            changes,
        }]
    };
    tracing::info!(%cluster, objects = first.len(), "remote cluster read");
    if changes.send(of_cluster(first, true)).await.is_err() {
        return;
    }
    read.send_modify(|read| {
        read.insert(cluster.clone(), Arc::new(connection));
    });
    while let Some(batch) = own.recv().await {
        if changes.send(of_cluster(batch, false)).await.is_err() {
            return;
        }
    }
}

/// Which clusters there are, and which of them have been read.
#[derive(Clone, Debug)]
pub struct Progress {
    clusters: watch::Receiver<Kubeconfigs>,
    read: watch::Receiver<Connections>,
}

impl Progress {
    /// Lists the clusters, and whether each was read.
    pub fn list(&self) -> Vec<(Arc<str>, bool)> {
        let read = self.read.borrow();
        let clusters = self.clusters.borrow();
        let list = clusters.keys().map(|c| (c.clone(), read.contains_key(c)));
        list.collect()
    }

    /// The ways to the clusters that have been read, as they come and go.
    pub fn connections(&self) -> watch::Receiver<Connections> {
        self.read.clone()
    }

    /// Waits until all clusters that are known by now have been read, but not longer than `timeout`
    /// (zero waits without end). Returns those that have not.
    pub async fn wait(&mut self, timeout: Duration) -> Vec<Arc<str>> {
        let missing = |this: &Self| -> Vec<Arc<str>> {
            let list = this.list().into_iter();
            list.filter(|(_, read)| !read).map(|(c, _)| c).collect()
        };
        let wait = async {
            while !missing(self).is_empty() {
                tokio::select! {
                    Ok(()) = self.clusters.changed() => {}
                    Ok(()) = self.read.changed() => {}
                    else => return,
                }
            }
        };
        if timeout.is_zero() {
            wait.await;
        } else if time::timeout(timeout, wait).await.is_err() {
            return missing(self);
        }
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::{reader::Reader, resource::Resource},
        *,
    };

    fn secret(name: &str, label: bool, data: &Value) -> Change {
        let reader = Reader::new(&Resource::of(Kind::Secret), "v1", "c".into());
        let labels = if label {
            json!({LABEL: "true"})
        } else {
            json!({})
        };
        let metadata = json!({"name": name, "namespace": "istio-system", "labels": labels});
        let read = reader.read(json!({"metadata": metadata, "stringData": data}));
        Change::Apply(read.unwrap().object.unwrap())
    }

    fn gone(name: &str) -> Change {
        Change::Delete(model::ConfigKey::new(Kind::Secret, "istio-system", name))
    }

    #[test]
    fn secrets_name_clusters() {
        let secrets = RemoteSecrets::new("own".into(), "istio-system".into());
        let remotes = secrets.remotes();
        let mut turn = secrets.turn();
        let mut check = |change: Change, passed: usize, clusters: &[(&str, &str)]| {
            assert_eq!(turn(change).len(), passed);
            let found = remotes.clusters.borrow().clone();
            let found: Vec<(&str, &str)> = found.iter().map(|(c, k)| (&**c, &**k)).collect();
            assert_eq!(found, clusters);
        };
        check(secret("x", false, &json!({"far": "1"})), 1, &[]);
        check(
            secret("b", true, &json!({"far": "1", "own": "0"})),
            0,
            &[("far", "1")],
        );
        // Two Secrets have one cluster: the first by name counts, whichever came first.
        check(secret("a", true, &json!({"far": "2"})), 0, &[("far", "2")]);
        check(
            secret("c", true, &json!({"near": "3"})),
            0,
            &[("far", "2"), ("near", "3")],
        );
        check(gone("a"), 1, &[("far", "1"), ("near", "3")]);
        // Without its label it is a Secret like others.
        check(
            secret("c", false, &json!({"near": "3"})),
            1,
            &[("far", "1")],
        );
        check(gone("b"), 1, &[]);
    }
}

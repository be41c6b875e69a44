//! The cluster as a source: where it is, when it has been read, and how its tables are.

use std::{sync::Arc, time::Duration};

use anyhow::{Context as _, bail};
use intake::{
    Change, Intake,
    kubernetes::{
        ClusterSource, MeshMap, RemoteProgress, RemoteSecrets, SourceOptions, Tables,
        connect::{Access, ConnectError, Connection, connect},
    },
};
use model::{Kind, api::MeshConfig};
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{self, Instant},
};
use tokio_util::sync::CancellationToken;

use crate::{cli::SourceArgs, settings::Settings};

/// How often it is said what is waited for.
const PATIENCE: Duration = Duration::from_secs(10);

/// A cluster that is being read.
#[derive(Clone, Debug)]
pub(crate) struct Cluster {
    id: Arc<str>,
    /// The way to its API server.
    pub(crate) connection: Connection,
    /// How the tables of all clusters are.
    pub(crate) tables: Tables,
    /// Which further clusters there are.
    pub(crate) remotes: RemoteProgress,
}

/// Which cluster is read: that of a kubeconfig, or else, without files or when it is asked for, the one
/// that this process is a pod of.
pub(crate) fn access(args: &SourceArgs) -> Option<Access> {
    match &args.kubeconfig {
        Some(path) => Some(Access::File(path.clone())),
        None if args.config.is_empty() || !args.registries.is_empty() => Some(Access::InCluster),
        None => None,
    }
}

/// Starts to read the cluster, and those that its Secrets name. Their changes go to `changes`.
///
/// # Errors
/// When there is no way to the cluster. It need not answer.
pub(crate) async fn start(
    access: &Access,
    args: &SourceArgs,
    settings: &Settings,
    changes: &mpsc::Sender<Vec<Change>>,
    tasks: &mut JoinSet<anyhow::Result<()>>,
    stop: &CancellationToken,
) -> anyhow::Result<Cluster> {
    let connection = match connect(access).await {
        Err(error @ ConnectError::NoPod(_)) if args.config.is_empty() => {
            return Err(error).context(
                "nothing says where the mesh is: give --kubeconfig, or --config for files",
            );
        }
        other => other.context("connect to the cluster")?,
    };
    let (id, namespace): (Arc<str>, Arc<str>) = (
        settings.cluster.as_str().into(),
        settings.namespace.as_str().into(),
    );
    let from = match access {
        Access::File(path) => path.display().to_string(),
        Access::Foreign(_) | Access::InCluster => "service account".to_owned(),
    };
    tracing::info!(cluster = %id, server = connection.server, from, "reading cluster");
    let mesh = MeshMap {
        namespace: namespace.clone(),
        revision: settings.revision.as_str().into(),
        shared: settings.shared_mesh.as_deref().map(Into::into),
        mesh: args.mesh.mesh_config.is_none().then(MeshConfig::default),
        networks: args.mesh.mesh_networks.is_none(),
        resolve_names: settings.features.resolve_hostname_gateways,
    };
    if mesh.mesh.is_none()
        && let Some(name) = &mesh.shared
    {
        tracing::warn!(%name, "SHARED_MESH_CONFIG is not read beside --mesh-config");
    }
    let tables = Tables::default();
    let secrets = RemoteSecrets::new(id.clone(), namespace);
    let remotes = secrets.remotes();
    let progress = remotes.progress();
    let options = SourceOptions::all(id.clone())
        .without(&settings.ignored_resources, &settings.included_resources);
    let source = ClusterSource::new(connection.client.clone(), options, tables.clone())
        .turning(Kind::ConfigMap, mesh.turn())
        .turning(Kind::Secret, secrets.turn());
    let (sender, stopped) = (changes.clone(), stop.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = source.run(sender) => bail!("nobody takes the changes of the cluster any more"),
            () = stopped.cancelled() => Ok(()),
        }
    });
    let (sender, stopped, of_remotes) = (changes.clone(), stop.clone(), tables.clone());
    tasks.spawn(async move {
        tokio::select! {
            () = remotes.run(sender, of_remotes) => bail!("nobody takes the changes of remote clusters any more"),
            () = stopped.cancelled() => Ok(()),
        }
    });
    Ok(Cluster {
        id,
        connection,
        tables,
        remotes: progress,
    })
}

impl Cluster {
    /// Waits until all that is needed of the cluster is known, and takes it over at once: nobody is
    /// ever told of a part. Further clusters are waited for, each, as long as `timeout` says.
    pub(crate) async fn sync(
        &mut self,
        intake: &mut Intake,
        inbox: &mut mpsc::Receiver<Vec<Change>>,
        timeout: Duration,
    ) {
        let begun = Instant::now();
        let mut first = Vec::new();
        loop {
            tokio::select! {
                Some(batch) = inbox.recv() => first.extend(batch),
                () = self.tables.settled(&self.id) => break,
                () = time::sleep(PATIENCE) => self.tell_missing(),
            }
        }
        drain(inbox, &mut first);
        let objects = first.len();
        intake.apply(first, Instant::now().into_std());
        tracing::info!(cluster = %self.id, objects, elapsed = ?begun.elapsed(), "cluster read");
        let mut first = Vec::new();
        let missing = {
            let wait = self.remotes.wait(timeout);
            tokio::pin!(wait);
            loop {
                tokio::select! {
                    Some(batch) = inbox.recv() => first.extend(batch),
                    missing = &mut wait => break missing,
                }
            }
        };
        for cluster in missing {
            tracing::warn!(%cluster, waited = ?timeout, "remote cluster not read yet, serving without it");
        }
        drain(inbox, &mut first);
        intake.apply(first, Instant::now().into_std());
    }

    fn tell_missing(&self) {
        for table in self.tables.unsettled(&self.id) {
            let (kind, state) = (table.kind, table.phase.as_str());
            let error = table.error.unwrap_or_default();
            tracing::warn!(cluster = %self.id, %kind, state, error, "waiting for this kind, nothing is served before");
        }
    }
}

/// Takes what waits, without waiting.
fn drain(inbox: &mut mpsc::Receiver<Vec<Change>>, into: &mut Vec<Change>) {
    while let Ok(batch) = inbox.try_recv() {
        into.extend(batch);
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    #[track_caller]
    fn check(flags: &[&str], expected: Option<&Access>) {
        let cli = Cli::try_parse_from(["istiod", "discovery"].iter().chain(flags)).unwrap();
        let Command::Discovery(args) = cli.command else {
            panic!("not discovery");
        };
        assert_eq!(access(&args.source).as_ref(), expected);
    }

    #[test]
    fn files_replace_the_cluster_unless_it_is_asked_for() {
        let file = Access::File(PathBuf::from("k"));
        check(&[], Some(&Access::InCluster));
        check(&["--config", "mesh"], None);
        check(&["--kubeconfig", "k"], Some(&file));
        check(&["--kubeconfig", "k", "--config", "mesh"], Some(&file));
        check(
            &["--config", "mesh", "--registries", "Kubernetes"],
            Some(&Access::InCluster),
        );
    }
}

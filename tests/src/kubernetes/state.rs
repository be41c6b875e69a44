//! Clusters that stay up when who started them has ended: `cargo xtask kube`.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use serde::{Deserialize, Serialize};
use tokio::{process::Command, time::sleep};

use super::{Cluster, credentials, objects};

/// The file in a cluster's folder that says what runs.
const FILE: &str = "cluster.json";
/// Time between two looks at a process that is to end.
const LOOK: Duration = Duration::from_millis(50);
/// How often it is looked at before it is killed.
const LOOKS: usize = 100;

/// A cluster that somebody left running.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Running {
    /// The program that both processes run.
    binary: PathBuf,
    /// The process numbers of the API server and of its database.
    processes: [u32; 2],
    /// Where the API server listens.
    pub address: std::net::SocketAddr,
    /// The kubeconfig of an administrator.
    pub kubeconfig: PathBuf,
}

impl Cluster {
    /// Leaves everything running when this process ends; [`down`] ends it.
    ///
    /// # Errors
    /// When the cluster's folder is temporary, or cannot be written.
    pub fn leave_running(self) -> Result<Running> {
        if self.temporary.is_some() {
            bail!("a cluster in a temporary folder ends with its owner");
        }
        let folder = self.setup.folder.clone();
        let running = Running {
            binary: self.setup.binary.clone(),
            processes: [self.api.pid()?, self.etcd.pid()?],
            address: self.setup.api,
            kubeconfig: credentials::admin(&folder),
        };
        let text = serde_json::to_string_pretty(&running).context("write JSON")?;
        fs::write(folder.join(FILE), text).context("write what runs")?;
        self.api.leave_running();
        self.etcd.leave_running();
        Ok(running)
    }
}

impl Running {
    /// Reads what runs in a folder; `None` when nothing was left there.
    ///
    /// # Errors
    /// When what is there is not understood.
    pub fn find(folder: &Path) -> Result<Option<Self>> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        let text = fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
        let running = serde_json::from_str(&text);
        running
            .map(Some)
            .with_context(|| format!("understand {}", path.display()))
    }

    /// Sees that both processes run and the API server is ready.
    ///
    /// # Errors
    /// When a process has ended, or the API server does not answer.
    pub async fn check(&self) -> Result<()> {
        for (name, id) in ["kube-apiserver", "etcd"].into_iter().zip(self.processes) {
            if !self.is_ours(id) {
                bail!("{name} has ended");
            }
        }
        let client = credentials::client(&self.kubeconfig).await?;
        let request = hyper::Request::get("/readyz").body(Vec::new())?;
        client
            .request_text(request)
            .await
            .context("ask whether the API server is ready")?;
        Ok(())
    }

    /// Writes a kubeconfig of a service account, which is made if it is not there, and returns where it
    /// is. Its token is valid for an hour.
    ///
    /// # Errors
    /// When the API server refuses, or the file cannot be written.
    pub async fn kubeconfig_of(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let client = credentials::client(&self.kubeconfig).await?;
        objects::service_account(&client, namespace, name).await?;
        let token = objects::token(&client, namespace, name, &[]).await?;
        let folder = self
            .kubeconfig
            .parent()
            .context("a kubeconfig without a folder")?;
        credentials::write_for_token(folder, self.address, &format!("{namespace}-{name}"), &token)
    }

    /// Tells whether a process is one of the cluster: the number may be another's by now.
    fn is_ours(&self, id: u32) -> bool {
        fs::read_link(format!("/proc/{id}/exe")).is_ok_and(|exe| exe == self.binary)
    }
}

/// Ends what [`Cluster::leave_running`] left, and removes its data; returns whether there was anything.
///
/// # Errors
/// When a process does not end, or its data cannot be removed.
pub async fn down(folder: &Path) -> Result<bool> {
    let Some(running) = Running::find(folder)? else {
        return Ok(false);
    };
    for id in running.processes {
        for look in 0..=LOOKS {
            if !running.is_ours(id) {
                break;
            }
            let signal = if look == LOOKS { "KILL" } else { "TERM" };
            if look == 0 || look == LOOKS {
                let kill = format!("kill -{signal} {id}");
                Command::new("sh")
                    .args(["-c", &kill])
                    .status()
                    .await
                    .context("run sh")?;
            }
            sleep(LOOK).await;
        }
    }
    fs::remove_dir_all(folder).with_context(|| format!("remove {}", folder.display()))?;
    Ok(true)
}

//! A real Kubernetes API server with its database, on loopback.
//!
//! There is nothing else of a cluster: no scheduler, no kubelet, and no controller. Endpoints, service
//! accounts and the states of pods are what a test writes, and a deleted namespace stays terminating.

mod binary;
mod chart;
mod credentials;
mod objects;
mod state;

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::process::Command;

pub use self::{
    binary::{binary, helm},
    chart::render,
    objects::{apply, delete},
    state::{Running, down},
};
use crate::{
    http::{self, free_port},
    process::Process,
};

/// Longest time from the start of a program to its readiness.
const START: Duration = Duration::from_mins(2);
/// Longest time from a defined kind to one that is served.
const SOON: Duration = Duration::from_secs(30);

/// The kinds of Istio, without schemas.
pub const ISTIO_KINDS: &str = include_str!("../kubernetes/istio-crds.yaml");
/// The kinds of the Gateway API, without schemas.
pub const GATEWAY_KINDS: &str = include_str!("../kubernetes/gateway-crds.yaml");

/// A running API server with its database; dropping it kills both and removes their data.
#[derive(Debug)]
pub struct Cluster {
    api: Process,
    etcd: Process,
    setup: Setup,
    // Removed after the processes have ended, as fields are dropped in this order.
    temporary: Option<TempDir>,
}

/// Where everything is.
#[derive(Clone, Debug)]
struct Setup {
    binary: PathBuf,
    folder: PathBuf,
    api: SocketAddr,
    etcd: SocketAddr,
    peers: SocketAddr,
}

impl Cluster {
    /// Starts an empty cluster of its own.
    ///
    /// # Errors
    /// When the programs cannot be built, or do not become ready.
    pub async fn start() -> Result<Self> {
        let temporary = tempfile::Builder::new().prefix("kubernetes-").tempdir()?;
        let mut cluster = Self::start_in(temporary.path()).await?;
        cluster.temporary = Some(temporary);
        Ok(cluster)
    }

    /// Starts an empty cluster whose data, logs and credentials go into `folder`.
    ///
    /// # Errors
    /// When the programs cannot be built, or do not become ready.
    pub async fn start_in(folder: &Path) -> Result<Self> {
        let local =
            || Ok::<_, anyhow::Error>(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)));
        let setup = Setup {
            binary: binary().await?.to_owned(),
            folder: folder.to_owned(),
            api: local()?,
            etcd: local()?,
            peers: local()?,
        };
        credentials::write(folder, setup.api)?;
        let etcd = setup.start_etcd().await?;
        let api = setup.start_api().await?;
        let cluster = Self {
            api,
            etcd,
            setup,
            temporary: None,
        };
        // No controller makes it, and no pod is admitted without.
        cluster.service_account("default", "default").await?;
        Ok(cluster)
    }

    /// Defines the kinds of Istio and of the Gateway API, and waits until they are served.
    ///
    /// # Errors
    /// When the API server refuses one.
    pub async fn define_kinds(&self) -> Result<()> {
        self.define(ISTIO_KINDS).await?;
        self.define(GATEWAY_KINDS).await
    }

    /// Where the API server listens.
    pub fn address(&self) -> SocketAddr {
        self.setup.api
    }

    /// The kubeconfig of an administrator.
    pub fn kubeconfig(&self) -> PathBuf {
        credentials::admin(&self.setup.folder)
    }

    /// Returns a client of an administrator.
    ///
    /// # Errors
    /// When the kubeconfig cannot be used.
    pub async fn client(&self) -> Result<Client> {
        credentials::client(&self.kubeconfig()).await
    }

    /// Kills the API server, as a crash would, and waits for its end.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill_api_server(&mut self) -> Result<()> {
        self.api.kill().await
    }

    /// Starts the API server again, at the same address, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_api_server(&mut self) -> Result<()> {
        self.api = self.setup.start_api().await?;
        Ok(())
    }

    /// Kills the database, as a crash would, and waits for its end.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill_etcd(&mut self) -> Result<()> {
        self.etcd.kill().await
    }

    /// Starts the database again, with its data, and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start_etcd(&mut self) -> Result<()> {
        self.etcd = self.setup.start_etcd().await?;
        Ok(())
    }

    /// Makes the database forget everything but the present: an API server that is started after this
    /// answers `410 Gone` to whoever wants to go on from an earlier resource version.
    ///
    /// # Errors
    /// When the database refuses.
    pub async fn compact(&self) -> Result<()> {
        // Any key: the answer's header tells the revision of the present.
        let found = self
            .setup
            .ask_etcd("/v3/kv/range", &json!({"key": "AA=="}))
            .await?;
        let revision = &found["header"]["revision"];
        ensure!(revision.is_string(), "the database answers {found}");
        let request = json!({"revision": revision, "physical": true});
        self.setup.ask_etcd("/v3/kv/compaction", &request).await?;
        Ok(())
    }

    /// What both have logged.
    pub fn log(&self) -> String {
        format!("{}\n{}", self.etcd.log(), self.api.log())
    }
}

impl Setup {
    async fn start_etcd(&self) -> Result<Process> {
        let mut command = Command::new(&self.binary);
        let (clients, peers) = (
            format!("http://{}", self.etcd),
            format!("http://{}", self.peers),
        );
        command
            .args([
                "etcd",
                "--name",
                "etcd",
                "--log-level",
                "warn",
                "--data-dir",
            ])
            .arg(self.folder.join("etcd"))
            .args([
                "--listen-client-urls",
                &clients,
                "--advertise-client-urls",
                &clients,
            ])
            .args([
                "--listen-peer-urls",
                &peers,
                "--initial-advertise-peer-urls",
                &peers,
            ])
            .args(["--initial-cluster", &format!("etcd={peers}")])
            // The data need not outlive the machine.
            .arg("--unsafe-no-fsync");
        let mut process = Process::start("etcd", command, &self.folder.join("etcd.log"))?;
        let address = self.etcd;
        process
            .until("ready", START, async || {
                http::get(address, "etcd", "/readyz", &[]).await?.ok()
            })
            .await?;
        Ok(process)
    }

    async fn start_api(&self) -> Result<Process> {
        let mut command = Command::new(&self.binary);
        let file = |name: &str| self.folder.join(name).display().to_string();
        command
            .arg("kube-apiserver")
            .arg(format!("--etcd-servers=http://{}", self.etcd))
            .arg(format!("--secure-port={}", self.api.port()))
            .args(["--bind-address=127.0.0.1", "--advertise-address=127.0.0.1"])
            // Its own address would be refused as an endpoint: it is of loopback.
            .arg("--endpoint-reconciler-type=none")
            .arg("--service-cluster-ip-range=10.96.0.0/16")
            .args(["--authorization-mode=RBAC", "--allow-privileged=true"])
            .arg("--service-account-issuer=https://kubernetes.default.svc.cluster.local")
            .arg(format!("--client-ca-file={}", file(credentials::AUTHORITY)))
            .arg(format!(
                "--tls-cert-file={}",
                file(credentials::CERTIFICATE)
            ))
            .arg(format!("--tls-private-key-file={}", file(credentials::KEY)))
            .arg(format!(
                "--service-account-key-file={}",
                file(credentials::TOKENS)
            ))
            .arg(format!(
                "--service-account-signing-key-file={}",
                file(credentials::TOKENS_KEY)
            ))
            // Nothing else goes there: all certificates are given.
            .arg(format!("--cert-dir={}", file("certificates")));
        let mut process = Process::start("kube-apiserver", command, &self.folder.join("api.log"))?;
        let client = credentials::client(&credentials::admin(&self.folder)).await?;
        process
            .until("ready", START, async || {
                let request = hyper::Request::get("/readyz").body(Vec::new())?;
                Ok(client.request_text(request).await?)
            })
            .await?;
        Ok(process)
    }

    /// Asks the database by its HTTP interface.
    async fn ask_etcd(&self, path: &str, request: &Value) -> Result<Value> {
        let answer = http::post(self.etcd, "etcd", path, request.to_string()).await?;
        serde_json::from_str(&answer.ok()?).context("read what the database answers")
    }
}

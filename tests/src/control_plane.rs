//! The `istiod` binary as a process of a test or a demo.

use std::{
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    process::ExitStatus,
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tokio::{process::Command, sync::OnceCell};

use crate::{
    corpus::workspace,
    http::{self, free_port},
    process::Process,
};

/// Longest time from the start to readiness.
const START: Duration = Duration::from_secs(30);

/// The binary that every control plane of this process runs.
static BINARY: OnceCell<PathBuf> = OnceCell::const_new();

/// Says which binary to run instead of building one. The first one said, or built, stays.
pub fn use_binary(path: impl Into<PathBuf>) {
    BINARY.set(path.into()).ok();
}

/// Returns the `istiod` binary, building it unless [`use_binary`] named one.
///
/// # Errors
/// When it does not compile.
pub async fn binary() -> Result<&'static Path> {
    BINARY.get_or_try_init(build).await.map(PathBuf::as_path)
}

async fn build() -> Result<PathBuf> {
    let mut command = Command::new(env!("CARGO"));
    command
        // Without `--package`: the features of dependencies are then those of the whole workspace,
        // and nothing is compiled twice.
        .args(["build", "--quiet", "--bin", "istiod"])
        .arg("--message-format=json")
        .current_dir(workspace())
        .stderr(std::process::Stdio::inherit());
    if !cfg!(debug_assertions) {
        command.arg("--release");
    }
    let output = command.output().await.context("run cargo")?;
    ensure!(output.status.success(), "cargo build of istiod failed");
    String::from_utf8_lossy(&output.stdout)
        .lines()
        .filter_map(|line| serde_json::from_str::<Value>(line).ok())
        .find_map(|message| message["executable"].as_str().map(PathBuf::from))
        .context("cargo names no executable of istiod")
}

/// What a control plane is started with.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Arguments of `--config`; without any, a cluster is read.
    pub config: Vec<PathBuf>,
    /// Argument of `--mesh-config`.
    pub mesh_config: Option<PathBuf>,
    /// Further arguments.
    pub arguments: Vec<String>,
    /// Environment variables.
    pub environment: Vec<(String, String)>,
    /// Port of plaintext xDS.
    pub xds: SocketAddr,
    /// Port of xDS over TLS and of certificates.
    pub secure: SocketAddr,
    /// Port of `/ready`.
    pub http: SocketAddr,
    /// Port of `/metrics`.
    pub monitoring: SocketAddr,
    /// File that the log is added to.
    pub log: PathBuf,
    /// Longest time from the start to readiness; 30 s, but more where what it reads is slow to come.
    pub patience: Duration,
}

impl Setup {
    /// A control plane on free ports that reads `config`; its log goes into `folder`.
    ///
    /// # Errors
    /// When no port is free.
    pub fn new(config: impl Into<PathBuf>, folder: &Path) -> Result<Self> {
        let free = || Ok::<_, anyhow::Error>(SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?)));
        Ok(Self {
            config: vec![config.into()],
            mesh_config: None,
            arguments: Vec::new(),
            environment: Vec::new(),
            xds: free()?,
            secure: free()?,
            http: free()?,
            monitoring: free()?,
            log: folder.join("istiod.log"),
            patience: START,
        })
    }
}

/// A running control plane; dropping it kills it.
#[derive(Debug)]
pub struct ControlPlane {
    process: Process,
    setup: Setup,
}

impl ControlPlane {
    /// Starts `istiod discovery` and waits until it is ready.
    ///
    /// # Errors
    /// When it does not become ready.
    pub async fn start(setup: Setup) -> Result<Self> {
        let mut command = Command::new(binary().await?);
        command.arg("discovery");
        if !setup.config.is_empty() {
            command.arg("--config").args(&setup.config);
        }
        if let Some(file) = &setup.mesh_config {
            command.arg("--mesh-config").arg(file);
        }
        for (flag, address) in [
            ("--grpcAddr", setup.xds),
            ("--secureGRPCAddr", setup.secure),
            ("--httpAddr", setup.http),
            ("--monitoringAddr", setup.monitoring),
        ] {
            command.arg(flag).arg(address.to_string());
        }
        command.args(&setup.arguments);
        command.envs(setup.environment.iter().map(|(k, v)| (k, v)));
        let mut process = Process::start("istiod", command, &setup.log)?;
        let http = setup.http;
        process
            .until("ready", setup.patience, async || {
                http::get(http, "istiod", "/ready", &[]).await?.ok()
            })
            .await?;
        Ok(Self { process, setup })
    }

    /// Returns the process number.
    ///
    /// # Errors
    /// When it has ended.
    pub fn pid(&self) -> Result<u32> {
        self.process.pid()
    }

    /// What it was started with.
    pub fn setup(&self) -> &Setup {
        &self.setup
    }

    /// Everything it has logged, and those before it with the same log.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Asks its monitoring port.
    ///
    /// # Errors
    /// When there is no good answer.
    pub async fn monitoring(&self, path: &str) -> Result<String> {
        http::get(self.setup.monitoring, "istiod", path, &[])
            .await?
            .ok()
    }

    /// Sums up all series of a counter.
    ///
    /// # Errors
    /// When there is no good answer.
    pub async fn counter(&self, name: &str) -> Result<u64> {
        let text = self.monitoring("/metrics").await?;
        Ok(text
            .lines()
            .filter(|line| {
                line.strip_prefix(name)
                    .is_some_and(|rest| rest.starts_with(['{', ' ']))
            })
            .filter_map(|line| line.rsplit(' ').next()?.parse::<u64>().ok())
            .sum())
    }

    /// What every proxy asked for and has acknowledged.
    ///
    /// # Errors
    /// When there is no good answer.
    pub async fn streams(&self) -> Result<Vec<Value>> {
        let text = self.monitoring("/debug/syncz").await?;
        serde_json::from_str(&text).context("read /debug/syncz")
    }

    /// Sends SIGTERM and waits for the end.
    ///
    /// # Errors
    /// When it has not ended after `within`.
    pub async fn terminate(&mut self, within: Duration) -> Result<ExitStatus> {
        self.process.terminate(within).await
    }

    /// Kills it, as a crash would, and waits for the end.
    ///
    /// # Errors
    /// When the system refuses.
    pub async fn kill(&mut self) -> Result<()> {
        self.process.kill().await
    }
}

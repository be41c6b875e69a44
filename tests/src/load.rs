//! A fleet of fake Envoys: measures how fast an xDS server reaches them, and what it costs.
//!
//! Clients speak delta or SotW, follow what clusters and listeners refer to as an Envoy does, and
//! acknowledge. Changes are written into the folder that the server reads; the time runs from the
//! write to the acknowledgement of each client that has the changed resource.

mod churn;
mod client;
mod fleet;
mod mesh;
mod names;
mod report;
mod usage;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};

pub use churn::Churn;
pub use report::{Report, Row, Sent, Times};

use crate::control_plane::{ControlPlane, Setup};
use fleet::Fleet;
use mesh::Mesh;
use usage::Usage;

/// Longest time until every client has its first configuration.
const FIRST_CONFIG: Duration = Duration::from_mins(5);

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// A server that runs already; `None` starts `istiod`.
    pub server: Option<SocketAddr>,
    /// Its process, for memory and CPU time.
    pub pid: Option<u32>,
    /// The folder that it reads; a temporary one when `istiod` is started.
    pub config: Option<PathBuf>,
    /// Services of the mesh.
    pub services: usize,
    /// Endpoints of each service.
    pub endpoints: usize,
    /// Kinds of proxies: each lives in a namespace of its own.
    pub classes: usize,
    /// Connected proxies.
    pub connections: usize,
    /// How many of a hundred proxies speak delta.
    pub delta_percent: usize,
    /// Proxies that wait a second before each acknowledgement. They are not measured.
    pub slow: usize,
    /// Proxies that reject all listeners. They are not measured.
    pub rejecting: usize,
    /// Node files to connect as, in turn, instead of generated nodes.
    pub nodes: Vec<PathBuf>,
    /// What changes, in order.
    pub churn: Vec<Churn>,
    /// How often each change is made.
    pub changes: usize,
}

/// Connects the fleet, makes the changes, and reports.
///
/// # Errors
/// When the server cannot be started, or a client never gets its configuration.
pub async fn run(options: &Options) -> Result<Report> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let config = options
        .config
        .clone()
        .unwrap_or_else(|| folder.path().join("config"));
    let mesh = Mesh::new(
        &config,
        options.services,
        options.endpoints,
        options.classes,
    );
    mesh.write().context("write the mesh")?;
    let mut server = match options.server {
        Some(_) => None,
        None => Some(ControlPlane::start(Setup::new(&config, folder.path())?).await?),
    };
    let (address, pid) = match (&server, options.server) {
        (Some(server), _) => (server.setup().xds, Some(server.pid()?)),
        (None, Some(address)) => (address, options.pid),
        (None, None) => bail!("no server"),
    };
    let mut report = Report::new(options);
    let before = Usage::of(pid)?;
    report.idle_rss = before.map(|usage| usage.rss);
    let fleet = Fleet::connect(address, options, &mesh.nodes(&options.nodes)?).await?;
    report.first_config = fleet.first_configs(FIRST_CONFIG).await?;
    report.first_sent = fleet.take_sent();
    let connected = Usage::of(pid)?;
    report.connected(before, connected);
    for churn in &options.churn {
        let row = if *churn == Churn::Restart {
            let Some(running) = server.take() else {
                continue;
            };
            let setup = running.setup().clone();
            let (row, running) = fleet.over_a_restart(running, setup).await?;
            server = Some(running);
            row
        } else {
            churn.run(&mesh, &fleet, options.changes).await?
        };
        report.churns.push(row);
    }
    let pid = match &server {
        Some(server) => Some(server.pid()?),
        None => pid,
    };
    report.final_rss = Usage::of(pid)?.map(|usage| usage.rss);
    report.rejected = fleet.rejected();
    Ok(report)
}

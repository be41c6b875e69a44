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
mod noisy;
mod report;
mod stage;
mod truth;
mod usage;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use tokio::time::sleep;

pub use churn::Churn;
pub use mesh::Form;
pub use noisy::{Comparison, Run, noisy};
pub use report::{Report, Row, Sent, Times, TypeTimes};
pub use truth::{Truth, truth};

use crate::control_plane::{ControlPlane, Setup};
use fleet::Fleet;
use mesh::Mesh;
use stage::Stage;
use usage::Usage;

/// Longest time until every client has its first configuration.
const FIRST_CONFIG: Duration = Duration::from_mins(5);

/// Time for the server to come to rest before its memory is looked at.
const REST: Duration = Duration::from_secs(3);
/// A control plane that is started here takes as many streams at once as come: how it spreads them
/// is not what is measured. A variable given in [`Options::environment`] goes before.
const STREAMS: (&str, &str) = ("PILOT_MAX_REQUESTS_PER_SECOND", "100000");

/// What to measure.
#[derive(Clone, Debug)]
pub struct Options {
    /// A server that runs already; `None` starts `istiod`.
    pub server: Option<SocketAddr>,
    /// Its process, for memory and CPU time.
    pub pid: Option<u32>,
    /// The folder that it reads; a temporary one when `istiod` is started. Nothing is changed in
    /// the mesh of a server without one.
    pub config: Option<PathBuf>,
    /// Environment variables of the server that is started.
    pub environment: Vec<(String, String)>,
    /// What services are written as.
    pub form: Form,
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
    /// How many proxies connect in a second.
    pub connects_per_second: usize,
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
    let temporary = folder.path().join("config");
    let config = options.config.as_ref().unwrap_or(&temporary);
    let mesh = Arc::new(Mesh::new(config, options));
    let unreachable = options.server.is_some() && options.config.is_none();
    ensure!(
        !unreachable || options.churn.is_empty(),
        "without its folder nothing can be changed for a server that runs already"
    );
    if !unreachable {
        mesh.write().context("write the mesh")?;
    }
    let (server, address) = if let Some(address) = options.server {
        (None, address)
    } else {
        let mut setup = Setup::new(config, folder.path())?;
        let streams = (STREAMS.0.to_owned(), STREAMS.1.to_owned());
        setup.environment.push(streams);
        setup.environment.extend(options.environment.clone());
        let server = ControlPlane::start(setup).await?;
        let address = server.setup().xds;
        (Some(server), address)
    };
    let nodes = mesh.nodes(&options.nodes)?;
    let kinds = nodes.len().min(options.connections);
    let mut stage = Stage {
        mesh,
        fleet: Fleet::new(address, options, nodes)?,
        changes: options.changes,
        server,
        foreign: options.pid,
    };
    let mut report = Report::new(options);
    let before = stage.usage()?;
    stage.fleet.connect(kinds).await;
    stage.fleet.first_configs(FIRST_CONFIG).await?;
    sleep(REST).await;
    let shared = stage.usage()?;
    stage.fleet.connect(options.connections).await;
    report.first_config = stage.fleet.first_configs(FIRST_CONFIG).await?;
    report.first_sent = stage.fleet.take_sent();
    let connected = stage.usage()?;
    sleep(REST).await;
    report.connected(kinds, &[before, shared, connected, stage.usage()?]);
    for churn in &options.churn {
        report.churns.extend(churn.run(&mut stage).await?);
    }
    sleep(REST).await;
    let last: Option<Usage> = stage.usage()?;
    report.final_rss = last.map(|usage| usage.rss);
    report.peak_rss = last.map(|usage| usage.peak);
    report.rejected = stage.fleet.rejected();
    Ok(report)
}

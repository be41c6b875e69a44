//! `cargo xtask load`: how fast an xDS server reaches a fleet of fake Envoys, and what it costs.
#![expect(clippy::print_stdout, reason = "a command line tool")]

use std::fmt::Display;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context as _;
use clap::Parser;
use serde::Serialize;
use tests::control_plane::use_binary;
use tests::load::{self, Churn, Form, Options};

/// What changes by default; the last only where the server is started here.
const ALL: [Churn; 5] = [
    Churn::EndpointFlap,
    Churn::RollingRestart,
    Churn::VirtualService,
    Churn::ServiceEntry,
    Churn::Restart,
];

/// Connects many fake Envoys to an xDS server, changes the mesh, and measures.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask load")]
struct Cli {
    /// A server that runs already. Without it, istiod is built and started.
    #[arg(long)]
    server: Option<SocketAddr>,
    /// The process of that server, for its memory and CPU time.
    #[arg(long, requires = "server")]
    pid: Option<u32>,
    /// The folder that the server reads; the mesh is written there. A server that runs already and
    /// has none is only connected to.
    #[arg(long)]
    config: Option<PathBuf>,
    /// An environment variable of the istiod that is started, as NAME=VALUE.
    #[arg(long, value_name = "NAME=VALUE", value_parser = variable)]
    env: Vec<(String, String)>,
    /// The istiod to start, instead of one that is built.
    #[arg(long, conflicts_with = "server")]
    istiod: Option<PathBuf>,
    /// What services are written as.
    #[arg(long, value_enum, default_value_t)]
    services_as: Form,
    /// Services of the mesh.
    #[arg(long, default_value_t = 1000)]
    services: usize,
    /// Endpoints of each service.
    #[arg(long, default_value_t = 2)]
    endpoints: usize,
    /// Kinds of proxies.
    #[arg(long, default_value_t = 10)]
    classes: usize,
    /// Connected proxies.
    #[arg(long, default_value_t = 1000)]
    connections: usize,
    /// How many of a hundred proxies speak delta; the others speak SotW.
    #[arg(long, default_value_t = 100)]
    delta: usize,
    /// How many proxies connect in a second.
    #[arg(long, default_value_t = 1000)]
    connect_rate: usize,
    /// Proxies that wait a second before each acknowledgement.
    #[arg(long, default_value_t = 0)]
    slow: usize,
    /// Proxies that reject all listeners.
    #[arg(long, default_value_t = 0)]
    nack: usize,
    /// Node files (JSON, as in the conformance corpus) to connect as, in turn.
    #[arg(long)]
    node: Vec<PathBuf>,
    /// What changes, in order; by default everything that can change.
    #[arg(long, value_delimiter = ',')]
    churn: Option<Vec<Churn>>,
    /// How often each change is made.
    #[arg(long, default_value_t = 10)]
    changes: usize,
    /// Instead: one namespace with so many changes a second beside 999 quiet ones, how long the quiet
    /// ones wait, with the throttle and without it.
    #[arg(long, value_name = "CHANGES", conflicts_with_all = ["server", "config", "churn", "node"])]
    noisy: Option<u32>,
    /// Instead: for so many seconds, two servers are asked who has which configuration, and every answer
    /// is compared with what the clients have. Fails when one is false or late.
    #[arg(long, value_name = "SECONDS", conflicts_with_all = ["server", "config", "churn", "node", "noisy"])]
    truth: Option<u64>,
    /// Writes the results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

fn variable(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("it is not NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    if let Some(istiod) = cli.istiod {
        use_binary(istiod);
    }
    let everything = match (cli.server, &cli.config) {
        (Some(_), None) => &[][..],
        (Some(_), Some(_)) => &ALL[..ALL.len() - 1],
        (None, _) => &ALL,
    };
    let options = Options {
        server: cli.server,
        pid: cli.pid,
        config: cli.config,
        environment: cli.env,
        form: cli.services_as,
        services: cli.services,
        endpoints: cli.endpoints,
        classes: cli.classes,
        connections: cli.connections,
        delta_percent: cli.delta,
        connects_per_second: cli.connect_rate,
        slow: cli.slow,
        rejecting: cli.nack,
        nodes: cli.node,
        churn: cli.churn.unwrap_or_else(|| everything.to_vec()),
        changes: cli.changes,
    };
    let json = cli.json.as_deref();
    if let Some(seconds) = cli.truth {
        let truth = load::truth(&options, Duration::from_secs(seconds)).await?;
        tell(&truth, json)?;
        anyhow::ensure!(truth.holds(), "not every answer was true, and in time");
        return Ok(());
    }
    match cli.noisy {
        Some(changes) => tell(&load::noisy(&options, changes).await?, json),
        None => tell(&load::run(&options).await?, json),
    }
}

/// Prints results, and writes them as JSON if that is asked for.
fn tell(results: &(impl Display + Serialize), file: Option<&Path>) -> anyhow::Result<()> {
    println!("{results}");
    if let Some(file) = file {
        let json = serde_json::to_string_pretty(results).context("write JSON")?;
        std::fs::write(file, json).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}

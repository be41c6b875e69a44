//! `cargo xtask load`: how fast an xDS server reaches a fleet of fake Envoys, and what it costs.
#![expect(clippy::print_stdout, reason = "a command line tool")]

use std::net::SocketAddr;
use std::path::PathBuf;

use anyhow::Context as _;
use clap::Parser;
use tests::load::{self, Churn, Options};

/// Connects many fake Envoys to an xDS server, changes the mesh, and measures.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask load")]
struct Cli {
    /// A server that runs already. Without it, istiod is built and started.
    #[arg(long, requires = "config")]
    server: Option<SocketAddr>,
    /// The process of that server, for its memory and CPU time.
    #[arg(long, requires = "server")]
    pid: Option<u32>,
    /// The folder that that server reads; the mesh is written there.
    #[arg(long, requires = "server")]
    config: Option<PathBuf>,
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
    /// Proxies that wait a second before each acknowledgement.
    #[arg(long, default_value_t = 0)]
    slow: usize,
    /// Proxies that reject all listeners.
    #[arg(long, default_value_t = 0)]
    nack: usize,
    /// Node files (JSON, as in the conformance corpus) to connect as, in turn.
    #[arg(long)]
    node: Vec<PathBuf>,
    /// What changes, in order.
    #[arg(
        long,
        value_delimiter = ',',
        default_value = "endpoint-flap,virtual-service,service-entry,restart"
    )]
    churn: Vec<Churn>,
    /// How often each change is made.
    #[arg(long, default_value_t = 10)]
    changes: usize,
    /// Writes the results as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let cli = Cli::parse();
    let options = Options {
        server: cli.server,
        pid: cli.pid,
        config: cli.config,
        services: cli.services,
        endpoints: cli.endpoints,
        classes: cli.classes,
        connections: cli.connections,
        delta_percent: cli.delta,
        slow: cli.slow,
        rejecting: cli.nack,
        nodes: cli.node,
        churn: cli.churn,
        changes: cli.changes,
    };
    let report = load::run(&options).await?;
    println!("{report}");
    if let Some(file) = &cli.json {
        let json = serde_json::to_string_pretty(&report).context("write JSON")?;
        std::fs::write(file, json).with_context(|| format!("write {}", file.display()))?;
    }
    Ok(())
}

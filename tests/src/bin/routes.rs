//! `cargo xtask routes`: how long a new route takes from the write of its file to the first request that a real
//! Envoy routes by it.
#![expect(clippy::print_stdout, reason = "a command line tool")]

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use serde_json::{Value, json};
use tests::{
    control_plane::{ControlPlane, Setup, use_binary},
    envoy::{self, Envoy},
    http::{self, Workload, free_port},
    process::until,
};
use tokio::time::{Instant, sleep};

/// Longest time until the first route is there, with many hosts.
const START: Duration = Duration::from_mins(2);
/// Longest time of one change.
const LONGEST: Duration = Duration::from_secs(20);
/// Rest between two changes.
const REST: Duration = Duration::from_millis(300);
/// Time between two looks whether a route is there.
const POLL: Duration = Duration::from_millis(1);

/// A gateway with many hosts, each with its VirtualService, before a real Envoy; routes are added one by one.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask routes")]
struct Cli {
    /// Hosts of the gateway.
    #[arg(long, default_value_t = 5000)]
    hosts: usize,
    /// Routes that are added and measured.
    #[arg(long, default_value_t = 50)]
    changes: usize,
    /// Quiet time of the debounce.
    #[arg(long, default_value = "10ms")]
    debounce: String,
    /// The istiod to start, instead of one that is built.
    #[arg(long)]
    istiod: Option<PathBuf>,
    /// Where the configuration and the logs are; a temporary folder unless given.
    #[arg(long)]
    folder: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    let cli = Cli::parse();
    if let Some(path) = &cli.istiod {
        use_binary(path);
    }
    let temporary = tempfile::Builder::new().prefix("routes-").tempdir()?;
    let folder = cli.folder.as_deref().unwrap_or(temporary.path());
    let config = folder.join("config");
    fs::create_dir_all(&config)?;
    let shop = Workload::start("shop", SocketAddr::from((Ipv4Addr::LOCALHOST, 0)), None).await?;
    let port = free_port()?;
    write(
        &config,
        "gateway.json",
        &gateway(cli.hosts, port, shop.address().port()),
    )?;
    let hosts: Vec<Value> = (0..cli.hosts)
        .map(|n| route(&format!("h{n}"), "/"))
        .collect();
    write(&config, "routes.json", &hosts)?;
    write(&config, "changing.json", &[route("new", "/0")])?;

    let mut setup = Setup::new(&config, folder)?;
    setup
        .environment
        .push(("PILOT_DEBOUNCE_AFTER".to_owned(), cli.debounce.clone()));
    let istiod = ControlPlane::start(setup).await?;
    let node = json!({
        "id": "router~127.0.0.7~edge-0.edge~edge.svc.cluster.local",
        "cluster": "edge.edge",
        "metadata": {"NAMESPACE": "edge", "SERVICE_ACCOUNT": "edge", "LABELS": {"app": "edge"}},
    });
    let file = folder.join("node.json");
    fs::write(&file, node.to_string())?;
    let mut envoy = Envoy::start(&envoy::Setup {
        name: "router".to_owned(),
        node: file,
        xds: istiod.setup().xds,
        delta: true,
        folder: folder.to_owned(),
    })
    .await?;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    until("the first route", START, async || {
        routed(address, "/0").await
    })
    .await?;

    let mut times = Vec::with_capacity(cli.changes);
    for change in 1..=cli.changes {
        sleep(REST).await;
        let path = format!("/{change}");
        let text = list(&[route("new", &path)]);
        let new = folder.join("new.json");
        fs::write(&new, text)?;
        let begun = Instant::now();
        fs::rename(&new, config.join("changing.json"))?;
        while routed(address, &path).await.is_err() {
            ensure!(begun.elapsed() < LONGEST, "the route {path} does not come");
            // Whoever asks all the time takes the processor from who is asked.
            sleep(POLL).await;
        }
        times.push(begun.elapsed());
    }
    times.sort_unstable();
    let at = |share: usize| {
        let place = (times.len() * share / 100).min(times.len().saturating_sub(1));
        times
            .get(place)
            .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    println!(
        "{} hosts, {} changes, debounce {}: from the file to the first routed request \
         P50 {:.1} ms, P90 {:.1} ms, longest {:.1} ms",
        cli.hosts,
        times.len(),
        cli.debounce,
        at(50),
        at(90),
        at(100),
    );
    // What no control plane can do anything about: Envoy takes in the whole route configuration.
    let path = "/stats?filter=rds.*update_duration";
    let stats = http::get(envoy.admin_address(), "envoy", path, &[]).await?;
    println!("of that Envoy's main thread, in ms: {}", stats.ok()?.trim());
    let rejections = envoy.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    envoy.kill().await
}

/// Sees that a request for a path of the changing host is routed.
async fn routed(address: SocketAddr, path: &str) -> Result<()> {
    let answer = http::get(address, "new.test", path, &[]).await?.ok()?;
    ensure!(answer == "shop", "{answer:?} answers");
    Ok(())
}

/// The gateway with all its hosts, and the service behind.
fn gateway(hosts: usize, port: u16, target: u16) -> Vec<Value> {
    let hosts: Vec<String> = (0..hosts)
        .map(|n| format!("h{n}.test"))
        .chain(["new.test".to_owned()])
        .collect();
    let server =
        json!({"port": {"number": port, "protocol": "HTTP", "name": "http"}, "hosts": hosts});
    vec![
        object(
            "Gateway",
            "edge",
            &json!({"selector": {"app": "edge"}, "servers": [server]}),
        ),
        object(
            "ServiceEntry",
            "shop",
            &json!({
                "hosts": ["shop.internal"], "location": "MESH_EXTERNAL", "resolution": "STATIC",
                "ports": [{"number": 80, "name": "p", "protocol": "HTTP"}],
                "endpoints": [{"address": "127.0.0.1", "ports": {"p": target}}],
            }),
        ),
    ]
}

/// A VirtualService of one host with one path.
fn route(name: &str, path: &str) -> Value {
    let to = json!([{"destination": {"host": "shop.internal", "port": {"number": 80}}}]);
    object(
        "VirtualService",
        name,
        &json!({
            "hosts": [format!("{name}.test")], "gateways": ["edge"],
            "http": [{"match": [{"uri": {"exact": path}}], "route": to}],
        }),
    )
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": kind,
        "metadata": {"name": name, "namespace": "edge"}, "spec": spec,
    })
}

fn list(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

fn write(config: &Path, name: &str, objects: &[Value]) -> Result<()> {
    fs::write(config.join(name), list(objects)).with_context(|| format!("write {name}"))
}

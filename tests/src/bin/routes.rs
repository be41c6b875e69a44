//! `cargo xtask routes`: how long a new route takes from the write of its file to the first request that a real
//! Envoy routes by it; and, before there is an Envoy, to the response that a client of its class gets.
#![expect(clippy::print_stdout, reason = "a command line tool")]

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use envoy_types::pb::envoy::{
    config::core::v3::Node,
    service::discovery::v3::{
        DeltaDiscoveryRequest, DeltaDiscoveryResponse,
        aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
    },
};
use serde_json::{Value, json};
use tests::{
    control_plane::{ControlPlane, Setup, use_binary},
    envoy::{self, Envoy},
    http::{self, Workload, free_port},
    process::until,
};
use tokio::{
    sync::mpsc,
    time::{Instant, sleep, timeout},
};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Streaming, transport::Endpoint};

/// Longest time until the first route is there, with many hosts.
const START: Duration = Duration::from_mins(2);
/// Longest time of one change.
const LONGEST: Duration = Duration::from_secs(20);
/// Rest between two changes.
const REST: Duration = Duration::from_millis(300);
/// The type of route configurations.
const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
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
    let mut client = Client::connect(istiod.setup().xds, &node, &format!("http.{port}")).await?;
    let mut changes = Changes::new(folder, &config);
    let mut times = Vec::with_capacity(cli.changes);
    for _ in 0..cli.changes {
        sleep(REST).await;
        let (_, begun) = changes.next()?;
        client.receive().await?;
        times.push(begun.elapsed());
    }
    let what = "from the file to the route configuration at a client";
    report(&cli, what, &mut times);
    drop(client);

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
        routed(address, &changes.path()).await
    })
    .await?;

    times.clear();
    for _ in 0..cli.changes {
        sleep(REST).await;
        let (path, begun) = changes.next()?;
        while routed(address, &path).await.is_err() {
            ensure!(begun.elapsed() < LONGEST, "the route {path} does not come");
            // Whoever asks all the time takes the processor from who is asked.
            sleep(POLL).await;
        }
        times.push(begun.elapsed());
    }
    report(
        &cli,
        "from the file to the first routed request",
        &mut times,
    );
    // What no control plane can do anything about: Envoy takes in the whole route configuration.
    let path = "/stats?filter=rds.*update_duration";
    let stats = http::get(envoy.admin_address(), "envoy", path, &[]).await?;
    println!("of that Envoy's main thread, in ms: {}", stats.ok()?.trim());
    let rejections = envoy.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    envoy.kill().await
}

/// Prints what changes took.
fn report(cli: &Cli, what: &str, times: &mut [Duration]) {
    times.sort_unstable();
    let at = |share: usize| {
        let place = (times.len() * share / 100).min(times.len().saturating_sub(1));
        times
            .get(place)
            .map_or(f64::NAN, |time| time.as_secs_f64() * 1e3)
    };
    println!(
        "{} hosts, {} changes, debounce {}: {what} P50 {:.1} ms, P90 {:.1} ms, longest {:.1} ms",
        cli.hosts,
        times.len(),
        cli.debounce,
        at(50),
        at(90),
        at(100),
    );
}

/// One host's VirtualService, which is replaced again and again.
struct Changes<'a> {
    folder: &'a Path,
    config: &'a Path,
    count: usize,
}

impl<'a> Changes<'a> {
    const fn new(folder: &'a Path, config: &'a Path) -> Self {
        Self {
            folder,
            config,
            count: 0,
        }
    }

    /// The path that is routed now.
    fn path(&self) -> String {
        format!("/{}", self.count)
    }

    /// Routes another path; says which, and since when the file is there.
    fn next(&mut self) -> Result<(String, Instant)> {
        self.count += 1;
        let path = self.path();
        let new = self.folder.join("new.json");
        fs::write(&new, list(&[route("new", &path)]))?;
        let begun = Instant::now();
        fs::rename(&new, self.config.join("changing.json"))?;
        Ok((path, begun))
    }
}

/// A client of the gateway's class that asks for its route configuration alone.
struct Client {
    requests: mpsc::Sender<DeltaDiscoveryRequest>,
    responses: Streaming<DeltaDiscoveryResponse>,
}

impl Client {
    /// Connects, and takes the first response.
    async fn connect(address: SocketAddr, node: &Value, name: &str) -> Result<Self> {
        let channel = Endpoint::from_shared(format!("http://{address}"))?
            .connect()
            .await?;
        let mut stub =
            AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        let (requests, receiver) = mpsc::channel(1);
        requests
            .send(DeltaDiscoveryRequest {
                node: Some(envoy_json::json::typed_from_json::<Node>(
                    node,
                    envoy_json::json::Unknown::Refuse,
                )?),
                type_url: ROUTES.to_owned(),
                resource_names_subscribe: vec![name.to_owned()],
                ..DeltaDiscoveryRequest::default()
            })
            .await?;
        let call = stub.delta_aggregated_resources(ReceiverStream::new(receiver));
        let responses = call.await?.into_inner();
        let mut client = Self {
            requests,
            responses,
        };
        client.receive().await?;
        Ok(client)
    }

    /// Waits for the next response, and accepts it.
    async fn receive(&mut self) -> Result<()> {
        let response = timeout(LONGEST, self.responses.message()).await??;
        let response = response.context("the stream ended")?;
        ensure!(response.resources.len() == 1, "one resource changes");
        let accepted = DeltaDiscoveryRequest {
            type_url: ROUTES.to_owned(),
            response_nonce: response.nonce,
            ..DeltaDiscoveryRequest::default()
        };
        Ok(self.requests.send(accepted).await?)
    }
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

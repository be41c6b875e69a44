//! HTTP ports: readiness, version, metrics and what the server sees (observability §1).

mod serve;

use std::{net::SocketAddr, sync::Arc, time::Duration};

use anyhow::Context as _;
use axum::{Json, Router, extract::State, http::StatusCode, response::IntoResponse, routing::get};
use generators::Mesh;
use pushctx::Reader;
use security::AuthorityStore;
use serde_json::{Value, json};
use tokio::{
    net::{TcpListener, TcpSocket},
    sync::watch,
    time::Instant,
};
use xds::Server;

pub(crate) use self::serve::serve;
use crate::{
    access::{Access, Audience},
    cluster::Cluster,
    discovery::Gate,
    distribution::{Distribution, api},
    metrics::Metrics,
    shards, tables,
    throttling::throttlez,
    tls::serve::clock,
};

/// What the HTTP ports show.
#[derive(Clone, Debug)]
pub(crate) struct Shown {
    /// The distribution ledger.
    pub distribution: Distribution,
    /// Metrics.
    pub metrics: Metrics,
    /// Whether proxies are served.
    pub ready: watch::Receiver<bool>,
    /// The xDS server.
    pub server: Server<Mesh>,
    /// The current snapshot.
    pub snapshots: Reader,
    /// The namespace throttle.
    pub throttle: Gate,
    /// The cluster, if one is read.
    pub cluster: Option<Cluster>,
    /// When the process started.
    pub started: Instant,
    /// Who may see what.
    pub access: Access,
    /// The authority, if there is a secure port.
    pub authority: Option<Arc<AuthorityStore>>,
}

/// Paths of the port for readiness.
pub(crate) fn readiness(shown: Shown) -> Router {
    let distribution = api::routes(&shown.distribution, &shown.throttle, &shown.access, false);
    Router::new()
        .route("/ready", get(ready))
        .merge(debug(&shown.access))
        .with_state(Arc::new(shown))
        .merge(distribution)
}

/// Paths of the port for monitoring.
pub(crate) fn monitoring(shown: Shown) -> Router {
    let distribution = api::routes(&shown.distribution, &shown.throttle, &shown.access, true);
    let metrics = Router::new().route("/metrics", get(metrics));
    Router::new()
        .route("/version", get(version))
        .merge(shown.access.guard_metrics(metrics))
        .merge(debug(&shown.access))
        .with_state(Arc::new(shown))
        .merge(distribution)
}

/// Pages for those who see everything.
fn debug(access: &Access) -> Router<Arc<Shown>> {
    if !access.has_debug() {
        return Router::new();
    }
    let pages = Router::new()
        .route("/debug/syncz", get(syncz))
        .route("/debug/mesh", get(mesh))
        .route("/debug/throttlez", get(throttle))
        .route("/debug/sourcez", get(sourcez))
        .route("/debug/endpointShardz", get(endpoint_shards))
        .route("/debug/clusterz", get(clusterz));
    access.guard(pages, Audience::Whole)
}

/// Connections that may wait to be accepted: after a restart all proxies come at once. What is over
/// it is dropped silently, and waits a second and more. Linux takes 4096 unless told otherwise.
const BACKLOG: u32 = 4096;

/// Binds an address.
///
/// # Errors
/// When it is taken or not ours.
pub(crate) fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let listen = || {
        let socket = if address.is_ipv4() {
            TcpSocket::new_v4()?
        } else {
            TcpSocket::new_v6()?
        };
        socket.set_reuseaddr(true)?;
        // Accepted connections inherit it: a push that waits for acknowledgements of its first
        // segments is 40 ms late.
        socket.set_nodelay(true)?;
        socket.bind(address)?;
        socket.listen(BACKLOG)
    };
    listen().with_context(|| format!("listen on {address}"))
}

async fn ready(State(shown): State<Arc<Shown>>) -> StatusCode {
    if *shown.ready.borrow() {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    }
}

async fn version() -> String {
    format!("{}-unknown-Clean\n", env!("CARGO_PKG_VERSION"))
}

async fn metrics(State(shown): State<Arc<Shown>>) -> impl IntoResponse {
    let snapshot = shown.snapshots.snapshot();
    shown.metrics.patches.collect(snapshot.patch_outcomes());
    if let Some(cluster) = &shown.cluster {
        shown.metrics.tables.collect(cluster);
    }
    if let Some(store) = &shown.authority {
        let (certificates, now) = (&shown.metrics.certificates, clock());
        certificates.collect_authority(&store.current(), now);
    }
    let not_served = snapshot.secret_errors().take();
    shown.metrics.certificates.secrets_not_served(not_served);
    shown.distribution.collect();
    match shown.metrics.text(uptime(&shown)) {
        Ok(text) => (StatusCode::OK, text),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn uptime(shown: &Shown) -> Duration {
    shown.started.elapsed()
}

/// What every proxy asked for and has acknowledged.
async fn syncz(State(shown): State<Arc<Shown>>) -> Json<Value> {
    let streams = shown.server.streams();
    let list = streams.iter().map(|stream| {
        let types = stream.subscriptions.iter().map(|s| {
            let entry = json!({
                "sent": s.nonce_sent,
                "acked": s.nonce_acked,
                "resources": s.resources,
                "lastError": s.error,
            });
            (s.type_url.to_string(), entry)
        });
        json!({
            "proxy": &*stream.info.node,
            "stream": stream.info.id,
            "protocol": stream.info.protocol.to_string(),
            "resources": types.collect::<serde_json::Map<_, _>>(),
        })
    });
    Json(list.collect())
}

/// The effective mesh configuration.
async fn mesh(State(shown): State<Arc<Shown>>) -> Json<Value> {
    let snapshot = shown.snapshots.snapshot();
    Json(serde_json::to_value(&**snapshot.mesh()).unwrap_or_default())
}

/// How the tables of clusters are.
async fn sourcez(State(shown): State<Arc<Shown>>) -> Json<Value> {
    Json(tables::sourcez(shown.cluster.as_ref()))
}

/// All endpoints.
async fn endpoint_shards(State(shown): State<Arc<Shown>>) -> Json<Value> {
    Json(shards::endpoint_shards(shown.snapshots.snapshot().state()))
}

/// The remote clusters.
async fn clusterz(State(shown): State<Arc<Shown>>) -> Json<Value> {
    Json(tables::clusterz(shown.cluster.as_ref()))
}

/// The throttle's settings, and the namespaces that are throttled.
async fn throttle(State(shown): State<Arc<Shown>>) -> Result<Json<Value>, StatusCode> {
    let status = shown
        .throttle
        .status()
        .await
        .ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    Ok(Json(throttlez(&status)))
}

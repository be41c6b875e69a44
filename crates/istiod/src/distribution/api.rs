//! The HTTP interface. `docs/distribution-api.json` describes it.
//!
//! What it tells is who runs where and what they have, so it is for operators: it answers who asks
//! from the same host, which is how `kubectl port-forward` and `kubectl exec` come, and the other
//! replicas.

use std::{fmt::Write as _, net::SocketAddr};

use axum::{
    Json, Router,
    extract::{ConnectInfo, Path, Query, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;

use super::{
    Distribution, Key,
    answer::{ConfigAnswer, MeshAnswer, ProofAnswer, ProofStep, ProxiesAnswer, Standing},
    ask::Wanted,
    page,
};

/// The first part of all paths.
pub(crate) const BASE: &str = "/debug/distribution";

/// The paths, for a port; one of them has the page for people too.
pub(crate) fn routes(distribution: Distribution, with_page: bool) -> Router {
    let mut router = Router::new();
    if with_page {
        router = router
            .route("/status", get(page::page))
            .route("/status/live", get(page::live));
    }
    router
        .route(BASE, get(mesh))
        .route(
            &format!("{BASE}/configs/{{kind}}/{{namespace}}/{{name}}"),
            get(config),
        )
        .route(
            &format!("{BASE}/proofs/{{kind}}/{{namespace}}/{{name}}"),
            get(proof),
        )
        .route(&format!("{BASE}/proxies"), get(proxies))
        .route_layer(middleware::from_fn_with_state(distribution.clone(), guard))
        .with_state(distribution)
}

/// Lets those through who may ask.
async fn guard(
    State(distribution): State<Distribution>,
    ConnectInfo(peer): ConnectInfo<SocketAddr>,
    request: Request,
    next: Next,
) -> Response {
    let address = peer.ip().to_canonical();
    let allowed = address.is_loopback() || {
        let peers = distribution.peers();
        // A replica may be new.
        peers.includes(address) || {
            peers.look_up().await;
            peers.includes(address)
        }
    };
    if allowed {
        next.run(request).await
    } else {
        (
            StatusCode::FORBIDDEN,
            "only from this host or another replica\n",
        )
            .into_response()
    }
}

/// Which clients an answer lists.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Listed {
    /// All.
    All,
    /// Those that do not have it.
    #[default]
    Behind,
    /// None: the counts are enough.
    None,
}

impl Listed {
    /// Leaves out those that are not to be listed.
    fn keep(self, answer: &mut ConfigAnswer) {
        match self {
            Self::All => {}
            Self::Behind => answer.proxies.retain(|p| p.state != Standing::Has),
            Self::None => answer.proxies.clear(),
        }
    }
}

#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ConfigQuery {
    hash: Option<String>,
    generation: Option<i64>,
    #[serde(default)]
    proxies: Listed,
    #[serde(default)]
    local: bool,
}

/// What was asked cannot be answered.
pub(super) struct Refusal(StatusCode, String);

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        (self.0, format!("{}\n", self.1)).into_response()
    }
}

fn bad(error: impl std::fmt::Display) -> Refusal {
    Refusal(StatusCode::BAD_REQUEST, error.to_string())
}

fn unknown(key: &Key) -> Refusal {
    Refusal(StatusCode::NOT_FOUND, format!("{key} is not known"))
}

/// `-` stands for no namespace, since a path has no empty parts.
fn key_of((kind, namespace, name): (String, String, String)) -> Result<Key, Refusal> {
    let namespace = if namespace == "-" { "" } else { &*namespace };
    Key::new(&kind, namespace, &name).map_err(bad)
}

/// The path of a configuration.
pub(super) fn path_of(key: &Key) -> String {
    let namespace = match key.namespace() {
        "" => "-".to_owned(),
        namespace => escape(namespace),
    };
    format!(
        "{BASE}/configs/{}/{namespace}/{}",
        key.kind(),
        escape(key.name())
    )
}

async fn config(
    State(distribution): State<Distribution>,
    Path(path): Path<(String, String, String)>,
    Query(query): Query<ConfigQuery>,
) -> Result<Json<ConfigAnswer>, Refusal> {
    let key = key_of(path)?;
    let hash = query.hash.as_deref().map(str::parse).transpose();
    let wanted = Wanted {
        hash: hash.map_err(bad)?,
        generation: query.generation,
    };
    let asked = (key.clone(), wanted.clone());
    let local = on_pool(distribution.clone(), move |d| d.config(&asked.0, &asked.1)).await?;
    if query.local {
        let mut answer = local.map_err(|_| unknown(&key))?;
        query.proxies.keep(&mut answer);
        return Ok(Json(answer));
    }
    // All replicas are asked for the same content.
    let hash = local.as_ref().ok().and_then(|answer| answer.hash.clone());
    let hash = wanted.hash.map(|hash| hash.to_string()).or(hash);
    let hash = hash.map(|hash| format!("&hash={hash}")).unwrap_or_default();
    let generation = query.generation.map(|g| format!("&generation={g}"));
    let path = format!(
        "{}?proxies=all{hash}{}",
        path_of(&key),
        generation.unwrap_or_default()
    );
    let own = distribution.0.replica.clone();
    let mut heard = distribution.peers().ask::<ConfigAnswer>(&own, &path).await;
    let mut answer = match local {
        Ok(answer) => answer,
        Err(_) if heard.answers.is_empty() => return Err(unknown(&key)),
        Err(_) => {
            let mut answer = heard.answers.remove(0);
            answer
                .replicas
                .insert(0, distribution.replica(distribution.0.server.connected()));
            answer
        }
    };
    answer.merge(heard);
    query.proxies.keep(&mut answer);
    Ok(Json(answer))
}

#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProxiesQuery {
    /// A part of the node's id.
    #[serde(default)]
    proxy: String,
    #[serde(default)]
    local: bool,
}

async fn proxies(
    State(distribution): State<Distribution>,
    Query(query): Query<ProxiesQuery>,
) -> Result<Json<ProxiesAnswer>, Refusal> {
    let part = query.proxy.clone();
    let mut answer = on_pool(distribution.clone(), move |d| d.proxies(&part)).await?;
    if !query.local {
        let own = distribution.0.replica.clone();
        let path = format!("{BASE}/proxies?proxy={}", escape(&query.proxy));
        answer.merge(distribution.peers().ask(&own, &path).await);
    }
    Ok(Json(answer))
}

#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct MeshQuery {
    #[serde(default)]
    local: bool,
}

async fn mesh(
    State(distribution): State<Distribution>,
    Query(query): Query<MeshQuery>,
) -> Result<Json<MeshAnswer>, Refusal> {
    let mut answer = on_pool(distribution.clone(), Distribution::mesh).await?;
    if !query.local {
        let own = distribution.0.replica.clone();
        let path = format!("{BASE}?");
        answer.merge(distribution.peers().ask(&own, &path).await);
    }
    Ok(Json(answer))
}

/// Proves what the published state says of a configuration.
async fn proof(
    State(distribution): State<Distribution>,
    Path(path): Path<(String, String, String)>,
) -> Result<Json<ProofAnswer>, Refusal> {
    let key = key_of(path)?;
    let books = distribution.0.books.lock();
    let proof = books.prove(&key).ok_or_else(|| unknown(&key))?;
    let hash = books.current(&key).ok_or_else(|| unknown(&key))?;
    let steps = proof.steps.iter().map(|step| ProofStep {
        bitmap: step.bitmap,
        siblings: step.siblings.iter().map(ToString::to_string).collect(),
    });
    Ok(Json(ProofAnswer {
        root: books.root().to_string(),
        key: key.to_string(),
        hash: hash.to_string(),
        steps: steps.collect(),
    }))
}

/// Asks on the pool for CPU work: an answer takes milliseconds in a large mesh.
pub(super) async fn on_pool<T: Send + 'static>(
    distribution: Distribution,
    ask: impl FnOnce(&Distribution) -> T + Send + 'static,
) -> Result<T, Refusal> {
    let (sender, receiver) = tokio::sync::oneshot::channel();
    rayon::spawn(move || {
        // Nobody waits any more when the connection has gone.
        sender.send(ask(&distribution)).ok();
    });
    let failed = |_| Refusal(StatusCode::INTERNAL_SERVER_ERROR, "no answer".to_owned());
    receiver.await.map_err(failed)
}

/// Writes a text for use in a query.
pub(super) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            write!(escaped, "%{byte:02X}").ok();
        }
    }
    escaped
}

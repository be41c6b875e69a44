//! The HTTP interface. `docs/distribution-api.json` describes it.
//!
//! What it tells is who runs where and what they have, so it is for operators, for the other replicas,
//! and, as far as it is about their own namespace, for workloads ([`crate::access`]).

use std::{fmt::Write as _, sync::Arc};

use axum::{
    Extension, Json, Router,
    extract::{Path, Query, State},
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};
use serde::Deserialize;

use super::{
    Distribution, Key,
    answer::{ConfigAnswer, Counts, MeshAnswer, ProofAnswer, ProofStep, ProxiesAnswer, Standing},
    ask::Wanted,
    page,
};
use crate::{
    access::{Access, Audience, Sight},
    discovery::Gate,
};

/// The first part of all paths.
pub(crate) const BASE: &str = "/debug/distribution";

/// The paths, for a port; one of them has the page for people too.
///
/// What is published holds a [`Distribution`], so that must not hold the throttle, which feeds it:
/// neither would ever end.
pub(crate) fn routes(
    distribution: &Distribution,
    throttle: &Gate,
    access: &Access,
    with_page: bool,
) -> Router {
    if !access.has_debug() {
        return Router::new();
    }
    let mut router = Router::new();
    if with_page {
        let pages = Router::new()
            .route("/status", get(page::page))
            .route("/status/live", get(page::live));
        router = router.merge(access.guard(pages, Audience::Whole));
    }
    let pages = Router::new()
        .route(BASE, get(mesh))
        .route(
            &format!("{BASE}/configs/{{kind}}/{{namespace}}/{{name}}"),
            get(config),
        )
        .route(
            &format!("{BASE}/proofs/{{kind}}/{{namespace}}/{{name}}"),
            get(proof),
        )
        .route(&format!("{BASE}/proxies"), get(proxies));
    router
        .merge(access.guard(pages, Audience::Own))
        .layer(Extension(throttle.clone()))
        .with_state(distribution.clone())
}

/// What the caller of a page may see of it.
struct Shown(Sight);

impl Shown {
    /// The namespace whose proxies are shown: what the caller wants and may see; all without one.
    fn proxies_of(&self, wanted: Option<Arc<str>>) -> Result<Option<Arc<str>>, Refusal> {
        match (&self.0, wanted) {
            (Sight::Everything, wanted) => Ok(wanted),
            (Sight::Namespace(own), wanted) if wanted.as_ref().is_none_or(|ns| ns == own) => {
                Ok(Some(own.clone()))
            }
            (Sight::Namespace(own), _) => Err(foreign(own)),
        }
    }

    /// Refuses a configuration of another namespace.
    fn check(&self, key: &Key) -> Result<(), Refusal> {
        match &self.0 {
            Sight::Namespace(own) if **own != *key.namespace() => Err(foreign(own)),
            Sight::Everything | Sight::Namespace(_) => Ok(()),
        }
    }
}

fn foreign(own: &str) -> Refusal {
    let told = format!("identities of namespace {own} see only what is in it");
    Refusal(StatusCode::FORBIDDEN, told)
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
    /// Count and list only proxies of this namespace.
    namespace: Option<Arc<str>>,
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
    Extension(sight): Extension<Sight>,
    Path(path): Path<(String, String, String)>,
    Query(query): Query<ConfigQuery>,
) -> Result<Json<ConfigAnswer>, Refusal> {
    let key = key_of(path)?;
    let shown = Shown(sight);
    shown.check(&key)?;
    let namespace = shown.proxies_of(query.namespace)?;
    let hash = query.hash.as_deref().map(str::parse).transpose();
    let wanted = Wanted {
        hash: hash.map_err(bad)?,
        generation: query.generation,
    };
    let asked = (key.clone(), wanted.clone(), namespace.clone());
    let local = on_pool(distribution.clone(), move |d| {
        let mut answer = d.config(&asked.0, &asked.1)?;
        if let Some(namespace) = &asked.2 {
            let own = d.nodes_of(namespace);
            answer.proxies.retain(|proxy| own.contains(&*proxy.proxy));
            answer.counts = Counts::of(&answer.proxies);
        }
        Ok::<_, super::ask::Unknown>(answer)
    })
    .await?;
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
        "{}?proxies=all{hash}{}{}",
        path_of(&key),
        generation.unwrap_or_default(),
        of_namespace(namespace.as_deref())
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

/// The parameter that asks another replica about one namespace only.
fn of_namespace(namespace: Option<&str>) -> String {
    namespace.map_or_else(String::new, |namespace| {
        format!("&namespace={}", escape(namespace))
    })
}

#[derive(Clone, Default, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ProxiesQuery {
    /// A part of the node's id.
    #[serde(default)]
    proxy: String,
    /// Only proxies of this namespace.
    namespace: Option<Arc<str>>,
    #[serde(default)]
    local: bool,
}

async fn proxies(
    State(distribution): State<Distribution>,
    Extension(sight): Extension<Sight>,
    Query(query): Query<ProxiesQuery>,
) -> Result<Json<ProxiesAnswer>, Refusal> {
    let part = query.proxy.clone();
    let namespace = Shown(sight).proxies_of(query.namespace)?;
    let asked = namespace.clone();
    let mut answer = on_pool(distribution.clone(), move |d| {
        let mut answer = d.proxies(&part);
        if let Some(namespace) = &asked {
            let own = d.nodes_of(namespace);
            answer.proxies.retain(|proxy| own.contains(&*proxy.proxy));
        }
        answer
    })
    .await?;
    if !query.local {
        let own = distribution.0.replica.clone();
        let namespace = of_namespace(namespace.as_deref());
        let path = format!("{BASE}/proxies?proxy={}{namespace}", escape(&query.proxy));
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
    Extension(sight): Extension<Sight>,
    Extension(throttle): Extension<Gate>,
    Query(query): Query<MeshQuery>,
) -> Result<Json<MeshAnswer>, Refusal> {
    if let Sight::Namespace(own) = &sight {
        return Err(foreign(own));
    }
    let answer = if query.local {
        distribution.own_mesh(&throttle).await
    } else {
        distribution.whole_mesh(&throttle).await
    };
    answer.map(Json)
}

/// Proves what the published state says of a configuration.
async fn proof(
    State(distribution): State<Distribution>,
    Extension(sight): Extension<Sight>,
    Path(path): Path<(String, String, String)>,
) -> Result<Json<ProofAnswer>, Refusal> {
    let key = key_of(path)?;
    Shown(sight).check(&key)?;
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

//! An API server that only tells of events: it lists by watches and has no history.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use futures::{Stream, StreamExt as _, stream};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::{
    Method, Request, Response, StatusCode,
    body::{Frame, Incoming},
    server::conn::http1,
    service::service_fn,
};
use hyper_util::rt::TokioIo;
use serde_json::{Value, json};
use tokio::{net::TcpListener, sync::watch, task::JoinSet};

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// The lines of one kind's watch, and how many of them are the first list.
#[derive(Default, Debug)]
struct Log {
    lines: Vec<Bytes>,
    listed: usize,
}

#[derive(Default, Debug)]
struct State {
    logs: BTreeMap<String, Log>,
    version: u64,
}

#[derive(Debug)]
struct Shared {
    state: std::sync::Mutex<State>,
    changed: watch::Sender<()>,
}

/// The server; dropping it ends it.
#[derive(Debug)]
pub(crate) struct Api {
    shared: Arc<Shared>,
    kubeconfig: PathBuf,
    _tasks: JoinSet<()>,
}

impl Api {
    /// Starts a server without objects; its kubeconfig goes into `folder`.
    pub(crate) async fn start(folder: &Path) -> Result<Self> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
            .await
            .context("listen")?;
        let server = format!("http://{}", listener.local_addr()?);
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        });
        let kubeconfig = folder.join("kubeconfig");
        fs::write(&kubeconfig, config.to_string()).context("write the kubeconfig")?;
        let shared = Arc::new(Shared {
            state: std::sync::Mutex::default(),
            changed: watch::Sender::new(()),
        });
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, shared.clone()));
        Ok(Self {
            shared,
            kubeconfig,
            _tasks: tasks,
        })
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    /// Tells of an event, to all watches of its kind.
    pub(crate) fn put(&self, plural: &str, mut event: Value) {
        let state = &mut *self.shared.lock();
        state.version += 1;
        event["object"]["metadata"]["resourceVersion"] = state.version.to_string().into();
        let log = state.logs.entry(plural.to_owned()).or_default();
        log.lines.push(line(&event));
        self.shared.changed.send_replace(());
    }

    /// What was told until now is the first list.
    pub(crate) fn open(&self) {
        for log in self.shared.lock().logs.values_mut() {
            log.listed = log.lines.len();
        }
    }
}

impl Shared {
    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    async fn answer(self: Arc<Self>, request: Request<Incoming>) -> Response<Body> {
        let query = request.uri().query().unwrap_or_default();
        let (watches, lists) = (
            query.contains("watch="),
            query.contains("sendInitialEvents"),
        );
        let plural = request.uri().path().rsplit('/').next().unwrap_or_default();
        let plural = plural.to_owned();
        if watches {
            let lines = self.watch(plural, lists);
            let frames = lines.map(|bytes| Ok::<_, Infallible>(Frame::data(bytes)));
            return Response::new(StreamBody::new(frames).boxed_unsync());
        }
        if matches!(*request.method(), Method::GET) {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure",
                "reason": "NotFound", "code": 404, "message": "not found"});
            return answer(StatusCode::NOT_FOUND, status.to_string().into());
        }
        // Whatever is written is as it was sent.
        match request.into_body().collect().await {
            Ok(body) => answer(StatusCode::CREATED, body.to_bytes()),
            Err(_) => answer(StatusCode::BAD_REQUEST, Bytes::new()),
        }
    }

    fn watch(
        self: Arc<Self>,
        plural: String,
        lists: bool,
    ) -> impl Stream<Item = Bytes> + Send + use<> {
        let (first, from) = {
            let state = self.lock();
            let version = state.version.to_string();
            let log = state.logs.get(&plural);
            let listed = log.map_or(0, |log| log.listed);
            let mut first = Vec::new();
            if lists {
                first.extend(
                    log.iter()
                        .flat_map(|log| log.lines[..listed].iter().cloned()),
                );
                let annotations = json!({"k8s.io/initial-events-end": "true"});
                first.push(line(&json!({"type": "BOOKMARK", "object": {
                    "apiVersion": "v1", "kind": "Any",
                    "metadata": {"resourceVersion": version, "annotations": annotations}}})));
            }
            (first, listed)
        };
        let changed = self.changed.subscribe();
        let rest = stream::unfold(
            (self, changed, plural, from),
            |(shared, mut changed, plural, from)| async move {
                loop {
                    changed.borrow_and_update();
                    let next: Vec<Bytes> = {
                        let state = shared.lock();
                        let log = state.logs.get(&plural);
                        let lines = log.and_then(|log| log.lines.get(from..));
                        lines.unwrap_or_default().to_vec()
                    };
                    if !next.is_empty() {
                        let from = from + next.len();
                        let bytes = Bytes::from(next.concat());
                        return Some((bytes, (shared, changed, plural, from)));
                    }
                    changed.changed().await.ok()?;
                }
            },
        );
        stream::iter(first).chain(rest)
    }
}

async fn serve(listener: TcpListener, shared: Arc<Shared>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let shared = shared.clone();
                let service = service_fn(move |request| {
                    let shared = shared.clone();
                    async move { Ok::<_, Infallible>(shared.answer(request).await) }
                });
                let connection = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
                connections.spawn(connection);
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

fn answer(code: StatusCode, body: Bytes) -> Response<Body> {
    let mut response = Response::new(Full::new(body).boxed_unsync());
    *response.status_mut() = code;
    response
}

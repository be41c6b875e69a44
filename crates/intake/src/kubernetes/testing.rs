//! An API server of tests: a small store behind kube's client, with all the faults of a large one.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
    sync::Arc,
};

use bytes::Bytes;
use futures::{Stream, stream};
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use kube::{Client, client::Body};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::watch;

type Answer = Response<UnsyncBoxBody<Bytes, std::io::Error>>;

/// An object's place: plural, namespace, name.
type Place = (String, String, String);

/// What happened to an object.
#[derive(Clone, Debug)]
struct Event {
    version: u64,
    plural: String,
    kind: &'static str,
    object: Value,
}

#[derive(Debug)]
struct State {
    version: u64,
    objects: BTreeMap<Place, Value>,
    log: Vec<Event>,
    /// Versions up to this one are forgotten.
    compacted: u64,
    /// Watches that were opened before this are cut.
    epoch: u64,
    streams: bool,
    down: bool,
    denied: BTreeSet<String>,
    absent: BTreeSet<String>,
    /// Number of requests, by what they ask for: `list services`, `watch pods`, …
    requests: BTreeMap<String, u64>,
    /// Largest page.
    page: usize,
}

/// The server.
#[derive(Clone, Debug)]
pub(super) struct FakeApi {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
}

impl Default for FakeApi {
    fn default() -> Self {
        let state = State {
            version: 1,
            objects: BTreeMap::new(),
            log: Vec::new(),
            compacted: 0,
            epoch: 0,
            streams: true,
            down: false,
            denied: BTreeSet::new(),
            // Until a test says what is defined.
            absent: BTreeSet::from(["customresourcedefinitions".to_owned()]),
            requests: BTreeMap::new(),
            page: usize::MAX,
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: watch::Sender::new(()),
        }
    }
}

impl FakeApi {
    /// A client of this server.
    pub(super) fn client(&self) -> Client {
        let api = self.clone();
        let service = tower::service_fn(move |request: Request<Body>| {
            let answer = api.answer(&request);
            async move { Ok::<_, Infallible>(answer) }
        });
        Client::new(service, "default")
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock());
        self.changed.send_replace(());
    }

    /// Creates or replaces an object.
    pub(super) fn put(&self, plural: &str, mut object: Value) {
        self.change(|state| {
            state.version += 1;
            object["metadata"]["resourceVersion"] = state.version.to_string().into();
            let place = place(plural, &object);
            let known = state.objects.insert(place, object.clone());
            let kind = if known.is_some() { "MODIFIED" } else { "ADDED" };
            state.record(plural, kind, object);
        });
    }

    /// Deletes an object, if it is there.
    pub(super) fn delete(&self, plural: &str, namespace: &str, name: &str) {
        let place = (plural.to_owned(), namespace.to_owned(), name.to_owned());
        self.change(|state| {
            if let Some(mut object) = state.objects.remove(&place) {
                state.version += 1;
                object["metadata"]["resourceVersion"] = state.version.to_string().into();
                state.record(plural, "DELETED", object);
            }
        });
    }

    /// Cuts all connections.
    pub(super) fn cut(&self) {
        self.change(|state| state.epoch += 1);
    }

    /// Forgets all that was before now.
    pub(super) fn compact(&self) {
        self.change(|state| {
            state.compacted = state.version;
            state.log.clear();
        });
    }

    /// Stops to answer, or starts again. Connections are cut.
    pub(super) fn set_down(&self, down: bool) {
        self.change(|state| {
            state.down = down;
            state.epoch += 1;
        });
    }

    /// Streams lists, or is too old for that.
    pub(super) fn set_streams(&self, streams: bool, page: usize) {
        self.change(|state| {
            state.streams = streams;
            state.page = page;
        });
    }

    /// Denies a kind, or allows it.
    pub(super) fn set_denied(&self, plural: &str, denied: bool) {
        self.change(|state| {
            if denied {
                state.denied.insert(plural.to_owned());
            } else {
                state.denied.remove(plural);
            }
        });
    }

    /// Lacks a kind, with all its objects, or has it.
    pub(super) fn set_absent(&self, plural: &str, absent: bool) {
        self.change(|state| {
            if absent {
                state.absent.insert(plural.to_owned());
                state.objects.retain(|(p, ..), _| p != plural);
                state.epoch += 1;
            } else {
                state.absent.remove(plural);
            }
        });
    }

    /// Number of requests of a sort, such as `list pods`.
    pub(super) fn requests(&self, sort: &str) -> u64 {
        self.state.lock().requests.get(sort).copied().unwrap_or(0)
    }

    fn answer(&self, request: &Request<Body>) -> Answer {
        let uri = request.uri();
        let plural = uri.path().rsplit('/').next().unwrap_or_default().to_owned();
        let query: BTreeMap<&str, &str> = uri
            .query()
            .unwrap_or_default()
            .split('&')
            .filter_map(|pair| pair.split_once('='))
            .collect();
        let is_watch = query.contains_key("watch");
        let state = &mut *self.state.lock();
        let sort = if is_watch { "watch" } else { "list" };
        *state
            .requests
            .entry(format!("{sort} {plural}"))
            .or_default() += 1;
        if state.down {
            return refusal(503, "down");
        }
        if state.denied.contains(&plural) {
            return refusal(403, "not allowed");
        }
        if state.absent.contains(&plural) {
            return refusal(404, "no such kind");
        }
        if !is_watch {
            return state.list(&plural, query.get("continue").copied());
        }
        let initial = query.contains_key("sendInitialEvents");
        if initial && !state.streams {
            return refusal(422, "sendInitialEvents is forbidden");
        }
        let from = match query.get("resourceVersion").map(|v| v.parse()) {
            Some(Ok(version)) => version,
            _ => state.version,
        };
        if from < state.compacted {
            let gone = json!({"type": "ERROR", "object": status(410, "too old")});
            return stream_answer(stream::iter([line(&gone)]));
        }
        let mut first = Vec::new();
        if initial {
            for ((p, ..), object) in &state.objects {
                if *p == plural {
                    first.push(line(&json!({"type": "ADDED", "object": object})));
                }
            }
            let annotations = json!({"k8s.io/initial-events-end": "true"});
            let metadata = json!({"resourceVersion": from.to_string(), "annotations": annotations});
            first.push(line(&bookmark(&metadata)));
        }
        let rest = self.events(plural, from, state.epoch);
        stream_answer(futures::StreamExt::chain(stream::iter(first), rest))
    }

    /// The events of a kind after a version, until the connection is cut.
    fn events(
        &self,
        plural: String,
        from: u64,
        epoch: u64,
    ) -> impl Stream<Item = Bytes> + Send + use<> {
        let (state, changed) = (self.state.clone(), self.changed.subscribe());
        stream::unfold(
            (state, changed, from, plural),
            move |(state, mut changed, from, plural)| async move {
                loop {
                    changed.borrow_and_update();
                    let next = {
                        let state = state.lock();
                        if state.epoch != epoch {
                            return None;
                        }
                        let mut log = state.log.iter();
                        log.find(|e| e.version > from && e.plural == plural)
                            .cloned()
                    };
                    if let Some(event) = next {
                        let bytes = line(&json!({"type": event.kind, "object": event.object}));
                        return Some((bytes, (state, changed, event.version, plural)));
                    }
                    changed.changed().await.ok()?;
                }
            },
        )
    }
}

impl State {
    fn record(&mut self, plural: &str, kind: &'static str, object: Value) {
        self.log.push(Event {
            version: self.version,
            plural: plural.to_owned(),
            kind,
            object,
        });
    }

    fn list(&self, plural: &str, token: Option<&str>) -> Answer {
        let skip: usize = token.and_then(|t| t.parse().ok()).unwrap_or(0);
        let of_kind = self.objects.iter().filter(|((p, ..), _)| p == plural);
        let all: Vec<&Value> = of_kind.map(|(_, object)| object).collect();
        let items: Vec<&Value> = all.iter().skip(skip).take(self.page).copied().collect();
        let end = skip + items.len();
        let token = if end < all.len() {
            end.to_string()
        } else {
            String::new()
        };
        let metadata = json!({"resourceVersion": self.version.to_string(), "continue": token});
        let list = json!({"kind": "List", "metadata": metadata, "items": items});
        answer(StatusCode::OK, &list)
    }
}

fn place(plural: &str, object: &Value) -> Place {
    let text = |field: &str| {
        let value = object["metadata"][field].as_str();
        value.unwrap_or_default().to_owned()
    };
    (plural.to_owned(), text("namespace"), text("name"))
}

fn bookmark(metadata: &Value) -> Value {
    let object = json!({"apiVersion": "v1", "kind": "Any", "metadata": metadata});
    json!({"type": "BOOKMARK", "object": object})
}

fn status(code: u16, message: &str) -> Value {
    json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": code, "message": message})
}

fn line(value: &Value) -> Bytes {
    format!("{value}\n").into()
}

fn refusal(code: u16, message: &str) -> Answer {
    answer(StatusCode::from_u16(code).unwrap(), &status(code, message))
}

fn answer(code: StatusCode, body: &Value) -> Answer {
    let body = Full::new(Bytes::from(body.to_string()));
    let body = body.map_err(|never| match never {}).boxed_unsync();
    Response::builder().status(code).body(body).unwrap()
}

fn stream_answer(lines: impl Stream<Item = Bytes> + Send + 'static) -> Answer {
    use futures::StreamExt as _;
    let frames = lines.map(|bytes| Ok(Frame::data(bytes)));
    let body = StreamBody::new(frames).boxed_unsync();
    Response::new(body)
}

//! Is what the ledger says true? Two servers, a fleet that keeps books of what it has accepted, changes
//! all the time, and questions at random moments to either server.
//!
//! A client has a content from the moment that it takes it in until it takes in another one. An answer
//! is *false* when it says that a client has what the client did not have at any time between the
//! question and the answer; it is *late* when it does not say so of a client that has had it for longer
//! than a second, connected to one server all the time. Some clients are slow, some reject what they do not like, some leave again and again
//! and come back to the other server.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use envoy_types::pb::envoy::config::cluster::v3::Cluster;
use intake::Decoder;
use prost::Message as _;
use serde::Serialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::fleet::Fleet;
use super::mesh::Mesh;
use super::report::Times;
use super::{FIRST_CONFIG, Options, STREAMS};
use crate::control_plane::{ControlPlane, Setup};
use crate::http::{self, free_port};

/// Services whose rules are changed and asked about.
const WATCHED: usize = 8;
/// Contents of one service that a client remembers to have had.
const REMEMBERED: usize = 16;
/// What some clients do not like: every content whose number ends so.
const DISLIKED: u32 = 7;
/// How late an answer may be.
const LATE: Duration = Duration::from_secs(1);
/// Between two changes, and between two questions, on average.
const CHANGE: Duration = Duration::from_millis(400);
const QUESTION: Duration = Duration::from_millis(150);

/// When a client had which content.
#[derive(Clone, Copy, Debug)]
struct Span {
    content: u32,
    from: Instant,
    until: Option<Instant>,
}

/// What all clients have had of the services that are watched.
#[derive(Debug, Default)]
pub(super) struct Books {
    /// Indexes of watched services, by the name of the cluster.
    watched: HashMap<String, usize>,
    /// The contents of cluster bodies, by their versions.
    contents: Mutex<HashMap<String, u32>>,
    /// By the id of the node, for each watched service, the newest last.
    spans: Mutex<BTreeMap<String, Vec<VecDeque<Span>>>>,
    /// Since when each client has had an answer to everything that it asked for on its present stream.
    settled: Mutex<BTreeMap<String, Instant>>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Books {
    fn new(clusters: impl IntoIterator<Item = String>) -> Self {
        let watched = clusters.into_iter().enumerate();
        Self {
            watched: watched.map(|(index, name)| (name, index)).collect(),
            ..Self::default()
        }
    }

    /// The content of a cluster: the limit of connections that the rule sets. `None` for clusters that
    /// nobody watches.
    fn content(&self, name: &str, version: &str, body: &[u8]) -> Option<(usize, u32)> {
        let index = *self.watched.get(name)?;
        let known = lock(&self.contents).get(version).copied();
        let content = known.unwrap_or_else(|| {
            let cluster = Cluster::decode(body).unwrap_or_default();
            let breakers = cluster.circuit_breakers.unwrap_or_default();
            let limits = breakers.thresholds.iter().filter_map(|t| t.max_connections);
            let content = limits.map(|limit| limit.value).next().unwrap_or_default();
            lock(&self.contents).insert(version.to_owned(), content);
            content
        });
        Some((index, content))
    }

    /// Whether a client that is hard to please rejects a resource.
    pub(super) fn dislikes(&self, name: &str, version: &str, body: &[u8]) -> bool {
        let content = self.content(name, version, body);
        content.is_some_and(|(_, content)| content % 10 == DISLIKED)
    }

    /// Notes that a client takes in a resource now.
    pub(super) fn takes(&self, node: &str, name: &str, version: &str, body: &[u8]) {
        let Some((index, content)) = self.content(name, version, body) else {
            return;
        };
        let now = Instant::now();
        let mut spans = lock(&self.spans);
        if !spans.contains_key(node) {
            spans.insert(node.to_owned(), vec![VecDeque::new(); self.watched.len()]);
        }
        let Some(spans) = spans.get_mut(node).and_then(|all| all.get_mut(index)) else {
            return;
        };
        if let Some(last) = spans.back_mut() {
            if last.content == content {
                return;
            }
            last.until = Some(now);
        }
        let (from, until) = (now, None);
        spans.push_back(Span {
            content,
            from,
            until,
        });
        if spans.len() > REMEMBERED {
            spans.pop_front();
        }
    }

    /// Whether a client had a content at any time between two moments.
    fn had(&self, node: &str, index: usize, content: u32, [begun, ended]: [Instant; 2]) -> bool {
        let spans = lock(&self.spans);
        let spans = spans.get(node).and_then(|all| all.get(index));
        let mut spans = spans.into_iter().flatten().filter(|s| s.content == content);
        spans.any(|span| span.from <= ended && span.until.is_none_or(|until| until >= begun))
    }

    /// What a client has had lately, for people.
    fn story(&self, node: &str, index: usize, now: Instant) -> String {
        let spans = lock(&self.spans);
        let spans = spans.get(node).and_then(|all| all.get(index));
        let spans = spans.into_iter().flatten().rev().take(3);
        let spans = spans.map(|span| {
            let ago = now.saturating_duration_since(span.from);
            format!("{} for {} ms", span.content, ago.as_millis())
        });
        spans.collect::<Vec<_>>().join(", before it ")
    }

    /// Notes that a client is about to connect: whatever it has, no server knows it yet.
    pub(super) fn comes(&self, node: &str) {
        lock(&self.settled).remove(node);
    }

    /// Notes that a client has all that it asked for.
    pub(super) fn settles(&self, node: &str) {
        lock(&self.settled).insert(node.to_owned(), Instant::now());
    }

    /// The clients that have a content now, and have had it since before `since`, on one stream.
    fn holders(&self, index: usize, content: u32, since: Instant) -> Vec<String> {
        let settled = lock(&self.settled);
        let spans = lock(&self.spans);
        let last = |all: &Vec<VecDeque<Span>>| all.get(index)?.back().copied();
        let holds = |span: &Span| span.content == content && span.from <= since;
        let holders = spans.iter().filter(|(node, all)| {
            let is_settled = settled.get(*node).is_some_and(|at| *at <= since);
            is_settled && last(all).is_some_and(|span| holds(&span))
        });
        holders.map(|(node, _)| node.clone()).collect()
    }
}

/// What was asked, and what was wrong with the answers.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Truth {
    /// Clients.
    pub clients: usize,
    /// Questions that were answered.
    pub questions: usize,
    /// Questions that were not, because a server did not answer in time.
    pub unanswered: usize,
    /// Changes that were made.
    pub changes: usize,
    /// How often a client was said to have something.
    pub has: usize,
    /// How often a client was said to have refused something.
    pub refused: usize,
    /// How often a client was said to have something that it had not.
    pub false_has: usize,
    /// How often a client that had had something for more than a second was not said to have it.
    pub late: usize,
    /// Some of what was wrong.
    pub examples: Vec<String>,
    /// How long answers took, in milliseconds: asked with all clients listed, over HTTP.
    pub answers: Option<Times>,
    /// The same, asked for the numbers alone.
    pub counts: Option<Times>,
}

impl Truth {
    /// Whether nothing was wrong.
    pub fn holds(&self) -> bool {
        self.false_has == 0 && self.late == 0 && self.questions > 0
    }

    fn wrong(&mut self, what: String) {
        if self.examples.len() < 10 {
            self.examples.push(what);
        }
    }
}

impl fmt::Display for Truth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "{} clients of two servers, {} changes, {} questions ({} unanswered)",
            self.clients, self.changes, self.questions, self.unanswered
        )?;
        writeln!(
            f,
            "said to have it: {} times, falsely {}; said to have refused it: {} times; late: {}",
            self.has, self.false_has, self.refused, self.late
        )?;
        for (what, times) in [
            ("all clients listed", &self.answers),
            ("numbers alone", &self.counts),
        ] {
            if let Some(times) = times {
                let Times {
                    count,
                    p50,
                    p99,
                    max,
                    ..
                } = times;
                writeln!(
                    f,
                    "{count} answers, {what}: P50 {p50:.1} ms, P99 {p99:.1} ms, at most {max:.1} ms"
                )?;
            }
        }
        self.examples
            .iter()
            .try_for_each(|what| writeln!(f, "  {what}"))
    }
}

/// Runs two servers and the fleet, changes the mesh for so long, and judges every answer.
///
/// # Errors
/// When a server cannot be started, or a client never gets its configuration.
pub async fn truth(options: &Options, time: Duration) -> Result<Truth> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let config = folder.path().join("config");
    let mesh = Arc::new(Mesh::new(&config, options));
    mesh.write().context("write the mesh")?;
    let mut contents = [0_u32; WATCHED];
    for (index, content) in contents.iter_mut().enumerate() {
        *content = 100;
        mesh.write_destination_rule(index, 100)?;
    }
    let servers = servers(&config, folder.path(), options).await?;
    let addresses: Vec<SocketAddr> = servers.iter().map(|s| s.setup().xds).collect();
    let books = Arc::new(Books::new((0..WATCHED).map(|index| mesh.cluster(index))));
    let nodes = mesh.own_nodes(options.connections);
    let mut fleet = Fleet::judged(addresses, options, nodes, Arc::clone(&books))?;
    fleet.connect(options.connections).await;
    fleet.first_configs(FIRST_CONFIG).await?;
    let mut judge = Judge {
        truth: Truth {
            clients: options.connections,
            ..Truth::default()
        },
        mesh,
        books,
        servers,
        contents,
        random: 88_172_645_463_325_252,
        answers: Vec::new(),
        counts: Vec::new(),
    };
    judge.run(time).await?;
    let Judge {
        mut truth,
        answers,
        counts,
        ..
    } = judge;
    truth.answers = (!answers.is_empty()).then(|| Times::of(answers));
    truth.counts = (!counts.is_empty()).then(|| Times::of(counts));
    Ok(truth)
}

/// Starts two servers that know of one another.
async fn servers(config: &Path, folder: &Path, options: &Options) -> Result<Vec<ControlPlane>> {
    let mut setups = Vec::new();
    for name in ["one", "two"] {
        let mut setup = Setup::new(config, folder)?;
        setup.monitoring.set_port(free_port()?);
        setup.log = folder.join(format!("{name}.log"));
        let streams = (STREAMS.0.to_owned(), STREAMS.1.to_owned());
        setup.environment.push(streams);
        setup
            .environment
            .push(("POD_NAME".to_owned(), name.to_owned()));
        setup.environment.extend(options.environment.clone());
        setups.push(setup);
    }
    let places: Vec<String> = setups.iter().map(|s| s.monitoring.to_string()).collect();
    let mut servers = Vec::new();
    for mut setup in setups {
        // Each is among its own peers, as behind a headless Service.
        let peers = places
            .iter()
            .flat_map(|place| ["--peers".to_owned(), place.clone()]);
        setup.arguments.extend(peers);
        servers.push(ControlPlane::start(setup).await?);
    }
    Ok(servers)
}

/// Who changes, asks, and compares.
struct Judge {
    truth: Truth,
    mesh: Arc<Mesh>,
    books: Arc<Books>,
    servers: Vec<ControlPlane>,
    /// The newest content of each watched service.
    contents: [u32; WATCHED],
    random: u64,
    answers: Vec<Duration>,
    counts: Vec<Duration>,
}

impl Judge {
    /// A number below `bound`; the same ones in every run.
    fn draw(&mut self, bound: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        usize::try_from(self.random % bound.max(1) as u64).unwrap_or_default()
    }

    async fn run(&mut self, time: Duration) -> Result<()> {
        let end = Instant::now() + time;
        let (mut change, mut question) = (Instant::now(), Instant::now());
        while Instant::now() < end {
            if Instant::now() >= change {
                self.change()?;
                change = Instant::now() + CHANGE * u32::try_from(self.draw(20)).unwrap_or(0) / 10;
            }
            if Instant::now() >= question {
                self.ask().await?;
                let pause = QUESTION * u32::try_from(self.draw(20)).unwrap_or(0) / 10;
                question = Instant::now() + pause;
            }
            sleep(Duration::from_millis(3)).await;
        }
        Ok(())
    }

    /// Changes a watched service, and now and then another one.
    fn change(&mut self) -> Result<()> {
        let index = self.draw(WATCHED);
        self.contents[index] += 1;
        self.mesh
            .write_destination_rule(index, self.contents[index] as usize)?;
        let other = self.draw(1 << 16);
        match self.draw(4) {
            0 => {
                let pods = self.mesh.pods();
                let pods = if other.is_multiple_of(2) {
                    &pods[..]
                } else {
                    &pods[1..]
                };
                self.mesh.write_service(self.mesh.service(other), pods)?;
            }
            1 => {
                let (service, seconds) = (self.mesh.service(other), 1 + other % 9);
                self.mesh.write_virtual_service(service, seconds)?;
            }
            _ => {}
        }
        self.truth.changes += 1;
        Ok(())
    }

    /// Asks one server about the newest content, or one before it, and compares with the books.
    async fn ask(&mut self) -> Result<()> {
        let (index, server) = (self.draw(WATCHED), self.draw(self.servers.len()));
        let newest = self.contents[index];
        let back = u32::try_from(self.draw(3)).unwrap_or_default();
        let content = newest.saturating_sub(back).max(100);
        let hash = hash(&self.mesh.destination_rule(index, content as usize))?;
        let server = self.servers[server].setup().monitoring;
        let path = self.mesh.question(index);
        if self.draw(5) == 0 {
            let begun = Instant::now();
            let path = format!("{path}?proxies=none");
            if http::get(server, "istiod", &path, &[]).await.is_ok() {
                self.counts.push(begun.elapsed());
            }
        }
        let path = format!("{path}?proxies=all&hash={hash}");
        let begun = Instant::now();
        let answer = http::get(server, "istiod", &path, &[])
            .await
            .and_then(http::Answer::ok);
        let ended = Instant::now();
        let Ok(answer) = answer else {
            self.truth.unanswered += 1;
            return Ok(());
        };
        self.answers.push(ended - begun);
        let answer: Value = serde_json::from_str(&answer).context("read an answer")?;
        if answer["unreachable"]
            .as_array()
            .is_some_and(|lost| !lost.is_empty())
        {
            self.truth.unanswered += 1;
            return Ok(());
        }
        self.truth.questions += 1;
        let mut states: BTreeMap<&str, &str> = BTreeMap::new();
        for proxy in answer["proxies"].as_array().into_iter().flatten() {
            let text = |field: &str| proxy[field].as_str().unwrap_or_default();
            states.insert(text("proxy"), text("state"));
        }
        for (node, state) in &states {
            match *state {
                "has" => {
                    self.truth.has += 1;
                    if !self.books.had(node, index, content, [begun, ended]) {
                        self.truth.false_has += 1;
                        self.truth.wrong(format!(
                            "{node} has not {content} of service {index} ({}), but {}",
                            answer["stage"],
                            self.books.story(node, index, ended)
                        ));
                    }
                }
                "refused" => self.truth.refused += 1,
                _ => {}
            }
        }
        // Of an older content it is not known who has it, only who has the one after it.
        if content == newest && self.contents[index] == newest {
            for node in self.books.holders(index, content, begun - LATE) {
                let state = states.get(&*node).copied().unwrap_or("missing");
                // Whoever moves to another server is nobody's for a moment.
                if !matches!(state, "has" | "disconnected" | "missing") {
                    self.truth.late += 1;
                    self.truth.wrong(format!(
                        "{node} has {content} of service {index}, said to be {state}"
                    ));
                }
            }
        }
        ensure!(
            states.len() <= self.truth.clients,
            "more clients than there are"
        );
        Ok(())
    }
}

/// The hash by which the ledger knows an object.
fn hash(object: &Value) -> Result<String> {
    let decoded = Decoder::default().decode("rule", &object.to_string());
    let object = decoded.objects.first().context("not an object")?;
    Ok(istiod::distribution::hash_of(object))
}

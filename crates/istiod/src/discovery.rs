//! `istiod discovery`: sources to snapshots to proxies.

use std::{collections::BTreeSet, io::IsTerminal as _, net::SocketAddr, sync::Arc};

use anyhow::Context as _;
use controllers::{leader::View, wishes::Wishes};
use debounce::{Batch, Lane};
use generators::{Mesh, Update};
use intake::{Change, Intake, Severity, keys::KeySources};
use model::{Kind, MeshState, PushRequest, Reason, config::NamespacedName};
use parking_lot::Mutex;
use pushctx::{Publisher, PushContext, Reader};
use tokio::{
    net::TcpListener,
    sync::{mpsc, oneshot, watch},
    task::JoinSet,
    time::Instant,
};
use tokio_stream::wrappers::TcpListenerStream;
use tokio_util::sync::CancellationToken;
use translate::{Translator, report::Reports};
use xds::{Server, Transport};

use crate::{
    access::Access,
    cli::DiscoveryArgs,
    cluster,
    deployment::Deploying,
    distribution::{Attendant, Books, Clerk, Distribution, Parts, peers::Peers},
    event::{self, Event},
    home::{self, Followed, Home, remotes::Remotes},
    http::{self, Shown},
    load::{self, Loaded},
    metrics::Metrics,
    reload::Reload,
    settings::{Settings, SettingsFile},
    sources,
    statuses::Reporting,
    throttling, tls,
};

/// Batches of changes that may wait for the intake. A source sends one batch for each change of its
/// input, and waits when the intake is behind.
const SOURCE_QUEUE: usize = 64;

/// Connections are not pinged more often, as in gRPC's Go library.
const SHORTEST_PING: std::time::Duration = std::time::Duration::from_secs(1);

/// Where events enter: the throttle, with the debounce behind it.
pub(crate) type Gate = throttle::Gate<Event, debounce::Intake<Event>>;

/// Serves until a signal says to stop. Changes of the settings file are taken over while it runs, as
/// far as they can be.
///
/// # Errors
/// When the input cannot be read, an address cannot be bound, or two generators serve one type.
pub fn run(
    args: DiscoveryArgs,
    settings: Settings,
    file: Option<SettingsFile>,
) -> anyhow::Result<()> {
    log(args.json_log)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(serve(args, settings, file))
}

/// Sends the log to the standard error output, at the level of `RUST_LOG` or INFO.
pub(crate) fn log(json: bool) -> anyhow::Result<()> {
    use tracing_subscriber::{EnvFilter, fmt};
    let filter = EnvFilter::builder()
        .with_default_directive(tracing::Level::INFO.into())
        .from_env()
        .context("read RUST_LOG")?;
    let builder = fmt().with_env_filter(filter).with_writer(std::io::stderr);
    let done = if json {
        builder.json().try_init()
    } else {
        builder
            .with_ansi(std::io::stderr().is_terminal())
            .with_target(false)
            .try_init()
    };
    done.map_err(|error| anyhow::anyhow!("start the log: {error}"))
}

async fn serve(
    args: DiscoveryArgs,
    settings: Settings,
    file: Option<SettingsFile>,
) -> anyhow::Result<()> {
    let started = Instant::now();
    tracing::info!(?settings, "settings");
    let policies = throttling::policies()?;
    for linked in policies.iter() {
        let (policy, module, summary) = (linked.name, linked.module, linked.summary);
        tracing::info!(policy, module, summary, "throttle policy is linked");
    }
    let policy = throttling::choose(&policies, args.throttle_policy.as_deref())?;
    let files = args.source.files();
    let access = cluster::access(&args.source);
    let beside = access.is_some();
    let loaded = load::load_layer(&files, &settings, started.into_std(), beside)?;
    loaded.require_mesh()?;
    let reads_files = !files.config.is_empty();
    if reads_files {
        report(&loaded, &args);
    }

    let metrics = Metrics::new().context("make metrics")?;
    let registry = crate::registry()?;
    for served in registry.types() {
        tracing::info!(
            type_url = served.type_url(),
            module = served.module(),
            "serves"
        );
    }
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let mesh = Mesh {
        trusts_claims: settings.trust_node_identity,
    };
    let server = Server::new(mesh, registry, settings.server(cores), metrics.clone());
    let Loaded {
        mut intake,
        source,
        report,
    } = loaded;
    let stop = CancellationToken::new();
    let stopped = |token: &CancellationToken| token.clone().cancelled_owned();
    let mut tasks = JoinSet::new();
    let (changes, mut inbox) = mpsc::channel(SOURCE_QUEUE);
    let cluster = match access {
        Some(access) => {
            let mut cluster = cluster::start(
                &access,
                &args.source,
                &settings,
                &changes,
                &mut tasks,
                &stop,
            )
            .await?;
            tokio::select! {
                () = cluster.sync(&mut intake, &mut inbox, settings.remote_timeout) => {}
                () = signal() => return Ok(()),
                Some(ended) = tasks.join_next() => {
                    ended.context("a task panicked")?.context("a task failed")?;
                }
            }
            Some(cluster)
        }
        None => None,
    };
    let state = intake.state();
    let mut translator = Translator::default();
    let mut layered = translator.layer(state.clone());
    let books = Books::open(settings.history, &state, started.into_std());
    layered.root = books.root();
    let books = Arc::new(Mutex::new(books));
    let first = Arc::new(PushContext::build(layered));
    let tracked = first.features().envoy_filter_stats;
    first.patch_outcomes().track(tracked);
    metrics.holds(first.state());
    let (publisher, snapshots) = Publisher::new(first.clone());
    let everything = PushRequest::everything(Reason::Global, started.into_std());
    server.publish(first, &Update(everything));
    let latest = Arc::new(Mutex::new(state.clone()));
    let (debounce, debouncing) =
        debounce::Driver::new(settings.debounce(), debounce::DEFAULT_QUEUE);
    let root_namespace: Arc<str> = latest.lock().mesh.root_namespace.as_str().into();
    let engine = {
        let state = latest.clone();
        let engine = throttling::engine(&settings.throttle, &root_namespace, policy)?;
        engine.with_labels(move |namespace| labels_of(&state.lock(), namespace))
    };
    let enabled = engine.is_enabled();
    tracing::info!(policy = policy.name, enabled, "throttle");
    #[expect(clippy::disallowed_methods, reason = "the one wall clock")]
    let (gate, throttling) = throttle::Driver::new(
        engine,
        debounce.clone(),
        throttle::DEFAULT_QUEUE,
        std::time::SystemTime::now,
        metrics.clone(),
    );
    let reload = Reload {
        file,
        settings: settings.clone(),
        root_namespace,
        throttle: gate.clone(),
        debounce,
        latest: latest.clone(),
    };
    let visits = args.source.kubeconfig.is_some();
    let connections = cluster
        .as_ref()
        .filter(|_| settings.writes.manages_remotes)
        .map(|cluster| cluster.remotes.connections());
    let home = cluster
        .as_ref()
        .map(|cluster| Home::new(cluster.connection.client.clone(), visits, &settings));
    let tables = cluster.as_ref().map(|cluster| cluster.tables.clone());
    let (ready_sender, ready) = watch::channel(false);
    let distribution = Distribution::new(Parts {
        replica: replica_name(&settings, started),
        started,
        server: server.clone(),
        snapshots: snapshots.clone(),
        latest: latest.clone(),
        books: books.clone(),
        peers: Peers::new(if args.peers.is_empty() {
            &settings.peers
        } else {
            &args.peers
        })?,
        metrics: metrics.clone(),
    });
    tasks.spawn({
        let (track, stop) = (distribution.clone().track(), stop.clone());
        async move {
            tokio::select! {
                () = track => anyhow::bail!("nobody follows the distribution any more"),
                () = stop.cancelled() => Ok(()),
            }
        }
    });
    let tokens = tls::serve::tokens(&args.secure, &settings, &latest, home.as_ref())?;
    let keys = sources::FetchKeys::new(&settings.keys, metrics.clone())?;
    let known = latest.clone();
    let trust_domain = move || known.lock().mesh.trust_domain.clone();
    tokens.follow(trust_domain, keys.clone(), &mut tasks, &stop);
    let known = latest.clone();
    let access = Access::new(
        settings.security.views.clone(),
        move || known.lock().mesh.root_namespace.as_str().into(),
        tokens.clone(),
        distribution.peers().clone(),
        tls::serve::clock,
    );
    let secure = tls::serve::open(&args.secure, &settings, &latest, home.as_ref()).await?;
    let certificates = metrics.certificates.clone();
    let shown = Shown {
        access,
        authority: secure.as_ref().map(|secure| secure.store().clone()),
        distribution: distribution.clone(),
        metrics: metrics.clone(),
        ready,
        server: server.clone(),
        snapshots: snapshots.clone(),
        throttle: gate.clone(),
        cluster,
        started,
    };

    let [http, monitoring] = bind_all([args.http, args.monitoring])?;
    let grpc = args.grpc.0.map(http::bind).transpose()?;
    tracing::info!(
        xds = ?grpc.as_ref().and_then(|grpc| grpc.local_addr().ok()),
        ready = %http.local_addr()?,
        metrics = %monitoring.local_addr()?,
        "listening"
    );
    for (listener, router) in [
        (http, http::readiness(shown.clone())),
        (monitoring, http::monitoring(shown)),
    ] {
        let serving = http::serve(listener, router, stopped(&stop));
        tasks.spawn(async move {
            serving.await;
            Ok(())
        });
    }

    let (names, named) = watch::channel(intake.names_to_resolve());
    let (key_sources, keyed) = watch::channel(intake.keys_to_fetch());
    sources::resolve(named, changes.clone(), &mut tasks, &stop);
    keys.spawn(keyed, changes.clone(), &mut tasks, &stop);
    let mesh_files = &args.source.mesh;
    if reads_files || mesh_files.mesh_config.is_some() || mesh_files.mesh_networks.is_some() {
        sources::watch(source, &report, beside, changes, &mut tasks, &stop)?;
        tracing::info!(paths = ?args.source.config, "watching");
    }
    let (reports, reported) = watch::channel(translator.reports());
    let pipeline = Pipeline {
        reports,
        latest: latest.clone(),
        publisher: Arc::new(Mutex::new(publisher)),
        translator: Arc::new(Mutex::new(translator)),
        snapshots,
        server: server.clone(),
        books,
        distribution,
        metrics,
    };
    let feeding = pipeline.clone();
    let (views, seen) = watch::channel(Some(View::of(&state)));
    let (remote_views, remotes_seen) = watch::channel(home::remotes::views(&intake));
    if let Some(home) = home {
        let store = secure
            .as_ref()
            .and_then(tls::serve::Listening::shared_store);
        // Whoever decides what is written, beside what the leader does itself, has a clone of the first.
        let (wishes, wanted) = Wishes::new();
        let (clock, views) = (tls::serve::clock, seen.clone());
        let client = home.client();
        let tables = tables.clone();
        let remotes = connections.map(|connections| Remotes {
            connections,
            views: remotes_seen,
            cluster: settings.cluster.clone(),
            namespace: settings.namespace.clone(),
        });
        let followed = Followed {
            views: seen.clone(),
            wanted,
            remotes,
        };
        let leads = home.write(&settings, followed, store, clock, &mut tasks, &stop);
        let deploying = &settings.writes.deployment;
        if let Some(tables) = tables.filter(|_| deploying.gateways || deploying.classes) {
            let deploying = Deploying {
                reports: reported.clone(),
                views: views.clone(),
                latest: latest.clone(),
                leads: leads.clone(),
                wishes: wishes.clone(),
                tables,
                settings: deploying.clone(),
            };
            let stop = stop.clone();
            tasks.spawn(async move {
                deploying.run(client, stop).await;
                Ok(())
            });
        }
        if settings.writes.gateway_statuses {
            let reporting = Reporting {
                reports: reported,
                views,
                latest: latest.clone(),
                leads: leads.clone(),
                wishes: wishes.clone(),
                clock,
            };
            let stop = stop.clone();
            tasks.spawn(async move {
                reporting.run(stop).await;
                Ok(())
            });
        }
        if let Some(interval) = settings.writes.statuses {
            pipeline.distribution.note_changes();
            let clerk = Clerk {
                distribution: pipeline.distribution.clone(),
                wishes: wishes.clone(),
                leads: leads.clone(),
                interval,
                clock: tls::serve::clock,
            };
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = clerk.run() => Ok(()),
                    () = stop.cancelled() => Ok(()),
                }
            });
        }
        if settings.features.pod_distribution {
            let attendant = Attendant {
                distribution: pipeline.distribution.clone(),
                limits: settings.writes.pods,
                wishes,
                leads,
                changes: seen,
                clock: tls::serve::clock,
            };
            let stop = stop.clone();
            tasks.spawn(async move {
                tokio::select! {
                    () = attendant.run() => Ok(()),
                    () = stop.cancelled() => Ok(()),
                }
            });
        }
    }
    let followers = Followers {
        names,
        key_sources,
        views,
        remote_views,
    };
    tasks.spawn(async move { feed(intake, inbox, followers, gate, feeding).await });
    tasks.spawn(async move {
        throttling.run().await;
        Ok(())
    });
    tasks.spawn(async move {
        debouncing
            .run(move |batch| pipeline.clone().publish(batch))
            .await;
        Ok(())
    });

    let transport = transport(&args, &settings);
    tasks.spawn({
        let run = reload.run(stop.clone());
        async move {
            run.await;
            Ok(())
        }
    });
    if let Some(secure) = secure {
        let with = tls::serve::With {
            server: &server,
            latest: &latest,
            tokens: &tokens,
            metrics: &certificates,
            transport: transport.clone(),
        };
        secure.serve(&mut tasks, with, &stop)?;
    }
    if let Some(grpc) = grpc {
        let service = server.service().receive_bytes(transport.receive_bytes);
        let draining = stopped(&stop);
        tasks.spawn(async move {
            xds::serve(TcpListenerStream::new(grpc), service, transport, draining).await;
            Ok(())
        });
    }
    ready_sender.send_replace(true);
    tracing::info!(elapsed = ?started.elapsed(), "ready");

    let failed = tokio::select! {
        () = signal() => None,
        Some(ended) = tasks.join_next() => Some(ended),
    };
    ready_sender.send_replace(false);
    tracing::info!(within = ?args.shutdown, "stopping");
    server.drain(args.shutdown).await;
    stop.cancel();
    let all = async { while tasks.join_next().await.is_some() {} };
    if tokio::time::timeout(args.shutdown, all).await.is_err() {
        tracing::warn!("some tasks did not end in time");
    }
    match failed {
        None => Ok(()),
        Some(ended) => {
            ended.context("a task panicked")?.context("a task failed")?;
            anyhow::bail!("a task ended that should not have")
        }
    }
}

/// Names this replica: by its pod, if it has one, and by its start, so that none is taken for another.
fn replica_name(settings: &Settings, started: Instant) -> String {
    use std::hash::{BuildHasher as _, RandomState};
    // Differs from process to process.
    let process = RandomState::new().hash_one(started.into_std());
    match &*settings.pod {
        "" => format!("istiod-{process:016x}"),
        pod => format!("{pod}-{process:016x}"),
    }
}

fn transport(args: &DiscoveryArgs, settings: &Settings) -> Transport {
    let mut transport = Transport::default();
    transport.streams_per_connection = settings.streams_per_connection;
    transport.receive_bytes = settings.receive_bytes;
    let interval = args.keepalive_interval;
    let interval = interval.unwrap_or(settings.keepalive_interval);
    transport.keepalive_interval = interval.max(SHORTEST_PING);
    let timeout = args.keepalive_timeout;
    transport.keepalive_timeout = timeout.unwrap_or(settings.keepalive_timeout);
    transport.connection_age = args.connection_age;
    transport.drain = args.shutdown;
    transport
}

/// Says what was loaded and what was not, and why.
fn report(loaded: &Loaded, args: &DiscoveryArgs) {
    loaded.report.findings.iter().for_each(sources::log);
    let state = loaded.intake.state();
    tracing::info!(
        from = ?args.source.config,
        files = loaded.report.files,
        objects = loaded.report.object_count(),
        refused = loaded.refused(),
        warnings = loaded.count(Severity::Warning),
        services = state.services.len(),
        "loaded"
    );
}

fn bind_all<const N: usize>(addresses: [SocketAddr; N]) -> anyhow::Result<[TcpListener; N]> {
    let mut listeners = Vec::with_capacity(N);
    for address in addresses {
        listeners.push(http::bind(address)?);
    }
    listeners
        .try_into()
        .map_err(|_| anyhow::anyhow!("as many listeners as addresses"))
}

/// Waits for SIGTERM or SIGINT.
pub(crate) async fn signal() {
    use tokio::signal::unix::{SignalKind, signal};
    let (Ok(mut term), Ok(mut interrupt)) = (
        signal(SignalKind::terminate()),
        signal(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = term.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Who follows the state, beside those that serve it: what others look up, and what is written.
#[derive(Debug)]
struct Followers {
    /// Host names of network gateways.
    names: watch::Sender<BTreeSet<Arc<str>>>,
    /// Where keys of token issuers come from.
    key_sources: watch::Sender<Arc<KeySources>>,
    /// What the leader reads.
    views: watch::Sender<Option<View>>,
    /// What the leader reads of further clusters.
    remote_views: watch::Sender<home::remotes::Views>,
}

impl Followers {
    /// Says what is in use now.
    fn update(&self, intake: &Intake) {
        replace(&self.names, intake.names_to_resolve());
        replace(&self.key_sources, intake.keys_to_fetch());
        self.views.send_replace(Some(View::of(&intake.state())));
        if self.remote_views.receiver_count() > 0 {
            let views = home::remotes::views(intake);
            self.remote_views.send_replace(views);
        }
    }
}

/// Replaces a value; nobody hears of an equal one.
fn replace<T: PartialEq>(watched: &watch::Sender<T>, value: T) {
    watched.send_if_modified(|known| {
        let modified = *known != value;
        *known = value;
        modified
    });
}

/// Applies changes as they arrive, and passes on what they mean.
async fn feed(
    mut intake: Intake,
    mut inbox: mpsc::Receiver<Vec<Change>>,
    followers: Followers,
    gate: Gate,
    pipeline: Pipeline,
) -> anyhow::Result<()> {
    while let Some(changes) = inbox.recv().await {
        let deleted: Vec<_> = changes.iter().filter_map(deleted_namespace).collect();
        let request = intake.apply(changes, Instant::now().into_std());
        for key in &request.changed {
            pipeline.metrics.arrived(key.kind.name(), 1);
        }
        if !request.endpoints.is_empty() {
            pipeline
                .metrics
                .arrived("eds", request.endpoints.len() as u64);
        }
        pipeline.metrics.tables.parked(intake.parked());
        *pipeline.latest.lock() = intake.state();
        followers.update(&intake);
        if !request.is_empty() && gate.send(Event(request)).await.is_err() {
            break;
        }
        for namespace in deleted {
            if gate.tenant_deleted(namespace).await.is_err() {
                break;
            }
        }
    }
    Ok(())
}

/// The namespace that a change deletes, if it deletes one.
fn deleted_namespace(change: &Change) -> Option<Arc<str>> {
    match change {
        Change::Delete(key) if key.kind == Kind::Namespace => Some(key.name.clone()),
        _ => None,
    }
}

/// The labels of a namespace; none when it is not known.
fn labels_of(state: &MeshState, namespace: &Arc<str>) -> throttle::Labels {
    let object = state
        .objects
        .namespaces
        .get(&NamespacedName::new("", namespace.clone()));
    object
        .map(|object| object.meta.labels.clone().into_iter().collect())
        .unwrap_or_default()
}

/// The end of the flow: the latest state, built and published.
#[derive(Clone, Debug)]
struct Pipeline {
    /// What translation decided, for statuses.
    reports: watch::Sender<Arc<Reports>>,
    latest: Arc<Mutex<MeshState>>,
    publisher: Arc<Mutex<Publisher>>,
    translator: Arc<Mutex<Translator>>,
    snapshots: Reader,
    server: Server<Mesh>,
    books: Arc<Mutex<Books>>,
    distribution: Distribution,
    metrics: Metrics,
}

impl Pipeline {
    /// Builds the next snapshot on the pool for CPU work, and publishes it.
    async fn publish(self, batch: Batch<Event>) {
        let (done, published) = oneshot::channel();
        rayon::spawn(move || {
            self.build(&batch);
            // Nobody waits any more when the process stops.
            done.send(()).ok();
        });
        published.await.ok();
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "a build is measured where it runs"
    )]
    fn build(&self, batch: &Batch<Event>) {
        let request = &batch.event.0;
        if batch.lane == Lane::Debounced {
            tracing::info!("{}", event::stable(batch));
        }
        let begun = std::time::Instant::now();
        let (next, elapsed) = {
            // Held until it is published: what bypasses the debounce is built beside a batch, and both
            // follow the same snapshot, and come out in the wrong order, otherwise.
            let mut publisher = self.publisher.lock();
            let state = self.latest.lock().clone();
            let root = self.books.lock().begin(&state, request, begun);
            let mut translator = self.translator.lock();
            let mut state = translator.layer(state);
            let reports = translator.reports();
            drop(translator);
            self.reports.send_if_modified(|known| {
                let modified = !Arc::ptr_eq(known, &reports);
                *known = reports;
                modified
            });
            state.root = root;
            let begun = std::time::Instant::now();
            let next = Arc::new(self.snapshots.snapshot().next(state, request));
            let elapsed = begun.elapsed();
            self.metrics.recent.begin(
                next.state().root.clone(),
                request,
                (batch.events, elapsed),
                std::time::Instant::now(),
            );
            publisher.publish(next.clone());
            self.metrics.patches.collect(next.patch_outcomes());
            self.metrics.patches.changed(request);
            let update = Update(request.clone());
            let number = self.server.publish(next.clone(), &update);
            let finished = self.books.lock().finish(number, std::time::Instant::now());
            self.distribution.published(finished);
            (next, elapsed)
        };
        self.metrics.holds(next.state());
        for (reason, count) in &request.reasons {
            self.metrics.triggered(reason.as_str(), *count);
        }
        // From the first event until every connection knows (observability §3).
        self.metrics
            .published(batch.delay() + begun.elapsed(), elapsed);
        tracing::info!(
            events = batch.events,
            changed = request.changed.len(),
            endpoints = request.endpoints.len(),
            quiet = ?batch.quiet(),
            ?elapsed,
            "published"
        );
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use clap::Parser as _;

    use super::*;
    use crate::cli::{Cli, Command};

    fn transport_of(flags: &[&str], variables: &[(&str, &str)]) -> Transport {
        let command = ["istiod", "discovery", "--config", "mesh"];
        let cli = Cli::try_parse_from(command.iter().chain(flags)).unwrap();
        let Command::Discovery(args) = cli.command else {
            panic!("not discovery");
        };
        let variable = |name: &str| {
            let found = variables.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        transport(&args, &Settings::resolve(&variable).unwrap())
    }

    #[test]
    fn the_transport_follows_istios_flags_and_variables() {
        assert_eq!(transport_of(&[], &[]), Transport::default());
        let variables = [
            ("GRPC_KEEPALIVE_INTERVAL", "20s"),
            ("GRPC_KEEPALIVE_TIMEOUT", "7s"),
            ("ISTIO_GPRC_MAXSTREAMS", "9"),
            ("ISTIO_GPRC_MAXRECVMSGSIZE", "1000"),
        ];
        let by_variables = transport_of(&[], &variables);
        assert_eq!(by_variables.keepalive_interval, Duration::from_secs(20));
        assert_eq!(by_variables.keepalive_timeout, Duration::from_secs(7));
        assert_eq!(by_variables.streams_per_connection, 9);
        assert_eq!(by_variables.receive_bytes, 1000);
        let flags = [
            "--keepaliveInterval=5s",
            "--keepaliveTimeout=3s",
            "--keepaliveMaxServerConnectionAge=30m",
            "--shutdownDuration=4s",
        ];
        let by_flags = transport_of(&flags, &variables);
        assert_eq!(by_flags.keepalive_interval, Duration::from_secs(5));
        assert_eq!(by_flags.keepalive_timeout, Duration::from_secs(3));
        assert_eq!(by_flags.connection_age, Some(Duration::from_mins(30)));
        assert_eq!(by_flags.drain, Duration::from_secs(4));
        let hasty = transport_of(&["--keepaliveInterval=0s"], &[]);
        assert_eq!(hasty.keepalive_interval, SHORTEST_PING);
    }
}

//! The source against an API server with faults. Time is paused: waiting costs nothing.

use std::time::Duration;

use model::bundle::Bundles;
use serde_json::{Value, json};
use tokio::time;

use super::{
    super::{status::Phase, testing::FakeApi},
    *,
};
use crate::{Intake, Options};

const CLUSTER: &str = "c";

/// A source that reads some kinds of a server, and an intake that takes its changes.
pub(super) struct Bench {
    pub(super) tables: Tables,
    pub(super) intake: Intake,
    inbox: mpsc::Receiver<Vec<Change>>,
    _tasks: JoinSet<()>,
}

impl Bench {
    pub(super) fn start(api: &FakeApi, kinds: &[Kind]) -> Self {
        let tables = Tables::default();
        let options = SourceOptions {
            cluster: CLUSTER.into(),
            kinds: kinds.to_vec(),
        };
        let source = ClusterSource::new(api.client(), options, tables.clone());
        let (changes, inbox) = mpsc::channel(4);
        let mut tasks = JoinSet::new();
        tasks.spawn(source.run(changes));
        Self {
            tables,
            intake: Intake::new(Options::default()),
            inbox,
            _tasks: tasks,
        }
    }

    /// Takes what comes until nothing has come for a while; returns it, as `+name` and `-name`.
    pub(super) async fn take(&mut self, quiet: Duration) -> Vec<String> {
        let mut taken = Vec::new();
        while let Ok(Some(changes)) = time::timeout(quiet, self.inbox.recv()).await {
            taken.extend(changes.iter().filter_map(|change| match change {
                Change::Apply(object) => Some(format!("+{}", object.meta().name)),
                Change::Delete(key) => Some(format!("-{}", key.name)),
                // The state has them.
                Change::Bundles(_) => None,
                other => panic!("{other:?}"),
            }));
            self.intake.apply(changes, time::Instant::now().into_std());
        }
        taken
    }

    /// Takes what comes until all that can come has come.
    pub(super) async fn settle(&mut self) -> Vec<String> {
        self.take(Duration::from_mins(2)).await
    }

    fn phase(&self, kind: Kind) -> Phase {
        let list = self.tables.list();
        list.into_iter().find(|t| t.kind == kind).unwrap().phase
    }

    #[track_caller]
    fn check(&self, kind: Kind, phase: Phase) {
        assert_eq!(self.phase(kind), phase);
    }
}

fn service(name: &str, port: u32) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": name, "namespace": "a"},
        "spec": {"clusterIP": "10.9.0.1", "ports": [{"name": "http", "port": port}]},
    })
}

fn rule(name: &str) -> Value {
    let spec = json!({"host": format!("{name}.a.svc.cluster.local")});
    json!({"metadata": {"name": name, "namespace": "a"}, "spec": spec})
}

async fn lists(streams: bool) {
    let api = FakeApi::default();
    api.set_streams(streams, 2);
    for name in ["r", "s", "t", "u", "v"] {
        api.put("services", service(name, 80));
    }
    let mut bench = Bench::start(&api, &[Kind::Service]);
    bench.check(Kind::Service, Phase::Unknown);
    assert_eq!(bench.settle().await, ["+r", "+s", "+t", "+u", "+v"]);
    bench.check(Kind::Service, Phase::Synced);
    api.put("services", service("s", 81));
    api.delete("services", "a", "u");
    // Written, but not in a part that is read.
    api.put("services", service("t", 80));
    assert_eq!(bench.settle().await, ["+s", "-u"]);
    let pages = if streams { 0 } else { 3 };
    assert_eq!(api.requests("list services"), pages);
}

#[tokio::test(start_paused = true)]
async fn lists_are_streamed() {
    lists(true).await;
}

#[tokio::test(start_paused = true)]
async fn lists_come_in_pages_from_servers_that_do_not_stream() {
    lists(false).await;
}

#[tokio::test(start_paused = true)]
async fn a_watch_that_is_cut_goes_on_where_it_was() {
    let api = FakeApi::default();
    api.put("services", service("s", 80));
    let mut bench = Bench::start(&api, &[Kind::Service]);
    bench.settle().await;
    api.set_down(true);
    api.put("services", service("t", 80));
    api.delete("services", "a", "s");
    assert!(bench.settle().await.is_empty());
    // What is known stays, and is not said to be fresh.
    bench.check(Kind::Service, Phase::Stale);
    assert_eq!(bench.intake.state().services.len(), 1);
    api.set_down(false);
    assert_eq!(bench.settle().await, ["+t", "-s"]);
    bench.check(Kind::Service, Phase::Synced);
    assert_eq!(bench.tables.list()[0].lists, 1);
}

#[tokio::test(start_paused = true)]
async fn after_a_compaction_only_differences_are_sent() {
    let api = FakeApi::default();
    for name in ["s", "t", "u"] {
        api.put("services", service(name, 80));
    }
    let mut bench = Bench::start(&api, &[Kind::Service]);
    bench.settle().await;
    api.set_down(true);
    bench.settle().await;
    api.delete("services", "a", "s");
    api.put("services", service("u", 81));
    api.put("services", service("v", 80));
    api.compact();
    api.put("services", service("w", 80));
    api.set_down(false);
    assert_eq!(bench.settle().await, ["-s", "+u", "+v", "+w"]);
    assert_eq!(bench.tables.list()[0].lists, 2);
}

#[tokio::test(start_paused = true)]
async fn a_denied_kind_is_reported_and_the_others_work() {
    let api = FakeApi::default();
    api.put("services", service("s", 80));
    api.put("destinationrules", rule("d"));
    api.set_denied("destinationrules", true);
    let mut bench = Bench::start(&api, &[Kind::Service, Kind::DestinationRule]);
    assert_eq!(bench.settle().await, ["+s"]);
    bench.check(Kind::DestinationRule, Phase::Denied);
    bench.tables.settled(CLUSTER).await;
    let denied = bench.tables.list().pop().unwrap();
    assert_eq!(denied.error.as_deref(), Some("not allowed (403)"));
    api.set_denied("destinationrules", false);
    assert_eq!(bench.settle().await, ["+d"]);
    bench.check(Kind::DestinationRule, Phase::Synced);
    // Taken away again, what is known stays.
    api.set_denied("destinationrules", true);
    api.cut();
    assert!(bench.settle().await.is_empty());
    bench.check(Kind::DestinationRule, Phase::Stale);
}

#[tokio::test(start_paused = true)]
async fn kinds_come_and_go() {
    let api = FakeApi::default();
    api.set_absent("destinationrules", true);
    let mut bench = Bench::start(&api, &[Kind::DestinationRule]);
    assert!(bench.settle().await.is_empty());
    bench.check(Kind::DestinationRule, Phase::Absent);
    bench.tables.settled(CLUSTER).await;
    api.set_absent("destinationrules", false);
    api.put("destinationrules", rule("d"));
    assert_eq!(bench.settle().await, ["+d"]);
    bench.check(Kind::DestinationRule, Phase::Synced);
    // One answer that there is no such kind is not believed.
    api.set_absent("destinationrules", true);
    assert!(bench.take(Duration::from_millis(300)).await.is_empty());
    bench.check(Kind::DestinationRule, Phase::Stale);
    assert_eq!(bench.settle().await, ["-d"]);
    bench.check(Kind::DestinationRule, Phase::Absent);
}

#[tokio::test(start_paused = true)]
async fn nothing_is_settled_before_the_server_answers() {
    let api = FakeApi::default();
    api.set_down(true);
    let mut bench = Bench::start(&api, &[Kind::Service]);
    bench.settle().await;
    let settled = time::timeout(Duration::from_mins(10), bench.tables.settled(CLUSTER)).await;
    assert!(settled.is_err());
    assert_eq!(bench.tables.unsettled(CLUSTER).len(), 1);
    api.set_down(false);
    bench.settle().await;
    bench.tables.settled(CLUSTER).await;
}

#[test]
fn custom_kinds_may_be_left_out() {
    #[track_caller]
    fn check(ignored: &[&str], included: &[&str], kind: Kind, read: bool) {
        let owned = |names: &[&str]| names.iter().map(|n| (*n).to_owned()).collect::<Vec<_>>();
        let options = SourceOptions::all(CLUSTER.into());
        let options = options.without(&owned(ignored), &owned(included));
        assert_eq!(options.kinds.contains(&kind), read);
    }
    let rules = "virtualservices.networking.istio.io";
    check(&[], &[], Kind::VirtualService, true);
    check(&[rules], &[], Kind::VirtualService, false);
    check(&[rules], &[], Kind::DestinationRule, true);
    check(&["*.istio.io"], &[], Kind::Telemetry, false);
    check(&["*.istio.io"], &[rules], Kind::VirtualService, true);
    check(&["*.istio.io"], &[rules], Kind::Telemetry, false);
    check(&["networking.istio.io"], &[], Kind::VirtualService, true);
    // What Kubernetes itself has is always read.
    check(&["*"], &[], Kind::Service, true);
    check(&["*"], &[], Kind::HttpRoute, false);
}

/// A definition of a kind of the Gateway API.
fn definition(plural: &str, release: Option<&str>) -> Value {
    let name = format!("{plural}.gateway.networking.k8s.io");
    let annotations =
        release.map(|release| json!({"gateway.networking.k8s.io/bundle-version": release}));
    json!({"metadata": {"name": name, "annotations": annotations}})
}

fn route(name: &str) -> Value {
    json!({"metadata": {"name": name, "namespace": "a"}, "spec": {}})
}

fn bundles(of: &[(Kind, Option<&str>)]) -> Bundles {
    of.iter()
        .map(|(kind, release)| (*kind, release.map(Into::into)))
        .collect()
}

/// What becomes of a route of a kind that is defined so, when the definition was there first.
async fn defined(plural: &str, kind: Kind, release: Option<&str>, read: bool) {
    let api = FakeApi::default();
    api.set_absent("customresourcedefinitions", false);
    api.put("customresourcedefinitions", definition(plural, release));
    api.put(plural, route("r"));
    let mut bench = Bench::start(&api, &[kind]);
    let taken = bench.settle().await;
    assert_eq!(taken.is_empty(), !read, "{kind} {release:?}");
    bench.check(kind, if read { Phase::Synced } else { Phase::Absent });
    assert_eq!(*bench.intake.state().bundles, bundles(&[(kind, release)]));
    if !read {
        // It is known before the kind is listed.
        assert_eq!(api.requests(&format!("watch {plural}")), 0);
        let table = bench.tables.list().remove(0);
        assert!(table.error.is_some_and(|error| error.contains("is needed")));
    }
}

#[tokio::test(start_paused = true)]
async fn kinds_of_a_release_that_is_too_old_count_as_absent() {
    defined("tlsroutes", Kind::TlsRoute, Some("v1.4.1"), false).await;
    defined("tlsroutes", Kind::TlsRoute, None, false).await;
    defined("tlsroutes", Kind::TlsRoute, Some("v1.5.0-rc.1"), true).await;
    defined("grpcroutes", Kind::GrpcRoute, Some("v1.0.0"), false).await;
    defined("grpcroutes", Kind::GrpcRoute, Some("v1.1.0"), true).await;
    defined("httproutes", Kind::HttpRoute, Some("v0.8.0"), true).await;
    defined("httproutes", Kind::HttpRoute, None, true).await;
}

#[tokio::test(start_paused = true)]
async fn a_definition_may_change_while_its_kind_is_read() {
    let api = FakeApi::default();
    api.set_absent("customresourcedefinitions", false);
    let define = |release| {
        let definition = definition("tcproutes", release);
        api.put("customresourcedefinitions", definition);
    };
    define(Some("v1.6.0"));
    api.put("tcproutes", route("r"));
    let mut bench = Bench::start(&api, &[Kind::TcpRoute]);
    assert_eq!(bench.settle().await, ["+r"]);
    define(Some("v1.5.0"));
    assert_eq!(bench.settle().await, ["-r"]);
    bench.check(Kind::TcpRoute, Phase::Absent);
    // Nobody hears of them.
    api.put("tcproutes", route("s"));
    assert!(bench.settle().await.is_empty());
    define(Some("v1.6.1"));
    assert_eq!(bench.settle().await, ["+r", "+s"]);
    bench.check(Kind::TcpRoute, Phase::Synced);
    define(None);
    assert_eq!(bench.settle().await, ["-r", "-s"]);
    assert_eq!(
        *bench.intake.state().bundles,
        bundles(&[(Kind::TcpRoute, None)])
    );
    // All that watches hear is forgotten; the list says it.
    api.set_down(true);
    bench.settle().await;
    define(Some("v1.6.0"));
    api.compact();
    api.set_down(false);
    assert_eq!(bench.settle().await, ["+r", "+s"]);
    api.delete(
        "customresourcedefinitions",
        "",
        "tcproutes.gateway.networking.k8s.io",
    );
    bench.settle().await;
    assert!(bench.intake.state().bundles.is_empty());
}

#[tokio::test(start_paused = true)]
async fn who_may_not_read_definitions_reads_what_is_served() {
    let api = FakeApi::default();
    api.set_absent("customresourcedefinitions", false);
    api.set_denied("customresourcedefinitions", true);
    api.put(
        "customresourcedefinitions",
        definition("tlsroutes", Some("v1.4.0")),
    );
    api.put("tlsroutes", route("r"));
    let mut bench = Bench::start(&api, &[Kind::TlsRoute]);
    assert_eq!(bench.settle().await, ["+r"]);
    assert!(bench.intake.state().bundles.is_empty());
    api.set_denied("customresourcedefinitions", false);
    assert_eq!(bench.settle().await, ["-r"]);
}

/// A kind that the cluster does not have costs next to nothing.
#[tokio::test(start_paused = true)]
async fn a_kind_that_is_not_there_is_looked_for_rarely() {
    let api = FakeApi::default();
    api.set_absent("wasmplugins", true);
    let mut bench = Bench::start(&api, &[Kind::WasmPlugin]);
    bench.take(Duration::from_hours(1)).await;
    let asked = api.requests("watch wasmplugins");
    assert!((100..300).contains(&asked), "{asked}");
    bench.check(Kind::WasmPlugin, Phase::Absent);
}

/// After an outage kinds wait up to half a minute; the first that can be read again wakes all others.
#[tokio::test(start_paused = true)]
async fn kinds_come_back_together() {
    let api = FakeApi::default();
    let kinds = [
        Kind::Service,
        Kind::Pod,
        Kind::Node,
        Kind::Namespace,
        Kind::DestinationRule,
        Kind::VirtualService,
        Kind::ServiceEntry,
        Kind::WasmPlugin,
    ];
    let mut bench = Bench::start(&api, &kinds);
    bench.settle().await;
    api.set_down(true);
    bench.take(Duration::from_hours(1)).await;
    let stale = |bench: &Bench| {
        let stale = kinds
            .iter()
            .filter(|kind| bench.phase(**kind) != Phase::Synced);
        stale.count()
    };
    assert_eq!(stale(&bench), kinds.len());
    api.set_down(false);
    while stale(&bench) == kinds.len() {
        bench.take(Duration::from_millis(10)).await;
    }
    bench.take(Duration::from_secs(1)).await;
    assert_eq!(stale(&bench), 0);
}

/// Tries grow rarer, so that a server that is down is not asked more the longer it is.
#[tokio::test(start_paused = true)]
async fn a_server_that_is_down_is_asked_rarely() {
    let api = FakeApi::default();
    api.set_down(true);
    let mut bench = Bench::start(&api, &[Kind::Service]);
    bench.take(Duration::from_hours(1)).await;
    let asked = api.requests("watch services");
    assert!((100..300).contains(&asked), "{asked}");
}

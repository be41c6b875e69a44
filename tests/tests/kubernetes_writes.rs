//! What the control plane writes into its cluster: a real API server, and the roles that the manifests give.
//!
//! These need Go, which builds the API server once. `cargo test` leaves them out, `cargo xtask test` runs
//! them; alone they run by `cargo test --test kubernetes_writes -- --ignored`.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    pin::pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use controllers::{
    authority::Kept,
    leader::{self, Duties, Inputs, View},
    lease::{self, Election, Timing},
    roots,
    tokens::ClusterTokens,
    writer::{Part, Resource, Target, Wanted},
};
use futures::StreamExt as _;
use intake::{
    Intake, Options,
    kubernetes::{ClusterSource, SourceOptions, Tables},
};
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{ConfigMap, Secret, ServiceAccount},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, WatchEvent,
        WatchParams,
    },
    core::GroupVersionKind,
};
use model::Kind;
use security::{AuthorityParts, AuthorityStore, TokenError, TokenReview as _, Unreviewed};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{
    control_plane::{self, ControlPlane, Setup},
    kubernetes::Cluster,
    process::until,
};
use tokio::{
    process::Command,
    sync::{mpsc, watch},
    task::JoinSet,
    time::{Instant, sleep, timeout},
};
use tokio_util::sync::CancellationToken;

/// Longest time from a change to what follows from it.
const SOON: Duration = Duration::from_secs(20);
/// How long nothing may be written, to believe that nothing will be.
const QUIET: Duration = Duration::from_secs(2);
/// Everything that the chart makes, as it is checked in.
const MANIFESTS: &str = include_str!("../../manifests/istiod.yaml");
/// Years that a root is valid for.
const LIFETIME: Duration = Duration::from_hours(24 * 365);

#[expect(clippy::disallowed_methods, reason = "real certificates and tokens")]
fn clock() -> SystemTime {
    SystemTime::now()
}

/// A cluster into which the control plane may write what its manifests allow.
struct World {
    cluster: Cluster,
    /// Of an administrator.
    admin: Client,
    /// Of the control plane's service account.
    own: Client,
}

impl World {
    async fn new() -> Result<Self> {
        let cluster = Cluster::start().await?;
        cluster.define_kinds().await?;
        cluster.namespace("istio-system").await?;
        cluster
            .apply(MANIFESTS)
            .await
            .context("apply the manifests")?;
        let kubeconfig = cluster.kubeconfig_of("istio-system", "istiod").await?;
        Ok(Self {
            admin: cluster.client().await?,
            own: cluster.client_of(&kubeconfig).await?,
            cluster,
        })
    }

    fn root_map(&self, namespace: &str) -> Api<ConfigMap> {
        Api::namespaced(self.admin.clone(), namespace)
    }

    fn entries(&self) -> Api<DynamicObject> {
        Api::namespaced_with(self.admin.clone(), "shop", &service_entries())
    }
}

fn service_entries() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk(
        "networking.istio.io",
        "v1",
        "ServiceEntry",
    ))
}

/// A replica: it takes part in the election, follows the cluster, and writes.
struct Replica {
    leads: watch::Receiver<bool>,
    roots: watch::Sender<String>,
    wanted: watch::Sender<Vec<Wanted>>,
    stop: CancellationToken,
    tasks: JoinSet<()>,
}

impl Replica {
    fn start(world: &World, name: &str, timing: Timing) -> Result<Self> {
        let (leads, led) = watch::channel(false);
        let (views, seen) = watch::channel(None);
        let (roots, root) = watch::channel("one root\n".to_owned());
        let (wanted, wishes) = watch::channel(Vec::new());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let (client, token) = (world.own.clone(), stop.clone());
        let election = Election::new(name, timing);
        tasks.spawn(async move {
            lease::follow(
                client,
                "istio-system",
                "istio-leader",
                election,
                clock,
                leads,
                token,
            )
            .await;
        });
        let (client, token) = (world.own.clone(), stop.clone());
        tasks.spawn(async move {
            tokio::select! {
                () = token.cancelled() => {}
                () = read(client, views) => {}
            }
        });
        let duties = Duties {
            root_config_map: Some("istio-ca-root-cert".to_owned()),
            addresses: Some(("240.240.0.0/16".parse()?, "2001:2::/48".parse()?)),
        };
        let inputs = Inputs {
            views: seen,
            roots: root,
            leads: led.clone(),
            wanted: wishes,
        };
        tasks.spawn(leader::run(world.own.clone(), duties, inputs, stop.clone()));
        Ok(Self {
            leads: led,
            roots,
            wanted,
            stop,
            tasks,
        })
    }

    fn leads(&self) -> bool {
        *self.leads.borrow()
    }

    /// Ends as a crash would: nothing is given up.
    async fn kill(&mut self) {
        self.tasks.shutdown().await;
    }

    /// Ends as a signal would.
    async fn terminate(&mut self) {
        self.stop.cancel();
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Reads the cluster as the control plane does, as far as what it writes depends on it. Nothing is told
/// before everything is known.
async fn read(client: Client, views: watch::Sender<Option<View>>) {
    let (cluster, tables) = (Arc::from("Kubernetes"), Tables::default());
    let options = SourceOptions {
        cluster: Arc::clone(&cluster),
        kinds: vec![Kind::Namespace, Kind::ServiceEntry],
    };
    let source = ClusterSource::new(client, options, tables.clone());
    let (changes, mut inbox) = mpsc::channel(64);
    let mut intake = Intake::new(Options::default());
    let follow = async {
        let (mut settled, mut known) = (pin!(tables.settled(&cluster)), false);
        loop {
            tokio::select! {
                biased;
                Some(batch) = inbox.recv() => {
                    intake.apply(batch, Instant::now().into_std());
                }
                () = &mut settled, if !known => known = true,
            }
            if known {
                views.send_replace(Some(View::of(&intake.state())));
            }
        }
    };
    tokio::join!(source.run(changes), follow);
}

/// Versions of objects, to see that nothing is written any more.
async fn versions(world: &World) -> Result<BTreeMap<String, String>> {
    let all = ListParams::default();
    let mut versions = BTreeMap::new();
    for map in Api::<ConfigMap>::all(world.admin.clone())
        .list(&all)
        .await?
    {
        let name = format!("{}/{}", map.namespace().unwrap_or_default(), map.name_any());
        versions.insert(name, map.resource_version().unwrap_or_default());
    }
    for entry in world.entries().list(&all).await? {
        versions.insert(
            entry.name_any(),
            entry.resource_version().unwrap_or_default(),
        );
    }
    Ok(versions)
}

/// Sees that nothing is written.
async fn quiet(world: &World) -> Result<()> {
    let before = versions(world).await?;
    sleep(QUIET).await;
    let after = versions(world).await?;
    ensure!(
        before == after,
        "written without need: {before:?}, then {after:?}"
    );
    Ok(())
}

fn entry(name: &str, hosts: &[&str]) -> String {
    json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "ServiceEntry",
        "metadata": {"namespace": "shop", "name": name},
        "spec": {"hosts": hosts, "resolution": "DNS", "ports": [{"number": 80, "name": "http"}]},
    })
    .to_string()
}

async fn holds_root(maps: &Api<ConfigMap>, expected: &str) -> Result<()> {
    let map = maps.get("istio-ca-root-cert").await?;
    let root = map.data.as_ref().and_then(|data| data.get(roots::KEY));
    ensure!(
        root.is_some_and(|root| root == expected),
        "it holds {root:?}"
    );
    Ok(())
}

async fn addresses(world: &World, name: &str) -> Result<Vec<String>> {
    let entry = world.entries().get(name).await?;
    let addresses = entry.data["status"]["addresses"]
        .as_array()
        .context("no addresses yet")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Ok(addresses
        .iter()
        .map(|a| format!("{} {}", text(&a["value"]), text(&a["host"])))
        .collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go, which builds the API server"]
async fn one_replica_leads_and_another_takes_over() -> Result<()> {
    let world = World::new().await?;
    let timing = Timing::of(4);
    let mut a = Replica::start(&world, "a", timing)?;
    until("a leads", SOON, async || {
        ensure!(a.leads());
        Ok(())
    })
    .await?;
    let mut b = Replica::start(&world, "b", timing)?;
    sleep(timing.lease * 2).await;
    ensure!(a.leads() && !b.leads(), "the one that leads stays");

    let killed = Instant::now();
    a.kill().await;
    until("b takes over", SOON, async || {
        ensure!(b.leads());
        Ok(())
    })
    .await?;
    let took = killed.elapsed();
    // Seen up to a look ago, believed for a lease, looked at again.
    let bound = timing.lease + timing.retry * 2 + Duration::from_secs(1);
    ensure!(took <= bound, "took over after {took:?}");
    // The killed one had at most a lease left: nobody else led meanwhile.
    ensure!(
        took + timing.retry * 2 >= timing.lease,
        "took over after {took:?} already"
    );

    let mut c = Replica::start(&world, "c", timing)?;
    sleep(timing.retry * 2).await;
    ensure!(!c.leads());
    let ended = Instant::now();
    b.terminate().await;
    until("c takes over", SOON, async || {
        ensure!(c.leads());
        Ok(())
    })
    .await?;
    let took = ended.elapsed();
    ensure!(
        took <= timing.retry * 2 + Duration::from_secs(1),
        "given up, and taken after {took:?}"
    );
    let lease = Api::<Lease>::namespaced(world.admin.clone(), "istio-system")
        .get("istio-leader")
        .await?;
    let spec = lease.spec.context("a lease that says nothing")?;
    ensure!(spec.holder_identity.as_deref() == Some("c"), "{spec:?}");
    ensure!(spec.lease_transitions == Some(2), "{spec:?}");
    c.terminate().await;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go, which builds the API server"]
async fn the_leader_writes_what_is_missing_and_nothing_twice() -> Result<()> {
    let mut world = World::new().await?;
    world.cluster.namespace("shop").await?;
    world
        .cluster
        .apply(&entry("first", &["a.example.com", "*.wild.example.com"]))
        .await?;
    let timing = Timing::of(8);
    let mut leader = Replica::start(&world, "a", timing)?;
    let mut idle = Replica::start(&world, "b", timing)?;

    let shop = world.root_map("shop");
    // In all, or the first writes would be under way when nothing more may be written.
    let first = ["shop", "default", "istio-system"].map(|namespace| world.root_map(namespace));
    until("the root is in every namespace", SOON, async || {
        for map in &first {
            holds_root(map, "one root\n").await?;
        }
        Ok(())
    })
    .await?;
    let expected = ["240.240.0.1 a.example.com", "2001:2::1 a.example.com"];
    until("addresses are there", SOON, async || {
        let found = addresses(&world, "first").await?;
        ensure!(found == expected, "{found:?}");
        Ok(())
    })
    .await?;
    ensure!(
        world
            .root_map("kube-system")
            .get_opt("istio-ca-root-cert")
            .await?
            .is_none()
    );
    quiet(&world).await?;

    // New namespaces and entries.
    world.cluster.namespace("later").await?;
    let later = world.root_map("later");
    until("the root is in a new one", SOON, async || {
        holds_root(&later, "one root\n").await
    })
    .await?;
    world
        .cluster
        .apply(&entry("second", &["b.example.com"]))
        .await?;
    until("addresses of another entry", SOON, async || {
        let found = addresses(&world, "second").await?;
        ensure!(
            found
                .first()
                .is_some_and(|first| first == "240.240.0.2 b.example.com"),
            "{found:?}"
        );
        Ok(())
    })
    .await?;

    // Repair: edited, deleted.
    let spoilt = json!({"data": {roots::KEY: "another root"}});
    let parameters = PatchParams::default();
    shop.patch("istio-ca-root-cert", &parameters, &Patch::Merge(&spoilt))
        .await?;
    until("an edit is undone", SOON, async || {
        holds_root(&shop, "one root\n").await
    })
    .await?;
    later
        .delete("istio-ca-root-cert", &DeleteParams::default())
        .await?;
    until("what was deleted is back", SOON, async || {
        holds_root(&later, "one root\n").await
    })
    .await?;
    quiet(&world).await?;

    // Another root.
    leader.roots.send_replace("two roots\n".to_owned());
    idle.roots.send_replace("two roots\n".to_owned());
    until("the new root is everywhere", SOON, async || {
        holds_root(&shop, "two roots\n").await?;
        holds_root(&later, "two roots\n").await
    })
    .await?;

    // The API server is gone for a while, and the leader with it.
    world.cluster.kill_api_server().await?;
    let (gone, back) = if leader.leads() {
        (&mut leader, &mut idle)
    } else {
        (&mut idle, &mut leader)
    };
    gone.kill().await;
    world.cluster.start_api_server().await?;
    world.cluster.namespace("last").await?;
    world
        .cluster
        .apply(&entry("third", &["c.example.com"]))
        .await?;
    let last = world.root_map("last");
    until("the other one goes on", timing.lease + SOON, async || {
        holds_root(&last, "two roots\n").await
    })
    .await?;
    until("it knows the addresses in use", SOON, async || {
        let found = addresses(&world, "third").await?;
        ensure!(
            found
                .first()
                .is_some_and(|first| first == "240.240.0.3 c.example.com"),
            "{found:?}"
        );
        Ok(())
    })
    .await?;
    ensure!(
        addresses(&world, "first").await? == expected,
        "what was given stays"
    );
    quiet(&world).await?;

    // What others want to have written: the newest of many, in few writes.
    let gateway = json!({
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"namespace": "shop", "name": "edge"},
        "spec": {"gatewayClassName": "istio", "listeners": []},
    });
    world.cluster.apply(&gateway.to_string()).await?;
    let gateways = ApiResource::from_gvk(&GroupVersionKind::gvk(
        "gateway.networking.k8s.io",
        "v1",
        "Gateway",
    ));
    let gateways = Api::<DynamicObject>::namespaced_with(world.admin.clone(), "shop", &gateways);
    let mut edge = gateways.get("edge").await?;
    let version = edge.resource_version().unwrap_or_default();
    let watching = WatchParams::default().fields("metadata.name=edge");
    let mut changes = gateways.watch(&watching, &version).await?.boxed();
    for routes in 1..=1000 {
        back.wanted.send_replace(vec![attached(routes)]);
        tokio::task::yield_now().await;
    }
    let mut writes = 0;
    while edge.data["status"]["listeners"][0]["attachedRoutes"] != 1000 {
        let change = timeout(SOON, changes.next())
            .await
            .context("the newest status is not there")?;
        if let Some(WatchEvent::Modified(changed)) = change.transpose()? {
            (edge, writes) = (changed, writes + 1);
        }
    }
    ensure!(writes <= 5, "{writes} writes for 1000 changes");
    let managed = edge.metadata.managed_fields.unwrap_or_default();
    ensure!(
        managed
            .iter()
            .any(|m| m.manager.as_deref() == Some("istiod")),
        "{managed:?}"
    );
    back.terminate().await;
    Ok(())
}

/// The status of a gateway with so many routes.
fn attached(routes: u32) -> Wanted {
    Wanted {
        target: Target {
            resource: Resource {
                group: "gateway.networking.k8s.io",
                version: "v1",
                kind: "Gateway",
                plural: "gateways",
            },
            part: Part::Status,
            namespace: "shop".to_owned(),
            name: "edge".to_owned(),
        },
        fields: json!({"status": {"listeners": [{"name": "http", "attachedRoutes": routes}]}}),
        seen: None,
        strict: false,
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go, which builds the API server"]
async fn tokens_of_service_accounts_prove_who_they_are_of() -> Result<()> {
    let world = World::new().await?;
    world.cluster.namespace("shop").await?;
    world.cluster.service_account("shop", "web").await?;
    let audiences = vec!["istio-ca".to_owned()];
    let tokens = ClusterTokens::new(world.own.clone(), audiences, || "example.org".to_owned());

    let token = world.cluster.token("shop", "web", &["istio-ca"]).await?;
    let identity = tokens.review(&token, clock()).await?.identity;
    ensure!(
        identity.to_string() == "spiffe://example.org/ns/shop/sa/web",
        "{identity}"
    );

    let refused = async |token: &str| match tokens.review(token, clock()).await {
        Err(Unreviewed::Refused(error)) => Ok(error),
        other => bail!("not refused: {other:?}"),
    };
    for audiences in [&["other"][..], &[]] {
        let token = world.cluster.token("shop", "web", audiences).await?;
        let error = refused(&token).await?;
        ensure!(
            matches!(error, TokenError::Rejected(_) | TokenError::Audience),
            "{error}"
        );
    }
    // One letter of the signature is another one.
    let middle = token.rfind('.').context("a token without a signature")? + 10;
    let letter = if token.as_bytes()[middle] == b'A' {
        "B"
    } else {
        "A"
    };
    let forged = format!("{}{letter}{}", &token[..middle], &token[middle + 1..]);
    refused(&forged).await?;
    refused("nonsense").await?;

    let accounts = Api::<ServiceAccount>::namespaced(world.admin.clone(), "shop");
    accounts.delete("web", &DeleteParams::default()).await?;
    // The API server remembers what it has said for some seconds.
    until(
        "tokens of a deleted account are refused",
        SOON,
        async || refused(&token).await,
    )
    .await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go, which builds the API server"]
async fn replicas_that_begin_at_once_have_one_root() -> Result<()> {
    let world = World::new().await?;
    let kept = Kept::new(world.own.clone(), "istio-system", "istio-ca-secret");
    let mut opening = JoinSet::new();
    for _ in 0..4 {
        let kept = kept.clone();
        opening.spawn(async move { kept.open("cluster.local", LIFETIME, clock()).await });
    }
    let mut roots = Vec::new();
    while let Some(opened) = opening.join_next().await {
        let store = AuthorityStore::kept_in(kept.place(), &opened??, clock())?;
        roots.push(store.current().roots().to_vec());
    }
    ensure!(
        roots.len() == 4 && roots.iter().all(|root| *root == roots[0]),
        "several roots"
    );
    let secrets = Api::<Secret>::namespaced(world.admin.clone(), "istio-system");
    let secret = secrets.get("istio-ca-secret").await?;
    ensure!(
        secret.type_.as_deref() == Some("istio.io/ca-root"),
        "{:?}",
        secret.type_
    );
    let names: Vec<String> = secret.data.unwrap_or_default().into_keys().collect();
    let expected = [
        "ca-cert.pem",
        "ca-key.pem",
        "cert-chain.pem",
        "root-cert.pem",
    ];
    ensure!(names == expected, "{names:?}");

    // What is no authority is not replaced.
    let other = Kept::new(world.own.clone(), "istio-system", "other");
    let empty = json!({"apiVersion": "v1", "kind": "Secret",
        "metadata": {"namespace": "istio-system", "name": "other"}});
    world.cluster.apply(&empty.to_string()).await?;
    let error = other.open("cluster.local", LIFETIME, clock()).await.err();
    ensure!(error.is_some_and(|error| error.to_string().contains("holds no authority")));
    // Nor may the control plane look elsewhere for one to write.
    let elsewhere = Kept::new(world.own.clone(), "default", "istio-ca-secret");
    ensure!(
        elsewhere
            .open("cluster.local", LIFETIME, clock())
            .await
            .is_err()
    );
    Ok(())
}

/// Two `istiod` processes with the roles of the manifests, and workloads that ask them for certificates.
struct Replicas {
    world: World,
    folder: TempDir,
    running: BTreeMap<String, ControlPlane>,
}

impl Replicas {
    async fn start() -> Result<Self> {
        let world = World::new().await?;
        let folder = tempfile::Builder::new().prefix("replicas-").tempdir()?;
        let mut running = BTreeMap::new();
        for name in ["a", "b"] {
            let kubeconfig = world
                .cluster
                .kubeconfig_of("istio-system", "istiod")
                .await?;
            let setup = Setup {
                config: Vec::new(),
                arguments: vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()],
                environment: vec![
                    ("POD_NAME".to_owned(), name.to_owned()),
                    ("ROOT_CA_DIR".to_owned(), "/nonexistent".to_owned()),
                ],
                log: folder.path().join(format!("{name}.log")),
                ..Setup::new("", folder.path())?
            };
            running.insert(name.to_owned(), ControlPlane::start(setup).await?);
        }
        Ok(Self {
            world,
            folder,
            running,
        })
    }

    /// Writes the root that a namespace has to a file, for workloads there.
    async fn root(&self, namespace: &str) -> Result<PathBuf> {
        let map = self
            .world
            .root_map(namespace)
            .get("istio-ca-root-cert")
            .await?;
        let root = map
            .data
            .and_then(|mut data| data.remove(roots::KEY))
            .context("no root")?;
        let path = self.folder.path().join(format!("root-{namespace}.pem"));
        fs::write(&path, root)?;
        Ok(path)
    }

    /// Has a replica certify the workload `shop/web` that shows a token, trusting the namespace's root.
    async fn certify(&self, replica: &str, audience: &str) -> Result<()> {
        let token = self.world.cluster.token("shop", "web", &[audience]).await?;
        let path = self.folder.path().join("token");
        fs::write(&path, token)?;
        // A fresh one: what is there and good would not be asked for again.
        let out = tempfile::tempdir_in(self.folder.path())?;
        let address = self.running[replica].setup().secure;
        let output = Command::new(control_plane::binary().await?)
            .args([
                "certificate",
                "--once",
                "--namespace",
                "shop",
                "--service-account",
                "web",
            ])
            .arg("--out")
            .arg(out.path())
            .arg("--token")
            .arg(&path)
            .arg("--ca-root")
            .arg(self.root("shop").await?)
            .args(["--ca-address", &address.to_string()])
            .kill_on_drop(true)
            .output();
        let output = timeout(SOON, output)
            .await
            .context("no certificate in time")??;
        ensure!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Who holds the Lease.
    async fn leader(&self) -> Result<String> {
        let leases = Api::<Lease>::namespaced(self.world.admin.clone(), "istio-system");
        let lease = leases.get("istio-leader").await?;
        let holder = lease.spec.and_then(|spec| spec.holder_identity);
        holder
            .filter(|holder| !holder.is_empty())
            .context("nobody leads")
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "needs Go, which builds the API server"]
async fn istiods_share_an_authority_and_one_of_them_writes() -> Result<()> {
    let mut replicas = Replicas::start().await?;
    replicas.world.cluster.namespace("shop").await?;
    replicas
        .world
        .cluster
        .service_account("shop", "web")
        .await?;
    replicas
        .world
        .cluster
        .apply(&entry("first", &["a.example.com"]))
        .await?;
    until("the root is in a namespace", SOON, async || {
        replicas.root("shop").await
    })
    .await?;
    for replica in ["a", "b"] {
        replicas.certify(replica, "istio-ca").await?;
        let error = replicas
            .certify(replica, "other")
            .await
            .err()
            .context("a wrong audience")?;
        ensure!(format!("{error:#}").contains("authenticat"), "{error:#}");
    }
    let expected = ["240.240.0.1 a.example.com", "2001:2::1 a.example.com"];
    until("addresses are there", SOON, async || {
        let found = addresses(&replicas.world, "first").await?;
        ensure!(found == expected, "{found:?}");
        Ok(())
    })
    .await?;
    quiet(&replicas.world).await?;

    // The one that writes is killed; the other goes on when the lease is over.
    let leader = replicas.leader().await?;
    let mut killed = replicas
        .running
        .remove(&leader)
        .context("the leader is a replica")?;
    let died = Instant::now();
    killed.kill().await?;
    replicas.world.cluster.namespace("later").await?;
    let lease = Timing::default().lease;
    until("the other one writes", lease + SOON, async || {
        replicas.root("later").await
    })
    .await?;
    let (other, _) = replicas.running.first_key_value().context("one is left")?;
    let other = other.clone();
    ensure!(
        replicas.leader().await? == other,
        "{} leads",
        replicas.leader().await?
    );
    ensure!(
        died.elapsed() > lease / 2,
        "taken over after {:?} already",
        died.elapsed()
    );
    ensure!(
        addresses(&replicas.world, "first").await? == expected,
        "what was given stays"
    );

    // Another root in the Secret is taken over, and told to everybody.
    let next = AuthorityParts::self_signed("cluster.local", LIFETIME, clock())?;
    let data: BTreeMap<&str, String> = next
        .named()
        .map(|(name, text)| (name, BASE64_STANDARD.encode(text)))
        .collect();
    let secrets = Api::<Secret>::namespaced(replicas.world.admin.clone(), "istio-system");
    let patch = Patch::Merge(json!({"data": data}));
    secrets
        .patch("istio-ca-secret", &PatchParams::default(), &patch)
        .await?;
    let root = next
        .named()
        .find(|(name, _)| *name == "root-cert.pem")
        .map(|(_, text)| text);
    let root = root.context("a root")?;
    let shop = replicas.world.root_map("shop");
    until("the new root is told", SOON, async || {
        holds_root(&shop, root).await
    })
    .await?;
    until("its certificates are of the new root", SOON, async || {
        replicas.certify(&other, "istio-ca").await
    })
    .await?;
    Ok(())
}

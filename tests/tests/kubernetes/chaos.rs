//! Everything is killed at random while the mesh changes; the end is that of a cold start.

use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

use anyhow::{Context as _, Result, ensure};
use kube::Client;
use serde_json::Value;
use tests::{control_plane::ControlPlane, envoy::Envoy, process::until};
use tokio::{
    sync::watch,
    time::{Instant, sleep, timeout},
};

use super::{
    Mesh, SOON, assigned, endpoints,
    objects::{mesh_map, pod, routed, rule, service, slice},
    tables,
};

/// For how many seconds things are killed; a minute for each of five for what a release has to stand.
const SECONDS: &str = "CHAOS_SECONDS";
const DEFAULT_SECONDS: u64 = 40;
/// What a run printed; it makes the same choices again, though not at the same moments.
const SEED: &str = "CHAOS_SEED";
/// After so much killing everything is left in peace, and looked at.
const ROUND: Duration = Duration::from_secs(20);
/// Longest time from the start of an API server to its readiness, and some more.
const API_START: Duration = Duration::from_mins(2);
/// Longest time until all that was killed has found its way back, on a machine that does other things.
const PEACE: Duration = Duration::from_mins(2);
const APPS: usize = 6;
const PODS: usize = 24;
/// Few, so that addresses of dead pods are soon those of others.
const ADDRESSES: usize = 32;

/// Random numbers: the same after the same seed.
struct Random(u64);

impl Random {
    /// A number below `end`.
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        usize::try_from(mixed % end as u64).unwrap_or_default()
    }

    /// Nothing to `longest` milliseconds.
    fn pause(&mut self, longest: usize) -> Duration {
        Duration::from_millis(self.below(longest) as u64)
    }
}

fn app(number: usize) -> String {
    format!("app{number}")
}

fn host(number: usize) -> String {
    format!("app{number}.a.svc.cluster.local")
}

/// What the cluster holds, or will once the writes that are under way have got through.
struct World {
    random: Random,
    /// Which services there are.
    services: [bool; APPS],
    /// By its number: the app of a pod and its address.
    pods: BTreeMap<usize, (usize, usize)>,
    ports: [u16; 3],
    workloads: [(&'static str, u16); 2],
    writes: usize,
}

fn address(number: usize) -> String {
    format!("10.1.0.{}", 1 + number)
}

impl World {
    /// Addresses of an app's pods, sorted as text.
    fn addresses(&self, of: usize) -> Vec<String> {
        let own = self.pods.values().filter(|(app, _)| *app == of);
        let mut addresses: Vec<String> = own.map(|(_, number)| address(*number)).collect();
        addresses.sort();
        addresses
    }

    /// The slice that lists an app's pods, as a controller would write it.
    fn slice(&self, of: usize) -> Value {
        let own = self.pods.iter().filter(|(_, (app, _))| *app == of);
        let listed: Vec<(String, String)> = own
            .map(|(number, (_, at))| (format!("p{number}"), address(*at)))
            .collect();
        let pairs: Vec<(&str, &str)> = listed.iter().map(|(n, a)| (&**n, &**a)).collect();
        slice(&app(of), &app(of), &pairs)
    }

    /// Makes everything once.
    async fn first(&mut self, client: &Client) {
        for number in 0..APPS {
            self.services[number] = true;
            self.write(client, &service(&app(number), 80)).await;
        }
        for number in 0..PODS / 2 {
            self.replace_pod(client, number).await;
        }
        for object in routed(self.workloads, self.workloads[0].0) {
            self.write(client, &object).await;
        }
    }

    /// Changes the mesh until told to stop, between two changes.
    async fn change(&mut self, client: &Client, stop: &watch::Receiver<bool>) {
        while !*stop.borrow() {
            let number = self.random.below(PODS);
            match self.random.below(10) {
                0..6 => self.replace_pod(client, number).await,
                6 => {
                    if let Some((of, _)) = self.pods.remove(&number) {
                        self.remove(client, &pod(&format!("p{number}"), "", ""))
                            .await;
                        self.write(client, &self.slice(of)).await;
                    }
                }
                7 => {
                    let of = number % APPS;
                    self.services[of] = !self.services[of];
                    let object = service(&app(of), 80);
                    if self.services[of] {
                        self.write(client, &object).await;
                    } else {
                        self.remove(client, &object).await;
                    }
                }
                8 => {
                    let to = self.workloads[number % 2].0;
                    for object in routed(self.workloads, to) {
                        self.write(client, &object).await;
                    }
                }
                _ => {
                    let object = rule(&format!("r{}", number % 4), "");
                    if number < PODS / 2 {
                        self.write(client, &object).await;
                    } else {
                        self.remove(client, &object).await;
                    }
                    let mut map = mesh_map("istio", self.ports);
                    let mut mesh = map["data"]["mesh"].as_str().unwrap_or_default().to_owned();
                    writeln!(mesh, "connectTimeout: {}s", 1 + number).ok();
                    map["data"]["mesh"] = mesh.into();
                    self.write(client, &map).await;
                }
            }
            sleep(self.random.pause(50)).await;
        }
    }

    /// A pod dies, and another one of its name has any address that is free. Whose slices change does
    /// so before or after the pod.
    async fn replace_pod(&mut self, client: &Client, number: usize) {
        let name = format!("p{number}");
        let before = self.pods.remove(&number);
        if before.is_some() {
            self.remove(client, &pod(&name, "", "")).await;
        }
        let taken: Vec<usize> = self.pods.values().map(|(_, address)| *address).collect();
        let mut at = self.random.below(ADDRESSES);
        while taken.contains(&at) {
            at = (at + 1) % ADDRESSES;
        }
        let of = self.random.below(APPS);
        self.pods.insert(number, (of, at));
        let object = pod(&name, &app(of), &address(at));
        let pod_first = self.random.below(2) == 0;
        if pod_first {
            self.write(client, &object).await;
        }
        if let Some((old, _)) = before.filter(|(old, _)| *old != of) {
            self.write(client, &self.slice(old)).await;
        }
        self.write(client, &self.slice(of)).await;
        if !pod_first {
            self.write(client, &object).await;
        }
    }

    /// Applies an object, as often as it takes.
    async fn write(&mut self, client: &Client, object: &Value) {
        let text = object.to_string();
        insist(async || tests::kubernetes::apply(client, &text).await).await;
        self.writes += 1;
    }

    /// Deletes an object, as often as it takes.
    async fn remove(&mut self, client: &Client, object: &Value) {
        let text = object.to_string();
        insist(
            async || match tests::kubernetes::delete(client, &text).await {
                Err(error) if is_gone(&error) => Ok(()),
                other => other,
            },
        )
        .await;
        self.writes += 1;
    }
}

fn is_gone(error: &anyhow::Error) -> bool {
    let cause = error.downcast_ref::<kube::Error>();
    matches!(cause, Some(kube::Error::Api(status)) if status.code == 404)
}

/// Tries until it succeeds: whoever writes into a cluster outlives its API server.
async fn insist(mut attempt: impl AsyncFnMut() -> Result<()>) {
    while !matches!(timeout(SOON, attempt()).await, Ok(Ok(()))) {
        sleep(Duration::from_millis(100)).await;
    }
}

/// What is killed.
struct Scene {
    mesh: Mesh,
    istiod: ControlPlane,
    envoy: Envoy,
    random: Random,
    /// How often each thing happened.
    done: BTreeMap<&'static str, usize>,
}

impl Scene {
    /// Kills things until the time is over. All of them run when it returns.
    async fn kill(&mut self, until: Instant) -> Result<()> {
        while Instant::now() < until {
            sleep(self.random.pause(2_000)).await;
            let pause = self.random.pause(3_000);
            let what = match self.random.below(6) {
                0 => {
                    self.mesh.cluster.kill_api_server().await?;
                    sleep(pause).await;
                    self.mesh.cluster.start_api_server().await?;
                    "API server"
                }
                1 => {
                    self.istiod.kill().await?;
                    sleep(pause).await;
                    self.istiod = ControlPlane::start(self.istiod.setup().clone()).await?;
                    "istiod"
                }
                2 => {
                    self.envoy.kill().await?;
                    self.envoy = self.mesh.envoy(&self.istiod).await?;
                    "Envoy"
                }
                3 => {
                    self.mesh.cluster.kill_etcd().await?;
                    sleep(pause).await;
                    self.mesh.cluster.start_etcd().await?;
                    "etcd"
                }
                4 => {
                    // What is missed meanwhile is forgotten: no watch can go on where it was.
                    self.mesh.cluster.kill_api_server().await?;
                    self.mesh.cluster.compact().await?;
                    self.mesh.cluster.start_api_server().await?;
                    "API server with a compaction"
                }
                _ => {
                    self.mesh.cluster.kill_api_server().await?;
                    self.istiod.kill().await?;
                    // It is ready after the API server.
                    let mut setup = self.istiod.setup().clone();
                    setup.patience = 2 * API_START;
                    let (api, istiod) = tokio::join!(
                        self.mesh.cluster.start_api_server(),
                        ControlPlane::start(setup)
                    );
                    api?;
                    self.istiod = istiod?;
                    "API server and istiod at once"
                }
            };
            *self.done.entry(what).or_default() += 1;
        }
        Ok(())
    }

    /// In peace, control plane and Envoy have exactly what lives.
    async fn check(&self, world: &World) -> Result<()> {
        until("every table is fresh", PEACE, async || {
            let tables = tables(&self.istiod).await?;
            let stale: Vec<_> = tables.iter().filter(|(_, s)| *s != "synced").collect();
            ensure!(stale.is_empty(), "{stale:?}");
            Ok(())
        })
        .await?;
        until("all have the endpoints that live", PEACE, async || {
            ensure!(
                self.istiod
                    .counter("pilot_k8s_endpoints_pending_pod")
                    .await?
                    == 0
            );
            let held = self.envoy.held().await?;
            for number in 0..APPS {
                let cluster = format!("outbound|80||{}", host(number));
                let there = held.clusters.contains(&cluster);
                ensure!(there == world.services[number], "{cluster}: {there}");
                if there {
                    let expected = world.addresses(number);
                    let known = endpoints(&self.istiod, &host(number)).await?;
                    ensure!(known == expected, "{cluster}: {known:?}, not {expected:?}");
                    let has = assigned(&self.envoy, &cluster).await?;
                    ensure!(
                        has == expected,
                        "{cluster}: Envoy has {has:?}, not {expected:?}"
                    );
                }
            }
            Ok(())
        })
        .await
    }
}

fn number(variable: &str) -> Result<Option<u64>> {
    #[expect(clippy::disallowed_methods, reason = "for how long, and how again")]
    let text = std::env::var(variable).ok();
    text.map(|text| text.parse().with_context(|| format!("{variable}={text}")))
        .transpose()
}

/// API server, database, control plane and Envoy are killed, together and one by one, and histories are
/// forgotten, while pods, services and rules come, go and change. Whenever there is peace everybody has
/// what lives; in the end that is what a control plane and an Envoy have that start then.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go and Envoy; run by cargo xtask test"]
async fn killed_at_random_the_end_is_that_of_a_cold_start() -> Result<()> {
    let seconds = number(SECONDS)?.unwrap_or(DEFAULT_SECONDS);
    #[expect(clippy::disallowed_methods, reason = "a seed")]
    let now = std::time::SystemTime::now();
    let now = now.duration_since(std::time::UNIX_EPOCH)?.as_secs();
    let seed = number(SEED)?.unwrap_or(now);
    println!("{SEED}={seed} {SECONDS}={seconds}");

    let mesh = Mesh::start().await?;
    let client = mesh.cluster.client().await?;
    let mut world = World {
        random: Random(seed),
        services: [false; APPS],
        pods: BTreeMap::new(),
        ports: mesh.ports,
        workloads: [("one", 7001), ("two", 7002)],
        writes: 0,
    };
    world.first(&client).await;
    let istiod = mesh.istiod("istiod").await?;
    let envoy = mesh.envoy(&istiod).await?;
    let mut scene = Scene {
        mesh,
        istiod,
        envoy,
        random: Random(!seed),
        done: BTreeMap::new(),
    };
    let end = Instant::now() + Duration::from_secs(seconds);
    while Instant::now() < end {
        let (stop, stopped) = watch::channel(false);
        let round = (Instant::now() + ROUND).min(end);
        let killing = async {
            let killed = scene.kill(round).await;
            stop.send_replace(true);
            killed
        };
        let (killed, ()) = tokio::join!(killing, world.change(&client, &stopped));
        killed?;
        scene.check(&world).await?;
    }
    println!("{} writes; killed: {:?}", world.writes, scene.done);

    let Scene {
        mesh,
        istiod,
        mut envoy,
        ..
    } = scene;
    let shards = istiod.monitoring("/debug/endpointShardz").await?;
    let dump = envoy.dump().await?;
    // Both would have the same ports.
    envoy.kill().await?;
    let cold = mesh.istiod("cold").await?;
    ensure!(
        shards == cold.monitoring("/debug/endpointShardz").await?,
        "a cold start knows other endpoints"
    );
    let envoy = mesh.envoy(&cold).await?;
    until("a cold Envoy has the same", SOON, async || {
        let cold = envoy.dump().await?;
        let keys = dump.keys().chain(cold.keys());
        let differ: Vec<_> = keys
            .filter(|key| dump.get(*key) != cold.get(*key))
            .collect();
        ensure!(differ.is_empty(), "{differ:?} differ");
        Ok(())
    })
    .await
}

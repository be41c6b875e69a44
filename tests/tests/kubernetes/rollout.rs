//! Pods that wait for the distribution of their endpoints, on a real API server and through real
//! Envoys. The test plays scheduler, kubelet and controller of a Deployment: a pod's server ends when
//! its object is gone.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, api::DeleteParams};
use serde_json::{Value, json};
use tests::{
    control_plane::{ControlPlane, Setup, use_binary},
    envoy::{self, Envoy},
    http::{Workload, free_port},
    kubernetes::render,
    process::until,
};
use tokio::time::{Instant, sleep};

use super::{Mesh, SOON, istiod, objects, until_assigned};

/// The environment of a control plane that lets pods wait.
const WAITS: [(&str, &str); 2] = [
    ("PILOT_ENABLE_POD_DISTRIBUTION", "true"),
    // The election is another matter.
    ("ENABLE_LEADER_ELECTION", "false"),
];

const GATE: &str = "istio.io/distributed";

/// Longest time to an open gate: the limit, and what it takes to write it.
const GATE_OPENS: Duration = Duration::from_secs(90);

/// A pod of the service, as its Deployment makes it and its kubelet describes it.
fn pod(name: &str, address: &str, waits: bool, ready: bool) -> Value {
    let mut pod = objects::pod(name, "web", address);
    let state = |holds: bool| if holds { "True" } else { "False" };
    pod["status"]["conditions"] = json!([
        {"type": "ContainersReady", "status": "True", "lastTransitionTime": now()},
        {"type": "Ready", "status": state(ready)},
    ]);
    if waits {
        pod["metadata"]["labels"]["istio.io/await-distribution"] = json!("true");
        pod["spec"]["readinessGates"] = json!([{"conditionType": GATE}]);
    }
    pod
}

fn now() -> String {
    k8s_openapi::jiff::Timestamp::now().to_string()
}

/// A host whose endpoints are the pods: an entry, since slices must not list addresses of loopback.
/// Nothing is sent twice.
fn entry(port: u16) -> [Value; 2] {
    let object = |kind: &str, spec: Value| {
        json!({
            "apiVersion": "networking.istio.io/v1", "kind": kind,
            "metadata": {"name": "web", "namespace": "a"}, "spec": spec,
        })
    };
    [
        object(
            "ServiceEntry",
            json!({
                "hosts": ["web.example"], "resolution": "STATIC", "location": "MESH_INTERNAL",
                "ports": [{"number": 80, "name": "http", "protocol": "HTTP", "targetPort": port}],
                "workloadSelector": {"labels": {"app": "web"}},
            }),
        ),
        object(
            "VirtualService",
            json!({
                "hosts": ["web.example"],
                "http": [{"route": [{"destination": {"host": "web.example"}}], "retries": {"attempts": 0}}],
            }),
        ),
    ]
}

/// The pods of a Deployment, with their servers.
struct Deployment<'a> {
    mesh: &'a Mesh,
    pods: Api<Pod>,
    servers: BTreeMap<String, Workload>,
    port: u16,
    waits: bool,
}

impl Deployment<'_> {
    /// Starts a pod, and waits until it is ready.
    async fn add(&mut self, name: &str, address: Ipv4Addr) -> Result<()> {
        let server = Workload::start(name, SocketAddr::from((address, self.port)), None).await?;
        self.servers.insert(name.to_owned(), server);
        let address = address.to_string();
        self.mesh
            .apply(&[pod(name, &address, self.waits, !self.waits)])
            .await?;
        if self.waits {
            // It opens after a minute whatever happens; then the log tells why it did not before.
            until(&format!("the gate of {name}"), GATE_OPENS, async || {
                let pod = self.pods.get(name).await?;
                let conditions = pod.status.and_then(|status| status.conditions);
                let mut conditions = conditions.into_iter().flatten();
                let gate = conditions.find(|condition| condition.type_ == GATE);
                ensure!(
                    gate.is_some_and(|gate| gate.status == "True"),
                    "is not true"
                );
                Ok(())
            })
            .await?;
            // All conditions hold: the kubelet calls it ready.
            self.mesh.apply(&[pod(name, &address, true, true)]).await?;
        }
        Ok(())
    }

    /// Deletes a pod; its server ends when its object is gone. Returns how long that took.
    async fn remove(&mut self, name: &str) -> Result<()> {
        self.pods.delete(name, &DeleteParams::default()).await?;
        until(&format!("{name} is gone"), SOON, async || {
            ensure!(self.pods.get_opt(name).await?.is_none(), "it is there");
            Ok(())
        })
        .await?;
        self.servers.remove(name);
        Ok(())
    }
}

async fn client(mesh: &Mesh, name: &str, istiod: &ControlPlane) -> Result<Envoy> {
    let node = json!({
        "id": format!("sidecar~10.0.0.99~{name}.a~a.svc.cluster.local"),
        "cluster": "client.a",
        "metadata": {"NAMESPACE": "a", "LABELS": {"app": "client"}, "CLUSTER_ID": "Kubernetes"},
    });
    let file = mesh.folder.path().join(format!("{name}.json"));
    fs::write(&file, node.to_string())?;
    let mut envoy = Envoy::start(&envoy::Setup {
        name: name.to_owned(),
        node: file,
        xds: istiod.setup().xds,
        delta: true,
        folder: mesh.folder.path().to_owned(),
    })
    .await?;
    envoy.live().await?;
    Ok(envoy)
}

/// The account of the control plane, with what the chart gives it for this.
async fn account(mesh: &Mesh) -> Result<PathBuf> {
    let manifests = render(&["distribution.pods=true"]).await?;
    mesh.cluster.apply(&manifests).await?;
    // Ports that are free here, whatever the chart says.
    mesh.apply(&[objects::mesh_map("istio", mesh.ports)])
        .await?;
    mesh.cluster.kubeconfig_of("istio-system", "istiod").await
}

/// Two replicas that know of one another, one of which leads.
async fn replicas(mesh: &Mesh, kubeconfig: &Path) -> Result<[ControlPlane; 2]> {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
    let folder = mesh.folder.path();
    let setup = |name: &str| -> Result<Setup> {
        let mut setup = Setup::new(PathBuf::new(), folder)?;
        setup.config.clear();
        setup.log = folder.join(format!("{name}.log"));
        setup.arguments = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
        setup.environment = vec![
            (WAITS[0].0.to_owned(), WAITS[0].1.to_owned()),
            ("POD_NAME".to_owned(), name.to_owned()),
        ];
        Ok(setup)
    };
    let (mut one, mut two) = (setup("one")?, setup("two")?);
    let peers = format!("{},{}", one.monitoring, two.monitoring);
    for setup in [&mut one, &mut two] {
        let peers = ("PILOT_PEERS".to_owned(), peers.clone());
        setup.environment.push(peers);
    }
    Ok([
        ControlPlane::start(one).await?,
        ControlPlane::start(two).await?,
    ])
}

/// Replaces three pods by three others under load; how many requests were sent, and how many failed.
async fn roll(mesh: &Mesh, port: u16, waits: bool) -> Result<(usize, usize)> {
    let mut deployment = Deployment {
        mesh,
        pods: Api::namespaced(mesh.cluster.client().await?, "a"),
        servers: BTreeMap::new(),
        port,
        waits,
    };
    let (old, new) = if waits { (40, 50) } else { (20, 30) };
    let name = |generation: u8, number: u8| format!("web-{}", generation + number);
    let address = |generation: u8, number: u8| Ipv4Addr::new(127, 0, 0, generation + number);
    for number in 0..3 {
        deployment
            .add(&name(old, number), address(old, number))
            .await?;
    }
    let ask = mesh.ask("web.example");
    until("all old ones answer", SOON, async || {
        let answers = ask.tally(30).await?;
        ensure!(answers.len() == 3, "{answers:?}");
        Ok(())
    })
    .await?;
    let loads: Vec<_> = (0..4).map(|_| ask.load()).collect();
    for number in 0..3 {
        deployment
            .add(&name(new, number), address(new, number))
            .await?;
        deployment.remove(&name(old, number)).await?;
    }
    let (mut sent, mut failed) = (0, 0);
    for load in loads {
        let samples = load.end().await?;
        sent += samples.len();
        failed += samples
            .iter()
            .filter(|sample| sample.answer.is_err())
            .count();
    }
    let left: Vec<String> = deployment.servers.keys().cloned().collect();
    until("the new ones answer", SOON, async || {
        let answers = ask.tally(30).await?;
        ensure!(answers.keys().eq(&left), "{answers:?}");
        Ok(())
    })
    .await?;
    for number in 0..3 {
        deployment.remove(&name(new, number)).await?;
    }
    Ok((sent, failed))
}

/// A rolling update under load, through Envoys of two replicas, loses no request.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go and Envoy; run by cargo xtask test"]
async fn a_rolling_update_loses_no_request() -> Result<()> {
    let mesh = Mesh::start().await?;
    let kubeconfig = account(&mesh).await?;
    let port = free_port()?;
    mesh.apply(&entry(port)).await?;
    let [one, two] = replicas(&mesh, &kubeconfig).await?;
    // Whichever leads has to ask the other one about its Envoy.
    let near = client(&mesh, "near", &one).await?;
    let far = client(&mesh, "far", &two).await?;
    let (sent, failed) = roll(&mesh, port, false).await?;
    println!("without: {failed} of {sent} requests failed");
    let (sent, failed) = roll(&mesh, port, true).await?;
    println!("with:    {failed} of {sent} requests failed");
    for log in [one.log(), two.log()] {
        ensure!(!log.contains("waited long enough"), "{log}");
    }
    ensure!(failed == 0, "{failed} of {sent} requests failed");
    ensure!(sent > 100, "only {sent} requests");
    let metrics = [
        one.monitoring("/metrics").await?,
        two.monitoring("/metrics").await?,
    ]
    .concat();
    let metric = |event: &str, reason: &str| {
        format!("pilot_distribution_pods_total{{event=\"{event}\",reason=\"{reason}\"}}")
    };
    ensure!(!metrics.contains("TimedOut"), "{metrics}");
    for (event, reason) in [
        ("held", ""),
        ("ready", "Distributed"),
        ("released", "Distributed"),
    ] {
        ensure!(metrics.contains(&metric(event, reason)), "{metrics}");
    }
    for envoy in [near, far] {
        let rejections = envoy.rejections().await?;
        ensure!(rejections.is_empty(), "{rejections:?}");
    }
    Ok(())
}

/// A slice that calls a pod unready does not keep its endpoint from proxies when only they are waited for;
/// nor does one that is late keep it there.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go and Envoy; run by cargo xtask test"]
async fn pods_of_slices_wait_too() -> Result<()> {
    let mesh = Mesh::start().await?;
    let kubeconfig = account(&mesh).await?;
    let istiod = istiod(mesh.folder.path(), "istiod", &kubeconfig, &WAITS).await?;
    let envoy = client(&mesh, "client", &istiod).await?;
    let mut slice = objects::slice("web", "web", &[("p1", "10.1.0.1")]);
    slice["endpoints"][0]["conditions"] =
        json!({"ready": false, "serving": false, "terminating": false});
    mesh.apply(&[
        objects::service("web", 80),
        pod("p1", "10.1.0.1", true, false),
        slice.clone(),
    ])
    .await?;
    let pods: Api<Pod> = Api::namespaced(mesh.cluster.client().await?, "a");
    until("the gate is true", SOON, async || {
        let pod = pods.get("p1").await?;
        let conditions = pod.status.and_then(|status| status.conditions);
        let gate = conditions.into_iter().flatten().find(|c| c.type_ == GATE);
        let gate = gate.context("no gate yet")?;
        ensure!(gate.reason.as_deref() == Some("Distributed"), "{gate:?}");
        Ok(())
    })
    .await?;
    let cluster = "outbound|80||web.a.svc.cluster.local";
    until_assigned(&envoy, cluster, &["10.1.0.1"]).await?;
    // What the controller of slices says, once the kubelet has called it ready.
    slice["endpoints"][0]["conditions"] =
        json!({"ready": true, "serving": true, "terminating": false});
    mesh.apply(&[pod("p1", "10.1.0.1", true, true), slice])
        .await?;
    pods.delete("p1", &DeleteParams::default()).await?;
    until("the pod is gone", SOON, async || {
        ensure!(pods.get_opt("p1").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    // Nobody had to look again.
    until_assigned(&envoy, cluster, &[]).await?;
    let log = istiod.log();
    ensure!(!log.contains("waited long enough"), "{log}");
    Ok(())
}

/// A control plane that is killed while a pod waits blocks it for no longer than the limit.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go and Envoy; run by cargo xtask test"]
async fn a_killed_control_plane_blocks_nobody_for_ever() -> Result<()> {
    const LIMIT: Duration = Duration::from_secs(15);
    let mesh = Mesh::start().await?;
    let kubeconfig = account(&mesh).await?;
    // With the election: the one that comes after it waits until the lease of the killed one is over.
    let environment = [WAITS[0], ("PILOT_POD_RELEASE_TIMEOUT", "15s")];
    let folder = mesh.folder.path();
    let mut killed = istiod(folder, "killed", &kubeconfig, &environment).await?;
    let envoy = client(&mesh, "client", &killed).await?;
    mesh.apply(&[
        objects::service("web", 80),
        pod("p1", "10.1.0.1", true, false),
        pod("p2", "10.1.0.2", true, false),
        objects::slice("web", "web", &[("p1", "10.1.0.1"), ("p2", "10.1.0.2")]),
    ])
    .await?;
    let pods: Api<Pod> = Api::namespaced(mesh.cluster.client().await?, "a");
    let held = async |name: &str| -> Result<bool> {
        let pod = pods.get(name).await?;
        Ok(pod
            .metadata
            .finalizers
            .is_some_and(|names| !names.is_empty()))
    };
    until("both are held", SOON, async || {
        ensure!(held("p1").await? && held("p2").await?, "they are not");
        Ok(())
    })
    .await?;
    let cluster = "outbound|80||web.a.svc.cluster.local";
    until_assigned(&envoy, cluster, &["10.1.0.1", "10.1.0.2"]).await?;
    // A proxy that does not answer holds it.
    envoy.stop().await?;
    let deleted = Instant::now();
    pods.delete("p1", &DeleteParams::default()).await?;
    sleep(Duration::from_secs(3)).await;
    ensure!(held("p1").await?, "gone, though a proxy sends it requests");
    killed.kill().await?;
    let next = istiod(folder, "next", &kubeconfig, &environment).await?;
    until("it is gone", LIMIT + Duration::from_mins(1), async || {
        ensure!(pods.get_opt("p1").await?.is_none(), "it is there");
        Ok(())
    })
    .await?;
    println!("gone {:?} after its deletion", deleted.elapsed());
    ensure!(
        deleted.elapsed() + Duration::from_secs(1) >= LIMIT,
        "before its time"
    );
    let log = next.log();
    ensure!(log.contains("released"), "{log}");
    // Who opts out is let go at once.
    let mut free = pod("p2", "10.1.0.2", true, true);
    free["metadata"]["labels"]["istio.io/await-distribution"] = json!("false");
    mesh.apply(&[free]).await?;
    until("it is not held", SOON, async || {
        ensure!(!held("p2").await?, "it is");
        Ok(())
    })
    .await?;
    Ok(())
}

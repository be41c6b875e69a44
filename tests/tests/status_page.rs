//! The status page, in a real Chromium that is driven by `WebDriver`: what it shows of a live mesh, with a
//! keyboard alone, kept live, and in what it looks like. `cargo xtask test` runs it.
//!
//! `UPDATE_SCREENSHOT=1` keeps the picture as `docs/status.png`.

use std::{fs, path::Path, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use fantoccini::{Client, ClientBuilder, Locator, key::Key};
use serde_json::json;
use tests::{
    control_plane::{ControlPlane, Setup, use_binary},
    corpus::workspace,
    http::free_port,
    load::{self, Churn, Form, Options},
    process::{Process, until},
};
use tokio::process::Command;

/// Longest time for a step: far more than it takes.
const SOON: Duration = Duration::from_secs(30);

/// Chromium, without a window and without asking the network for anything of its own.
const ARGUMENTS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--window-size=1280,1400",
];

struct Browser {
    client: Client,
    // Ends with it.
    _driver: Process,
}

async fn browser(folder: &Path) -> Result<Browser> {
    let port = free_port()?;
    let mut command = Command::new("chromedriver");
    command.arg(format!("--port={port}"));
    let mut driver = Process::start("chromedriver", command, &folder.join("chromedriver.log"))
        .context(
            "the test needs Chromium and its driver: install the packages chromium and \
             chromium-driver (or whatever else gives `chromium` and `chromedriver`)",
        )?;
    let profile = format!("--user-data-dir={}", folder.join("profile").display());
    let arguments = ARGUMENTS.into_iter().chain([&*profile]);
    let options = json!({"args": arguments.collect::<Vec<_>>()});
    let capabilities = json!({"goog:chromeOptions": options});
    let address = format!("http://127.0.0.1:{port}");
    let client = driver
        .until("a browser", SOON, async || {
            let mut builder =
                ClientBuilder::new(hyper_util::client::legacy::connect::HttpConnector::new());
            let capabilities = capabilities.as_object().context("capabilities")?.clone();
            let client = builder.capabilities(capabilities).connect(&address).await;
            client.context("open a session")
        })
        .await?;
    Ok(Browser {
        client,
        _driver: driver,
    })
}

/// A few proxies, some of which reject their listeners, of a mesh in which something changes all the time.
fn fleet(istiod: &ControlPlane, config: &Path) -> Options {
    Options {
        server: Some(istiod.setup().xds),
        pid: None,
        config: Some(config.to_owned()),
        environment: Vec::new(),
        form: Form::Kubernetes,
        services: 20,
        endpoints: 2,
        classes: 3,
        connections: 12,
        delta_percent: 50,
        connects_per_second: 1000,
        slow: 0,
        rejecting: 2,
        nodes: Vec::new(),
        churn: vec![Churn::EndpointFlap],
        changes: 100_000,
    }
}

async fn text(client: &Client, css: &str) -> Result<String> {
    let found = client.find(Locator::Css(css)).await?;
    Ok(found.text().await?)
}

/// Waits until the page says all of this, without loading it again.
async fn says(client: &Client, css: &str, expected: &[&str]) -> Result<()> {
    until("the page says so", SOON, async || {
        let text = text(client, css).await?;
        for part in expected {
            ensure!(text.contains(part), "no {part:?} in: {text}");
        }
        Ok(())
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Chromium: `cargo xtask test` runs it"]
async fn the_page_shows_the_mesh_and_follows_it() -> Result<()> {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config");
    fs::create_dir_all(&config)?;
    let istiod = ControlPlane::start(Setup::new(&config, folder.path())?).await?;
    let options = fleet(&istiod, &config);
    tokio::select! {
        ended = load::run(&options) => bail!("the fleet ended: {:?}", ended.map(drop)),
        checked = check_page(&istiod, folder.path()) => checked,
    }
}

async fn check_page(istiod: &ControlPlane, folder: &Path) -> Result<()> {
    let browser = browser(folder).await?;
    let client = &browser.client;
    let page = format!("http://{}/status", istiod.setup().monitoring);
    client.goto(&page).await?;
    // Nothing below loads the page again: what the script would lose is still there.
    let mark = "window.untouched = true; return true";
    client.execute(mark, Vec::new()).await?;
    says(client, "h1", &["Mesh status"]).await?;
    let classes = ["12 proxies are connected", "Connected proxies", "sidecar "];
    says(client, "#mesh", &classes).await?;
    says(
        client,
        "#mesh",
        &["Refused", "Last pushes", "endpoints of "],
    )
    .await?;
    let kept = client
        .execute("return window.untouched", Vec::new())
        .await?;
    ensure!(kept == json!(true), "the page was loaded again");

    // The search has the focus from the start.
    let search = client.active_element().await?;
    let id = search.attr("id").await?;
    ensure!(id.as_deref() == Some("q"), "{id:?} has the focus");
    let enter = char::from(Key::Enter);
    search.send_keys(&format!("sidecar~{enter}")).await?;
    says(
        client,
        "body",
        &[
            "Lacks",
            "type.googleapis.com/envoy.config.cluster.v3.Cluster",
        ],
    )
    .await?;
    let search = client.active_element().await?;
    search.clear().await?;
    let hostile = "<img src=x onerror=document.title=1>";
    search.send_keys(&format!("{hostile}{enter}")).await?;
    says(client, "body", &["No connected proxy has that in its id."]).await?;
    let search = client.active_element().await?;
    let said = search.prop("value").await?;
    ensure!(said.as_deref() == Some(hostile), "{said:?}");
    ensure!(
        client.title().await? == "Mesh status",
        "it is text, not markup"
    );

    client.goto(&page).await?;
    says(client, "#mesh", &["Last pushes"]).await?;
    let picture = client.screenshot().await?;
    ensure!(picture.starts_with(b"\x89PNG"), "no picture");
    if std::env::var_os("UPDATE_SCREENSHOT").is_some() {
        fs::write(workspace().join("docs/status.png"), picture)?;
    }
    browser.client.clone().close().await?;
    Ok(())
}

//! A running `istiod` from outside, without Envoys: settings that change, keys that are fetched.

use std::{fs, net::SocketAddr, path::Path, time::Duration};

use anyhow::{Context as _, Result, ensure};
use envoy_types::pb::envoy::{
    config::core::v3::Node,
    service::discovery::v3::{
        DiscoveryRequest, aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
    },
};
use serde_json::Value;
use tests::{
    control_plane::{ControlPlane, Setup},
    http,
    process::until,
};
use tokio::{task::JoinSet, time::timeout};

/// Longest time until something is seen.
const SOON: Duration = Duration::from_secs(20);

async fn throttlez(istiod: &ControlPlane) -> Result<Value> {
    Ok(serde_json::from_str(
        &istiod.monitoring("/debug/throttlez").await?,
    )?)
}

/// Waits until `/debug/throttlez` is as expected.
async fn shows(istiod: &ControlPlane, what: &str, look: impl Fn(&Value) -> bool) -> Result<Value> {
    until(what, SOON, async || {
        let shown = throttlez(istiod).await?;
        ensure!(look(&shown), "{shown}");
        Ok(shown)
    })
    .await
}

fn write_rule(folder: &Path, connections: usize) -> Result<()> {
    let rule = format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
         metadata: {{name: loop, namespace: noisy}}\n\
         spec: {{host: web, trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {connections}}}}}}}}}\n"
    );
    fs::write(folder.join("rule.yaml"), rule)?;
    Ok(())
}

#[tokio::test]
async fn settings_change_while_it_runs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config");
    fs::create_dir(&config)?;
    write_rule(&config, 1)?;
    let settings = folder.path().join("settings.yaml");
    fs::write(&settings, "PILOT_DEBOUNCE_AFTER: 10ms\n")?;
    let mut setup = Setup::new(&config, folder.path())?;
    setup
        .arguments
        .extend(["--settings".to_owned(), settings.display().to_string()]);
    let istiod = ControlPlane::start(setup).await?;
    shows(&istiod, "off at first", |shown| shown["enabled"] == false).await?;

    fs::write(
        &settings,
        "PILOT_ENABLE_NAMESPACE_THROTTLE: true\nPILOT_NAMESPACE_THROTTLE_THRESHOLD: 2\n\
         REVISION: canary\n",
    )?;
    shows(&istiod, "on", |shown| {
        shown["enabled"] == true && shown["threshold"] == 2
    })
    .await?;
    // The file goes through a watcher, which may take several writes for one change.
    let mut connections = 1;
    until("the noisy namespace is throttled", SOON, async || {
        connections += 1;
        write_rule(&config, connections)?;
        let shown = throttlez(&istiod).await?;
        ensure!(shown["throttled"][0]["namespace"] == "noisy", "{shown}");
        Ok(())
    })
    .await?;

    fs::write(
        &settings,
        "PILOT_ENABLE_NAMESPACE_THROTTLE: true\nPILOT_NAMESPACE_THROTTLE_THRESHOLD: 0\n",
    )?;
    until("the bad value is named", SOON, async || {
        let log = istiod.log();
        ensure!(
            log.contains("settings.yaml:2: PILOT_NAMESPACE_THROTTLE_THRESHOLD")
                && log.contains("is not a whole number from 1 to 1000000"),
            "{log}"
        );
        Ok(())
    })
    .await?;
    shows(&istiod, "the old settings stay", |shown| {
        shown["enabled"] == true && shown["threshold"] == 2
    })
    .await?;

    fs::write(&settings, "{}\n")?;
    let shown = shows(&istiod, "off again", |shown| shown["enabled"] == false).await?;
    ensure!(shown["throttled"] == Value::Array(Vec::new()), "{shown}");
    let log = istiod.log();
    ensure!(
        log.contains("these settings take effect at the next start settings=[\"REVISION\"]"),
        "{log}"
    );
    Ok(())
}

/// Follows the listeners of a sidecar until one of them contains a text.
async fn until_listeners_contain(xds: SocketAddr, text: &str) -> Result<()> {
    let mut client = AggregatedDiscoveryServiceClient::connect(format!("http://{xds}")).await?;
    let first = DiscoveryRequest {
        node: Some(Node {
            id: "sidecar~10.1.0.1~web-0.shop~shop.svc.cluster.local".to_owned(),
            ..Node::default()
        }),
        type_url: "type.googleapis.com/envoy.config.listener.v3.Listener".to_owned(),
        ..DiscoveryRequest::default()
    };
    let (requests, outgoing) = tokio::sync::mpsc::channel(4);
    requests.send(first.clone()).await?;
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let answers = client.stream_aggregated_resources(outgoing).await?;
    let mut answers = answers.into_inner();
    loop {
        let answer = answers.message().await?.context("the stream ended")?;
        let contains = |body: &[u8]| body.windows(text.len()).any(|part| part == text.as_bytes());
        if answer.resources.iter().any(|any| contains(&any.value)) {
            return Ok(());
        }
        let ack = DiscoveryRequest {
            version_info: answer.version_info,
            response_nonce: answer.nonce,
            ..first.clone()
        };
        requests.send(ack).await?;
    }
}

#[tokio::test]
async fn keys_of_issuers_reach_the_proxies_and_a_dead_issuer_blocks_nobody() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config");
    fs::create_dir(&config)?;
    let mut tasks = JoinSet::new();
    let alive = http::issuer(r#"{"keys":[{"kid":"of-the-test"}]}"#.to_owned(), &mut tasks).await?;
    let dead = SocketAddr::from(([127, 0, 0, 1], http::free_port()?));
    let policy = format!(
        "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\n\
         metadata: {{name: tokens, namespace: shop}}\nspec:\n  jwtRules:\n\
         \x20 - {{issuer: dead, jwksUri: 'http://{dead}/jwks'}}\n\
         \x20 - {{issuer: alive, jwksUri: 'http://{alive}/jwks'}}\n"
    );
    fs::write(config.join("policy.yaml"), policy)?;
    let service = "apiVersion: v1\nkind: Service\nmetadata: {name: web, namespace: shop}\n\
        spec: {clusterIP: 10.2.0.1, selector: {app: web}, ports: [{name: http, port: 80}]}\n---\n\
        apiVersion: v1\nkind: Pod\nmetadata: {name: web-0, namespace: shop, labels: {app: web}}\n\
        spec: {serviceAccountName: web}\n\
        status: {phase: Running, podIP: 10.1.0.1, conditions: [{type: Ready, status: 'True'}]}\n---\n\
        apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
        metadata: {name: web-1, namespace: shop, labels: {kubernetes.io/service-name: web}}\n\
        addressType: IPv4\nports: [{name: http, port: 80}]\nendpoints:\n\
        - {addresses: [10.1.0.1], targetRef: {kind: Pod, name: web-0, namespace: shop}}\n";
    fs::write(config.join("service.yaml"), service)?;
    let istiod = ControlPlane::start(Setup::new(&config, folder.path())?).await?;
    timeout(
        SOON,
        until_listeners_contain(istiod.setup().xds, "of-the-test"),
    )
    .await
    .with_context(|| istiod.log())??;
    let fetched = "pilot_jwks_resolver_network_fetch_success_total";
    ensure!(istiod.counter(fetched).await? == 1, "{}", istiod.log());
    Ok(())
}

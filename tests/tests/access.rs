//! Who may see what over HTTP, asked from elsewhere than the same host: here, by an address of this
//! machine that is not loopback. The keys of the token issuer are fetched from it.

use std::{
    fs,
    net::{IpAddr, SocketAddr, UdpSocket},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use envoy_types::pb::envoy::{
    config::core::v3::Node,
    service::discovery::v3::{
        DiscoveryRequest, aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
    },
};
use serde_json::Value;
use tests::{
    control_plane::{ControlPlane, Setup, binary},
    http::{self, Answer},
    identity::TokenIssuer,
    process::until,
};
use tokio::{process::Command, sync::mpsc, task::JoinSet};
use tonic::Streaming;

/// Longest time until something is seen.
const SOON: Duration = Duration::from_secs(20);

const OBJECTS: &str = "apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: catalogue, namespace: shop, generation: 7}
spec:
  hosts: [catalogue.example.com]
  ports: [{number: 80, name: http, protocol: HTTP}]
  resolution: DNS
";

const SYNCZ: &str = "/debug/syncz";
const PROXIES: &str = "/debug/distribution/proxies";
const CATALOGUE: &str = "/debug/distribution/configs/ServiceEntry/shop/catalogue";

/// An address of this machine that is not loopback, if it has one. Nothing is sent.
fn elsewhere() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    socket.connect("203.0.113.1:9").ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

/// A proxy of a namespace that has asked for its clusters; it is connected as long as it lives.
async fn proxy(
    xds: SocketAddr,
    namespace: &str,
) -> Result<(mpsc::Sender<DiscoveryRequest>, Streaming<impl Sized>)> {
    let mut client = AggregatedDiscoveryServiceClient::connect(format!("http://{xds}")).await?;
    let (requests, outgoing) = mpsc::channel(4);
    let first = DiscoveryRequest {
        node: Some(Node {
            id: format!("sidecar~10.1.0.1~app.{namespace}~{namespace}.svc.cluster.local"),
            ..Node::default()
        }),
        type_url: "type.googleapis.com/envoy.config.cluster.v3.Cluster".to_owned(),
        ..DiscoveryRequest::default()
    };
    requests.send(first).await?;
    let outgoing = tokio_stream::wrappers::ReceiverStream::new(outgoing);
    let answers = client.stream_aggregated_resources(outgoing).await?;
    let mut answers = answers.into_inner();
    answers.message().await?.context("the stream ended")?;
    Ok((requests, answers))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_caller_from_elsewhere_sees_what_its_identity_may() -> Result<()> {
    let Some(own) = elsewhere() else {
        println!("not tested: this machine has no address but loopback");
        return Ok(());
    };
    let folder = tempfile::tempdir()?;
    let at = folder.path();
    let config = at.join("config");
    fs::create_dir(&config)?;
    fs::write(config.join("objects.yaml"), OBJECTS)?;
    let mut tasks = JoinSet::new();
    let tokens = TokenIssuer::new()?;
    let issuer = http::issuer(tokens.keys().to_string(), &mut tasks).await?;
    let issuers = format!(
        "- issuer: https://fetched.test\n  jwksUri: http://{issuer}/keys\n\
         - issuer: https://dead.test\n  jwksUri: http://127.0.0.1:1/keys\n"
    );
    fs::write(at.join("issuers.yaml"), issuers)?;
    let mut setup = Setup::new(&config, at)?;
    setup.monitoring.set_ip(own);
    let file = at.join("issuers.yaml").display().to_string();
    setup.arguments = vec!["--jwt-issuers".into(), file];
    setup.environment = vec![
        ("ROOT_CA_DIR".into(), "/nonexistent".into()),
        (
            "DEBUG_ENDPOINT_AUTH_ALLOWED_NAMESPACES".into(),
            "ops".into(),
        ),
        ("METRICS_LOCALHOST_ACCESS_ONLY".into(), "true".into()),
    ];
    let istiod = ControlPlane::start(setup).await?;
    let (monitoring, http) = (istiod.setup().monitoring, istiod.setup().http);
    let _shop = proxy(istiod.setup().xds, "shop").await?;
    let _other = proxy(istiod.setup().xds, "other").await?;
    let token = |issuer: &str, namespace: &str| {
        let subject = format!("system:serviceaccount:{namespace}:default");
        tokens.token(issuer, &subject, "istio-ca", 600)
    };
    let ask = async |token: Option<&str>, path: &str| -> Result<Answer> {
        let value = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = value
            .iter()
            .map(|value| ("authorization", &**value))
            .collect();
        http::get(monitoring, "istiod", path, &headers).await
    };
    let [system, ops, shop, other] = ["istio-system", "ops", "shop", "other"]
        .map(|namespace| token("https://fetched.test", namespace));
    let (system, ops, shop, other) = (system?, ops?, shop?, other?);
    let dead = token("https://dead.test", "istio-system")?;

    until("the keys are there", SOON, async || {
        let answer = ask(Some(&system), SYNCZ).await?;
        ensure!(answer.status == 200, "{answer:?} {}", istiod.log());
        Ok(())
    })
    .await?;
    for (token, path, status) in [
        (None, "/version", 200),
        (None, "/metrics", 403),
        (None, SYNCZ, 401),
        (None, "/debug/mesh", 401),
        (None, "/debug/throttlez", 401),
        (None, "/debug/sourcez", 401),
        (None, "/debug/endpointShardz", 401),
        (None, "/debug/clusterz", 401),
        (None, "/debug/distribution", 401),
        (None, PROXIES, 401),
        (None, CATALOGUE, 401),
        (None, "/status", 401),
        (None, "/status/live", 401),
        (Some(&dead), SYNCZ, 401),
        (Some(&ops), SYNCZ, 200),
        (Some(&system), "/status", 200),
        (Some(&system), "/debug/distribution", 200),
        (Some(&shop), SYNCZ, 403),
        (Some(&shop), "/debug/mesh", 403),
        (Some(&shop), "/status", 403),
        (Some(&shop), "/debug/distribution", 403),
        (Some(&shop), CATALOGUE, 200),
        (Some(&other), CATALOGUE, 403),
        (
            Some(&other),
            "/debug/distribution/proofs/ServiceEntry/shop/catalogue",
            403,
        ),
        (
            Some(&shop),
            "/debug/distribution/proxies?namespace=other",
            403,
        ),
    ] {
        let answer = ask(token.map(String::as_str), path).await?;
        ensure!(answer.status == status, "{path}: {answer:?}");
    }
    let seen = async |token: &str, path: &str| -> Result<Vec<String>> {
        let answer: Value = serde_json::from_str(&ask(Some(token), path).await?.ok()?)?;
        let proxies = answer["proxies"].as_array().context("proxies")?;
        let id = |proxy: &Value| proxy["proxy"].as_str().unwrap_or_default().to_owned();
        Ok(proxies.iter().map(id).collect())
    };
    let of_shop = "sidecar~10.1.0.1~app.shop~shop.svc.cluster.local";
    ensure!(seen(&system, PROXIES).await?.len() == 2);
    ensure!(seen(&shop, PROXIES).await? == [of_shop]);
    ensure!(seen(&system, "/debug/distribution/proxies?namespace=shop").await? == [of_shop]);
    let all = &format!("{CATALOGUE}?proxies=all");
    ensure!(seen(&shop, all).await? == [of_shop]);
    ensure!(seen(&system, all).await?.len() == 2);
    // From the same host nobody is asked.
    let answer = http::get(http, "istiod", SYNCZ, &[]).await?;
    ensure!(answer.status == 200, "{answer:?}");

    // The commands show a token, too.
    fs::write(at.join("token"), &shop)?;
    let status = async |arguments: &[&str]| -> Result<(bool, String)> {
        let output = Command::new(binary().await?)
            .arg("status")
            .args(["--address", &monitoring.to_string()])
            .args(arguments)
            .current_dir(at)
            .output()
            .await?;
        let said = [&output.stdout[..], &output.stderr].concat();
        Ok((
            output.status.success(),
            String::from_utf8_lossy(&said).into_owned(),
        ))
    };
    let catalogue = "ServiceEntry/catalogue.shop";
    let (good, said) = status(&["--token", "token", catalogue]).await?;
    ensure!(good, "{said}");
    let (good, said) = status(&[catalogue]).await?;
    ensure!(!good && said.contains("401"), "{said}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn debug_pages_can_be_left_out() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config");
    fs::create_dir(&config)?;
    fs::write(config.join("objects.yaml"), OBJECTS)?;
    let mut setup = Setup::new(&config, folder.path())?;
    setup.environment = vec![("ENABLE_DEBUG_ON_HTTP".into(), "false".into())];
    let istiod = ControlPlane::start(setup).await?;
    for (path, status) in [
        ("/debug/syncz", 404),
        ("/debug/distribution", 404),
        ("/status", 404),
        ("/metrics", 200),
        ("/version", 200),
    ] {
        let answer = http::get(istiod.setup().monitoring, "istiod", path, &[]).await?;
        ensure!(answer.status == status, "{path}: {answer:?}");
    }
    Ok(())
}

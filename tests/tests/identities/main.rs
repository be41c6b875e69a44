//! Identities end to end: the authority, certificates that it issues, Envoys that use them.
//!
//! These need Envoy, which pip fetches once, and curl. `cargo test` leaves them out, `cargo xtask test`
//! runs them; alone they run by `cargo test --test identities -- --ignored`.

mod authorities;
mod custom;

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, bail, ensure};
use security::{AuthorityStore, Names, PrivateKey};
use serde_json::json;
use tempfile::TempDir;
use tests::{
    control_plane::{ControlPlane, Setup},
    envoy::{self, Envoy},
    http::{self, Answer, Workload, free_port},
    identity::{Certificates, TokenIssuer},
    process::until,
    traffic::Ask,
};
use tokio::{
    process::Command,
    time::{Instant, sleep},
};

/// Longest time until a change has arrived everywhere.
const SOON: Duration = Duration::from_secs(15);
/// Who issues the tokens of service accounts.
const ISSUER: &str = "https://kubernetes.test";
/// Who issues the tokens of users.
const USERS: &str = "https://users.test";

/// Two workloads, client and server, each behind an Envoy that has its certificate from istiod.
struct Mesh {
    folder: TempDir,
    network: u8,
    tokens: TokenIssuer,
    istiod: ControlPlane,
    server: Envoy,
    client: Envoy,
    certificates: Vec<Certificates>,
    _workload: Workload,
}

/// What a mesh has beside what all have.
#[derive(Default)]
struct Extras {
    /// Objects, each after a line `---`.
    objects: String,
    /// The mesh configuration.
    config: Option<String>,
    /// Further hosts that the server's proxy knows.
    egress: Vec<String>,
    /// Folder of a plugged-in authority.
    authority: Option<PathBuf>,
}

fn account(name: &str) -> String {
    format!("system:serviceaccount:app:{name}")
}

impl Mesh {
    async fn start(lifetime: &str) -> Result<Self> {
        Self::start_with(lifetime, Extras::default()).await
    }

    async fn start_with(lifetime: &str, extras: Extras) -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("identities-").tempdir()?;
        let at = folder.path();
        // A network of the loopback interface that no other test uses.
        let network = 64 + u8::try_from(u64::from(free_port()?) % 128)?;
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, free_port()?));
        let workload = Workload::start("server", own, None).await?;
        let tokens = TokenIssuer::new()?;
        fs::create_dir(at.join("config"))?;
        fs::write(at.join("config/mesh.yaml"), config(network, own, &extras))?;
        let issuers = json!([{"issuer": ISSUER, "jwks": tokens.keys()}]);
        fs::write(at.join("issuers.yaml"), issuers.to_string())?;
        let mut setup = Setup::new(at.join("config"), at)?;
        let path = |name: &str| at.join(name).display().to_string();
        setup.arguments = vec![
            "--ca-dir".into(),
            path("ca"),
            "--jwt-issuers".into(),
            path("issuers.yaml"),
        ];
        let mut roots = at.join("ca/root-cert.pem");
        setup.environment = vec![("ROOT_CA_DIR".into(), "/nonexistent".into())];
        if let Some(folder) = &extras.authority {
            setup.environment[0].1 = folder.display().to_string();
            roots = folder.join("root-cert.pem");
        }
        if let Some(config) = &extras.config {
            fs::write(at.join("mesh.yaml"), config)?;
            setup.mesh_config = Some(at.join("mesh.yaml"));
        }
        let istiod = ControlPlane::start(setup).await?;
        let mut certificates = Vec::new();
        let mut proxies = Vec::new();
        for (name, host) in [("server", 20), ("client", 10)] {
            let token = tokens.token(ISSUER, &account(name), "istio-ca", 600)?;
            let secure = istiod.setup().secure;
            let arguments = [
                "--namespace",
                "app",
                "--service-account",
                name,
                "--lifetime",
                lifetime,
            ];
            let kept = Certificates::start(at, name, &token, secure, &roots, &arguments).await?;
            let node = node(at, name, network, host, name)?;
            let setup = proxy(at, name, node, secure);
            let mut envoy = Envoy::start_with(&setup, &kept.bootstrap()).await?;
            envoy.live().await.with_context(|| kept.log())?;
            proxies.push(envoy);
            certificates.push(kept);
        }
        let client = proxies.pop().context("two proxies")?;
        let server = proxies.pop().context("two proxies")?;
        let mesh = Self {
            folder,
            network,
            tokens,
            istiod,
            server,
            client,
            certificates,
            _workload: workload,
        };
        mesh.eventually("the client reaches the server", async || {
            ensure!(mesh.through_proxy().once().await? == "server");
            Ok(())
        })
        .await?;
        Ok(mesh)
    }

    fn pod(&self, host: u8) -> SocketAddr {
        (Ipv4Addr::new(127, self.network, 0, host), 9080).into()
    }

    /// A request of the client's workload, through both proxies.
    fn through_proxy(&self) -> Ask {
        let outbound = (Ipv4Addr::new(127, self.network, 255, 1), 9080).into();
        Ask::new(outbound, "server.app.test:9080")
    }

    /// A request of the client's workload with a method and a token.
    async fn status(&self, method: &str, token: Option<&str>) -> Result<u16> {
        let ask = self.through_proxy();
        let token = token.map(|token| format!("Bearer {token}"));
        let headers: Vec<(&str, &str)> = token
            .iter()
            .map(|t| ("authorization", t.as_str()))
            .collect();
        let answer = http::request(method, ask.address, &ask.host, "/", &headers).await?;
        Ok(answer.status)
    }

    /// A request in plaintext, past the client's proxy.
    async fn plaintext(&self) -> Result<String> {
        let answer = http::get(self.pod(20), "server.app.test", "/", &[]).await;
        answer.and_then(Answer::ok)
    }

    /// TLS handshakes that the server's proxy has completed.
    async fn handshakes(&self) -> Result<u64> {
        let stats = self
            .server
            .stats(r"^listener\..*_9080\.ssl\.handshake$")
            .await?;
        Ok(stats.values().sum())
    }

    fn write(&self, file: &str, text: &str) -> Result<()> {
        let config = self.folder.path().join("config");
        let new = config.join(format!(".{file}.new"));
        fs::write(&new, text)?;
        fs::rename(&new, config.join(file))?;
        Ok(())
    }

    fn mode(&self, mode: &str) -> Result<()> {
        self.write(
            "mode.yaml",
            &format!(
                "apiVersion: security.istio.io/v1\nkind: PeerAuthentication\n\
                 metadata: {{name: default, namespace: app}}\nspec: {{mtls: {{mode: {mode}}}}}\n"
            ),
        )
    }

    /// Waits until no connection lives that was there before a change: Envoy drains them for a second.
    async fn drained(&self) {
        sleep(Duration::from_secs(2)).await;
    }

    async fn eventually(&self, what: &str, look: impl AsyncFnMut() -> Result<()>) -> Result<()> {
        until(what, SOON, look).await.with_context(|| {
            let logs = [self.istiod.log(), self.server.log(), self.client.log()];
            logs.map(|log| {
                let lines: Vec<&str> = log.lines().collect();
                lines[lines.len().saturating_sub(12)..].join("\n")
            })
            .join("\n---\n")
        })
    }
}

fn config(network: u8, own: SocketAddr, extras: &Extras) -> String {
    let entry = |name: &str, host: u8| {
        format!(
            "apiVersion: networking.istio.io/v1\nkind: WorkloadEntry\n\
             metadata: {{name: {name}, namespace: app}}\n\
             spec:\n  address: 127.{network}.0.{host}\n  serviceAccount: {name}\n  \
             labels: {{app: {name}, security.istio.io/tlsMode: istio}}\n---\n"
        )
    };
    let mut text = entry("server", 20) + &entry("client", 10);
    text += "apiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
             metadata: {name: server, namespace: app}\n\
             spec:\n  hosts: [server.app.test]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
             ports: [{number: 9080, name: http, protocol: HTTP}]\n  \
             workloadSelector: {labels: {app: server}}\n---\n";
    let mut hosts = vec!["./nothing.test".to_owned()];
    hosts.extend_from_slice(&extras.egress);
    let egress = hosts.join(", ");
    let sidecars = format!(
        "apiVersion: networking.istio.io/v1\nkind: Sidecar\n\
         metadata: {{name: server, namespace: app}}\n\
         spec:\n  workloadSelector: {{labels: {{app: server}}}}\n  ingress:\n  \
         - port: {{number: 9080, name: http, protocol: HTTP}}\n    \
         bind: 127.{network}.0.20\n    defaultEndpoint: {own}\n  \
         egress: [{{hosts: [{egress}]}}]\n---\n\
         apiVersion: networking.istio.io/v1\nkind: Sidecar\n\
         metadata: {{name: client, namespace: app}}\n\
         spec:\n  workloadSelector: {{labels: {{app: client}}}}\n  egress:\n  \
         - port: {{number: 9080, name: http, protocol: HTTP}}\n    \
         bind: 127.{network}.255.1\n    captureMode: NONE\n    hosts: [./*]\n"
    );
    text + &sidecars + &extras.objects
}

/// Writes a node file.
fn node(at: &Path, name: &str, network: u8, host: u8, account: &str) -> Result<PathBuf> {
    let address = format!("127.{network}.0.{host}");
    let node = json!({
        "id": format!("sidecar~{address}~{name}.app~app.svc.cluster.local"),
        "cluster": format!("{name}.app"),
        "metadata": {
            "NAME": name, "NAMESPACE": "app", "INSTANCE_IPS": address, "ISTIO_VERSION": "1.32.0",
            "SERVICE_ACCOUNT": account, "INTERCEPTION_MODE": "NONE",
            "LABELS": {"app": name, "security.istio.io/tlsMode": "istio"},
        },
    });
    let path = at.join(format!("{name}-{account}.node.yaml"));
    fs::write(&path, node.to_string())?;
    Ok(path)
}

fn proxy(at: &Path, name: &str, node: PathBuf, xds: SocketAddr) -> envoy::Setup {
    envoy::Setup {
        name: format!("envoy-{name}"),
        node,
        xds,
        delta: true,
        folder: at.to_owned(),
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn mutual_tls_by_mode() -> Result<()> {
    let mesh = Mesh::start("24h").await?;
    // PERMISSIVE, without a policy: proxies use TLS, others need not.
    let before = mesh.handshakes().await?;
    ensure!(before > 0, "the proxies speak plaintext");
    ensure!(mesh.plaintext().await? == "server");

    mesh.mode("STRICT")?;
    mesh.eventually("plaintext is refused", async || {
        ensure!(mesh.plaintext().await.is_err(), "plaintext gets an answer");
        Ok(())
    })
    .await?;
    ensure!(mesh.through_proxy().once().await? == "server");

    mesh.mode("DISABLE")?;
    mesh.eventually("plaintext gets an answer", async || {
        ensure!(mesh.plaintext().await? == "server");
        Ok(())
    })
    .await?;
    mesh.eventually("the client speaks plaintext", async || {
        let before = mesh.handshakes().await?;
        ensure!(mesh.through_proxy().once().await? == "server");
        ensure!(mesh.handshakes().await? == before, "there was a handshake");
        Ok(())
    })
    .await?;
    ensure!(mesh.server.rejections().await?.is_empty());
    ensure!(mesh.client.rejections().await?.is_empty());
    Ok(())
}

/// Sends a request with curl under a certificate of the mesh's authority; the status, if there was an
/// answer.
async fn curl(mesh: &Mesh, id: &str) -> Result<Option<u16>> {
    let at = mesh.folder.path();
    #[expect(clippy::disallowed_methods, reason = "Envoy reads the same clock")]
    let now = SystemTime::now();
    let day = Duration::from_hours(24);
    let store = AuthorityStore::open(
        Path::new("/nonexistent"),
        Some(&at.join("ca")),
        "",
        day,
        now,
    )?;
    let key = PrivateKey::generate()?;
    let names = Names::Workload(id.parse()?);
    let issued = store.current().issue_for(&key, &names, day, now)?;
    fs::write(at.join("curl.crt"), issued.chain_pem())?;
    fs::write(at.join("curl.key"), key.to_pem())?;
    let output = Command::new("curl")
        .args([
            "--silent",
            "--insecure",
            "--max-time",
            "10",
            "--output",
            "/dev/null",
        ])
        .args([
            "--write-out",
            "%{http_code}",
            "--no-alpn",
            "--cert",
            "curl.crt",
            "--key",
            "curl.key",
        ])
        .arg(format!("https://{}/", mesh.pod(20)))
        .current_dir(at)
        .output()
        .await
        .context("run curl")?;
    let code: u16 = String::from_utf8_lossy(&output.stdout).parse()?;
    Ok((output.status.success() && code > 0).then_some(code))
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy and curl; `cargo xtask test` runs it"]
async fn another_trust_domain_is_refused() -> Result<()> {
    let mesh = Mesh::start("24h").await?;
    mesh.mode("STRICT")?;
    mesh.eventually("plaintext is refused", async || {
        ensure!(mesh.plaintext().await.is_err(), "plaintext gets an answer");
        Ok(())
    })
    .await?;
    let own = curl(&mesh, "spiffe://cluster.local/ns/app/sa/client").await?;
    ensure!(own == Some(200), "a peer of the mesh: {own:?}");
    let foreign = curl(&mesh, "spiffe://foreign.domain/ns/app/sa/client").await?;
    ensure!(
        foreign.is_none(),
        "a peer of another trust domain: {foreign:?}"
    );
    // Not by the prefix of the name alone.
    let longer = curl(&mesh, "spiffe://cluster.local.evil/ns/app/sa/client").await?;
    ensure!(
        longer.is_none(),
        "a peer of a longer trust domain: {longer:?}"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn policies_know_methods_peers_and_tokens() -> Result<()> {
    let mesh = Mesh::start("24h").await?;
    mesh.mode("STRICT")?;
    let allow = |principal: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: get, namespace: app}}\n\
             spec:\n  selector: {{matchLabels: {{app: server}}}}\n  rules:\n  \
             - from: [{{source: {{principals: [{principal}]}}}}]\n    \
             to: [{{operation: {{methods: [GET]}}}}]\n"
        )
    };
    ensure!(mesh.status("POST", None).await? == 200);
    mesh.write("policy.yaml", &allow("cluster.local/ns/app/sa/client"))?;
    mesh.eventually("POST is denied", async || {
        let status = mesh.status("POST", None).await?;
        ensure!(status == 403, "status {status}");
        Ok(())
    })
    .await?;
    ensure!(mesh.status("GET", None).await? == 200);
    mesh.write("policy.yaml", &allow("cluster.local/ns/app/sa/another"))?;
    mesh.eventually("the client is not the one that may", async || {
        let status = mesh.status("GET", None).await?;
        ensure!(status == 403, "status {status}");
        Ok(())
    })
    .await?;

    let keys = mesh.tokens.keys();
    mesh.write(
        "policy.yaml",
        &format!(
            "apiVersion: security.istio.io/v1\nkind: RequestAuthentication\n\
             metadata: {{name: users, namespace: app}}\n\
             spec:\n  selector: {{matchLabels: {{app: server}}}}\n  jwtRules:\n  \
             - issuer: {USERS}\n    jwks: '{keys}'\n---\n\
             apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: users, namespace: app}}\n\
             spec:\n  selector: {{matchLabels: {{app: server}}}}\n  rules:\n  \
             - from: [{{source: {{requestPrincipals: [\"{USERS}/jane\"]}}}}]\n"
        ),
    )?;
    let token = |issuer: &str, subject: &str, seconds| {
        mesh.tokens.token(issuer, subject, "anybody", seconds)
    };
    let jane = token(USERS, "jane", 600)?;
    let another = TokenIssuer::new()?.token(USERS, "jane", "anybody", 600)?;
    let cases = [
        ("of who may", Some(jane), 200),
        ("none", None, 403),
        ("of somebody else", Some(token(USERS, "john", 600)?), 403),
        ("expired", Some(token(USERS, "jane", -600)?), 401),
        (
            "of an unknown issuer",
            Some(token("https://other.test", "jane", 600)?),
            401,
        ),
        ("signed by another key", Some(another), 401),
        ("no token at all", Some("nonsense".to_owned()), 401),
    ];
    // All at once: connections of before the change live on for a moment.
    mesh.eventually("tokens decide", async || {
        for (what, token, expected) in &cases {
            let status = mesh.status("GET", token.as_deref()).await?;
            ensure!(status == *expected, "token {what}: status {status}");
        }
        Ok(())
    })
    .await?;
    ensure!(mesh.server.rejections().await?.is_empty());
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn certificates_are_renewed_under_load_without_a_failed_request() -> Result<()> {
    let mesh = Mesh::start("8s").await?;
    mesh.mode("STRICT")?;
    mesh.eventually("plaintext is refused", async || {
        ensure!(mesh.plaintext().await.is_err(), "plaintext gets an answer");
        Ok(())
    })
    .await?;
    mesh.drained().await;
    let read = || {
        let folder = mesh.certificates[0].folder();
        Ok::<_, anyhow::Error>(fs::read_to_string(folder.join("cert-chain.pem"))?)
    };
    let load = mesh.through_proxy().load();
    let begun = Instant::now();
    let mut seen = vec![read()?];
    // Longer than two certificates live.
    while begun.elapsed() < Duration::from_secs(20) {
        sleep(Duration::from_millis(200)).await;
        let now = read()?;
        if seen.last() != Some(&now) {
            seen.push(now);
        }
    }
    let requests = load.finish().await?.len();
    ensure!(seen.len() >= 3, "{} certificates in 20 s", seen.len());
    ensure!(requests > 100, "{requests} requests");
    let updates = mesh.server.stats(r"ssl_context_update_by_sds").await?;
    ensure!(updates.values().any(|count| *count >= 3), "{updates:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn a_proxy_is_refused_that_claims_to_be_another_one() -> Result<()> {
    let mesh = Mesh::start("24h").await?;
    let at = mesh.folder.path();
    // It has the client's certificate and says it is the server.
    let node = node(at, "impostor", mesh.network, 30, "server")?;
    let setup = proxy(at, "impostor", node, mesh.istiod.setup().secure);
    let impostor = Envoy::start_with(&setup, &mesh.certificates[1].bootstrap()).await?;
    mesh.eventually("it is refused", async || {
        let log = impostor.log();
        // 7 is PermissionDenied.
        ensure!(log.contains("stream to xds-grpc closed: 7, no"), "{log}");
        Ok(())
    })
    .await?;
    ensure!(impostor.held().await?.clusters.is_empty());
    Ok(())
}

/// Asks for a certificate once; what the command said.
async fn ask(mesh: &Mesh, name: &str, token: &str) -> Result<String> {
    let at = mesh.folder.path();
    fs::write(at.join("asked.token"), token)?;
    let output = Command::new(tests::control_plane::binary().await?)
        .args([
            "certificate",
            "--once",
            "--out",
            name,
            "--token",
            "asked.token",
        ])
        .args(["--ca-root", "ca/root-cert.pem", "--ca-address"])
        .arg(mesh.istiod.setup().secure.to_string())
        .args(["--namespace", "app", "--service-account", "client"])
        .current_dir(at)
        .output()
        .await?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    if output.status.success() {
        return Ok(said);
    }
    bail!("{said}")
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn certificates_are_for_those_who_prove_who_they_are() -> Result<()> {
    let mesh = Mesh::start("24h").await?;
    let token = |issuer: &str, subject: &str, audience: &str, seconds| {
        mesh.tokens.token(issuer, subject, audience, seconds)
    };
    let client = &account("client");
    ask(&mesh, "asked", &token(ISSUER, client, "istio-ca", 600)?).await?;
    let other = TokenIssuer::new()?;
    for (token, expected) in [
        (
            token(ISSUER, client, "istio-ca", -1)?,
            "request authenticate failure",
        ),
        (
            token(ISSUER, client, "somebody", 600)?,
            "request authenticate failure",
        ),
        (
            token(USERS, client, "istio-ca", 600)?,
            "request authenticate failure",
        ),
        (
            other.token(ISSUER, client, "istio-ca", 600)?,
            "request authenticate failure",
        ),
        (
            token(ISSUER, &account("server"), "istio-ca", 600)?,
            "not expected",
        ),
    ] {
        let error = ask(&mesh, "refused", &token).await.unwrap_err().to_string();
        ensure!(error.contains(expected), "{error}");
        ensure!(!mesh.folder.path().join("refused/key.pem").exists());
    }
    let log = mesh.istiod.log();
    let secret = mesh.certificates[0].folder().join("key.pem");
    for secret in [secret, mesh.folder.path().join("ca/ca-key.pem")] {
        let key = fs::read_to_string(secret)?;
        ensure!(
            !log.contains(key.lines().nth(1).unwrap()),
            "a key is in the log"
        );
    }
    Ok(())
}

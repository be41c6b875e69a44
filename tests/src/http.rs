//! HTTP/1.1 on loopback: a client that makes one request a connection, and tiny workloads.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, LazyLock,
        atomic::{AtomicU16, Ordering},
    },
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::{Request, Response, StatusCode, body::Incoming, client, server, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};

/// Longest time that one request may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// An answer to a request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// Status code.
    pub status: u16,
    /// Body, as text.
    pub body: String,
}

impl Answer {
    /// The body of an answer with status 200.
    ///
    /// # Errors
    /// When the status is another one.
    pub fn ok(self) -> Result<String> {
        ensure!(
            self.status == 200,
            "status {}: {}",
            self.status,
            self.body.trim()
        );
        Ok(self.body)
    }
}

/// Asks `address` for `path` of `host`, on a connection of its own.
///
/// # Errors
/// When there is no answer within ten seconds.
pub async fn get(
    address: SocketAddr,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<Answer> {
    request("GET", address, host, path, headers).await
}

/// Posts a body, on a connection of its own.
///
/// # Errors
/// When there is no answer within ten seconds.
pub async fn post(
    address: SocketAddr,
    host: &str,
    path: &str,
    body: impl Into<Bytes>,
) -> Result<Answer> {
    let body = Full::new(body.into());
    timeout(PATIENCE, exchange("POST", address, host, path, &[], body))
        .await
        .with_context(|| format!("no answer from {address} within {PATIENCE:?}"))?
        .with_context(|| format!("post to {address} for {host}{path}"))
}

/// Sends a request with this method and no body, on a connection of its own.
///
/// # Errors
/// When there is no answer within ten seconds.
pub async fn request(
    method: &str,
    address: SocketAddr,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
) -> Result<Answer> {
    let body = Full::default();
    timeout(
        PATIENCE,
        exchange(method, address, host, path, headers, body),
    )
    .await
    .with_context(|| format!("no answer from {address} within {PATIENCE:?}"))?
    .with_context(|| format!("ask {address} for {host}{path}"))
}

async fn exchange(
    method: &str,
    address: SocketAddr,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Full<Bytes>,
) -> Result<Answer> {
    let stream = TcpStream::connect(address).await?;
    exchange_over(stream, method, host, path, headers, body).await
}

/// Sends a request on a connection that is there already, and that ends with it.
///
/// # Errors
/// When there is no answer.
pub async fn exchange_over(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    method: &str,
    host: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: Full<Bytes>,
) -> Result<Answer> {
    let (mut sender, connection) =
        client::conn::http1::handshake::<_, Full<Bytes>>(TokioIo::new(stream)).await?;
    // Dropped, and with it the connection, when the answer is there.
    let mut connections = JoinSet::new();
    connections.spawn(connection);
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header("host", host);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let response = sender.send_request(request.body(body)?).await?;
    let status = response.status().as_u16();
    let body = response.into_body().collect().await?.to_bytes();
    Ok(Answer {
        status,
        body: String::from_utf8_lossy(&body).into_owned(),
    })
}

/// What a workload does before it answers.
#[derive(Clone, Debug)]
pub struct Calls {
    /// Where it sends its requests: the address that its proxy listens on.
    pub through: SocketAddr,
    /// Hosts that it asks, one after the other; their answers are added to its own.
    pub hosts: Vec<String>,
    /// Names of headers that it passes on.
    pub headers: Vec<String>,
}

/// A tiny HTTP server that answers everything with its own name. Dropping it ends it.
#[derive(Debug)]
pub struct Workload {
    address: SocketAddr,
    // Dropped with the workload, which ends the task.
    _tasks: JoinSet<()>,
}

impl Workload {
    /// Starts a workload that listens on `address`.
    ///
    /// # Errors
    /// When the address is taken or not of this machine.
    pub async fn start(name: &str, address: SocketAddr, calls: Option<Calls>) -> Result<Self> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("workload {name}: listen on {address}"))?;
        let address = listener.local_addr()?;
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(listener, name.into(), calls.map(Arc::new)));
        Ok(Self {
            address,
            _tasks: tasks,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn serve(listener: TcpListener, name: Arc<str>, calls: Option<Arc<Calls>>) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                let (name, calls) = (name.clone(), calls.clone());
                let service = service_fn(move |request: Request<Incoming>| {
                    let (name, calls) = (name.clone(), calls.clone());
                    async move { Ok::<_, Infallible>(respond(&name, calls.as_deref(), &request).await) }
                });
                let connection = server::conn::http1::Builder::new()
                    .serve_connection(TokioIo::new(stream), service);
                connections.spawn(connection);
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

/// Own name and the answers of those that are asked; status 502 when one of them fails.
async fn respond(
    name: &str,
    calls: Option<&Calls>,
    request: &Request<Incoming>,
) -> Response<Full<Bytes>> {
    let mut text = name.to_owned();
    if let Some(calls) = calls {
        let passed: Vec<(&str, &str)> = calls
            .headers
            .iter()
            .filter_map(|h| Some((h.as_str(), request.headers().get(h)?.to_str().ok()?)))
            .collect();
        for host in &calls.hosts {
            let answer = get(calls.through, host, "/", &passed).await;
            match answer.and_then(Answer::ok) {
                Ok(answer) => text = format!("{text} {answer}"),
                Err(error) => {
                    let body = format!("{name}: {error:#}");
                    let mut response = Response::new(Full::new(Bytes::from(body)));
                    *response.status_mut() = StatusCode::BAD_GATEWAY;
                    return response;
                }
            }
        }
    }
    Response::new(Full::new(Bytes::from(text)))
}

/// Answers every request with this key set, as an issuer of tokens does, until `tasks` end. Returns its
/// address.
///
/// # Errors
/// When there is no port for it.
pub async fn issuer(keys: String, tasks: &mut JoinSet<()>) -> Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tasks.spawn(async move {
        while let Ok((mut connection, _)) = listener.accept().await {
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{keys}",
                keys.len()
            );
            // A request without a body fits into one read.
            let mut request = [0; 4096];
            if connection.read(&mut request).await.is_ok() {
                connection.write_all(answer.as_bytes()).await.ok();
            }
        }
    });
    Ok(address)
}

/// Finds a port of 127.0.0.1 that nobody uses now.
///
/// # Errors
/// When there is none.
pub fn free_port() -> Result<u16> {
    // The system gives those from 32768 on to whoever connects; where a search begins differs from
    // process to process.
    static NEXT: LazyLock<AtomicU16> = LazyLock::new(|| {
        AtomicU16::new(u16::try_from(std::process::id() % 20_000).unwrap_or_default())
    });
    for _ in 0..1_000 {
        let port = 10_000 + NEXT.fetch_add(1, Ordering::Relaxed) % 20_000;
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return Ok(port);
        }
    }
    bail!("no port is free")
}

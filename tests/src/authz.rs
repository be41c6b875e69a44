//! External authorisers: one that is asked over HTTP, one over gRPC. Both let through who says so.

use std::{
    convert::Infallible,
    net::{Ipv4Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use envoy_types::pb::{
    envoy::service::auth::v3::{
        CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse,
        authorization_server::{Authorization, AuthorizationServer},
        check_response::HttpResponse,
    },
    google::rpc,
};
use http_body_util::Full;
use hyper::{Request, Response, StatusCode, body::Incoming, server, service::service_fn};
use hyper_util::rt::TokioIo;
use tokio::{net::TcpListener, task::JoinSet};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Code, Status, service::Routes};
use xds::Transport;

/// The header that says so, and what it says.
pub const SAYS_SO: (&str, &str) = ("x-let", "in");

/// Running authorisers; dropping them ends them.
#[derive(Debug)]
pub struct Authorizers {
    /// Where the one is asked over HTTP.
    pub http: SocketAddr,
    /// Where the other is asked over gRPC.
    pub grpc: SocketAddr,
    asked: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Authorizers {
    /// Starts both.
    ///
    /// # Errors
    /// When no port is free.
    pub async fn start() -> Result<Self> {
        let bind = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let (over_http, over_grpc) = (bind().await?, bind().await?);
        let (http, grpc) = (over_http.local_addr()?, over_grpc.local_addr()?);
        let asked = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        tasks.spawn(serve(over_http, asked.clone()));
        let server = AuthorizationServer::new(OverGrpc(asked.clone()));
        tasks.spawn(xds::serve(
            TcpListenerStream::new(over_grpc),
            Routes::new(server).prepare(),
            Transport::default(),
            std::future::pending(),
        ));
        Ok(Self {
            http,
            grpc,
            asked,
            tasks,
        })
    }

    /// How often they were asked.
    pub fn asked(&self) -> usize {
        self.asked.load(Ordering::SeqCst)
    }

    /// Ends them.
    pub async fn stop(&mut self) {
        self.tasks.shutdown().await;
    }
}

async fn serve(listener: TcpListener, asked: Arc<AtomicUsize>) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        let asked = asked.clone();
        let service = service_fn(move |request: Request<Incoming>| {
            asked.fetch_add(1, Ordering::SeqCst);
            let value = request.headers().get(SAYS_SO.0);
            let mut response = Response::new(Full::new(Bytes::from_static(b"not by http")));
            if value.is_none_or(|value| value != SAYS_SO.1) {
                *response.status_mut() = StatusCode::FORBIDDEN;
            }
            async move { Ok::<_, Infallible>(response) }
        });
        let connection =
            server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), service);
        connections.spawn(connection);
    }
}

#[derive(Debug)]
struct OverGrpc(Arc<AtomicUsize>);

#[tonic::async_trait]
impl Authorization for OverGrpc {
    async fn check(
        &self,
        request: tonic::Request<CheckRequest>,
    ) -> Result<tonic::Response<CheckResponse>, Status> {
        self.0.fetch_add(1, Ordering::SeqCst);
        let lets = || {
            let attributes = request.get_ref().attributes.as_ref()?;
            let http = attributes.request.as_ref()?.http.as_ref()?;
            http.headers.get(SAYS_SO.0)
        };
        let (code, response) = if lets().is_some_and(|value| value == SAYS_SO.1) {
            (
                Code::Ok,
                HttpResponse::OkResponse(OkHttpResponse::default()),
            )
        } else {
            let denied = DeniedHttpResponse {
                body: "not by grpc".to_owned(),
                ..DeniedHttpResponse::default()
            };
            (Code::PermissionDenied, HttpResponse::DeniedResponse(denied))
        };
        Ok(tonic::Response::new(CheckResponse {
            status: Some(rpc::Status {
                code: code.into(),
                ..rpc::Status::default()
            }),
            http_response: Some(response),
            ..CheckResponse::default()
        }))
    }
}

/// Objects and the mesh configuration that make them providers `ext-http` and `ext-grpc`, by services of a
/// namespace that listen on these ports.
///
/// # Errors
/// Never for addresses of this machine.
pub fn providers(
    authorizers: &Authorizers,
    namespace: &str,
    ports: [u16; 2],
) -> Result<(String, String)> {
    let mut objects = String::new();
    for (name, protocol, port, address) in [
        ("http", "HTTP", ports[0], authorizers.http),
        ("grpc", "GRPC", ports[1], authorizers.grpc),
    ] {
        use std::fmt::Write as _;
        write!(
            objects,
            "---\napiVersion: networking.istio.io/v1\nkind: ServiceEntry\n\
             metadata: {{name: ext-{name}, namespace: {namespace}}}\n\
             spec:\n  hosts: [ext-{name}.test]\n  location: MESH_INTERNAL\n  resolution: STATIC\n  \
             ports: [{{number: {port}, name: {name}, protocol: {protocol}, targetPort: {}}}]\n  \
             endpoints: [{{address: {}}}]\n",
            address.port(),
            address.ip(),
        )
        .context("write to a text")?;
    }
    let mesh = format!(
        "extensionProviders:\n\
         - name: ext-http\n  envoyExtAuthzHttp:\n    service: ext-http.test\n    port: {}\n    \
         includeRequestHeadersInCheck: [{}]\n\
         - name: ext-grpc\n  envoyExtAuthzGrpc:\n    service: ext-grpc.test\n    port: {}\n",
        ports[0], SAYS_SO.0, ports[1],
    );
    Ok((objects, mesh))
}

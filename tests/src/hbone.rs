//! HBONE: both ends of tunnels, as the node proxy of ambient mode has them for its workloads.
//!
//! A tunnel is a stream of HTTP/2 that begins with CONNECT, within mutual TLS of two workloads.

use std::{
    convert::Infallible,
    net::SocketAddr,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use http_body_util::{Empty, Full};
use hyper::{
    Method, Request, Response, StatusCode, body::Incoming, client, server, service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use model::SpiffeId;
use rustls::{
    ClientConfig, DigitallySignedStruct, Error, RootCertStore, ServerConfig, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{self, WebPkiSupportedAlgorithms, ring},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};
use security::{
    Authority, AuthorityStore, Names, PeerRule, PrivateKey, ServerCertificate, TlsServer,
    client_config, identities_of,
};
use tokio::{
    io::copy_bidirectional,
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, TlsConnector};

use crate::http::{self, Answer};

/// Port of HBONE.
pub const PORT: u16 = 15008;

/// Longest time until a tunnel is open, and until a request in it is answered.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long certificates are valid.
const LIFETIME: Duration = Duration::from_hours(1);

/// What travels in a tunnel.
pub type Tunnelled = TokioIo<hyper::upgrade::Upgraded>;

/// A workload of the mesh, with a certificate of the mesh's authority.
#[derive(Clone, Debug)]
pub struct Peer {
    roots: Vec<CertificateDer<'static>>,
    client: Arc<ClientConfig>,
    server: Arc<ServerConfig>,
}

impl Peer {
    /// Has a certificate issued for an identity by the authority that is kept in a folder.
    ///
    /// # Errors
    /// When there is no authority, or `id` is no identity.
    pub fn new(authority: &Path, id: &str) -> Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "Envoy reads the same clock")]
        let now = SystemTime::now();
        let nowhere = Path::new("/nonexistent");
        let store = AuthorityStore::open(nowhere, Some(authority), "", LIFETIME, now)?;
        let authority = store.current();
        let id: SpiffeId = id.parse()?;
        let domain = id.trust_domain().to_string();
        let own = certificate(&authority, id, now)?;
        let roots = authority.roots().to_vec();
        let rule = PeerRule::new(&roots, vec![domain])?;
        Ok(Self {
            client: client_config(&roots, Some(&own))?,
            server: TlsServer::new(&own, rule)?.config(),
            roots,
        })
    }

    /// Opens a tunnel to `target` at a proxy, which has to be `expected`.
    ///
    /// # Errors
    /// When it is somebody else, or refuses.
    pub async fn tunnel(&self, proxy: &Proxy, target: SocketAddr) -> Result<Tunnel> {
        let opening = self.open(proxy, target);
        timeout(PATIENCE, opening)
            .await
            .with_context(|| format!("no tunnel to {target} within {PATIENCE:?}"))?
            .with_context(|| format!("tunnel to {target}"))
    }

    async fn open(&self, proxy: &Proxy, target: SocketAddr) -> Result<Tunnel> {
        let mut config = ClientConfig::clone(&self.client);
        config
            .dangerous()
            .set_certificate_verifier(Arc::new(Expected::new(&self.roots, &proxy.identity)?));
        let stream = TcpStream::connect(proxy.address).await?;
        // Identities are no names of hosts: the verifier looks at none.
        let name = ServerName::from(proxy.address.ip());
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, stream)
            .await?;
        let (mut sender, connection) =
            client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        let mut connections = JoinSet::new();
        connections.spawn(async move {
            connection.await.ok();
        });
        let request = Request::connect(target.to_string()).body(Empty::<Bytes>::new())?;
        let response = sender.send_request(request).await?;
        ensure!(response.status() == StatusCode::OK, "{}", response.status());
        let stream = TokioIo::new(hyper::upgrade::on(response).await?);
        Ok(Tunnel {
            stream,
            _connections: connections,
        })
    }

    /// Asks for `path` of `host` in a tunnel of its own.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn get(
        &self,
        proxy: &Proxy,
        target: SocketAddr,
        (host, path): (&str, &str),
        headers: &[(&str, &str)],
    ) -> Result<Answer> {
        let Tunnel {
            stream,
            _connections,
        } = self.tunnel(proxy, target).await?;
        let asking = http::exchange_over(stream, "GET", host, path, headers, Full::default());
        timeout(PATIENCE, asking)
            .await
            .with_context(|| format!("no answer of {target} within {PATIENCE:?}"))?
            .with_context(|| format!("ask {target} for {host}{path}"))
    }

    /// Ends tunnels of others at an address, and connects them to where they want to go.
    ///
    /// # Errors
    /// When the address is taken.
    pub async fn terminate(&self, address: SocketAddr) -> Result<Terminator> {
        let listener = TcpListener::bind(address)
            .await
            .with_context(|| format!("end tunnels at {address}"))?;
        let seen = Seen::default();
        let mut tasks = JoinSet::new();
        let acceptor = TlsAcceptor::from(self.server.clone());
        tasks.spawn(accept(listener, acceptor, seen.clone()));
        Ok(Terminator {
            seen,
            _tasks: tasks,
        })
    }
}

fn certificate(authority: &Authority, id: SpiffeId, now: SystemTime) -> Result<ServerCertificate> {
    let key = PrivateKey::generate()?;
    let issued = authority.issue_for(&key, &Names::Workload(id), LIFETIME, now)?;
    let chain = issued.chain_pem();
    Ok(ServerCertificate::from_pem(&chain, key.to_pem(), "memory")?)
}

/// A proxy that tunnels lead to.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Where it ends them.
    pub address: SocketAddr,
    /// Who it is.
    pub identity: String,
}

/// An open tunnel; dropping it closes it.
#[derive(Debug)]
pub struct Tunnel {
    /// What goes through.
    pub stream: Tunnelled,
    // Dropped with the tunnel, which ends the connection below it.
    _connections: JoinSet<()>,
}

/// Who opened a tunnel to where.
type Seen = Arc<Mutex<Vec<(String, String)>>>;

/// The end of tunnels of others; dropping it ends it.
#[derive(Debug)]
pub struct Terminator {
    seen: Seen,
    _tasks: JoinSet<()>,
}

impl Terminator {
    /// Who has opened a tunnel, and to where.
    pub fn seen(&self) -> Vec<(String, String)> {
        locked(&self.seen).clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, seen: Seen) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => {
                let Ok((stream, _)) = accepted else { continue };
                connections.spawn(serve(stream, acceptor.clone(), seen.clone()));
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, seen: Seen) -> Result<()> {
    let stream = acceptor.accept(stream).await?;
    let certificates = stream.get_ref().1.peer_certificates();
    let peer = certificates.and_then(|all| identities_of(all.first()?).into_iter().next());
    let peer = peer.context("a peer without an identity")?.to_string();
    // Streams of one connection, which end with it.
    let copies = Arc::new(Mutex::new(JoinSet::new()));
    let service = service_fn(|mut request: Request<Incoming>| {
        let (peer, seen, copies) = (peer.clone(), seen.clone(), copies.clone());
        async move {
            let target = request.uri().authority().map(ToString::to_string);
            let target = target.filter(|_| request.method() == Method::CONNECT);
            let Some(target) = target else {
                return Ok(answer(StatusCode::METHOD_NOT_ALLOWED));
            };
            locked(&seen).push((peer, target.clone()));
            let Ok(mut workload) = TcpStream::connect(&target).await else {
                return Ok(answer(StatusCode::SERVICE_UNAVAILABLE));
            };
            let upgrade = hyper::upgrade::on(&mut request);
            locked(&copies).spawn(async move {
                if let Ok(tunnelled) = upgrade.await {
                    let mut tunnelled = TokioIo::new(tunnelled);
                    copy_bidirectional(&mut tunnelled, &mut workload).await.ok();
                }
            });
            Ok::<_, Infallible>(answer(StatusCode::OK))
        }
    });
    server::conn::http2::Builder::new(TokioExecutor::new())
        .serve_connection(TokioIo::new(stream), service)
        .await?;
    Ok(())
}

fn answer(status: StatusCode) -> Response<Empty<Bytes>> {
    let mut response = Response::new(Empty::new());
    *response.status_mut() = status;
    response
}

/// Accepts one identity that a root vouches for.
#[derive(Debug)]
struct Expected {
    identity: String,
    roots: RootCertStore,
    algorithms: WebPkiSupportedAlgorithms,
}

impl Expected {
    fn new(roots: &[CertificateDer<'static>], identity: &str) -> Result<Self> {
        let mut store = RootCertStore::empty();
        for root in roots {
            store.add(root.clone())?;
        }
        Ok(Self {
            identity: identity.to_owned(),
            roots: store,
            algorithms: ring::default_provider().signature_verification_algorithms,
        })
    }
}

impl ServerCertVerifier for Expected {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        verify_server_cert_signed_by_trust_anchor(
            &ParsedCertificate::try_from(end_entity)?,
            &self.roots,
            intermediates,
            now,
            self.algorithms.all,
        )?;
        match &identities_of(end_entity)[..] {
            [one] if one.to_string() == self.identity => Ok(ServerCertVerified::assertion()),
            others => Err(Error::General(format!(
                "not {}, but {others:?}",
                self.identity
            ))),
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls12_signature(message, certificate, signature, &self.algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        crypto::verify_tls13_signature(message, certificate, signature, &self.algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}

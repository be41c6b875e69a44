//! The secret service of a proxy, on a socket: what Istio's listeners and clusters refer to.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    fs, io,
    os::unix::fs::PermissionsExt as _,
    path::Path,
    sync::Arc,
    task::{Context, Poll},
};

use anyhow::Context as _;
use envoy_types::pb::envoy::{
    config::core::v3::{DataSource, Node, data_source::Specifier},
    extensions::transport_sockets::tls::v3::{
        CertificateValidationContext, Secret, TlsCertificate, secret,
    },
};
use parking_lot::Mutex;
use prost::Message as _;
use security::certificates_pem;
use tokio::{net::UnixListener, task::JoinSet};
use tokio_stream::wrappers::UnixListenerStream;
use tokio_util::sync::CancellationToken;
use tonic::{
    Status,
    body::Body,
    codegen::{Service, http},
};
use xds::{
    AdsService, Change, Generator, Interest, NoObserver, Peer, Registration, Registry, Resource,
    ResourceSet, Server, Touched, Transport, TypeFacts, World, boxed, type_url,
};

use super::folder::Bundle;

/// The type of secrets.
pub(super) const SECRET: &str = type_url::SECRET;
/// The secret of the certificate.
pub(crate) const CERTIFICATE: &str = "default";
/// The secret of the roots.
pub(crate) const ROOT: &str = "ROOTCA";

/// The secrets of one workload as a [`World`].
struct Secrets;

#[derive(Clone, Default)]
struct State {
    version: u64,
    secrets: BTreeMap<&'static str, zeroize::Zeroizing<Vec<u8>>>,
}

impl World for Secrets {
    type Snapshot = State;
    type Client = ();
    type Class = ();
    type Update = ();

    async fn admit(&self, _: &State, _: &Node, _: &Peer) -> Result<(), Status> {
        Ok(())
    }

    fn classify(&self, _: &State, (): &()) {}

    fn regroups(&self, _: &Change<'_, Self>) -> bool {
        false
    }

    fn touched(&self, _: &Change<'_, Self>, (): &(), _: &str) -> Touched {
        Touched::Everything
    }

    fn root(&self, state: &State) -> Arc<str> {
        state.version.to_string().into()
    }
}

struct Build;

impl Generator<Secrets> for Build {
    fn generate(&self, state: &State, (): &(), interest: &Interest) -> ResourceSet {
        let wanted = state
            .secrets
            .iter()
            .filter(|(name, _)| interest.wants(name));
        wanted
            .map(|(name, body)| Resource::new(*name, body.to_vec()))
            .collect()
    }
}

/// A socket that serves secrets, until its token is cancelled or it is dropped.
pub(super) struct Socket {
    server: Server<Secrets>,
    state: Mutex<State>,
    _tasks: JoinSet<()>,
}

impl Socket {
    /// Listens on `path`; only the owner of the process may connect.
    pub(super) fn serve(path: &Path, stop: CancellationToken) -> anyhow::Result<Self> {
        let failed = || format!("listen on {}", path.display());
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder).with_context(failed)?;
        }
        // What an earlier run left behind.
        match fs::remove_file(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(error).with_context(failed);
            }
            _ => {}
        }
        let listener = UnixListener::bind(path).with_context(failed)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o600)).with_context(failed)?;
        let registry = Registry::new([Registration::new(
            SECRET,
            module_path!(),
            TypeFacts::NAMED,
            || boxed::<Secrets>(Build),
        )])?;
        let server = Server::new(Secrets, registry, xds::Settings::default(), NoObserver);
        let service = SecretService(server.service());
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let incoming = UnixListenerStream::new(listener);
            let stopped = stop.cancelled_owned();
            xds::serve(incoming, service, Transport::default(), stopped).await;
        });
        tracing::info!(socket = %path.display(), "serving secrets");
        Ok(Self {
            server,
            state: Mutex::default(),
            _tasks: tasks,
        })
    }

    /// Serves another certificate from now on.
    pub(super) fn publish(&self, bundle: &Bundle) {
        let data = |text: &str| {
            Some(DataSource {
                specifier: Some(Specifier::InlineString(text.to_owned())),
                ..DataSource::default()
            })
        };
        let encode = |name: &str, kind| {
            let secret = Secret {
                name: name.to_owned(),
                r#type: Some(kind),
            };
            zeroize::Zeroizing::new(secret.encode_to_vec())
        };
        let certificate = secret::Type::TlsCertificate(TlsCertificate {
            certificate_chain: data(&certificates_pem(&bundle.chain)),
            private_key: data(bundle.key.to_pem()),
            ..TlsCertificate::default()
        });
        let roots = secret::Type::ValidationContext(CertificateValidationContext {
            trusted_ca: data(&certificates_pem(&bundle.roots)),
            ..CertificateValidationContext::default()
        });
        let mut state = self.state.lock();
        state.version += 1;
        state.secrets = BTreeMap::from([
            (CERTIFICATE, encode(CERTIFICATE, certificate)),
            (ROOT, encode(ROOT, roots)),
        ]);
        self.server.publish(Arc::new(state.clone()), &());
    }
}

/// The secret discovery service: the aggregated one under another name.
#[derive(Clone)]
struct SecretService(AdsService<Secrets>);

impl Service<http::Request<Body>> for SecretService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = <AdsService<Secrets> as Service<http::Request<Body>>>::Future;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.0.poll_ready(context)
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let method = match request.uri().path() {
            "/envoy.service.secret.v3.SecretDiscoveryService/StreamSecrets" => {
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources"
            }
            "/envoy.service.secret.v3.SecretDiscoveryService/DeltaSecrets" => {
                "/envoy.service.discovery.v3.AggregatedDiscoveryService/DeltaAggregatedResources"
            }
            _ => "/unknown",
        };
        *request.uri_mut() = http::Uri::from_static(method);
        self.0.call(request)
    }
}

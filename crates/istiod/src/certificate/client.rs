//! Asking the certificate service.

use std::{
    future::Future,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use anyhow::Context as _;
use hyper_util::rt::TokioIo;
use security::{ServerCertificate, client_config, parse_certificates};
use tokio::net::TcpStream;
use tokio_rustls::{
    TlsConnector,
    client::TlsStream,
    rustls::{ClientConfig, pki_types::ServerName},
};
use tonic::{
    Request,
    codegen::{Service, http::Uri, http::uri::PathAndQuery},
    transport,
};
use tonic_prost::ProstCodec;

use crate::{
    bootstrap::HostPort,
    ca::messages::{IstioCertificateRequest, IstioCertificateResponse, METHOD},
};

/// Longest time that an answer may take: the service lets callers wait when many come at once.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where the service is, and what it is known by.
#[derive(Clone, Debug)]
pub(super) struct Endpoint {
    /// Host and port.
    pub(super) address: HostPort,
    /// Name in its certificate.
    pub(super) server_name: String,
    /// Roots in PEM form.
    pub(super) roots: String,
}

/// What proves who asks.
pub(super) struct Credentials {
    /// A token.
    pub(super) token: Option<String>,
    /// Certificate and key in PEM form.
    pub(super) certificate: Option<(String, zeroize::Zeroizing<String>)>,
}

/// Sends a signing request; the parts of the answer, the roots last.
pub(super) async fn create(
    endpoint: &Endpoint,
    credentials: &Credentials,
    csr: String,
    lifetime: Duration,
) -> anyhow::Result<Vec<String>> {
    let roots = parse_certificates(endpoint.roots.as_bytes())
        .filter(|roots| !roots.is_empty())
        .context("the roots of the control plane are no certificates")?;
    let own = credentials
        .certificate
        .as_ref()
        .map(|(chain, key)| ServerCertificate::from_pem(chain, key, "--cert and --key"))
        .transpose()?;
    let connector = Connector {
        address: endpoint.address.to_string().into(),
        name: ServerName::try_from(endpoint.server_name.clone())
            .with_context(|| format!("{:?} is no host name", endpoint.server_name))?,
        config: client_config(&roots, own.as_ref())?,
    };
    let uri: Uri = format!("https://{}", endpoint.server_name)
        .parse()
        .context("the name of the control plane")?;
    let channel = transport::Endpoint::from(uri)
        .connect_timeout(PATIENCE)
        .timeout(PATIENCE)
        .connect_with_connector(connector)
        .await
        .with_context(|| format!("connect to {}", endpoint.address))?;
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await.context("connect")?;
    let mut request = Request::new(IstioCertificateRequest {
        csr,
        validity_duration: i64::try_from(lifetime.as_secs()).unwrap_or(i64::MAX),
        metadata: None,
    });
    if let Some(token) = &credentials.token {
        let mut value: tonic::metadata::MetadataValue<_> = format!("Bearer {}", token.trim())
            .parse()
            .context("the token is no token")?;
        value.set_sensitive(true);
        request.metadata_mut().insert("authorization", value);
    }
    let codec = ProstCodec::<IstioCertificateRequest, IstioCertificateResponse>::default();
    let path = PathAndQuery::from_static(METHOD);
    let response = client
        .unary(request, path, codec)
        .await
        .map_err(|status| anyhow::anyhow!("{}: {}", status.code(), status.message()))?;
    Ok(response.into_inner().cert_chain)
}

/// Opens connections that are secured by our own TLS.
#[derive(Clone)]
struct Connector {
    address: Arc<str>,
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TlsStream<TcpStream>>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _uri: Uri) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let stream = TcpStream::connect(&*this.address).await?;
            stream.set_nodelay(true)?;
            let connector = TlsConnector::from(this.config);
            Ok(TokioIo::new(connector.connect(this.name, stream).await?))
        })
    }
}

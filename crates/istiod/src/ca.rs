//! The certificate service: who has proved who it is gets a certificate that says so.

pub(crate) mod messages;
mod pool;

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::SystemTime,
};

use model::{SpiffeId, spiffe::Authenticated};
use security::{AuthorityStore, IssueError, Lifetimes, Names, SigningRequest};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::ProstCodec;

use self::{
    messages::{IMPERSONATED, IstioCertificateRequest, IstioCertificateResponse, SERVICE},
    pool::Pool,
};

/// The largest request that is read, in bytes: a signing request, and room for metadata.
const RECEIVE_BYTES: usize = security::MAX_REQUEST_BYTES + (16 << 10);

/// What signing needs.
pub(crate) struct Signing {
    /// The authority.
    pub(crate) store: Arc<AuthorityStore>,
    /// How long certificates are valid.
    pub(crate) lifetimes: Lifetimes,
    /// The trust domain of the mesh, at present.
    pub(crate) trust_domain: Box<dyn Fn() -> String + Send + Sync>,
    /// The time.
    pub(crate) clock: fn() -> SystemTime,
}

impl fmt::Debug for Signing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Signing")
            .field("store", &self.store)
            .field("lifetimes", &self.lifetimes)
            .finish_non_exhaustive()
    }
}

impl Signing {
    /// Issues the certificate that a request of `identity` asks for.
    ///
    /// It is of the mesh's trust domain, also for those who still show a certificate of an alias.
    fn sign(
        &self,
        identity: &SpiffeId,
        request: &IstioCertificateRequest,
    ) -> Result<IstioCertificateResponse, Status> {
        let refused = |error: &dyn fmt::Display| Status::invalid_argument(error.to_string());
        let lifetime = self
            .lifetimes
            .resolve(request.validity_duration)
            .map_err(|error| refused(&error))?;
        let key = SigningRequest::parse(&request.csr).map_err(|error| refused(&error))?;
        let (namespace, account) = (identity.namespace(), identity.service_account());
        let identity = SpiffeId::new(&(self.trust_domain)(), namespace, account)
            .map_err(|error| Status::internal(error.to_string()))?;
        let authority = self.store.current();
        let issued = authority
            .issue(&key, &Names::Workload(identity), lifetime, (self.clock)())
            .map_err(|error| match error {
                IssueError::Expired => Status::unavailable(error.to_string()),
                _ => Status::internal(error.to_string()),
            })?;
        let parts = [
            issued.certificate_pem(),
            issued.intermediates_pem(),
            authority.roots_pem(),
        ];
        Ok(IstioCertificateResponse {
            cert_chain: parts.into_iter().filter(|part| !part.is_empty()).collect(),
        })
    }
}

/// The gRPC service. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct CertificateService {
    pool: Arc<Pool>,
}

impl CertificateService {
    /// Makes the service, with threads of its own.
    ///
    /// # Errors
    /// When the system has no threads left.
    pub(crate) fn new(signing: Signing) -> std::io::Result<Self> {
        let pool = Pool::start(move |identity, request| signing.sign(identity, request))?;
        Ok(Self {
            pool: Arc::new(pool),
        })
    }
}

impl NamedService for CertificateService {
    const NAME: &'static str = SERVICE;
}

impl Service<http::Request<Body>> for CertificateService {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let pool = self.pool.clone();
        Box::pin(async move {
            if request.uri().path() != messages::METHOD {
                return Ok(Status::unimplemented("unknown method").into_http());
            }
            let codec = ProstCodec::<IstioCertificateResponse, IstioCertificateRequest>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(RECEIVE_BYTES);
            Ok(grpc.unary(CreateCertificate { pool }, request).await)
        })
    }
}

/// The one method.
struct CreateCertificate {
    pool: Arc<Pool>,
}

impl UnaryService<IstioCertificateRequest> for CreateCertificate {
    type Response = IstioCertificateResponse;
    type Future = BoxFuture<Response<IstioCertificateResponse>, Status>;

    fn call(&mut self, request: Request<IstioCertificateRequest>) -> Self::Future {
        let pool = self.pool.clone();
        Box::pin(async move {
            let (_, extensions, message) = request.into_parts();
            let identity = extensions
                .get::<Authenticated>()
                .and_then(|authenticated| authenticated.identities.first())
                .ok_or_else(|| Status::unauthenticated("request authenticate failure"))?;
            let wishes = message.metadata.as_ref();
            if wishes.is_some_and(|wishes| wishes.fields.contains_key(IMPERSONATED)) {
                // Only agents of nodes may, and only Kubernetes tells who runs on a node.
                return Err(Status::unauthenticated("impersonation is not allowed"));
            }
            pool.sign(identity.clone(), message)
                .await
                .map(Response::new)
        })
    }
}

#[cfg(test)]
mod tests;

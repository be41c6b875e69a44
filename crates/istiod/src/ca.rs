//! The certificate service: who has proved who it is gets a certificate that says so.

pub(crate) mod messages;
mod nodes;
mod pool;

use std::{
    convert::Infallible,
    fmt,
    sync::Arc,
    task::{Context, Poll},
    time::SystemTime,
};

use model::{MeshState, SpiffeId, spiffe::Authenticated};
use prost_types::value::Kind;
use security::{AuthorityStore, BoundPod, IssueError, Lifetimes, Names, SigningRequest};
use tonic::{
    Request, Response, Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::{Grpc, NamedService, UnaryService},
};
use tonic_prost::ProstCodec;

pub(crate) use self::nodes::Account;
use self::{
    messages::{IMPERSONATED, IstioCertificateRequest, IstioCertificateResponse, SERVICE},
    pool::{Owner, Pool},
};
use crate::metrics::{CertificateMetrics, Unsigned};

/// The largest request that is read, in bytes: a signing request, and room for metadata.
const RECEIVE_BYTES: usize = security::MAX_REQUEST_BYTES + (16 << 10);

/// What signing needs.
pub(crate) struct Signing {
    /// The authority.
    pub(crate) store: Arc<AuthorityStore>,
    /// How long certificates are valid.
    pub(crate) lifetimes: Lifetimes,
    /// The state of the mesh, at present.
    pub(crate) state: Arc<dyn Fn() -> MeshState + Send + Sync>,
    /// Service accounts of node agents.
    pub(crate) agents: Vec<Account>,
    /// Where it is counted what becomes of requests.
    pub(crate) metrics: CertificateMetrics,
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
        let refused = |error: &dyn fmt::Display, why| {
            self.metrics.not_signed(why);
            Status::invalid_argument(error.to_string())
        };
        let lifetime = self
            .lifetimes
            .resolve(request.validity_duration)
            .map_err(|error| refused(&error, Unsigned::Lifetime))?;
        let key = SigningRequest::parse(&request.csr)
            .map_err(|error| refused(&error, Unsigned::Request))?;
        let (namespace, account) = (identity.namespace(), identity.service_account());
        let failed = |error: &dyn fmt::Display| {
            self.metrics.not_signed(Unsigned::Signing);
            Status::internal(error.to_string())
        };
        let identity = SpiffeId::new(&(self.state)().mesh.trust_domain, namespace, account)
            .map_err(|error| failed(&error))?;
        let authority = self.store.current();
        let issued = authority
            .issue(&key, &Names::Workload(identity), lifetime, (self.clock)())
            .map_err(|error| match error {
                IssueError::Expired => {
                    self.metrics.not_signed(Unsigned::Authority);
                    Status::unavailable(error.to_string())
                }
                _ => failed(&error),
            })?;
        self.metrics.issued();
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
    agents: Arc<Agents>,
}

/// What decides who may ask for certificates of others.
struct Agents {
    state: Arc<dyn Fn() -> MeshState + Send + Sync>,
    accounts: Vec<Account>,
    metrics: CertificateMetrics,
}

impl fmt::Debug for Agents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Agents")
            .field("accounts", &self.accounts)
            .finish_non_exhaustive()
    }
}

impl CertificateService {
    /// Makes the service, with threads of its own.
    ///
    /// # Errors
    /// When the system has no threads left.
    pub(crate) fn new(signing: Signing) -> std::io::Result<Self> {
        let agents = Agents {
            state: signing.state.clone(),
            accounts: signing.agents.clone(),
            metrics: signing.metrics.clone(),
        };
        let pool = Pool::start(move |identity, request| signing.sign(identity, request))?;
        Ok(Self {
            pool: Arc::new(pool),
            agents: Arc::new(agents),
        })
    }
}

impl Agents {
    /// Returns whose certificate a caller asks for, and who waits for it.
    fn resolve(
        &self,
        caller: &SpiffeId,
        pod: Option<BoundPod>,
        message: &IstioCertificateRequest,
    ) -> Result<(Owner, SpiffeId), Status> {
        let wishes = message.metadata.as_ref();
        let wanted = match wishes.and_then(|wishes| wishes.fields.get(IMPERSONATED)) {
            None => {
                let owner = Owner {
                    identity: caller.clone(),
                    agent: None,
                };
                return Ok((owner, caller.clone()));
            }
            Some(value) => match &value.kind {
                Some(Kind::StringValue(text)) => text.parse::<SpiffeId>().ok(),
                _ => None,
            },
        };
        let denied = |wanted: &dyn fmt::Display, error: &dyn fmt::Display| {
            self.metrics.unauthenticated();
            tracing::warn!(%caller, %wanted, %error, "an agent gets no certificate of somebody else");
            Status::unauthenticated("request impersonation authentication failure")
        };
        let Some(wanted) = wanted else {
            self.metrics.nameless();
            return Err(denied(&"", &"what it asks for is no identity"));
        };
        nodes::authorize(
            &(self.state)(),
            &self.accounts,
            caller,
            pod.as_ref(),
            &wanted,
        )
        .map_err(|error| denied(&wanted, &error))?;
        let owner = Owner {
            identity: caller.clone(),
            agent: pod.map(|pod| pod.name),
        };
        Ok((owner, wanted))
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
        let (pool, agents) = (self.pool.clone(), self.agents.clone());
        Box::pin(async move {
            if request.uri().path() != messages::METHOD {
                return Ok(Status::unimplemented("unknown method").into_http());
            }
            let codec = ProstCodec::<IstioCertificateResponse, IstioCertificateRequest>::default();
            let mut grpc = Grpc::new(codec).max_decoding_message_size(RECEIVE_BYTES);
            Ok(grpc
                .unary(CreateCertificate { pool, agents }, request)
                .await)
        })
    }
}

/// The one method.
struct CreateCertificate {
    pool: Arc<Pool>,
    agents: Arc<Agents>,
}

impl UnaryService<IstioCertificateRequest> for CreateCertificate {
    type Response = IstioCertificateResponse;
    type Future = BoxFuture<Response<IstioCertificateResponse>, Status>;

    fn call(&mut self, request: Request<IstioCertificateRequest>) -> Self::Future {
        let (pool, agents) = (self.pool.clone(), self.agents.clone());
        Box::pin(async move {
            agents.metrics.requested();
            let (_, mut extensions, message) = request.into_parts();
            let pod = extensions.remove::<BoundPod>();
            let caller = extensions
                .get::<Authenticated>()
                .and_then(|authenticated| authenticated.identities.first())
                .ok_or_else(|| Status::unauthenticated("request authenticate failure"))?;
            let (owner, identity) = agents.resolve(caller, pod, &message)?;
            pool.sign(owner, identity, message).await.map(Response::new)
        })
    }
}

#[cfg(test)]
mod tests;

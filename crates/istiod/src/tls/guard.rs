//! Authentication of calls on the secure port (xds-server §5.2).

use std::{
    convert::Infallible,
    task::{Context, Poll},
    time::SystemTime,
};

use model::spiffe::Authenticated;
use security::BoundPod;
use tonic::{
    Status,
    body::Body,
    codegen::{BoxFuture, Service, http},
    server::NamedService,
    transport::server::TcpConnectInfo,
};

use super::accept::SecurePeer;
use crate::{
    metrics::CertificateMetrics,
    tokens::{self, Nobody, Tokens},
};

/// What a service asks of its callers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Demand {
    /// To prove who they are; the service hears it.
    Identity,
    /// To prove who they are; the service does not hear it, so that they may be anybody.
    AnyIdentity,
    /// Nothing.
    Nothing,
}

/// Who calls, and the pod that the token of the call is bound to.
type Caller = (Authenticated, Option<BoundPod>);

/// A service whose callers are authenticated first: by the certificate of the connection, else by a
/// token.
#[derive(Clone, Debug)]
pub(crate) struct Guarded<S> {
    inner: S,
    demand: Demand,
    refusal: &'static str,
    tokens: Tokens,
    clock: fn() -> SystemTime,
    refused: Option<CertificateMetrics>,
}

impl<S> Guarded<S> {
    /// Guards a service; `refusal` is the message for those who prove nothing.
    pub(crate) fn new(
        inner: S,
        demand: Demand,
        refusal: &'static str,
        tokens: Tokens,
        clock: fn() -> SystemTime,
    ) -> Self {
        Self {
            inner,
            demand,
            refusal,
            tokens,
            clock,
            refused: None,
        }
    }

    /// Counts the calls that are refused.
    pub(crate) fn counting(mut self, metrics: CertificateMetrics) -> Self {
        self.refused = Some(metrics);
        self
    }

    /// Finds out who calls.
    async fn authenticate(
        &self,
        peer: Option<&SecurePeer>,
        headers: &http::HeaderMap,
    ) -> Result<Caller, Status> {
        if let Some(peer) = peer.filter(|peer| !peer.identities.is_empty()) {
            let identities = peer.identities.clone();
            return Ok((Authenticated { identities }, None));
        }
        let address = peer.and_then(|peer| peer.address);
        let Some(token) = tokens::of_call(headers, &["bearer"]) else {
            tracing::info!(?address, "a call without certificate and token is refused");
            return Err(Status::unauthenticated(self.refusal));
        };
        match self.tokens.identify(token, address, (self.clock)()).await {
            Ok(holder) => {
                let identities = [holder.identity].into();
                Ok((Authenticated { identities }, holder.pod))
            }
            Err(Nobody::Refused) => Err(Status::unauthenticated(self.refusal)),
            Err(Nobody::Unavailable) => Err(Status::unavailable("tokens cannot be reviewed now")),
        }
    }
}

impl<S: NamedService> NamedService for Guarded<S> {
    const NAME: &'static str = S::NAME;
}

impl<S> Service<http::Request<Body>> for Guarded<S>
where
    S: Service<http::Request<Body>, Response = http::Response<Body>, Error = Infallible>
        + Clone
        + Send
        + Sync
        + 'static,
    S::Future: Send,
{
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        // Asked again below, of the clone that serves the call.
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, mut request: http::Request<Body>) -> Self::Future {
        let mut this = self.clone();
        Box::pin(async move {
            // Nobody but this attaches one.
            request.extensions_mut().remove::<Authenticated>();
            request.extensions_mut().remove::<BoundPod>();
            let peer = request.extensions().get::<SecurePeer>().cloned();
            if this.demand != Demand::Nothing {
                match this.authenticate(peer.as_ref(), request.headers()).await {
                    Ok((authenticated, pod)) if this.demand == Demand::Identity => {
                        request.extensions_mut().insert(authenticated);
                        if let Some(pod) = pod {
                            request.extensions_mut().insert(pod);
                        }
                    }
                    Ok(_) => {}
                    Err(status) => {
                        if let Some(metrics) = &this.refused {
                            metrics.requested();
                            metrics.unauthenticated();
                        }
                        return Ok(status.into_http());
                    }
                }
            }
            request.extensions_mut().insert(TcpConnectInfo {
                local_addr: None,
                remote_addr: peer.and_then(|peer| peer.address),
            });
            std::future::poll_fn(|context| this.inner.poll_ready(context)).await?;
            this.inner.call(request).await
        })
    }
}

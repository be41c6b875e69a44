//! Who may see what over HTTP (observability §7).
//!
//! Callers of the same host see everything: `kubectl port-forward` and `kubectl exec` come so. Others
//! prove who they are by a token: an identity of the system namespace sees everything, one of another
//! namespace what is that namespace's, where a page can tell, and nothing else.

use std::{fmt, net::SocketAddr, sync::Arc, time::SystemTime};

use axum::{
    Router,
    extract::{ConnectInfo, Request, State},
    http::StatusCode,
    middleware::{self, Next},
    response::{IntoResponse, Response},
};

use crate::{
    distribution::peers::Peers,
    settings::security::ViewSettings,
    tokens::{self, Nobody, Tokens},
};

/// Decides who may see what. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Access(Arc<Inner>);

struct Inner {
    settings: ViewSettings,
    /// The namespace whose identities see everything.
    system: Box<dyn Fn() -> Arc<str> + Send + Sync>,
    tokens: Tokens,
    peers: Peers,
    clock: fn() -> SystemTime,
}

/// What a caller sees; attached to its request.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Sight {
    /// Everything.
    Everything,
    /// What is of one namespace.
    Namespace(Arc<str>),
}

/// Who a page is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Audience {
    /// Those who see everything.
    Whole,
    /// Those, other replicas, and identities of any namespace: the page shows each its own.
    Own,
}

impl fmt::Debug for Access {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Access")
            .field("settings", &self.0.settings)
            .finish_non_exhaustive()
    }
}

impl Access {
    /// Makes the rule: `system` says which namespace's identities see everything.
    pub(crate) fn new(
        settings: ViewSettings,
        system: impl Fn() -> Arc<str> + Send + Sync + 'static,
        tokens: Tokens,
        peers: Peers,
        clock: fn() -> SystemTime,
    ) -> Self {
        Self(Arc::new(Inner {
            settings,
            system: Box::new(system),
            tokens,
            peers,
            clock,
        }))
    }

    /// Returns whether there are debug pages.
    pub(crate) fn has_debug(&self) -> bool {
        self.0.settings.debug
    }

    /// Guards the pages of a router.
    pub(crate) fn guard<S: Clone + Send + Sync + 'static>(
        &self,
        router: Router<S>,
        audience: Audience,
    ) -> Router<S> {
        let access = self.clone();
        router.route_layer(middleware::from_fn_with_state(
            access,
            move |State(access): State<Self>,
                  ConnectInfo(peer): ConnectInfo<SocketAddr>,
                  mut request: Request,
                  next: Next| async move {
                match access.admit(peer, request.headers(), audience).await {
                    Ok(sight) => {
                        request.extensions_mut().insert(sight);
                        next.run(request).await
                    }
                    Err(status) => {
                        let (path, code) = (request.uri().path(), status.as_u16());
                        tracing::warn!(address = %peer, path, code, "a look is refused");
                        status.into_response()
                    }
                }
            },
        ))
    }

    /// Guards metrics.
    pub(crate) fn guard_metrics<S: Clone + Send + Sync + 'static>(
        &self,
        router: Router<S>,
    ) -> Router<S> {
        if !self.0.settings.local_metrics {
            return router;
        }
        router.route_layer(middleware::from_fn(
            async |ConnectInfo(peer): ConnectInfo<SocketAddr>,
                   request: Request,
                   next: Next|
                   -> Response {
                if is_local(peer) {
                    next.run(request).await
                } else {
                    StatusCode::FORBIDDEN.into_response()
                }
            },
        ))
    }

    /// Decides what a caller sees.
    async fn admit(
        &self,
        peer: SocketAddr,
        headers: &axum::http::HeaderMap,
        audience: Audience,
    ) -> Result<Sight, StatusCode> {
        let Inner {
            settings, system, ..
        } = &*self.0;
        if is_local(peer) {
            return Ok(Sight::Everything);
        }
        let shown = tokens::of_call(headers, &["bearer", "istio"]);
        let Some(token) = shown.filter(|_| settings.authenticates) else {
            if audience == Audience::Own && self.is_replica(peer).await {
                return Ok(Sight::Everything);
            }
            return Err(StatusCode::UNAUTHORIZED);
        };
        let holder = self
            .0
            .tokens
            .identify(token, Some(peer), (self.0.clock)())
            .await
            .map_err(|nobody| match nobody {
                Nobody::Refused => StatusCode::UNAUTHORIZED,
                Nobody::Unavailable => StatusCode::SERVICE_UNAVAILABLE,
            })?;
        let namespace = holder.identity.namespace();
        let sees_everything = !settings.by_namespace
            || *namespace == system()
            || settings.allowed.iter().any(|one| **one == **namespace);
        match audience {
            _ if sees_everything => Ok(Sight::Everything),
            Audience::Own => Ok(Sight::Namespace(namespace.clone())),
            Audience::Whole => Err(StatusCode::FORBIDDEN),
        }
    }

    async fn is_replica(&self, peer: SocketAddr) -> bool {
        let (peers, address) = (&self.0.peers, peer.ip().to_canonical());
        // A replica may be new.
        peers.includes(address) || {
            peers.look_up().await;
            peers.includes(address)
        }
    }
}

fn is_local(peer: SocketAddr) -> bool {
    peer.ip().to_canonical().is_loopback()
}

#[cfg(test)]
mod tests;

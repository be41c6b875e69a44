//! HTTP/2 below the streams: accepts connections, keeps them alive, lets them go.

mod preface;

use std::convert::Infallible;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use hyper::body::Incoming;
use hyper::server::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codegen::Service;
use tonic::codegen::http::{Request, Response};
use tonic::transport::server::Connected;
use tracing::debug;

use crate::Transport;
use crate::service::Goodbye;
use preface::Listening;

/// Serves `service` on every connection of `incoming` until `shutdown` completes, then lets all
/// connections finish for at most [`Transport::drain`].
///
/// `service` is an [`AdsService`](crate::AdsService), or a `tonic::service::Routes` that holds one
/// beside others. Connections may be of any kind; what terminates TLS wraps the listener, and what
/// its `Connected::ConnectInfo` says reaches the world in [`Peer::extensions`](crate::Peer). TCP
/// connections should not wait to fill segments (`TCP_NODELAY`).
///
/// Connections live in tasks that this future owns: dropping it cuts them.
pub async fn serve<I, IO, E, S>(
    incoming: I,
    service: S,
    transport: Transport,
    shutdown: impl Future<Output = ()>,
) where
    I: Stream<Item = Result<IO, E>>,
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    E: std::fmt::Display,
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let mut connections = JoinSet::new();
    let stopping = CancellationToken::new();
    {
        let mut incoming = pin!(incoming);
        let mut shutdown = pin!(shutdown);
        loop {
            tokio::select! {
                biased;
                () = &mut shutdown => break,
                ended = connections.join_next(), if !connections.is_empty() => {
                    if let Some(Err(error)) = ended {
                        tracing::error!(%error, "connection task failed");
                    }
                }
                connection = incoming.next() => match connection {
                    Some(Ok(io)) => {
                        let stop = stopping.child_token();
                        connections.spawn(connection_task(io, service.clone(), transport.clone(), stop));
                    }
                    // Such as too many open files: the next may do.
                    Some(Err(error)) => debug!(%error, "connection not accepted"),
                    None => break,
                },
            }
        }
    }
    // Without a listener left the rest may go on, unless it was asked to stop.
    stopping.cancel();
    let all = async { while connections.join_next().await.is_some() {} };
    if tokio::time::timeout(transport.drain, all).await.is_err() {
        debug!("connections cut after the drain time");
    }
}

/// Serves one connection.
async fn connection_task<IO, S>(io: IO, service: S, transport: Transport, stop: CancellationToken)
where
    IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    S: Service<Request<Body>, Response = Response<Body>, Error = Infallible>
        + Clone
        + Send
        + 'static,
    S::Future: Send,
{
    let info = io.connect_info();
    let (io, silent) = Listening::new(io, transport.handshake);
    let leave = CancellationToken::new();
    let goodbye = Goodbye(leave.clone());
    let service = hyper::service::service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(info.clone());
        request.extensions_mut().insert(goodbye.clone());
        let mut service = service.clone();
        async move { service.call(request.map(Body::new)).await }
    });
    let mut builder = http2::Builder::new(TokioExecutor::new());
    builder
        .timer(TokioTimer::new())
        .max_concurrent_streams(transport.streams_per_connection)
        .max_header_list_size(transport.header_bytes)
        .keep_alive_interval(transport.keepalive_interval)
        .keep_alive_timeout(transport.keepalive_timeout);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let age = async {
        match transport.connection_age {
            Some(age) => sleep(jitter(age)).await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        result = connection.as_mut() => return log_end(result),
        () = silent => return debug!("connection says nothing"),
        () = age => debug!("connection reached its age"),
        () = stop.cancelled() => {}
    }
    // The client opens another connection for its next stream; its streams here are then ended, so
    // that it need not wait for the cut.
    connection.as_mut().graceful_shutdown();
    leave.cancel();
    let result = tokio::time::timeout(transport.connection_age_grace, connection).await;
    if let Ok(result) = result {
        log_end(result);
    }
}

fn log_end(result: hyper::Result<()>) {
    if let Err(error) = result {
        debug!(%error, "connection ended");
    }
}

/// Returns `time`, give or take a tenth.
fn jitter(time: Duration) -> Duration {
    let random = RandomState::new().build_hasher().finish();
    #[expect(
        clippy::cast_precision_loss,
        reason = "a fraction of a percent does not matter"
    )]
    let fraction = random as f64 / u64::MAX as f64;
    time.mul_f64(0.9 + 0.2 * fraction)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_within_a_tenth() {
        let age = Duration::from_mins(30);
        for _ in 0..1000 {
            let jittered = jitter(age);
            assert!(
                age.mul_f64(0.899) < jittered && jittered < age.mul_f64(1.101),
                "{jittered:?}"
            );
        }
    }
}

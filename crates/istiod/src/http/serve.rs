//! HTTP/1.1 for a router: connections that have bounds.

use std::{future::Future, net::SocketAddr, pin::pin, time::Duration};

use axum::{Router, body::Body, extract::ConnectInfo};
use hyper::{Request, body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpListener,
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;
use tonic::codegen::Service as _;

/// How long the head of a request may take, from the end of the one before.
const HEAD_WITHIN: Duration = Duration::from_secs(30);
/// Headers of one request. Those of browsers have some twenty.
const HEADERS: usize = 64;
/// Bytes after which a head that is not whole is refused: a token has at most 16 KiB.
const HEAD_BYTES: usize = 32 << 10;
/// Between two tries when connections are not accepted, such as for too many open files.
const PAUSE: Duration = Duration::from_millis(100);
/// How long an answer may take that is being given when the process stops. That of a page which is kept
/// live has no end.
const LAST_ANSWER: Duration = Duration::from_secs(2);

/// Serves until `shutdown` completes, then lets every connection finish what it answers, for a
/// moment.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    shutdown: impl Future<Output = ()> + Send,
) {
    let (mut connections, stop) = (JoinSet::new(), CancellationToken::new());
    let mut shutdown = pin!(shutdown);
    loop {
        tokio::select! {
            () = &mut shutdown => break,
            Some(ended) = connections.join_next() => {
                if let Err(error) = ended {
                    tracing::error!(%error, "a connection of HTTP failed");
                }
            }
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    connections.spawn(connection(stream, peer, router.clone(), stop.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "connection not accepted");
                    tokio::time::sleep(PAUSE).await;
                }
            },
        }
    }
    stop.cancel();
    while connections.join_next().await.is_some() {}
}

/// Serves one connection.
async fn connection<IO>(io: IO, peer: SocketAddr, router: Router, stop: CancellationToken)
where
    IO: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let service = service_fn(move |mut request: Request<Incoming>| {
        request.extensions_mut().insert(ConnectInfo(peer));
        let mut router = router.clone();
        async move { router.call(request.map(Body::new)).await }
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_WITHIN)
        .max_headers(HEADERS)
        .max_buf_size(HEAD_BYTES);
    let mut connection = pin!(builder.serve_connection(TokioIo::new(io), service));
    let result = tokio::select! {
        result = connection.as_mut() => result,
        () = stop.cancelled() => {
            connection.as_mut().graceful_shutdown();
            let ended = tokio::time::timeout(LAST_ANSWER, connection).await;
            ended.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = result {
        tracing::debug!(%error, %peer, "connection ended");
    }
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _},
        time::Instant,
    };

    use super::*;

    /// What a connection answers to these bytes, until it is closed.
    async fn answer(request: &str) -> (String, Duration) {
        let (mut client, server) = tokio::io::duplex(1 << 20);
        let router = Router::new().route("/", get(async || "here"));
        let peer = SocketAddr::from(([192, 0, 2, 1], 1));
        let mut tasks = JoinSet::new();
        tasks.spawn(connection(server, peer, router, CancellationToken::new()));
        let begun = Instant::now();
        client.write_all(request.as_bytes()).await.unwrap();
        let mut said = String::new();
        client.read_to_string(&mut said).await.unwrap();
        (said, begun.elapsed())
    }

    #[track_caller]
    fn check((said, after): &(String, Duration), status: &str, seconds: u64) {
        assert!(said.starts_with(status), "{said}");
        assert_eq!(after.as_secs(), seconds, "{said}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_head_has_bounds() {
        let good = "GET / HTTP/1.1\r\nhost: x\r\n\r\n";
        // Who is silent afterwards is let go.
        check(&answer(good).await, "HTTP/1.1 200 OK\r\n", 30);
        let slow = "GET / HTTP/1.1\r\nhost: x\r\n";
        check(&answer(slow).await, "", 30);
        check(&answer("").await, "", 30);
        let many = "a: b\r\n".repeat(HEADERS + 1);
        let many = format!("GET / HTTP/1.1\r\n{many}\r\n");
        check(&answer(&many).await, "HTTP/1.1 431 ", 0);
        let large = format!(
            "GET / HTTP/1.1\r\na: {}\r\n\r\n",
            "x".repeat(4 * HEAD_BYTES)
        );
        check(&answer(&large).await, "HTTP/1.1 431 ", 0);
    }
}

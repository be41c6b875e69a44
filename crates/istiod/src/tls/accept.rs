//! Connections of the secure port: handshakes that do not wait for each other.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use model::SpiffeId;
use security::identities_of;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    sync::{Semaphore, mpsc},
    task::JoinSet,
    time::timeout,
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::SecurePort;

/// Handshakes at once; further connections wait in the system's queue. Each may hold some 50 KiB.
const HANDSHAKES: usize = 512;
/// How long one may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// Connections that wait to be served: they are taken at once.
const ACCEPTED: usize = 16;

/// Who is at the other end of a secure connection.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct SecurePeer {
    /// Where it is.
    pub(crate) address: Option<SocketAddr>,
    /// The identities of its certificate; empty when it showed none.
    pub(crate) identities: Arc<[SpiffeId]>,
}

/// A secure connection.
#[derive(Debug)]
pub(crate) struct Secured {
    stream: TlsStream<TcpStream>,
    peer: SecurePeer,
}

impl Connected for Secured {
    type ConnectInfo = SecurePeer;

    fn connect_info(&self) -> SecurePeer {
        self.peer.clone()
    }
}

impl AsyncRead for Secured {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Secured {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

/// Returns the connections that were secured, and what secures them; it ends when nobody wants any
/// more.
pub(crate) fn accept(
    listener: TcpListener,
    port: Arc<SecurePort>,
) -> (
    ReceiverStream<io::Result<Secured>>,
    impl Future<Output = ()> + Send,
) {
    let (sender, receiver) = mpsc::channel(ACCEPTED);
    (
        ReceiverStream::new(receiver),
        secure_all(listener, port, sender),
    )
}

async fn secure_all(
    listener: TcpListener,
    port: Arc<SecurePort>,
    sender: mpsc::Sender<io::Result<Secured>>,
) {
    let mut handshakes = JoinSet::new();
    let slots = Arc::new(Semaphore::new(HANDSHAKES));
    loop {
        // Never closed.
        let Ok(slot) = slots.clone().acquire_owned().await else {
            return;
        };
        let accepted = loop {
            tokio::select! {
                () = sender.closed() => return,
                Some(_) = handshakes.join_next() => {}
                accepted = listener.accept() => break accepted,
            }
        };
        match accepted {
            Ok((stream, address)) => {
                let (port, sender) = (port.clone(), sender.clone());
                handshakes.spawn(async move {
                    let secured = timeout(PATIENCE, secure(stream, address, &port)).await;
                    drop(slot);
                    match secured {
                        // Nobody wants it when the process stops.
                        Ok(Ok(secured)) => drop(sender.send(Ok(secured)).await),
                        Ok(Err(error)) => {
                            tracing::info!(%address, %error, "handshake failed");
                        }
                        Err(_) => tracing::info!(%address, "handshake took too long"),
                    }
                });
            }
            Err(error) => {
                // Such as too many open files: time may help.
                tracing::warn!(%error, "connection not accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn secure(stream: TcpStream, address: SocketAddr, port: &SecurePort) -> io::Result<Secured> {
    stream.set_nodelay(true)?;
    let acceptor = TlsAcceptor::from(port.tls().config());
    let stream = acceptor.accept(stream).await?;
    let shown = stream.get_ref().1.peer_certificates();
    let identities = shown.and_then(|chain| chain.first()).map(identities_of);
    let peer = SecurePeer {
        address: Some(address),
        identities: identities.unwrap_or_default().into(),
    };
    Ok(Secured { stream, peer })
}

//! Connections that are opened and then say nothing.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_util::sync::CancellationToken;

/// Length of what an HTTP/2 client says first. With these bytes there, the protocol takes over: it
/// refuses garbage, and pings who is silent.
const PREFACE: usize = 24;

/// A connection that notes when the preface is there.
pub(super) struct Listening<IO> {
    io: IO,
    missing: usize,
    heard: CancellationToken,
}

impl<IO> Listening<IO> {
    /// Wraps a connection. The future completes when nothing came `within` that time, else never.
    pub(super) fn new(io: IO, within: Duration) -> (Self, impl Future<Output = ()>) {
        let heard = CancellationToken::new();
        let waiting = heard.clone();
        let silent = async move {
            let heard = tokio::time::timeout(within, waiting.cancelled()).await;
            if heard.is_ok() {
                std::future::pending::<()>().await;
            }
        };
        let listening = Self {
            io,
            missing: PREFACE,
            heard,
        };
        (listening, silent)
    }
}

impl<IO: AsyncRead + Unpin> AsyncRead for Listening<IO> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        to: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = to.filled().len();
        let polled = Pin::new(&mut self.io).poll_read(context, to);
        if self.missing > 0 {
            let read = to.filled().len() - before;
            self.missing = self.missing.saturating_sub(read);
            if self.missing == 0 {
                self.heard.cancel();
            }
        }
        polled
    }
}

impl<IO: AsyncWrite + Unpin> AsyncWrite for Listening<IO> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(context)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}

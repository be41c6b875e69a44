//! The body of a stream of responses.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use futures::Stream;
use hyper::body::{Body, Frame};
use tonic::Status;
use tonic::codegen::http::HeaderMap;

use super::Outgoing;
use crate::codec::Writer;
use crate::observer::Protocol;

/// Responses as gRPC messages, written as the client takes them.
///
/// A client that is slow, or one of thousands that connect at once, costs one piece of a response,
/// not a copy of all that it is sent.
pub(super) struct Messages {
    protocol: Protocol,
    responses: Outgoing,
    writer: Option<Writer>,
    ended: bool,
}

impl Messages {
    pub(super) fn new(protocol: Protocol, responses: Outgoing) -> Self {
        Self {
            protocol,
            responses,
            writer: None,
            ended: false,
        }
    }

    /// Returns the next piece of the response that is being written.
    fn piece(&mut self) -> Result<Option<Bytes>, Status> {
        let Some(writer) = &mut self.writer else {
            return Ok(None);
        };
        let piece = writer.next_chunk()?;
        if piece.is_none() {
            self.writer = None;
        }
        Ok(piece)
    }
}

impl Body for Messages {
    type Data = Bytes;
    type Error = Status;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Status>>> {
        loop {
            match self.piece() {
                Ok(Some(piece)) => return Poll::Ready(Some(Ok(Frame::data(piece)))),
                Ok(None) => {}
                Err(status) => return Poll::Ready(Some(Err(status))),
            }
            if self.ended {
                return Poll::Ready(None);
            }
            let next = ready!(Pin::new(&mut self.responses).poll_next(context));
            let status = match next {
                Some(Ok(response)) => {
                    self.writer = Some(Writer::new(self.protocol, response));
                    continue;
                }
                Some(Err(status)) => status,
                None => Status::ok(""),
            };
            self.ended = true;
            let mut trailers = HeaderMap::new();
            return Poll::Ready(Some(
                status
                    .add_header(&mut trailers)
                    .map(|()| Frame::trailers(trailers)),
            ));
        }
    }
}

//! The body of a stream of requests.

use std::marker::PhantomData;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes, BytesMut};
use futures::future::poll_fn;
use hyper::body::Body as _;
use tonic::body::Body;
use tonic::codec::{CompressionEncoding, Streaming};
use tonic::codegen::http::HeaderMap;
use tonic::{Code, Status};

use crate::codec::{AdsDecoder, MESSAGE_HEAD};
use crate::stream::Request;

/// Requests, cut from the gRPC messages of a body.
///
/// tonic's [`Streaming`] keeps room for the largest message until the stream ends: for the names of
/// a thousand clusters, more than all the rest of an idle stream. Here a message's memory goes with
/// it. tonic still reads those that are compressed, each on its own.
pub(crate) struct Requests<R> {
    body: Body,
    /// What came of the next message, and perhaps of later ones.
    gathered: BytesMut,
    limit: usize,
    /// What the client says compressed messages are compressed with.
    encoding: Option<CompressionEncoding>,
    request: PhantomData<fn() -> R>,
}

impl<R: Request> Requests<R> {
    /// Starts to read messages of at most `limit` bytes.
    pub(super) fn new(headers: &HeaderMap, body: Body, limit: usize) -> Self {
        let encoding = headers.get("grpc-encoding");
        Self {
            body,
            encoding: encoding
                .is_some_and(|encoding| encoding == "gzip")
                .then_some(CompressionEncoding::Gzip),
            gathered: BytesMut::new(),
            limit,
            request: PhantomData,
        }
    }

    /// Returns the next request; `None` once the client has ended the stream. Dropping the future
    /// loses nothing.
    ///
    /// # Errors
    /// What the transport reports, or what is wrong with the message. Nothing is read after that.
    pub(crate) async fn message(&mut self) -> Result<Option<R>, Status> {
        let Some((compressed, message)) = poll_fn(|context| self.poll_message(context)).await?
        else {
            return Ok(None);
        };
        if compressed {
            let body = http_body_util::Full::new(message);
            let decoder = AdsDecoder::default();
            Streaming::new_request(decoder, body, self.encoding, Some(self.limit))
                .message()
                .await
        } else {
            AdsDecoder::read(message).map(Some)
        }
    }

    /// Gathers a message: whether it is compressed, and its bytes; of a compressed one with the head.
    fn poll_message(
        &mut self,
        context: &mut Context<'_>,
    ) -> Poll<Result<Option<(bool, Bytes)>, Status>> {
        loop {
            if let Some(message) = self.cut()? {
                return Poll::Ready(Ok(Some(message)));
            }
            match ready!(Pin::new(&mut self.body).poll_frame(context)) {
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        self.gathered.extend_from_slice(&data);
                    }
                }
                Some(Err(status)) if status.code() == Code::Cancelled => {
                    return Poll::Ready(Ok(None));
                }
                Some(Err(status)) => return Poll::Ready(Err(status)),
                None if self.gathered.is_empty() => return Poll::Ready(Ok(None)),
                None => return Poll::Ready(Err(Status::internal("the stream ends in a message"))),
            }
        }
    }

    /// Takes the next message off what was gathered, if it is whole.
    fn cut(&mut self) -> Result<Option<(bool, Bytes)>, Status> {
        let Some((&[flag, a, b, c, d], rest)) = self.gathered.split_first_chunk::<MESSAGE_HEAD>()
        else {
            return Ok(None);
        };
        let compressed = match flag {
            0 => false,
            1 => true,
            _ => return Err(Status::internal(format!("invalid compression flag {flag}"))),
        };
        let len = u32::from_be_bytes([a, b, c, d]) as usize;
        if len > self.limit {
            let limit = self.limit;
            return Err(Status::out_of_range(format!(
                "a request of {len} bytes; the limit is {limit} bytes"
            )));
        }
        if rest.len() < len {
            return Ok(None);
        }
        let mut message = self.gathered.split_to(MESSAGE_HEAD + len);
        if self.gathered.is_empty() {
            // It would hold on to the memory that it shares with the message.
            self.gathered = BytesMut::new();
        }
        if !compressed {
            message.advance(MESSAGE_HEAD);
        }
        Ok(Some((compressed, message.freeze())))
    }
}

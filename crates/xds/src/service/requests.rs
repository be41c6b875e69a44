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

#[cfg(test)]
mod tests {
    use bytes::BufMut;
    use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
    use futures::stream;
    use http_body_util::StreamBody;
    use hyper::body::Frame;
    use prost::Message;

    use super::*;

    fn request(name: &str) -> DiscoveryRequest {
        DiscoveryRequest {
            type_url: name.to_owned(),
            ..DiscoveryRequest::default()
        }
    }

    fn framed(flag: u8, message: &[u8]) -> Vec<u8> {
        let mut bytes = vec![flag];
        bytes.put_u32(u32::try_from(message.len()).unwrap());
        bytes.extend_from_slice(message);
        bytes
    }

    fn read(frames: Vec<Bytes>, encoding: Option<&str>) -> Requests<DiscoveryRequest> {
        let frames = frames
            .into_iter()
            .map(|data| Ok::<_, Status>(Frame::data(data)));
        let body = Body::new(StreamBody::new(stream::iter(frames)));
        let mut headers = HeaderMap::new();
        if let Some(encoding) = encoding {
            headers.insert("grpc-encoding", encoding.parse().unwrap());
        }
        Requests::new(&headers, body, 1000)
    }

    #[tokio::test]
    async fn messages_are_cut_however_they_arrive() {
        let sent = [
            request("a"),
            request(&"b".repeat(900)),
            request(""),
            request("c"),
        ];
        let bytes: Vec<u8> = sent
            .iter()
            .flat_map(|request| framed(0, &request.encode_to_vec()))
            .collect();
        for size in [1, 4, 5, 6, 100, bytes.len()] {
            let frames = bytes.chunks(size).map(Bytes::copy_from_slice).collect();
            let mut requests = read(frames, None);
            for expected in &sent {
                assert_eq!(requests.message().await.unwrap().as_ref(), Some(expected));
            }
            assert_eq!(requests.message().await.unwrap(), None);
        }
    }

    #[tokio::test]
    async fn nothing_is_kept_of_a_message_that_was_read() {
        let message = framed(0, &request(&"n".repeat(900)).encode_to_vec());
        let mut requests = read(vec![message.into()], None);
        requests.message().await.unwrap();
        assert_eq!(requests.gathered.capacity(), 0);
    }

    #[tokio::test]
    async fn compressed_messages_are_read() {
        let message = request("compressed").encode_to_vec();
        let compressed = gzip(&message);
        let frames = vec![framed(1, &compressed).into(), framed(0, &message).into()];
        let mut requests = read(frames, Some("gzip"));
        for _ in 0..2 {
            let read = requests.message().await.unwrap();
            assert_eq!(read, Some(request("compressed")));
        }
    }

    /// Stored, not compressed, in the format of gzip.
    fn gzip(content: &[u8]) -> Vec<u8> {
        let len = u16::try_from(content.len()).unwrap();
        let mut bytes = vec![0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255, 1];
        bytes.put_u16_le(len);
        bytes.put_u16_le(!len);
        bytes.extend_from_slice(content);
        let crc = content.iter().fold(!0_u32, |crc, byte| {
            (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
                (crc >> 1) ^ (0xedb8_8320 * (crc & 1))
            })
        });
        bytes.put_u32_le(!crc);
        bytes.put_u32_le(len.into());
        bytes
    }

    #[track_caller]
    fn refused(frame: Vec<u8>, expected: Code) -> impl Future<Output = ()> {
        let mut requests = read(vec![frame.into()], None);
        async move {
            let status = requests.message().await.unwrap_err();
            assert_eq!(status.code(), expected, "{status}");
        }
    }

    #[tokio::test]
    async fn what_is_no_message_is_refused() {
        refused(framed(2, b""), Code::Internal).await;
        refused(framed(1, b"x"), Code::Internal).await;
        refused(framed(0, b"\xff"), Code::InvalidArgument).await;
        refused(framed(0, &[0; 1001])[..5].to_vec(), Code::OutOfRange).await;
        refused(framed(0, b"cut off")[..8].to_vec(), Code::Internal).await;
    }
}

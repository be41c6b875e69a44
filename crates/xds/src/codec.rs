//! The wire form of responses.
//!
//! Resources are encoded once, when they are built. Here their bytes go to the transport as they are:
//! no `Any` is boxed, no message is built to be serialised again. A response is written piece by
//! piece, as the client takes it, and large resources are not even copied.

use std::marker::PhantomData;
use std::sync::Arc;

use bytes::{Buf, BufMut, Bytes, BytesMut};
use prost::Message;
use prost::encoding::{WireType, encode_key, encode_varint, encoded_len_varint, key_len};
use tonic::Status;
use tonic::codec::{BufferSettings, Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};

use crate::ads::Response;
use crate::delivery::Cargo;
use crate::observer::Protocol;
use crate::{Body, Diff, Resource};

/// What a stream costs at rest, in bytes, for each direction. A buffer grows for the message at
/// hand and is given away with it.
const BUFFER: usize = 1024;
/// From which size on encoded messages are handed to the transport without waiting for more.
const YIELD: usize = 32 * 1024;

/// How much of a response is written in advance, in bytes: what it costs while it is being sent.
const CHUNK: usize = 16 * 1024;
/// From which size on, in bytes, the body of a resource goes to the transport without being copied.
/// Below, copying costs less than a frame of its own.
const SHARED: usize = 4 * 1024;
/// What the head of a resource takes beyond its name, in bytes, roughly.
const ABOUT_HEAD: usize = 192;
/// The head of a gRPC message: whether it is compressed, and its length.
pub(crate) const MESSAGE_HEAD: usize = 5;

// Field numbers of `google.protobuf.Any`.
const ANY_TYPE_URL: u32 = 1;
const ANY_VALUE: u32 = 2;
// Field numbers of `envoy.service.discovery.v3.Resource`.
const RESOURCE_VERSION: u32 = 1;
const RESOURCE_RESOURCE: u32 = 2;
const RESOURCE_NAME: u32 = 3;
const RESOURCE_ALIASES: u32 = 4;
// Field numbers that `DiscoveryResponse` and `DeltaDiscoveryResponse` have in common.
const RESPONSE_VERSION: u32 = 1;
const RESPONSE_RESOURCES: u32 = 2;
const RESPONSE_TYPE_URL: u32 = 4;
const RESPONSE_NONCE: u32 = 5;
// Field number of `DeltaDiscoveryResponse` only.
const RESPONSE_REMOVED: u32 = 6;

/// Encodes [`Response`]s of one protocol and decodes the requests `R` that belong to it.
#[derive(Debug)]
pub(crate) struct AdsCodec<R> {
    protocol: Protocol,
    request: PhantomData<R>,
}

impl<R> AdsCodec<R> {
    pub(crate) fn new(protocol: Protocol) -> Self {
        Self {
            protocol,
            request: PhantomData,
        }
    }
}

impl<R: Message + Default + 'static> Codec for AdsCodec<R> {
    type Encode = Response;
    type Decode = R;
    type Encoder = AdsEncoder;
    type Decoder = AdsDecoder<R>;

    fn encoder(&mut self) -> AdsEncoder {
        AdsEncoder {
            protocol: self.protocol,
        }
    }

    fn decoder(&mut self) -> AdsDecoder<R> {
        AdsDecoder::default()
    }
}

/// Writes responses.
#[derive(Debug)]
pub(crate) struct AdsEncoder {
    protocol: Protocol,
}

impl Encoder for AdsEncoder {
    type Item = Response;
    type Error = Status;

    fn encode(&mut self, response: Response, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.reserve(encoded_len(self.protocol, &response));
        encode(self.protocol, &response, to);
        Ok(())
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD)
    }
}

/// Reads requests.
#[derive(Debug)]
pub(crate) struct AdsDecoder<R> {
    request: PhantomData<R>,
}

impl<R: Message + Default> AdsDecoder<R> {
    /// Decodes one request.
    pub(crate) fn read(from: impl Buf) -> Result<R, Status> {
        R::decode(from)
            .map_err(|error| Status::invalid_argument(format!("undecodable request: {error}")))
    }
}

impl<R> Default for AdsDecoder<R> {
    fn default() -> Self {
        Self {
            request: PhantomData,
        }
    }
}

impl<R: Message + Default + 'static> Decoder for AdsDecoder<R> {
    type Item = R;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<R>, Status> {
        Self::read(from).map(Some)
    }

    fn buffer_settings(&self) -> BufferSettings {
        BufferSettings::new(BUFFER, YIELD)
    }
}

/// The length of a field with this content, absent when empty.
fn field_len(tag: u32, len: usize) -> usize {
    if len == 0 { 0 } else { always_len(tag, len) }
}

fn always_len(tag: u32, len: usize) -> usize {
    key_len(tag) + encoded_len_varint(len as u64) + len
}

fn put_head(tag: u32, len: usize, to: &mut impl BufMut) {
    encode_key(tag, WireType::LengthDelimited, to);
    encode_varint(len as u64, to);
}

fn put(tag: u32, bytes: &[u8], to: &mut impl BufMut) {
    if !bytes.is_empty() {
        put_head(tag, bytes.len(), to);
        to.put_slice(bytes);
    }
}

fn any_len(type_url: &str, resource: &Resource) -> usize {
    field_len(ANY_TYPE_URL, type_url.len()) + field_len(ANY_VALUE, resource.body().len())
}

/// Writes an `Any` up to the bytes of the body, which come last.
fn put_any_head(type_url: &str, resource: &Resource, to: &mut impl BufMut) {
    put(ANY_TYPE_URL, type_url.as_bytes(), to);
    if !resource.body().is_empty() {
        put_head(ANY_VALUE, resource.body().len(), to);
    }
}

/// Writes one resource of a response up to the bytes of the body, which come last.
fn put_resource_head(protocol: Protocol, type_url: &str, r: &Resource, to: &mut impl BufMut) {
    match protocol {
        Protocol::Sotw => {
            put_head(RESPONSE_RESOURCES, any_len(type_url, r), to);
        }
        Protocol::Delta => {
            put_head(RESPONSE_RESOURCES, resource_len(type_url, r), to);
            put(RESOURCE_VERSION, r.version().text().as_bytes(), to);
            put(RESOURCE_NAME, r.name().as_bytes(), to);
            for alias in r.aliases().iter() {
                put_head(RESOURCE_ALIASES, alias.len(), to);
                to.put_slice(alias.as_bytes());
            }
            put_head(RESOURCE_RESOURCE, any_len(type_url, r), to);
        }
    }
    put_any_head(type_url, r, to);
}

/// Writes what follows the resources.
fn put_tail(protocol: Protocol, response: &Response, to: &mut impl BufMut) {
    put(RESPONSE_TYPE_URL, response.type_url.as_bytes(), to);
    put(RESPONSE_NONCE, response.nonce.0.as_bytes(), to);
    if protocol == Protocol::Delta {
        for name in contents(response).1 {
            put_head(RESPONSE_REMOVED, name.len(), to);
            to.put_slice(name.as_bytes());
        }
    }
}

fn resource_len(type_url: &str, resource: &Resource) -> usize {
    let aliases = resource
        .aliases()
        .iter()
        .map(|alias| always_len(RESOURCE_ALIASES, alias.len()));
    field_len(RESOURCE_VERSION, resource.version().text().as_bytes().len())
        + always_len(RESOURCE_RESOURCE, any_len(type_url, resource))
        + field_len(RESOURCE_NAME, resource.name().len())
        + aliases.sum::<usize>()
}

/// The resources and the removals of a response, as its protocol states them.
fn contents(
    response: &Response,
) -> (
    impl Iterator<Item = &Arc<Resource>>,
    impl Iterator<Item = &Arc<str>>,
) {
    let (whole, part): (_, Option<&Diff>) = match &response.cargo {
        Cargo::Whole(set) => (Some(set.iter()), None),
        Cargo::Part(diff) => (None, Some(diff)),
    };
    let upserts = part.into_iter().flat_map(Diff::upserts);
    let removed = part.into_iter().flat_map(|diff| diff.removed.iter());
    (whole.into_iter().flatten().chain(upserts), removed)
}

pub(crate) fn encoded_len(protocol: Protocol, response: &Response) -> usize {
    let (resources, removed) = contents(response);
    let type_url = &*response.type_url;
    let common = field_len(RESPONSE_VERSION, response.root.len())
        + field_len(RESPONSE_TYPE_URL, type_url.len())
        + field_len(RESPONSE_NONCE, response.nonce.0.len());
    let resources = resources.map(|resource| {
        let len = match protocol {
            Protocol::Sotw => any_len(type_url, resource),
            Protocol::Delta => resource_len(type_url, resource),
        };
        always_len(RESPONSE_RESOURCES, len)
    });
    let removed = removed
        .filter(|_| protocol == Protocol::Delta)
        .map(|name| always_len(RESPONSE_REMOVED, name.len()));
    common + resources.sum::<usize>() + removed.sum::<usize>()
}

pub(crate) fn encode(protocol: Protocol, response: &Response, to: &mut impl BufMut) {
    put(RESPONSE_VERSION, response.root.as_bytes(), to);
    for resource in contents(response).0 {
        put_resource_head(protocol, &response.type_url, resource, to);
        for part in resource.body().parts() {
            to.put_slice(part);
        }
    }
    put_tail(protocol, response, to);
}

/// Writes one response as a gRPC message, piece by piece.
#[derive(Debug)]
pub(crate) struct Writer {
    protocol: Protocol,
    response: Response,
    /// What is left to write, in bytes.
    left: usize,
    /// The next to write: the head, each of the resources, the tail.
    next: usize,
    /// The body that is being written, and which of its parts is next.
    body: Option<(Body, usize)>,
    /// A part of a body that goes as it is.
    shared: Option<Bytes>,
}

impl Writer {
    /// Starts with the head of the message.
    pub(crate) fn new(protocol: Protocol, response: Response) -> Self {
        Self {
            protocol,
            left: MESSAGE_HEAD + encoded_len(protocol, &response),
            response,
            next: 0,
            body: None,
            shared: None,
        }
    }

    /// Returns how many bytes the next chunk will have at most, roughly.
    fn room(&self) -> usize {
        let next = self.response.cargo.resource(self.next.saturating_sub(1));
        match next {
            // Its head alone.
            Some(resource) if self.body.is_none() && starts_shared(resource.body()) => {
                resource.name().len() + 2 * ABOUT_HEAD
            }
            _ => CHUNK,
        }
    }

    /// Returns the next bytes, `None` after the last.
    ///
    /// # Errors
    /// When the message is larger than gRPC can say.
    pub(crate) fn next_chunk(&mut self) -> Result<Option<Bytes>, Status> {
        if let Some(part) = self.shared.take() {
            self.left = self.left.saturating_sub(part.len());
            return Ok(Some(part));
        }
        if self.left == 0 {
            return Ok(None);
        }
        let mut chunk = BytesMut::with_capacity(self.left.min(self.room()));
        if self.next == 0 {
            let len = u32::try_from(self.left - MESSAGE_HEAD);
            chunk.put_u8(0);
            chunk.put_u32(len.map_err(|_| Status::internal("the response exceeds 4 GiB"))?);
            put(RESPONSE_VERSION, self.response.root.as_bytes(), &mut chunk);
            self.next = 1;
        }
        let mut full = !self.put_body(&mut chunk);
        while !full && let Some(resource) = self.response.cargo.resource(self.next - 1) {
            let body = resource.body();
            let copied = if body.len() < SHARED { body.len() } else { 0 };
            let about = copied + resource.name().len() + ABOUT_HEAD;
            if !chunk.is_empty() && chunk.len() + about > CHUNK {
                full = true;
                break;
            }
            let type_url = &self.response.type_url;
            put_resource_head(self.protocol, type_url, resource, &mut chunk);
            self.next += 1;
            self.body = Some((body.clone(), 0));
            full = !self.put_body(&mut chunk);
        }
        if !full && (chunk.is_empty() || chunk.len() < CHUNK) {
            put_tail(self.protocol, &self.response, &mut chunk);
        }
        if chunk.is_empty()
            && let Some(part) = self.shared.take()
        {
            self.left = self.left.saturating_sub(part.len());
            return Ok(Some(part));
        }
        self.left = self.left.saturating_sub(chunk.len());
        debug_assert!(!chunk.is_empty(), "announced more than there is");
        Ok(Some(chunk.freeze()))
    }

    /// Writes what is left of a body, as far as there is room. Returns whether it is finished; a
    /// part to share ends the chunk.
    fn put_body(&mut self, chunk: &mut BytesMut) -> bool {
        let Some((body, at)) = &mut self.body else {
            return true;
        };
        while let Some(part) = body.parts().get(*at) {
            if part.len() >= SHARED {
                self.shared = Some(part.clone());
                *at += 1;
                if *at == body.parts().len() {
                    self.body = None;
                }
                return false;
            }
            if !chunk.is_empty() && chunk.len() + part.len() > CHUNK {
                return false;
            }
            chunk.put_slice(part);
            *at += 1;
        }
        self.body = None;
        true
    }
}

/// Returns whether nothing of a body is copied behind its head.
fn starts_shared(body: &Body) -> bool {
    body.parts()
        .first()
        .is_some_and(|part| part.len() >= SHARED)
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::service::discovery::v3 as discovery;
    use envoy_types::pb::google::protobuf::Any;

    use super::*;
    use crate::ResourceSet;
    use crate::nonce::Nonce;

    fn resources() -> Vec<Resource> {
        let many = (0..50).map(|n| Resource::new(format!("m{n}"), vec![n; 100 * usize::from(n)]));
        let parts = [10, 2 * SHARED, 0, SHARED, SHARED, 1000, SHARED - 1].repeat(5);
        let parts = parts.into_iter().map(|len| Bytes::from(vec![5; len]));
        let few = vec![
            Resource::new("large", vec![9; 3 * CHUNK]),
            Resource::new("a", vec![7; 300]).with_aliases(vec!["x".into(), "".into()]),
            Resource::new("b", Vec::new()),
            Resource::new("parts", parts.collect::<Body>()),
            Resource::new("", vec![1]),
        ];
        many.chain(few).collect()
    }

    fn response(cargo: Cargo) -> Response {
        Response {
            type_url: "example.org/T".into(),
            nonce: Nonce("n".into()),
            root: "r".into(),
            cargo,
            requested: true,
        }
    }

    fn any(resource: &Resource) -> Any {
        Any {
            type_url: "example.org/T".to_owned(),
            value: resource.body().to_bytes().to_vec(),
        }
    }

    /// What is written is what the generated code would write, and reads back as that.
    #[track_caller]
    fn check<M: Message + Default + PartialEq + std::fmt::Debug>(
        protocol: Protocol,
        cargo: Cargo,
        expected: &M,
    ) {
        let response = response(cargo);
        let mut bytes = Vec::new();
        encode(protocol, &response, &mut bytes);
        assert_eq!(
            bytes.len(),
            encoded_len(protocol, &response),
            "announced length"
        );
        assert_eq!(&M::decode(&*bytes).unwrap(), expected);
        let mut written = Vec::new();
        let mut writer = Writer::new(protocol, response);
        while let Some(chunk) = writer.next_chunk().unwrap() {
            assert!(chunk.len() <= 2 * CHUNK || chunk.len() >= SHARED);
            written.extend_from_slice(&chunk);
        }
        let (head, message) = written.split_at(MESSAGE_HEAD);
        assert_eq!(head[0], 0, "not compressed");
        let len = u32::from_be_bytes(head[1..].try_into().unwrap());
        assert_eq!(len as usize, message.len(), "length in the head");
        assert_eq!(message, bytes, "piece by piece the same");
    }

    #[test]
    fn sotw_responses_are_read_back() {
        let set: Arc<ResourceSet> = Arc::new(resources().into_iter().collect());
        let expected = discovery::DiscoveryResponse {
            version_info: "r".to_owned(),
            resources: set.iter().map(|r| any(r)).collect(),
            type_url: "example.org/T".to_owned(),
            nonce: "n".to_owned(),
            ..Default::default()
        };
        check(Protocol::Sotw, Cargo::Whole(set), &expected);
    }

    #[test]
    fn delta_responses_are_read_back() {
        let upserts: Vec<Arc<Resource>> = resources().into_iter().map(Arc::new).collect();
        let expected = discovery::DeltaDiscoveryResponse {
            system_version_info: "r".to_owned(),
            resources: upserts
                .iter()
                .map(|r| discovery::Resource {
                    name: r.name().to_string(),
                    version: r.version().to_string(),
                    resource: Some(any(r)),
                    aliases: r.aliases().iter().map(ToString::to_string).collect(),
                    ..Default::default()
                })
                .collect(),
            type_url: "example.org/T".to_owned(),
            nonce: "n".to_owned(),
            removed_resources: vec!["gone".to_owned(), "lost".to_owned()],
            ..Default::default()
        };
        let removed = vec!["gone".into(), "lost".into()].into();
        let diff = Arc::new(Diff {
            added: upserts.into(),
            changed: Box::default(),
            removed,
        });
        check(Protocol::Delta, Cargo::Part(Arc::clone(&diff)), &expected);
        let empty = discovery::DeltaDiscoveryResponse {
            resources: Vec::new(),
            removed_resources: Vec::new(),
            ..expected
        };
        check(Protocol::Delta, Cargo::Part(Arc::default()), &empty);
    }
}

//! What happens on streams, reported to whoever counts, logs or keeps a ledger.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::{Resource, SetAside};

/// Hears what happens. Every method does nothing unless overridden, is called from the task of the
/// stream concerned, and must return quickly.
pub trait Observer: Send + Sync + 'static {
    /// Hears that a node was admitted.
    fn connected(&self, stream: &StreamInfo) {
        let _ = stream;
    }

    /// Hears that an admitted stream ended.
    fn disconnected(&self, stream: &StreamInfo) {
        let _ = stream;
    }

    /// Hears that a stream was refused before or at admission.
    fn refused(&self, status: &tonic::Status) {
        let _ = status;
    }

    /// Hears that a stream ended with an error that nobody expects (not a disconnect).
    fn failed(&self, stream: &StreamInfo, status: &tonic::Status) {
        let _ = (stream, status);
    }

    /// Hears that a response was handed to the transport.
    fn sent(&self, stream: &StreamInfo, delivered: &Delivered<'_>) {
        let _ = (stream, delivered);
    }

    /// Hears that a response was acknowledged; `root` is the state of the world it was built from.
    fn acknowledged(&self, stream: &StreamInfo, type_url: &str, root: &str, after: Duration) {
        let _ = (stream, type_url, root, after);
    }

    /// Hears that a response was rejected.
    fn rejected(&self, stream: &StreamInfo, rejected: &Rejected<'_>) {
        let _ = (stream, rejected);
    }

    /// Hears that an object was proved to be the cause of a rejection, and is set aside for the
    /// class of the client until it changes.
    fn set_aside(&self, stream: &StreamInfo, aside: &SetAside) {
        let _ = (stream, aside);
    }

    /// Hears that a request carried an outdated or unknown nonce.
    fn stale(&self, stream: &StreamInfo, type_url: &str) {
        let _ = (stream, type_url);
    }

    /// Hears that a request asked for a type that no generator serves.
    fn unserved(&self, stream: &StreamInfo, type_url: &str) {
        let _ = (stream, type_url);
    }

    /// Hears that a push to one client began, and how long it had been waiting.
    fn push_started(&self, stream: &StreamInfo, queued: Duration) {
        let _ = (stream, queued);
    }

    /// Hears that a push to one client was handed to the transport, counted from publication.
    fn push_finished(&self, stream: &StreamInfo, since_published: Duration) {
        let _ = (stream, since_published);
    }

    /// Hears that a generator ran, for one class and type.
    fn generated(&self, type_url: &str, resources: usize, elapsed: Duration) {
        let _ = (type_url, resources, elapsed);
    }

    /// Hears that a generator panicked; the class keeps the resources that it had.
    fn generator_failed(&self, type_url: &str) {
        let _ = type_url;
    }
}

/// An observer that ignores everything.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoObserver;

impl Observer for NoObserver {}

/// One admitted stream.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct StreamInfo {
    /// The number of the stream, unique in this process, from 1.
    pub id: u64,
    /// The `id` of the node.
    pub node: Arc<str>,
    /// Which variant of the protocol it speaks.
    pub protocol: Protocol,
}

/// The variant of the protocol that a stream speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// State of the world.
    Sotw,
    /// Delta (incremental).
    Delta,
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sotw => "sotw",
            Self::Delta => "delta",
        })
    }
}

/// One response that was handed to the transport.
#[derive(Debug)]
#[non_exhaustive]
pub struct Delivered<'a> {
    /// The type URL.
    pub type_url: &'a str,
    /// The nonce that the client will answer with.
    pub nonce: &'a str,
    /// The state of the world that it was built from.
    pub root: &'a str,
    /// The number of resources in it.
    pub resources: usize,
    /// The number of removals in it.
    pub removed: usize,
    /// The sum of the sizes of its resources, in bytes.
    pub bytes: usize,
    /// Whether it answers a request (otherwise it is a push).
    pub answers_request: bool,
}

/// One response that a client rejected.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rejected<'a> {
    /// The type URL.
    pub type_url: &'a str,
    /// The nonce of the rejected response, as the client stated it.
    pub nonce: &'a str,
    /// The gRPC code in the rejection.
    pub code: i32,
    /// The message in the rejection.
    pub message: &'a str,
    /// The resources that are held back from now on because of it. Empty while the cause is still
    /// being looked for.
    pub held_back: &'a [Arc<Resource>],
}

//! What operators can see of the streams.

use std::sync::Arc;
use std::time::Instant;

use crate::delivery::Settled;
use crate::observer::StreamInfo;
use crate::{Interest, ResourceSet, Version};

/// One stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct StreamStatus {
    /// Which stream it is.
    pub info: StreamInfo,
    /// Its subscriptions, in push order.
    pub subscriptions: Vec<SubscriptionStatus>,
}

/// One subscription of a stream.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SubscriptionStatus {
    /// The type URL.
    pub type_url: Arc<str>,
    /// What is asked for.
    pub interest: Interest,
    /// The nonce of the last response.
    pub nonce_sent: Option<Arc<str>>,
    /// The nonce of the last response that was acknowledged.
    pub nonce_acked: Option<Arc<str>>,
    /// How many resources the client is believed to hold.
    pub resources: usize,
    /// The message of the last rejection, until the next acknowledgement.
    pub error: Option<Arc<str>>,
    /// The resources that are held back because the client rejected them.
    pub held_back: Vec<HeldBackResource>,
    /// How far the client is.
    pub(crate) standing: Standing,
}

impl SubscriptionStatus {
    /// Returns the root of the state of the world that was acknowledged last.
    pub fn root_acked(&self) -> Option<Arc<str>> {
        let (root, _) = self.nonce_acked.as_deref()?.split_once('/')?;
        Some(root.into())
    }
}

/// A resource that is not sent in its present version.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct HeldBackResource {
    /// Its name.
    pub name: Arc<str>,
    /// The version that is not sent.
    pub version: Version,
    /// What the client said of it; `None` while it is one of several suspects.
    pub refusal: Option<Arc<Refusal>>,
}

/// What a client said when it rejected a response.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The message, in the client's words.
    pub message: Arc<str>,
    /// The state of the world that the response was built from.
    pub root: Arc<str>,
    /// When it was rejected.
    pub at: Instant,
}

/// How far a client is with one type.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// What it last said yes to, or stated when it came.
    pub(crate) good: Arc<ResourceSet>,
    /// What it may hold instead, as far as anybody knows.
    pub(crate) unsure: Vec<Arc<ResourceSet>>,
    pub(crate) settled: Settled,
    /// When the oldest response without an answer was sent.
    pub(crate) waits_since: Option<Instant>,
    /// Whether it hears of what is gone.
    pub(crate) tells_removals: bool,
}

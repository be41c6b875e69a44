//! What operators can see of the streams.

use std::sync::Arc;

use crate::observer::StreamInfo;
use crate::{Interest, Version};

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
    pub held_back: Vec<(Arc<str>, Version)>,
}

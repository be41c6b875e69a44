//! What changed, on its way from the sources to the proxies.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use crate::{config::ConfigKey, service::ServiceKey};

/// Why a push was asked for; the label of `pilot_push_triggers` (xds-server §13).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// Endpoints of a service changed.
    Endpoint,
    /// A headless service's endpoints changed.
    HeadlessEndpoint,
    /// A configuration object changed.
    Config,
    /// A service changed.
    Service,
    /// Something about one proxy changed.
    Proxy,
    /// The mesh configuration or networks changed.
    Global,
    /// A secret changed.
    Secret,
    /// Network gateways changed.
    Networks,
    /// A proxy asked.
    ProxyRequest,
    /// Somebody asked through a debug endpoint.
    Debug,
}

impl Reason {
    /// The label's value, as dashboards know it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Endpoint => "endpoint",
            Self::HeadlessEndpoint => "headlessendpoint",
            Self::Config => "config",
            Self::Service => "service",
            Self::Proxy => "proxy",
            Self::Global => "global",
            Self::Secret => "secret",
            Self::Networks => "networks",
            Self::ProxyRequest => "proxyrequest",
            Self::Debug => "debug",
        }
    }
}

/// A merged description of changes: which objects and which services' endpoints, and why.
///
/// `merge` is associative and commutative. An empty, forced request means "everything".
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct PushRequest {
    /// Objects that were added, changed or deleted.
    pub changed: BTreeSet<ConfigKey>,
    /// Services whose endpoints changed.
    pub endpoints: BTreeSet<ServiceKey>,
    /// How often each reason was given since the request was empty.
    pub reasons: BTreeMap<Reason, u32>,
    /// Everything has to be looked at, whatever `changed` says.
    pub forced: bool,
    /// When the first of the merged changes arrived; `None` when nobody measured.
    pub started: Option<Instant>,
}

impl PushRequest {
    /// A request for one changed object.
    pub fn config(key: ConfigKey, started: Instant) -> Self {
        Self {
            changed: BTreeSet::from([key]),
            reasons: BTreeMap::from([(Reason::Config, 1)]),
            started: Some(started),
            ..Self::default()
        }
    }

    /// A request that means "everything".
    pub fn everything(reason: Reason, started: Instant) -> Self {
        Self {
            forced: true,
            reasons: BTreeMap::from([(reason, 1)]),
            started: Some(started),
            ..Self::default()
        }
    }

    /// Tells whether the request says nothing.
    pub fn is_empty(&self) -> bool {
        !self.forced && self.changed.is_empty() && self.endpoints.is_empty()
    }

    /// Tells whether only endpoints changed: no snapshot has to be built.
    pub fn endpoints_only(&self) -> bool {
        !self.forced && self.changed.is_empty() && !self.endpoints.is_empty()
    }

    /// Merges `other` into this request: unions of keys, sum of reasons, the earlier start.
    pub fn merge(&mut self, other: Self) {
        self.changed.extend(other.changed);
        self.endpoints.extend(other.endpoints);
        for (reason, n) in other.reasons {
            *self.reasons.entry(reason).or_default() += n;
        }
        self.forced |= other.forced;
        self.started = match (self.started, other.started) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

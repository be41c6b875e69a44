//! What changed, on its way from the sources to the proxies.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
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
    /// Those of `endpoints` that lost one, or whose endpoint became unfit for traffic: a subset. A
    /// proxy that keeps a dead endpoint fails requests, so such a change is never held for long.
    pub removals: BTreeSet<ServiceKey>,
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
        self.removals.extend(other.removals);
        for (reason, n) in other.reasons {
            *self.reasons.entry(reason).or_default() += n;
        }
        self.forced |= other.forced;
        self.started = match (self.started, other.started) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }

    /// The namespaces of what changed, ascending, with repetitions; empty for cluster-scoped objects.
    pub fn namespaces(&self) -> impl Iterator<Item = &Arc<str>> {
        let changed = self.changed.iter().map(|key| &key.namespace);
        changed.chain(self.endpoints.iter().map(|key| &key.namespace))
    }

    /// Splits the request into one part per namespace, ascending; a forced one stays whole.
    ///
    /// Merging the parts gives the request back. Every part names all reasons, but only the first one
    /// has their counts.
    pub fn split_by_namespace(self) -> BTreeMap<Arc<str>, Self> {
        if self.forced {
            return BTreeMap::from([("".into(), self)]);
        }
        let mut counts = self.reasons.clone();
        let silent: BTreeMap<_, _> = self.reasons.keys().map(|reason| (*reason, 0)).collect();
        let mut parts: BTreeMap<Arc<str>, Self> = BTreeMap::new();
        for key in self.changed {
            parts
                .entry(key.namespace.clone())
                .or_default()
                .changed
                .insert(key);
        }
        for key in self.endpoints {
            parts
                .entry(key.namespace.clone())
                .or_default()
                .endpoints
                .insert(key);
        }
        for key in self.removals {
            parts
                .entry(key.namespace.clone())
                .or_default()
                .removals
                .insert(key);
        }
        for part in parts.values_mut() {
            part.started = self.started;
            part.reasons = std::mem::replace(&mut counts, silent.clone());
        }
        parts
    }

    /// Splits off the endpoint changes of the services that lost endpoints: `(those, the rest)`, each
    /// `None` when there is nothing of it.
    ///
    /// Merging the two gives the request back, save that endpoints are counted as a reason with the
    /// first and everything else with the second.
    pub fn split_removals(mut self) -> (Option<Self>, Option<Self>) {
        if self.removals.is_empty() {
            return (None, (!self.is_empty()).then_some(self));
        }
        let removals = std::mem::take(&mut self.removals);
        let (lost, kept) = std::mem::take(&mut self.endpoints)
            .into_iter()
            .partition(|key| removals.contains(key));
        self.endpoints = kept;
        let of_endpoints =
            |reason: &Reason| matches!(reason, Reason::Endpoint | Reason::HeadlessEndpoint);
        let mut first = Self {
            endpoints: lost,
            removals,
            started: self.started,
            ..Self::default()
        };
        if self.is_empty() {
            first.reasons = self.reasons;
            return (Some(first), None);
        }
        (first.reasons, self.reasons) = self
            .reasons
            .into_iter()
            .partition(|(reason, _)| of_endpoints(reason));
        (Some(first), Some(self))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::Kind;

    fn request(
        changed: &[(&str, &str)],
        endpoints: &[(&str, &str)],
        lost: &[(&str, &str)],
    ) -> PushRequest {
        let services = |names: &[(&str, &str)]| {
            names
                .iter()
                .map(|(ns, host)| ServiceKey::new(*ns, *host))
                .collect::<BTreeSet<_>>()
        };
        let mut reasons = BTreeMap::new();
        if !changed.is_empty() {
            reasons.insert(Reason::Config, 3);
        }
        if !endpoints.is_empty() {
            reasons.insert(Reason::Endpoint, 2);
        }
        PushRequest {
            changed: changed
                .iter()
                .map(|(ns, name)| ConfigKey::new(Kind::DestinationRule, *ns, *name))
                .collect(),
            endpoints: services(endpoints),
            removals: services(lost),
            reasons,
            ..PushRequest::default()
        }
    }

    fn merged(parts: impl IntoIterator<Item = PushRequest>) -> PushRequest {
        let mut whole = PushRequest::default();
        parts.into_iter().for_each(|part| whole.merge(part));
        whole
    }

    #[test]
    fn splitting_by_namespace_loses_nothing() {
        let whole = request(
            &[("a", "x"), ("b", "y"), ("", "cluster")],
            &[("b", "h"), ("c", "i"), ("c", "j")],
            &[("c", "j")],
        );
        let parts = whole.clone().split_by_namespace();
        let namespaces: Vec<_> = parts.keys().map(|ns| &**ns).collect();
        assert_eq!(namespaces, ["", "a", "b", "c"]);
        for (namespace, part) in &parts {
            assert!(part.namespaces().all(|ns| ns == namespace));
            assert!(part.reasons.contains_key(&Reason::Config));
        }
        assert_eq!(parts["c"].removals.len(), 1);
        assert_eq!(merged(parts.into_values()), whole);
    }

    #[test]
    fn a_forced_request_stays_whole() {
        let mut whole = request(&[("a", "x"), ("b", "y")], &[], &[]);
        whole.forced = true;
        let parts: Vec<_> = whole.clone().split_by_namespace().into_values().collect();
        assert_eq!(parts, [whole]);
    }

    #[test]
    fn removals_are_split_off_with_their_services_and_nothing_is_lost() {
        let whole = request(&[("a", "x")], &[("a", "h"), ("a", "i")], &[("a", "h")]);
        let (lost, rest) = whole.clone().split_removals();
        assert_eq!(lost, Some(request(&[], &[("a", "h")], &[("a", "h")])));
        let rest = rest.expect("not only removals");
        assert_eq!(
            (
                rest.changed.len(),
                rest.endpoints.len(),
                rest.removals.len()
            ),
            (1, 1, 0)
        );
        assert_eq!(merged(lost.into_iter().chain([rest])), whole);
    }

    #[test]
    fn only_removals_or_none_leave_the_other_part_out() {
        let only = request(&[], &[("a", "h")], &[("a", "h")]);
        assert_eq!(only.clone().split_removals(), (Some(only), None));
        let none = request(&[("a", "x")], &[("a", "h")], &[]);
        assert_eq!(none.clone().split_removals(), (None, Some(none)));
        assert_eq!(PushRequest::default().split_removals(), (None, None));
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "any moment does")]
    fn merging_keeps_the_earlier_start() {
        let now = Instant::now();
        let key = ConfigKey::new(Kind::DestinationRule, "a", "x");
        let mut request = PushRequest::config(key.clone(), now + Duration::from_secs(1));
        request.merge(PushRequest::config(key, now));
        assert_eq!(
            (request.started, request.reasons[&Reason::Config]),
            (Some(now), 2)
        );
    }
}

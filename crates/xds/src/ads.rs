//! The protocol of one stream, without I/O: all its subscriptions and the order between them.
//!
//! A driver feeds requests in, gets a target (the resources that a client ought to hold) for each
//! subscription whose interest is new or whose class was touched, and asks what to send.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};

use crate::delivery::{Acked, Cargo, Composed, Delivery, HeldBack, Setting};
use crate::nonce::{Nonce, Nonces};
use crate::observer::Protocol;
use crate::registry::PushOrder;
use crate::{Diff, HeldBackResource, Interest, Resource, ResourceSet, TypeFacts, delta, sotw};

/// How long removals of clusters wait for a client to acknowledge the listeners and routes that
/// no longer use them. A client that never does must not keep dead clusters for ever.
const REMOVALS_WAIT: Duration = Duration::from_secs(5);

/// What names and framing of one resource add to a response, in bytes, beyond name and body.
const RESOURCE_OVERHEAD: usize = 128;

/// The protocol state of one stream.
#[derive(Debug)]
pub(crate) struct Ads {
    protocol: Protocol,
    limits: Limits,
    nonces: Nonces,
    /// In push order.
    subscriptions: Vec<Subscription>,
    /// Since when removals wait.
    waiting_since: Option<Instant>,
    /// What was rejected of types that are not asked for at present.
    rejected: BTreeMap<Arc<str>, BTreeMap<Arc<str>, HeldBack>>,
}

/// What one stream may cost.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) types: usize,
    pub(crate) names: usize,
    pub(crate) split_bytes: usize,
}

/// What one client asks for of one type, and what it got.
#[derive(Debug)]
pub(crate) struct Subscription {
    type_url: Arc<str>,
    facts: TypeFacts,
    ask: Ask,
    interest: Interest,
    /// What the client ought to hold; `None` until there is one for the present interest.
    target: Option<Arc<ResourceSet>>,
    /// The publication that the target is of.
    target_seq: u64,
    delivery: Delivery,
    /// Whether the next response is the first.
    first: bool,
    /// Whether a request waits for the next response.
    requested: bool,
    error: Option<Arc<str>>,
}

#[derive(Debug)]
enum Ask {
    Sotw(sotw::Ask),
    Delta(delta::Ask),
}

/// What a request led to.
#[derive(Debug, Default)]
pub(crate) struct Reaction {
    /// It acknowledged a response.
    pub(crate) acked: Option<Acked>,
    /// It rejected one; these resources are held back because of it.
    pub(crate) rejected: Option<Vec<Arc<Resource>>>,
    /// Its nonce was of no response that waits for an answer.
    pub(crate) stale: bool,
    /// It looked like an acknowledgement and is answered all the same.
    pub(crate) forced: bool,
}

/// Why a stream must end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LimitExceeded {
    #[error("more than {0} types on one stream")]
    Types(usize),
    #[error("more than {0} names of one type on one stream")]
    Names(usize),
}

/// One response to send.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) type_url: Arc<str>,
    pub(crate) nonce: Nonce,
    pub(crate) root: Arc<str>,
    pub(crate) cargo: Cargo,
    /// Whether a request asked for it.
    pub(crate) requested: bool,
}

impl Ads {
    /// Starts a stream.
    pub(crate) fn new(protocol: Protocol, limits: Limits) -> Self {
        Self {
            protocol,
            limits,
            nonces: Nonces::random(),
            subscriptions: Vec::new(),
            waiting_since: None,
            rejected: BTreeMap::new(),
        }
    }

    /// Returns the variant that the stream speaks.
    pub(crate) fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Returns the subscriptions in push order.
    pub(crate) fn subscriptions(&self) -> &[Subscription] {
        &self.subscriptions
    }

    /// Returns the subscription to a type.
    pub(crate) fn subscription(&self, type_url: &str) -> Option<&Subscription> {
        self.subscriptions.get(self.find(type_url)?)
    }

    fn find(&self, type_url: &str) -> Option<usize> {
        self.subscriptions
            .iter()
            .position(|s| *s.type_url == *type_url)
    }

    fn insert(&mut self, mut subscription: Subscription) -> Result<(), LimitExceeded> {
        if let Some(rejected) = self.rejected.remove(&subscription.type_url) {
            subscription.delivery.remember(rejected);
        }
        if self.subscriptions.len() >= self.limits.types {
            return Err(LimitExceeded::Types(self.limits.types));
        }
        let key = |s: &Subscription| (s.facts.order, Arc::clone(&s.type_url));
        let new = key(&subscription);
        let at = self.subscriptions.partition_point(|other| key(other) < new);
        self.subscriptions.insert(at, subscription);
        Ok(())
    }

    /// Takes in a request of the state-of-the-world variant.
    pub(crate) fn on_sotw(
        &mut self,
        facts: TypeFacts,
        request: &DiscoveryRequest,
        now: Instant,
    ) -> Result<Reaction, LimitExceeded> {
        use sotw::Verdict;
        let mut reaction = Reaction::default();
        let found = self.find(&request.type_url);
        let mut existing = found.and_then(|index| self.subscriptions.get_mut(index));
        let (ask, last) = match &mut existing {
            Some(Subscription {
                ask: Ask::Sotw(ask),
                delivery,
                ..
            }) => (Some(ask), delivery.last()),
            _ => (None, None),
        };
        let verdict = sotw::classify(ask, last, &facts, request);
        let nonce = Nonce(request.response_nonce.as_str().into());
        match (verdict, existing) {
            (Verdict::Initial(ask), existing) => {
                if ask.names() > self.limits.names {
                    return Err(LimitExceeded::Names(self.limits.names));
                }
                if let Some(subscription) = existing {
                    subscription.restart(ask);
                } else {
                    let holds = Arc::default();
                    self.insert(Subscription::new(
                        &request.type_url,
                        facts,
                        Ask::Sotw(ask),
                        holds,
                    ))?;
                }
                self.warm_on_request(&facts);
            }
            (Verdict::Unsubscribe, _) => {
                if let Some(index) = found {
                    let ended = self.subscriptions.remove(index);
                    self.rejected
                        .insert(ended.type_url, ended.delivery.into_rejected());
                }
            }
            // A rejection of something that was never sent.
            (_, None) => reaction.stale = true,
            // It may still acknowledge a response that another one has overtaken.
            (Verdict::Stale, Some(subscription)) => {
                reaction.acked = subscription.delivery.acknowledge(&nonce, now);
                reaction.stale = reaction.acked.is_none();
            }
            (Verdict::Nack { grown }, Some(subscription)) => {
                let message = request.error_detail.as_ref().map_or("", |e| &e.message);
                let current = subscription.delivery.last() == Some(&nonce);
                reaction.rejected = subscription.on_rejection(&nonce, message, now);
                reaction.stale = reaction.rejected.is_none();
                if current {
                    subscription.resolve_doubts();
                    // A client that rejects this and waits for the rest sends no acknowledgement
                    // that could be answered instead.
                    reaction.forced = subscription.take_always_respond();
                    if reaction.forced {
                        subscription.delivery.owe_everything();
                        subscription.requested = true;
                    }
                }
                if grown {
                    subscription.ask_changed(self.limits.names)?;
                }
            }
            (verdict, Some(subscription)) => {
                subscription.error = None;
                reaction.acked = subscription.delivery.acknowledge(&nonce, now);
                subscription.resolve_doubts();
                match verdict {
                    Verdict::Forced => {
                        reaction.forced = true;
                        subscription.delivery.owe_everything();
                        subscription.ask_changed(self.limits.names)?;
                        subscription.requested = true;
                    }
                    Verdict::Changed => {
                        subscription.ask_changed(self.limits.names)?;
                        subscription.delivery.owe();
                        subscription.requested = true;
                    }
                    Verdict::Shrunk => subscription.ask_changed(self.limits.names)?,
                    Verdict::Ack
                    | Verdict::Nack { .. }
                    | Verdict::Unsubscribe
                    | Verdict::Initial(_)
                    | Verdict::Stale => {}
                }
            }
        }
        Ok(reaction)
    }

    /// A new watch for a warming type makes the next acknowledgement of the warmed one look like
    /// what it is: the question for resources that clusters wait for.
    fn warm_on_request(&mut self, facts: &TypeFacts) {
        let warmed = facts.warms.and_then(|type_url| self.find(type_url));
        if let Some(Subscription {
            ask: Ask::Sotw(ask),
            ..
        }) = warmed.and_then(|index| self.subscriptions.get_mut(index))
        {
            ask.always_respond = true;
        }
    }

    /// Takes in a request of the delta variant.
    pub(crate) fn on_delta(
        &mut self,
        facts: TypeFacts,
        request: &DeltaDiscoveryRequest,
        now: Instant,
    ) -> Result<Reaction, LimitExceeded> {
        let mut reaction = Reaction::default();
        let found = self.find(&request.type_url);
        let mut existing = found.and_then(|index| self.subscriptions.get_mut(index));
        let verdict = match &mut existing {
            Some(Subscription {
                ask: Ask::Delta(ask),
                delivery,
                ..
            }) => delta::classify(Some(ask), |nonce| delivery.waits_for(nonce), request),
            _ => delta::classify(None, |_| false, request),
        };
        match (verdict, existing) {
            (delta::Verdict::Initial { ask, holds, answer }, _) => {
                if ask.names() > self.limits.names {
                    return Err(LimitExceeded::Names(self.limits.names));
                }
                let mut subscription =
                    Subscription::new(&request.type_url, facts, Ask::Delta(ask), holds);
                subscription.delivery.send_again(answer);
                self.insert(subscription)?;
            }
            (
                delta::Verdict::Later {
                    reply,
                    changed,
                    answer,
                    forgotten,
                },
                Some(subscription),
            ) => {
                let nonce = Nonce(request.response_nonce.as_str().into());
                match reply {
                    delta::Reply::None => {}
                    delta::Reply::Stale => reaction.stale = true,
                    delta::Reply::Ack => {
                        subscription.error = None;
                        reaction.acked = subscription.delivery.acknowledge(&nonce, now);
                    }
                    delta::Reply::Nack => {
                        let message = request.error_detail.as_ref().map_or("", |e| &e.message);
                        reaction.rejected = subscription.on_rejection(&nonce, message, now);
                    }
                }
                subscription.delivery.forget(&forgotten);
                if changed {
                    subscription.ask_changed(self.limits.names)?;
                }
                subscription.requested |= !answer.is_empty();
                subscription.delivery.send_again(answer);
            }
            (delta::Verdict::Ignored | delta::Verdict::Later { .. }, _) => reaction.stale = true,
        }
        Ok(reaction)
    }

    /// Takes over the names of an equal interest, so that they are in memory once for all
    /// connections that ask for the same.
    pub(crate) fn share(&mut self, type_url: &str, interest: &Interest) {
        let index = self.find(type_url);
        let Some(subscription) = index.and_then(|index| self.subscriptions.get_mut(index)) else {
            return;
        };
        if let Interest::Named(names) = interest
            && subscription.interest == *interest
        {
            subscription.interest = interest.clone();
            match &mut subscription.ask {
                Ask::Sotw(ask) => ask.share(names),
                Ask::Delta(ask) => ask.share(names),
            }
        }
    }

    /// Says what the client ought to hold of one type in publication `seq`, for the interest that it
    /// has now.
    pub(crate) fn set_target(&mut self, type_url: &str, target: Arc<ResourceSet>, seq: u64) {
        let index = self.find(type_url);
        if let Some(subscription) = index.and_then(|index| self.subscriptions.get_mut(index)) {
            subscription.target = Some(target);
            subscription.target_seq = seq;
        }
    }

    /// Returns when [`respond`](Self::respond) has to be called again even if nothing happens.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.waiting_since.map(|since| since + REMOVALS_WAIT)
    }

    /// Returns what to send now, in order. Everything returned must be sent.
    ///
    /// New and changed clusters come first, then endpoints (also those that such clusters wait
    /// for), listeners, routes and the rest; clusters are removed once the client has acknowledged
    /// the listeners and routes that no longer use them.
    pub(crate) fn respond(&mut self, root: &Arc<str>, now: Instant) -> Vec<Response> {
        let mut responses = Vec::new();
        let expired = self.deadline().is_some_and(|deadline| now >= deadline);
        let keep_removed = !expired && self.users_of_clusters().any(|s| s.waits() || s.has_news());
        for index in 0..self.subscriptions.len() {
            self.compose(index, keep_removed, root, now, &mut responses);
        }
        let clusters = self
            .subscriptions
            .iter()
            .position(|s| s.facts.order == PushOrder::Clusters);
        if let Some(index) = clusters {
            if keep_removed && !self.users_of_clusters().any(Subscription::waits) {
                self.compose(index, false, root, now, &mut responses);
            }
            let left = self
                .subscriptions
                .get(index)
                .is_some_and(Subscription::has_news);
            self.waiting_since = left.then(|| self.waiting_since.unwrap_or(now));
        }
        responses
    }

    fn users_of_clusters(&self) -> impl Iterator<Item = &Subscription> {
        self.subscriptions
            .iter()
            .filter(|s| matches!(s.facts.order, PushOrder::Listeners | PushOrder::Routes))
    }

    fn compose(
        &mut self,
        index: usize,
        keep_removed: bool,
        root: &Arc<str>,
        now: Instant,
        responses: &mut Vec<Response>,
    ) {
        let Some(subscription) = self.subscriptions.get_mut(index) else {
            return;
        };
        let facts = subscription.facts;
        let Some(target) = &subscription.target else {
            return;
        };
        let setting = Setting {
            interest: &subscription.interest,
            target,
            keep_removed: keep_removed && facts.order == PushOrder::Clusters,
        };
        let requested = std::mem::take(&mut subscription.requested);
        let Some(mut composed) = subscription.delivery.compose(&setting) else {
            subscription
                .delivery
                .settle(subscription.target_seq, root, setting.target);
            return;
        };
        let first = std::mem::take(&mut subscription.first);
        let mut parts = match &composed.cargo {
            Cargo::Part(diff) if self.protocol == Protocol::Delta => {
                split(diff, self.limits.split_bytes)
            }
            Cargo::Part(_) | Cargo::Whole(_) => Vec::new(),
        };
        if parts.is_empty() {
            parts.push((Arc::clone(&composed.news), composed.cargo.clone()));
        }
        let last = parts.len() - 1;
        for (at, (part, cargo)) in parts.into_iter().enumerate() {
            let nonce = self.nonces.next(root);
            let type_url = Arc::clone(&subscription.type_url);
            let (delivery, root) = (&mut subscription.delivery, Arc::clone(root));
            delivery.record(
                nonce.clone(),
                Arc::clone(&root),
                now,
                &mut composed,
                part,
                at == last,
            );
            responses.push(Response {
                type_url,
                nonce,
                root,
                cargo,
                requested,
            });
        }
        if let Some(target) = &subscription.target {
            subscription
                .delivery
                .settle(subscription.target_seq, root, target);
        }
        // On the first answer to a SotW client its own next request is the sign that it waits.
        if !(first && self.protocol == Protocol::Sotw) {
            self.warm(&facts, &composed);
        }
    }

    /// Sends what clients wait for after they got `composed`, held or not.
    fn warm(&mut self, facts: &TypeFacts, composed: &Composed) {
        let index = facts.warms.and_then(|type_url| self.find(type_url));
        let Some(warmed) = index.and_then(|index| self.subscriptions.get_mut(index)) else {
            return;
        };
        let names: BTreeSet<Arc<str>> = composed
            .news
            .upserts()
            .map(|resource| resource.warmed())
            .filter(|name| warmed.interest.wants(name))
            .filter(|name| warmed.delivery.held().get(name).is_some())
            .cloned()
            .collect();
        warmed.delivery.send_again(names);
    }
}

impl Subscription {
    fn new(type_url: &str, facts: TypeFacts, ask: Ask, holds: Arc<ResourceSet>) -> Self {
        let interest = ask.interest(&facts);
        let protocol = match ask {
            Ask::Sotw(_) => Protocol::Sotw,
            Ask::Delta(_) => Protocol::Delta,
        };
        let mut delivery = Delivery::new(protocol, &facts, holds);
        delivery.owe();
        Self {
            type_url: type_url.into(),
            facts,
            ask,
            interest,
            target: None,
            target_seq: 0,
            delivery,
            first: true,
            requested: true,
            error: None,
        }
    }

    /// Starts again with a first request on a running stream.
    fn restart(&mut self, ask: sotw::Ask) {
        self.ask = Ask::Sotw(ask);
        self.interest = self.ask.interest(&self.facts);
        self.target = None;
        self.delivery.restart();
        self.delivery.owe();
        self.first = true;
        self.requested = true;
    }

    fn ask_changed(&mut self, limit: usize) -> Result<(), LimitExceeded> {
        let names = match &self.ask {
            Ask::Sotw(ask) => ask.names(),
            Ask::Delta(ask) => ask.names(),
        };
        if names > limit {
            return Err(LimitExceeded::Names(limit));
        }
        let interest = self.ask.interest(&self.facts);
        if interest != self.interest {
            self.interest = interest;
            self.target = None;
            self.delivery.unsettle();
        }
        self.delivery.forget_unless(&self.interest);
        Ok(())
    }

    /// Returns whether the next request has to be answered whatever it says, once.
    fn take_always_respond(&mut self) -> bool {
        match &mut self.ask {
            Ask::Sotw(ask) => std::mem::take(&mut ask.always_respond),
            Ask::Delta(_) => false,
        }
    }

    /// Says again what the client may have dropped while it was not heard.
    fn resolve_doubts(&mut self) {
        if let Ask::Sotw(ask) = &mut self.ask {
            match ask.take_doubted() {
                Interest::Everything => self.delivery.owe(),
                Interest::Named(names) => self.delivery.send_again(names.iter().cloned()),
            }
        }
    }

    fn on_rejection(
        &mut self,
        nonce: &Nonce,
        message: &str,
        now: Instant,
    ) -> Option<Vec<Arc<Resource>>> {
        self.error = Some(message.into());
        self.delivery.reject(nonce, message, &self.interest, now)
    }

    fn waits(&self) -> bool {
        self.delivery.waits()
    }

    fn has_news(&self) -> bool {
        self.target
            .as_ref()
            .is_some_and(|target| self.delivery.has_news(target))
    }

    /// Returns the type URL.
    pub(crate) fn type_url(&self) -> &Arc<str> {
        &self.type_url
    }

    /// Returns what is asked for.
    pub(crate) fn interest(&self) -> &Interest {
        &self.interest
    }

    /// Returns whether a target for the present interest is missing.
    pub(crate) fn lacks_target(&self) -> bool {
        self.target.is_none()
    }

    /// Returns what the client ought to hold, if that is known for the present interest.
    pub(crate) fn target(&self) -> Option<&Arc<ResourceSet>> {
        self.target.as_ref()
    }

    /// Returns the resources that are held back now.
    pub(crate) fn held_back(&self) -> Vec<HeldBackResource> {
        let target = self.target.iter().flat_map(|target| target.iter());
        // Most clients reject nothing.
        let target = target.take_while(|_| !self.delivery.rejected().is_empty());
        target
            .filter_map(|resource| {
                let held_back = self.delivery.held_back(resource)?;
                Some(HeldBackResource {
                    name: Arc::clone(resource.name()),
                    version: resource.version(),
                    refusal: held_back.refusal.clone(),
                })
            })
            .collect()
    }

    /// Returns what was sent and what came back.
    pub(crate) fn delivery(&self) -> &Delivery {
        &self.delivery
    }

    /// Returns the message of the last rejection, until the next acknowledgement.
    pub(crate) fn error(&self) -> Option<&Arc<str>> {
        self.error.as_ref()
    }
}

impl Ask {
    fn interest(&self, facts: &TypeFacts) -> Interest {
        match self {
            Self::Sotw(ask) => ask.interest(),
            Self::Delta(ask) => ask.interest(facts),
        }
    }
}

/// Splits a difference into parts below `limit` bytes; a resource that is larger stands alone.
/// Removals come last. No part means that nothing has to be split.
fn split(diff: &Diff, limit: usize) -> Vec<(Arc<Diff>, Cargo)> {
    let cost = |r: &Resource| r.name().len() + r.body().len() + RESOURCE_OVERHEAD;
    let gone = |name: &Arc<str>| name.len() + RESOURCE_OVERHEAD;
    let total: usize = diff.upserts().map(|r| cost(r)).sum::<usize>()
        + diff.removed.iter().map(gone).sum::<usize>();
    if total <= limit {
        return Vec::new();
    }
    let mut parts = Vec::new();
    let (mut upserts, mut removed, mut size) = (Vec::new(), Vec::new(), 0);
    let mut close = |upserts: &mut Vec<Arc<Resource>>, removed: &mut Vec<Arc<str>>| {
        if !upserts.is_empty() || !removed.is_empty() {
            let part = Arc::new(Diff {
                added: Box::default(),
                changed: std::mem::take(upserts).into(),
                removed: std::mem::take(removed).into(),
            });
            parts.push((Arc::clone(&part), Cargo::Part(part)));
        }
    };
    let mut all: Vec<&Arc<Resource>> = diff.upserts().collect();
    all.sort_by(|a, b| a.name().cmp(b.name()));
    for resource in all {
        if size + cost(resource) > limit {
            close(&mut upserts, &mut removed);
            size = 0;
        }
        size += cost(resource);
        upserts.push(Arc::clone(resource));
    }
    for name in &diff.removed {
        if size + gone(name) > limit {
            close(&mut upserts, &mut removed);
            size = 0;
        }
        size += gone(name);
        removed.push(Arc::clone(name));
    }
    close(&mut upserts, &mut removed);
    parts
}

#[cfg(test)]
mod cost;
#[cfg(test)]
mod model;

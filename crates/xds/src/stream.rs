//! The task of one stream: reads requests, hears of publications, writes responses.

#[cfg(test)]
mod interleavings;
mod trial;

use std::collections::BTreeSet;
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use envoy_types::pb::google::rpc;
use futures::FutureExt;
use futures::future::join_all;
use prost::Message;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::Status;
use tracing::{Instrument, debug, warn};

use crate::ads::{Ads, LimitExceeded, Limits, Reaction, Response};
use crate::class::{ClassCell, Published, SharedSet};
use crate::delivery::Cargo;
use crate::nonce::{Nonce, Nonces};
use crate::observer::{Delivered, Protocol, Rejected, StreamInfo};
use crate::offload::offload;
use crate::server::{Hub, Link};
use crate::service::Requests;
use crate::status::Standing;
use crate::{Interest, Peer, Report, SubscriptionStatus, TypeFacts, World};

/// How many requests in a row are read before it is a publication's turn.
const REQUESTS_IN_A_ROW: usize = 64;

/// A request of either variant.
pub(crate) trait Request: Message + Default + 'static {
    /// The variant that it belongs to.
    const PROTOCOL: Protocol;

    fn node(&mut self) -> Option<Node>;
    fn type_url(&self) -> &str;
    fn nonce(&self) -> &str;
    fn error(&self) -> Option<&rpc::Status>;
    /// What is asked for, for types without subscriptions.
    fn names(&self) -> &[String];
    fn apply(
        &self,
        ads: &mut Ads,
        facts: TypeFacts,
        now: std::time::Instant,
    ) -> Result<Reaction, LimitExceeded>;
}

impl Request for DiscoveryRequest {
    const PROTOCOL: Protocol = Protocol::Sotw;

    fn node(&mut self) -> Option<Node> {
        self.node.take()
    }

    fn type_url(&self) -> &str {
        &self.type_url
    }

    fn nonce(&self) -> &str {
        &self.response_nonce
    }

    fn error(&self) -> Option<&rpc::Status> {
        self.error_detail.as_ref()
    }

    fn names(&self) -> &[String] {
        &self.resource_names
    }

    fn apply(
        &self,
        ads: &mut Ads,
        facts: TypeFacts,
        now: std::time::Instant,
    ) -> Result<Reaction, LimitExceeded> {
        ads.on_sotw(facts, self, now)
    }
}

impl Request for DeltaDiscoveryRequest {
    const PROTOCOL: Protocol = Protocol::Delta;

    fn node(&mut self) -> Option<Node> {
        self.node.take()
    }

    fn type_url(&self) -> &str {
        &self.type_url
    }

    fn nonce(&self) -> &str {
        &self.response_nonce
    }

    fn error(&self) -> Option<&rpc::Status> {
        self.error_detail.as_ref()
    }

    fn names(&self) -> &[String] {
        &self.resource_names_subscribe
    }

    fn apply(
        &self,
        ads: &mut Ads,
        facts: TypeFacts,
        now: std::time::Instant,
    ) -> Result<Reaction, LimitExceeded> {
        ads.on_delta(facts, self, now)
    }
}

/// Serves one stream until it ends. `goodbye` completes when the transport wants it to end.
pub(crate) async fn serve<W: World, R: Request>(
    hub: Arc<Hub<W>>,
    peer: Peer,
    mut requests: Requests<R>,
    responses: mpsc::Sender<Response>,
    goodbye: impl Future<Output = ()>,
) -> Result<(), Status> {
    let within = hub.settings.first_request;
    let first = tokio::time::timeout(within, first_request(&hub, &mut requests)).await;
    let silent = |_| Err(Status::deadline_exceeded("no request says who it is"));
    let (first, node) = match first.unwrap_or_else(silent) {
        Ok(Some(first)) => first,
        Ok(None) => return Ok(()),
        Err(status) => {
            hub.observer.refused(&status);
            return Err(status);
        }
    };
    let Some(view) = hub.current() else {
        return Err(not_ready());
    };
    let client = match hub.world.admit(&view.snapshot, &node, &peer).await {
        Ok(client) => client,
        Err(status) => {
            hub.observer.refused(&status);
            return Err(status);
        }
    };
    let info = |id| StreamInfo {
        id,
        node: node.id.as_str().into(),
        protocol: R::PROTOCOL,
    };
    let link = hub.register(info, client, view);
    let span = tracing::info_span!("ads", proxy = %link.info.node, stream = link.info.id);
    let _registered = Registered {
        hub: &hub,
        link: &link,
    };
    hub.observer.connected(&link.info);
    let limits = Limits {
        types: hub.settings.types_per_stream,
        names: hub.settings.names_per_type,
        split_bytes: hub.settings.split_bytes,
    };
    let mut stream = Stream {
        ads: Ads::new(R::PROTOCOL, limits),
        sets: Vec::new(),
        transient: Vec::new(),
        nonces: Nonces::random(),
        rebuild: false,
        responses,
        hub: &hub,
        link: &link,
    };
    let run = async {
        debug!(protocol = %R::PROTOCOL, peer = ?peer.address, "connected");
        let result = stream.run(first, requests, goodbye).await;
        match &result {
            Ok(()) => debug!("disconnected"),
            Err(status) if is_expected(status) => debug!(error = %status, "disconnected"),
            Err(status) => {
                warn!(error = %status, "stream failed");
                hub.observer.failed(&link.info, status);
            }
        }
        result
    };
    run.instrument(span).await
}

/// Reads up to the first request that is not a mere report.
async fn first_request<W: World, R: Request>(
    hub: &Hub<W>,
    requests: &mut Requests<R>,
) -> Result<Option<(R, Node)>, Status> {
    loop {
        let Some(mut request) = requests.message().await? else {
            return Ok(None);
        };
        if hub.world.is_report(request.type_url()) {
            warn!(
                type_url = request.type_url(),
                "report before the first request, ignored"
            );
            continue;
        }
        return match request.node() {
            Some(node) if !node.id.is_empty() => Ok(Some((request, node))),
            _ => Err(Status::invalid_argument("missing node information")),
        };
    }
}

/// The answer to streams that come before the first publication.
pub(crate) fn not_ready() -> Status {
    Status::unavailable("server is not ready to serve discovery information")
}

/// Returns whether a stream may well end like this: its client went away.
fn is_expected(status: &Status) -> bool {
    use tonic::Code;
    matches!(
        status.code(),
        Code::Ok | Code::Cancelled | Code::DeadlineExceeded
    ) || std::error::Error::source(status).is_some()
        || status.code() == Code::Unavailable
}

/// Forgets the stream when it ends, however it ends.
struct Registered<'a, W: World> {
    hub: &'a Hub<W>,
    link: &'a Link<W>,
}

impl<W: World> Drop for Registered<'_, W> {
    fn drop(&mut self) {
        self.hub.deregister(self.link);
        self.hub.observer.disconnected(&self.link.info);
    }
}

/// One running stream.
struct Stream<'a, W: World> {
    ads: Ads,
    /// The shared set that each subscription follows.
    sets: Vec<(Arc<str>, Arc<SharedSet<W>>)>,
    /// Questions about types without subscriptions.
    transient: Vec<(usize, Interest)>,
    nonces: Nonces,
    /// What is aside for the class has changed, so it must be built again.
    rebuild: bool,
    responses: mpsc::Sender<Response>,
    hub: &'a Arc<Hub<W>>,
    link: &'a Arc<Link<W>>,
}

/// The stream is over.
struct Over;

impl<W: World> Stream<'_, W> {
    async fn run<R: Request>(
        &mut self,
        first: R,
        mut requests: Requests<R>,
        goodbye: impl Future<Output = ()>,
    ) -> Result<(), Status> {
        let mut goodbye = std::pin::pin!(goodbye);
        self.on_request(&first)?;
        drop(first);
        let mut requested = true;
        loop {
            // Requests that are there already change what is to be said, so they come first.
            for _ in 0..REQUESTS_IN_A_ROW {
                match requests.message().now_or_never() {
                    Some(Ok(Some(request))) => {
                        self.on_request(&request)?;
                        requested = true;
                    }
                    Some(Ok(None)) => return Ok(()),
                    Some(Err(status)) => return Err(status),
                    None => break,
                }
            }
            tokio::select! {
                biased;
                () = self.link.closing.cancelled() => return Err(going()),
                () = &mut goodbye => return Err(going()),
                said = self.say(requested) => if let Err(Over) = said { return Ok(()) },
            }
            let deadline = self.ads.deadline();
            requested = tokio::select! {
                biased;
                () = self.link.closing.cancelled() => return Err(going()),
                () = &mut goodbye => return Err(going()),
                request = requests.message() => match request? {
                    Some(request) => { self.on_request(&request)?; true }
                    None => return Ok(()),
                },
                () = self.link.wake.notified() => false,
                () = sleep_until(deadline) => true,
            };
        }
    }

    fn on_request<R: Request>(&mut self, request: &R) -> Result<(), Status> {
        let type_url = request.type_url();
        if type_url.is_empty() {
            return Err(Status::invalid_argument("request without a type URL"));
        }
        if self.hub.world.is_report(type_url) {
            let error = request.error().map(|error| &*error.message);
            self.hub
                .world
                .report(&self.link.client, &Report { type_url, error });
            return Ok(());
        }
        let types = self.hub.registry.types();
        let served = types
            .iter()
            .enumerate()
            .find(|(_, served)| served.type_url() == type_url);
        let facts = if let Some((index, served)) = served {
            if served.facts().transient {
                self.transient.push((index, asked(request.names())));
                return Ok(());
            }
            served.facts()
        } else {
            // Nobody serves it, so there is nothing of it, and the client is told so.
            debug!(type_url, "no generator serves this type");
            self.hub.observer.unserved(&self.link.info, type_url);
            TypeFacts::WILDCARD
        };
        let now = Instant::now().into_std();
        let reaction = request
            .apply(&mut self.ads, facts, now)
            .map_err(|limit| Status::resource_exhausted(limit.to_string()))?;
        self.report(request, &reaction);
        self.testify(type_url, &reaction);
        Ok(())
    }

    fn report<R: Request>(&self, request: &R, reaction: &Reaction) {
        let (type_url, nonce) = (request.type_url(), request.nonce());
        let observer = &self.hub.observer;
        if let Some(acked) = &reaction.acked {
            debug!(type_url, nonce, elapsed = ?acked.after, "ACK");
            observer.acknowledged(&self.link.info, type_url, &acked.root, acked.after);
        }
        if let Some(error) = request.error() {
            let held_back = reaction.rejected.as_deref().unwrap_or_default();
            let names: Vec<&str> = held_back.iter().map(|r| &**r.name()).collect();
            let config: BTreeSet<&str> = held_back
                .iter()
                .flat_map(|r| r.sources().iter())
                .map(|source| &**source)
                .collect();
            let (code, message) = (error.code, &*error.message);
            warn!(type_url, nonce, code, error = message, held_back = ?names, ?config, "NACK");
            let rejected = Rejected {
                type_url,
                nonce,
                code,
                message,
                held_back,
            };
            observer.rejected(&self.link.info, &rejected);
        } else if reaction.stale {
            debug!(type_url, nonce, "stale nonce");
            observer.stale(&self.link.info, type_url);
        }
        if reaction.forced {
            debug!(type_url, "answered an acknowledgement for warming");
        }
    }

    /// Says what there is to say. `requested` tells that a request may wait for it.
    async fn say(&mut self, requested: bool) -> Result<(), Over> {
        // Nothing is built for a client that does not read: what comes meanwhile merges.
        let sender = self.responses.clone();
        let permit = sender.reserve().await.map_err(|_| Over)?;
        let slot = if requested {
            None
        } else {
            self.hub.pushes.acquire().await.ok()
        };
        let started = Instant::now();
        let mut dirty = None;
        let (view, cell) = loop {
            self.rebuild_if_due().await;
            let (view, cell, since) = self.attach();
            dirty = dirty.or(since);
            self.set_targets(&view).await;
            self.look_at_trial(&cell, &view);
            if !self.rebuild {
                break (view, cell);
            }
        };
        if let Some(since) = dirty {
            self.hub
                .observer
                .push_started(&self.link.info, started - since);
        }
        let mut responses = self.answer_transient(&view, &cell).await;
        responses.extend(self.ads.respond(&view.root, started.into_std()));
        drop(slot);
        self.publish_status();
        let pushed = !responses.is_empty();
        let mut permit = Some(permit);
        for response in responses {
            self.report_sent(&response);
            match permit.take() {
                Some(permit) => permit.send(response),
                None => sender.send(response).await.map_err(|_| Over)?,
            }
        }
        if let (Some(_), true) = (dirty, pushed) {
            self.hub
                .observer
                .push_finished(&self.link.info, view.at.elapsed());
        }
        Ok(())
    }

    /// Takes the state of the world to serve, and follows the sets that the subscriptions need.
    fn attach(&mut self) -> (Arc<Published<W>>, Arc<ClassCell<W>>, Option<Instant>) {
        let mut state = self.link.state.lock();
        let cell = Arc::clone(&state.cell);
        let mut sets = Vec::with_capacity(self.ads.subscriptions().len());
        let mut new = Vec::new();
        for subscription in self.ads.subscriptions() {
            let type_url = subscription.type_url();
            let old = self
                .sets
                .iter()
                .find(|(url, _)| url == type_url)
                .map(|(_, set)| set);
            let same = old.filter(|set| {
                !subscription.lacks_target() && Arc::ptr_eq(set.cell(), &cell)
                    || Arc::ptr_eq(set.cell(), &cell) && set.interest() == subscription.interest()
            });
            let set = same.cloned().or_else(|| {
                let types = self.hub.registry.types();
                let index = types.iter().position(|t| t.type_url() == &**type_url)?;
                let interest = self.hub.classes.shared(subscription.interest());
                let set = cell.set(index, &interest, state.view.seq, old);
                new.push((Arc::clone(type_url), Arc::clone(&set)));
                Some(set)
            });
            sets.extend(set.map(|set| (Arc::clone(type_url), set)));
        }
        for (type_url, set) in new {
            self.ads.share(&type_url, set.interest());
        }
        state.sets = sets.iter().map(|(_, set)| Arc::clone(set)).collect();
        self.sets = sets;
        (Arc::clone(&state.view), cell, state.dirty_since.take())
    }

    /// Brings the target of every subscription up to date. Only what was touched is built, once
    /// for all connections of the class.
    async fn set_targets(&mut self, view: &Arc<Published<W>>) {
        let hub = self.hub;
        let built = join_all(
            self.sets
                .iter()
                .map(async |(type_url, set)| (Arc::clone(type_url), set.at(hub, view).await)),
        )
        .await;
        for (type_url, set) in built {
            self.ads.set_target(&type_url, set, view.seq);
        }
        let unserved: Vec<Arc<str>> = self
            .ads
            .subscriptions()
            .iter()
            .filter(|s| s.lacks_target())
            .map(|s| Arc::clone(s.type_url()))
            .collect();
        for type_url in unserved {
            self.ads.set_target(&type_url, Arc::default(), view.seq);
        }
    }

    async fn answer_transient(
        &mut self,
        view: &Arc<Published<W>>,
        cell: &Arc<ClassCell<W>>,
    ) -> Vec<Response> {
        let mut responses = Vec::new();
        for (index, interest) in std::mem::take(&mut self.transient) {
            let Some(served) = self.hub.registry.types().get(index) else {
                continue;
            };
            let (hub, view, cell) = (Arc::clone(self.hub), Arc::clone(view), Arc::clone(cell));
            let root = Arc::clone(&view.root);
            let set = offload(move || hub.generate(index, &view, &cell, &interest)).await;
            let set = set.ok().flatten().unwrap_or_default();
            let cargo = match self.ads.protocol() {
                Protocol::Sotw => Cargo::Whole(set),
                Protocol::Delta => Cargo::Part(set.diff_from(&Arc::default())),
            };
            let (nonce, type_url) = (self.nonces.next(&root), served.type_url().into());
            responses.push(Response {
                type_url,
                nonce,
                root,
                cargo,
                requested: true,
            });
        }
        responses
    }

    fn report_sent(&self, response: &Response) {
        let (resources, removed, bytes) = match &response.cargo {
            Cargo::Whole(set) => (set.len(), 0, set.bytes()),
            Cargo::Part(diff) => (
                diff.added.len() + diff.changed.len(),
                diff.removed.len(),
                diff.upserts().map(|resource| resource.body().len()).sum(),
            ),
        };
        let delivered = Delivered {
            type_url: &response.type_url,
            nonce: &response.nonce.0,
            root: &response.root,
            resources,
            removed,
            bytes,
            answers_request: response.requested,
        };
        debug!(
            type_url = delivered.type_url,
            nonce = delivered.nonce,
            resources,
            removed,
            bytes,
            requested = response.requested,
            "push"
        );
        // A delta response is split before it is too large for a client; this one cannot be.
        let limit = self.hub.settings.split_bytes;
        if self.ads.protocol() == Protocol::Sotw && bytes > limit {
            let type_url = delivered.type_url;
            warn!(type_url, resources, bytes, limit, "large response");
        }
        self.hub.observer.sent(&self.link.info, &delivered);
    }

    /// Makes what debug views show current.
    fn publish_status(&self) {
        let text = |nonce: Option<&Nonce>| nonce.map(|nonce| Arc::clone(&nonce.0));
        let status = |subscription: &crate::ads::Subscription| {
            let delivery = subscription.delivery();
            SubscriptionStatus {
                type_url: Arc::clone(subscription.type_url()),
                interest: subscription.interest().clone(),
                nonce_sent: text(delivery.last()),
                nonce_acked: text(delivery.acked()),
                resources: delivery.held().len(),
                error: subscription.error().cloned(),
                held_back: subscription.held_back(),
                standing: Standing {
                    good: Arc::clone(delivery.good()),
                    unsure: delivery.unsure(),
                    settled: delivery.settled().clone(),
                    waits_since: delivery.waits_since(),
                    tells_removals: delivery.tells_removals(),
                },
            }
        };
        let subscriptions = self.ads.subscriptions().iter().map(status).collect();
        self.link.state.lock().subscriptions = subscriptions;
    }
}

fn asked(names: &[String]) -> Interest {
    let names: crate::Names = names.iter().map(String::as_str).collect();
    if names.is_empty() {
        Interest::Everything
    } else {
        Interest::Named(names)
    }
}

fn going() -> Status {
    Status::unavailable("the server asks to reconnect")
}

async fn sleep_until(deadline: Option<std::time::Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}

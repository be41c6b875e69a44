//! One fake Envoy.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::{protobuf::Any, rpc};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;
use xxhash_rust::xxh3::xxh3_64;

use super::fleet::{Got, Shared};
use super::names::{CLUSTER, ENDPOINT, Id, LISTENER, ROUTE, TYPES, dependent};

/// Requests that wait for the transport: acknowledgements and new names of a few responses.
const REQUESTS: usize = 64;
/// How long a connection may take.
const CONNECT: Duration = Duration::from_secs(10);
/// How often a silent connection is pinged, and how long the answer may take.
const KEEPALIVE: Duration = Duration::from_secs(30);
/// How long a slow client thinks before it acknowledges.
const SLOW: Duration = Duration::from_secs(1);

/// How a client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manners {
    /// Accepts everything at once.
    Good,
    /// Accepts everything, a second late.
    Slow,
    /// Rejects all listeners.
    Rejecting,
}

/// Versions by name, for each of the types.
pub(super) type Holdings = Arc<Mutex<[HashMap<Id, Id>; TYPES.len()]>>;

/// One client, with what it has, over as many streams as it takes.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) node: Node,
    pub(super) delta: bool,
    pub(super) manners: Manners,
    /// Its number in the fleet.
    number: usize,
    /// How many times it has connected.
    times: usize,
    /// What it has; others count it.
    pub(super) has: Holdings,
    /// Since when it has been without an answer to all that it asked for.
    pub(super) lost: Option<Instant>,
    /// The dependent names that each resource refers to, counted.
    wanted: [BTreeMap<Id, usize>; TYPES.len()],
    refers: HashMap<(usize, Id), Arc<[Id]>>,
    nonces: [String; TYPES.len()],
    /// Types asked for and not answered yet on this stream.
    open: [bool; TYPES.len()],
}

/// What a response says of one resource.
#[derive(Clone, Copy, Debug)]
struct Item<'a> {
    name: &'a str,
    version: Id,
    body: &'a [u8],
}

fn kind_of(type_url: &str) -> Option<usize> {
    TYPES.iter().position(|known| *known == type_url)
}

impl Client {
    pub(super) fn new(number: usize, node: Node, delta: bool, manners: Manners) -> Self {
        Self {
            number,
            times: 0,
            lost: None,
            node,
            delta,
            manners,
            has: Arc::default(),
            wanted: Default::default(),
            refers: HashMap::new(),
            nonces: Default::default(),
            open: Default::default(),
        }
    }

    /// Stays connected until the stream ends.
    pub(super) async fn follow(&mut self, shared: &Shared) -> Result<()> {
        self.lost.get_or_insert_with(Instant::now);
        shared.on_wait(self.number, "a connection");
        let address = shared.address(self.number, self.times);
        let address = address.context("no server")?;
        self.times += 1;
        if let Some(books) = &shared.books {
            books.comes(&self.node.id);
        }
        let channel = Endpoint::from_shared(format!("http://{address}"))?
            .connect_timeout(CONNECT)
            .http2_keep_alive_interval(KEEPALIVE)
            .keep_alive_timeout(KEEPALIVE)
            .connect()
            .await?;
        let mut client =
            AggregatedDiscoveryServiceClient::new(channel).max_decoding_message_size(usize::MAX);
        self.open = Default::default();
        shared.on_wait(self.number, "a stream");
        if self.delta {
            let (requests, receiver) = mpsc::channel(REQUESTS);
            self.greet_delta(shared, &requests).await?;
            let call = client.delta_aggregated_resources(ReceiverStream::new(receiver));
            let mut responses = call.await?.into_inner();
            while let Some(response) = responses.message().await? {
                self.on_delta(shared, &requests, response).await?;
                self.report(shared);
            }
        } else {
            let (requests, receiver) = mpsc::channel(REQUESTS);
            self.greet_sotw(shared, &requests).await?;
            let call = client.stream_aggregated_resources(ReceiverStream::new(receiver));
            let mut responses = call.await?.into_inner();
            while let Some(response) = responses.message().await? {
                self.on_sotw(shared, &requests, response).await?;
                self.report(shared);
            }
        }
        Ok(())
    }

    /// Reports, once for each stream, that everything asked for was answered.
    fn report(&mut self, shared: &Shared) {
        match self.open.iter().position(|open| *open) {
            None => {
                if let Some(lost) = self.lost.take() {
                    if let Some(books) = &shared.books {
                        books.settles(&self.node.id);
                    }
                    shared.on_configured(self.number, lost.elapsed());
                }
            }
            Some(kind) if self.lost.is_some() => shared.on_wait(self.number, TYPES[kind]),
            Some(_) => {}
        }
    }

    fn has(&self) -> MutexGuard<'_, [HashMap<Id, Id>; TYPES.len()]> {
        self.has.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(&self, shared: &Shared, kind: usize) -> Vec<String> {
        self.wanted[kind]
            .keys()
            .map(|id| shared.names.text(*id).to_string())
            .collect()
    }

    fn asks_by_name(kind: usize) -> bool {
        matches!(TYPES[kind], ENDPOINT | ROUTE)
    }

    async fn greet_delta(
        &mut self,
        shared: &Shared,
        requests: &mpsc::Sender<DeltaDiscoveryRequest>,
    ) -> Result<()> {
        for (kind, type_url) in TYPES.iter().enumerate() {
            let subscribe = self.names(shared, kind);
            if Self::asks_by_name(kind) && subscribe.is_empty() {
                continue;
            }
            let text = |id: &Id| shared.names.text(*id).to_string();
            let versions = self.has()[kind]
                .iter()
                .map(|(n, v)| (text(n), text(v)))
                .collect();
            self.open[kind] = true;
            let request = DeltaDiscoveryRequest {
                node: Some(self.node.clone()),
                type_url: (*type_url).to_owned(),
                resource_names_subscribe: subscribe,
                initial_resource_versions: versions,
                ..DeltaDiscoveryRequest::default()
            };
            requests.send(request).await?;
        }
        Ok(())
    }

    async fn greet_sotw(
        &mut self,
        shared: &Shared,
        requests: &mpsc::Sender<DiscoveryRequest>,
    ) -> Result<()> {
        for kind in 0..TYPES.len() {
            if !Self::asks_by_name(kind) || !self.wanted[kind].is_empty() {
                self.open[kind] = true;
                self.ask_sotw(shared, requests, kind, None).await?;
            }
        }
        Ok(())
    }

    async fn ask_sotw(
        &mut self,
        shared: &Shared,
        requests: &mpsc::Sender<DiscoveryRequest>,
        kind: usize,
        error_detail: Option<rpc::Status>,
    ) -> Result<()> {
        let request = DiscoveryRequest {
            node: Some(self.node.clone()),
            type_url: TYPES[kind].to_owned(),
            resource_names: self.names(shared, kind),
            response_nonce: self.nonces[kind].clone(),
            error_detail,
            ..DiscoveryRequest::default()
        };
        Ok(requests.send(request).await?)
    }

    /// Takes in one resource and returns whether it was news.
    fn take(&mut self, shared: &Shared, kind: usize, item: &Item<'_>) -> bool {
        let name = shared.names.id(item.name);
        if let Some(books) = shared.books.as_ref().filter(|_| TYPES[kind] == CLUSTER) {
            let version = shared.names.text(item.version);
            books.takes(&self.node.id, item.name, &version, item.body);
        }
        let news = self.has()[kind].insert(name, item.version) != Some(item.version);
        if dependent(TYPES[kind]).is_some() {
            self.refer(
                kind,
                name,
                Some(shared.names.references(TYPES[kind], item.body)),
            );
        }
        news
    }

    fn drop_name(&mut self, kind: usize, name: Id) {
        self.has()[kind].remove(&name);
        self.refer(kind, name, None);
    }

    /// Notes what a resource refers to now.
    fn refer(&mut self, kind: usize, name: Id, refers: Option<Arc<[Id]>>) {
        let Some(target) = dependent(TYPES[kind]).and_then(kind_of) else {
            return;
        };
        for id in refers.iter().flat_map(|ids| ids.iter()) {
            *self.wanted[target].entry(*id).or_default() += 1;
        }
        let old = match refers {
            Some(refers) => self.refers.insert((kind, name), refers),
            None => self.refers.remove(&(kind, name)),
        };
        for id in old.iter().flat_map(|ids| ids.iter()) {
            if let Some(count) = self.wanted[target].get_mut(id) {
                *count -= 1;
                if *count == 0 {
                    self.wanted[target].remove(id);
                    self.has.lock().unwrap_or_else(PoisonError::into_inner)[target].remove(id);
                }
            }
        }
    }

    /// What it says of a response. Where books are kept, who rejects does so by the content of clusters:
    /// there is something to be told of it.
    fn verdict<'a>(
        &self,
        shared: &Shared,
        kind: usize,
        mut items: impl Iterator<Item = Item<'a>>,
    ) -> Option<rpc::Status> {
        let rejects = match &shared.books {
            _ if self.manners != Manners::Rejecting => false,
            None => TYPES[kind] == LISTENER,
            Some(books) => {
                TYPES[kind] == CLUSTER
                    && items.any(|item| {
                        let version = shared.names.text(item.version);
                        books.dislikes(item.name, &version, item.body)
                    })
            }
        };
        rejects.then(|| rpc::Status {
            code: 13,
            message: "rejected by the load test".to_owned(),
            ..rpc::Status::default()
        })
    }

    async fn think(&self) {
        if self.manners == Manners::Slow {
            sleep(SLOW).await;
        }
    }

    async fn on_delta(
        &mut self,
        shared: &Shared,
        requests: &mpsc::Sender<DeltaDiscoveryRequest>,
        response: DeltaDiscoveryResponse,
    ) -> Result<()> {
        let Some(kind) = kind_of(&response.type_url) else {
            return Ok(());
        };
        self.open[kind] = false;
        self.think().await;
        let items = response.resources.iter().map(|resource| Item {
            name: &resource.name,
            version: shared.names.id(&resource.version),
            body: resource.resource.as_ref().map_or(&[][..], |any| &any.value),
        });
        let error_detail = self.verdict(shared, kind, items.clone());
        let before: Vec<Id> = self.target_names(kind);
        let mut bytes = 0;
        let mut news = Vec::new();
        for (resource, item) in response.resources.iter().zip(items) {
            bytes += item.body.len();
            if error_detail.is_none() && self.take(shared, kind, &item) {
                news.push(shared.names.id(&resource.name));
            }
        }
        let fresh = news.len();
        for name in &response.removed_resources {
            let id = shared.names.id(name);
            news.push(id);
            self.drop_name(kind, id);
        }
        let got = Got {
            resources: response.resources.len(),
            fresh,
            bytes,
            rejected: error_detail.is_some(),
        };
        shared.on_response(self.manners, kind, &got);
        let ack = DeltaDiscoveryRequest {
            type_url: response.type_url,
            response_nonce: response.nonce,
            error_detail,
            ..DeltaDiscoveryRequest::default()
        };
        requests.send(ack).await?;
        shared.on_ack(self.manners, kind, &news);
        if let Some(target) = dependent(TYPES[kind]).and_then(kind_of) {
            let after = self.target_names(kind);
            let text = |ids: &[Id], others: &[Id]| -> Vec<String> {
                let new = ids.iter().filter(|id| others.binary_search(id).is_err());
                new.map(|id| shared.names.text(*id).to_string()).collect()
            };
            let (subscribe, unsubscribe) = (text(&after, &before), text(&before, &after));
            if !subscribe.is_empty() || !unsubscribe.is_empty() {
                self.open[target] |= !subscribe.is_empty();
                let request = DeltaDiscoveryRequest {
                    type_url: TYPES[target].to_owned(),
                    resource_names_subscribe: subscribe,
                    resource_names_unsubscribe: unsubscribe,
                    ..DeltaDiscoveryRequest::default()
                };
                requests.send(request).await?;
            }
        }
        Ok(())
    }

    async fn on_sotw(
        &mut self,
        shared: &Shared,
        requests: &mpsc::Sender<DiscoveryRequest>,
        response: DiscoveryResponse,
    ) -> Result<()> {
        let Some(kind) = kind_of(&response.type_url) else {
            return Ok(());
        };
        self.open[kind] = false;
        self.think().await;
        let names: Vec<String> = response.resources.iter().map(resource_name).collect();
        let items = response.resources.iter().zip(&names);
        let items = items.map(|(any, name)| Item {
            name,
            version: shared.names.id(&format!("{:x}", xxh3_64(&any.value))),
            body: &any.value,
        });
        let error_detail = self.verdict(shared, kind, items.clone());
        let rejected = error_detail.is_some();
        let before = self.target_names(kind);
        let mut news = Vec::new();
        let mut there = Vec::new();
        for (name, item) in names.iter().zip(items) {
            there.push(shared.names.id(name));
            if !rejected && self.take(shared, kind, &item) {
                news.push(shared.names.id(name));
            }
        }
        let fresh = news.len();
        if !rejected && !Self::asks_by_name(kind) {
            there.sort_unstable();
            let gone: Vec<Id> = self.has()[kind]
                .keys()
                .copied()
                .filter(|id| there.binary_search(id).is_err())
                .collect();
            for id in gone {
                self.drop_name(kind, id);
                news.push(id);
            }
        }
        let got = Got {
            resources: response.resources.len(),
            fresh,
            bytes: response.resources.iter().map(|any| any.value.len()).sum(),
            rejected,
        };
        shared.on_response(self.manners, kind, &got);
        self.nonces[kind] = response.nonce;
        self.ask_sotw(shared, requests, kind, error_detail).await?;
        shared.on_ack(self.manners, kind, &news);
        let target = dependent(TYPES[kind]).and_then(kind_of);
        if let Some(target) = target.filter(|_| self.target_names(kind) != before) {
            self.open[target] |= !self.wanted[target].is_empty();
            self.ask_sotw(shared, requests, target, None).await?;
        }
        Ok(())
    }

    /// Returns the names that resources of this type refer to, sorted.
    fn target_names(&self, kind: usize) -> Vec<Id> {
        let target = dependent(TYPES[kind]).and_then(kind_of);
        target
            .map(|target| self.wanted[target].keys().copied().collect())
            .unwrap_or_default()
    }
}

/// Returns the name of a resource: the first field of each of the types, but for load assignments
/// and clusters it has that number too.
fn resource_name(any: &Any) -> String {
    #[derive(Clone, PartialEq, prost::Message)]
    struct Named {
        #[prost(string, tag = "1")]
        name: String,
    }
    let is_known = [CLUSTER, ENDPOINT, LISTENER, ROUTE].contains(&&*any.type_url);
    let named = is_known
        .then(|| <Named as prost::Message>::decode(&*any.value).ok())
        .flatten();
    named.map(|named| named.name).unwrap_or_default()
}

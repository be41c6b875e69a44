//! A scripted client, and the server that it talks to.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use envoy_types::pb::envoy::service::discovery::v3::{
    DeltaDiscoveryRequest, DeltaDiscoveryResponse, DiscoveryRequest, DiscoveryResponse,
};
use envoy_types::pb::google::rpc;
use futures::{Stream, StreamExt};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tokio_util::sync::CancellationToken;
use tonic::codegen::http::Uri;
use tonic::codegen::{BoxFuture, Service};
use tonic::transport::server::Connected;
use tonic::transport::{Channel, Endpoint};
use tonic::{Status, Streaming};
use xds::{Delivered, Observer, Rejected, Server, SetAside, Settings, StreamInfo, Transport};

use crate::shelf::{Shelf, Texts, registry};

/// How long a client waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);
/// How much is under way in a connection in memory, in bytes.
const PIPE: usize = 16 * 1024;
/// How long a client listens before it believes that nothing comes.
const SILENCE: Duration = Duration::from_millis(150);

/// What the server reported, as short lines.
#[derive(Clone, Debug, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().clone()
    }

    pub(crate) fn count(&self, part: &str) -> usize {
        self.0
            .lock()
            .iter()
            .filter(|line| line.contains(part))
            .count()
    }

    fn add(&self, line: String) {
        self.0.lock().push(line);
    }
}

impl Observer for Log {
    fn connected(&self, stream: &StreamInfo) {
        self.add(format!("connected {}", stream.node));
    }

    fn disconnected(&self, stream: &StreamInfo) {
        self.add(format!("disconnected {}", stream.node));
    }

    fn refused(&self, status: &Status) {
        self.add(format!("refused {:?}", status.code()));
    }

    fn failed(&self, stream: &StreamInfo, status: &Status) {
        self.add(format!("failed {} {:?}", stream.node, status.code()));
    }

    fn sent(&self, stream: &StreamInfo, delivered: &Delivered<'_>) {
        let Delivered {
            type_url,
            resources,
            removed,
            ..
        } = delivered;
        self.add(format!(
            "sent {} {type_url} +{resources} -{removed}",
            stream.node
        ));
    }

    fn rejected(&self, stream: &StreamInfo, rejected: &Rejected<'_>) {
        let held: Vec<String> = rejected
            .held_back
            .iter()
            .map(|r| format!("{} of {:?}", r.name(), r.sources()))
            .collect();
        self.add(format!("rejected {} {}", stream.node, held.join(", ")));
    }

    fn set_aside(&self, stream: &StreamInfo, aside: &SetAside) {
        self.add(format!("aside {} {}", stream.node, aside.source));
    }

    fn stale(&self, stream: &StreamInfo, type_url: &str) {
        self.add(format!("stale {} {type_url}", stream.node));
    }

    fn generated(&self, type_url: &str, resources: usize, _: Duration) {
        self.add(format!("generated {type_url} {resources}"));
    }

    fn generator_failed(&self, type_url: &str) {
        self.add(format!("panicked {type_url}"));
    }
}

/// A running server.
pub(crate) struct Shop {
    pub(crate) server: Server<Shelf>,
    pub(crate) address: SocketAddr,
    pub(crate) log: Log,
    pub(crate) stop: CancellationToken,
    pub(crate) tasks: JoinSet<()>,
    texts: Texts,
    pipes: Option<Pipes>,
}

/// Takes the server's ends of connections in memory.
#[derive(Clone)]
struct Pipes(mpsc::Sender<std::io::Result<DuplexStream>>);

impl Service<Uri> for Pipes {
    type Response = TokioIo<DuplexStream>;
    type Error = std::io::Error;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, _: Uri) -> Self::Future {
        let (client, server) = tokio::io::duplex(PIPE);
        let pipes = self.0.clone();
        Box::pin(async move {
            pipes.send(Ok(server)).await.ok();
            Ok(TokioIo::new(client))
        })
    }
}

impl Shop {
    pub(crate) async fn open(texts: &[(&'static str, &str, &str)]) -> Self {
        Self::open_with(texts, Settings::default(), Transport::default()).await
    }

    pub(crate) async fn open_with(
        texts: &[(&'static str, &str, &str)],
        settings: Settings,
        transport: Transport,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let mut shop = Self::around(
            address,
            settings,
            transport,
            TcpListenerStream::new(listener),
        );
        if !texts.is_empty() {
            let edits: Vec<_> = texts
                .iter()
                .map(|(t, n, text)| (*t, *n, Some(*text)))
                .collect();
            shop.edit(&edits);
        }
        shop
    }

    /// Opens one without texts that is reached by connections in memory, so that time may be paused.
    pub(crate) fn open_in_memory(settings: Settings, transport: Transport) -> Self {
        let (pipes, incoming) = mpsc::channel(16);
        let nowhere = SocketAddr::from(([127, 0, 0, 1], 0));
        let incoming = ReceiverStream::new(incoming);
        let mut shop = Self::around(nowhere, settings, transport, incoming);
        shop.pipes = Some(Pipes(pipes));
        shop
    }

    fn around<I, IO>(
        address: SocketAddr,
        settings: Settings,
        transport: Transport,
        incoming: I,
    ) -> Self
    where
        I: Stream<Item = std::io::Result<IO>> + Send + 'static,
        IO: AsyncRead + AsyncWrite + Connected + Unpin + Send + 'static,
    {
        let log = Log::default();
        let server = Server::new(Shelf, registry(), settings, log.clone());
        let stop = CancellationToken::new();
        let mut tasks = JoinSet::new();
        let service = server.service().receive_bytes(transport.receive_bytes);
        let stopped = stop.clone().cancelled_owned();
        tasks.spawn(xds::serve(incoming, service, transport, stopped));
        Self {
            server,
            address,
            log,
            stop,
            tasks,
            texts: Texts::default(),
            pipes: None,
        }
    }

    /// Publishes changed (`Some`) and removed (`None`) texts; returns the number of the publication.
    pub(crate) fn edit(&mut self, edits: &[(&'static str, &str, Option<&str>)]) -> u64 {
        self.texts.version += 1;
        let mut update = std::collections::BTreeSet::new();
        for (type_url, name, text) in edits {
            let key = (*type_url, (*name).to_owned());
            update.insert(key.clone());
            match text {
                Some(text) => self.texts.texts.insert(key, (*text).to_owned()),
                None => self.texts.texts.remove(&key),
            };
        }
        self.server.publish(Arc::new(self.texts.clone()), &update)
    }

    pub(crate) async fn channel(&self) -> Channel {
        match &self.pipes {
            None => Self::channel_to(self.address).await,
            Some(pipes) => Endpoint::from_static("http://memory")
                .connect_with_connector(pipes.clone())
                .await
                .unwrap(),
        }
    }

    async fn channel_to(address: SocketAddr) -> Channel {
        Channel::from_shared(format!("http://{address}"))
            .unwrap()
            .connect()
            .await
            .unwrap()
    }

    pub(crate) async fn sotw(&self, node: &str) -> Sotw {
        self.try_sotw(node).await.unwrap()
    }

    /// Connects to another address, which leads here.
    pub(crate) async fn sotw_at(&self, address: SocketAddr, node: &str) -> Sotw {
        let channel = Self::channel_to(address).await;
        Sotw::over(channel, node).await.unwrap()
    }

    /// Connects with room for so many bytes that nobody has read yet.
    pub(crate) async fn sotw_with_room(&self, node: &str, bytes: u32) -> Sotw {
        let channel = Channel::from_shared(format!("http://{}", self.address))
            .unwrap()
            .initial_stream_window_size(bytes)
            .initial_connection_window_size(bytes)
            .connect()
            .await
            .unwrap();
        Sotw::over(channel, node).await.unwrap()
    }

    pub(crate) async fn try_sotw(&self, node: &str) -> Result<Sotw, Status> {
        Sotw::over(self.channel().await, node).await
    }

    pub(crate) async fn delta(&self, node: &str) -> Delta {
        self.try_delta(node).await.unwrap()
    }

    pub(crate) async fn try_delta(&self, node: &str) -> Result<Delta, Status> {
        let (requests, receiver) = mpsc::channel(64);
        let mut client = AggregatedDiscoveryServiceClient::new(self.channel().await);
        let call = client.delta_aggregated_resources(ReceiverStream::new(receiver));
        Ok(Delta {
            requests,
            responses: call.await?.into_inner(),
            node: Some(self::node(node)),
        })
    }

    /// Waits until the log satisfies a condition.
    pub(crate) async fn until(&self, what: &str, condition: impl Fn(&Log) -> bool) {
        let wait = async {
            while !condition(&self.log) {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        let done = tokio::time::timeout(PATIENCE, wait).await.is_ok();
        assert!(done, "never {what}: {:#?}", self.log.lines());
    }
}

pub(crate) fn node(id: &str) -> Node {
    Node {
        id: id.to_owned(),
        cluster: "plain".to_owned(),
        ..Node::default()
    }
}

fn error(message: &str) -> rpc::Status {
    rpc::Status {
        code: 13,
        message: message.to_owned(),
        ..rpc::Status::default()
    }
}

async fn next<M>(responses: &mut Streaming<M>) -> Option<Result<M, Status>> {
    tokio::time::timeout(PATIENCE, responses.next())
        .await
        .expect("an answer in time")
}

async fn silent<M: std::fmt::Debug>(responses: &mut Streaming<M>) {
    if let Ok(message) = tokio::time::timeout(SILENCE, responses.next()).await {
        panic!("unexpected {message:#?}");
    }
}

/// A client of the state-of-the-world variant.
pub(crate) struct Sotw {
    pub(crate) requests: mpsc::Sender<DiscoveryRequest>,
    pub(crate) responses: Streaming<DiscoveryResponse>,
    node: Option<Node>,
}

impl Sotw {
    async fn over(channel: Channel, node: &str) -> Result<Self, Status> {
        let (requests, receiver) = mpsc::channel(64);
        let client = AggregatedDiscoveryServiceClient::new(channel);
        let mut client = client.max_decoding_message_size(usize::MAX);
        let call = client.stream_aggregated_resources(ReceiverStream::new(receiver));
        Ok(Self {
            requests,
            responses: call.await?.into_inner(),
            node: Some(self::node(node)),
        })
    }

    pub(crate) async fn send(&mut self, request: DiscoveryRequest) {
        let node = self.node.take().or(request.node.clone());
        self.requests
            .send(DiscoveryRequest { node, ..request })
            .await
            // The stream has ended, which its responses tell.
            .ok();
    }

    pub(crate) async fn ask(&mut self, type_url: &str, names: &[&str], nonce: &str) {
        self.send(DiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.to_owned(),
            ..DiscoveryRequest::default()
        })
        .await;
    }

    pub(crate) async fn reject(
        &mut self,
        type_url: &str,
        names: &[&str],
        nonce: &str,
        message: &str,
    ) {
        self.send(DiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names: names.iter().map(ToString::to_string).collect(),
            response_nonce: nonce.to_owned(),
            error_detail: Some(error(message)),
            ..DiscoveryRequest::default()
        })
        .await;
    }

    /// Receives a response of `type_url` with these texts, and returns its nonce.
    #[track_caller]
    pub(crate) fn expect(
        &mut self,
        type_url: &str,
        texts: &[&str],
    ) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let response = next(&mut self.responses)
                .await
                .expect("a response")
                .unwrap();
            let got: Vec<&str> = response
                .resources
                .iter()
                .map(|r| std::str::from_utf8(&r.value).unwrap())
                .collect();
            assert_eq!(
                (&*response.type_url, &*got),
                (type_url, texts),
                "at {caller}"
            );
            assert!(response.resources.iter().all(|r| r.type_url == type_url));
            response.nonce
        }
    }

    pub(crate) async fn silent(&mut self) {
        silent(&mut self.responses).await;
    }

    /// Waits for the end of the stream.
    pub(crate) async fn end(&mut self) -> Status {
        loop {
            match next(&mut self.responses).await {
                Some(Ok(_)) => {}
                Some(Err(status)) => return status,
                None => return Status::ok(""),
            }
        }
    }
}

/// A client of the delta variant.
pub(crate) struct Delta {
    pub(crate) requests: mpsc::Sender<DeltaDiscoveryRequest>,
    pub(crate) responses: Streaming<DeltaDiscoveryResponse>,
    node: Option<Node>,
}

/// What a delta response said: (name, text) of its resources, removed names.
pub(crate) type Said<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);

impl Delta {
    pub(crate) async fn send(&mut self, request: DeltaDiscoveryRequest) {
        let node = self.node.take().or(request.node.clone());
        self.requests
            .send(DeltaDiscoveryRequest { node, ..request })
            .await
            .ok();
    }

    pub(crate) async fn ask(&mut self, type_url: &str, subscribe: &[&str], unsubscribe: &[&str]) {
        self.send(DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names_subscribe: subscribe.iter().map(ToString::to_string).collect(),
            resource_names_unsubscribe: unsubscribe.iter().map(ToString::to_string).collect(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }

    pub(crate) async fn state(
        &mut self,
        type_url: &str,
        names: &[&str],
        holds: &BTreeMap<String, String>,
    ) {
        self.send(DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            resource_names_subscribe: names.iter().map(ToString::to_string).collect(),
            initial_resource_versions: holds.clone().into_iter().collect(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }

    pub(crate) async fn ack(&mut self, type_url: &str, nonce: &str) {
        self.send(DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            response_nonce: nonce.to_owned(),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }

    pub(crate) async fn reject(&mut self, type_url: &str, nonce: &str, message: &str) {
        self.send(DeltaDiscoveryRequest {
            type_url: type_url.to_owned(),
            response_nonce: nonce.to_owned(),
            error_detail: Some(error(message)),
            ..DeltaDiscoveryRequest::default()
        })
        .await;
    }

    pub(crate) async fn receive(&mut self) -> DeltaDiscoveryResponse {
        next(&mut self.responses)
            .await
            .expect("a response")
            .unwrap()
    }

    /// Receives a response of `type_url` that says this, and returns its nonce.
    #[track_caller]
    pub(crate) fn expect(
        &mut self,
        type_url: &str,
        said: Said<'_>,
    ) -> impl Future<Output = String> {
        let caller = std::panic::Location::caller();
        async move {
            let response = self.receive().await;
            let got: Vec<(&str, &str)> = response
                .resources
                .iter()
                .map(|r| {
                    let any = r.resource.as_ref().unwrap();
                    assert_eq!(any.type_url, type_url);
                    (&*r.name, std::str::from_utf8(&any.value).unwrap())
                })
                .collect();
            let removed: Vec<&str> = response
                .removed_resources
                .iter()
                .map(String::as_str)
                .collect();
            let got = (&*response.type_url, &*got, &*removed);
            assert_eq!(got, (type_url, said.0, said.1), "at {caller}");
            response.nonce
        }
    }

    pub(crate) async fn silent(&mut self) {
        silent(&mut self.responses).await;
    }
}

//! Old snapshots die when the last push on them ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use parking_lot::{Condvar, Mutex};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_stream::wrappers::{ReceiverStream, TcpListenerStream};
use tonic::transport::Channel;
use tonic::{Status, Streaming};
use xds::{
    Interest, Observer, Peer, Registration, Registry, Resource, ResourceSet, Server, Settings,
    Transport, TypeFacts, World, boxed,
};

use crate::fake::node;
use crate::shelf::CDS;

/// How long to wait for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

/// A snapshot that counts itself as long as it lives.
struct Counted {
    number: usize,
    live: Arc<AtomicUsize>,
    gate: Option<Arc<Gate>>,
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.live.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Where a generator waits in the middle of a push.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock();
        state.0 = true;
        while !state.1 {
            self.changed.wait(&mut state);
        }
    }

    fn open(&self) {
        self.state.lock().1 = true;
        self.changed.notify_all();
    }

    fn has_visitor(&self) -> bool {
        self.state.lock().0
    }
}

struct Counting;

impl World for Counting {
    type Snapshot = Counted;
    type Client = ();
    type Class = ();
    type Update = ();

    async fn admit(&self, _: &Counted, _: &Node, _: &Peer) -> Result<(), Status> {
        Ok(())
    }

    fn classify(&self, _: &Counted, (): &()) {}

    fn root(&self, snapshot: &Counted) -> Arc<str> {
        format!("v{}", snapshot.number).into()
    }
}

struct Quiet;

impl Observer for Quiet {}

fn registry() -> Registry<Counting> {
    let clusters = Registration::new(CDS, module_path!(), TypeFacts::CLUSTERS, || {
        boxed::<Counting>(|snapshot: &Counted, (): &(), _: &Interest| {
            if let Some(gate) = &snapshot.gate {
                gate.pass();
            }
            let text = snapshot.number.to_string().into_bytes();
            ResourceSet::from_iter([Resource::new("number", text)])
        })
    });
    Registry::new([clusters]).unwrap()
}

async fn until(what: &str, condition: impl Fn() -> bool) {
    let wait = async {
        while !condition() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    };
    let done = tokio::time::timeout(PATIENCE, wait).await.is_ok();
    assert!(done, "never {what}");
}

type Responses = Streaming<envoy_types::pb::envoy::service::discovery::v3::DiscoveryResponse>;

/// Receives the next response, acknowledges it, and returns the number of its snapshot.
async fn follow(requests: &mpsc::Sender<DiscoveryRequest>, responses: &mut Responses) -> String {
    let next = tokio::time::timeout(PATIENCE, responses.message());
    let response = next.await.unwrap().unwrap().unwrap();
    let ack = DiscoveryRequest {
        type_url: CDS.to_owned(),
        response_nonce: response.nonce,
        version_info: response.version_info,
        ..DiscoveryRequest::default()
    };
    requests.send(ack).await.unwrap();
    String::from_utf8(response.resources[0].value.clone()).unwrap()
}

#[tokio::test]
async fn a_snapshot_dies_when_the_last_push_on_it_ends() {
    let live = Arc::new(AtomicUsize::new(0));
    let server = Server::new(Counting, registry(), Settings::default(), Quiet);
    let publish = |number: usize, gate: Option<Arc<Gate>>| {
        live.fetch_add(1, Ordering::SeqCst);
        let live = live.clone();
        server.publish(Arc::new(Counted { number, live, gate }), &());
    };
    publish(1, None);

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let mut serving = JoinSet::new();
    serving.spawn(xds::serve(
        TcpListenerStream::new(listener),
        server.service(),
        Transport::default(),
        std::future::pending(),
    ));
    let channel = Channel::from_shared(format!("http://{address}")).unwrap();
    let channel = channel.connect().await.unwrap();
    let (requests, receiver) = mpsc::channel(8);
    let mut client = AggregatedDiscoveryServiceClient::new(channel);
    let call = client.stream_aggregated_resources(ReceiverStream::new(receiver));
    let first = DiscoveryRequest {
        node: Some(node("one")),
        type_url: CDS.to_owned(),
        ..DiscoveryRequest::default()
    };
    requests.send(first).await.unwrap();
    let mut responses = call.await.unwrap().into_inner();
    assert_eq!(follow(&requests, &mut responses).await, "1");

    let gate = Arc::new(Gate::default());
    publish(2, Some(gate.clone()));
    until("a push on the second", || gate.has_visitor()).await;
    for number in 3..50 {
        publish(number, None);
    }
    // The one that is pushed and the newest; nothing of what lies between.
    until("two alive", || live.load(Ordering::SeqCst) == 2).await;
    gate.open();
    while follow(&requests, &mut responses).await != "49" {}
    until("one alive", || live.load(Ordering::SeqCst) == 1).await;
    serving.abort_all();
}

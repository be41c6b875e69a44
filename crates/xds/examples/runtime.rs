//! Another, tiny world: runtime values (RTDS) typed on standard input.
//!
//! ```text
//! cargo run -p xds --example runtime -- 127.0.0.1:18000
//! canary health_check.min_interval 5
//! ```
//!
//! Each line is a layer, a key and a number; a layer is a resource. A node gets the layers whose
//! name starts with its `cluster`, so the cluster is its class.
#![expect(clippy::print_stdout, reason = "an example talks to its user")]

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use envoy_types::pb::envoy::service::runtime::v3::Runtime;
use envoy_types::pb::google::protobuf::{Struct, Value, value::Kind};
use prost::Message;
use tokio::io::{AsyncBufReadExt, BufReader, stdin};
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::Status;
use xds::{
    Change, Generator, Interest, NoObserver, Peer, Registration, Registry, Resource, ResourceSet,
    Server, Settings, Touched, Transport, TypeFacts, World, boxed, type_url,
};

struct Layers;

#[derive(Clone, Default)]
struct State {
    edits: u64,
    /// By layer; one key each.
    values: BTreeMap<Arc<str>, (String, f64)>,
}

impl World for Layers {
    type Snapshot = State;
    type Client = String;
    type Class = String;
    /// The layers that changed.
    type Update = BTreeSet<Arc<str>>;

    async fn admit(&self, _: &State, node: &Node, _: &Peer) -> Result<String, Status> {
        Ok(node.cluster.clone())
    }

    fn classify(&self, _: &State, client: &String) -> String {
        client.clone()
    }

    fn regroups(&self, _: &Change<'_, Self>) -> bool {
        false
    }

    fn touched(&self, change: &Change<'_, Self>, class: &String, _: &str) -> Touched {
        let names = change
            .update
            .iter()
            .filter(|layer| layer.starts_with(class.as_str()));
        Touched::Named(names.cloned().collect())
    }

    fn root(&self, snapshot: &State) -> Arc<str> {
        snapshot.edits.to_string().into()
    }
}

struct RuntimeLayers;

impl Generator<Layers> for RuntimeLayers {
    fn generate(&self, state: &State, class: &String, interest: &Interest) -> ResourceSet {
        let wanted = |name: &str| name.starts_with(class.as_str()) && interest.wants(name);
        let layers = state.values.iter().filter(|(name, _)| wanted(name));
        layers
            .map(|(name, (key, number))| {
                let value = Value {
                    kind: Some(Kind::NumberValue(*number)),
                };
                let layer = Some(Struct {
                    fields: [(key.clone(), value)].into(),
                });
                let runtime = Runtime {
                    name: name.to_string(),
                    layer,
                };
                Resource::new(Arc::clone(name), runtime.encode_to_vec())
            })
            .collect()
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let address = std::env::args()
        .nth(1)
        .unwrap_or_else(|| "127.0.0.1:0".to_owned());
    let registry = Registry::new([Registration::new(
        type_url::RUNTIME,
        module_path!(),
        TypeFacts::NAMED,
        || boxed::<Layers>(RuntimeLayers),
    )])?;
    let server = Server::new(Layers, registry, Settings::default(), NoObserver);
    let mut state = State::default();
    server.publish(Arc::new(state.clone()), &BTreeSet::new());

    let listener = TcpListener::bind(address).await?;
    println!(
        "serving on {}; type <layer> <key> <number>",
        listener.local_addr()?
    );
    let edits = async {
        let mut lines = BufReader::new(stdin()).lines();
        while let Ok(Some(line)) = lines.next_line().await {
            let words: Vec<&str> = line.split_whitespace().collect();
            let [layer, key, number] = words[..] else {
                println!("not <layer> <key> <number>: {line}");
                continue;
            };
            let Ok(number) = number.parse() else {
                println!("not a number: {number}");
                continue;
            };
            let layer: Arc<str> = layer.into();
            state.edits += 1;
            state
                .values
                .insert(Arc::clone(&layer), (key.to_owned(), number));
            server.publish(Arc::new(state.clone()), &BTreeSet::from([layer]));
        }
    };
    let incoming = TcpListenerStream::new(listener);
    xds::serve(incoming, server.service(), Transport::default(), edits).await;
    Ok(())
}

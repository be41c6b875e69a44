//! A tiny world: texts on shelves. A node's class is its `cluster`; a text may be for one class.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node;
use tonic::Status;
use xds::{
    Change, Interest, Peer, Registration, Registry, Resource, ResourceSet, Source, Touched,
    TypeFacts, World, boxed, type_url,
};

pub(crate) const CDS: &str = type_url::CLUSTER;
pub(crate) const EDS: &str = type_url::ENDPOINT;
pub(crate) const LDS: &str = type_url::LISTENER;
pub(crate) const RDS: &str = type_url::ROUTE;
pub(crate) const ECHO: &str = "example.org/Echo";
/// Not a type: a text of this kind moves clients of one class to another.
pub(crate) const MOVE: &str = "move";
pub(crate) const HEALTH: &str = "example.org/Health";

/// One state: (type URL, name) to text.
#[derive(Clone, Debug, Default)]
pub(crate) struct Texts {
    pub(crate) version: u64,
    pub(crate) texts: BTreeMap<(&'static str, String), String>,
}

#[derive(Debug)]
pub(crate) struct Shelf;

impl World for Shelf {
    type Snapshot = Texts;
    type Client = String;
    type Class = String;
    type Update = BTreeSet<(&'static str, String)>;

    async fn admit(&self, _: &Texts, node: &Node, peer: &Peer) -> Result<String, Status> {
        assert!(peer.address.is_some(), "the transport knows its peer");
        match &*node.id {
            "nobody" => Err(Status::permission_denied("nobody may not come in")),
            _ => Ok(node.cluster.clone()),
        }
    }

    fn classify(&self, texts: &Texts, client: &String) -> String {
        texts
            .texts
            .get(&(MOVE, client.clone()))
            .unwrap_or(client)
            .clone()
    }

    fn regroups(&self, change: &Change<'_, Self>) -> bool {
        change.update.iter().any(|(type_url, _)| *type_url == MOVE)
    }

    fn touched(&self, change: &Change<'_, Self>, _: &String, type_url: &str) -> Touched {
        let names: Vec<&str> = change
            .update
            .iter()
            .filter(|(t, _)| *t == type_url)
            .map(|(_, n)| n.as_str())
            .collect();
        match names.as_slice() {
            [] => Touched::Nothing,
            names => Touched::Named(names.iter().copied().collect()),
        }
    }

    fn root(&self, snapshot: &Texts) -> Arc<str> {
        format!("v{}", snapshot.version).into()
    }

    fn is_report(&self, type_url: &str) -> bool {
        type_url == HEALTH
    }
}

fn generate(
    type_url: &'static str,
    texts: &Texts,
    class: &str,
    interest: &Interest,
) -> ResourceSet {
    texts
        .texts
        .iter()
        .filter(|((t, name), _)| *t == type_url && interest.wants(name))
        .filter(|(_, text)| {
            assert!(*text != "panic", "on purpose");
            text.split_once('@').is_none_or(|(_, only)| only == class)
        })
        .map(|((_, name), text)| {
            Resource::new(name.as_str(), text.clone().into_bytes())
                .with_sources(vec![Source::from(format!("Text/{name}"))])
        })
        .collect()
}

macro_rules! generator {
    ($url:expr, $facts:expr) => {
        Registration::new($url, module_path!(), $facts, || {
            boxed::<Shelf>(|texts: &Texts, class: &String, interest: &Interest| {
                generate($url, texts, class, interest)
            })
        })
    };
}

pub(crate) fn registry() -> Registry<Shelf> {
    Registry::new([
        generator!(CDS, TypeFacts::CLUSTERS),
        generator!(EDS, TypeFacts::ENDPOINTS),
        generator!(LDS, TypeFacts::LISTENERS),
        generator!(RDS, TypeFacts::ROUTES),
        generator!(ECHO, TypeFacts::TRANSIENT),
    ])
    .unwrap()
}

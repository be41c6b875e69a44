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
/// Not a type: a text of this kind is added to all listeners.
pub(crate) const FILTER: &str = "filter";
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
        let in_memory = node.id.starts_with("memory");
        assert_ne!(
            peer.address.is_some(),
            in_memory,
            "of TCP the peer is known"
        );
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
        if type_url == LDS && change.update.iter().any(|(t, _)| *t == FILTER) {
            return Touched::Everything;
        }
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

    fn may_set_aside(&self, object: &Source) -> bool {
        object.starts_with("Filter/")
    }

    fn set_aside(&self, texts: &Arc<Texts>, objects: &BTreeSet<Source>) -> Option<Arc<Texts>> {
        let mut without = (**texts).clone();
        without.texts.retain(|(t, name), _| {
            *t != FILTER || !objects.contains(format!("Filter/{name}").as_str())
        });
        (without.texts.len() < texts.texts.len()).then(|| Arc::new(without))
    }

    fn changes(&self, change: &Change<'_, Self>, object: &Source) -> bool {
        change
            .update
            .iter()
            .any(|(t, name)| *t == FILTER && **object == format!("Filter/{name}"))
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
            let filters = texts
                .texts
                .iter()
                .filter(|((t, _), _)| type_url == LDS && *t == FILTER);
            let mut sources = vec![Source::from(format!("Text/{name}"))];
            let mut body = text.clone();
            for ((_, filter), text) in filters {
                sources.push(Source::from(format!("Filter/{filter}")));
                body = format!("{body}+{text}");
            }
            Resource::new(name.as_str(), body.into_bytes()).with_sources(sources)
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

//! What clusters and listeners refer to, found once for each distinct resource.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use envoy_types::pb::envoy::config::cluster::v3::{Cluster, cluster};
use envoy_types::pb::envoy::config::listener::v3::{Filter, Listener, filter};
use envoy_types::pb::envoy::extensions::filters::network::http_connection_manager::v3::{
    HttpConnectionManager, http_connection_manager::RouteSpecifier,
};
use prost::Message as _;
use xxhash_rust::xxh3::xxh3_64;

pub(super) const CLUSTER: &str = "type.googleapis.com/envoy.config.cluster.v3.Cluster";
pub(super) const ENDPOINT: &str =
    "type.googleapis.com/envoy.config.endpoint.v3.ClusterLoadAssignment";
pub(super) const LISTENER: &str = "type.googleapis.com/envoy.config.listener.v3.Listener";
pub(super) const ROUTE: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";
/// The types, in the order in which an Envoy asks for them.
pub(super) const TYPES: [&str; 4] = [CLUSTER, ENDPOINT, LISTENER, ROUTE];

/// A name or a version, as a number that is the same for the whole fleet.
pub(super) type Id = u32;

/// Texts by number, and the numbers of texts.
type Texts = (HashMap<Arc<str>, Id>, Vec<Arc<str>>);

/// Gives equal texts equal numbers, so that thousands of clients remember what they have in little
/// memory.
#[derive(Debug, Default)]
pub(super) struct Dictionary {
    known: Mutex<Texts>,
    /// By the hash of the resource.
    references: Mutex<HashMap<u64, Arc<[Id]>>>,
}

impl Dictionary {
    /// Returns the number of a text.
    pub(super) fn id(&self, text: &str) -> Id {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let (ids, texts) = &mut *known;
        if let Some(id) = ids.get(text) {
            return *id;
        }
        let id = Id::try_from(texts.len()).unwrap_or(Id::MAX);
        let text: Arc<str> = text.into();
        texts.push(Arc::clone(&text));
        ids.insert(text, id);
        id
    }

    /// Returns the text of a number.
    pub(super) fn text(&self, id: Id) -> Arc<str> {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.1.get(id as usize).cloned().unwrap_or_default()
    }

    /// Returns the names of the resources of the dependent type that this one refers to.
    pub(super) fn references(&self, type_url: &str, body: &[u8]) -> Arc<[Id]> {
        let hash = xxh3_64(body);
        let known = |hash| {
            let references = self
                .references
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            references.get(&hash).cloned()
        };
        if let Some(ids) = known(hash) {
            return ids;
        }
        let names = match type_url {
            CLUSTER => Cluster::decode(body).map(|cluster| load_assignment(&cluster)),
            LISTENER => Listener::decode(body).map(|listener| routes(&listener)),
            _ => Ok(BTreeSet::new()),
        };
        let names = names.unwrap_or_default();
        let ids: Arc<[Id]> = names.iter().map(|name| self.id(name)).collect();
        let mut references = self
            .references
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        references.insert(hash, Arc::clone(&ids));
        ids
    }
}

/// Returns the type that resources of this one refer to.
pub(super) fn dependent(type_url: &str) -> Option<&'static str> {
    match type_url {
        CLUSTER => Some(ENDPOINT),
        LISTENER => Some(ROUTE),
        _ => None,
    }
}

fn load_assignment(cluster: &Cluster) -> BTreeSet<String> {
    let eds = cluster::DiscoveryType::Eds as i32;
    let is_eds = matches!(
        cluster.cluster_discovery_type,
        Some(cluster::ClusterDiscoveryType::Type(kind)) if kind == eds
    );
    let service = cluster
        .eds_cluster_config
        .as_ref()
        .map(|eds| eds.service_name.clone());
    let name = service
        .filter(|name| !name.is_empty())
        .unwrap_or_else(|| cluster.name.clone());
    is_eds.then_some(name).into_iter().collect()
}

fn routes(listener: &Listener) -> BTreeSet<String> {
    let chains = listener
        .filter_chains
        .iter()
        .chain(&listener.default_filter_chain);
    chains
        .flat_map(|chain| &chain.filters)
        .filter_map(route_config)
        .collect()
}

fn route_config(filter: &Filter) -> Option<String> {
    let filter::ConfigType::TypedConfig(any) = filter.config_type.as_ref()? else {
        return None;
    };
    if !any.type_url.ends_with(".HttpConnectionManager") {
        return None;
    }
    match HttpConnectionManager::decode(&*any.value)
        .ok()?
        .route_specifier?
    {
        RouteSpecifier::Rds(rds) => Some(rds.route_config_name),
        _ => None,
    }
}

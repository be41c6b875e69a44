//! The world that the xDS server serves: an Istio mesh.

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::Node as EnvoyNode;
use model::{Proxy, PushRequest, Resolution, ServiceKey};
use pushctx::{ClassKey, PushContext};
use tonic::Status;
use xds::{Change, Peer, Touched, World, type_url};

use crate::node;

/// An Istio mesh as a [`World`]: snapshots are push contexts, clients are proxies.
#[derive(Clone, Copy, Default, Debug)]
pub struct Mesh;

/// What changed from one snapshot to the next.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Update(pub PushRequest);

impl World for Mesh {
    type Snapshot = PushContext;
    type Client = Proxy;
    type Class = Arc<ClassKey>;
    type Update = Update;

    async fn admit(
        &self,
        _snapshot: &PushContext,
        node: &EnvoyNode,
        _peer: &Peer,
    ) -> Result<Proxy, Status> {
        Proxy::parse(&node::from_envoy(node))
            .map_err(|error| Status::invalid_argument(error.to_string()))
    }

    fn classify(&self, snapshot: &PushContext, client: &Proxy) -> Arc<ClassKey> {
        snapshot.classify(client)
    }

    fn regroups(&self, change: &Change<'_, Self>) -> bool {
        !change.update.0.endpoints_only()
    }

    fn touched(
        &self,
        change: &Change<'_, Self>,
        _class: &Arc<ClassKey>,
        type_url: &str,
    ) -> Touched {
        let request = &change.update.0;
        if !request.endpoints_only() || type_url == type_url::ENDPOINT {
            return Touched::Everything;
        }
        // Routes never name endpoints. Clusters, listeners and name tables do, for services whose
        // endpoints are not asked for by name.
        let shows_endpoints = type_url != type_url::ROUTE
            && request
                .endpoints
                .iter()
                .any(|key| shows_endpoints(change.to, key));
        if shows_endpoints {
            Touched::Everything
        } else {
            Touched::Nothing
        }
    }

    fn root(&self, snapshot: &PushContext) -> Arc<str> {
        snapshot.state().root.clone()
    }
}

/// Tells whether other resources than load assignments show the endpoints of a service.
fn shows_endpoints(snapshot: &PushContext, key: &ServiceKey) -> bool {
    snapshot
        .services()
        .get(&key.hostname, &key.namespace)
        .is_none_or(|service| service.resolution != Resolution::ClientSideLb)
}

//! The world that the xDS server serves: an Istio mesh.

use std::{collections::BTreeSet, sync::Arc};

use envoy_types::pb::envoy::config::core::v3::Node as EnvoyNode;
use model::{
    ConfigKey, Kind, Proxy, PushRequest, Resolution, ServiceKey, proxy::Identity,
    spiffe::Authenticated,
};
use pushctx::{ClassKey, PushContext};
use tonic::Status;
use xds::{Change, Peer, Source, Touched, World, type_url};

use crate::{node, relevance, sds::relevance as secrets};

/// An Istio mesh as a [`World`]: snapshots are push contexts, clients are proxies.
#[derive(Clone, Copy, Default, Debug)]
pub struct Mesh {
    /// Proxies are who they claim to be. For networks that nobody else reaches: whoever connects may
    /// otherwise ask for the keys of any namespace. Without it a proxy that has proved nothing gets
    /// no secrets.
    pub trusts_claims: bool,
}

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
        peer: &Peer,
    ) -> Result<Proxy, Status> {
        let mut proxy = Proxy::parse(&node::from_envoy(node))
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        proxy.identity = match peer.extensions.get::<Authenticated>() {
            Some(proved) => {
                let who = proved.verify(&proxy).ok_or_else(|| {
                    Status::permission_denied("no proved identity is that of the node")
                })?;
                Some(Identity {
                    namespace: who.namespace().clone(),
                    service_account: who.service_account().clone(),
                    ..Identity::claimed(&proxy)
                })
            }
            None => self.trusts_claims.then(|| Identity::claimed(&proxy)),
        };
        Ok(proxy)
    }

    fn classify(&self, snapshot: &PushContext, client: &Proxy) -> Arc<ClassKey> {
        snapshot.classify(client)
    }

    fn regroups(&self, change: &Change<'_, Self>) -> bool {
        !change.update.0.endpoints_only()
    }

    fn touched(&self, change: &Change<'_, Self>, class: &Arc<ClassKey>, type_url: &str) -> Touched {
        let request = &change.update.0;
        if let Some(touched) = secrets::touched(change, type_url) {
            return touched;
        }
        // Routes never name endpoints. Clusters, listeners and name tables do, for services whose
        // endpoints are not asked for by name.
        let hides_endpoints = type_url == type_url::ROUTE
            || (type_url != type_url::ENDPOINT
                && !request
                    .endpoints
                    .iter()
                    .any(|key| shows_endpoints(change.to, key)));
        if request.endpoints_only() && hides_endpoints {
            return Touched::Nothing;
        }
        match (type_url, change.from) {
            (type_url::CLUSTER | type_url::ENDPOINT, Some(from)) => {
                relevance::of_hosts(from, change.to, class)
            }
            _ => Touched::Everything,
        }
    }

    fn root(&self, snapshot: &PushContext) -> Arc<str> {
        snapshot.state().root.clone()
    }

    /// Patches may go: they reach into resources of other owners, and the one that proxies reject
    /// has never been in force. Policies stay whatever happens.
    fn may_set_aside(&self, object: &Source) -> bool {
        patch_key(object).is_some()
    }

    fn set_aside(
        &self,
        snapshot: &Arc<PushContext>,
        objects: &BTreeSet<Source>,
    ) -> Option<Arc<PushContext>> {
        let mut state = snapshot.state().clone();
        let keys = objects.iter().filter_map(|object| patch_key(object));
        let changed: BTreeSet<ConfigKey> = keys
            .filter(|key| state.objects.remove(key).is_some())
            .collect();
        let request = PushRequest {
            changed,
            ..PushRequest::default()
        };
        (!request.is_empty()).then(|| Arc::new(snapshot.next(state, &request)))
    }

    fn changes(&self, change: &Change<'_, Self>, object: &Source) -> bool {
        // A forced change need not say what it is about.
        let before = |key: &ConfigKey| change.from?.state().objects.get(key);
        patch_key(object).is_none_or(|key| before(&key) != change.to.state().objects.get(&key))
    }
}

/// Reads the key of an `EnvoyFilter` from its form among the sources of a resource.
fn patch_key(source: &str) -> Option<ConfigKey> {
    let (namespace, name) = source.strip_prefix("EnvoyFilter/")?.split_once('/')?;
    Some(ConfigKey::new(Kind::EnvoyFilter, namespace, name))
}

/// Tells whether other resources than load assignments show the endpoints of a service.
fn shows_endpoints(snapshot: &PushContext, key: &ServiceKey) -> bool {
    snapshot
        .services()
        .get(&key.hostname, &key.namespace)
        .is_none_or(|service| service.resolution != Resolution::ClientSideLb)
}

#[cfg(test)]
mod tests {
    use model::{MeshState, Object, api, config::Config};

    use super::*;

    /// A snapshot with patches `a` and `b`, of which `a` has so many patches.
    fn snapshot(patches: usize) -> Arc<PushContext> {
        let mut state = MeshState::default();
        for (name, patches) in [("a", patches), ("b", 1)] {
            let spec = api::EnvoyFilter {
                config_patches: vec![api::envoy_filter::ConfigPatch::default(); patches],
                ..api::EnvoyFilter::default()
            };
            let meta = model::config::Meta {
                namespace: "ns".into(),
                name: name.into(),
                ..Default::default()
            };
            state
                .objects
                .insert(Object::EnvoyFilter(Arc::new(Config { meta, spec })));
        }
        Arc::new(PushContext::build(state))
    }

    fn names(snapshot: &PushContext) -> Vec<String> {
        let filters = snapshot.state().objects.envoy_filters.values();
        filters.map(|filter| filter.meta.name.to_string()).collect()
    }

    /// The service account that a router of namespace `gw` is admitted as; `Err` when it is not.
    #[track_caller]
    fn check_admitted(mesh: Mesh, proved: &[&str], expected: Result<Option<&str>, tonic::Code>) {
        let node = EnvoyNode {
            id: "router~10.0.0.1~gw-0.gw~gw.svc.cluster.local".to_owned(),
            ..EnvoyNode::default()
        };
        let mut peer = Peer::default();
        if !proved.is_empty() {
            let identities = proved.iter().map(|id| id.parse().unwrap()).collect();
            peer.extensions.insert(Authenticated { identities });
        }
        let context = snapshot(1);
        let mut admission = std::pin::pin!(mesh.admit(&context, &node, &peer));
        let mut nobody_waits = std::task::Context::from_waker(std::task::Waker::noop());
        let std::task::Poll::Ready(admitted) = admission.as_mut().poll(&mut nobody_waits) else {
            panic!("admission waits for nothing");
        };
        let found = admitted.map(|proxy| proxy.identity.map(|i| i.service_account.to_string()));
        let found = found.map_err(|status| status.code());
        let expected = expected.map(|account| account.map(str::to_owned));
        assert_eq!(found, expected);
    }

    #[test]
    fn proxies_are_who_they_prove_to_be() {
        let own = "spiffe://cluster.local/ns/gw/sa/gateway";
        let other = "spiffe://cluster.local/ns/other/sa/gateway";
        let denied = Err(tonic::Code::PermissionDenied);
        check_admitted(Mesh::default(), &[], Ok(None));
        check_admitted(Mesh::default(), &[own], Ok(Some("gateway")));
        check_admitted(Mesh::default(), &[other], denied);
        let trusting = Mesh {
            trusts_claims: true,
        };
        check_admitted(trusting, &[], Ok(Some("")));
        check_admitted(trusting, &[other], denied);
    }

    #[test]
    fn patches_can_be_set_aside_and_nothing_else() {
        let may = |object: &str| Mesh::default().may_set_aside(&object.into());
        assert!(may("EnvoyFilter/ns/a"));
        assert!(!may("AuthorizationPolicy/ns/a"));
        let aside = |objects: &[&str]| {
            let objects = objects.iter().map(|object| Source::from(*object)).collect();
            Mesh::default()
                .set_aside(&snapshot(1), &objects)
                .map(|without| names(&without))
        };
        assert_eq!(aside(&["EnvoyFilter/ns/a"]), Some(vec!["b".to_owned()]));
        assert_eq!(aside(&["EnvoyFilter/ns/c", "Service/ns/a"]), None);
    }

    #[test]
    fn a_patch_comes_back_when_it_changes() {
        let (one, two) = (snapshot(1), snapshot(2));
        let update = Update::default();
        let check = |from: &PushContext, to: &PushContext, object: &str, expected: bool| {
            let change = Change {
                from: Some(from),
                to,
                update: &update,
            };
            assert_eq!(
                Mesh::default().changes(&change, &object.into()),
                expected,
                "{object}"
            );
        };
        check(&one, &two, "EnvoyFilter/ns/a", true);
        check(&one, &two, "EnvoyFilter/ns/b", false);
        check(&one, &one, "EnvoyFilter/ns/a", false);
    }
}

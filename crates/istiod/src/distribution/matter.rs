//! To whom a configuration matters.

use std::{collections::BTreeSet, sync::Arc};

use model::{Kind, MeshState, Proxy};
use pushctx::PushContext;
use xds::Source;

use super::Key;

/// The annotation by which the translation names the Gateway API object behind an object.
const PARENTS: &str = "internal.istio.io/parents";

/// How it is known to whom a configuration matters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Matter {
    /// To the clients that hold resources of these objects.
    Objects(Vec<Source>),
    /// To all clients of a namespace; `None` for all.
    Namespace(Option<Arc<str>>),
    /// To nobody.
    Nobody,
}

impl Matter {
    /// Tells whether it can matter to a client.
    pub(super) fn concerns(&self, proxy: &Proxy) -> bool {
        match self {
            Self::Objects(_) | Self::Namespace(None) => true,
            Self::Nobody => false,
            Self::Namespace(Some(namespace)) => proxy.namespace == *namespace,
        }
    }
}

/// Finds out to whom a configuration matters. `arrived` is the state that has it.
pub(super) fn of(key: &Key, snapshot: &PushContext, arrived: &MeshState) -> Matter {
    let state = snapshot.state();
    let config = match key {
        Key::Mesh => return Matter::Namespace(None),
        Key::Endpoints(service) => {
            let known = snapshot.services();
            let service = known.get(&service.hostname, &service.namespace);
            let source = service.map(|service| service.source.to_string().into());
            return objects(source.into_iter().collect());
        }
        Key::Config(config) => config,
    };
    let everybody = || {
        let everywhere = *config.namespace == *state.root_namespace();
        Matter::Namespace((!everywhere).then(|| config.namespace.clone()))
    };
    match config.kind {
        // Resources name these as their sources.
        Kind::Service
        | Kind::Secret
        | Kind::ConfigMap
        | Kind::ServiceEntry
        | Kind::VirtualService
        | Kind::DestinationRule
        | Kind::Gateway
        | Kind::EnvoyFilter
        | Kind::PeerAuthentication
        | Kind::RequestAuthentication
        | Kind::AuthorizationPolicy
        | Kind::WasmPlugin
        | Kind::TrafficExtension => Matter::Objects(vec![key.source()]),
        // They decide what a namespace sees, and leave no name behind.
        Kind::Sidecar | Kind::Telemetry | Kind::ProxyConfig => everybody(),
        Kind::WorkloadEntry => {
            let entry = arrived.objects.workload_entries.get(&name(config));
            let entry = entry.or_else(|| state.objects.workload_entries.get(&name(config)));
            let address = entry.map(|entry| entry.spec.address.clone());
            let instances = address.iter().flat_map(|a| state.instances_at(a));
            let sources: BTreeSet<Source> = instances
                .filter_map(|instance| state.services.get(&instance.service))
                .map(|service| service.source.to_string().into())
                .collect();
            objects(sources)
        }
        Kind::HttpRoute
        | Kind::GrpcRoute
        | Kind::TcpRoute
        | Kind::TlsRoute
        | Kind::KubernetesGateway
        | Kind::ListenerSet
        | Kind::BackendTlsPolicy => objects(translated(state, config)),
        Kind::Ingress
        | Kind::IngressClass
        | Kind::GatewayClass
        | Kind::ReferenceGrant
        | Kind::Namespace
        | Kind::Node
        | Kind::Pod
        | Kind::EndpointSlice => Matter::Namespace(None),
        Kind::WorkloadGroup => Matter::Nobody,
    }
}

/// Of what stands for nothing now it is not known what stood for it before: then it takes everybody.
fn objects(sources: BTreeSet<Source>) -> Matter {
    if sources.is_empty() {
        Matter::Namespace(None)
    } else {
        Matter::Objects(sources.into_iter().collect())
    }
}

fn name(key: &model::ConfigKey) -> model::NamespacedName {
    model::NamespacedName::new(key.namespace.clone(), key.name.clone())
}

/// The objects that stand for a Gateway API object.
fn translated(state: &MeshState, key: &model::ConfigKey) -> BTreeSet<Source> {
    let parent = format!("{}/{}.{}", key.kind.name(), key.name, key.namespace);
    let whole = |text: &str| {
        text.split(',').any(|part| {
            // Of a gateway the listener is named too.
            part == parent || gateway_of(part).as_deref() == Some(&*parent)
        })
    };
    let tables = &state.objects;
    let mut sources = BTreeSet::new();
    let mut note = |kind: Kind, meta: &model::Meta| {
        if meta
            .annotations
            .get(PARENTS)
            .is_some_and(|text| whole(text))
        {
            let key = model::ConfigKey::new(kind, meta.namespace.clone(), meta.name.clone());
            sources.insert(Source::from(key.to_string()));
        }
    };
    for object in tables.virtual_services.values() {
        note(Kind::VirtualService, &object.meta);
    }
    for object in tables.gateways.values() {
        note(Kind::Gateway, &object.meta);
    }
    for object in tables.destination_rules.values() {
        note(Kind::DestinationRule, &object.meta);
    }
    sources
}

/// `Gateway/NAME/LISTENER.NAMESPACE` names a listener; its gateway is `Gateway/NAME.NAMESPACE`.
fn gateway_of(parent: &str) -> Option<String> {
    let (kind, rest) = parent.split_once('/')?;
    let (name, listener) = rest.split_once('/')?;
    let (_, namespace) = listener.rsplit_once('.')?;
    Some(format!("{kind}/{name}.{namespace}"))
}

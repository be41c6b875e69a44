//! To whom a configuration matters.

use std::{collections::BTreeSet, sync::Arc};

use generators::Mesh;
use model::{ConfigKey, Kind, MeshState, Meta, Proxy};
use pushctx::{ClassKey, PushContext};
use xds::{Concern, Question, Source};

use super::Key;

/// The annotation by which the translation names the Gateway API object behind an object.
const PARENTS: &str = "internal.istio.io/parents";

/// How it is known to whom a configuration matters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Matter {
    /// To the clients that hold resources of these objects.
    Objects(Vec<Source>),
    /// To the classes of which the object is selected; of its namespace, or of all with `None`, it may
    /// have been.
    Selected(ConfigKey, Option<Arc<str>>),
    /// To all clients of a namespace; `None` for all.
    Namespace(Option<Arc<str>>),
    /// To nobody.
    Nobody,
}

impl Matter {
    /// Asks about it: `survey` gets the question that stands for it, about what was published since.
    pub(super) fn ask<T>(
        &self,
        snapshot: &PushContext,
        since: u64,
        survey: impl FnOnce(&Question<'_, Mesh>) -> T,
    ) -> T {
        let clients = |proxy: &Proxy| match self {
            Self::Namespace(None) => true,
            Self::Namespace(Some(namespace)) => proxy.namespace == *namespace,
            Self::Objects(_) | Self::Selected(..) | Self::Nobody => false,
        };
        let classes = |class: &Arc<ClassKey>| self.concern(class, snapshot);
        let matter = match self {
            Self::Objects(objects) => xds::Matter::Objects(objects),
            Self::Selected(..) => xds::Matter::Classes(&classes),
            Self::Namespace(_) | Self::Nobody => xds::Matter::Clients(&clients),
        };
        survey(&Question { matter, since })
    }

    fn concern(&self, class: &Arc<ClassKey>, snapshot: &PushContext) -> Concern {
        let Self::Selected(key, within) = self else {
            return Concern::None;
        };
        let is_it = |meta: &Meta| (&meta.namespace, &meta.name) == (&key.namespace, &key.name);
        let selected = match key.kind {
            Kind::Sidecar => {
                let scope = &snapshot.resolve(class).scope;
                scope.sidecar().is_some_and(|sidecar| is_it(&sidecar.meta))
            }
            Kind::Telemetry => {
                let all = snapshot.telemetries(&snapshot.resolve(class).workload());
                all.iter().any(|telemetry| is_it(&telemetry.meta))
            }
            _ => false,
        };
        let possible = |namespace: &Arc<str>| class.proxy.namespace == *namespace;
        if selected {
            Concern::Present
        } else if within.as_ref().is_none_or(possible) {
            Concern::Former
        } else {
            Concern::None
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
            let source = service.map(|service| service.source.key().to_string().into());
            return objects(source.into_iter().collect());
        }
        Key::Config(config) => config,
    };
    let within = || {
        let everywhere = *config.namespace == *state.root_namespace();
        (!everywhere).then(|| config.namespace.clone())
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
        // They decide what a workload sees, and leave no name behind.
        Kind::Sidecar | Kind::Telemetry => Matter::Selected(config.clone(), within()),
        Kind::WorkloadEntry => {
            let entry = arrived.objects.workload_entries.get(&name(config));
            let entry = entry.or_else(|| state.objects.workload_entries.get(&name(config)));
            let address = entry.map(|entry| entry.spec.address.clone());
            let instances = address.iter().flat_map(|a| state.instances_at(a));
            let sources: BTreeSet<Source> = instances
                .filter_map(|instance| state.services.get(&instance.service))
                .map(|service| service.source.key().to_string().into())
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
        // Connected proxies have their settings already: these are for those that start.
        Kind::WorkloadGroup | Kind::ProxyConfig => Matter::Nobody,
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

fn name(key: &ConfigKey) -> model::NamespacedName {
    model::NamespacedName::new(key.namespace.clone(), key.name.clone())
}

/// The objects that stand for a Gateway API object.
fn translated(state: &MeshState, key: &ConfigKey) -> BTreeSet<Source> {
    let parent = format!("{}/{}.{}", key.kind.name(), key.name, key.namespace);
    let whole = |text: &str| {
        text.split(',').any(|part| {
            // Of a gateway the listener is named too.
            part == parent || gateway_of(part).as_deref() == Some(&*parent)
        })
    };
    let tables = &state.objects;
    let mut sources = BTreeSet::new();
    let mut note = |kind: Kind, meta: &Meta| {
        if meta
            .annotations
            .get(PARENTS)
            .is_some_and(|text| whole(text))
        {
            let key = ConfigKey::new(kind, meta.namespace.clone(), meta.name.clone());
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

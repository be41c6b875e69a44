//! What translation decided about each object: what its status is made of.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::{Kind, NamespacedName};

/// Why an object, or a part of it, is not served as it says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The reason, by the name that the Gateway API gives it.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        Self { reason, message }
    }
}

/// Whether something holds, or why not.
pub type Verdict = Result<(), Refusal>;

/// Keeps the first refusal.
pub(crate) fn note(verdict: &mut Verdict, found: Verdict) {
    if verdict.is_ok() {
        *verdict = found;
    }
}

/// What became of a listener.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenerReport {
    /// Its name.
    pub name: String,
    /// Its port.
    pub port: u32,
    /// Kinds of routes that may attach.
    pub kinds: Vec<&'static str>,
    /// Whether it is one that can be served.
    pub accepted: Verdict,
    /// Whether no other listener has its place.
    pub alone: Verdict,
    /// Whether what it refers to is there and may be used.
    pub resolved: Verdict,
    /// Whether proxies are told to serve it.
    pub served: bool,
    /// How many routes are attached.
    pub attached: u32,
}

/// What is deployed for a Gateway that does not say where it is reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Deployment {
    /// The template by which it is made: `kube-gateway` or `waypoint`.
    pub template: &'static str,
    /// Name of the workload and its service.
    pub name: String,
    /// Service account of the workload.
    pub service_account: String,
    /// Ports of the service, each once.
    pub ports: Vec<DeployedPort>,
}

/// A port of the service of a Gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DeployedPort {
    /// Its name, after the listener.
    pub name: String,
    /// Its number.
    pub port: u32,
    /// The listener's protocol in lowercase.
    pub protocol: String,
}

/// What became of a Gateway.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct GatewayReport {
    /// The generation that this was decided by.
    pub generation: i64,
    /// Whether it can be served.
    pub accepted: Verdict,
    /// Whether what it refers to is there and may be used; `None` when it refers to nothing.
    pub resolved: Option<Verdict>,
    /// Host names of the services by which it is reached.
    pub services: Vec<String>,
    /// What is deployed for it; `None` where that is its owner's part.
    pub deployment: Option<Deployment>,
    /// Where nothing outside leads to it, its own address is that of its service, not the name.
    pub by_address: bool,
    /// Its listeners.
    pub listeners: Vec<ListenerReport>,
    /// How many `ListenerSet`s are attached.
    pub listener_sets: u32,
}

/// What became of a `ListenerSet`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ListenerSetReport {
    /// The generation that this was decided by.
    pub generation: i64,
    /// Whether its Gateway takes it.
    pub accepted: Verdict,
    /// Its listeners; none when it is not taken.
    pub listeners: Vec<ListenerReport>,
}

/// What became of one reference of a route to what it attaches to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParentReport {
    /// Its place among the references.
    pub reference: usize,
    /// Whether the route is attached.
    pub accepted: Verdict,
    /// Whether all that the route refers to is there and may be used.
    pub resolved: Verdict,
}

/// What became of a route.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RouteReport {
    /// The generation that this was decided by.
    pub generation: i64,
    /// Its references, as far as they lead to something that we configure.
    pub parents: Vec<ParentReport>,
}

/// What became of a `BackendTLSPolicy`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PolicyReport {
    /// The generation that this was decided by.
    pub generation: i64,
    /// Whether it applies to one of its targets at least.
    pub accepted: Verdict,
    /// Whether the certificates that it names can be used.
    pub resolved: Verdict,
    /// Gateways whose routes lead to its targets. Where there are none, it is for clients in the mesh.
    pub gateways: BTreeSet<NamespacedName>,
}

/// What was decided about all objects of which statuses are written. What did not change is shared with
/// the reports before.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Reports {
    /// Classes that we serve.
    pub classes: BTreeSet<NamespacedName>,
    /// Gateways of the Gateway API.
    pub gateways: BTreeMap<NamespacedName, Arc<GatewayReport>>,
    /// Further listeners of theirs.
    pub listener_sets: BTreeMap<NamespacedName, Arc<ListenerSetReport>>,
    /// Routes of all kinds.
    pub routes: BTreeMap<(Kind, NamespacedName), Arc<RouteReport>>,
    /// Policies.
    pub policies: BTreeMap<NamespacedName, Arc<PolicyReport>>,
    /// Ingresses that we serve.
    pub ingresses: BTreeSet<NamespacedName>,
}

impl Reports {
    /// Shares what is the same as before.
    pub(crate) fn share(&mut self, before: &Self) {
        fn each<K: Ord, V: PartialEq>(now: &mut BTreeMap<K, Arc<V>>, before: &BTreeMap<K, Arc<V>>) {
            for (key, value) in now {
                if let Some(known) = before.get(key).filter(|known| *known == value) {
                    *value = known.clone();
                }
            }
        }
        each(&mut self.gateways, &before.gateways);
        each(&mut self.listener_sets, &before.listener_sets);
        each(&mut self.routes, &before.routes);
        each(&mut self.policies, &before.policies);
    }
}

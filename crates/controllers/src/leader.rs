//! What the leader does: it follows the state of the mesh and has written what follows from it.

use std::collections::{BTreeMap, BTreeSet};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client};
use model::{
    MeshState,
    api::{ServiceEntry, common::LabelSelector, kubernetes::Namespace},
    kind::Table,
};
use serde_json::json;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use crate::{
    allocation::{Allocator, Assignment},
    follow::{Seen, follow, named},
    roots::{self, Found},
    writer::{
        Part, Resource, Target, Wanted,
        driver::{self, Order},
    },
};

/// Events of ConfigMaps that may wait. The watch waits when the leader is behind.
const EVENTS: usize = 64;
/// Orders that may wait. Each holds all that follows from one event.
const ORDERS: usize = 16;

/// The kind whose statuses hold addresses.
pub const SERVICE_ENTRY: Resource = Resource {
    group: "networking.istio.io",
    version: "v1",
    kind: "ServiceEntry",
    plural: "serviceentries",
};

/// What the leader reads of the mesh.
#[derive(Clone, Default, Debug)]
pub struct View {
    /// Namespaces.
    pub namespaces: Table<Namespace>,
    /// Which namespaces belong to the mesh; all, if there are none.
    pub selectors: Vec<LabelSelector>,
    /// ServiceEntries.
    pub service_entries: Table<ServiceEntry>,
}

impl View {
    /// The part of a state that the leader reads.
    pub fn of(state: &MeshState) -> Self {
        Self {
            namespaces: state.objects.namespaces.clone(),
            selectors: state.mesh.discovery_selectors.clone(),
            service_entries: state.objects.service_entries.clone(),
        }
    }
}

/// What the leader is to do.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Duties {
    /// The name of the ConfigMap with the root certificate; `None` for none.
    pub root_config_map: Option<String>,
    /// The ranges that hosts of ServiceEntries get addresses of, IPv4 and IPv6; `None` for none.
    pub addresses: Option<(IpNet, IpNet)>,
}

/// What the leader follows.
#[derive(Debug)]
pub struct Inputs {
    /// The state of the mesh; `None` while it is not known.
    pub views: watch::Receiver<Option<View>>,
    /// The root certificates in PEM form.
    pub roots: watch::Receiver<String>,
    /// Whether this replica leads.
    pub leads: watch::Receiver<bool>,
    /// All that others want to have written while this replica leads: the statuses of gateways and routes.
    pub wanted: watch::Receiver<Vec<Wanted>>,
}

/// Does the duties whenever this replica leads, until it is told to stop.
pub async fn run(client: Client, duties: Duties, mut inputs: Inputs, stop: CancellationToken) {
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            led = inputs.leads.wait_for(|leads| *leads) => if led.is_err() { return },
        }
        // Everything that belongs to this term ends with it.
        let term = stop.child_token();
        let mut tasks = JoinSet::new();
        let (orders, inbox) = mpsc::channel(ORDERS);
        tasks.spawn(driver::run(client.clone(), inbox, term.clone()));
        let (seen, maps) = mpsc::channel(EVENTS);
        if let Some(name) = duties.root_config_map.clone() {
            let (api, term) = (Api::all(client.clone()), term.clone());
            tasks.spawn(async move { follow(api, &named(&name), seen, term).await });
        }
        let ended = Term::new(&duties, orders)
            .run(&mut inputs, maps, &stop)
            .await;
        term.cancel();
        while tasks.join_next().await.is_some() {}
        if ended == Ended::ForGood {
            return;
        }
    }
}

/// Whether there may be another term.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ended {
    /// Another replica leads.
    ForNow,
    /// The process stops.
    ForGood,
}

/// One time of leading.
#[derive(Debug)]
struct Term {
    allocator: Option<Allocator>,
    root_config_map: Option<String>,
    /// ConfigMaps by namespace; `None` while they are not known.
    found: Option<BTreeMap<String, Found>>,
    /// Where they belong.
    namespaces: BTreeSet<String>,
    view: View,
    /// What others wanted last.
    wished: BTreeMap<Target, Wanted>,
    orders: mpsc::Sender<Order>,
}

impl Term {
    fn new(duties: &Duties, orders: mpsc::Sender<Order>) -> Self {
        Self {
            allocator: duties.addresses.map(|(v4, v6)| Allocator::new(v4, v6)),
            root_config_map: duties.root_config_map.clone(),
            found: None,
            namespaces: BTreeSet::new(),
            view: View::default(),
            wished: BTreeMap::new(),
            orders,
        }
    }

    async fn run(
        mut self,
        inputs: &mut Inputs,
        mut maps: mpsc::Receiver<Seen<ConfigMap>>,
        stop: &CancellationToken,
    ) -> Ended {
        inputs.views.mark_changed();
        inputs.wanted.mark_changed();
        let mut following = self.root_config_map.is_some();
        loop {
            let done = tokio::select! {
                // Whoever does not lead any more writes nothing more.
                biased;
                () = stop.cancelled() => return Ended::ForGood,
                changed = inputs.leads.changed() => {
                    if changed.is_err() {
                        return Ended::ForGood;
                    }
                    if !*inputs.leads.borrow_and_update() {
                        return Ended::ForNow;
                    }
                    true
                }
                seen = maps.recv(), if following => if let Some(seen) = seen {
                    self.note(seen, inputs).await
                } else {
                    following = false;
                    true
                },
                Ok(()) = inputs.views.changed() => {
                    let view = inputs.views.borrow_and_update().clone();
                    match view {
                        Some(view) => self.look(view, inputs).await,
                        None => true,
                    }
                }
                Ok(()) = inputs.roots.changed() => {
                    let all = self.namespaces.clone();
                    self.roots(inputs, &all).await
                }
                Ok(()) = inputs.wanted.changed() => {
                    let wanted = inputs.wanted.borrow_and_update().clone();
                    self.wish(wanted).await
                }
            };
            if !done {
                return Ended::ForGood;
            }
        }
    }

    /// Takes in what is known of ConfigMaps.
    async fn note(&mut self, seen: Seen<ConfigMap>, inputs: &mut Inputs) -> bool {
        let namespace = |map: &ConfigMap| map.metadata.namespace.clone().unwrap_or_default();
        let found = self.found.get_or_insert_default();
        let (concerned, gone): (BTreeSet<_>, Vec<_>) = match seen {
            Seen::All(maps) => {
                let maps = maps.iter().map(|map| (namespace(map), Found::of(map)));
                let earlier = std::mem::replace(found, maps.collect());
                let gone = earlier
                    .into_keys()
                    .filter(|namespace| !found.contains_key(namespace));
                (self.namespaces.clone(), gone.collect())
            }
            Seen::Put(map) => {
                found.insert(namespace(&map), Found::of(&map));
                ([namespace(&map)].into(), Vec::new())
            }
            Seen::Gone(map) => {
                found.remove(&namespace(&map));
                ([namespace(&map)].into(), vec![namespace(&map)])
            }
        };
        // What was written there is not there any more.
        self.forget(self.targets(&gone)).await && self.roots(inputs, &concerned).await
    }

    /// The ConfigMaps of namespaces.
    fn targets(&self, namespaces: &[String]) -> Vec<Target> {
        let name = self.root_config_map.iter();
        name.flat_map(|name| namespaces.iter().map(move |ns| roots::target(ns, name)))
            .collect()
    }

    /// Takes in another state of the mesh.
    async fn look(&mut self, view: View, inputs: &mut Inputs) -> bool {
        let earlier = std::mem::replace(&mut self.view, view);
        let allocator = self.allocator.as_mut();
        let assigned = allocator.map(|allocator| allocator.update(&self.view.service_entries));
        let wanted = assigned.into_iter().flatten().map(status).collect();
        if !self.order(wanted).await {
            return false;
        }
        let View {
            namespaces,
            selectors,
            ..
        } = &self.view;
        if namespaces.ptr_eq(&earlier.namespaces) && *selectors == earlier.selectors {
            return true;
        }
        let now: BTreeSet<String> = roots::belongs(namespaces, selectors)
            .map(str::to_owned)
            .collect();
        let new: BTreeSet<String> = now.difference(&self.namespaces).cloned().collect();
        let gone: Vec<String> = self.namespaces.difference(&now).cloned().collect();
        self.namespaces = now;
        self.forget(self.targets(&gone)).await && self.roots(inputs, &new).await
    }

    /// Sees that some namespaces have the root certificate.
    async fn roots(&mut self, inputs: &mut Inputs, namespaces: &BTreeSet<String>) -> bool {
        let (Some(found), Some(name)) = (&self.found, &self.root_config_map) else {
            return true;
        };
        let roots = inputs.roots.borrow_and_update().clone();
        if roots.is_empty() {
            return true;
        }
        let concerned = namespaces
            .intersection(&self.namespaces)
            .map(String::as_str);
        let wanted = roots::missing(concerned, found, name, &roots);
        self.order(wanted).await
    }

    /// Takes in all that others want; what they do not want any more stays as it is.
    async fn wish(&mut self, wanted: Vec<Wanted>) -> bool {
        let wished: BTreeMap<_, _> = wanted
            .into_iter()
            .map(|wanted| (wanted.target.clone(), wanted))
            .collect();
        let earlier = std::mem::replace(&mut self.wished, wished);
        let gone = earlier
            .keys()
            .filter(|target| !self.wished.contains_key(*target));
        let new = self
            .wished
            .iter()
            .filter(|(target, wanted)| earlier.get(target) != Some(wanted));
        self.forget(gone.cloned().collect()).await
            && self
                .order(new.map(|(_, wanted)| wanted.clone()).collect())
                .await
    }

    async fn order(&self, wanted: Vec<Wanted>) -> bool {
        wanted.is_empty() || self.orders.send(Order::Want(wanted)).await.is_ok()
    }

    async fn forget(&self, targets: Vec<Target>) -> bool {
        targets.is_empty() || self.orders.send(Order::Forget(targets)).await.is_ok()
    }
}

/// The status of a ServiceEntry with its addresses.
fn status(assignment: Assignment) -> Wanted {
    let addresses = assignment.addresses.into_iter();
    let addresses: Vec<_> = addresses
        .map(|(address, host)| json!({"value": address, "host": host}))
        .collect();
    Wanted {
        target: Target {
            resource: SERVICE_ENTRY,
            part: Part::Status,
            namespace: assignment.entry.namespace.to_string(),
            name: assignment.entry.name.to_string(),
        },
        fields: json!({"status": {"addresses": addresses}}),
        seen: Some(assignment.version).filter(|version| !version.is_empty()),
        strict: true,
    }
}

//! Pods that wait: to be ready until proxies have their endpoints, to be gone until proxies are without.
//!
//! [`controllers::pods`] decides, by what is found out here: which services a pod is an endpoint of,
//! what is published of them, and which proxies of all replicas have that. The leader does it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, SystemTime},
};

use controllers::{
    pods::{self, Action, Limits, PodFacts, Presence, Reason, Spread, Waiting},
    wishes::Wishes,
    writer::Wanted,
};
use imbl::ordmap::DiffItem;
use ledger::ShortXxh3;
use model::{
    Config, Health, MeshState, NamespacedName, ServiceEndpoints, ServiceId, ServiceKey, Table,
    api::kubernetes::{Namespace, Pod},
    selects,
};
use tokio::{
    sync::watch,
    time::{Instant, sleep},
};

use super::{
    Distribution, Key,
    answer::{ConfigAnswer, Stage, Standing},
    api, ask,
};

/// Time between two looks while a pod waits.
const LOOK: Duration = Duration::from_millis(100);

/// How long a write may take until it is asked for once more: one that was overtaken by another is not
/// repeated by who writes.
const REPEAT: Duration = Duration::from_secs(3);

/// The part of the process, as [`Wishes`] knows it.
const PART: &str = "pods";

/// Who sees to it that pods wait, and no longer than they have to.
pub(crate) struct Attendant<V> {
    pub(crate) distribution: Distribution,
    pub(crate) limits: Limits,
    pub(crate) wishes: Wishes,
    /// Whether this replica leads.
    pub(crate) leads: watch::Receiver<bool>,
    /// Tells that the state has changed.
    pub(crate) changes: watch::Receiver<V>,
    pub(crate) clock: fn() -> SystemTime,
}

/// What is remembered from look to look, of one time of leading.
#[derive(Default)]
struct Term {
    waiting: Waiting,
    pods: Table<Pod>,
    namespaces: Table<Namespace>,
    /// Services that pods which wait have been endpoints of: the last slice may be gone already.
    services: BTreeMap<NamespacedName, BTreeSet<ServiceKey>>,
    /// The pods whose services have been looked for, in these states: arrived and published.
    searched: BTreeSet<NamespacedName>,
    states: Option<(MeshState, MeshState)>,
    /// What was wanted at the last look, and since when.
    wanted: BTreeMap<(NamespacedName, Action), (Wanted, Instant)>,
}

impl<V> Attendant<V> {
    /// Does that whenever this replica leads, until nobody says any more whether it does.
    pub(crate) async fn run(mut self) {
        loop {
            if self.leads.wait_for(|leads| *leads).await.is_err() {
                return;
            }
            let mut term = Term::default();
            while *self.leads.borrow() {
                let waits = self.look(&mut term).await;
                let woken = async {
                    if waits {
                        // Nobody tells of acknowledgements.
                        sleep(LOOK).await;
                        true
                    } else {
                        self.changes.changed().await.is_ok()
                    }
                };
                tokio::select! {
                    changed = self.leads.changed() => if changed.is_err() { return },
                    woken = woken => if !woken { return },
                }
            }
            self.wishes.set(PART, Vec::new());
        }
    }

    /// Looks once; tells whether a pod waits.
    async fn look(&self, term: &mut Term) -> bool {
        let state = self.distribution.0.latest.lock().clone();
        term.take_in(&state);
        let snapshot = self.distribution.0.snapshots.snapshot();
        let published = snapshot.state().clone();
        drop(snapshot);
        term.search_again_if_changed(&state, &published);
        let mut spreads = BTreeMap::new();
        let mut known = BTreeMap::new();
        let names: Vec<_> = term
            .waiting
            .waiting()
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            let Some(pod) = state.objects.pods.get(&name) else {
                continue;
            };
            let addresses = addresses(pod);
            let services = term.services.entry(name.clone()).or_default();
            if term.searched.insert(name.clone()) {
                services.extend(services_of(pod, &addresses, &state, &published));
            }
            let mut spread = Spread {
                published: true,
                presence: Presence::Absent,
                behind: 0,
                unknown: 0,
            };
            if services.is_empty() {
                // Nobody sends it requests, nobody has to know it.
                spread.presence = if pod.meta.deleting {
                    Presence::Absent
                } else {
                    Presence::Serving
                };
            }
            for key in services.iter() {
                if !known.contains_key(key) {
                    let found = self.distribution.reach(key, &state).await;
                    known.insert(key.clone(), found);
                }
                if let Some(reach) = known.get(key) {
                    spread.published &= reach.published;
                    spread.behind += reach.behind;
                    spread.unknown = spread.unknown.max(reach.unknown);
                    spread.presence = spread.presence.max(reach.presence(&addresses));
                }
            }
            spreads.insert(name, spread);
        }
        let now = (self.clock)();
        let spread = |name: &NamespacedName| spreads.get(name).copied().unwrap_or_default();
        let actions = term.waiting.look(spread, self.limits, now);
        let earlier = std::mem::take(&mut term.wanted);
        let facts: BTreeMap<&NamespacedName, &PodFacts> = term.waiting.waiting().collect();
        for (name, action) in actions {
            let Some(pod) = facts.get(&name) else {
                continue;
            };
            let at = (name.clone(), action);
            let same = earlier.get(&at);
            if same.is_none() {
                self.tell(&name, action, spread(&name));
            }
            let same = same.filter(|(wanted, _)| wanted.seen.as_deref() == Some(&*pod.version));
            if same.is_some_and(|(_, since)| since.elapsed() > REPEAT) {
                // Not wanted for one look, and then again.
                continue;
            }
            // With the time of the first look, or it would be another wish each time.
            let wanted = same.cloned();
            let wanted = wanted.unwrap_or_else(|| {
                let wanted = pods::wanted(&name, pod, action, now);
                (wanted, Instant::now())
            });
            term.wanted.insert(at, wanted);
        }
        let wanted = term.wanted.values().map(|(wanted, _)| wanted.clone());
        self.wishes.set(PART, wanted.collect());
        let waiting = facts.len();
        self.distribution.0.metrics.distribution.pods_wait(waiting);
        waiting > 0
    }

    fn tell(&self, pod: &NamespacedName, action: Action, spread: Spread) {
        let (event, reason) = match action {
            Action::Hold => ("held", None),
            Action::Release(reason) => ("released", Some(reason)),
            Action::OpenGate(reason) => ("ready", Some(reason)),
        };
        let name = reason.map_or("", Reason::as_str);
        let metrics = &self.distribution.0.metrics.distribution;
        metrics.pod(event, name);
        if reason == Some(Reason::TimedOut) {
            tracing::warn!(%pod, event, ?spread, "a pod has waited long enough");
        } else {
            tracing::info!(%pod, event, reason = name, "a pod");
        }
    }
}

impl Term {
    /// Takes in what has changed of the pods.
    fn take_in(&mut self, state: &MeshState) {
        let (pods, namespaces) = (&state.objects.pods, &state.objects.namespaces);
        let facts = |pod: &Config<Pod>| {
            let namespace = NamespacedName::new("", pod.meta.namespace.clone());
            let namespace = namespaces.get(&namespace);
            PodFacts::of(pod, namespace.map(|namespace| &namespace.meta.labels))
        };
        if !namespaces.ptr_eq(&self.namespaces) {
            self.namespaces = namespaces.clone();
            // All that is said of namespaces may be another thing now.
            self.pods = Table::new();
            self.waiting = Waiting::default();
        }
        if pods.ptr_eq(&self.pods) {
            return;
        }
        for item in self.pods.diff(pods) {
            match item {
                DiffItem::Add(name, pod)
                | DiffItem::Update {
                    new: (name, pod), ..
                } => {
                    self.waiting.on_pod(name.clone(), facts(pod));
                    self.searched.remove(name);
                }
                DiffItem::Remove(name, _) => {
                    self.waiting.on_pod(name.clone(), None);
                    self.services.remove(name);
                }
            }
        }
        self.pods = pods.clone();
    }

    /// Forgets whose services are known when something has changed that [`services_of`] reads: it
    /// goes over a whole namespace for each pod.
    fn search_again_if_changed(&mut self, arrived: &MeshState, published: &MeshState) {
        let same = self.states.as_ref().is_some_and(|(old, shown)| {
            let (entries, old_entries) = (&arrived.objects.service_entries, &old.objects);
            old.services.ptr_eq(&arrived.services)
                && old.endpoints.ptr_eq(&arrived.endpoints)
                && old_entries.service_entries.ptr_eq(entries)
                && shown.endpoints.ptr_eq(&published.endpoints)
        });
        if !same {
            self.searched.clear();
            self.states = Some((arrived.clone(), published.clone()));
        }
    }
}

/// The addresses of a pod.
fn addresses(pod: &Config<Pod>) -> Vec<Arc<str>> {
    let status = &pod.spec.status;
    let all = status.pod_ips.iter().map(|address| &*address.ip);
    let all = all.chain(std::iter::once(&*status.pod_ip));
    all.filter(|address| !address.is_empty())
        .map(Arc::from)
        .collect()
}

/// The services that a pod is an endpoint of, or ought to be, by what has arrived and by what is
/// published.
fn services_of(
    pod: &Config<Pod>,
    addresses: &[Arc<str>],
    arrived: &MeshState,
    published: &MeshState,
) -> BTreeSet<ServiceKey> {
    let (namespace, labels) = (&pod.meta.namespace, &pod.meta.labels);
    let first = ServiceKey::new(namespace.clone(), "");
    let services = arrived.services.range(ServiceId::first_of(&first)..);
    let services = services
        .take_while(|(id, _)| id.key.namespace == *namespace)
        .filter(|(_, service)| {
            let selector = &service.attributes.selector;
            !selector.is_empty() && selects(selector, labels)
        })
        .map(|(id, _)| id.key.clone());
    let entries = arrived
        .objects
        .service_entries
        .range(NamespacedName::new(namespace.clone(), "")..);
    let hosts = entries
        .take_while(|(name, _)| name.namespace == *namespace)
        .filter(|(_, entry)| {
            let selector = entry.spec.workload_selector.as_ref();
            selector.is_some_and(|selector| selects(&selector.labels, labels))
        })
        .flat_map(|(_, entry)| &entry.spec.hosts)
        .map(|host| ServiceKey::new(namespace.clone(), host.as_str()));
    // Slices may name it without a selector.
    let listing = [arrived, published].into_iter().flat_map(|state| {
        let endpoints = state.endpoints.range(first.clone()..);
        endpoints
            .take_while(|(key, _)| key.namespace == *namespace)
            .filter(|(_, endpoints)| presence(endpoints, addresses) > Presence::Absent)
            .map(|(key, _)| key.clone())
    });
    services.chain(hosts).chain(listing).collect()
}

/// What endpoints have of some addresses.
fn presence(endpoints: &ServiceEndpoints, addresses: &[Arc<str>]) -> Presence {
    let at = |address: &Arc<str>| addresses.contains(address);
    let ours = endpoints
        .iter()
        .filter(|endpoint| endpoint.addresses.iter().any(at));
    let presences = ours.map(|endpoint| match endpoint.health {
        Health::Unknown | Health::Healthy => Presence::Serving,
        Health::Unhealthy | Health::Draining => Presence::Listed,
        Health::Terminating => Presence::Absent,
    });
    presences.max().unwrap_or_default()
}

/// How far the endpoints of a service have come.
struct Reach {
    /// What has arrived is published, on all replicas.
    published: bool,
    /// What is published.
    endpoints: Option<Arc<ServiceEndpoints>>,
    /// Proxies that have not accepted that.
    behind: usize,
    /// Replicas whose proxies are not known.
    unknown: usize,
}

impl Reach {
    fn presence(&self, addresses: &[Arc<str>]) -> Presence {
        let endpoints = self.endpoints.as_deref();
        endpoints.map_or(Presence::Absent, |found| presence(found, addresses))
    }
}

impl Distribution {
    /// Finds out who has the endpoints of a service, of the proxies of all replicas.
    async fn reach(&self, service: &ServiceKey, arrived: &MeshState) -> Reach {
        let snapshot = self.0.snapshots.snapshot();
        let endpoints = snapshot.state().endpoints.get(service).cloned();
        drop(snapshot);
        let hash = |endpoints: Option<&Arc<ServiceEndpoints>>| {
            endpoints.map(|endpoints| ShortXxh3::from_u64(endpoints.fingerprint))
        };
        let published = hash(endpoints.as_ref());
        let is_newest = published == hash(arrived.endpoints.get(service));
        let key = Key::Endpoints(service.clone());
        let wanted = ask::Wanted {
            hash: published,
            generation: None,
        };
        let asked = key.clone();
        let own = api::on_pool(self.clone(), move |d| d.config(&asked, &wanted)).await;
        let settling = self.replica(0).settling;
        let mut reach = Reach {
            published: is_newest,
            endpoints,
            behind: 0,
            unknown: usize::from(settling),
        };
        let mut answers = match own {
            // Nobody was ever told anything of it.
            Ok(Err(ask::Unknown)) => Vec::new(),
            Ok(Ok(answer)) => vec![answer],
            Err(_) => {
                reach.published = false;
                return reach;
            }
        };
        let hash = published.map(|hash| hash.to_string());
        let mut lost = self
            .ask_others(&key, hash.as_deref(), "behind", &mut answers)
            .await;
        let missing = |answers: &[ConfigAnswer]| {
            let proxies = answers.iter().flat_map(|answer| &answer.proxies);
            let disconnected = proxies.filter(|p| p.state == Standing::Disconnected);
            disconnected.filter(|p| is_there(&p.proxy, arrived)).count()
        };
        if !answers.is_empty() && missing(&answers) > 0 {
            // Whoever left one replica may have come to another, and have it.
            answers.truncate(1);
            lost = self
                .ask_others(&key, hash.as_deref(), "all", &mut answers)
                .await;
        }
        reach.unknown += lost;
        let (mut behind, mut connected, mut gone) =
            (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
        for answer in &answers {
            reach.published &= answer.stage == Stage::Published && answer.hash == hash;
            let settling = answer
                .replicas
                .iter()
                .filter(|replica| replica.settling && replica.name != self.0.replica);
            reach.unknown += settling.count();
            for proxy in &answer.proxies {
                match proxy.state {
                    Standing::Has => connected.insert(&*proxy.proxy),
                    Standing::Pending | Standing::Undecided | Standing::Refused => {
                        behind.insert(&*proxy.proxy)
                    }
                    Standing::Disconnected => gone.insert(&*proxy.proxy),
                };
            }
        }
        // An Envoy that lost its control plane goes on with what it has.
        behind.extend(
            gone.into_iter()
                .filter(|proxy| !connected.contains(proxy) && is_there(proxy, arrived)),
        );
        reach.behind = behind.len();
        reach
    }

    /// Asks the other replicas about a content; returns how many did not answer.
    async fn ask_others(
        &self,
        key: &Key,
        hash: Option<&str>,
        listed: &str,
        answers: &mut Vec<ConfigAnswer>,
    ) -> usize {
        let hash = hash.map(|hash| format!("&hash={hash}")).unwrap_or_default();
        let path = format!("{}?proxies={listed}{hash}", api::path_of(key));
        let heard = self.peers().ask(&self.0.replica, &path).await;
        answers.extend(heard.answers);
        heard.unreachable.len()
    }
}

/// Tells whether the workload of a proxy is there, as far as its id tells which that is.
fn is_there(proxy: &str, state: &MeshState) -> bool {
    let Some((name, namespace)) = proxy
        .split('~')
        .nth(2)
        .and_then(|name| name.rsplit_once('.'))
    else {
        return true;
    };
    let name = NamespacedName::new(namespace, name);
    state.objects.pods.contains_key(&name) || state.objects.workload_entries.contains_key(&name)
}

//! Several clusters as one mesh (service-registry §15).
//!
//! Each further cluster has an [`Intake`] of its own, which derives its services and endpoints as if it
//! were alone. Here they are laid together: services by host, endpoints by shard. Only what differs from
//! the last time is looked at, and the result is a function of what the clusters say, not of the order
//! in which they said it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Instant,
};

use imbl::{OrdMap, ordmap::DiffItem};
use model::{
    MeshState, NetworkGateways, PushRequest, Reason, Service, ServiceEndpoints, ServiceId,
    ServiceKey, Table, api::kubernetes::Namespace,
};

use crate::{
    intake::{Change, Intake, Options},
    registry::{self, Registry, Told},
};

/// What one cluster said last.
#[derive(Clone, Default, Debug)]
struct Said {
    services: OrdMap<ServiceId, Arc<Service>>,
    endpoints: OrdMap<ServiceKey, Arc<ServiceEndpoints>>,
    gateways: Arc<NetworkGateways>,
}

impl Said {
    fn by(state: &MeshState) -> Self {
        Self {
            services: state.services.clone(),
            endpoints: state.endpoints.clone(),
            gateways: state.gateways.clone(),
        }
    }
}

/// The clusters besides the one that the configuration is in.
#[derive(Default, Debug)]
pub(crate) struct Clusters {
    intakes: BTreeMap<Arc<str>, Intake>,
    /// Workloads of clusters that are gone, or read anew.
    gone: Vec<Told>,
    /// What the own cluster said last.
    own: Said,
    /// What the others said last.
    others: BTreeMap<Arc<str>, Said>,
    /// All together; `None` while there is but one cluster, which is the whole then.
    together: Option<Said>,
}

impl Clusters {
    /// Takes changes of a cluster; with `fresh` they are all there is of it, and what was known goes.
    pub(crate) fn apply(
        &mut self,
        cluster: Arc<str>,
        changes: Vec<Change>,
        fresh: bool,
        own: &MeshState,
        now: Instant,
    ) {
        if fresh {
            self.remove(&cluster);
        }
        let intake = self.intakes.entry(cluster.clone()).or_insert_with(|| {
            let mut identity = model::state::MeshIdentity::clone(&own.identity);
            identity.cluster = cluster;
            let mut intake = Intake::new(Options {
                features: own.features.as_ref().clone(),
                identity,
                mesh: own.mesh.as_ref().clone(),
                networks: own.networks.as_ref().clone(),
                // Only services and endpoints of other clusters count.
                compile: None,
            });
            intake.registry_mut().tell();
            intake
        });
        intake.apply(changes, now);
    }

    /// Forgets a cluster.
    pub(crate) fn remove(&mut self, cluster: &str) {
        if let Some(intake) = self.intakes.remove(cluster) {
            self.gone.extend(intake.registry().tell_all_gone());
        }
    }

    /// The registries that have workloads, and which workloads have changed since the last time.
    pub(crate) fn workloads(&mut self) -> (Vec<&mut Registry>, Vec<Told>) {
        let mut told = std::mem::take(&mut self.gone);
        let intakes = self.intakes.values_mut();
        let registries: Vec<&mut Registry> = intakes.map(Intake::registry_mut).collect();
        let mut all = Vec::with_capacity(registries.len());
        for registry in registries {
            told.extend(registry.take_told());
            all.push(registry);
        }
        (all, told)
    }

    /// Has all clusters take a change that concerns them all.
    pub(crate) fn apply_to_all(&mut self, change: &Change, now: Instant) {
        for intake in self.intakes.values_mut() {
            intake.apply([change.clone()], now);
        }
    }

    /// The namespaces of each cluster.
    pub(crate) fn namespaces(&self) -> BTreeMap<Arc<str>, Table<Namespace>> {
        let intakes = self.intakes.iter();
        let namespaces =
            intakes.map(|(cluster, intake)| (cluster.clone(), intake.state().objects.namespaces));
        namespaces.collect()
    }

    /// Number of addresses that wait for their pods.
    pub(crate) fn parked(&self) -> usize {
        self.intakes.values().map(Intake::parked).sum()
    }

    /// Lays together what the clusters say now, and adds to `request` what that changed.
    pub(crate) fn settle(&mut self, own: &MeshState, request: &mut PushRequest) {
        if self.intakes.is_empty() && self.others.is_empty() {
            return;
        }
        // The first time, the whole is what the own cluster said before.
        let mut together = self.together.take().unwrap_or_else(|| self.own.clone());
        let others: BTreeMap<Arc<str>, Said> = self
            .intakes
            .iter()
            .map(|(cluster, intake)| (cluster.clone(), Said::by(&intake.state())))
            .collect();
        let mut dirty = Dirty::default();
        let own = Said::by(own);
        dirty.compare(&self.own, &own);
        let none = Said::default();
        let names: BTreeSet<&Arc<str>> = self.others.keys().chain(others.keys()).collect();
        for name in names {
            let (old, new) = (self.others.get(name), others.get(name));
            dirty.compare(old.unwrap_or(&none), new.unwrap_or(&none));
        }
        (self.own, self.others) = (own, others);
        for key in dirty.services {
            self.lay_services(&mut together, &key, request);
        }
        for key in dirty.endpoints {
            self.lay_endpoints(&mut together, &key, request);
        }
        if dirty.gateways {
            self.lay_gateways(&mut together, request);
        }
        // The last of the others is gone: one cluster is the whole again.
        self.together = (!self.others.is_empty()).then_some(together);
    }

    /// Remembers what the own cluster says, before there are others.
    pub(crate) fn observe(&mut self, own: &MeshState) {
        if self.together.is_none() {
            self.own = Said::by(own);
        }
    }

    /// The state of the whole mesh.
    pub(crate) fn state(&self, own: &MeshState) -> MeshState {
        let mut state = own.clone();
        if let Some(together) = &self.together {
            state.services = together.services.clone();
            state.endpoints = together.endpoints.clone();
            state.gateways = together.gateways.clone();
        }
        state
    }

    fn all(&self) -> impl Iterator<Item = &Said> {
        std::iter::once(&self.own).chain(self.others.values())
    }

    /// Services of one host: those of the first cluster, own before others, with the addresses and
    /// accounts that others have for them.
    fn lay_services(&self, together: &mut Said, key: &ServiceKey, request: &mut PushRequest) {
        let old = services_of(&together.services, key);
        let mut new = services_of(&self.own.services, key);
        let mut base: Option<Service> = None;
        for said in self.all() {
            let kubernetes = services_of(&said.services, key);
            let Some(service) = kubernetes.into_iter().find(|s| s.is_kubernetes()) else {
                continue;
            };
            match &mut base {
                None => base = Some(service.as_ref().clone()),
                Some(base) => join(base, &service),
            }
        }
        new.retain(|s| !s.is_kubernetes());
        new.extend(base.map(Service::seal));
        for service in &old {
            together.services.remove(&service.id());
        }
        for service in &new {
            together.services.insert(service.id(), service.clone());
        }
        for service in old.iter().chain(&new) {
            let is = |s: &&Arc<Service>| s.id() == service.id();
            let same = registry::same_service(old.iter().find(is), new.iter().find(is));
            if !same {
                registry::note(request, service.source.key().clone(), Reason::Service);
            }
        }
    }

    fn lay_endpoints(&self, together: &mut Said, key: &ServiceKey, request: &mut PushRequest) {
        let lists = self.all().filter_map(|said| said.endpoints.get(key));
        let shards = lists.flat_map(|list| list.shards.iter());
        let new = ServiceEndpoints::collect(
            shards.map(|(shard, endpoints)| (shard.clone(), endpoints.to_vec())),
        );
        let old = together.endpoints.get(key).cloned();
        if old == new {
            return;
        }
        match &new {
            Some(new) => together.endpoints.insert(key.clone(), new.clone()),
            None => together.endpoints.remove(key),
        };
        registry::note_endpoints(
            &together.services,
            key,
            old.as_deref(),
            new.as_deref(),
            request,
        );
    }

    fn lay_gateways(&self, together: &mut Said, request: &mut PushRequest) {
        let mut gateways = NetworkGateways::default();
        for said in self.all() {
            gateways
                .resolved
                .extend(said.gateways.resolved.iter().cloned());
            gateways
                .unresolved
                .extend(said.gateways.unresolved.iter().cloned());
        }
        NetworkGateways::sort(&mut gateways.resolved);
        NetworkGateways::sort(&mut gateways.unresolved);
        if *together.gateways != gateways {
            together.gateways = Arc::new(gateways);
            request.forced = true;
            registry::count(request, Reason::Networks);
        }
    }
}

/// Adds what another cluster has of a service.
fn join(base: &mut Service, other: &Service) {
    for (cluster, vips) in &other.cluster_vips {
        let known = base.cluster_vips.entry(cluster.clone());
        known.or_insert_with(|| vips.clone());
    }
    for account in &other.service_accounts {
        if !base.service_accounts.contains(account) {
            base.service_accounts.push(account.clone());
        }
    }
}

/// All services of a key.
fn services_of(services: &OrdMap<ServiceId, Arc<Service>>, key: &ServiceKey) -> Vec<Arc<Service>> {
    registry::services_of_key(services, key).cloned().collect()
}

/// What has to be laid together anew.
#[derive(Default, Debug)]
struct Dirty {
    services: BTreeSet<ServiceKey>,
    endpoints: BTreeSet<ServiceKey>,
    gateways: bool,
}

impl Dirty {
    fn compare(&mut self, old: &Said, new: &Said) {
        let services = old.services.diff(&new.services);
        self.services
            .extend(services.map(|item| key_of(&item).key.clone()));
        let endpoints = old.endpoints.diff(&new.endpoints);
        self.endpoints
            .extend(endpoints.map(|item| key_of(&item).clone()));
        self.gateways |= old.gateways != new.gateways;
    }
}

fn key_of<'a, K, V>(item: &DiffItem<'a, 'a, K, V>) -> &'a K {
    match item {
        DiffItem::Add(key, _)
        | DiffItem::Remove(key, _)
        | DiffItem::Update { new: (key, _), .. } => key,
    }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;

    use model::Kind;

    use super::*;
    use crate::Decoder;

    fn now() -> Instant {
        static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
        #[expect(clippy::disallowed_methods, reason = "an arbitrary point in time")]
        *START.get_or_init(Instant::now)
    }

    fn objects(vip: &str, pods: &[(&str, &str)]) -> Vec<Change> {
        let mut text = format!(
            "{{apiVersion: v1, kind: Service, metadata: {{name: web, namespace: a}}, spec: {{clusterIP: {vip}, selector: {{app: x}}, ports: [{{name: http, port: 80}}]}}}}\n"
        );
        let mut listed = Vec::new();
        for (pod, address) in pods {
            write!(
 text,
                "---\n{{apiVersion: v1, kind: Pod, metadata: {{name: {pod}, namespace: a}}, spec: {{serviceAccountName: s}}, status: {{phase: Running, podIP: {address}, conditions: [{{type: Ready, status: 'True'}}]}}}}\n"
            ).expect("writing to a string does not fail");
            listed.push(format!(
                "{{addresses: [{address}], conditions: {{ready: true}}, targetRef: {{kind: Pod, name: {pod}, namespace: a}}}}"
            ));
        }
        write!(
 text,
            "---\n{{apiVersion: discovery.k8s.io/v1, kind: EndpointSlice, metadata: {{name: web, namespace: a, labels: {{kubernetes.io/service-name: web}}}}, addressType: IPv4, ports: [{{name: http, port: 8080}}], endpoints: [{}]}}\n",
            listed.join(", ")
        ).expect("writing to a string does not fail");
        decode(&text)
    }

    fn of(cluster: &str, fresh: bool, changes: Vec<Change>) -> Change {
        Change::Cluster {
            cluster: cluster.into(),
            fresh,
            changes,
        }
    }

    /// What the mesh has: addresses of the service by cluster, endpoints by cluster.
    #[track_caller]
    fn check(intake: &Intake, vips: &[(&str, &str)], endpoints: &[(&str, &str)]) {
        let state = intake.state();
        let found: Vec<(&str, &str)> = state
            .services
            .values()
            .flat_map(|s| s.cluster_vips.iter().map(|(c, v)| (&**c, &*v[0])))
            .collect();
        assert_eq!(found, vips);
        let lists = state.endpoints.values().flat_map(|e| e.shards.iter());
        let found: Vec<(&str, &str)> = lists
            .flat_map(|(shard, list)| list.iter().map(|e| (&*shard.cluster, e.address())))
            .collect();
        assert_eq!(found, endpoints);
    }

    #[test]
    fn a_cluster_comes_changes_and_goes() {
        let mut intake = Intake::new(Options::default());
        intake.apply(objects("10.9.0.1", &[("p", "10.0.0.1")]), now());
        let remote = objects("10.9.0.2", &[("q", "10.0.0.4"), ("r", "10.0.0.2")]);
        let request = intake.apply([of("far", true, remote)], now());
        let key = ServiceKey::new("a", "web.a.svc.cluster.local");
        assert!(request.endpoints.contains(&key) && !request.forced);
        assert!(
            request.changed.iter().all(|key| key.kind == Kind::Service),
            "{request:?}"
        );
        check(
            &intake,
            &[("Kubernetes", "10.9.0.1"), ("far", "10.9.0.2")],
            &[
                ("Kubernetes", "10.0.0.1"),
                ("far", "10.0.0.4"),
                ("far", "10.0.0.2"),
            ],
        );
        // With other credentials it is read anew: what is gone meanwhile goes at once.
        let again = objects("10.9.0.2", &[("r", "10.0.0.2")]);
        let request = intake.apply([of("far", true, again)], now());
        assert!(request.removals.contains(&key), "{request:?}");
        check(
            &intake,
            &[("Kubernetes", "10.9.0.1"), ("far", "10.9.0.2")],
            &[("Kubernetes", "10.0.0.1"), ("far", "10.0.0.2")],
        );
        // The own cluster's changes do not touch the other.
        let gone = model::ConfigKey::new(Kind::Service, "a", "web");
        intake.apply([Change::Delete(gone)], now());
        check(
            &intake,
            &[("far", "10.9.0.2")],
            &[("Kubernetes", "10.0.0.1"), ("far", "10.0.0.2")],
        );
        intake.apply([Change::ClusterGone("far".into())], now());
        check(&intake, &[], &[("Kubernetes", "10.0.0.1")]);
        intake.apply(objects("10.9.0.1", &[("p", "10.0.0.3")]), now());
        check(
            &intake,
            &[("Kubernetes", "10.9.0.1")],
            &[("Kubernetes", "10.0.0.3")],
        );
    }

    fn decode(text: &str) -> Vec<Change> {
        let decoded = Decoder::default().decode("test", text);
        assert!(decoded.findings.is_empty(), "{:?}", decoded.findings);
        decoded.objects.into_iter().map(Change::Apply).collect()
    }

    fn entry(name: &str, address: &str, app: &str) -> Vec<Change> {
        decode(&format!(
            "{{apiVersion: networking.istio.io/v1, kind: WorkloadEntry, metadata: {{name: {name}, namespace: a}}, spec: {{address: {address}, labels: {{app: {app}}}}}}}"
        ))
    }

    fn selecting(app: &str) -> Vec<Change> {
        decode(&format!(
            "{{apiVersion: networking.istio.io/v1, kind: ServiceEntry, metadata: {{name: e, namespace: a}}, spec: {{hosts: [e.example], resolution: STATIC, ports: [{{number: 80, name: http, protocol: HTTP}}], workloadSelector: {{labels: {{app: {app}}}}}}}}}"
        ))
    }

    /// What the entry's host has: cluster and address of each endpoint.
    #[track_caller]
    fn check_entry(intake: &Intake, expected: &[(&str, &str)]) {
        let state = intake.state();
        let key = ServiceKey::new("a", "e.example");
        let endpoints = state.endpoints.get(&key);
        let lists = endpoints.iter().flat_map(|e| e.shards.values());
        let found: Vec<(&str, &str)> = lists
            .flat_map(|list| list.iter().map(|e| (&*e.cluster, e.address())))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn entries_select_workloads_of_all_clusters() {
        let mut intake = Intake::new(Options::default());
        intake.apply(entry("v2", "1.0.0.2", "x"), now());
        intake.apply(selecting("x"), now());
        check_entry(&intake, &[("Kubernetes", "1.0.0.2")]);
        let mut remote = entry("v1", "1.0.0.1", "x");
        remote.extend(entry("v3", "1.0.0.3", "z"));
        let request = intake.apply([of("far", true, remote)], now());
        let key = ServiceKey::new("a", "e.example");
        assert!(request.endpoints.contains(&key), "{request:?}");
        let both = [("far", "1.0.0.1"), ("Kubernetes", "1.0.0.2")];
        check_entry(&intake, &both);
        // One becomes another's, the entry selects others, and back.
        intake.apply([of("far", false, entry("v1", "1.0.0.1", "z"))], now());
        check_entry(&intake, &both[1..]);
        intake.apply(selecting("z"), now());
        check_entry(&intake, &[("far", "1.0.0.1"), ("far", "1.0.0.3")]);
        intake.apply([of("far", true, entry("v3", "1.0.0.4", "z"))], now());
        check_entry(&intake, &[("far", "1.0.0.4")]);
        intake.apply([Change::ClusterGone("far".into())], now());
        check_entry(&intake, &[]);
    }

    #[test]
    fn entries_select_pods_of_all_clusters() {
        let pod = |name: &str, address: &str| {
            decode(&format!(
                "{{apiVersion: v1, kind: Pod, metadata: {{name: {name}, namespace: a, labels: {{app: x}}}}, spec: {{serviceAccountName: s}}, status: {{phase: Running, podIP: {address}, conditions: [{{type: Ready, status: 'True'}}]}}}}"
            ))
        };
        let mut intake = Intake::new(Options::default());
        intake.apply([of("far", true, pod("p", "10.2.0.1"))], now());
        intake.apply(selecting("x"), now());
        check_entry(&intake, &[("far", "10.2.0.1")]);
        intake.apply(pod("p", "10.1.0.1"), now());
        check_entry(&intake, &[("Kubernetes", "10.1.0.1"), ("far", "10.2.0.1")]);
    }

    #[test]
    fn services_select_workload_entries_of_their_own_cluster() {
        let service = || {
            decode(
                "{apiVersion: v1, kind: Service, metadata: {name: web, namespace: a}, spec: {clusterIP: 10.9.0.1, selector: {app: x}, ports: [{name: http, port: 80}]}}",
            )
        };
        let mut intake = Intake::new(Options::default());
        intake.apply(service(), now());
        let mut remote = service();
        remote.extend(entry("v", "1.0.0.1", "x"));
        intake.apply([of("far", true, remote)], now());
        let vips = [("Kubernetes", "10.9.0.1"), ("far", "10.9.0.1")];
        check(&intake, &vips, &[("far", "1.0.0.1")]);
    }

    #[test]
    fn the_order_of_clusters_does_not_matter() {
        let own = || objects("10.9.0.1", &[("p", "10.0.0.1")]);
        let far = || of("far", true, objects("10.9.0.2", &[("q", "10.0.0.2")]));
        let near = || of("near", true, objects("10.9.0.3", &[("r", "10.0.0.3")]));
        let told = |batches: Vec<Vec<Change>>| {
            let mut intake = Intake::new(Options::default());
            for batch in batches {
                intake.apply(batch, now());
            }
            let state = intake.state();
            (state.services, state.endpoints)
        };
        let first = told(vec![own(), vec![far()], vec![near()]]);
        assert_eq!(first.1.values().map(|e| e.shards.len()).sum::<usize>(), 3);
        assert_eq!(first, told(vec![vec![near(), far()], own()]));
        let detour = vec![Change::ClusterGone("far".into())];
        assert_eq!(
            first,
            told(vec![vec![far()], own(), detour, vec![near()], vec![far()]])
        );
    }
}

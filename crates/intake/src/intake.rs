//! Changes of objects in, one immutable state and a push request out.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::Instant,
};

use indexmap::{IndexMap, map::Entry};
use model::{
    Config, ConfigKey, Features, Kind, MeshState, Object, PushRequest, Reason, Table,
    api::{EnvoyFilter, MeshConfig, MeshNetworks, kubernetes::Namespace},
    bundle::Bundles,
    state::MeshIdentity,
};
use rayon::prelude::*;
use rustc_hash::FxBuildHasher;

use crate::{
    clusters::Clusters,
    keys::{KeySets, KeySource, KeySources},
    layers::Layers,
    registry::{Derivations, Registry, Update},
    store::{self, Store},
};

/// What does not change while the process runs.
#[derive(Clone, Default, Debug)]
pub struct Options {
    /// Feature flags.
    pub features: Features,
    /// Names that the whole process agrees on.
    pub identity: MeshIdentity,
    /// Mesh configuration until a source brings another; Istio's defaults unless set.
    pub mesh: MeshConfig,
    /// Networks until a source brings others; none unless set.
    pub networks: MeshNetworks,
    /// Compiles the patches of an `EnvoyFilter` when it arrives, which needs Envoy's API. `None` leaves
    /// it to the first who reads them.
    pub compile: Option<fn(&Config<EnvoyFilter>)>,
}

/// One change of the input.
#[derive(Clone, Debug)]
pub enum Change {
    /// An object is new or different.
    Apply(Object),
    /// An object is gone.
    Delete(ConfigKey),
    /// The mesh configuration, with defaults applied.
    Mesh(Box<MeshConfig>),
    /// The networks.
    Networks(MeshNetworks),
    /// The host name of a network gateway has these addresses.
    Resolved {
        /// The name.
        name: Arc<str>,
        /// Its addresses, sorted.
        addresses: Vec<Arc<str>>,
    },
    /// Changes of files beside a cluster: an object that both have is the cluster's. They come before
    /// anything of the cluster.
    Files(Vec<Self>),
    /// Changes of another cluster, of whose objects only services and their endpoints count.
    Cluster {
        /// The cluster's id.
        cluster: Arc<str>,
        /// The changes are all there is of it: what was known before goes.
        fresh: bool,
        /// Its changes.
        changes: Vec<Self>,
    },
    /// Another cluster does not belong to the mesh any more.
    ClusterGone(Arc<str>),
    /// Which release of the Gateway API the cluster has.
    Bundles(Bundles),
    /// The keys of a token issuer.
    Keys {
        /// Where they come from.
        source: KeySource,
        /// A JSON Web Key Set; `None` when the last one is too old to be trusted.
        keys: Option<Arc<str>>,
    },
}

/// Tables of objects and everything derived from them. Plain state: it does no I/O and reads no clock.
#[derive(Debug)]
pub struct Intake {
    state: MeshState,
    store: Store,
    registry: Registry,
    /// The other clusters of the mesh.
    clusters: Clusters,
    keys: KeySets,
    layers: Layers,
    compile: Option<fn(&Config<EnvoyFilter>)>,
    /// Nothing was applied yet.
    is_pristine: bool,
}

impl Intake {
    /// Makes an intake without objects.
    pub fn new(options: Options) -> Self {
        let mut state = MeshState {
            mesh: Arc::new(options.mesh),
            networks: Arc::new(options.networks),
            features: Arc::new(options.features),
            identity: Arc::new(options.identity),
            ..MeshState::default()
        };
        let mut store = Store::default();
        store.set_selectors(&mut state);
        let mut registry = Registry::new(&state);
        let nobody = (&mut [][..], &[][..]);
        registry.apply(
            &mut state,
            &[],
            true,
            true,
            nobody,
            &mut PushRequest::default(),
        );
        Self {
            keys: KeySets::new(&state.features.remote_jwks),
            state,
            store,
            registry,
            clusters: Clusters::default(),
            layers: Layers::default(),
            compile: options.compile,
            is_pristine: true,
        }
    }

    /// Applies changes in their order and derives what depends on them, each derived value once.
    ///
    /// The request says what has to be looked at; it is empty when nothing that matters has changed, and
    /// means everything the first time.
    pub fn apply(
        &mut self,
        changes: impl IntoIterator<Item = Change>,
        now: Instant,
    ) -> PushRequest {
        let mut request = PushRequest::default();
        if self.is_pristine {
            // Whoever takes the first objects builds everything.
            self.is_pristine = false;
            request = PushRequest::everything(Reason::Config, now);
        }
        let mut updates = Vec::new();
        let (mut mesh_changed, mut names_changed) = (false, false);
        let mut others = Vec::new();
        let mut inner = Vec::new();
        for change in changes {
            match change {
                Change::Files(changes) => inner.extend(self.layers.of_files(changes)),
                change => inner.push(self.layers.of_cluster(change)),
            }
        }
        for change in inner {
            match change {
                // Of files, none are within others.
                Change::Files(_) => {}
                Change::Apply(object) => {
                    let object = self.keys.fill(object);
                    let key = object.key();
                    updates.extend(self.store.apply(&mut self.state, key, Some(object)));
                }
                Change::Delete(key) => {
                    self.keys.forget(&key);
                    updates.extend(self.store.apply(&mut self.state, key, None));
                }
                Change::Keys { source, keys } => {
                    for object in self.keys.set(source, keys) {
                        let key = object.key();
                        updates.extend(self.store.apply(&mut self.state, key, Some(object)));
                    }
                }
                Change::Mesh(mesh) => {
                    if *self.state.mesh != *mesh {
                        self.clusters.apply_to_all(&Change::Mesh(mesh.clone()), now);
                        self.state.mesh = Arc::from(mesh);
                        mesh_changed = true;
                        updates.extend(self.store.set_selectors(&mut self.state));
                    }
                }
                Change::Resolved { name, addresses } => {
                    let change = Change::Resolved {
                        name: name.clone(),
                        addresses: addresses.clone(),
                    };
                    self.clusters.apply_to_all(&change, now);
                    names_changed |= self.registry.set_addresses(name, addresses);
                }
                Change::Cluster {
                    cluster,
                    fresh,
                    changes,
                } => others.push((cluster, Some((changes, fresh)))),
                Change::ClusterGone(cluster) => others.push((cluster, None)),
                // For statuses alone: what is too old is left out where it is read.
                Change::Bundles(bundles) => self.state.bundles = Arc::new(bundles),
                Change::Networks(networks) => {
                    if *self.state.networks != networks {
                        self.clusters
                            .apply_to_all(&Change::Networks(networks.clone()), now);
                        self.state.networks = Arc::new(networks);
                        mesh_changed = true;
                    }
                }
            }
        }
        self.keys.settle();
        self.clusters.observe(&self.state);
        if mesh_changed {
            request.merge(PushRequest::everything(Reason::Global, now));
        }
        let updates = coalesce(updates);
        if let Some(compile) = self.compile {
            updates
                .par_iter()
                .for_each(|update| compiled(update, compile));
        }
        for update in &updates {
            if is_config(update.key.kind) && store::matters(update) {
                let reason = match update.key.kind {
                    Kind::Secret => Reason::Secret,
                    _ => Reason::Config,
                };
                if !request.forced && request.changed.insert(update.key.clone()) {
                    *request.reasons.entry(reason).or_default() += 1;
                }
            }
        }
        let gateways = mesh_changed || names_changed;
        for (cluster, changes) in others {
            match changes {
                Some((changes, fresh)) => {
                    self.clusters
                        .apply(cluster, changes, fresh, &self.state, now);
                }
                None => self.clusters.remove(&cluster),
            }
        }
        let (mut registries, told) = self.clusters.workloads();
        self.registry.apply(
            &mut self.state,
            &updates,
            mesh_changed,
            gateways,
            (&mut registries, &told),
            &mut request,
        );
        self.clusters.settle(&self.state, &mut request);
        if !request.is_empty() {
            request.started = Some(now);
        }
        request
    }

    /// The current state; cheap to clone, and immutable.
    pub fn state(&self) -> MeshState {
        self.clusters.state(&self.state)
    }

    /// The namespaces of the other clusters, by their ids.
    pub fn namespaces_of_others(&self) -> BTreeMap<Arc<str>, Table<Namespace>> {
        self.clusters.namespaces()
    }

    /// Host names of network gateways whose addresses somebody has to find (see [`crate::resolve`]).
    pub fn names_to_resolve(&self) -> BTreeSet<Arc<str>> {
        if !self.state.features.resolve_hostname_gateways {
            return BTreeSet::new();
        }
        let state = self.state();
        let gateways = state.gateways.unresolved.iter();
        let names = gateways.filter(|g| g.address.parse::<IpAddr>().is_err());
        names.map(|g| g.address.clone()).collect()
    }

    /// Where token issuers' keys come from that somebody has to fetch (see [`crate::keys::follow`]).
    pub fn keys_to_fetch(&self) -> Arc<KeySources> {
        self.keys.sources()
    }

    /// Number of addresses that slices list for pods that are not known.
    pub fn parked(&self) -> usize {
        self.registry.parked() + self.clusters.parked()
    }

    /// The registry, which may be told to tell of workloads.
    pub(crate) fn registry_mut(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// The registry, to look inside.
    pub(crate) fn registry(&self) -> &Registry {
        &self.registry
    }

    /// How much was derived so far.
    pub fn derivations(&self) -> Derivations {
        self.registry.derivations()
    }
}

/// Makes one update of several to one object: what was before the first, what is after the last.
fn coalesce(updates: Vec<Update>) -> Vec<Update> {
    if updates.len() < 2 {
        return updates;
    }
    let mut coalesced: IndexMap<ConfigKey, Update, FxBuildHasher> =
        IndexMap::with_capacity_and_hasher(updates.len(), FxBuildHasher);
    for update in updates {
        match coalesced.entry(update.key.clone()) {
            Entry::Occupied(mut entry) => entry.get_mut().new = update.new,
            Entry::Vacant(entry) => {
                entry.insert(update);
            }
        }
    }
    coalesced
        .into_values()
        .filter(|u| u.old.is_some() || u.new.is_some())
        .collect()
}

/// Compiles a filter that is new or says something new.
fn compiled(update: &Update, compile: fn(&Config<EnvoyFilter>)) {
    let Some(Object::EnvoyFilter(filter)) = &update.new else {
        return;
    };
    if let Some(Object::EnvoyFilter(old)) = &update.old
        && old.spec == filter.spec
    {
        filter.spec.compiled.adopt(&old.spec.compiled);
    }
    compile(filter);
}

/// Kinds whose changes are pushed as such; those of the others as far as what is derived from them
/// changes.
fn is_config(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Namespace | Kind::Node | Kind::Pod | Kind::Service | Kind::EndpointSlice
    )
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::Decoder;

    static COMPILED: AtomicUsize = AtomicUsize::new(0);

    #[test]
    fn filters_are_compiled_when_they_arrive_and_each_version_once() {
        let mut intake = Intake::new(Options {
            compile: Some(|filter| {
                filter
                    .spec
                    .compiled
                    .get_or_init(|| COMPILED.fetch_add(1, Ordering::Relaxed));
            }),
            ..Options::default()
        });
        let mut check = |text: &str, expected: usize| {
            let decoder = Decoder {
                admitted: true,
                ..Decoder::default()
            };
            let decoded = decoder.decode("test", text);
            let changes = decoded.objects.into_iter().map(Change::Apply);
            #[expect(clippy::disallowed_methods, reason = "requests say when they started")]
            intake.apply(changes, Instant::now());
            assert_eq!(COMPILED.load(Ordering::Relaxed), expected, "{text}");
            for filter in intake.state().objects.envoy_filters.values() {
                let compiled = &filter.spec.compiled;
                let late = || -> usize { panic!("{text}: not compiled yet") };
                assert!(*compiled.get_or_init(late) < expected);
            }
        };
        let filter = |name: &str, priority: i32| {
            format!(
                "apiVersion: networking.istio.io/v1alpha3\nkind: EnvoyFilter\n\
                 metadata: {{name: {name}, namespace: shop}}\nspec: {{priority: {priority}}}\n---\n"
            )
        };
        check(&(filter("a", 1) + &filter("b", 1)), 2);
        check(&filter("a", 1), 2);
        check(&filter("a", 2), 3);
        // Of several versions that come together, the last one.
        check(&(filter("b", 2) + &filter("b", 3)), 4);
    }
}

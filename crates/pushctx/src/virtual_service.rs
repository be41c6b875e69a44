//! VirtualServices with names expanded and delegates merged, by gateway (config-model §10).

mod delegate;
pub(crate) mod destinations;
pub(crate) mod expand;
mod routes;

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use imbl::OrdMap;
use model::{
    Config, ConfigKey, ExportTo, Kind, MeshState, NamespacedName, api::VirtualService, fingerprint,
};
use rayon::prelude::*;

use crate::{diff, order::InOrder, service::default_set, sorted::SortedList, table::HashTable};

use routes::PublicRoutes;
pub use routes::Routes;

/// Which translator wrote a VirtualService; changes how its hosts match.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum RouteSemantics {
    /// A user's VirtualService.
    #[default]
    Istio,
    /// Made from a Kubernetes Ingress.
    Ingress,
    /// Made from Gateway API routes.
    Gateway,
}

impl RouteSemantics {
    /// The annotation that says who wrote a VirtualService.
    pub const ANNOTATION: &'static str = "internal.istio.io/route-semantics";

    /// Reads the annotation.
    pub(crate) fn of<T>(config: &Config<T>) -> Self {
        match config
            .meta
            .annotations
            .get(Self::ANNOTATION)
            .map(String::as_str)
        {
            Some("gateway") => Self::Gateway,
            Some("ingress") => Self::Ingress,
            _ => Self::Istio,
        }
    }
}

/// A VirtualService ready for use: short names expanded, delegates merged in.
#[derive(Clone, PartialEq, Debug)]
pub struct ResolvedVirtualService {
    /// Metadata of the root object and the resolved content.
    pub config: Arc<Config<VirtualService>>,
    /// Effective export set; `.` is rewritten to the namespace.
    pub export_to: ExportTo,
    /// Who wrote it.
    pub semantics: RouteSemantics,
    /// The root and every delegate that went in.
    pub sources: Vec<ConfigKey>,
    /// Hash of content and sources.
    pub fingerprint: u64,
}

impl ResolvedVirtualService {
    /// Lists the gateways that it is bound to; `mesh` when it names none.
    pub fn gateways(&self) -> impl Iterator<Item = &str> {
        let named = self.config.spec.gateways.iter().map(String::as_str);
        let mesh = self.config.spec.gateways.is_empty().then_some("mesh");
        named.chain(mesh)
    }
}

type List = SortedList<InOrder<ResolvedVirtualService>>;
/// Namespace and gateway.
type Place = (Arc<str>, Arc<str>);

impl ResolvedVirtualService {
    /// Lists the hosts that its routes send to.
    pub fn destination_hosts(&self) -> impl Iterator<Item = &str> {
        destinations::destinations(&self.config.spec, |_| true).into_keys()
    }
}

/// VirtualServices by gateway (`mesh` or `ns/name`) and visibility, in creation order.
#[derive(Clone, Default, Debug)]
pub struct VirtualServiceIndex {
    private: OrdMap<Place, List>,
    exported: OrdMap<Place, List>,
    public: OrdMap<Arc<str>, List>,
    resolved: HashTable<NamespacedName, Arc<ResolvedVirtualService>>,
    /// For each delegate that is referred to, present or not, the roots that do.
    roots: HashTable<NamespacedName, BTreeSet<NamespacedName>>,
    public_routes: PublicRoutes,
}

impl VirtualServiceIndex {
    /// Lists the VirtualServices of one gateway (or `mesh`) for a gateway proxy of `namespace`
    /// (config-model §10.4).
    pub fn for_gateway(&self, namespace: &str, gateway: &str) -> Vec<Arc<ResolvedVirtualService>> {
        let gateway_api_here = |vs: &&Arc<ResolvedVirtualService>| {
            vs.semantics == RouteSemantics::Gateway && &*vs.config.meta.namespace == namespace
        };
        let [private, exported, public] = self.lists(namespace, gateway);
        let mut result: Vec<_> = private.chain(exported).cloned().collect();
        let public: Vec<_> = public.collect();
        result.extend(public.iter().copied().filter(gateway_api_here).cloned());
        result.extend(
            public
                .iter()
                .copied()
                .filter(|vs| !gateway_api_here(vs))
                .cloned(),
        );
        result
    }

    /// The routes of `mesh` for a namespace, when it sees nothing but public VirtualServices and has
    /// none of Gateway API: then their order is the same for everybody.
    pub(crate) fn public_routes(&self, namespace: &str) -> Option<Arc<Routes>> {
        let [private, exported, public] = self.lists(namespace, "mesh");
        let has_own = private.chain(exported).next().is_some();
        let all = || public.cloned().collect();
        if has_own {
            None
        } else {
            self.public_routes.of(namespace, all)
        }
    }

    /// The private, exported and public list of a gateway for clients of `namespace`.
    pub(crate) fn lists(
        &self,
        namespace: &str,
        gateway: &str,
    ) -> [impl Iterator<Item = &Arc<ResolvedVirtualService>>; 3] {
        let place: Place = (namespace.into(), gateway.into());
        [
            self.private.get(&place),
            self.exported.get(&place),
            self.public.get(gateway),
        ]
        .map(|list| list.into_iter().flat_map(List::iter).map(|vs| &vs.0))
    }

    /// Finds a resolved VirtualService by the name of its root.
    pub fn get(&self, name: &NamespacedName) -> Option<&Arc<ResolvedVirtualService>> {
        self.resolved.get(name)
    }

    /// Resolves and indexes all VirtualServices of `state`.
    pub(crate) fn build(state: &MeshState) -> Self {
        let resolver = Resolver::new(state);
        let table: Vec<_> = state.objects.virtual_services.values().collect();
        let resolved: Vec<_> = table
            .par_iter()
            .filter_map(|config| resolver.resolve(config))
            .collect();
        let mut index = Self::default();
        let mut in_order: Vec<_> = resolved
            .into_iter()
            .map(|vs| InOrder(Arc::new(vs)))
            .collect();
        for InOrder(vs) in &in_order {
            index.remember(vs);
        }
        in_order.par_sort_unstable();
        let mut lists: [BTreeMap<Place, Vec<InOrder<ResolvedVirtualService>>>; 3] =
            Default::default();
        for vs in in_order {
            for (list, place) in places(&vs.0) {
                lists[list as usize]
                    .entry(place)
                    .or_default()
                    .push(vs.clone());
            }
        }
        let [private, exported, public] = lists.map(|lists| {
            lists
                .into_iter()
                .map(|(place, list)| (place, SortedList::from_sorted(&list)))
        });
        index.private = private.collect();
        index.exported = exported.collect();
        index.public = public.map(|(place, list)| (place.1, list)).collect();
        index
    }

    /// Brings the index from `old` to `new`; returns it and the roots that look different.
    pub(crate) fn next(
        &self,
        old: &MeshState,
        new: &MeshState,
    ) -> (Self, BTreeSet<NamespacedName>) {
        let mut dirty: BTreeSet<NamespacedName> = BTreeSet::new();
        for change in diff::changes(&old.objects.virtual_services, &new.objects.virtual_services) {
            dirty.insert(change.key().clone());
            dirty.extend(self.roots.get(change.key()).into_iter().flatten().cloned());
        }
        let resolver = Resolver::new(new);
        let mut index = self.clone();
        for name in &dirty {
            index.remove(name);
            let config = new.objects.virtual_services.get(name);
            if let Some(vs) = config.and_then(|config| resolver.resolve(config)) {
                index.insert(&Arc::new(vs));
            }
        }
        (index, dirty)
    }

    fn insert(&mut self, vs: &Arc<ResolvedVirtualService>) {
        self.remember(vs);
        for (list, place) in places(vs) {
            let vs = InOrder(vs.clone());
            match list {
                Visibility::Private => self.private.entry(place).or_default().insert(vs),
                Visibility::Exported => self.exported.entry(place).or_default().insert(vs),
                Visibility::Public => self.public.entry(place.1).or_default().insert(vs),
            }
        }
    }

    /// Enters a VirtualService by name, and as a root of its delegates.
    fn remember(&mut self, vs: &Arc<ResolvedVirtualService>) {
        let name = vs.config.meta.namespaced_name();
        for delegate in delegates(vs) {
            self.roots.entry(delegate).or_default().insert(name.clone());
        }
        self.resolved.insert(name, vs.clone());
    }

    fn remove(&mut self, name: &NamespacedName) {
        let Some(vs) = self.resolved.remove(name) else {
            return;
        };
        for delegate in delegates(&vs) {
            if let Some(roots) = self.roots.get_mut(&delegate) {
                roots.remove(name);
                if roots.is_empty() {
                    self.roots.remove(&delegate);
                }
            }
        }
        let vs = InOrder(vs);
        let forget = |list: &mut List| {
            list.remove(&vs);
            list.is_empty()
        };
        for (list, place) in places(&vs.0) {
            match list {
                Visibility::Private => take(&mut self.private, &place, forget),
                Visibility::Exported => take(&mut self.exported, &place, forget),
                Visibility::Public => take(&mut self.public, &place.1, forget),
            }
        }
    }
}

/// Changes an entry of a map, and drops it when `change` says that nothing is left.
fn take<K: Ord + Clone, V: Clone>(
    map: &mut OrdMap<K, V>,
    key: &K,
    change: impl FnOnce(&mut V) -> bool,
) {
    if map.get_mut(key).is_some_and(change) {
        map.remove(key);
    }
}

/// In whose lists a VirtualService is.
#[derive(Clone, Copy)]
enum Visibility {
    Private,
    Exported,
    Public,
}

/// Lists where a VirtualService belongs: once per gateway and audience (config-model §8.2).
fn places(vs: &ResolvedVirtualService) -> Vec<(Visibility, Place)> {
    let own = &vs.config.meta.namespace;
    let gateways: BTreeSet<Arc<str>> = vs.gateways().map(Arc::from).collect();
    let mut result = Vec::new();
    for gateway in gateways {
        if vs.export_to.contains("*") {
            result.push((Visibility::Public, ("".into(), gateway)));
        } else if !vs.export_to.contains("~") {
            for namespace in &vs.export_to.0 {
                let list = if **namespace == **own {
                    Visibility::Private
                } else {
                    Visibility::Exported
                };
                result.push((list, (namespace.as_str().into(), gateway.clone())));
            }
        }
    }
    result
}

/// Lists the delegates that a root went through, missing ones included.
fn delegates(vs: &ResolvedVirtualService) -> impl Iterator<Item = NamespacedName> {
    vs.sources.iter().skip(1).map(|key| NamespacedName {
        namespace: key.namespace.clone(),
        name: key.name.clone(),
    })
}

/// What resolution needs to know of the mesh.
struct Resolver<'a> {
    state: &'a MeshState,
    default_export: ExportTo,
}

impl<'a> Resolver<'a> {
    fn new(state: &'a MeshState) -> Self {
        let default_export = default_set(&state.mesh.default_virtual_service_export_to);
        Self {
            state,
            default_export,
        }
    }

    /// Computes the export set of an object, `.` rewritten to its namespace.
    fn export_to(&self, config: &Config<VirtualService>) -> ExportTo {
        let declared = ExportTo::new(&config.spec.export_to);
        let set = if declared.is_empty() {
            self.default_export.clone()
        } else {
            declared
        };
        let own = &*config.meta.namespace;
        ExportTo(
            set.0
                .into_iter()
                .map(|e| if e == "." { own.to_owned() } else { e })
                .collect(),
        )
    }

    /// Resolves a root; `None` for delegates, which do not stand for themselves.
    fn resolve(&self, config: &Arc<Config<VirtualService>>) -> Option<ResolvedVirtualService> {
        if config.spec.hosts.is_empty() {
            return None;
        }
        let semantics = RouteSemantics::of(config);
        let (namespace, domain) = (&config.meta.namespace, &self.state.identity.domain);
        let mut sources = vec![key(&config.meta.namespaced_name())];
        let mut resolved = config.clone();
        if semantics != RouteSemantics::Gateway {
            let delegates = config
                .spec
                .http
                .iter()
                .any(|route| route.delegate.is_some());
            if delegates || expand::has_short_names(&config.spec, namespace, domain) {
                let mut spec = config.spec.clone();
                expand::expand(&mut spec, namespace, domain);
                if delegates {
                    self.merge_delegates(&mut spec, config, &mut sources);
                }
                resolved = Arc::new(Config {
                    meta: config.meta.clone(),
                    spec,
                });
            }
        }
        Some(ResolvedVirtualService {
            export_to: self.export_to(config),
            semantics,
            fingerprint: fingerprint::of(&(
                (
                    &config.meta.namespace,
                    &config.meta.name,
                    config.meta.created,
                    semantics,
                ),
                fingerprint::of_json(&resolved.spec),
                (&config.meta.annotations, &sources),
            )),
            sources,
            config: resolved,
        })
    }

    /// Replaces every route that delegates by what the delegate makes of it (config-model §10.2).
    fn merge_delegates(
        &self,
        spec: &mut VirtualService,
        root: &Config<VirtualService>,
        sources: &mut Vec<ConfigKey>,
    ) {
        let own = &root.meta.namespace;
        for route in std::mem::take(&mut spec.http) {
            let Some(target) = &route.delegate else {
                spec.http.push(route);
                continue;
            };
            let namespace = if target.namespace.is_empty() {
                own
            } else {
                &*target.namespace
            };
            let name = NamespacedName::new(namespace, target.name.as_str());
            if !sources.contains(&key(&name)) {
                sources.push(key(&name));
            }
            let Some(delegate) = self.state.objects.virtual_services.get(&name) else {
                continue;
            };
            let visible = self.export_to(delegate);
            let is_delegate = delegate.spec.hosts.is_empty();
            if !is_delegate || !(visible.contains("*") || visible.contains(own)) {
                continue;
            }
            let mut inner = delegate.spec.clone();
            expand::expand(
                &mut inner,
                &delegate.meta.namespace,
                &self.state.identity.domain,
            );
            spec.http.extend(
                inner
                    .http
                    .into_iter()
                    .filter_map(|r| delegate::merge(&route, r)),
            );
        }
    }
}

fn key(name: &NamespacedName) -> ConfigKey {
    ConfigKey::new(
        Kind::VirtualService,
        name.namespace.clone(),
        name.name.clone(),
    )
}

#[cfg(test)]
mod tests;

//! Sidecars by namespace, and the scopes that were computed so far (config-model §13.1).

use std::{
    collections::BTreeMap,
    sync::{Arc, OnceLock},
};

use model::{Config, Labels, MeshState, ProxyType, api::Sidecar, selects};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{
    SidecarScope, build,
    carry::{Changes, Interest},
};
use crate::{PushContext, order::CreationOrder};

/// Sidecars of each namespace: those with selector first, then by creation.
#[derive(Clone, Default, Debug)]
pub(crate) struct SidecarIndex {
    by_namespace: BTreeMap<Arc<str>, Vec<Arc<Config<Sidecar>>>>,
    /// The Sidecar of the root namespace that is for every namespace without its own.
    mesh_default: Option<Arc<Config<Sidecar>>>,
}

impl SidecarIndex {
    pub(crate) fn build(state: &MeshState) -> Self {
        let mut by_namespace: BTreeMap<Arc<str>, Vec<Arc<Config<Sidecar>>>> = BTreeMap::new();
        for sidecar in state.objects.sidecars.values() {
            by_namespace
                .entry(sidecar.meta.namespace.clone())
                .or_default()
                .push(sidecar.clone());
        }
        for list in by_namespace.values_mut() {
            list.sort_by(|a, b| {
                let plain = |s: &Config<Sidecar>| s.spec.workload_selector.is_none();
                plain(a).cmp(&plain(b)).then_with(|| a.by_creation(b))
            });
        }
        let mesh_default = by_namespace
            .get(state.root_namespace())
            .and_then(|list| list.iter().find(|s| s.spec.workload_selector.is_none()))
            .cloned();
        Self {
            by_namespace,
            mesh_default,
        }
    }

    /// Finds the Sidecar of a workload: its namespace's, else the mesh's default one.
    fn of(&self, namespace: &str, labels: &Labels) -> Option<&Arc<Config<Sidecar>>> {
        let own = self.by_namespace.get(namespace).and_then(|list| {
            list.iter().find(|s| {
                s.spec
                    .workload_selector
                    .as_ref()
                    .is_none_or(|s| selects(&s.labels, labels))
            })
        });
        own.or(self.mesh_default.as_ref())
    }
}

/// What decides the content of a scope within one snapshot.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum ScopeKey {
    /// Namespace of the proxies, and namespace and name of the Sidecar.
    Sidecar(Arc<str>, Arc<str>, Arc<str>),
    Default(Arc<str>),
    Gateway(Arc<str>),
}

/// Scopes that some proxy asked for, each computed once.
#[derive(Default, Debug)]
pub(crate) struct Scopes(Mutex<FxHashMap<ScopeKey, Arc<Cell>>>);

type Cell = OnceLock<(Arc<SidecarScope>, Interest)>;

impl Scopes {
    /// The largest number of (change, scope) pairs that are looked at; beyond it every scope is
    /// computed again. A pair costs some 100 ns, so that looking stays below the price of a scope.
    const MAX_PAIRS: usize = 20_000;

    /// Returns the scope of a proxy, computing it when it is the first one to ask.
    pub(crate) fn of(
        &self,
        context: &PushContext,
        proxy_type: ProxyType,
        namespace: &Arc<str>,
        labels: &Labels,
    ) -> Arc<SidecarScope> {
        match proxy_type {
            ProxyType::Sidecar => {
                let Some(sidecar) = context.sidecars.of(namespace, labels) else {
                    return self.get(ScopeKey::Default(namespace.clone()), || {
                        build::sidecar(context, namespace, None)
                    });
                };
                let meta = &sidecar.meta;
                let key =
                    ScopeKey::Sidecar(namespace.clone(), meta.namespace.clone(), meta.name.clone());
                self.get(key, || build::sidecar(context, namespace, Some(sidecar)))
            }
            ProxyType::Router | ProxyType::Waypoint | ProxyType::Ztunnel => self
                .get(ScopeKey::Gateway(namespace.clone()), || {
                    build::gateway(context, namespace)
                }),
        }
    }

    /// Computes outside of the lock, so that one slow scope does not hold up the others.
    fn get(
        &self,
        key: ScopeKey,
        compute: impl FnOnce() -> (SidecarScope, Interest),
    ) -> Arc<SidecarScope> {
        let cell = self.0.lock().entry(key).or_default().clone();
        let (scope, _) = cell.get_or_init(|| {
            let (scope, interest) = compute();
            (Arc::new(scope), interest)
        });
        scope.clone()
    }

    /// Returns the scopes of the next snapshot: those that the changes do not touch.
    pub(crate) fn carry(&self, changes: &Changes<'_>) -> Self {
        let cells: Vec<(ScopeKey, Arc<Cell>)> = self
            .0
            .lock()
            .iter()
            .map(|(key, cell)| (key.clone(), cell.clone()))
            .collect();
        let look = changes.len() * cells.len() <= Self::MAX_PAIRS;
        let carried = cells.into_iter().filter(|(_, cell)| {
            look && cell
                .get()
                .is_some_and(|(scope, interest)| !changes.touch(scope, interest))
        });
        Self(Mutex::new(carried.collect()))
    }
}

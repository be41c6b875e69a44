//! EnvoyFilters: patches of finished resources (envoyfilter).
//!
//! An EnvoyFilter is prepared once per object version: conditions go into an index, values become
//! messages. A [`PatchSet`] holds the patches that one kind of proxy gets, in order, in buckets by
//! their selective condition. So patching a resource costs what matches it, not what exists, and the
//! patches that could touch a resource are part of its cache key.

mod buckets;
mod cluster;
mod extension;
mod filters;
mod listener;
mod prepare;
mod route;

use std::{collections::BTreeSet, hash::Hash as _, sync::Arc};

use model::{
    Config, Proxy, ProxyType,
    api::{EnvoyFilter, envoy_filter::ApplyTo},
    fingerprint,
};
use prost::{Message, Name};
use pushctx::{ProxyClass, PushContext};
use xds::{Resource, Source};

pub(crate) use cluster::ClusterPatches;
pub(crate) use extension::ExtensionPatches;
pub(crate) use listener::ListenerPatches;
pub(crate) use prepare::Patch;
use prepare::PreparedFilter;
pub(crate) use route::{RouteNames, RoutePatches};

use crate::cache::Cache;

/// Prepared filters that are kept; a large mesh has some 30 000 filters.
const PREPARED: usize = 100_000;
/// Patch sets that are kept: one for each set of proxies that gets the same filters.
const SETS: usize = 1_000;

/// For which traffic a resource is made; a patch states one or any.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Pass {
    /// A sidecar's inbound side.
    SidecarInbound,
    /// A sidecar's outbound side.
    SidecarOutbound,
    /// A gateway.
    Gateway,
}

impl Pass {
    /// The pass of a proxy's clusters, listeners and routes towards others.
    pub(crate) const fn outbound(proxy: ProxyType) -> Self {
        match proxy {
            ProxyType::Router => Self::Gateway,
            ProxyType::Sidecar | ProxyType::Waypoint | ProxyType::Ztunnel => Self::SidecarOutbound,
        }
    }

    /// Tells whether a patch of context ANY that adds something does so in this pass: once for each
    /// proxy.
    const fn adds_any(self) -> bool {
        matches!(self, Self::SidecarOutbound | Self::Gateway)
    }
}

/// An index over the patches of some kinds.
pub(crate) trait PatchIndex: Sized {
    /// The kinds of patches that it holds.
    const KINDS: &'static [ApplyTo];

    /// Indexes patches that are in the order of their application.
    fn build(patches: Vec<Arc<Patch>>) -> Self;
}

/// Prepares filters and indexes them for classes, remembering both.
#[derive(Debug)]
pub(crate) struct Patches<I> {
    /// By the address of the object, which the entry keeps alive.
    prepared: Cache<(Arc<Config<EnvoyFilter>>, Arc<PreparedFilter>)>,
    sets: Cache<Arc<PatchSet<I>>>,
}

impl<I> Default for Patches<I> {
    fn default() -> Self {
        Self {
            prepared: Cache::new(PREPARED),
            sets: Cache::new(SETS),
        }
    }
}

/// The patches that one kind of proxy gets.
#[derive(Debug)]
pub(crate) struct PatchSet<I> {
    /// The filters behind it; keeps the addresses in the set's key from being used again.
    _filters: Vec<Arc<PreparedFilter>>,
    /// The index.
    pub index: I,
    /// Hash of all patches in order.
    fingerprint: u64,
}

impl<I: PatchIndex> Patches<I> {
    /// Finds the patches of a class; `None` when no filter has any for it.
    pub(crate) fn resolve(
        &self,
        context: &PushContext,
        class: &ProxyClass,
    ) -> Option<Arc<PatchSet<I>>> {
        let filters: Vec<Arc<PreparedFilter>> = context
            .envoy_filters(&class.workload())
            .into_iter()
            .map(|filter| self.prepare(&filter))
            .filter(|filter| !filter.patches.is_empty())
            .collect();
        if filters.is_empty() {
            return None;
        }
        let key = set_key(&filters, &class.proxy);
        Some(self.sets.get_or_build(key, || {
            let patches: Vec<Arc<Patch>> = filters
                .iter()
                .flat_map(|filter| &filter.patches)
                .filter(|patch| patch.suits(&class.proxy))
                .cloned()
                .collect();
            let ids: Vec<u64> = patches.iter().map(|patch| patch.fingerprint).collect();
            Arc::new(PatchSet {
                index: I::build(patches),
                fingerprint: fingerprint::of(&ids),
                _filters: filters.clone(),
            })
        }))
    }

    fn prepare(&self, filter: &Arc<Config<EnvoyFilter>>) -> Arc<PreparedFilter> {
        let key = Arc::as_ptr(filter).addr() as u64;
        let (_, prepared) = self.prepared.get_or_build(key, || {
            let prepared = Arc::new(PreparedFilter::new(filter, I::KINDS));
            (filter.clone(), prepared)
        });
        prepared
    }
}

/// Identifies a set: the filters in order, and what of the proxy decides about single patches.
fn set_key(filters: &[Arc<PreparedFilter>], proxy: &Proxy) -> u64 {
    let mut hasher = xxhash_rust::xxh3::Xxh3::new();
    for filter in filters {
        Arc::as_ptr(filter).addr().hash(&mut hasher);
        for name in &filter.metadata_keys {
            let value = proxy
                .raw_metadata
                .get(name)
                .and_then(serde_json::Value::as_str);
            (name, value).hash(&mut hasher);
        }
    }
    proxy.metadata.istio_version.hash(&mut hasher);
    hasher.digest()
}

/// Patches finished resources, remembering what came of each: the key is the version of the resource
/// as it was built and the patches that may touch it.
#[derive(Debug)]
pub(crate) struct Patcher<I> {
    patches: Patches<I>,
    cache: Cache<Option<Arc<Resource>>>,
}

impl<I> Patcher<I> {
    /// Makes a patcher that keeps about `capacity` patched resources.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            patches: Patches::default(),
            cache: Cache::new(capacity),
        }
    }
}

impl<I: PatchIndex> Patcher<I> {
    /// Finds the patches of a class; `None` when there are none.
    pub(crate) fn resolve(
        &self,
        context: &PushContext,
        class: &ProxyClass,
    ) -> Option<Arc<PatchSet<I>>> {
        self.patches.resolve(context, class)
    }

    /// Returns the resource as `candidates` leave it, `None` when they remove it. Without candidates
    /// it is the same one, untouched and not even decoded.
    pub(crate) fn patched<M: Message + Name + Default>(
        &self,
        base: &Arc<Resource>,
        candidates: &[Arc<Patch>],
        pass: Pass,
        apply: impl FnOnce(M) -> Option<(String, M)>,
    ) -> Option<Arc<Resource>> {
        if candidates.is_empty() {
            return Some(base.clone());
        }
        let patches: Vec<u64> = candidates.iter().map(|patch| patch.fingerprint).collect();
        let key = fingerprint::of(&(base.version().as_u64(), pass, patches));
        self.cache.get_or_build(key, || {
            let (name, message) = apply(decode(base)?)?;
            let sources = base
                .sources()
                .iter()
                .cloned()
                .chain(sources(candidates))
                .collect();
            Some(Arc::new(finished(name, &message, sources)))
        })
    }

    /// As [`patched`](Self::patched), for resources whose candidates only the message tells: `find`
    /// lists them, once for each resource and set.
    pub(crate) fn patched_by_set<M: Message + Name + Default>(
        &self,
        base: &Arc<Resource>,
        set: &PatchSet<I>,
        pass: Pass,
        find: impl FnOnce(&M) -> Vec<Arc<Patch>>,
        apply: impl FnOnce(M) -> Option<(String, M)>,
    ) -> Option<Arc<Resource>> {
        let key = fingerprint::of(&(base.version().as_u64(), pass, set.fingerprint));
        self.cache.get_or_build(key, || {
            let message: M = decode(base)?;
            let candidates = find(&message);
            if candidates.is_empty() {
                return Some(base.clone());
            }
            let (name, message) = apply(message)?;
            let sources = base
                .sources()
                .iter()
                .cloned()
                .chain(sources(&candidates))
                .collect();
            Some(Arc::new(finished(name, &message, sources)))
        })
    }
}

/// Decodes what was encoded here.
fn decode<M: Message + Name + Default>(base: &Resource) -> Option<M> {
    let decoded = M::decode(base.body().clone());
    debug_assert!(decoded.is_ok(), "what was encoded decodes");
    decoded.ok()
}

/// Encodes a message that patches made or changed.
pub(crate) fn finished<M: Message + Name>(
    name: String,
    message: &M,
    sources: BTreeSet<Source>,
) -> Resource {
    let sources: Vec<Source> = sources.into_iter().collect();
    Resource::new(name, envoy_json::canonical(message)).with_sources(sources)
}

/// The objects behind patches, for reports on rejected resources.
pub(crate) fn sources<'a>(patches: impl IntoIterator<Item = &'a Arc<Patch>>) -> BTreeSet<Source> {
    patches
        .into_iter()
        .map(|patch| patch.source.to_string().into())
        .collect()
}

//! EnvoyFilters: patches of finished resources (envoyfilter).
//!
//! An EnvoyFilter is prepared once, when it arrives: values become messages. A [`PatchSet`] holds the
//! patches that one kind of proxy gets, in order, in buckets by their selective condition. So patching
//! a resource costs what matches it, not what exists, and the patches that could touch a resource are
//! part of its cache key.

mod buckets;
mod cluster;
mod extension;
mod filters;
mod listener;
mod prepare;
mod route;
mod run;

#[cfg(test)]
mod tests;

use std::{collections::BTreeSet, hash::Hash as _, sync::Arc};

use model::{Proxy, ProxyType, fingerprint};
use prost::{Message, Name};
use pushctx::{PatchOutcomes, PatchTarget, PolicyIndex, ProxyClass, PushContext};
use rayon::prelude::*;
use xds::{Resource, Source};

pub(crate) use cluster::ClusterPatches;
pub(crate) use extension::ExtensionPatches;
pub(crate) use listener::ListenerPatches;
pub(crate) use prepare::{Patch, PreparedFilter};
pub(crate) use route::{RouteNames, RoutePatches};
use run::Outcomes;
pub(crate) use run::Run;

use crate::cache::Cache;

/// Fewest filters that a thread looks at.
const SHARE: usize = 1_000;
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
    /// All of them, in order.
    const ALL: [Self; 3] = [Self::SidecarInbound, Self::SidecarOutbound, Self::Gateway];

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
    /// What the patches change that it holds.
    const TARGETS: &'static [PatchTarget];

    /// Indexes patches that are in the order of their application.
    fn build(patches: Vec<Arc<Patch>>) -> Self;
}

/// Indexes filters for classes, and remembers what came out.
#[derive(Debug)]
pub(crate) struct Patches<I> {
    sets: Cache<Arc<PatchSet<I>>>,
    /// By the address of the policies, which the entry keeps alive, and the class.
    resolved: Cache<Arc<Resolved<I>>>,
}

/// What a class gets of all policies of some snapshots.
#[derive(Debug)]
struct Resolved<I> {
    _policies: Arc<PolicyIndex>,
    /// `None` when no filter with such patches attaches to the class.
    set: Option<Arc<PatchSet<I>>>,
    /// Filters with patches that cannot be used.
    failing: Vec<Arc<PreparedFilter>>,
}

impl<I> Default for Patches<I> {
    fn default() -> Self {
        Self {
            sets: Cache::new(SETS),
            resolved: Cache::new(SETS),
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

/// The patches of one class, and where to report what becomes of them.
#[derive(Debug)]
pub(crate) struct ClassPatches<I> {
    set: Arc<PatchSet<I>>,
    class: u64,
    outcomes: Arc<PatchOutcomes>,
}

impl<I> ClassPatches<I> {
    /// The index over the patches.
    pub(crate) fn index(&self) -> &I {
        &self.set.index
    }

    fn report(&self, patched: &Patched) {
        if let Some(outcomes) = &patched.outcomes {
            outcomes.report(self.class, &self.outcomes);
        }
    }
}

impl<I: PatchIndex> Patches<I> {
    /// Finds the patches of a class; `None` when no filter with any of these kinds attaches to it.
    fn resolve(&self, context: &PushContext, class: &ProxyClass) -> Option<ClassPatches<I>> {
        let policies = context.policies();
        let address = Arc::as_ptr(policies).addr();
        let key = fingerprint::of(&(address, context.root_namespace(), class.key.fingerprint));
        let resolved = self
            .resolved
            .get_or_build(key, || Arc::new(self.attach(context, class)));
        let outcomes = context.patch_outcomes();
        for (patch, reason) in resolved.failing.iter().flat_map(|filter| &filter.failures) {
            if I::TARGETS.contains(&PatchTarget::of(patch.apply_to)) {
                run::report_failure(patch, reason, outcomes);
            }
        }
        Some(ClassPatches {
            set: resolved.set.clone()?,
            class: class.key.fingerprint,
            outcomes: outcomes.clone(),
        })
    }

    /// Collects and indexes the patches of a class.
    fn attach(&self, context: &PushContext, class: &ProxyClass) -> Resolved<I> {
        let filters: Vec<Arc<PreparedFilter>> = context
            .envoy_filters(&class.workload(), I::TARGETS)
            .par_iter()
            .with_min_len(SHARE)
            .map(|filter| PreparedFilter::of(filter))
            .collect();
        let failing = filters.iter().filter(|filter| !filter.failures.is_empty());
        Resolved {
            _policies: context.policies().clone(),
            failing: failing.cloned().collect(),
            set: (!filters.is_empty()).then(|| self.set(filters, &class.proxy)),
        }
    }

    fn set(&self, filters: Vec<Arc<PreparedFilter>>, proxy: &Proxy) -> Arc<PatchSet<I>> {
        self.sets.get_or_build(set_key(&filters, proxy), || {
            let patches: Vec<Arc<Patch>> = filters
                .par_iter()
                .with_min_len(SHARE)
                .flat_map_iter(|filter| &filter.patches)
                .filter(|patch| I::TARGETS.contains(&PatchTarget::of(patch.apply_to)))
                .filter(|patch| patch.suits(proxy))
                .cloned()
                .collect();
            let ids: Vec<u64> = patches.iter().map(|patch| patch.fingerprint).collect();
            Arc::new(PatchSet {
                index: I::build(patches),
                fingerprint: fingerprint::of(&ids),
                _filters: filters,
            })
        })
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

/// Which patches may touch a resource.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(crate) enum Reach {
    /// None.
    #[default]
    Nothing,
    /// Those with this fingerprint, in this order.
    Some(u64),
    /// Any of the set: what one does decides which others match.
    All,
}

impl Reach {
    /// Sums up the patches that may touch a resource as it is, in order.
    fn of<'a>(candidates: impl Iterator<Item = &'a Arc<Patch>>, pass: Pass) -> Self {
        let mut fingerprints = Vec::new();
        for patch in candidates.filter(|patch| patch.is_for(pass)) {
            if patch.changes_keys {
                return Self::All;
            }
            fingerprints.push(patch.fingerprint);
        }
        if fingerprints.is_empty() {
            Self::Nothing
        } else {
            Self::Some(fingerprint::of(&fingerprints))
        }
    }

    /// Sums up two groups of patches.
    fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::All, _) | (_, Self::All) => Self::All,
            (Self::Nothing, reach) | (reach, Self::Nothing) => reach,
            (Self::Some(a), Self::Some(b)) => Self::Some(fingerprint::of(&(a, b))),
        }
    }
}

/// Patches finished resources, remembering what came of each: the key is the version of the resource
/// as it was built and the patches that may touch it.
#[derive(Debug)]
pub(crate) struct Patcher<I> {
    patches: Arc<Patches<I>>,
    cache: Cache<Patched>,
}

/// What patches made of one resource.
#[derive(Clone, Debug)]
struct Patched {
    /// `None` when they removed it.
    resource: Option<Arc<Resource>>,
    /// `None` when there is nothing to say.
    outcomes: Option<Arc<Outcomes>>,
}

impl Patched {
    fn new(resource: Option<Arc<Resource>>, outcomes: Outcomes) -> Self {
        Self {
            resource,
            outcomes: (!outcomes.is_empty()).then(|| Arc::new(outcomes)),
        }
    }
}

impl<I> Patcher<I> {
    /// Makes a patcher that keeps about `capacity` patched resources.
    pub(crate) fn new(capacity: usize) -> Self {
        Self {
            patches: Arc::default(),
            cache: Cache::new(capacity),
        }
    }
}

impl<I: PatchIndex> Patcher<I> {
    /// Finds the patches of a class; `None` when no filter attaches to it.
    pub(crate) fn resolve(
        &self,
        context: &PushContext,
        class: &ProxyClass,
    ) -> Option<ClassPatches<I>> {
        self.patches.resolve(context, class)
    }

    /// Returns the resource as patches leave it, `None` when they remove it. What no patch reaches is
    /// the same one, untouched and not even decoded.
    ///
    /// `concerns` tells, of the decoded resource, whether there is anything to do at all.
    pub(crate) fn patched<M: Message + Name + Default>(
        &self,
        base: &Arc<Resource>,
        (patches, reach): (&ClassPatches<I>, Reach),
        pass: Pass,
        concerns: impl FnOnce(&M) -> bool,
        apply: impl FnOnce(M, &Run) -> Option<(String, M)>,
    ) -> Option<Arc<Resource>> {
        let reaching = match reach {
            Reach::Nothing => return Some(base.clone()),
            Reach::Some(fingerprint) => fingerprint,
            Reach::All => patches.set.fingerprint,
        };
        let key = fingerprint::of(&(base.version().as_u64(), base.name(), pass, reaching));
        let patched = self.cache.get_or_build(key, || {
            let unchanged = || Some(base.clone());
            let Some(message) = decode::<M>(base).filter(concerns) else {
                return Patched::new(unchanged(), Outcomes::default());
            };
            let run = Run::new(pass);
            let result = apply(message, &run);
            let outcomes = run.finish();
            if outcomes.is_untouched() {
                return Patched::new(unchanged(), outcomes);
            }
            let resource = result.map(|(name, message)| {
                let own = base.sources().iter().cloned();
                let sources = own.chain(outcomes.sources()).collect();
                Arc::new(finished(name, &message, sources))
            });
            Patched::new(resource, outcomes)
        });
        patches.report(&patched);
        patched.resource
    }

    /// Builds what patches add, each once. What has no name is left out.
    pub(crate) fn added<M: Message + Name + Default>(
        &self,
        patches: &ClassPatches<I>,
        adding: impl Iterator<Item = Arc<Patch>>,
        name: impl Fn(&M) -> String,
    ) -> Vec<Arc<Resource>> {
        let build = |patch: &Arc<Patch>| {
            // Which traffic it is for does not matter any more.
            let run = Run::new(Pass::SidecarOutbound);
            let resource = patch.typed::<M>(&run).and_then(|message| {
                let name = name(&message);
                if name.is_empty() {
                    run.failed(patch, &"what it adds has no name");
                    return None;
                }
                run.applied(patch);
                let sources = [patch.source.to_string().into()];
                Some(Arc::new(finished(name, &message, sources.into())))
            });
            Patched::new(resource, run.finish())
        };
        let resource = |patch: Arc<Patch>| {
            let key = fingerprint::of(&("added", patch.fingerprint));
            let added = self.cache.get_or_build(key, || build(&patch));
            patches.report(&added);
            added.resource
        };
        adding.filter_map(resource).collect()
    }
}

/// Decodes what was encoded here.
fn decode<M: Message + Name + Default>(base: &Resource) -> Option<M> {
    let decoded = M::decode(base.body().to_bytes());
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

//! Patches of listeners, their filters and chains (envoyfilter §10–§14).

mod chain;
mod matching;

use std::sync::Arc;

use envoy_types::pb::envoy::config::listener::v3::{FilterChain, Listener};
use model::api::envoy_filter::{ApplyTo, Operation};

use pushctx::PatchTarget;

use super::{
    Pass, Patch, PatchIndex, RoutePatches, Run,
    buckets::{Buckets, Step, walk},
    filters,
};
use crate::lds::CONNECT_TERMINATE;
use matching::{ChainKey, ChainKeys, ListenerKey, ListenerKeys};

/// Patches of listeners and of everything in them.
#[derive(Debug, Default)]
pub(crate) struct ListenerPatches {
    listeners: Kind,
    listener_filters: Kind,
    chains: Kind,
    network_filters: Kind,
    http_filters: Kind,
    /// Patches of routes that are embedded in listeners.
    routes: RoutePatches,
}

/// The patches of one kind, in order, with their index.
#[derive(Debug, Default)]
struct Kind {
    patches: Vec<Arc<Patch>>,
    /// What changes existing things; additions of whole listeners and chains are apart.
    buckets: Buckets,
    additions: Vec<u32>,
}

impl Kind {
    fn get(&self, position: u32) -> &Arc<Patch> {
        &self.patches[position as usize]
    }

    /// Tells whether any of these is for a pass.
    fn any(&self, positions: &[u32], pass: Pass) -> bool {
        positions.iter().any(|at| self.get(*at).is_for(pass))
    }
}

impl PatchIndex for ListenerPatches {
    const TARGETS: &'static [PatchTarget] = &[PatchTarget::Listeners, PatchTarget::Routes];

    fn build(patches: Vec<Arc<Patch>>) -> Self {
        let mut index = Self::default();
        let mut of_routes = Vec::new();
        for patch in patches {
            let listener = patch.matching.listener.as_ref();
            match patch.apply_to {
                ApplyTo::Listener => add(
                    &mut index.listeners,
                    patch.clone(),
                    ListenerKey::of(listener),
                    true,
                ),
                ApplyTo::ListenerFilter => {
                    add(
                        &mut index.listener_filters,
                        patch.clone(),
                        ListenerKey::of(listener),
                        false,
                    );
                }
                ApplyTo::FilterChain => add(
                    &mut index.chains,
                    patch.clone(),
                    ChainKey::of(listener),
                    true,
                ),
                ApplyTo::NetworkFilter => {
                    add(
                        &mut index.network_filters,
                        patch.clone(),
                        ChainKey::of(listener),
                        false,
                    );
                }
                ApplyTo::HttpFilter => {
                    add(
                        &mut index.http_filters,
                        patch.clone(),
                        ChainKey::of(listener),
                        false,
                    );
                }
                _ => of_routes.push(patch),
            }
        }
        index.routes = RoutePatches::build(of_routes);
        index
    }
}

fn add<K: std::hash::Hash>(
    kind: &mut Kind,
    patch: Arc<Patch>,
    key: Option<K>,
    additions_apart: bool,
) {
    let Ok(position) = u32::try_from(kind.patches.len()) else {
        return;
    };
    if additions_apart && patch.operation == Operation::Add {
        kind.additions.push(position);
    } else {
        kind.buckets.push(position, key);
    }
    kind.patches.push(patch);
}

impl ListenerPatches {
    /// Tells whether patches may touch a listener or anything in it, or it would be tidied up.
    pub(crate) fn concerns(&self, listener: &Listener, pass: Pass) -> bool {
        let keys = ListenerKeys::of(listener);
        let has_routes = takes_route_patches(listener, pass) && !self.routes.is_empty();
        let chains = listener.filter_chains.iter();
        has_routes
            || is_untidy(listener)
            || self.listeners.any(&self.of_listener(&keys), pass)
            || self
                .listener_filters
                .any(&self.of_listener_filters(&keys), pass)
            || self.chains.any(&self.chains.additions, pass)
            || chains.chain(&listener.default_filter_chain).any(|chain| {
                let probes = ChainKeys::of(&keys, chain).probes();
                let kinds = [&self.chains, &self.network_filters, &self.http_filters];
                kinds
                    .iter()
                    .any(|kind| kind.any(&kind.buckets.candidates(probes.iter().cloned()), pass))
            })
    }

    /// Patches a listener; `None` when it is removed.
    pub(crate) fn apply(&self, mut listener: Listener, run: &Run) -> Option<Listener> {
        if takes_route_patches(&listener, run.pass) {
            let chains = listener.filter_chains.iter_mut();
            for chain in chains.chain(&mut listener.default_filter_chain) {
                self.patch_inline_routes(chain, run);
            }
        }
        let mut listener = Some(listener);
        self.patch_listener(&mut listener, run);
        let mut listener = listener?;
        self.patch_listener_filters(&mut listener, run);
        self.patch_chains(&mut listener, run);
        self.add_chains(&mut listener, run);
        (!listener.name.is_empty()).then_some(listener)
    }

    /// Lists the patches that add listeners in a pass.
    pub(crate) fn adding(&self, pass: Pass) -> impl Iterator<Item = Arc<Patch>> + '_ {
        let additions = self.listeners.additions.iter();
        additions
            .map(|position| self.listeners.get(*position))
            .filter(move |patch| patch.adds_in(pass))
            .cloned()
    }

    fn of_listener(&self, keys: &ListenerKeys) -> Vec<u32> {
        self.listeners.buckets.candidates(keys.probes())
    }

    fn of_listener_filters(&self, keys: &ListenerKeys) -> Vec<u32> {
        if keys.is_virtual() {
            // On these listeners ports are not tested.
            return self.listener_filters.buckets.all();
        }
        self.listener_filters.buckets.candidates(keys.probes())
    }

    fn patch_listener(&self, slot: &mut Option<Listener>, run: &Run) {
        walk(
            slot,
            |slot| slot.as_ref().map(ListenerKeys::of).unwrap_or_default(),
            |keys| self.of_listener(keys),
            |slot, position| {
                let Some(listener) = slot else {
                    return Step::Stop;
                };
                let patch = self.listeners.get(position);
                if !patch.is_for(run.pass) || !ListenerKeys::of(listener).matches(patch) {
                    return Step::Untouched;
                }
                if patch.operation == Operation::Remove {
                    *slot = None;
                    run.applied(patch);
                    return Step::Stop;
                }
                let Some(lists) = patch.merges() else {
                    run.missed(
                        patch,
                        &format_args!("listeners have no {}", patch.operation),
                    );
                    return Step::Untouched;
                };
                patch.merge_into(listener, lists, run);
                Step::Changed
            },
        );
    }

    fn patch_listener_filters(&self, listener: &mut Listener, run: &Run) {
        let keys = ListenerKeys::of(listener);
        for position in self.of_listener_filters(&keys) {
            let patch = self.listener_filters.get(position);
            if !patch.is_for(run.pass) || !keys.matches(patch) {
                continue;
            }
            let anchor = patch
                .matching
                .listener
                .as_ref()
                .map(|m| m.listener_filter.as_str());
            let anchor = anchor.filter(|name| !name.is_empty());
            if patch.operation != Operation::Merge {
                filters::change(&mut listener.listener_filters, patch, anchor, run);
                continue;
            }
            let filters = listener.listener_filters.iter_mut();
            for filter in filters.filter(|f| anchor == Some(&f.name)) {
                filters::merge(filter, patch, false, run);
            }
        }
    }

    fn patch_chains(&self, listener: &mut Listener, run: &Run) {
        let keys = ListenerKeys::of(listener);
        let chains = std::mem::take(&mut listener.filter_chains);
        listener.filter_chains = chains
            .into_iter()
            .filter_map(|chain| {
                if chain.filters.is_empty() {
                    run.tidied();
                    return None;
                }
                self.patch_chain(&keys, chain, run)
            })
            .collect();
        if let Some(chain) = listener.default_filter_chain.take() {
            listener.default_filter_chain = if chain.filters.is_empty() {
                Some(chain)
            } else {
                self.patch_chain(&keys, chain, run)
            };
        }
    }

    fn add_chains(&self, listener: &mut Listener, run: &Run) {
        let keys = ListenerKeys::of(listener);
        for position in &self.chains.additions {
            let patch = self.chains.get(*position);
            if !patch.is_for(run.pass) || !keys.matches(patch) {
                continue;
            }
            match patch.typed::<FilterChain>(run) {
                // A chain without filters would be dropped again.
                Some(chain) if chain.filters.is_empty() => {
                    run.failed(patch, &"the chain that it adds has no filters");
                }
                Some(chain) => {
                    listener.filter_chains.push(chain);
                    run.applied(patch);
                }
                None => {}
            }
        }
    }
}

/// Tells whether a listener has what is dropped wherever EnvoyFilters attach (§10.1): chains
/// without filters, or no name.
fn is_untidy(listener: &Listener) -> bool {
    let mut chains = listener.filter_chains.iter();
    listener.name.is_empty() || chains.any(|chain| chain.filters.is_empty())
}

/// Tells whether patches of routes apply to what is embedded in a listener: to the routes to the
/// workload's own ports, not to those that end tunnels.
fn takes_route_patches(listener: &Listener, pass: Pass) -> bool {
    pass == Pass::SidecarInbound && listener.name != CONNECT_TERMINATE
}

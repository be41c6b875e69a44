//! Patches of listeners, their filters and chains (envoyfilter §10–§14).

mod chain;
mod matching;

use std::sync::Arc;

use envoy_types::pb::envoy::config::listener::v3::{FilterChain, Listener};
use model::api::envoy_filter::{ApplyTo, Operation};

use super::{
    Pass, Patch, PatchIndex, RoutePatches,
    buckets::{Buckets, Step, walk},
    filters,
};
use matching::{ChainKey, ChainKeys, ListenerKey, ListenerKeys};

/// Patches of listeners and of everything in them.
#[derive(Debug, Default)]
pub(crate) struct ListenerPatches {
    listeners: Kind<ListenerKey>,
    listener_filters: Kind<ListenerKey>,
    chains: Kind<ChainKey>,
    network_filters: Kind<ChainKey>,
    http_filters: Kind<ChainKey>,
    /// Patches of routes that are embedded in listeners.
    routes: RoutePatches,
}

/// The patches of one kind, in order, with their index.
#[derive(Debug)]
struct Kind<K> {
    patches: Vec<Arc<Patch>>,
    /// What changes existing things; additions of whole listeners and chains are apart.
    buckets: Buckets<K>,
    additions: Vec<u32>,
}

impl<K> Default for Kind<K> {
    fn default() -> Self {
        Self {
            patches: Vec::new(),
            buckets: Buckets::default(),
            additions: Vec::new(),
        }
    }
}

impl<K> Kind<K> {
    fn get(&self, position: u32) -> &Arc<Patch> {
        &self.patches[position as usize]
    }
}

impl PatchIndex for ListenerPatches {
    const KINDS: &'static [ApplyTo] = &[
        ApplyTo::Listener,
        ApplyTo::ListenerFilter,
        ApplyTo::FilterChain,
        ApplyTo::NetworkFilter,
        ApplyTo::HttpFilter,
        ApplyTo::RouteConfiguration,
        ApplyTo::VirtualHost,
        ApplyTo::HttpRoute,
    ];

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

fn add<K: std::hash::Hash + Eq>(
    kind: &mut Kind<K>,
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
    /// Lists the patches that may touch a listener or anything in it, for its cache key and its
    /// sources.
    pub(crate) fn candidates(&self, listener: &Listener, pass: Pass) -> Vec<Arc<Patch>> {
        let keys = ListenerKeys::of(listener);
        let mut found: Vec<Arc<Patch>> = Vec::new();
        let mut take = |list: &mut dyn Iterator<Item = &Arc<Patch>>| {
            found.extend(list.filter(|patch| patch.is_for(pass)).cloned());
        };
        take(
            &mut self
                .of_listener(&keys)
                .iter()
                .map(|p| self.listeners.get(*p)),
        );
        take(
            &mut self
                .of_listener_filters(&keys)
                .iter()
                .map(|p| self.listener_filters.get(*p)),
        );
        take(&mut self.chains.additions.iter().map(|p| self.chains.get(*p)));
        for chain in listener
            .filter_chains
            .iter()
            .chain(&listener.default_filter_chain)
        {
            let probes = ChainKeys::of(&keys, chain).probes();
            for kind in [&self.chains, &self.network_filters, &self.http_filters] {
                let positions = kind.buckets.candidates(probes.iter().cloned());
                take(&mut positions.iter().map(|p| kind.get(*p)));
            }
        }
        if pass == Pass::SidecarInbound {
            found.extend(self.routes.all(pass));
        }
        found
    }

    /// Patches a listener; `None` when it is removed.
    pub(crate) fn apply(&self, listener: Listener, pass: Pass) -> Option<Listener> {
        let mut listener = Some(listener);
        self.patch_listener(&mut listener, pass);
        let mut listener = listener.filter(|l| !l.name.is_empty())?;
        self.patch_listener_filters(&mut listener, pass);
        self.patch_chains(&mut listener, pass);
        self.add_chains(&mut listener, pass);
        Some(listener)
    }

    /// Builds the listeners that patches add in a pass, each with its patch.
    pub(crate) fn added(&self, pass: Pass) -> Vec<(Listener, &Arc<Patch>)> {
        let additions = self
            .listeners
            .additions
            .iter()
            .map(|p| self.listeners.get(*p));
        additions
            .filter(|patch| patch.adds_in(pass))
            .filter_map(|patch| Some((patch.typed::<Listener>()?, patch)))
            .filter(|(listener, _)| !listener.name.is_empty())
            .collect()
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

    fn patch_listener(&self, slot: &mut Option<Listener>, pass: Pass) {
        walk(
            slot,
            |slot| slot.as_ref().map(ListenerKeys::of).unwrap_or_default(),
            |keys| self.of_listener(keys),
            |slot, position| {
                let Some(listener) = slot else {
                    return Step::Stop;
                };
                let patch = self.listeners.get(position);
                if !patch.is_for(pass) || !ListenerKeys::of(listener).matches(patch) {
                    return Step::Untouched;
                }
                if patch.operation == Operation::Remove {
                    *slot = None;
                    return Step::Stop;
                }
                match patch.merges() {
                    Some(lists) => patch.merge_into(listener, lists),
                    None => return Step::Untouched,
                }
                Step::Changed
            },
        );
    }

    fn patch_listener_filters(&self, listener: &mut Listener, pass: Pass) {
        let keys = ListenerKeys::of(listener);
        for position in self.of_listener_filters(&keys) {
            let patch = self.listener_filters.get(position);
            if !patch.is_for(pass) || !keys.matches(patch) {
                continue;
            }
            let anchor = patch
                .matching
                .listener
                .as_ref()
                .map(|m| m.listener_filter.as_str());
            let anchor = anchor.filter(|name| !name.is_empty());
            if patch.operation != Operation::Merge {
                filters::change(&mut listener.listener_filters, patch, anchor);
                continue;
            }
            let named = |name: &str| anchor == Some(name);
            for filter in listener
                .listener_filters
                .iter_mut()
                .filter(|f| named(&f.name))
            {
                filters::merge(filter, patch, false);
            }
        }
    }

    fn patch_chains(&self, listener: &mut Listener, pass: Pass) {
        let keys = ListenerKeys::of(listener);
        let chains = std::mem::take(&mut listener.filter_chains);
        listener.filter_chains = chains
            .into_iter()
            .filter_map(|chain| {
                let had_filters = !chain.filters.is_empty();
                had_filters
                    .then(|| self.patch_chain(&keys, chain, pass))
                    .flatten()
            })
            .collect();
        if let Some(chain) = listener.default_filter_chain.take() {
            listener.default_filter_chain = if chain.filters.is_empty() {
                Some(chain)
            } else {
                self.patch_chain(&keys, chain, pass)
            };
        }
    }

    fn add_chains(&self, listener: &mut Listener, pass: Pass) {
        let keys = ListenerKeys::of(listener);
        for position in &self.chains.additions {
            let patch = self.chains.get(*position);
            if !patch.is_for(pass) || !keys.matches(patch) {
                continue;
            }
            // A chain without filters would be dropped again.
            if let Some(chain) = patch
                .typed::<FilterChain>()
                .filter(|c| !c.filters.is_empty())
            {
                listener.filter_chains.push(chain);
            }
        }
    }
}

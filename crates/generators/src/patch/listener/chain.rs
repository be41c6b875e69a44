//! Patches of one filter chain and its filters (envoyfilter §12–§14).

use std::sync::Arc;

use envoy_types::pb::{
    envoy::{
        config::listener::v3::{Filter, FilterChain, filter::ConfigType},
        extensions::filters::network::http_connection_manager::v3::{
            HttpConnectionManager, http_connection_manager::RouteSpecifier,
        },
    },
    google::protobuf::Any,
};
use model::api::envoy_filter::{FilterMatch, Operation};
use prost::Message as _;

use super::{
    ListenerPatches, Patch, Run, Step, filters,
    matching::{ChainKeys, ListenerKeys},
    walk,
};
use crate::patch::{Reach, cluster::merge_socket, route::RouteNames};

const HTTP_MANAGER: &str = "envoy.filters.network.http_connection_manager";

impl ListenerPatches {
    /// Patches a chain; `None` when it is removed.
    pub(super) fn patch_chain(
        &self,
        listener: &ListenerKeys,
        chain: FilterChain,
        run: &Run,
    ) -> Option<FilterChain> {
        let mut slot = Some(chain);
        walk(
            &mut slot,
            |slot| {
                slot.as_ref()
                    .map(|c| ChainKeys::of(listener, c))
                    .unwrap_or_default()
            },
            |keys| self.chains.buckets.candidates(keys.probes()),
            |slot, position| {
                let Some(chain) = slot else { return Step::Stop };
                let patch = self.chains.get(position);
                if !patch.is_for(run.pass) || !ChainKeys::of(listener, chain).matches(patch) {
                    return Step::Untouched;
                }
                if patch.operation == Operation::Remove {
                    *slot = None;
                    run.applied(patch);
                    return Step::Stop;
                }
                let Some(lists) = patch.merges() else {
                    run.missed(patch, &format_args!("chains have no {}", patch.operation));
                    return Step::Untouched;
                };
                if !merge_socket_of(patch, chain, run) {
                    patch.merge_into(chain, lists, run);
                }
                Step::Changed
            },
        );
        let mut chain = slot?;
        let keys = ChainKeys::of(listener, &chain);
        self.patch_network_filters(&keys, &mut chain, run);
        Some(chain)
    }

    fn patch_network_filters(&self, keys: &ChainKeys, chain: &mut FilterChain, run: &Run) {
        let probes = keys.probes();
        let network: Vec<&Arc<Patch>> = self
            .network_filters
            .buckets
            .candidates(probes.iter().cloned())
            .into_iter()
            .map(|position| self.network_filters.get(position))
            .filter(|patch| patch.is_for(run.pass) && keys.matches(patch))
            .collect();
        let http: Vec<&Arc<Patch>> = self
            .http_filters
            .buckets
            .candidates(probes)
            .into_iter()
            .map(|position| self.http_filters.get(position))
            .filter(|patch| patch.is_for(run.pass) && keys.matches(patch))
            .collect();
        for patch in &network {
            if patch.operation != Operation::Merge {
                let anchor = filter_match(patch).map(|f| f.name.as_str());
                filters::change(&mut chain.filters, patch, anchor, run);
            }
        }
        for filter in &mut chain.filters {
            for patch in network.iter().filter(|p| p.operation == Operation::Merge) {
                if filter_match(patch).is_none_or(|f| f.name == filter.name) {
                    filters::merge(filter, patch, true, run);
                }
            }
            if filter.name == HTTP_MANAGER && !http.is_empty() {
                patch_http_filters(filter, &http, run);
            }
        }
    }

    /// Patches the routes that are embedded in the connection managers of a chain: of inbound
    /// traffic, as it was generated.
    pub(super) fn patch_inline_routes(&self, chain: &mut FilterChain, run: &Run) {
        if self.routes.is_empty() {
            return;
        }
        for filter in chain.filters.iter_mut().filter(|f| f.name == HTTP_MANAGER) {
            edit_manager(filter, |manager| {
                let Some(RouteSpecifier::RouteConfig(routes)) = &mut manager.route_specifier else {
                    return false;
                };
                let names = RouteNames::of_sidecar(&routes.name);
                let concerned = self.routes.reach(&names, run.pass) != Reach::Nothing;
                if concerned {
                    self.routes.apply(routes, &names, run);
                }
                concerned
            });
        }
    }
}

/// Patches the filters of a connection manager.
fn patch_http_filters(filter: &mut Filter, patches: &[&Arc<Patch>], run: &Run) {
    let name = filter.name.clone();
    let of_manager = |patch: &&&Arc<Patch>| {
        filter_match(patch).is_none_or(|f| f.name.is_empty() || f.name == name)
    };
    edit_manager(filter, |manager| {
        let mut changed = false;
        for patch in patches.iter().filter(of_manager) {
            if patch.operation != Operation::Merge {
                let anchor = sub_filter(patch);
                changed |= filters::change(&mut manager.http_filters, patch, anchor, run);
            }
        }
        for filter in &mut manager.http_filters {
            for patch in patches.iter().filter(of_manager) {
                let named = sub_filter(patch).is_none_or(|name| name == filter.name);
                if patch.operation == Operation::Merge && named {
                    changed |= filters::merge(filter, patch, true, run);
                }
            }
        }
        changed
    });
}

/// Decodes a connection manager, and encodes it again if `edit` changed it.
fn edit_manager(filter: &mut Filter, edit: impl FnOnce(&mut HttpConnectionManager) -> bool) {
    let Some(ConfigType::TypedConfig(Any { value, .. })) = &filter.config_type else {
        return;
    };
    let Ok(mut manager) = HttpConnectionManager::decode(value.as_slice()) else {
        return;
    };
    if edit(&mut manager) {
        filter.config_type = Some(ConfigType::TypedConfig(envoy_json::any(&manager)));
    }
}

fn filter_match(patch: &Patch) -> Option<&FilterMatch> {
    patch
        .matching
        .listener
        .as_ref()?
        .filter_chain
        .as_ref()?
        .filter
        .as_ref()
}

fn sub_filter(patch: &Patch) -> Option<&str> {
    Some(filter_match(patch)?.sub_filter.as_ref()?.name.as_str())
}

/// Merges the transport socket of a patch into that of the chain when both have one name; tells
/// whether it did: then the rest of the patch does not count (envoyfilter §12.2).
fn merge_socket_of(patch: &Arc<Patch>, chain: &mut FilterChain, run: &Run) -> bool {
    let states_socket = patch
        .value
        .as_ref()
        .is_some_and(|value| value.has_field_by_name("transport_socket"));
    let Some(socket) = chain.transport_socket.as_mut().filter(|_| states_socket) else {
        return false;
    };
    let Some(wanted) = patch
        .typed::<FilterChain>(run)
        .and_then(|value| value.transport_socket)
    else {
        return false;
    };
    if wanted.name != socket.name {
        return false;
    }
    merge_socket(patch, socket, &wanted, run);
    true
}

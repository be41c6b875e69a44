//! Scopes that import everything: views of the snapshot's indexes.
//!
//! They cost what is special about them: host names that several services have, and services that
//! only a VirtualService leads to. Everything else is looked up where the snapshot has it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::Service;
use rustc_hash::FxHashMap;

use super::{
    build::{Builder, Collector},
    list::{ServiceList, View},
};
use crate::{
    Routes,
    order::InOrder,
    virtual_service::destinations::{destinations, is_for_callers_in},
};

/// The services of a scope that imports everything.
pub(super) struct Everything {
    /// Services of its one listener.
    pub(super) listener: ServiceList,
    /// Services of the scope.
    pub(super) services: ServiceList,
    /// Host names that cannot be looked up in the index, with the service of the scope.
    pub(super) special: BTreeMap<Arc<str>, Option<Arc<Service>>>,
}

impl Builder<'_> {
    /// Computes a scope that imports everything. `routes` lead to further services; without them it
    /// is the scope of gateways, where no namespace is preferred.
    pub(super) fn everything(&self, routes: Option<&Routes>) -> Everything {
        let index = self.context.services();
        let (exported, public) = index.lists(self.namespace);
        let mut listener = View {
            exported: exported.cloned().unwrap_or_default(),
            public: public.clone(),
            ..View::default()
        };
        let mut services = listener.clone();
        let mut special = BTreeMap::new();

        // No service, one entry per use: the ports that each VirtualService names.
        let mut uses: FxHashMap<Arc<str>, Vec<BTreeSet<u32>>> = index
            .shared_hosts()
            .map(|host| (host.clone(), Vec::new()))
            .collect();
        if routes.is_some() {
            let hidden = index.hidden_in(self.namespace);
            uses.extend(hidden.map(|key| (key.hostname.clone(), Vec::new())));
        }
        if !uses.is_empty() {
            for vs in routes.into_iter().flat_map(|routes| routes.iter()) {
                let own = |route: &_| is_for_callers_in(route, self.namespace);
                for (host, ports) in destinations(&vs.config.spec, own) {
                    if let Some(uses) = uses.get_mut(host) {
                        uses.push(ports);
                    }
                }
            }
        }
        let uses: BTreeMap<_, _> = uses.into_iter().collect();
        for (host, uses) in uses {
            let visible = index.visible_of_host(self.context.state(), &host, self.namespace);
            let kept = match routes {
                Some(_) => self.one_namespace_per_host(visible.clone()),
                None => visible.clone(),
            };
            let mut collector = Collector::default();
            for service in &kept {
                collector.add(service);
            }
            for ports in uses {
                self.add_destination(&host, &ports, &mut collector);
            }
            let result = collector.into_services().into_iter().next();

            for lost in visible
                .iter()
                .filter(|s| !kept.iter().any(|k| Arc::ptr_eq(s, k)))
            {
                listener.changed.insert(InOrder(lost.clone()), None);
                services.changed.insert(InOrder(lost.clone()), None);
            }
            match (kept.split_first(), &result) {
                (Some((first, others)), result) => {
                    services
                        .changed
                        .insert(InOrder(first.clone()), result.clone());
                    let others = others.iter().map(|other| (InOrder(other.clone()), None));
                    services.changed.extend(others);
                }
                (None, Some(service)) => services.more.push(service.clone()),
                (None, None) => {}
            }
            special.insert(host, result);
        }
        Everything {
            listener: ServiceList::view(listener),
            services: ServiceList::view(services),
            special,
        }
    }
}

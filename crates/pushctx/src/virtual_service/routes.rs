//! The VirtualServices that take part in a listener.

use std::{
    collections::BTreeSet,
    ops::Deref,
    sync::{Arc, OnceLock},
};

use model::host::{HostMap, is_wildcard};
use rustc_hash::FxHashMap;

use super::{ResolvedVirtualService, RouteSemantics};

/// VirtualServices in order, looked up by the hosts that they are for.
#[derive(Default, Debug)]
pub struct Routes {
    list: Vec<Arc<ResolvedVirtualService>>,
    hosts: OnceLock<Hosts>,
}

/// Hosts of the VirtualServices with the place of the first one that has each.
#[derive(Default, Debug)]
struct Hosts {
    plain: FxHashMap<String, usize>,
    wildcard: HostMap<usize>,
}

impl Routes {
    pub(crate) fn new(list: Vec<Arc<ResolvedVirtualService>>) -> Self {
        Self {
            list,
            hosts: OnceLock::new(),
        }
    }

    /// Finds the VirtualService whose host matches a service's host most specifically; of those with
    /// the same host, the first.
    pub fn of_host(&self, hostname: &str) -> Option<&Arc<ResolvedVirtualService>> {
        let hosts = self.hosts.get_or_init(|| self.index());
        let plain = if is_wildcard(hostname) {
            None
        } else {
            hosts.plain.get(hostname)
        };
        let place = plain.or_else(|| Some(hosts.wildcard.most_specific(hostname)?.1))?;
        self.list.get(*place)
    }

    /// Namespaces that have a VirtualService made from Gateway API among these.
    pub(super) fn gateway_api_namespaces(&self) -> BTreeSet<Arc<str>> {
        self.list
            .iter()
            .filter(|vs| vs.semantics == RouteSemantics::Gateway)
            .map(|vs| vs.config.meta.namespace.clone())
            .collect()
    }

    fn index(&self) -> Hosts {
        let mut hosts = Hosts::default();
        for (place, vs) in self.list.iter().enumerate() {
            for host in &vs.config.spec.hosts {
                if is_wildcard(host) {
                    hosts.wildcard.entry(host, || place);
                } else if !hosts.plain.contains_key(host) {
                    hosts.plain.insert(host.clone(), place);
                }
            }
        }
        hosts
    }
}

impl Deref for Routes {
    type Target = [Arc<ResolvedVirtualService>];

    fn deref(&self) -> &Self::Target {
        &self.list
    }
}

/// The routes of namespaces that see nothing but public VirtualServices; made when first asked for.
#[derive(Default, Debug)]
pub(super) struct PublicRoutes(OnceLock<(Arc<Routes>, BTreeSet<Arc<str>>)>);

impl PublicRoutes {
    /// Returns the routes unless the namespace has Gateway API routes of its own, which come first.
    pub(super) fn of(
        &self,
        namespace: &str,
        list: impl FnOnce() -> Vec<Arc<ResolvedVirtualService>>,
    ) -> Option<Arc<Routes>> {
        let (routes, special) = self.0.get_or_init(|| {
            let routes = Routes::new(list());
            let special = routes.gateway_api_namespaces();
            (Arc::new(routes), special)
        });
        (!special.contains(namespace)).then(|| routes.clone())
    }
}

impl Clone for PublicRoutes {
    /// A copy is about to be changed: what was made of the original is not its own.
    fn clone(&self) -> Self {
        Self::default()
    }
}

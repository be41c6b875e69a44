//! VirtualServices by the hosts that they are for, all of those that match a host.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::host;
use pushctx::ResolvedVirtualService;

/// VirtualServices by host.
#[derive(Debug)]
pub(crate) struct ByHost<'a> {
    exact: BTreeMap<&'a str, Vec<usize>>,
    wildcard: Vec<(&'a str, usize)>,
    list: Vec<&'a Arc<ResolvedVirtualService>>,
}

impl<'a> ByHost<'a> {
    /// Indexes VirtualServices; their order decides among several.
    pub(crate) fn new(all: impl Iterator<Item = &'a Arc<ResolvedVirtualService>>) -> Self {
        let mut rules = Self {
            exact: BTreeMap::new(),
            wildcard: Vec::new(),
            list: Vec::new(),
        };
        for vs in all {
            let at = rules.list.len();
            rules.list.push(vs);
            for name in &vs.config.spec.hosts {
                if host::is_wildcard(name) {
                    rules.wildcard.push((name, at));
                } else {
                    rules.exact.entry(name).or_default().push(at);
                }
            }
        }
        rules
    }

    /// Lists those with a host that matches `hostname`, in order.
    pub(crate) fn matching(
        &self,
        hostname: &str,
    ) -> impl Iterator<Item = &'a Arc<ResolvedVirtualService>> {
        let mut found: BTreeSet<&usize> = BTreeSet::new();
        if !self.list.is_empty() {
            if host::is_wildcard(hostname) {
                let plain = self
                    .exact
                    .iter()
                    .filter(|(name, _)| host::matches(name, hostname));
                found.extend(plain.flat_map(|(_, at)| at));
            } else if let Some(at) = self.exact.get(hostname) {
                found.extend(at);
            }
            let wild = self
                .wildcard
                .iter()
                .filter(|(name, _)| host::matches(name, hostname));
            found.extend(wild.map(|(_, at)| at));
        }
        found.into_iter().map(|at| self.list[*at])
    }
}

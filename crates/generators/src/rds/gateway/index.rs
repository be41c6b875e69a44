//! Which hosts of a server a VirtualService has.

use std::collections::HashMap;

use model::host;
use pushctx::ResolvedVirtualService;

/// The hosts of a server, found by name: there may be thousands, and as many VirtualServices.
pub(super) struct HostIndex<'a> {
    /// In order, each with the namespace whose VirtualServices it is for; without one it is for all.
    hosts: Vec<(Option<&'a str>, &'a str)>,
    /// Places of those that are no patterns.
    exact: HashMap<&'a str, Vec<usize>>,
    /// Places of patterns.
    patterns: Vec<usize>,
}

impl<'a> HostIndex<'a> {
    pub(super) fn of(hosts: &'a [String]) -> Self {
        let mut index = Self {
            hosts: Vec::with_capacity(hosts.len()),
            exact: HashMap::new(),
            patterns: Vec::new(),
        };
        for (place, host) in hosts.iter().enumerate() {
            let (namespace, host) = match host.split_once('/') {
                None => (None, host.as_str()),
                Some((namespace, host)) => (Some(namespace), host),
            };
            index.hosts.push((namespace, host));
            if host::is_wildcard(host) {
                index.patterns.push(place);
            } else {
                index.exact.entry(host).or_default().push(place);
            }
        }
        index
    }

    /// Hosts that both the server and a VirtualService have: the narrower of each pair that overlaps.
    pub(super) fn intersection(&self, vs: &ResolvedVirtualService) -> Vec<String> {
        let wanted = &vs.config.spec.hosts;
        let mut places: Vec<usize> = if wanted.iter().any(|host| host::is_wildcard(host)) {
            (0..self.hosts.len()).collect()
        } else {
            // A name overlaps with itself and with patterns.
            let exact = wanted
                .iter()
                .filter_map(|host| self.exact.get(host.as_str()));
            exact.flatten().chain(&self.patterns).copied().collect()
        };
        places.sort_unstable();
        places.dedup();
        let mut found: Vec<String> = Vec::new();
        for place in places {
            let (namespace, host) = self.hosts[place];
            if namespace.is_some_and(|namespace| *namespace != *vs.config.meta.namespace) {
                continue;
            }
            for wanted in wanted {
                let both = if host::subset_of(host, wanted) {
                    host
                } else if host::subset_of(wanted, host) {
                    wanted
                } else {
                    continue;
                };
                if !found.iter().any(|f| f == both) {
                    found.push(both.to_owned());
                }
            }
        }
        found
    }
}

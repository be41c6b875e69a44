//! Host names, wildcards and their order (config-model §7).

use std::{borrow::Cow, cmp::Ordering, net::IpAddr};

/// Tells whether `host` is wildcarded: its first byte is `*`.
pub fn is_wildcard(host: &str) -> bool {
    host.starts_with('*')
}

/// The suffix that a wildcard demands; `None` for a plain name.
fn suffix(host: &str) -> Option<&str> {
    host.strip_prefix('*')
}

/// Tells whether some name is matched by both `a` and `b`. Symmetric.
pub fn matches(a: &str, b: &str) -> bool {
    match (suffix(a), suffix(b)) {
        (None, None) => a == b,
        (Some(s), None) => b.ends_with(s),
        (None, Some(s)) => a.ends_with(s),
        (Some(s), Some(t)) if s.len() >= t.len() => s.ends_with(t),
        (Some(s), Some(t)) => t.ends_with(s),
    }
}

/// Tells whether every name that `a` matches is matched by `b`.
pub fn subset_of(a: &str, b: &str) -> bool {
    match (suffix(a), suffix(b)) {
        (None, None) => a == b,
        (None, Some(s)) => a.ends_with(s),
        (Some(_), None) => false,
        (Some(s), Some(t)) => a.len() >= b.len() && s.ends_with(t),
    }
}

/// The more-specific order: plain before wildcard, then longer first, then byte order.
pub fn more_specific(a: &str, b: &str) -> Ordering {
    is_wildcard(a)
        .cmp(&is_wildcard(b))
        .then_with(|| b.len().cmp(&a.len()))
        .then_with(|| a.cmp(b))
}

/// Hosts of one index with their values, looked up by the most specific match.
///
/// Plain and wildcard hosts are kept apart; wildcards are kept in more-specific order.
#[derive(Clone, Debug)]
pub struct HostMap<V> {
    plain: std::collections::BTreeMap<String, V>,
    wildcard: Vec<(String, V)>,
}

impl<V> Default for HostMap<V> {
    fn default() -> Self {
        Self {
            plain: std::collections::BTreeMap::new(),
            wildcard: Vec::new(),
        }
    }
}

impl<V> HostMap<V> {
    /// Returns the value of exactly this host, inserting what `make` gives when there is none.
    pub fn entry(&mut self, host: &str, make: impl FnOnce() -> V) -> &mut V {
        if !is_wildcard(host) {
            return self.plain.entry(host.to_owned()).or_insert_with(make);
        }
        let at = match self
            .wildcard
            .binary_search_by(|(h, _)| more_specific(h, host))
        {
            Ok(at) => at,
            Err(at) => {
                self.wildcard.insert(at, (host.to_owned(), make()));
                at
            }
        };
        &mut self.wildcard[at].1
    }

    /// Returns the value of exactly this host.
    pub fn get(&self, host: &str) -> Option<&V> {
        if !is_wildcard(host) {
            return self.plain.get(host);
        }
        let at = self
            .wildcard
            .binary_search_by(|(h, _)| more_specific(h, host))
            .ok()?;
        Some(&self.wildcard[at].1)
    }

    /// Returns the most specific entry that matches `needle` (config-model §7).
    ///
    /// A plain needle prefers the equal plain host, then the longest wildcard that it ends with. A
    /// wildcard needle prefers the equal wildcard, then a wider one; plain hosts never match it.
    pub fn most_specific(&self, needle: &str) -> Option<(&str, &V)> {
        let rest = match suffix(needle) {
            None => {
                if let Some((host, value)) = self.plain.get_key_value(needle) {
                    return Some((host, value));
                }
                needle
            }
            Some(rest) => rest,
        };
        self.wildcard
            .iter()
            .find(|(host, _)| rest.ends_with(&host[1..]))
            .map(|(host, value)| (host.as_str(), value))
    }

    /// Lists the entries: plain hosts in byte order, then wildcards, most specific first.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &V)> {
        self.plain
            .iter()
            .map(|(h, v)| (h.as_str(), v))
            .chain(self.wildcard.iter().map(|(h, v)| (h.as_str(), v)))
    }

    /// Tells whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.plain.is_empty() && self.wildcard.is_empty()
    }
}

/// Expands a short host name in `namespace` of `domain` (config-model §7).
///
/// Empty names, `*`, IP addresses and anything with a dot stay as they are.
pub fn expand<'a>(host: &'a str, namespace: &str, domain: &str) -> Cow<'a, str> {
    if host.is_empty() || host == "*" || host.contains('.') || host.parse::<IpAddr>().is_ok() {
        return Cow::Borrowed(host);
    }
    let mut name = host.to_owned();
    if !namespace.is_empty() {
        name.push('.');
        name.push_str(namespace);
    }
    name.push_str(".svc");
    if !domain.is_empty() {
        name.push('.');
        name.push_str(domain);
    }
    Cow::Owned(name)
}

/// Expands a gateway reference of a VirtualService in `namespace` to `ns/name`; `mesh` stays.
pub fn expand_gateway<'a>(gateway: &'a str, namespace: &str) -> Cow<'a, str> {
    if gateway == "mesh" {
        return Cow::Borrowed(gateway);
    }
    if let Some((ns, name)) = gateway.split_once('/') {
        return if ns == "." {
            Cow::Owned(format!("{namespace}/{name}"))
        } else {
            Cow::Borrowed(gateway)
        };
    }
    let mut parts = gateway.split('.');
    match (parts.next(), parts.next()) {
        (Some(name), Some(ns)) => Cow::Owned(format!("{ns}/{name}")),
        _ => Cow::Owned(format!("{namespace}/{gateway}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wildcards_match_by_suffix() {
        assert!(matches("*.com", "a.com"));
        assert!(matches("a.com", "*com"));
        assert!(matches("*", "*.com"));
        assert!(!matches("*.com", "a.org"));
        assert!(subset_of("*.a.com", "*.com"));
        assert!(!subset_of("*.com", "a.com"));
        assert!(!subset_of("*", "*.com"));
    }

    #[test]
    fn most_specific_prefers_plain_then_longest() {
        let mut map = HostMap::default();
        for h in ["*", "*.com", "*.a.com", "x.a.com"] {
            map.entry(h, || h);
        }
        for (needle, expected) in [
            ("x.a.com", Some("x.a.com")),
            ("y.a.com", Some("*.a.com")),
            ("*.a.com", Some("*.a.com")),
            ("*.y.a.com", Some("*.a.com")),
            ("b.com", Some("*.com")),
            ("b.org", Some("*")),
        ] {
            assert_eq!(
                map.most_specific(needle).map(|(h, _)| h),
                expected,
                "{needle}"
            );
        }
    }

    #[test]
    fn short_names_expand() {
        assert_eq!(
            expand("reviews", "app", "cluster.local"),
            "reviews.app.svc.cluster.local"
        );
        assert_eq!(expand("reviews.app", "x", "d"), "reviews.app");
        assert_eq!(expand("10.0.0.1", "x", "d"), "10.0.0.1");
        assert_eq!(expand("::1", "x", "d"), "::1");
        assert_eq!(expand_gateway("gw.ns.svc", "app"), "ns/gw");
        assert_eq!(expand_gateway("./gw", "app"), "app/gw");
    }
}

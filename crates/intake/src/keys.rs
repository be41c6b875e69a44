//! Keys of token issuers, fetched outside of the event path (security-policy §6).
//!
//! A `RequestAuthentication` rule that states no keys gets them filled in on its way into the tables:
//! what reads the tables sees a rule with keys. Nobody waits for a fetch. Until there are keys the rule
//! has none, and no token passes it; other issuers are not concerned.

mod fetch;

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
    time::Duration,
};

use model::{Config, ConfigKey, Object, api};

pub use self::fetch::{Fetches, follow};

/// Longest time that a fetch may take, unless a rule says otherwise.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);

/// Where the keys of a rule come from.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct KeySource {
    /// The issuer.
    pub issuer: Arc<str>,
    /// Where its keys are; empty means that the issuer's `OpenID` configuration says it.
    pub uri: Arc<str>,
}

impl fmt::Display for KeySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.uri.is_empty() {
            write!(f, "issuer {}", self.issuer)
        } else {
            f.write_str(&self.uri)
        }
    }
}

/// Where keys come from, and how long fetching them may take.
pub type KeySources = BTreeMap<KeySource, Duration>;

type Policy = Config<api::RequestAuthentication>;

/// Keys that are known, and the objects that need some.
#[derive(Default, Debug)]
pub(crate) struct KeySets {
    /// Proxies fetch what rules name an address for (`PILOT_JWT_ENABLE_REMOTE_JWKS=envoy`).
    by_proxies: bool,
    known: BTreeMap<KeySource, Arc<str>>,
    /// Objects with rules that state no keys, as they were read.
    users: BTreeMap<ConfigKey, Arc<Policy>>,
    users_of: BTreeMap<KeySource, BTreeSet<ConfigKey>>,
    sources: Arc<KeySources>,
    /// The users have changed since `sources` was made.
    is_stale: bool,
}

impl KeySets {
    /// Makes one without objects, for a mode of `PILOT_JWT_ENABLE_REMOTE_JWKS`.
    pub(crate) fn new(mode: &str) -> Self {
        Self {
            by_proxies: mode == "envoy",
            ..Self::default()
        }
    }

    /// Notes an object that is new or different; returns it with the keys that are known.
    pub(crate) fn fill(&mut self, object: Object) -> Object {
        let key = object.key();
        let Object::RequestAuthentication(policy) = object else {
            return object;
        };
        let sources: BTreeSet<KeySource> = self.sources_of(&policy).collect();
        self.is_stale |= !sources.is_empty();
        // The old object goes last, so that keys that both use stay known.
        let old = self.users.remove(&key);
        for source in &sources {
            let users = self.users_of.entry(source.clone()).or_default();
            users.insert(key.clone());
        }
        if let Some(old) = old {
            self.unfile(&key, &old, &sources);
        }
        if sources.is_empty() {
            return Object::RequestAuthentication(policy);
        }
        let filled = self.filled(&policy);
        self.users.insert(key, policy);
        Object::RequestAuthentication(filled)
    }

    /// Forgets an object that is gone.
    pub(crate) fn forget(&mut self, key: &ConfigKey) {
        if let Some(policy) = self.users.remove(key) {
            self.unfile(key, &policy, &BTreeSet::new());
        }
    }

    /// Takes a user away from its sources, those in `kept` aside.
    fn unfile(&mut self, key: &ConfigKey, policy: &Policy, kept: &BTreeSet<KeySource>) {
        self.is_stale = true;
        let sources: Vec<KeySource> = self.sources_of(policy).collect();
        for source in sources.iter().filter(|source| !kept.contains(source)) {
            if let Some(users) = self.users_of.get_mut(source) {
                users.remove(key);
                if users.is_empty() {
                    self.users_of.remove(source);
                    self.known.remove(source);
                }
            }
        }
    }

    /// Takes over keys, or that there are none any more; returns the objects that this changes.
    pub(crate) fn set(&mut self, source: KeySource, keys: Option<Arc<str>>) -> Vec<Object> {
        let users = match self.users_of.get(&source) {
            Some(users) => users.clone(),
            // Nobody needs them any more.
            None => return Vec::new(),
        };
        match keys {
            Some(keys) => self.known.insert(source, keys),
            None => self.known.remove(&source),
        };
        let policies = users.iter().filter_map(|key| self.users.get(key));
        policies
            .map(|policy| Object::RequestAuthentication(self.filled(policy)))
            .collect()
    }

    /// Where keys come from that are not stated, as of the last [`KeySets::settle`].
    pub(crate) fn sources(&self) -> Arc<KeySources> {
        self.sources.clone()
    }

    /// Brings the sources up to date, once for many objects.
    pub(crate) fn settle(&mut self) {
        if !std::mem::take(&mut self.is_stale) {
            return;
        }
        let mut sources = KeySources::new();
        for policy in self.users.values() {
            for rule in &policy.spec.jwt_rules {
                let Some(source) = self.source(rule) else {
                    continue;
                };
                let timeout = rule.timeout.map_or(DEFAULT_TIMEOUT, api::Duration::to_std);
                let longest = sources.entry(source).or_default();
                *longest = timeout.max(*longest);
            }
        }
        self.sources = Arc::new(sources);
    }

    fn filled(&self, policy: &Arc<Policy>) -> Arc<Policy> {
        let mut filled = policy.clone();
        for (index, rule) in policy.spec.jwt_rules.iter().enumerate() {
            if let Some(keys) = self.source(rule).and_then(|source| self.known.get(&source)) {
                Arc::make_mut(&mut filled).spec.jwt_rules[index].jwks = keys.to_string();
            }
        }
        filled
    }

    fn sources_of<'a>(&'a self, policy: &'a Policy) -> impl Iterator<Item = KeySource> + 'a {
        policy.spec.jwt_rules.iter().filter_map(|r| self.source(r))
    }

    /// Where the keys of a rule come from; `None` when it states them or proxies fetch them.
    fn source(&self, rule: &api::security::JwtRule) -> Option<KeySource> {
        let by_proxies = self.by_proxies && !rule.jwks_uri.is_empty();
        (rule.jwks.is_empty() && !by_proxies).then(|| KeySource {
            issuer: rule.issuer.as_str().into(),
            uri: rule.jwks_uri.as_str().into(),
        })
    }
}

#[cfg(test)]
mod tests;

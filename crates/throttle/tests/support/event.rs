//! An event for tests: values in the order in which they were written, per (tenant, key).
#![allow(
    dead_code,
    clippy::allow_attributes,
    reason = "each test binary uses its part"
)]

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
    time::{Duration, Instant, SystemTime},
};

use throttle::{Event, Now, Scope};

pub(crate) type Key = (&'static str, u8);

/// Writes to keys of tenants. Without any it is global.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Writes {
    /// The values written to each key, oldest first.
    pub(crate) values: BTreeMap<Key, Vec<u32>>,
    /// Keys with an urgent write.
    pub(crate) urgent: BTreeSet<Key>,
}

impl Writes {
    pub(crate) fn new(writes: impl IntoIterator<Item = (&'static str, u8, u32)>) -> Self {
        let mut event = Self::default();
        for (tenant, key, value) in writes {
            event.values.entry((tenant, key)).or_default().push(value);
        }
        event
    }

    pub(crate) fn one(tenant: &'static str, key: u8, value: u32) -> Self {
        Self::new([(tenant, key, value)])
    }

    pub(crate) fn urgent(mut self) -> Self {
        self.urgent = self.values.keys().copied().collect();
        self
    }

    fn part(&self, choose: impl Fn(&Key) -> bool) -> Self {
        let values = self.values.iter().filter(|(key, _)| choose(key));
        Self {
            values: values.map(|(key, values)| (*key, values.clone())).collect(),
            urgent: self
                .urgent
                .iter()
                .copied()
                .filter(|key| choose(key))
                .collect(),
        }
    }
}

impl Event for Writes {
    type Tenant = &'static str;
    type Object = String;

    fn scope(&self) -> Scope<'_, &'static str> {
        let mut tenants = self.values.keys().map(|(tenant, _)| tenant);
        match tenants.next() {
            None => Scope::Global,
            Some(first) if tenants.all(|tenant| tenant == first) => Scope::Tenant(first),
            Some(_) => Scope::Mixed,
        }
    }

    fn split(self) -> Vec<(Option<&'static str>, Self)> {
        let tenants: BTreeSet<_> = self.values.keys().map(|(tenant, _)| *tenant).collect();
        tenants
            .into_iter()
            .map(|tenant| (Some(tenant), self.part(|key| key.0 == tenant)))
            .collect()
    }

    fn merge(&mut self, newer: Self) {
        for (key, values) in newer.values {
            self.values.entry(key).or_default().extend(values);
        }
        self.urgent.extend(newer.urgent);
    }

    fn is_urgent(&self) -> bool {
        !self.urgent.is_empty()
    }

    fn split_urgent(self) -> (Option<Self>, Option<Self>) {
        let urgent = self.part(|key| self.urgent.contains(key));
        let rest = self.part(|key| !self.urgent.contains(key));
        let some = |part: Self| (!part.values.is_empty()).then_some(part);
        (some(urgent), some(rest))
    }

    fn objects(&self, visit: &mut dyn FnMut(&String)) {
        for (tenant, key) in self.values.keys() {
            visit(&format!("{tenant}/{key}"));
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "any fixed origin of virtual time does"
)]
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

/// The moment `millis` after the origin.
pub(crate) fn at(millis: u64) -> Now {
    let after = Duration::from_millis(millis);
    Now {
        at: *EPOCH + after,
        wall: SystemTime::UNIX_EPOCH + after,
    }
}

/// Milliseconds since the origin.
pub(crate) fn millis(at: Instant) -> u64 {
    u64::try_from(at.duration_since(*EPOCH).as_millis()).expect("short")
}

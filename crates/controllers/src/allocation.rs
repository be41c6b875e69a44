//! Addresses for hosts of ServiceEntries that have none (service-registry §13.2).
//!
//! An [`Allocator`] follows the table of ServiceEntries and says what their statuses should be. It looks
//! at what changed, and at who shares an address with that. The result depends on the tables that it was
//! shown and their order in time, on nothing else. An address in use, or handed out by this allocator
//! before, is not given to anybody else while others are left.

mod pool;

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
};

use imbl::ordmap::DiffItem;
use ipnet::IpNet;
use model::{
    api::{ServiceEntry, service_entry::Resolution},
    config::{Config, NamespacedName, Timestamp},
    host,
    kind::Table,
};

use self::pool::Pool;

/// The label by which an entry wants no addresses.
const LABEL: &str = "networking.istio.io/enable-autoallocate-ip";

/// What the status of an entry should say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Assignment {
    /// The entry.
    pub entry: NamespacedName,
    /// The version of the entry that this was decided by.
    pub version: String,
    /// Addresses with their hosts, in the order of the entry's hosts; IPv4 before IPv6.
    pub addresses: Vec<(IpAddr, String)>,
}

/// Gives addresses to hosts.
#[derive(Debug)]
pub struct Allocator {
    v4: Pool,
    v6: Pool,
    table: Table<ServiceEntry>,
    /// Who has an address in its status, oldest first.
    holders: BTreeMap<IpAddr, BTreeSet<Holder>>,
    /// How many entries state an address, or a range, in their spec.
    stated: BTreeMap<IpNet, usize>,
    /// What was given to entries whose status does not say so yet.
    given: BTreeMap<NamespacedName, BTreeMap<String, Vec<IpAddr>>>,
}

/// An entry, in the order in which an address that several hold is one's own.
type Holder = (Timestamp, NamespacedName);

impl Allocator {
    /// An allocator of the addresses of two ranges, IPv4 and IPv6, each but its first.
    pub fn new(v4: IpNet, v6: IpNet) -> Self {
        Self {
            v4: Pool::new(v4),
            v6: Pool::new(v6),
            table: Table::new(),
            holders: BTreeMap::new(),
            stated: BTreeMap::new(),
            given: BTreeMap::new(),
        }
    }

    /// Takes in another state of the table, and returns what is to be written because of what changed,
    /// oldest entry first.
    ///
    /// The same is not returned again until something of the entry changes.
    pub fn update(&mut self, table: &Table<ServiceEntry>) -> Vec<Assignment> {
        let earlier = std::mem::replace(&mut self.table, table.clone());
        let mut touched = BTreeSet::new();
        let mut dirty = BTreeSet::new();
        // All addresses in use are known before the first is given away.
        for item in earlier.diff(table) {
            let (old, new) = match item {
                DiffItem::Add(_, new) => (None, Some(new)),
                DiffItem::Update { old, new } => (Some(old.1), Some(new.1)),
                DiffItem::Remove(_, old) => (Some(old), None),
            };
            if let Some(old) = old {
                self.count(old, false, &mut touched);
                if new.is_none() {
                    self.given.remove(&old.meta.namespaced_name());
                }
            }
            if let Some(new) = new {
                self.count(new, true, &mut touched);
                dirty.insert(holder(new));
            }
        }
        for net in touched {
            let range = net.network()..=net.broadcast();
            for holders in self.holders.range(range).map(|(_, holders)| holders) {
                dirty.extend(holders.iter().cloned());
            }
        }
        dirty
            .into_iter()
            .filter_map(|(_, name)| {
                let entry = table.get(&name)?.clone();
                let addresses = self.desired(&name, &entry)?;
                Some(Assignment {
                    entry: name,
                    version: entry.meta.resource_version.clone(),
                    addresses,
                })
            })
            .collect()
    }

    /// Counts what an entry holds, or not any more; notes which addresses that concerns.
    fn count(
        &mut self,
        entry: &Arc<Config<ServiceEntry>>,
        held: bool,
        touched: &mut BTreeSet<IpNet>,
    ) {
        let holder = holder(entry);
        for (address, _) in in_status(entry) {
            touched.insert(address.into());
            let holders = self.holders.entry(address).or_default();
            if held {
                holders.insert(holder.clone());
                self.pool(address).mark(address);
            } else {
                holders.remove(&holder);
                if holders.is_empty() {
                    self.holders.remove(&address);
                }
            }
        }
        for net in in_spec(entry) {
            touched.insert(net);
            let count = self.stated.entry(net).or_default();
            if held {
                *count += 1;
            } else {
                *count = count.saturating_sub(1);
            }
            if *count == 0 {
                self.stated.remove(&net);
            }
        }
    }

    /// What the status of an entry should say; `None` when it does.
    fn desired(
        &mut self,
        name: &NamespacedName,
        entry: &Config<ServiceEntry>,
    ) -> Option<Vec<(IpAddr, String)>> {
        let mut present: BTreeMap<String, Vec<IpAddr>> = BTreeMap::new();
        for (address, host) in in_status(entry) {
            present.entry(host.to_owned()).or_default().push(address);
        }
        if !is_eligible(entry) {
            self.given.remove(name);
            for (address, _) in in_status(entry) {
                self.release(address);
            }
            return (!entry.spec.status.addresses.is_empty()).then(Vec::new);
        }
        let hosts = hosts(entry);
        let own = holder(entry);
        if present
            .values()
            .flatten()
            .any(|address| self.is_anothers(*address, &own))
        {
            present.clear();
        } else if present.len() == hosts.len() && hosts.iter().all(|h| present.contains_key(*h)) {
            self.given.remove(name);
            return None;
        }
        let mut given = self.given.remove(name).unwrap_or_default();
        given.retain(|_, given| {
            given
                .iter()
                .all(|address| !self.is_anothers(*address, &own))
        });
        let mut addresses = Vec::new();
        let mut promised = BTreeMap::new();
        for host in hosts {
            let mut own = match (present.remove(host), given.get(host)) {
                (Some(present), _) => present,
                (None, Some(given)) => given.clone(),
                (None, None) => {
                    let stated = &self.stated;
                    let fresh = [&mut self.v4, &mut self.v6];
                    let taken = fresh.into_iter().filter_map(|pool| pool.take(stated));
                    taken.collect()
                }
            };
            own.sort_unstable();
            addresses.extend(own.iter().map(|address| (*address, host.to_owned())));
            promised.insert(host.to_owned(), own);
        }
        self.given.insert(name.clone(), promised);
        Some(addresses)
    }

    /// Returns whether an address that an entry has in its status is another's by right.
    fn is_anothers(&self, address: IpAddr, own: &Holder) -> bool {
        let oldest = self.holders.get(&address).and_then(BTreeSet::first);
        oldest.is_some_and(|oldest| oldest != own) || pool::contains(&self.stated, address)
    }

    /// Lets an address be given again, if nobody else holds it.
    fn release(&mut self, address: IpAddr) {
        if self
            .holders
            .get(&address)
            .is_none_or(|holders| holders.len() <= 1)
        {
            self.pool(address).release(address);
        }
    }

    fn pool(&mut self, address: IpAddr) -> &mut Pool {
        if address.is_ipv4() {
            &mut self.v4
        } else {
            &mut self.v6
        }
    }
}

fn holder(entry: &Config<ServiceEntry>) -> Holder {
    (entry.meta.created, entry.meta.namespaced_name())
}

/// Tells whether the hosts of an entry get addresses (service-registry §13.1), leaving the flag for all.
fn is_eligible(entry: &Config<ServiceEntry>) -> bool {
    let label = entry.meta.labels.get(LABEL);
    entry.spec.resolution != Resolution::None
        && entry.spec.addresses.is_empty()
        && !label.is_some_and(|value| value.eq_ignore_ascii_case("false"))
}

/// The hosts that get addresses, each once, in their order.
fn hosts(entry: &Config<ServiceEntry>) -> Vec<&str> {
    let wildcards = entry.spec.resolution == Resolution::DynamicDns;
    let mut seen = BTreeSet::new();
    let hosts = entry.spec.hosts.iter().map(String::as_str);
    hosts
        .filter(|host| wildcards || !host::is_wildcard(host))
        .filter(|host| seen.insert(*host))
        .collect()
}

/// The addresses of a status that are some.
fn in_status(entry: &Config<ServiceEntry>) -> impl Iterator<Item = (IpAddr, &str)> {
    let stated = entry.spec.status.addresses.iter();
    stated.filter_map(|stated| Some((stated.value.parse().ok()?, stated.host.as_str())))
}

/// The addresses and ranges of a spec.
fn in_spec(entry: &Config<ServiceEntry>) -> impl Iterator<Item = IpNet> {
    let stated = entry.spec.addresses.iter();
    stated.filter_map(|text| {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        address
            .ok()
            .or_else(|| text.parse::<IpNet>().ok().map(|net| net.trunc()))
    })
}

#[cfg(test)]
mod tests;

//! A range of addresses, given out one by one.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use ipnet::IpNet;

/// A range, and what of it is not to be given again.
#[derive(Debug)]
pub(super) struct Pool {
    net: IpNet,
    used: BTreeSet<u128>,
    /// Where to look next: what was released is given again only when everything else is gone.
    next: u128,
}

impl Pool {
    /// A pool of all addresses of a range but its first.
    pub(super) fn new(net: IpNet) -> Self {
        let net = net.trunc();
        Self {
            net,
            used: BTreeSet::new(),
            next: number(net.network()) + 1,
        }
    }

    /// Notes that an address is in use.
    pub(super) fn mark(&mut self, address: IpAddr) {
        if self.net.contains(&address) {
            self.used.insert(number(address));
        }
    }

    /// Notes that an address is free.
    pub(super) fn release(&mut self, address: IpAddr) {
        self.used.remove(&number(address));
    }

    /// Gives out the next address that is neither used nor within what is `stated`; `None` when there
    /// is none.
    pub(super) fn take(&mut self, stated: &BTreeMap<IpNet, usize>) -> Option<IpAddr> {
        let (first, last) = (number(self.net.network()) + 1, number(self.net.broadcast()));
        // Up to the end, and once from the beginning.
        let start = self.next;
        let found = self.free(start, last, stated).or_else(|| {
            let before = start.checked_sub(1).filter(|end| *end >= first)?;
            self.free(first, before, stated)
        })?;
        self.used.insert(found);
        self.next = if found == last { first } else { found + 1 };
        Some(self.address(found))
    }

    /// The first free address of a part of the range.
    fn free(&self, from: u128, to: u128, stated: &BTreeMap<IpNet, usize>) -> Option<u128> {
        let mut candidate = from;
        while candidate <= to {
            let address = self.address(candidate);
            if let Some(net) = covering(stated, address) {
                candidate = number(net.broadcast()).checked_add(1)?;
            } else if self.used.contains(&candidate) {
                candidate = candidate.checked_add(1)?;
            } else {
                return Some(candidate);
            }
        }
        None
    }

    fn address(&self, number: u128) -> IpAddr {
        match self.net {
            IpNet::V4(_) => {
                let bits = u32::try_from(number).unwrap_or(u32::MAX);
                IpAddr::V4(Ipv4Addr::from_bits(bits))
            }
            IpNet::V6(_) => IpAddr::V6(Ipv6Addr::from_bits(number)),
        }
    }
}

/// Returns whether an address is within one of these ranges.
pub(super) fn contains(stated: &BTreeMap<IpNet, usize>, address: IpAddr) -> bool {
    covering(stated, address).is_some()
}

/// The widest range that an address is within. Asked once for each length that a prefix may have, so that
/// a mesh with many ranges costs no more.
fn covering(stated: &BTreeMap<IpNet, usize>, address: IpAddr) -> Option<IpNet> {
    let longest = if address.is_ipv4() { 32 } else { 128 };
    if stated.is_empty() {
        return None;
    }
    (0..=longest)
        .filter_map(|length| IpNet::new(address, length).ok())
        .map(|net| net.trunc())
        .find(|net| stated.contains_key(net))
}

fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => address.to_bits().into(),
        IpAddr::V6(address) => address.to_bits(),
    }
}

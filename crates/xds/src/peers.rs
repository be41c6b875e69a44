//! How many streams each address has.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::sync::Mutex;

type Counts = Arc<Mutex<BTreeMap<IpAddr, usize>>>;

/// Counts streams by the address of their peer.
#[derive(Debug, Default)]
pub(crate) struct PeerCounts(Counts);

/// One stream that is counted, until this is dropped.
#[derive(Debug)]
pub(crate) struct Counted {
    counts: Counts,
    address: IpAddr,
}

impl PeerCounts {
    /// Counts a stream; `None` when its address has as many as `limit`.
    pub(crate) fn count(&self, address: IpAddr, limit: usize) -> Option<Counted> {
        let address = address.to_canonical();
        let mut counts = self.0.lock();
        let streams = counts.get(&address).copied().unwrap_or_default();
        if streams >= limit {
            return None;
        }
        counts.insert(address, streams + 1);
        Some(Counted {
            counts: Arc::clone(&self.0),
            address,
        })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut counts = self.counts.lock();
        match counts.get_mut(&self.address) {
            Some(streams) if *streams > 1 => *streams -= 1,
            _ => drop(counts.remove(&self.address)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_has_its_own_limit_and_nothing_is_left_behind() {
        let counts = PeerCounts::default();
        let [one, mapped, two] =
            ["10.0.0.1", "::ffff:10.0.0.1", "fd00::2"].map(|text| text.parse().unwrap());
        let first = counts.count(one, 2).unwrap();
        let second = counts.count(mapped, 2).unwrap();
        assert!(counts.count(one, 2).is_none());
        assert!(counts.count(two, 2).is_some());
        drop(first);
        let third = counts.count(one, 2).unwrap();
        drop((second, third));
        assert!(counts.0.lock().is_empty());
    }
}

//! Addresses for hosts that have none, by hashing (service-registry §13.3).
//!
//! Only in force when allocation by controller is switched off. The addresses depend on the set of
//! hosts alone, since hosts are placed in the order of their keys.

use std::{collections::BTreeSet, sync::Arc};

use model::ServiceKey;
use rustc_hash::FxHashMap;

/// Number of slots: the addresses of 240.240.0.0/16 without those that end in 0 or 255.
const SLOTS: u32 = 256 * 254;

/// The greatest prime below [`SLOTS`], for the second hash.
const PRIME: u32 = 65_011;

/// Addresses by namespace and host, IPv4 and IPv6.
#[derive(Clone, Default, PartialEq, Debug)]
pub(crate) struct LegacyAddresses(FxHashMap<ServiceKey, (Arc<str>, Arc<str>)>);

impl LegacyAddresses {
    /// Gives each key an address, as far as there are any.
    pub(crate) fn allocate(keys: &BTreeSet<ServiceKey>) -> Self {
        if keys.is_empty() {
            return Self::default();
        }
        let mut slots: Vec<Option<&ServiceKey>> = vec![None; SLOTS as usize];
        for key in keys {
            let hash = fnv1a(&key.to_string());
            let step = PRIME - hash % PRIME;
            let start = hash % SLOTS;
            let probes = (1..SLOTS).map(|i| hash.wrapping_add(i.wrapping_mul(step)) % (SLOTS - 1));
            let free = std::iter::once(start)
                .chain(probes)
                .find(|s| slots[*s as usize].is_none());
            if let Some(slot) = free {
                slots[slot as usize] = Some(key);
            }
        }
        let mut addresses = FxHashMap::default();
        let mut number = 0_u32;
        for slot in slots {
            number += 1;
            let Some(key) = slot else { continue };
            if number.is_multiple_of(255) {
                number += 1;
            }
            let (high, low) = (number / 255, number % 255);
            let v6 = if high == 0 {
                format!("2001:2::f0f0:{low:x}")
            } else {
                format!("2001:2::f0f0:{high:x}{low:x}")
            };
            addresses.insert(
                key.clone(),
                (format!("240.240.{high}.{low}").into(), v6.into()),
            );
        }
        Self(addresses)
    }

    /// Finds the addresses of a host.
    pub(crate) fn find(
        &self,
        namespace: &Arc<str>,
        hostname: &Arc<str>,
    ) -> Option<&(Arc<str>, Arc<str>)> {
        if self.0.is_empty() {
            return None;
        }
        self.0.get(&ServiceKey {
            namespace: namespace.clone(),
            hostname: hostname.clone(),
        })
    }
}

fn fnv1a(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |hash, byte| {
        (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(keys: &[&str], expected: &[(&str, &str)]) {
        let keys: BTreeSet<ServiceKey> = keys
            .iter()
            .map(|k| {
                k.split_once('/')
                    .map(|(ns, host)| ServiceKey::new(ns, host))
                    .unwrap()
            })
            .collect();
        let allocated = LegacyAddresses::allocate(&keys);
        let found: Vec<(&str, &str)> = keys
            .iter()
            .map(|k| &allocated.0[k])
            .map(|(v4, v6)| (&**v4, &**v6))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn hashes_are_those_of_other_versions() {
        check(&["/foo.com"], &[("240.240.227.81", "2001:2::f0f0:e351")]);
        check(
            &["a/a.example.com"],
            &[("240.240.134.206", "2001:2::f0f0:86ce")],
        );
        check(
            &["b/a.example.com"],
            &[("240.240.41.100", "2001:2::f0f0:2964")],
        );
    }

    #[test]
    fn collisions_are_resolved_in_key_order() {
        let keys: BTreeSet<ServiceKey> = ["/a17061.example.com", "/a44155.example.com"]
            .iter()
            .map(|k| ServiceKey::new("", &k[1..]))
            .collect();
        let allocated = LegacyAddresses::allocate(&keys);
        let v4 = |host: &str| {
            allocated
                .find(&Arc::from(""), &Arc::from(host))
                .map(|a| a.0.to_string())
        };
        assert_eq!(v4("a17061.example.com").as_deref(), Some("240.240.25.11"));
        assert_eq!(v4("a44155.example.com").as_deref(), Some("240.240.31.17"));
    }
}

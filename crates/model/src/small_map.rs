//! A map of few entries, in one sorted list.

use std::{
    borrow::Borrow,
    fmt,
    ops::{Deref, DerefMut, Index},
};

use litemap::LiteMap;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Up to how many entries room is made before it is known how many there are.
const FEW: usize = 16;

/// A map of few entries, ordered by key.
///
/// Labels, ports and the like come by the hundred thousand and have two or three entries each, for
/// which a tree would have a node with room for eleven. Many entries, which nothing forbids, are sorted
/// once where they come at once.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SmallMap<K, V>(LiteMap<K, V>);

impl<K: Ord, V> SmallMap<K, V> {
    /// Makes an empty map.
    pub fn new() -> Self {
        Self::default()
    }

    /// Tells whether there is no entry.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Lists the keys, in order.
    pub fn keys(&self) -> impl DoubleEndedIterator<Item = &K> {
        self.0.keys()
    }

    /// Makes an empty map with room for some entries.
    pub fn with_capacity(entries: usize) -> Self {
        Self(LiteMap::with_capacity(entries))
    }

    /// Gives back memory that is not needed.
    fn compact(self) -> Self {
        let mut entries = self.0.into_tuple_vec();
        entries.shrink_to_fit();
        Self(LiteMap::from_sorted_store_unchecked(entries))
    }
}

impl<K, V> Default for SmallMap<K, V> {
    fn default() -> Self {
        Self(LiteMap::new_vec())
    }
}

impl<K, V> Deref for SmallMap<K, V> {
    type Target = LiteMap<K, V>;

    fn deref(&self) -> &LiteMap<K, V> {
        &self.0
    }
}

impl<K, V> DerefMut for SmallMap<K, V> {
    fn deref_mut(&mut self) -> &mut LiteMap<K, V> {
        &mut self.0
    }
}

impl<K: fmt::Debug, V: fmt::Debug> fmt::Debug for SmallMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.0.iter()).finish()
    }
}

/// The value of a key that is known to be there.
impl<K, V, Q> Index<&Q> for SmallMap<K, V>
where
    K: Ord + Borrow<Q>,
    Q: Ord + ?Sized,
{
    type Output = V;

    fn index(&self, key: &Q) -> &V {
        self.0.get(key).expect("the key is there")
    }
}

/// Of equal keys the last counts.
impl<K: Ord, V> FromIterator<(K, V)> for SmallMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let entries = entries.into_iter();
        let (least, most) = entries.size_hint();
        let mut map = Self::with_capacity(most.filter(|most| *most <= FEW).unwrap_or(least));
        map.extend(entries);
        map.compact()
    }
}

impl<K: Ord, V, const N: usize> From<[(K, V); N]> for SmallMap<K, V> {
    fn from(entries: [(K, V); N]) -> Self {
        entries.into_iter().collect()
    }
}

impl<K: Ord, V> Extend<(K, V)> for SmallMap<K, V> {
    fn extend<I: IntoIterator<Item = (K, V)>>(&mut self, entries: I) {
        self.0.extend(entries);
    }
}

impl<K, V> IntoIterator for SmallMap<K, V> {
    type Item = (K, V);
    type IntoIter = std::vec::IntoIter<(K, V)>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}

impl<'a, K, V> IntoIterator for &'a SmallMap<K, V> {
    type Item = (&'a K, &'a V);
    type IntoIter = <&'a LiteMap<K, V> as IntoIterator>::IntoIter;

    fn into_iter(self) -> Self::IntoIter {
        self.0.iter()
    }
}

impl<K: Serialize, V: Serialize> Serialize for SmallMap<K, V> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self)
    }
}

impl<'de, K, V> Deserialize<'de> for SmallMap<K, V>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
{
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries(std::marker::PhantomData))
    }
}

/// Reads the entries of a map.
struct Entries<K, V>(std::marker::PhantomData<(K, V)>);

impl<'de, K, V> serde::de::Visitor<'de> for Entries<K, V>
where
    K: Deserialize<'de> + Ord,
    V: Deserialize<'de>,
{
    type Value = SmallMap<K, V>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a map")
    }

    fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut error = None;
        let entries = std::iter::from_fn(|| {
            map.next_entry().unwrap_or_else(|reason| {
                error = Some(reason);
                None
            })
        });
        let entries = entries.collect();
        error.map_or(Ok(entries), Err)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_in_order_and_the_last_of_equal_keys_counts() {
        let map: SmallMap<&str, i32> = [("b", 1), ("a", 2), ("b", 3)].into();
        assert_eq!(map.iter().collect::<Vec<_>>(), [(&"a", &2), (&"b", &3)]);
        let read: SmallMap<String, i32> = serde_json::from_str(r#"{"b":1,"a":2,"b":3}"#).unwrap();
        assert_eq!(serde_json::to_string(&read).unwrap(), r#"{"a":2,"b":3}"#);
        assert_eq!(format!("{map:?}"), format!("{read:?}"));
        serde_json::from_str::<SmallMap<String, i32>>(r#"{"a":1,"b":"two"}"#).unwrap_err();
    }
}

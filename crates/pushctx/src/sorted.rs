//! A persistent sorted list.

use std::sync::Arc;

use xxhash_rust::xxh3::xxh3_64;

/// How many elements a chunk starts with; it is split at twice as many.
const CHUNK: usize = 128;

/// An element that knows the hash of its content.
pub(crate) trait Content {
    /// Equal content gives equal hashes.
    fn content(&self) -> u64;
}

/// Elements in ascending order, without duplicates.
///
/// The list is kept in chunks, so that a changed copy shares all but one of them: a change costs
/// one chunk and the list of chunks, some microseconds for a hundred thousand elements. Iterating
/// is as fast as over vectors.
#[derive(Clone, Debug)]
pub(crate) struct SortedList<T> {
    chunks: Vec<Arc<Chunk<T>>>,
}

/// Neighbours in a list.
#[derive(Clone, Debug)]
pub(crate) struct Chunk<T> {
    elements: Vec<T>,
    /// The mixed hashes of the elements, added up: lists of the same elements have the same sum,
    /// however they are divided.
    sum: u64,
}

impl<T: Content> Chunk<T> {
    fn new(elements: Vec<T>) -> Self {
        let sum = sum(elements.iter().map(Content::content));
        Self { elements, sum }
    }
}

impl<T> Chunk<T> {
    pub(crate) fn elements(&self) -> &[T] {
        &self.elements
    }

    pub(crate) fn sum(&self) -> u64 {
        self.sum
    }
}

/// Adds up hashes, each mixed first.
pub(crate) fn sum(hashes: impl IntoIterator<Item = u64>) -> u64 {
    hashes.into_iter().map(mixed).fold(0, u64::wrapping_add)
}

fn mixed(hash: u64) -> u64 {
    xxh3_64(&hash.to_le_bytes())
}

impl<T> Default for SortedList<T> {
    fn default() -> Self {
        Self { chunks: Vec::new() }
    }
}

impl<T: Ord + Clone + Content> SortedList<T> {
    /// Takes elements that are in ascending order already.
    pub(crate) fn from_sorted(elements: &[T]) -> Self {
        debug_assert!(
            elements.is_sorted_by(|a, b| a < b),
            "elements are in ascending order"
        );
        let chunks = elements
            .chunks(CHUNK)
            .map(|chunk| Arc::new(Chunk::new(chunk.to_vec())))
            .collect();
        Self { chunks }
    }

    /// Adds an element; one that is equal is replaced.
    pub(crate) fn insert(&mut self, element: T) {
        if self.chunks.is_empty() {
            self.chunks.push(Arc::new(Chunk::new(Vec::new())));
        }
        let at = self.chunk_of(&element);
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        chunk.sum = chunk.sum.wrapping_add(mixed(element.content()));
        match chunk.elements.binary_search(&element) {
            Ok(found) => {
                chunk.sum = chunk
                    .sum
                    .wrapping_sub(mixed(chunk.elements[found].content()));
                chunk.elements[found] = element;
            }
            Err(place) => chunk.elements.insert(place, element),
        }
        if chunk.elements.len() >= 2 * CHUNK {
            let rest = Chunk::new(chunk.elements.split_off(CHUNK));
            chunk.sum = chunk.sum.wrapping_sub(rest.sum);
            self.chunks.insert(at + 1, Arc::new(rest));
        }
    }

    /// Removes an element, if it is there.
    pub(crate) fn remove(&mut self, element: &T) {
        if self.chunks.is_empty() {
            return;
        }
        let at = self.chunk_of(element);
        let Ok(found) = self.chunks[at].elements.binary_search(element) else {
            return;
        };
        let chunk = Arc::make_mut(&mut self.chunks[at]);
        chunk.sum = chunk
            .sum
            .wrapping_sub(mixed(chunk.elements[found].content()));
        chunk.elements.remove(found);
        if chunk.elements.is_empty() {
            self.chunks.remove(at);
        }
    }

    /// The chunk that an element belongs to: the last one that does not start beyond it.
    fn chunk_of(&self, element: &T) -> usize {
        let starts_before =
            |chunk: &Arc<Chunk<T>>| chunk.elements.first().is_none_or(|first| first <= element);
        self.chunks.partition_point(starts_before).saturating_sub(1)
    }
}

impl<T> SortedList<T> {
    pub(crate) fn iter(&self) -> Iter<'_, T> {
        Iter {
            chunks: self.chunks.iter(),
            chunk: [].iter(),
        }
    }

    /// Returns the list's chunks, in order. How elements are divided among them depends on how they
    /// came.
    pub(crate) fn chunks(&self) -> &[Arc<Chunk<T>>] {
        &self.chunks
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.elements.len()).sum()
    }
}

/// The elements of a list, in order.
#[derive(Debug)]
pub(crate) struct Iter<'a, T> {
    chunks: std::slice::Iter<'a, Arc<Chunk<T>>>,
    chunk: std::slice::Iter<'a, T>,
}

impl<T> Clone for Iter<'_, T> {
    fn clone(&self) -> Self {
        Self {
            chunks: self.chunks.clone(),
            chunk: self.chunk.clone(),
        }
    }
}

impl<T> Default for Iter<'_, T> {
    fn default() -> Self {
        Self {
            chunks: [].iter(),
            chunk: [].iter(),
        }
    }
}

impl<'a, T> Iterator for Iter<'a, T> {
    type Item = &'a T;

    fn next(&mut self) -> Option<&'a T> {
        loop {
            if let Some(element) = self.chunk.next() {
                return Some(element);
            }
            self.chunk = self.chunks.next()?.elements.iter();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    impl Content for u32 {
        fn content(&self) -> u64 {
            u64::from(*self)
        }
    }

    proptest! {
        #[test]
        fn behaves_like_a_set(
            start in prop::collection::btree_set(0..2000_u32, 0..600),
            edits in prop::collection::vec((any::<bool>(), 0..2000_u32), 0..1500),
        ) {
            let mut set: BTreeSet<u32> = start;
            let mut list = SortedList::from_sorted(&set.iter().copied().collect::<Vec<_>>());
            for (add, element) in edits {
                if add {
                    set.insert(element);
                    list.insert(element);
                } else {
                    set.remove(&element);
                    list.remove(&element);
                }
            }
            prop_assert!(list.iter().eq(&set));
            prop_assert_eq!(list.len(), set.len());
            prop_assert_eq!(list.is_empty(), set.is_empty());
            for chunk in list.chunks() {
                prop_assert_eq!(chunk.sum(), sum(chunk.elements().iter().map(Content::content)));
            }
        }
    }
}

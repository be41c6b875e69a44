//! A queue in which nobody waits for what others have put into it.

use std::collections::{BTreeMap, VecDeque};

/// A bounded queue of work of many owners: served in turn, one piece of each, and in order for each.
///
/// An owner with a thousand pieces delays another one by a single piece.
#[derive(Debug)]
pub struct FairQueue<K, T> {
    /// Never holds an empty list.
    waiting: BTreeMap<K, VecDeque<T>>,
    /// Owners of `waiting`, each once, the next one first.
    turns: VecDeque<K>,
    len: usize,
    limit: usize,
    limit_each: usize,
}

/// There is no room in a [`FairQueue`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum QueueFull {
    /// The owner has as much in the queue as one may have.
    #[error("too many requests of one identity")]
    Owner,
    /// All owners together have.
    #[error("too many requests")]
    Everybody,
}

impl<K: Ord + Clone, T> FairQueue<K, T> {
    /// Makes an empty queue for `limit` pieces, of which one owner may have `limit_each`.
    pub fn new(limit: usize, limit_each: usize) -> Self {
        Self {
            waiting: BTreeMap::new(),
            turns: VecDeque::new(),
            len: 0,
            limit,
            limit_each,
        }
    }

    /// Adds a piece of work.
    ///
    /// # Errors
    /// When there is no room.
    pub fn push(&mut self, owner: K, work: T) -> Result<(), QueueFull> {
        let own = self.waiting.get(&owner).map_or(0, VecDeque::len);
        if own >= self.limit_each {
            return Err(QueueFull::Owner);
        }
        if self.len >= self.limit {
            return Err(QueueFull::Everybody);
        }
        if own == 0 {
            self.turns.push_back(owner.clone());
        }
        self.waiting.entry(owner).or_default().push_back(work);
        self.len += 1;
        Ok(())
    }

    /// Takes the next piece.
    pub fn pop(&mut self) -> Option<T> {
        let owner = self.turns.pop_front()?;
        let own = self.waiting.get_mut(&owner)?;
        let work = own.pop_front()?;
        self.len -= 1;
        if own.is_empty() {
            self.waiting.remove(&owner);
        } else {
            self.turns.push_back(owner);
        }
        Some(work)
    }

    /// Returns how many pieces wait.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_burst_of_one_delays_others_by_one() {
        let mut queue = FairQueue::new(100, 50);
        for n in 0..50 {
            queue.push("noisy", n).unwrap();
        }
        assert_eq!(queue.push("noisy", 50), Err(QueueFull::Owner));
        queue.push("quiet", 100).unwrap();
        assert_eq!((queue.pop(), queue.pop()), (Some(0), Some(100)));
    }

    #[test]
    fn the_whole_is_bounded() {
        let mut queue = FairQueue::new(2, 2);
        queue.push("a", 1).unwrap();
        queue.push("b", 2).unwrap();
        assert_eq!(queue.push("c", 3), Err(QueueFull::Everybody));
        queue.pop();
        queue.push("c", 3).unwrap();
    }

    proptest! {
        #[test]
        fn nothing_is_lost_and_owners_keep_their_order(
            steps in proptest::collection::vec(proptest::option::weighted(0.6, 0_u8..4), 0..200),
        ) {
            let mut queue = FairQueue::new(1000, 1000);
            let (mut put, mut got) = (Vec::new(), Vec::new());
            for (n, step) in steps.into_iter().enumerate() {
                match step {
                    Some(owner) => {
                        queue.push(owner, (owner, n)).unwrap();
                        put.push((owner, n));
                    }
                    None => got.extend(queue.pop()),
                }
            }
            got.extend(std::iter::from_fn(|| queue.pop()));
            prop_assert!(queue.is_empty() && queue.waiting.is_empty());
            put.sort_unstable();
            // Stable: for each owner the order in which its pieces came out.
            got.sort_by_key(|(owner, _)| *owner);
            prop_assert_eq!(put, got);
        }
    }
}

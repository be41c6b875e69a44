//! The states that were published, by root.

use std::{
    collections::{BTreeSet, HashMap, VecDeque},
    fmt,
    time::{Duration, Instant},
};

use crate::{Difference, Digest, Encode, Footprint, Proof, State};

/// How many past states are kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct History {
    /// The most states, the current one included; at least 1 (default 10 000).
    pub count: usize,
    /// How long a state is kept after the next one was published (default one hour).
    pub age: Duration,
}

impl Default for History {
    fn default() -> Self {
        Self {
            count: 10_000,
            age: Duration::from_hours(1),
        }
    }
}

/// Keeps the states that were published; the current one, and a bounded history.
///
/// The current state is always kept. Look-ups in a past state go through [`at`](Self::at); a [`State`]
/// can be cloned out and outlives its place in the history.
#[derive(Debug)]
pub struct Ledger<K, D> {
    history: History,
    /// Oldest first; the last one is the current state. Never empty.
    past: VecDeque<Published<K, D>>,
    current: Published<K, D>,
    /// The number of the newest publication with each root that is kept. Never iterated over.
    numbers: HashMap<D, u64>,
    evicted: u64,
}

/// A state and when it was published.
#[derive(Debug, Clone)]
struct Published<K, D> {
    state: State<K, D>,
    root: D,
    number: u64,
    /// Nodes that were made for it, which it does not share with an earlier state.
    created: usize,
    /// When it was published; for a past state, when the next one was.
    until: Instant,
}

/// The root is not, or no longer, in the history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("root {0:?} is not in the history")]
pub struct UnknownRoot<D: fmt::Debug>(pub D);

/// Numbers about a ledger.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stats {
    /// Keys in the current state.
    pub keys: usize,
    /// States that are kept, the current one included.
    pub states: usize,
    /// States published so far, the empty one at the start included.
    pub published: u64,
    /// States dropped so far.
    pub evicted: u64,
    /// Nodes that were made for the states that are kept: the share of each that is its own.
    pub created: usize,
}

impl<K: Ord + Clone, D: Digest> Ledger<K, D> {
    /// Makes a ledger whose current state has no keys. `encode` writes a key as bytes.
    pub fn new(history: History, now: Instant, encode: Encode<K>) -> Self {
        let state = State::new(encode);
        let root = state.root();
        let current = Published {
            state,
            root,
            number: 0,
            created: 0,
            until: now,
        };
        Self {
            history,
            past: VecDeque::new(),
            current,
            numbers: HashMap::from([(root, 0)]),
            evicted: 0,
        }
    }

    /// Publishes the state after `changes` (values to set, `None` to remove; of a key that is named more
    /// than once the last counts) and returns its root. Nothing is published when nothing changes.
    /// States that have become too many or too old are dropped.
    pub fn apply(&mut self, now: Instant, changes: impl IntoIterator<Item = (K, Option<D>)>) -> D {
        let (state, created) = self.current.state.apply(changes);
        let root = state.root();
        if root != self.current.root {
            let number = self.current.number + 1;
            let next = Published {
                state,
                root,
                number,
                created,
                until: now,
            };
            let mut last = std::mem::replace(&mut self.current, next);
            last.until = now;
            self.past.push_back(last);
            self.numbers.insert(root, number);
        }
        self.expire(now);
        root
    }

    /// Drops the states that are too many or too old at `now`.
    pub fn expire(&mut self, now: Instant) {
        while let Some(oldest) = self.past.front()
            && (self.past.len() >= self.history.count.max(1)
                || now.saturating_duration_since(oldest.until) > self.history.age)
            && let Some(dropped) = self.past.pop_front()
        {
            self.evicted += 1;
            // The same content may have been published again since.
            if self.numbers.get(&dropped.root) == Some(&dropped.number) {
                self.numbers.remove(&dropped.root);
            }
        }
    }

    /// Changes the bounds of the history.
    pub fn set_history(&mut self, history: History, now: Instant) {
        self.history = history;
        self.expire(now);
    }

    /// The root of the current state.
    pub fn root(&self) -> D {
        self.current.root
    }

    /// The current state.
    pub fn current(&self) -> &State<K, D> {
        &self.current.state
    }

    /// The state with `root`; `None` when it is not, or no longer, in the history.
    pub fn at(&self, root: &D) -> Option<&State<K, D>> {
        self.published(root).map(|published| &published.state)
    }

    fn published(&self, root: &D) -> Option<&Published<K, D>> {
        let number = *self.numbers.get(root)?;
        let first = self
            .past
            .front()
            .map_or(self.current.number, |oldest| oldest.number);
        let place = usize::try_from(number.checked_sub(first)?).ok()?;
        // Numbers are consecutive.
        Some(self.past.get(place).unwrap_or(&self.current))
    }

    /// How many states were published after the one with `root`; 0 for the current one.
    ///
    /// # Errors
    /// [`UnknownRoot`].
    pub fn behind(&self, root: &D) -> Result<u64, UnknownRoot<D>> {
        let published = self.published(root).ok_or(UnknownRoot(*root))?;
        Ok(self.current.number - published.number)
    }

    /// Since when the state with `root` is no longer the current one; `None` if it is.
    ///
    /// # Errors
    /// [`UnknownRoot`].
    pub fn superseded(&self, root: &D) -> Result<Option<Instant>, UnknownRoot<D>> {
        let published = self.published(root).ok_or(UnknownRoot(*root))?;
        Ok((published.number != self.current.number).then_some(published.until))
    }

    /// The value of `key` in the state with `root`.
    ///
    /// # Errors
    /// [`UnknownRoot`].
    pub fn get(&self, root: &D, key: &K) -> Result<Option<D>, UnknownRoot<D>> {
        Ok(self.at(root).ok_or(UnknownRoot(*root))?.get(key))
    }

    /// The keys on which the states with two roots differ, sorted by key.
    ///
    /// # Errors
    /// [`UnknownRoot`], of the first root that is unknown.
    pub fn diff(&self, old: &D, new: &D) -> Result<Vec<Difference<K, D>>, UnknownRoot<D>> {
        let before = self.at(old).ok_or(UnknownRoot(*old))?;
        let after = self.at(new).ok_or(UnknownRoot(*new))?;
        Ok(before.diff(after))
    }

    /// Proves that `key` is a member of the state with `root`; `None` when it is not.
    ///
    /// # Errors
    /// [`UnknownRoot`].
    pub fn prove(&self, root: &D, key: &K) -> Result<Option<Proof<D>>, UnknownRoot<D>> {
        Ok(self.at(root).ok_or(UnknownRoot(*root))?.prove(key))
    }

    /// Counts. Costs a walk over the list of states, microseconds for thousands.
    pub fn stats(&self) -> Stats {
        let all = self.past.iter().chain([&self.current]);
        Stats {
            keys: self.current.state.len(),
            states: self.past.len() + 1,
            published: self.current.number + 1,
            evicted: self.evicted,
            created: all.map(|published| published.created).sum(),
        }
    }

    /// Measures the memory of all states that are kept. Visits every node: for tests and benchmarks.
    pub fn footprint(&self) -> Footprint {
        let mut seen = BTreeSet::new();
        let mut footprint = Footprint::default();
        for published in self.past.iter().chain([&self.current]) {
            published.state.measure(&mut seen, &mut footprint);
        }
        footprint
    }
}

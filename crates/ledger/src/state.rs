//! One state: an immutable map with a root.

use std::{collections::BTreeSet, mem::size_of, sync::Arc};

use crate::{
    Digest, Proof, Step,
    node::{Branch, Builder, Change, Leaf, Link, Node, WAYS, hash_of_nothing, nibble},
};

/// Writes a key as bytes, different ones for different keys. The same function must be used by all who
/// compare roots.
pub type Encode<K> = fn(&K, &mut Vec<u8>);

/// An immutable map from keys to hashes. Cloning is cheap and shares everything.
#[derive(Debug)]
pub struct State<K, D> {
    top: Link<K, D>,
    len: usize,
    encode: Encode<K>,
}

impl<K, D> Clone for State<K, D> {
    fn clone(&self) -> Self {
        Self {
            top: self.top.clone(),
            len: self.len,
            encode: self.encode,
        }
    }
}

/// One key on which two states differ.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference<K, D> {
    /// The key.
    pub key: K,
    /// Its value in the first state; `None` if absent.
    pub old: Option<D>,
    /// Its value in the second state; `None` if absent.
    pub new: Option<D>,
}

/// How much memory the nodes of some states take, what the keys own on the heap not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Footprint {
    /// Distinct nodes.
    pub nodes: usize,
    /// Their size in bytes.
    pub bytes: usize,
}

impl<K: Ord + Clone, D: Digest> State<K, D> {
    /// Makes a state without keys.
    pub fn new(encode: Encode<K>) -> Self {
        Self {
            top: None,
            len: 0,
            encode,
        }
    }

    /// The hash of the whole content.
    pub fn root(&self) -> D {
        self.top
            .as_ref()
            .map_or_else(hash_of_nothing, |node| node.hash())
    }

    /// How many keys it has.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no keys.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The state after `changes`: values to set, `None` to remove. If a key is named more than once the
    /// last time counts. Also says how many nodes were made.
    pub fn apply(&self, changes: impl IntoIterator<Item = (K, Option<D>)>) -> (Self, usize) {
        let mut builder = Builder::new(self.encode);
        let mut sorted: Vec<Change<K, D>> = changes
            .into_iter()
            .map(|(key, value)| Change {
                path: builder.path(&key),
                key,
                value,
            })
            .collect();
        // Stable, so that of equal keys the last one stays last.
        sorted.sort_by(|a, b| (a.path, &a.key).cmp(&(b.path, &b.key)));
        sorted.dedup_by(|later, kept| {
            let repeated = later.path == kept.path && later.key == kept.key;
            if repeated {
                kept.value = later.value;
            }
            repeated
        });
        let mut len = self.len;
        for change in &sorted {
            match (self.find(&change.path, &change.key), change.value) {
                (None, Some(_)) => len += 1,
                (Some(_), None) => len -= 1,
                (None, None) | (Some(_), Some(_)) => {}
            }
        }
        let top = builder.update(self.top.as_ref(), 0, &sorted);
        (
            Self {
                top,
                len,
                encode: self.encode,
            },
            builder.created,
        )
    }

    /// The value of `key`.
    pub fn get(&self, key: &K) -> Option<D> {
        self.find(&self.path(key), key)
    }

    fn path(&self, key: &K) -> D {
        let mut bytes = Vec::with_capacity(128);
        (self.encode)(key, &mut bytes);
        D::of(&bytes)
    }

    fn find(&self, path: &D, key: &K) -> Option<D> {
        entry_of(self.walk(path, |_| ())?, key).map(|(_, value)| value)
    }

    /// The leaf of `path`, if there is one; shows every branch on the way.
    fn walk<'a>(
        &'a self,
        path: &D,
        mut visit: impl FnMut(&'a Branch<K, D>),
    ) -> Option<&'a Leaf<K, D>> {
        let mut next = self.top.as_ref();
        let mut depth = 0;
        loop {
            match &**next? {
                Node::Leaf(leaf) => return (leaf.path == *path).then_some(leaf),
                Node::Branch(branch) => {
                    visit(branch);
                    next = branch.child(nibble(path, depth));
                    depth += 1;
                }
            }
        }
    }

    /// Proves the membership of `key`; `None` when it is no member.
    pub fn prove(&self, key: &K) -> Option<Proof<D>> {
        let path = self.path(key);
        let mut branches = Vec::new();
        let leaf = self.walk(&path, |branch| branches.push(branch))?;
        let (position, _) = entry_of(leaf, key)?;
        let mut neighbours = Vec::new();
        for (at, (other, value)) in leaf.entries.iter().enumerate() {
            if at != position {
                let mut bytes = Vec::new();
                (self.encode)(other, &mut bytes);
                neighbours.push((bytes, *value));
            }
        }
        let steps = branches
            .iter()
            .enumerate()
            .map(|(depth, branch)| {
                let mine = crate::node::rank(branch.bitmap, nibble(&path, depth));
                let mut siblings: Vec<D> =
                    branch.children.iter().map(|child| child.hash()).collect();
                siblings.remove(mine);
                Step {
                    bitmap: branch.bitmap,
                    siblings,
                }
            })
            .collect();
        Some(Proof {
            steps,
            neighbours,
            position,
        })
    }

    /// The keys on which `self` and `newer` differ, sorted by key. The cost is that of the difference,
    /// not of the states.
    pub fn diff(&self, newer: &Self) -> Vec<Difference<K, D>> {
        let mut differences = Vec::new();
        compare(self.top.as_deref(), newer.top.as_deref(), &mut differences);
        differences.sort_by(|a, b| a.key.cmp(&b.key));
        differences
    }

    /// All keys and values, sorted by key.
    pub fn entries(&self) -> Vec<(&K, D)> {
        let mut entries = Vec::with_capacity(self.len);
        if let Some(node) = &self.top {
            collect(node, &mut |key, value| entries.push((key, value)));
        }
        entries.sort_by(|a, b| a.0.cmp(b.0));
        entries
    }

    /// Adds the nodes that are not in `seen` yet, by address.
    pub(crate) fn measure(&self, seen: &mut BTreeSet<usize>, footprint: &mut Footprint) {
        if let Some(node) = &self.top {
            measure(node, seen, footprint);
        }
    }
}

/// The place and value of `key` in `leaf`.
fn entry_of<K: Ord, D: Digest>(leaf: &Leaf<K, D>, key: &K) -> Option<(usize, D)> {
    let at = leaf
        .entries
        .binary_search_by(|(known, _)| known.cmp(key))
        .ok()?;
    leaf.entries.get(at).map(|(_, value)| (at, *value))
}

/// Collects where the content below two nodes differs.
fn compare<K: Ord + Clone, D: Digest>(
    old: Option<&Node<K, D>>,
    new: Option<&Node<K, D>>,
    out: &mut Vec<Difference<K, D>>,
) {
    match (old, new) {
        (None, None) => {}
        (Some(a), Some(b)) if a.hash() == b.hash() => {}
        (Some(Node::Branch(a)), Some(Node::Branch(b))) => {
            for way in 0..WAYS {
                compare(
                    a.child(way).map(Arc::as_ref),
                    b.child(way).map(Arc::as_ref),
                    out,
                );
            }
        }
        // One side is a leaf or nothing, so that nearly everything below differs.
        (old, new) => {
            let (mut before, mut after) = (Vec::new(), Vec::new());
            if let Some(node) = old {
                collect(node, &mut |key, value| before.push((key, value)));
            }
            if let Some(node) = new {
                collect(node, &mut |key, value| after.push((key, value)));
            }
            before.sort_by(|a, b| a.0.cmp(b.0));
            after.sort_by(|a, b| a.0.cmp(b.0));
            join(&before, &after, out);
        }
    }
}

/// Compares two lists that are sorted by key.
fn join<K: Ord + Clone, D: Digest>(
    before: &[(&K, D)],
    after: &[(&K, D)],
    out: &mut Vec<Difference<K, D>>,
) {
    let mut newer = after.iter().copied().peekable();
    let mut note = |key: &K, old, new| {
        if old != new {
            out.push(Difference {
                key: key.clone(),
                old,
                new,
            });
        }
    };
    for (key, old) in before {
        while let Some((added, value)) = newer.next_if(|(other, _)| other < key) {
            note(added, None, Some(value));
        }
        let new = newer
            .next_if(|(other, _)| other == key)
            .map(|(_, value)| value);
        note(key, Some(*old), new);
    }
    for (added, value) in newer {
        note(added, None, Some(value));
    }
}

fn collect<'a, K, D: Digest>(node: &'a Node<K, D>, visit: &mut impl FnMut(&'a K, D)) {
    match node {
        Node::Leaf(leaf) => leaf
            .entries
            .iter()
            .for_each(|(key, value)| visit(key, *value)),
        Node::Branch(branch) => branch
            .children
            .iter()
            .for_each(|child| collect(child, visit)),
    }
}

fn measure<K, D>(node: &Arc<Node<K, D>>, seen: &mut BTreeSet<usize>, footprint: &mut Footprint) {
    if !seen.insert(Arc::as_ptr(node).addr()) {
        return;
    }
    // Two counters of the Arc come before the node.
    let owned = match &**node {
        Node::Leaf(leaf) => size_of_val(&*leaf.entries),
        Node::Branch(branch) => size_of_val(&*branch.children),
    };
    footprint.nodes += 1;
    footprint.bytes += size_of::<Node<K, D>>() + 2 * size_of::<usize>() + owned;
    if let Node::Branch(branch) = &**node {
        branch
            .children
            .iter()
            .for_each(|child| measure(child, seen, footprint));
    }
}

//! The trie itself: immutable nodes, shared between states.
//!
//! A key lies on the path that the nibbles of its hash name. A branch stands where at least two paths
//! part or run on together; a leaf stands as near to the root as its path is alone. The shape, and so
//! every hash, depends on the content only.

use std::{cmp::Ordering, sync::Arc};

use crate::Digest;

/// How many ways a branch can have.
pub(crate) const WAYS: u8 = 16;

/// Distinguish the hashes of the three kinds of nodes.
const LEAF: u8 = 0;
const BRANCH: u8 = 1;
const EMPTY: u8 = 2;

#[derive(Debug)]
pub(crate) enum Node<K, D> {
    Leaf(Leaf<K, D>),
    Branch(Branch<K, D>),
}

/// A node, or nothing at all.
pub(crate) type Link<K, D> = Option<Arc<Node<K, D>>>;

/// The keys with one path: one key, unless hashes collide.
#[derive(Debug)]
pub(crate) struct Leaf<K, D> {
    pub(crate) path: D,
    /// Sorted by key, never empty.
    pub(crate) entries: Box<[(K, D)]>,
    hash: D,
}

#[derive(Debug)]
pub(crate) struct Branch<K, D> {
    /// Bit `n` is set when there is a child for nibble `n`.
    pub(crate) bitmap: u16,
    /// One per set bit, ascending; at least one.
    pub(crate) children: Box<[Arc<Node<K, D>>]>,
    hash: D,
}

/// A key with its path and new value; `None` removes it.
pub(crate) struct Change<K, D> {
    pub(crate) path: D,
    pub(crate) key: K,
    pub(crate) value: Option<D>,
}

/// Writes a key as bytes.
pub(crate) type EncodeFn<K> = fn(&K, &mut Vec<u8>);

/// What building nodes needs.
pub(crate) struct Builder<K> {
    pub(crate) encode: EncodeFn<K>,
    /// Scratch space for what is hashed.
    bytes: Vec<u8>,
    /// How many nodes were made.
    pub(crate) created: usize,
}

impl<K, D: Digest> Node<K, D> {
    pub(crate) fn hash(&self) -> D {
        match self {
            Self::Leaf(leaf) => leaf.hash,
            Self::Branch(branch) => branch.hash,
        }
    }
}

impl<K, D> Branch<K, D> {
    pub(crate) fn child(&self, nibble: u8) -> Option<&Arc<Node<K, D>>> {
        if self.bitmap & (1 << nibble) == 0 {
            return None;
        }
        self.children.get(rank(self.bitmap, nibble))
    }
}

/// How many set bits are below bit `nibble`.
pub(crate) fn rank(bitmap: u16, nibble: u8) -> usize {
    // At most 16.
    (bitmap & ((1 << nibble) - 1)).count_ones() as usize
}

/// The nibble of `path` at `depth`, high half of a byte first; 0 past its end.
pub(crate) fn nibble<D: Digest>(path: &D, depth: usize) -> u8 {
    let byte = path.as_bytes().get(depth / 2).copied().unwrap_or_default();
    if depth.is_multiple_of(2) {
        byte >> 4
    } else {
        byte & 0xF
    }
}

/// The hash of a state without keys.
pub(crate) fn hash_of_nothing<D: Digest>() -> D {
    D::of(&[EMPTY])
}

/// The hash of a leaf with the given encoded keys and values.
pub(crate) fn hash_leaf<'a, D: Digest>(
    bytes: &mut Vec<u8>,
    entries: impl Iterator<Item = (&'a [u8], D)>,
) -> D {
    bytes.clear();
    bytes.push(LEAF);
    for (key, value) in entries {
        bytes.extend_from_slice(&(key.len() as u64).to_be_bytes());
        bytes.extend_from_slice(key);
        bytes.extend_from_slice(value.as_bytes());
    }
    D::of(bytes)
}

/// The hash of a branch with the given children.
pub(crate) fn hash_branch<D: Digest>(
    bytes: &mut Vec<u8>,
    bitmap: u16,
    children: impl Iterator<Item = D>,
) -> D {
    bytes.clear();
    bytes.push(BRANCH);
    bytes.extend_from_slice(&bitmap.to_be_bytes());
    for child in children {
        bytes.extend_from_slice(child.as_bytes());
    }
    D::of(bytes)
}

impl<K: Ord + Clone> Builder<K> {
    pub(crate) fn new(encode: EncodeFn<K>) -> Self {
        Self {
            encode,
            bytes: Vec::new(),
            created: 0,
        }
    }

    pub(crate) fn path<D: Digest>(&mut self, key: &K) -> D {
        self.bytes.clear();
        (self.encode)(key, &mut self.bytes);
        D::of(&self.bytes)
    }

    /// Applies `changes`, which are sorted by path and key and name each key once, below `link`.
    /// Returns `link` itself where nothing changes.
    pub(crate) fn update<D: Digest>(
        &mut self,
        link: Option<&Arc<Node<K, D>>>,
        depth: usize,
        changes: &[Change<K, D>],
    ) -> Link<K, D> {
        if changes.is_empty() {
            return link.cloned();
        }
        match link.map(|node| (node, &**node)) {
            None => {
                let entries: Vec<_> = changes
                    .iter()
                    .filter_map(|change| Some((change.path, &change.key, change.value?)))
                    .collect();
                self.build(depth, &entries)
            }
            Some((node, Node::Leaf(leaf))) => {
                let entries = overlay(leaf, changes);
                let same = entries.len() == leaf.entries.len()
                    && entries
                        .iter()
                        .zip(&leaf.entries)
                        .all(|(new, old)| *new.1 == old.0 && new.2 == old.1);
                if same {
                    Some(node.clone())
                } else {
                    self.build(depth, &entries)
                }
            }
            Some((node, Node::Branch(branch))) => self.update_branch(node, branch, depth, changes),
        }
    }

    fn update_branch<D: Digest>(
        &mut self,
        node: &Arc<Node<K, D>>,
        branch: &Branch<K, D>,
        depth: usize,
        changes: &[Change<K, D>],
    ) -> Link<K, D> {
        let mut bitmap = 0;
        let mut children = Vec::with_capacity(usize::from(WAYS));
        let mut same = true;
        let mut rest = changes;
        for way in 0..WAYS {
            let end = rest.partition_point(|change| nibble(&change.path, depth) <= way);
            let (mine, others) = rest.split_at(end);
            rest = others;
            let old = branch.child(way);
            let new = self.update(old, depth + 1, mine);
            same &= match (old, &new) {
                (Some(old), Some(new)) => Arc::ptr_eq(old, new),
                (None, None) => true,
                (Some(_), None) | (None, Some(_)) => false,
            };
            if let Some(new) = new {
                bitmap |= 1 << way;
                children.push(new);
            }
        }
        if same {
            Some(node.clone())
        } else {
            self.branch(bitmap, children)
        }
    }

    /// Builds the node of `entries`, which are sorted by path and key.
    fn build<D: Digest>(&mut self, depth: usize, entries: &[(D, &K, D)]) -> Link<K, D> {
        let (first, last) = (entries.first()?, entries.last()?);
        if first.0 == last.0 {
            let entries: Box<[(K, D)]> = entries
                .iter()
                .map(|(_, key, value)| ((*key).clone(), *value))
                .collect();
            return Some(Arc::new(Node::Leaf(self.leaf(first.0, entries))));
        }
        let mut bitmap = 0;
        let mut children = Vec::new();
        let mut rest = entries;
        for way in 0..WAYS {
            let end = rest.partition_point(|entry| nibble(&entry.0, depth) <= way);
            let (mine, others) = rest.split_at(end);
            rest = others;
            if let Some(child) = self.build(depth + 1, mine) {
                bitmap |= 1 << way;
                children.push(child);
            }
        }
        self.branch(bitmap, children)
    }

    fn leaf<D: Digest>(&mut self, path: D, entries: Box<[(K, D)]>) -> Leaf<K, D> {
        self.created += 1;
        let keys: Vec<Vec<u8>> = entries
            .iter()
            .map(|(key, _)| {
                let mut bytes = Vec::new();
                (self.encode)(key, &mut bytes);
                bytes
            })
            .collect();
        let pairs = keys
            .iter()
            .zip(&entries)
            .map(|(key, (_, value))| (key.as_slice(), *value));
        let hash = hash_leaf(&mut self.bytes, pairs);
        Leaf {
            path,
            entries,
            hash,
        }
    }

    /// Makes a branch; a lone leaf takes its place, as near to the root as it can be.
    fn branch<D: Digest>(&mut self, bitmap: u16, mut children: Vec<Arc<Node<K, D>>>) -> Link<K, D> {
        if let [only] = children.as_slice()
            && let Node::Leaf(_) = **only
        {
            return children.pop();
        }
        if children.is_empty() {
            return None;
        }
        self.created += 1;
        let hash = hash_branch(
            &mut self.bytes,
            bitmap,
            children.iter().map(|child| child.hash()),
        );
        Some(Arc::new(Node::Branch(Branch {
            bitmap,
            children: children.into(),
            hash,
        })))
    }
}

/// The entries of `leaf` after `changes`, sorted by path and key.
fn overlay<'a, K: Ord, D: Digest>(
    leaf: &'a Leaf<K, D>,
    changes: &'a [Change<K, D>],
) -> Vec<(D, &'a K, D)> {
    let mut entries = Vec::with_capacity(leaf.entries.len() + changes.len());
    let mut old = leaf
        .entries
        .iter()
        .map(|(key, value)| (leaf.path, key, *value))
        .peekable();
    for change in changes {
        let place = (change.path, &change.key);
        while let Some(entry) = old.next_if(|entry| (entry.0, entry.1) < place) {
            entries.push(entry);
        }
        old.next_if(|entry| (entry.0, entry.1).cmp(&place) == Ordering::Equal);
        entries.extend(change.value.map(|value| (change.path, &change.key, value)));
    }
    entries.extend(old);
    entries
}

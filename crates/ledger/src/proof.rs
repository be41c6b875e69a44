//! Proofs of membership.

use crate::{
    Digest,
    node::{hash_branch, hash_leaf, nibble, rank},
};

/// Proves that a key has a value in the state of a root. It can be checked without the state, by
/// whoever knows the root, the encoded key and the value.
///
/// The check, for an implementation elsewhere (all integers most significant byte first, `‖` joins):
/// the hash of the leaf is that of `0x00 ‖ (length of key as 8 bytes ‖ key ‖ value)…`, with the
/// neighbours around the key; then, from the last step to the first, at depth `d` the hash of the branch
/// is that of `0x01 ‖ bitmap as 2 bytes ‖ hashes of the children`, where the hash below is inserted
/// among the siblings at the place of nibble `d` of the hash of the key; the result must be the root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proof<D> {
    /// The branches from the root down.
    pub steps: Vec<Step<D>>,
    /// Other keys in the same leaf, encoded, with their values: none unless hashes of keys collide.
    pub neighbours: Vec<(Vec<u8>, D)>,
    /// How many of the neighbours come before the key.
    pub position: usize,
}

/// One branch on the way.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step<D> {
    /// Bit `n` is set when the branch has a child for nibble `n`.
    pub bitmap: u16,
    /// The hashes of its children in ascending order, without the one on the way.
    pub siblings: Vec<D>,
}

impl<D: Digest> Proof<D> {
    /// Checks that the encoded `key` has `value` in the state of `root`.
    pub fn verify(&self, root: D, key: &[u8], value: D) -> bool {
        self.root(key, value) == Some(root)
    }

    /// The root in whose state the key has the value; `None` when the proof is malformed.
    fn root(&self, key: &[u8], value: D) -> Option<D> {
        let path = D::of(key);
        let mut bytes = Vec::new();
        let (before, after) = self.neighbours.split_at_checked(self.position)?;
        let others = |pair: &'_ (Vec<u8>, D)| (pair.0.clone(), pair.1);
        let entries: Vec<(Vec<u8>, D)> = before
            .iter()
            .map(others)
            .chain([(key.to_vec(), value)])
            .chain(after.iter().map(others))
            .collect();
        let pairs = entries.iter().map(|(key, value)| (key.as_slice(), *value));
        let mut hash = hash_leaf(&mut bytes, pairs);
        for (depth, step) in self.steps.iter().enumerate().rev() {
            let way = nibble(&path, depth);
            let children = usize::try_from(step.bitmap.count_ones()).ok()?;
            if step.bitmap & (1 << way) == 0 || children != step.siblings.len() + 1 {
                return None;
            }
            let (before, after) = step.siblings.split_at_checked(rank(step.bitmap, way))?;
            let all = before
                .iter()
                .copied()
                .chain([hash])
                .chain(after.iter().copied());
            hash = hash_branch(&mut bytes, step.bitmap, all);
        }
        Some(hash)
    }
}

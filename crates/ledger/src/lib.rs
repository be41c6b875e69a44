//! A persistent Merkle trie of what was published when.

//! A persistent Merkle trie of what was published when.
//!
//! A [`State`] maps keys to content hashes. It never changes; applying changes gives a new state that
//! shares everything else with the old one. The root of a state is a hash of its whole content and of
//! nothing else: two states with equal content have equal roots, whatever their history, on every
//! machine. A [`Ledger`] keeps the states that were published, by root, in a bounded history.
//!
//! So a root of a few bytes stands for "this is what I have", and "has it this key in this version?"
//! is one look-up.
//!
//! ```
//! use std::time::Instant;
//! use ledger::{Digest, History, Ledger, Xxh3};
//!
//! let mut ledger: Ledger<String, Xxh3> =
//!     Ledger::new(History::default(), Instant::now(), |key, bytes| bytes.extend_from_slice(key.as_bytes()));
//! let (v1, v2) = (Xxh3::of(b"version 1"), Xxh3::of(b"version 2"));
//! let now = Instant::now();
//! let first = ledger.apply(now, [("a".to_owned(), Some(v1)), ("b".to_owned(), Some(v1))]);
//! let second = ledger.apply(now, [("a".to_owned(), Some(v2))]);
//!
//! let old = ledger.at(&first).expect("kept");
//! assert_eq!(old.get(&"a".to_owned()), Some(v1));
//! let changes = old.diff(ledger.current());
//! assert_eq!(changes.len(), 1);
//!
//! let proof = old.prove(&"a".to_owned()).expect("a member");
//! assert!(proof.verify(first, b"a", v1));
//! assert!(!proof.verify(second, b"a", v1));
//! ```
//!
//! What it does not do: it keeps hashes, not contents; it knows nothing of who has which root; and a
//! proof is as strong as the [`Digest`] ([`Xxh3`] guards against mistakes, not against somebody who
//! constructs collisions).

mod digest;
mod history;
mod node;
mod proof;
mod state;

pub use digest::{Digest, ParseDigestError, ShortXxh3, Xxh3};
pub use history::{History, Ledger, Stats, UnknownRoot};
pub use proof::{Proof, Step};
pub use state::{Difference, Encode, Footprint, State};

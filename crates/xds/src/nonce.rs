//! The ids of responses.

use std::fmt;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;

/// The id of one response. It starts with the root of the world that the response was built from.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Nonce(pub(crate) Arc<str>);

impl fmt::Display for Nonce {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Makes the nonces of one stream.
///
/// A client that reconnects repeats the nonces of its previous stream, so those of two streams
/// differ even when replicas and roots are the same.
#[derive(Debug)]
pub(crate) struct Nonces {
    stream: u64,
    count: u64,
}

impl Nonces {
    /// Starts a sequence that no other stream has.
    pub(crate) fn random() -> Self {
        Self {
            stream: RandomState::new().build_hasher().finish(),
            count: 0,
        }
    }

    /// Returns the next nonce.
    pub(crate) fn next(&mut self, root: &str) -> Nonce {
        self.count += 1;
        Nonce(format!("{root}/{:x}.{}", self.stream, self.count).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonces_carry_the_root_and_never_repeat() {
        let (mut a, mut b) = (Nonces::random(), Nonces::random());
        let [first, second, other] = [a.next("r1"), a.next("r1"), b.next("r1")];
        assert!(first.0.starts_with("r1/"));
        assert_ne!(first, second);
        assert_ne!(first, other);
    }
}

//! The encoded message of a resource, in one piece or in shared parts.

use std::sync::Arc;

use bytes::Bytes;

/// An encoded message that may share parts with others.
///
/// Encoded messages that follow each other are one message. So a resource with very many elements,
/// of which most are in other resources too, or in the resource that it replaces, need not have
/// copies of them: its bytes are those of its parts, one after the other.
#[derive(Clone, Debug)]
pub struct Body(Repr);

#[derive(Clone, Debug)]
enum Repr {
    Whole(Bytes),
    /// The parts, and the sum of their lengths.
    Parts(Arc<[Bytes]>, usize),
}

impl Body {
    /// Returns the length in bytes.
    pub fn len(&self) -> usize {
        match &self.0 {
            Repr::Whole(bytes) => bytes.len(),
            Repr::Parts(_, len) => *len,
        }
    }

    /// Returns whether the message is empty.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the parts, in order.
    pub fn parts(&self) -> &[Bytes] {
        match &self.0 {
            Repr::Whole(bytes) => std::slice::from_ref(bytes),
            Repr::Parts(parts, _) => parts,
        }
    }

    /// Returns the message in one piece: a copy if it has several parts.
    pub fn to_bytes(&self) -> Bytes {
        match &self.0 {
            Repr::Whole(bytes) => bytes.clone(),
            Repr::Parts(parts, _) => parts.concat().into(),
        }
    }
}

impl<B: Into<Bytes>> From<B> for Body {
    fn from(bytes: B) -> Self {
        Self(Repr::Whole(bytes.into()))
    }
}

/// Joins parts.
impl FromIterator<Bytes> for Body {
    fn from_iter<I: IntoIterator<Item = Bytes>>(parts: I) -> Self {
        let parts: Arc<[Bytes]> = parts.into_iter().collect();
        let len = parts.iter().map(Bytes::len).sum();
        Self(Repr::Parts(parts, len))
    }
}

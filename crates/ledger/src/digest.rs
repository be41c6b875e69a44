//! Hashes.

use std::{fmt, hash, str::FromStr};

use xxhash_rust::xxh3::xxh3_128;

/// A hash function and its value.
pub trait Digest: Copy + Ord + hash::Hash + fmt::Debug + Send + Sync + 'static {
    /// Hashes `bytes`.
    fn of(bytes: &[u8]) -> Self;

    /// The bytes of the hash; always the same number of them, at least one.
    fn as_bytes(&self) -> &[u8];
}

/// XXH3 with 128 bits, most significant byte first: fast, and the same on every machine. Not
/// cryptographic.
///
/// As text it has 32 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Xxh3([u8; 16]);

impl Xxh3 {
    /// Takes a hash from its bytes.
    pub const fn from_bytes(bytes: [u8; 16]) -> Self {
        Self(bytes)
    }

    /// The bytes of the hash.
    pub const fn to_bytes(self) -> [u8; 16] {
        self.0
    }
}

impl Digest for Xxh3 {
    fn of(bytes: &[u8]) -> Self {
        Self(xxh3_128(bytes).to_be_bytes())
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Xxh3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl fmt::Debug for Xxh3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The text is not a hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 32 hexadecimal digits")]
pub struct ParseDigestError;

impl FromStr for Xxh3 {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        // `from_str_radix` would accept a sign.
        if text.len() != 32 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ParseDigestError);
        }
        let number = u128::from_str_radix(text, 16).map_err(|_| ParseDigestError)?;
        Ok(Self(number.to_be_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_value_is_the_published_one_and_survives_text() {
        // XXH3 128 bits of nothing, from the specification's test vectors (seed 0).
        let empty = Xxh3::of(b"");
        assert_eq!(empty.to_string(), "99aa06d3014798d86001c324468d497f");
        assert_eq!(empty.to_string().parse(), Ok(empty));
    }

    #[test]
    fn other_texts_are_refused() {
        for text in [
            "",
            "99aa",
            "+9aa06d3014798d86001c324468d497f",
            &"g".repeat(32),
            &"é".repeat(16),
        ] {
            assert_eq!(text.parse::<Xxh3>(), Err(ParseDigestError), "{text}");
        }
    }
}

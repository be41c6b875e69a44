//! Hashes.

use std::{fmt, hash, str::FromStr};

use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

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

/// XXH3 with 64 bits, most significant byte first: for roots that have to be short. Enough against
/// mistakes as long as the states that are kept count in thousands.
///
/// As text it has 16 lowercase hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShortXxh3([u8; 8]);

impl ShortXxh3 {
    /// Takes a hash from its value.
    pub const fn from_u64(value: u64) -> Self {
        Self(value.to_be_bytes())
    }

    /// The value of the hash.
    pub const fn to_u64(self) -> u64 {
        u64::from_be_bytes(self.0)
    }
}

impl Digest for ShortXxh3 {
    fn of(bytes: &[u8]) -> Self {
        Self::from_u64(xxh3_64(bytes))
    }

    fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for ShortXxh3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.to_u64())
    }
}

impl fmt::Debug for ShortXxh3 {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for ShortXxh3 {
    type Err = ParseDigestError;

    fn from_str(text: &str) -> Result<Self, ParseDigestError> {
        if text.len() != 16 || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(ParseDigestError);
        }
        let number = u64::from_str_radix(text, 16).map_err(|_| ParseDigestError)?;
        Ok(Self::from_u64(number))
    }
}

/// The text is not a hash.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a hash has 32 hexadecimal digits, a short one 16")]
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
    fn a_short_hash_survives_text() {
        // XXH3 64 bits of nothing, from the specification's test vectors (seed 0).
        let empty = ShortXxh3::of(b"");
        assert_eq!(empty.to_string(), "2d06800538d394c2");
        assert_eq!(empty.to_string().parse(), Ok(empty));
        let signed = "+d06800538d394c2".parse::<ShortXxh3>();
        assert_eq!(signed, Err(ParseDigestError));
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

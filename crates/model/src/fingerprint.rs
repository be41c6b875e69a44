//! Content hashes: equal content, equal fingerprint, on every machine and in every build.

use std::hash::{Hash, Hasher};

use serde::Serialize;
use xxhash_rust::xxh3::Xxh3;

/// Hashes a value through its `Hash` implementation.
pub fn of(value: &impl Hash) -> u64 {
    let mut hasher = Xxh3::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Hashes a value through its JSON form, for types with floating-point fields.
pub fn of_json(value: &impl Serialize) -> u64 {
    struct Sink(Xxh3);
    impl std::io::Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.update(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut sink = Sink(Xxh3::new());
    // Writing to a hash cannot fail; a map with non-string keys would, and hashes as what came before.
    let written = serde_json::to_writer(&mut sink, value);
    debug_assert!(written.is_ok(), "model types have string keys");
    sink.0.digest()
}

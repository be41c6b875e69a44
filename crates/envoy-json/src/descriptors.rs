//! The descriptors of every message we can meet.
//!
//! `descriptors/envoy.binpb.zst` is made by `cargo xtask descriptors` from the sources of the locked
//! `envoy-types` and from `proto/` of this crate; a test of `xtask` fails when it is stale.

use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, MessageDescriptor};

/// Prefix of the type URLs that we write.
pub const TYPE_URL_PREFIX: &str = "type.googleapis.com/";

static POOL: LazyLock<DescriptorPool> = LazyLock::new(unpack);

/// Unpacks the descriptors once more, for who needs them only once: they take 13 MB.
pub(crate) fn unpack() -> DescriptorPool {
    let packed = include_bytes!("../descriptors/envoy.binpb.zst");
    let bytes = zstd::decode_all(packed.as_slice()).unwrap_or_default();
    // A test proves that the checked-in set loads; an empty pool knows no type and fails no caller.
    DescriptorPool::decode(bytes.as_slice()).unwrap_or_default()
}

/// Returns the pool of all descriptors; the first call unpacks it (some 10 ms).
pub fn pool() -> &'static DescriptorPool {
    &POOL
}

/// Returns the message that a full name or a type URL means: what counts is the part after the last
/// `/`. `None` when no such message is known.
pub fn message(name_or_url: &str) -> Option<MessageDescriptor> {
    POOL.get_message_by_name(full_name(name_or_url))
}

/// Returns the full name in a type URL: the part after the last `/`.
pub fn full_name(name_or_url: &str) -> &str {
    name_or_url.rsplit('/').next().unwrap_or(name_or_url)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checked_in_set_loads() {
        assert!(pool().files().len() > 500);
    }

    #[test]
    fn doubled_prefixes_resolve() {
        let url = "type.googleapis.com/type.googleapis.com/envoy.config.cluster.v3.Cluster";
        assert_eq!(
            message(url).unwrap().full_name(),
            "envoy.config.cluster.v3.Cluster"
        );
        assert!(message("company.filters.v1.Unknown").is_none());
    }
}

//! Istio's own messages, as `proto/istio` describes them.
//!
//! Written by hand, because there are few: a test compares each with its descriptor.

pub mod alpn;
pub mod metadata_exchange;
pub mod nds;
pub mod peer_metadata;
pub mod stats;

#[cfg(test)]
mod tests;

/// Implements [`prost::Name`] with our type URL prefix.
macro_rules! name {
    ($package:literal, $($rust:ty => $name:literal),+ $(,)?) => {
        $(impl ::prost::Name for $rust {
            const NAME: &'static str = $name;
            const PACKAGE: &'static str = $package;
            fn full_name() -> String {
                concat!($package, ".", $name).to_owned()
            }
            fn type_url() -> String {
                concat!("type.googleapis.com/", $package, ".", $name).to_owned()
            }
        })+
    };
}
pub(crate) use name;

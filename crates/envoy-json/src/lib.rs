//! JSON and YAML to and from Envoy's protobuf messages, by reflection, and the canonical encoding.
//!
//! - [`encode`]: equal messages give equal bytes, also inside packed `Any`s.
//! - [`json`]: protobuf JSON of encoded resources, and messages from JSON as EnvoyFilters write it.
//! - [`merge`]: the merge of EnvoyFilter patches.
//! - [`compare`]: differences of two JSON values, for people.
//! - [`descriptors`]: the descriptors all of this works by.
//! - [`istio`], [`contrib`], [`udpa`], [`xds`]: the few messages that `envoy-types` lacks.
//!
//! YAML is parsed elsewhere; here a YAML document is a [`serde_json::Value`]. Nothing here knows what a
//! cluster or a route means.

pub mod compare;
pub mod contrib;
pub mod descriptors;
pub mod encode;
pub mod istio;
pub mod json;
pub mod merge;
pub mod udpa;
pub mod xds;

pub use encode::{any, canonical, canonical_vec, struct_value, typed_struct};
pub use json::{Error, Unknown, from_json, to_json};

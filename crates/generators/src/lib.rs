//! Envoy resources of an Istio mesh, one module per type URL.

pub mod cache;
pub mod capabilities;
pub mod convert;
pub mod inputs;
pub mod locality;
pub mod names;
pub mod policy;
pub mod tls;

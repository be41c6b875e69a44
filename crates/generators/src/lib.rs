//! Envoy resources of an Istio mesh, one module per type URL.

pub mod admission;
pub mod cache;
pub mod capabilities;
pub mod cds;
pub mod convert;
mod ecds;
pub mod eds;
mod extensions;
pub mod inputs;
pub mod lds;
pub mod locality;
pub mod mtls;
pub mod names;
pub mod nds;
pub mod node;
mod patch;
pub mod policy;
mod provider;
mod proxy_config;
pub mod rds;
mod registrations;
mod relevance;
mod route;
mod sds;
mod security;
mod telemetry;
#[cfg(test)]
mod testing;
pub mod tls;
mod world;

pub use registrations::NAME_TABLE;
pub use world::{Mesh, Update};

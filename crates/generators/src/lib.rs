//! Envoy resources of an Istio mesh, one module per type URL.

pub mod cache;
pub mod capabilities;
pub mod convert;
mod extensions;
pub mod inputs;
pub mod lds;
pub mod locality;
pub mod names;
pub mod nds;
pub mod node;
pub mod policy;
mod provider;
mod proxy_config;
mod rds;
mod route;
mod security;
mod telemetry;
pub mod tls;

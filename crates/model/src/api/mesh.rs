//! Mesh-wide settings: `MeshConfig`, its `ProxyConfig` and `MeshNetworks` (config-model.md §4).
//!
//! [`MeshConfig::default`] holds the built-in defaults; [`MeshConfig::overlay`] lays a source over
//! what is there, by the rules of §4.2.

mod config;
mod networks;
mod overlay;
mod providers;
mod proxy;

pub use config::*;
pub use networks::*;
pub use providers::*;
pub use proxy::*;

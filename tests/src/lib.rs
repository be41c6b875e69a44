//! Workspace-level tests and what they share.

pub mod authz;
pub mod bookinfo;
pub mod conformance;
pub mod control_plane;
pub mod corpus;
pub mod envoy;
pub mod fuzz;
mod generate;
pub mod hbone;
pub mod http;
pub mod http3;
pub mod identity;
pub mod kubernetes;
pub mod load;
pub mod process;
pub mod tls;
pub mod traffic;
pub mod wheel;

pub use generate::{Versions, generate, generate_seeded, on_threads};

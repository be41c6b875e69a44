//! Workspace-level tests and what they share.

pub mod conformance;
pub mod control_plane;
pub mod corpus;
pub mod envoy;
mod generate;
pub mod http;
pub mod process;

pub use generate::generate;

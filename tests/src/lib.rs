//! Workspace-level tests and what they share.

pub mod conformance;
pub mod corpus;
mod generate;

pub use generate::generate;

//! The doors: sources of objects, the config store and the service registry.
//!
//! A source ([`Decoder`] over texts) turns its input into [`Change`]s. [`Intake`] keeps tables of
//! objects, derives services and endpoints from them by pure functions, and hands out one immutable
//! [`model::MeshState`] with a [`model::PushRequest`] that says what changed. Nothing in that path does
//! I/O, and nothing depends on the order in which changes arrive.
//!
//! Feature `kubernetes`: the source that reads a cluster, on `kube`.

mod clusters;
mod decode;
mod few;
mod file;
mod intake;
pub mod keys;
#[cfg(feature = "kubernetes")]
pub mod kubernetes;
mod layers;
mod mesh;
mod registry;
mod report;
pub mod resolve;
mod store;
mod validate;
mod yaml;

pub use decode::{Decoded, Decoder};
pub use file::{Batch, FileError, FileId, FileInputs, FileSource, Files, Report};
pub use intake::{Change, Intake, Options};
pub use mesh::{Setting, mesh_config, mesh_networks};
pub use registry::Derivations;
pub use report::{Finding, Severity};
pub use yaml::{SyntaxError, line_in as yaml_line_in, line_of as yaml_line, values as yaml_values};

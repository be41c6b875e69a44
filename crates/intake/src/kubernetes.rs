//! The Kubernetes source: the objects of a cluster, listed and watched.
//!
//! Each kind has a [`table`](TableStatus) of its own, and a task that keeps it: it lists once, follows the
//! watch, and compares when it has to list again. What it sends are [`Change`](crate::Change)s of whole
//! objects, as the file source does. A watch that is lost leaves its table as it was, *stale*: nothing
//! shrinks because nobody answers. [`Tables`] says how each of them is, and when all that are needed are
//! known.

pub mod connect;

mod backoff;
mod mesh_map;
mod reader;
mod reflector;
mod resource;
mod source;
mod status;
mod table;

pub use self::{
    mesh_map::MeshMap,
    source::{ClusterSource, SourceOptions, Turn},
    status::{Phase, TableStatus, Tables},
};

#[cfg(test)]
mod testing;

//! The Kubernetes source: the objects of a cluster, listed and watched.
//!
//! Each kind has a [`table`](TableStatus) of its own, and a task that keeps it: it lists once, follows the
//! watch, and compares when it has to list again. What it sends are [`Change`](crate::Change)s of whole
//! objects, as the file source does. A watch that is lost leaves its table as it was, *stale*: nothing
//! shrinks because nobody answers. [`Tables`] says how each of them is, and when all that are needed are
//! known.

pub mod connect;

mod backoff;
mod definitions;
mod mesh_map;
mod reader;
mod reflector;
mod remotes;
mod resource;
mod source;
mod status;
mod table;

pub use self::{
    mesh_map::MeshMap,
    remotes::{Connections, Progress as RemoteProgress, RemoteSecrets, Remotes},
    source::{ClusterSource, SourceOptions, Turn},
    status::{Phase, TableStatus, Tables},
};

/// An error with what is behind it.
fn causes(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            text.push_str(": ");
            text.push_str(&cause_text);
        }
        next = cause.source();
    }
    text
}

#[cfg(test)]
mod testing;

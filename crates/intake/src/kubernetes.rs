//! The Kubernetes source: the objects of a cluster, listed and watched.

pub mod connect;

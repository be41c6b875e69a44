//! The nouns of the mesh: Istio API types, services, endpoints, config keys, push requests and their rules.

pub mod api;

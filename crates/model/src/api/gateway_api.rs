//! Kinds of `gateway.networking.k8s.io`: gateways, routes and policies.

mod gateway;
mod policy;
mod route;

pub use gateway::*;
pub use policy::*;
pub use route::*;

//! The immutable snapshot of the mesh and its indexes.
//!
//! [`PushContext::build`] turns a [`model::MeshState`] into indexes that resource builders read:
//! services by visibility, VirtualServices by gateway, consolidated DestinationRules, Sidecar
//! scopes, policies. [`PushContext::next`] does the same at the cost of what changed. A
//! [`ProxyClass`] holds every decision that proxies share. [`Publisher`] swaps snapshots,
//! [`Reader`] takes them. Nothing here does I/O or knows Envoy.

mod accounts;
mod advice;
mod attach;
mod authn;
mod class;
mod cluster_local;
mod context;
mod destination_rule;
mod diff;
mod gateway;
mod order;
mod patch_outcomes;
mod policy;
mod proxy_config;
mod publish;
mod scope;
mod secret_errors;
mod service;
mod sorted;
mod step;
mod table;
mod target;
mod virtual_service;
mod waypoint;
mod workload;
mod workload_entry;

#[cfg(test)]
mod laws;
#[cfg(test)]
mod testing;

pub use advice::Advice;
pub use attach::Workload;
pub use authn::EffectivePeerAuthentication;
pub use class::{ClassKey, ProxyClass};
pub use context::PushContext;
pub use destination_rule::{ConsolidatedRule, DestinationRuleIndex};
pub use gateway::{CredentialReference, GatewayServer, MergedGateway, MergedServers, ServerPort};
pub use patch_outcomes::{PatchId, PatchOutcome, PatchOutcomes};
pub use policy::{
    AuthorizationPolicies, ExtensionQuery, FilterChainKind, PatchTarget, PolicyIndex, TrafficSide,
};
pub use publish::{Publisher, Reader};
pub use scope::{
    EgressListener, ScopeOrigin, ServiceIter, ServiceList, ServicePiece, SidecarScope,
};
pub use secret_errors::SecretErrors;
pub use service::ServiceIndex;
pub use virtual_service::{ResolvedVirtualService, RouteSemantics, Routes, VirtualServiceIndex};
pub use waypoint::Waypoint;

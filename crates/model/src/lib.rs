//! The nouns of the mesh: Istio's API types, services and endpoints, config keys, push requests,
//! and the rules that belong to them alone (hosts, visibility, protocols).
//!
//! Nothing here does I/O, awaits, or knows Envoy. Sources of objects are in `intake`; indexes over
//! them are in `pushctx`.

pub mod address;
pub mod api;
pub mod bundle;
pub mod config;
mod derived;
pub mod features;
pub mod fingerprint;
pub mod host;
pub mod kind;
pub mod network;
pub mod protocol;
pub mod proxy;
pub mod push;
pub mod service;
mod small_map;
pub mod spiffe;
pub mod state;
pub mod turn;
pub mod validation;
pub mod visibility;

pub use address::AddressView;
pub use config::{Config, ConfigKey, Labels, Meta, NamespacedName, Timestamp, selects};
pub use derived::Derived;
pub use features::Features;
pub use kind::{Kind, Object, Table, Tables};
pub use network::{NetworkGateway, NetworkGateways};
pub use protocol::Protocol;
pub use proxy::{Node, Proxy, ProxyType};
pub use push::{PushRequest, Reason};
pub use service::{
    Endpoint, Health, Locality, Port, Resolution, Service, ServiceEndpoints, ServiceId, ServiceKey,
    ServiceTarget, TrafficDistribution,
};
pub use small_map::SmallMap;
pub use spiffe::SpiffeId;
pub use state::{InstanceKey, MeshState, ServiceInstance};
pub use visibility::ExportTo;

//! Typed API objects: Istio, Gateway API and the parts of Kubernetes that are read.
//!
//! Every struct is the **spec** of its kind (for kinds without one, such as `Secret`, the whole
//! object without its metadata), in proto JSON: camel case names, enums by name, durations as
//! strings. Objects are decoded with [`decode`], which follows the proto JSON rules that plain
//! `serde_json` does not know: snake case names, `null` for "not given", numbers as strings.
//! Fields keep the shape of the wire: plain scalars hold their zero value when they are absent,
//! `Option` marks what can be told apart from its zero value. Nothing here is validated; that is
//! the `validation` module's work. Follows config-model.md §2 and §3.

pub(crate) mod codec;
mod duration;

pub mod common;
pub mod confidential;
pub mod destination_rule;
pub mod envoy_filter;
pub mod extensions;
pub mod gateway;
pub mod gateway_api;
pub mod kubernetes;
pub mod mesh;
pub mod proxy_config;
pub mod security;
pub mod service_entry;
pub mod sidecar;
pub mod telemetry;
pub mod virtual_service;

pub use codec::{Base64, DecodeError, Decoded, decode, decode_at};
pub use duration::{Duration, ParseDurationError};

pub use destination_rule::DestinationRule;
pub use envoy_filter::EnvoyFilter;
pub use extensions::{TrafficExtension, WasmPlugin};
pub use gateway::Gateway;
pub use mesh::{MeshConfig, MeshNetworks, MeshProxyConfig};
pub use proxy_config::ProxyConfig as ProxyConfigResource;
pub use security::{AuthorizationPolicy, PeerAuthentication, RequestAuthentication};
pub use service_entry::{ServiceEntry, WorkloadEntry, WorkloadGroup};
pub use sidecar::Sidecar;
pub use telemetry::Telemetry;
pub use virtual_service::VirtualService;

//! `networking.istio.io` Sidecar (config-model.md §3.7).

use super::codec::{message, proto_enum};
use super::common::{ConnectionPool, Destination, LabelsSelector};
use super::gateway::ServerTlsSettings;

message! {
    /// What a sidecar accepts and what it can reach.
    pub struct Sidecar {
        /// Workloads it is for; absent means all of the namespace.
        workload_selector: Option<LabelsSelector>,
        /// Inbound listeners; empty means those of the workload's services.
        ingress: Vec<IngressListener>,
        /// Outbound listeners and visible hosts.
        egress: Vec<EgressListener>,
        /// Connection limits of all inbound listeners.
        inbound_connection_pool: Option<ConnectionPool>,
        /// What happens to traffic to unknown destinations.
        outbound_traffic_policy: Option<OutboundTrafficPolicy>,
    }

    /// An inbound listener.
    pub struct IngressListener {
        /// The port.
        port: Option<SidecarPort>,
        /// Address; empty means all.
        bind: String,
        /// How traffic is captured.
        capture_mode: CaptureMode,
        /// Where it is forwarded: `127.0.0.1:port`, `0.0.0.0:port` or a `unix://` path.
        default_endpoint: String,
        /// TLS from outside of the mesh.
        tls: Option<ServerTlsSettings>,
        /// Connection limits.
        connection_pool: Option<ConnectionPool>,
    }

    /// An outbound listener.
    pub struct EgressListener {
        /// The port; absent makes it the catch-all.
        port: Option<SidecarPort>,
        /// Address or `unix://` path; empty means by the services.
        bind: String,
        /// How traffic is captured.
        capture_mode: CaptureMode,
        /// Visible hosts, `namespace/host`.
        hosts: Vec<String>,
    }

    /// A port of a sidecar listener.
    pub struct SidecarPort {
        /// Its number.
        number: u32,
        /// Its protocol.
        protocol: String,
        /// Its name.
        name: String,
        /// Deprecated and without effect.
        target_port: u32,
    }

    /// What happens to traffic to unknown destinations.
    pub struct OutboundTrafficPolicy {
        /// Whether it is forwarded.
        mode: OutboundTrafficMode,
        /// Proxy that gets it.
        egress_proxy: Option<Destination>,
    }
}

proto_enum! {
    /// How traffic reaches a listener.
    pub enum CaptureMode {
        /// As the environment does.
        Default = 0 "DEFAULT",
        /// Redirected.
        Iptables = 1 "IPTABLES",
        /// Not captured.
        None = 2 "NONE",
    }

    /// Whether traffic to unknown destinations is forwarded.
    pub enum OutboundTrafficMode {
        /// Dropped.
        RegistryOnly = 0 "REGISTRY_ONLY",
        /// Forwarded as it is.
        AllowAny = 1 "ALLOW_ANY",
        /// Forwarded by name; only in the mesh configuration.
        AllowAnyDynamicDns = 3 "ALLOW_ANY_DYNAMIC_DNS",
    }
}

//! `networking.istio.io` ServiceEntry, WorkloadEntry and `WorkloadGroup` (config-model.md §3.5, §3.6).

use super::codec::{message, proto_enum};
use super::common::{Labels, LabelsSelector};
use super::kubernetes::Condition;
use crate::SmallMap;

message! {
    /// Services that the platform does not know.
    pub struct ServiceEntry {
        /// Their host names.
        hosts: Vec<String>,
        /// Addresses or CIDR ranges.
        addresses: Vec<String>,
        /// Ports.
        ports: Vec<ServicePort>,
        /// Inside or outside of the mesh.
        location: Location,
        /// How addresses of endpoints are found.
        resolution: Resolution,
        /// The endpoints; excludes `workload_selector`.
        endpoints: Vec<WorkloadEntry>,
        /// Selects pods and workload entries as endpoints.
        workload_selector: Option<LabelsSelector>,
        /// Namespaces that see it.
        export_to: Vec<String>,
        /// Names of which an endpoint's certificate must have one.
        subject_alt_names: Vec<String>,
        /// The object's status, which stands beside its spec.
        #[serde(skip)]
        status: ServiceEntryStatus,
    }

    /// A port of a service entry.
    pub struct ServicePort {
        /// Its number.
        number: u32,
        /// Its protocol; empty means detected.
        protocol: String,
        /// Its name.
        name: String,
        /// Port of the endpoints; zero means the same.
        target_port: u32,
    }

    /// What the control plane writes into a service entry's status.
    pub struct ServiceEntryStatus {
        /// Addresses that were allocated.
        addresses: Vec<ServiceEntryAddress>,
    }

    /// One allocated address.
    pub struct ServiceEntryAddress {
        /// The address.
        value: String,
        /// The host it is for.
        host: String,
    }

    /// One workload outside of the platform.
    pub struct WorkloadEntry {
        /// IP, DNS name or `unix://` path; empty only with a network.
        address: String,
        /// Ports by name of the service's port.
        ports: SmallMap<String, u32>,
        /// Labels.
        labels: Labels,
        /// Network.
        network: String,
        /// `region/zone/subzone`.
        locality: String,
        /// Load balancing weight; zero means one.
        weight: u32,
        /// Service account.
        service_account: String,
        /// The object's status, which stands beside its spec; empty for endpoints of a service
        /// entry.
        #[serde(skip)]
        status: WorkloadEntryStatus,
    }

    /// What is there of a workload entry.
    pub struct WorkloadEntryStatus {
        /// State; `Healthy` is read.
        conditions: Vec<Condition>,
    }

    /// A template for workload entries that register themselves.
    pub struct WorkloadGroup {
        /// Labels and annotations of the entries.
        metadata: Option<WorkloadGroupMetadata>,
        /// The entry itself.
        template: Option<WorkloadEntry>,
        /// Health check.
        probe: Option<ReadinessProbe>,
    }

    /// Labels and annotations of generated workload entries.
    pub struct WorkloadGroupMetadata {
        /// Labels.
        labels: Labels,
        /// Annotations.
        annotations: Labels,
    }

    /// A health check; one of the four methods is set.
    pub struct ReadinessProbe {
        /// Seconds before the first probe.
        initial_delay_seconds: i32,
        /// Seconds until a probe fails.
        timeout_seconds: i32,
        /// Seconds between probes.
        period_seconds: i32,
        /// Successes in a row to become healthy.
        success_threshold: i32,
        /// Failures in a row to become unhealthy.
        failure_threshold: i32,
        /// An HTTP request.
        http_get: Option<HttpHealthCheck>,
        /// A TCP connection.
        tcp_socket: Option<TcpHealthCheck>,
        /// A command.
        exec: Option<ExecHealthCheck>,
        /// The gRPC health protocol.
        grpc: Option<GrpcHealthCheck>,
    }

    /// Health check by HTTP request.
    pub struct HttpHealthCheck {
        /// Path.
        path: String,
        /// Port.
        port: u32,
        /// Host; empty means the workload.
        host: String,
        /// `http` or `https`.
        scheme: String,
        /// Headers sent.
        http_headers: Vec<HttpHeader>,
    }

    /// A header of a health check.
    pub struct HttpHeader {
        /// Name.
        name: String,
        /// Value.
        value: String,
    }

    /// Health check by TCP connection.
    pub struct TcpHealthCheck {
        /// Host; empty means the workload.
        host: String,
        /// Port.
        port: u32,
    }

    /// Health check by command.
    pub struct ExecHealthCheck {
        /// The command and its arguments.
        command: Vec<String>,
    }

    /// Health check by gRPC.
    pub struct GrpcHealthCheck {
        /// Port.
        port: u32,
        /// Service name sent.
        service: String,
    }
}

proto_enum! {
    /// Whether a service is part of the mesh.
    pub enum Location {
        /// Outside; no mutual TLS.
        MeshExternal = 0 "MESH_EXTERNAL",
        /// Inside.
        MeshInternal = 1 "MESH_INTERNAL",
    }

    /// How addresses of endpoints are found.
    pub enum Resolution {
        /// The address the caller asked for.
        None = 0 "NONE",
        /// Those given.
        Static = 1 "STATIC",
        /// DNS, all answers.
        Dns = 2 "DNS",
        /// DNS, the first answer.
        DnsRoundRobin = 3 "DNS_ROUND_ROBIN",
        /// DNS of the host in the request.
        DynamicDns = 4 "DYNAMIC_DNS",
    }
}

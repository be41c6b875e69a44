//! Listeners of gateways (gateways §7–§17).

mod build;
mod passthrough;
mod plan;
mod tcp;
#[cfg(test)]
mod tests;

pub(crate) use build::build;
pub(crate) use plan::plan;

use envoy_types::pb::envoy::config::accesslog::v3::AccessLog;
use model::api::mesh::ConnectionProfile;
use pushctx::TrafficSide;

use super::{
    context::Context,
    http_filters::HttpFilterParts,
    http_manager::{ManagerParts, Side, edge_defaults},
    network_filters::TcpParts,
    parts::Digest,
};
use crate::{
    capabilities::Capabilities,
    convert,
    extensions::Extensions,
    security::PolicyFilters,
    telemetry::{ListenerClass, Telemetry, metadata_exchange},
};

/// What the listeners of one gateway class share, and the hash of all of it.
#[derive(Debug)]
pub(crate) struct GatewayParts {
    /// Connection managers.
    manager: ManagerParts,
    /// Filters of connections.
    tcp: TcpParts,
    /// The same where both sides are of the mesh.
    mutual_tcp: TcpParts,
    /// The same where connections go on to the mesh unread: without policies.
    mesh_tcp: TcpParts,
    /// Loggers of listeners.
    listener_logs: Vec<AccessLog>,
    /// Chains wait so long for their transport socket; `None` means without limit.
    connect_timeout: Option<model::api::Duration>,
    /// Connections that a listener accepts at a time.
    accepted_at_once: Option<u32>,
    /// Connections are spread evenly over workers.
    exact_balance: bool,
    /// Connections begin with a PROXY protocol header.
    proxy_protocol: bool,
    /// Buffer of a connection, bytes.
    buffer_limit: Option<u32>,
    /// Equal parts have equal fingerprints.
    pub fingerprint: u64,
}

impl GatewayParts {
    /// Resolves the parts of a class.
    pub(crate) fn new(ctx: &Context<'_>, policies: PolicyFilters) -> Self {
        let features = ctx.features();
        let capabilities = Capabilities::of(ctx.proxy());
        let telemetry = Telemetry::resolve(ctx.snapshot, ctx.class, ListenerClass::Gateway);
        let extensions = Extensions::resolve(ctx.snapshot, ctx.class, TrafficSide::Client);
        let in_mesh = metadata_exchange::is_in_mesh_only(ctx.proxy_config());
        let tcp = TcpParts {
            custom_policies: policies.tcp_custom.clone(),
            rbac: policies.tcp_rbac.clone(),
            ..TcpParts::of(ctx, &telemetry, extensions.clone())
        };
        let mutual_tcp = TcpParts {
            metadata_exchange: (features.metadata_exchange && capabilities.metadata_exchange)
                .then(|| metadata_exchange::tcp(features)),
            ..tcp.clone()
        };
        let mesh_tcp = TcpParts {
            custom_policies: Vec::new(),
            rbac: Vec::new(),
            ..tcp.clone()
        };
        let filters = HttpFilterParts {
            metadata_exchange: (features.metadata_exchange && capabilities.peer_metadata)
                .then(|| metadata_exchange::http_client(features, in_mesh)),
            alpn: features.alpn_filter && capabilities.alpn,
            sessions: features.persistent_session,
            ..HttpFilterParts::of(ctx, &telemetry, extensions, policies)
        };
        let config = ctx.proxy_config();
        let settings = config
            .connection_settings
            .as_ref()
            .map(|settings| match settings.profile {
                ConnectionProfile::Edge => edge_defaults(settings),
                ConnectionProfile::Sidecar => settings.clone(),
            });
        let timeout = model::api::Duration::from(features.transport_socket_connect_timeout);
        let mut parts = Self {
            manager: ManagerParts::new(ctx, Side::Gateway, &telemetry, filters),
            tcp,
            mutual_tcp,
            mesh_tcp,
            listener_logs: telemetry.listener_logs,
            connect_timeout: (!timeout.is_zero()).then_some(timeout),
            accepted_at_once: Some(features.max_connections_per_socket_event).filter(|n| *n > 0),
            exact_balance: ctx.metadata().outbound_exact_balance,
            proxy_protocol: config
                .gateway_topology
                .as_ref()
                .is_some_and(|topology| topology.proxy_protocol.is_some()),
            buffer_limit: settings
                .and_then(|s| s.listener_per_connection_buffer_limit_bytes)
                .and_then(|bytes| u32::try_from(bytes).ok()),
            fingerprint: 0,
        };
        parts.fingerprint = parts.digest();
        parts
    }

    fn digest(&self) -> u64 {
        let Self {
            manager,
            tcp,
            mutual_tcp,
            // It has nothing that the first of them has not.
            mesh_tcp: _,
            listener_logs,
            connect_timeout,
            accepted_at_once,
            exact_balance,
            proxy_protocol,
            buffer_limit,
            fingerprint: _,
        } = self;
        let mut digest = Digest::default();
        manager.fingerprint(&mut digest);
        tcp.fingerprint(&mut digest);
        mutual_tcp.fingerprint(&mut digest);
        digest.messages(listener_logs);
        digest.value(&(
            connect_timeout,
            accepted_at_once,
            exact_balance,
            proxy_protocol,
        ));
        digest.value(buffer_limit);
        digest.finish()
    }

    fn connect_timeout(&self) -> Option<envoy_types::pb::google::protobuf::Duration> {
        self.connect_timeout.map(convert::duration)
    }
}

//! Dynamic forward proxies (clusters-endpoints §12.5).

use std::net::SocketAddr;

use envoy_json::any;
use envoy_types::pb::envoy::{
    config::{
        cluster::v3::{
            Cluster,
            cluster::{ClusterDiscoveryType, LbPolicy},
        },
        core::v3::TypedExtensionConfig,
    },
    extensions::{
        clusters::dynamic_forward_proxy::v3::{
            ClusterConfig, cluster_config::ClusterImplementationSpecifier,
        },
        common::dynamic_forward_proxy::v3::DnsCacheConfig,
        network::dns_resolver::cares::v3::CaresDnsResolverConfig,
    },
};
use model::{Protocol as PortProtocol, Service};
use pushctx::ConsolidatedRule;

use super::{
    client::Client,
    fixed,
    http::{HttpOptions, Protocol},
    metadata::IstioMetadata,
    outbound::finish_http,
    outlier, pool, stat_name,
    upstream_tls::{self, ServerMode, TlsChoice},
};
use crate::{convert, inputs::Shared, names, policy::Policy};

/// Everything that the forward proxy of one port of a wildcard service depends on.
#[derive(Hash, Debug)]
pub(super) struct ForwardProxyInputs {
    /// Facts of the class and the mesh.
    pub client: Shared<Client>,
    /// The service.
    pub service: Shared<Service>,
    /// The service port's number.
    pub port: u16,
    /// The rule that applies.
    pub rule: Option<Shared<ConsolidatedRule>>,
    /// Identities of the service, sorted.
    pub accounts: std::sync::Arc<[std::sync::Arc<str>]>,
    /// How the server is believed to treat mutual TLS.
    pub server: ServerMode,
}

impl ForwardProxyInputs {
    /// Builds the cluster; `None` for a port whose protocol names no host.
    pub(super) fn build(&self) -> Option<Cluster> {
        let client = &*self.client;
        let service = &*self.service;
        let port = service.port(self.port)?;
        if !serves(port.protocol, true) {
            return None;
        }
        let name = names::outbound(self.port, "", &service.hostname);
        let spec = self.rule.as_ref().map(|r| &r.config.spec);
        let default = client.mesh.default_policy.as_ref();
        let policy = Policy::resolve(spec, None, self.port, default).unwrap_or_default();
        let mut cluster = Cluster {
            alt_stat_name: stat_name::fixed(&name),
            name,
            lb_policy: LbPolicy::ClusterProvided.into(),
            filters: client.parts().exchange_filter.iter().cloned().collect(),
            ..Cluster::default()
        };
        let mut http = HttpOptions::of(Protocol::of_port(
            port.protocol,
            client.is_router(),
            client.preserve_header_case,
        ));
        if pool::upgrades(policy.connection_pool, port.protocol, client) {
            http.upgrade();
        }
        pool::apply(&mut cluster, &mut http, &policy, client);
        if pool::uses_client_protocol(policy.connection_pool) {
            http.follow_downstream();
        }
        if policy.outlier_detection.is_some() {
            outlier::apply(
                &mut cluster,
                &mut http,
                policy.outlier_detection,
                service,
                &client.flags,
            );
        }
        let choice = TlsChoice {
            settings: policy.tls,
            subject: &service.hostname,
            mesh_external: service.mesh_external,
            service_entry: !service.is_kubernetes(),
            accounts: &self.accounts,
            default_sni: "",
            server: self.server,
            selects_workloads: spec.is_some_and(|r| r.workload_selector.is_some()),
            forward_proxy: true,
            certificate: None,
        };
        let applied = upstream_tls::apply(&mut cluster, &mut http, &choice, client);
        upstream_tls::apply_proxy_protocol(&mut cluster, policy.proxy_protocol);
        cluster.cluster_discovery_type = discovery(service, applied.insecure, client);
        let mut metadata = IstioMetadata::default();
        if service.mesh_external {
            metadata.mark("external");
        }
        if let Some(rule) = &self.rule {
            metadata.rule(&rule.config.meta);
            metadata.originates_tls(policy.tls);
        }
        cluster.metadata = metadata.message();
        finish_http(&mut cluster, http, client);
        Some(cluster)
    }
}

/// Tells whether a protocol names the host that is wanted, that of TLS only if it is trusted.
pub(super) fn serves(protocol: PortProtocol, trusts_server_names: bool) -> bool {
    match protocol {
        PortProtocol::Http | PortProtocol::Http2 | PortProtocol::Grpc => true,
        PortProtocol::Tls => trusts_server_names,
        _ => false,
    }
}

/// Finds the hosts of a wildcard service by the names that are wanted.
pub(super) fn discovery(
    service: &Service,
    is_insecure: bool,
    client: &Client,
) -> Option<ClusterDiscoveryType> {
    fixed::forward_proxy_type(&ClusterConfig {
        allow_insecure_cluster_options: is_insecure,
        cluster_implementation_specifier: Some(ClusterImplementationSpecifier::DnsCacheConfig(
            DnsCacheConfig {
                name: names::dns_cache(&service.hostname),
                dns_lookup_family: client.dns_family().into(),
                ..DnsCacheConfig::default()
            },
        )),
        ..ClusterConfig::default()
    })
}

/// The forward proxy of the mode `ALLOW_ANY_DYNAMIC_DNS`. `resolver` is the address at which the
/// proxy's agent answers DNS, where it captures it.
pub(super) fn allow_any(client: &Client, resolver: Option<SocketAddr>) -> Cluster {
    let name = names::ALLOW_ANY_DYNAMIC_DNS;
    let tls = client.mesh.dynamic_dns_tls.as_ref();
    let mut cluster = Cluster {
        name: name.to_owned(),
        alt_stat_name: stat_name::fixed(name),
        lb_policy: LbPolicy::ClusterProvided.into(),
        filters: client.parts().exchange_filter.iter().cloned().collect(),
        ..Cluster::default()
    };
    let mut http = HttpOptions::default();
    pool::apply(&mut cluster, &mut http, &Policy::default(), client);
    let choice = TlsChoice {
        settings: tls,
        subject: name,
        mesh_external: true,
        service_entry: false,
        accounts: &[],
        default_sni: "",
        server: ServerMode::Unknown,
        selects_workloads: false,
        forward_proxy: true,
        certificate: None,
    };
    upstream_tls::apply(&mut cluster, &mut http, &choice, client);
    if http.is_unset() {
        http = fixed::passthrough_options(client);
    }
    let insecure = cluster.transport_socket.is_none();
    cluster.cluster_discovery_type = fixed::forward_proxy_type(&ClusterConfig {
        allow_insecure_cluster_options: insecure,
        cluster_implementation_specifier: Some(ClusterImplementationSpecifier::DnsCacheConfig(
            DnsCacheConfig {
                name: "allow_any_dfp_dns_cache".to_owned(),
                dns_lookup_family: client.dns_family().into(),
                max_hosts: convert::u32_value(client.flags.dynamic_dns_max_hosts),
                typed_dns_resolver_config: resolver.map(agent_resolver),
                ..DnsCacheConfig::default()
            },
        )),
        ..ClusterConfig::default()
    });
    finish_http(&mut cluster, http, client);
    cluster
}

fn agent_resolver(address: SocketAddr) -> TypedExtensionConfig {
    convert::extension(
        "envoy.network.dns_resolver.cares",
        any(&CaresDnsResolverConfig {
            resolvers: vec![convert::socket_address(
                address.ip().to_string(),
                address.port(),
            )],
            ..CaresDnsResolverConfig::default()
        }),
    )
}

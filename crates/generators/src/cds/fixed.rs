//! Clusters that every proxy of a kind has, and those of its modes (clusters-endpoints §12).

use envoy_json::any;
use envoy_types::pb::envoy::{
    config::{
        cluster::v3::{
            Cluster,
            cluster::{
                ClusterDiscoveryType, CustomClusterType, DiscoveryType, LbConfig, LbPolicy,
                OriginalDstLbConfig,
            },
        },
        core::v3::{
            Address, BindConfig, ExtraSourceAddress, Http2ProtocolOptions, HttpProtocolOptions,
        },
        endpoint::v3::{
            ClusterLoadAssignment, Endpoint, LbEndpoint, LocalityLbEndpoints, lb_endpoint,
        },
    },
    extensions::{
        clusters::dynamic_forward_proxy::v3::ClusterConfig,
        transport_sockets::tls::v3::{
            CertificateValidationContext, CommonTlsContext, SubjectAltNameMatcher,
            subject_alt_name_matcher::SanType, tls_parameters::TlsProtocol,
        },
    },
    r#type::{
        matcher::v3::{StringMatcher, string_matcher::MatchPattern},
        metadata::v3::{
            MetadataKey,
            metadata_key::{PathSegment, path_segment},
        },
    },
};
use model::proxy::IpMode;

use super::{
    client::Client,
    http::{HttpOptions, Protocol},
    outbound::finish_http,
    parts, pool, stat_name, upstream_tls,
};
use crate::{convert, eds::internal_address, names, policy::Policy};

/// Idle timeout of clusters to the original destination.
const PASSTHROUGH_IDLE_SECONDS: i64 = 300;
/// Idle timeout of HBONE connections that the mesh does not set.
const HBONE_IDLE_SECONDS: i64 = 3600;
/// Port that HBONE listens at.
const HBONE_PORT: u32 = 15008;
/// The socket of the secret service beside the proxy.
const CREDENTIAL_SOCKET: &str = "./var/run/secrets/credential-uds/socket";

/// The cluster that drops everything.
pub(super) fn black_hole(client: &Client) -> Cluster {
    Cluster {
        name: names::BLACK_HOLE.to_owned(),
        alt_stat_name: stat_name::fixed(names::BLACK_HOLE),
        cluster_discovery_type: kind(DiscoveryType::Static),
        connect_timeout: Some(convert::duration(client.mesh.connect_timeout)),
        ..Cluster::default()
    }
}

/// The cluster of unknown destinations.
pub(super) fn passthrough(client: &Client) -> Cluster {
    let mut cluster = Cluster {
        name: names::PASSTHROUGH.to_owned(),
        alt_stat_name: stat_name::fixed(names::PASSTHROUGH),
        cluster_discovery_type: kind(DiscoveryType::OriginalDst),
        lb_policy: LbPolicy::ClusterProvided.into(),
        filters: client.parts().exchange_filter.iter().cloned().collect(),
        ..Cluster::default()
    };
    // Of the mesh's default policy only the pool counts, and of that not the HTTP options.
    let pool = client
        .mesh
        .default_policy
        .as_ref()
        .and_then(|d| d.connection_pool.as_ref());
    let policy = Policy {
        connection_pool: pool,
        ..Policy::default()
    };
    pool::apply(&mut cluster, &mut HttpOptions::default(), &policy, client);
    finish_http(&mut cluster, passthrough_options(client), client);
    cluster
}

/// The cluster of inbound traffic to ports without a cluster of their own.
pub(super) fn inbound_passthrough(client: &Client) -> Cluster {
    let both = client.ip_mode == IpMode::Dual;
    Cluster {
        name: names::INBOUND_PASSTHROUGH.to_owned(),
        filters: Vec::new(),
        upstream_bind_config: Some(bind_config(client, both)),
        ..passthrough(client)
    }
}

/// Binds connections to the address that tells the proxy's own traffic apart; `both` adds the one of
/// the other family.
pub(super) fn bind_config(client: &Client, both: bool) -> BindConfig {
    let extra = || ExtraSourceAddress {
        address: Some(convert::socket("::6", 0)),
        ..ExtraSourceAddress::default()
    };
    BindConfig {
        source_address: Some(convert::socket(client.passthrough_bind(), 0)),
        extra_source_addresses: if both { vec![extra()] } else { Vec::new() },
        ..BindConfig::default()
    }
}

/// Connections follow the downstream protocol and end after five idle minutes.
pub(super) fn passthrough_options(client: &Client) -> HttpOptions {
    HttpOptions {
        common: Some(idle_timeout(PASSTHROUGH_IDLE_SECONDS)),
        ..HttpOptions::of(Protocol::downstream(client.preserve_header_case))
    }
}

fn idle_timeout(seconds: i64) -> HttpProtocolOptions {
    HttpProtocolOptions {
        idle_timeout: Some(convert::seconds(seconds)),
        ..HttpProtocolOptions::default()
    }
}

/// The secret service behind the credential socket.
pub(super) fn sds_external(client: &Client) -> Cluster {
    let name = names::SDS_EXTERNAL;
    let mut cluster = Cluster {
        name: name.to_owned(),
        alt_stat_name: stat_name::fixed(name),
        cluster_discovery_type: kind(DiscoveryType::Static),
        connect_timeout: Some(convert::duration(client.mesh.connect_timeout)),
        load_assignment: Some(one_endpoint(name, convert::pipe_address(CREDENTIAL_SOCKET))),
        ..Cluster::default()
    };
    finish_http(&mut cluster, HttpOptions::of(Protocol::http2()), client);
    cluster
}

/// The listener behind the HBONE listener.
pub(super) fn main_internal(client: &Client) -> Cluster {
    internal(names::MAIN_INTERNAL, names::MAIN_INTERNAL, client)
}

/// The listener of a waypoint that opens tunnels, for what is reached directly.
pub(super) fn encap(client: &Client) -> Cluster {
    Cluster {
        filters: client.parts().baggage_filter.iter().cloned().collect(),
        ..internal(names::ENCAP, names::CONNECT_ORIGINATE, client)
    }
}

/// The cluster of a listener inside the proxy.
fn internal(name: &str, listener: &str, client: &Client) -> Cluster {
    let raw_buffer = convert::transport_socket("raw_buffer", parts::raw_buffer_config());
    let mut cluster = Cluster {
        name: name.to_owned(),
        alt_stat_name: stat_name::fixed(name),
        cluster_discovery_type: kind(DiscoveryType::Static),
        circuit_breakers: Some(client.parts().unlimited.clone()),
        load_assignment: Some(one_endpoint(
            name,
            internal_address(listener, String::new()),
        )),
        transport_socket: Some(parts::internal_upstream(
            "internal_upstream",
            raw_buffer,
            &[],
        )),
        ..Cluster::default()
    };
    finish_http(&mut cluster, passthrough_options(client), client);
    cluster
}

/// The cluster that opens HBONE tunnels to the address in the host's metadata. A waypoint of a
/// namespace also expects peers of that namespace.
pub(super) fn connect_originate(client: &Client, waypoint_of: Option<&str>) -> Cluster {
    let name = names::CONNECT_ORIGINATE;
    let segment = |key: &str| PathSegment {
        segment: Some(path_segment::Segment::Key(key.to_owned())),
    };
    let peers = client
        .mesh
        .trust_domains
        .iter()
        .filter(|domain| !domain.is_empty());
    let of_waypoint = waypoint_of
        .zip(client.mesh.trust_domains.first())
        .map(|(namespace, domain)| format!("spiffe://{domain}/ns/{namespace}/sa/"));
    let peers = peers.map(|domain| format!("spiffe://{domain}/"));
    let peers = peers
        .chain(of_waypoint)
        .map(|prefix| SubjectAltNameMatcher {
            san_type: SanType::Uri.into(),
            matcher: Some(StringMatcher {
                match_pattern: Some(MatchPattern::Prefix(prefix)),
                ..StringMatcher::default()
            }),
            ..SubjectAltNameMatcher::default()
        });
    let mut parameters = parts::tls_parameters();
    parameters.tls_minimum_protocol_version = TlsProtocol::TlSv13.into();
    client.flags.compliance.restrict(&mut parameters);
    let context = CommonTlsContext {
        tls_params: Some(parameters),
        alpn_protocols: vec!["h2".to_owned()],
        tls_certificate_sds_secret_configs: vec![client.parts().workload_certificate.clone()],
        validation_context_type: Some(upstream_tls::combined(
            CertificateValidationContext {
                match_typed_subject_alt_names: peers.collect(),
                ..CertificateValidationContext::default()
            },
            client.parts().workload_root.clone(),
        )),
        ..CommonTlsContext::default()
    };
    let mut socket = upstream_tls::socket(context, String::new());
    "tls".clone_into(&mut socket.name);
    let mut cluster = Cluster {
        name: name.to_owned(),
        alt_stat_name: stat_name::fixed(name),
        cluster_discovery_type: kind(DiscoveryType::OriginalDst),
        lb_policy: LbPolicy::ClusterProvided.into(),
        connect_timeout: Some(convert::duration(client.mesh.connect_timeout)),
        cleanup_interval: Some(convert::seconds(60)),
        circuit_breakers: Some(client.parts().unlimited.clone()),
        transport_socket: Some(socket),
        lb_config: Some(LbConfig::OriginalDstLbConfig(OriginalDstLbConfig {
            upstream_port_override: convert::u32_value(HBONE_PORT),
            metadata_key: Some(MetadataKey {
                key: "envoy.filters.listener.original_dst".to_owned(),
                path: vec![segment("waypoint")],
            }),
            ..OriginalDstLbConfig::default()
        })),
        ..Cluster::default()
    };
    let [stream, connection] = client.flags.hbone_windows;
    let window = |bytes: u32| convert::u32_value(bytes).filter(|_| bytes > 0);
    let idle = client.mesh.hbone_idle_timeout.map(convert::duration);
    let options = HttpOptions {
        common: Some(HttpProtocolOptions {
            idle_timeout: Some(idle.unwrap_or(convert::seconds(HBONE_IDLE_SECONDS))),
            ..HttpProtocolOptions::default()
        }),
        ..HttpOptions::of(Protocol::Http2(Http2ProtocolOptions {
            allow_connect: true,
            initial_stream_window_size: window(stream),
            initial_connection_window_size: window(connection),
            ..Http2ProtocolOptions::default()
        }))
    };
    finish_http(&mut cluster, options, client);
    cluster
}

/// A cluster type that is not built into Envoy.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the field of the message is optional"
)]
pub(super) fn forward_proxy_type(config: &ClusterConfig) -> Option<ClusterDiscoveryType> {
    Some(ClusterDiscoveryType::ClusterType(CustomClusterType {
        name: "envoy.clusters.dynamic_forward_proxy".to_owned(),
        typed_config: Some(any(config)),
    }))
}

/// One of Envoy's own cluster types.
#[expect(
    clippy::unnecessary_wraps,
    reason = "the field of the message is optional"
)]
pub(super) fn kind(kind: DiscoveryType) -> Option<ClusterDiscoveryType> {
    Some(ClusterDiscoveryType::Type(kind.into()))
}

/// An assignment of one endpoint without locality, weights or metadata.
pub(super) fn one_endpoint(cluster: &str, address: Address) -> ClusterLoadAssignment {
    let endpoint = LbEndpoint {
        host_identifier: Some(lb_endpoint::HostIdentifier::Endpoint(Endpoint {
            address: Some(address),
            ..Endpoint::default()
        })),
        ..LbEndpoint::default()
    };
    ClusterLoadAssignment {
        cluster_name: cluster.to_owned(),
        endpoints: vec![LocalityLbEndpoints {
            lb_endpoints: vec![endpoint],
            ..LocalityLbEndpoints::default()
        }],
        ..ClusterLoadAssignment::default()
    }
}

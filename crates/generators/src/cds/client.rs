//! What clusters depend on besides services and rules: facts of the class and the mesh.

use std::{
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    ops::Deref,
};

use envoy_types::pb::envoy::config::cluster::v3::cluster::DnsLookupFamily;
use model::{
    Features, Proxy, ProxyType, api,
    api::{
        common::{ClientTlsSettings, TcpKeepalive},
        mesh::{
            DefaultTrafficPolicy, InboundTrafficMode, MeshConfig, MeshH2UpgradePolicy, TlsConfig,
        },
    },
    fingerprint,
    proxy::IpMode,
};

use super::parts::Parts;
use crate::{
    capabilities::Capabilities,
    inputs::{ByJson, Fingerprinted},
    locality::MeshLocality,
    tls::Compliance,
};

/// The facts that clusters read of a proxy's class, the mesh configuration and the flags.
///
/// Hashed as a whole once per class and snapshot; a builder that has this needs no proxy.
#[derive(Hash, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct ClientFacts {
    /// What kind of proxy it is.
    pub proxy_type: ProxyType,
    /// Its address families.
    pub ip_mode: IpMode,
    /// Which of Istio's extensions it has.
    pub capabilities: Capabilities,
    /// Client certificates in files, from the node's metadata.
    pub certificates: Option<ClientCertificates>,
    /// Node metadata `file-credential`: file secrets come from their own service.
    pub file_credential: bool,
    /// Node metadata `credential`: the proxy has the credential socket.
    pub credential_socket: bool,
    /// HTTP/1 header names keep their case.
    pub preserve_header_case: bool,
    /// The proxy can send through HBONE tunnels.
    pub hbone: bool,
    /// Mesh-wide settings.
    pub mesh: MeshFacts,
    /// Flags.
    pub flags: Flags,
}

/// Files of client certificates that the node states; empty paths are possible but for the chain.
#[derive(Clone, Hash, Debug)]
pub(super) struct ClientCertificates {
    /// The certificate chain.
    pub chain: String,
    /// The key.
    pub key: String,
    /// The roots that verify servers.
    pub root: String,
}

/// Mesh-wide settings that clusters read.
#[derive(Hash, Debug)]
pub(super) struct MeshFacts {
    /// Connect timeout of all clusters.
    pub connect_timeout: api::Duration,
    /// TCP keep-alive under that of rules.
    pub tcp_keepalive: ByJson<Option<TcpKeepalive>>,
    /// Whether HTTP/1.1 is upgraded where no rule says.
    pub h2_upgrade: bool,
    /// Refresh rate of DNS clusters.
    pub dns_refresh_rate: api::Duration,
    /// Mutual TLS where the server offers it.
    pub auto_mtls: bool,
    /// Pattern of statistic names of outbound clusters; empty means the cluster's name.
    pub outbound_stat_name: String,
    /// Pattern of statistic names of inbound clusters; empty means the cluster's name.
    pub inbound_stat_name: String,
    /// Blocks under those of rules.
    pub default_policy: ByJson<Option<DefaultTrafficPolicy>>,
    /// Parameters of originated TLS.
    pub tls_defaults: ByJson<Option<TlsConfig>>,
    /// Locality and zone-aware settings where no rule says.
    pub locality: ByJson<MeshLocality>,
    /// Inbound traffic goes to the loopback address.
    pub inbound_localhost: bool,
    /// TLS of the dynamic DNS mode.
    pub dynamic_dns_tls: ByJson<Option<ClientTlsSettings>>,
    /// Idle timeout of HBONE connections.
    pub hbone_idle_timeout: Option<api::Duration>,
    /// Trust domain and its aliases.
    pub trust_domains: Vec<String>,
}

/// Flags that clusters read.
#[derive(Hash, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent flags")]
pub(super) struct Flags {
    /// Unhealthy endpoints are sent to everyone.
    pub send_unhealthy: bool,
    /// Unhealthy endpoints are sent unless a rule wants healthy ones.
    pub auto_send_unhealthy: bool,
    /// Peer metadata is exchanged.
    pub metadata_exchange: bool,
    /// ALPN does not offer the exchange.
    pub disable_mx_alpn: bool,
    /// Further labels to exchange, sorted.
    pub mx_labels: Vec<String>,
    /// Tunnels tell peers by the baggage header.
    pub baggage: bool,
    /// Waypoints resolve wildcard hosts by server names of TLS.
    pub wildcard_tls: bool,
    /// Windows of tunnels' streams and connections; 0 for the proxy's own.
    pub hbone_windows: [u32; 2],
    /// Clusters name their service in metadata.
    pub telemetry_label: bool,
    /// Headless services are EDS clusters for sidecars.
    pub eds_for_headless: bool,
    /// Parallel queries of the DNS resolver.
    pub dns_max_queries: u32,
    /// Jitter of DNS refreshes.
    pub dns_jitter: std::time::Duration,
    /// Circuit breakers report what remains.
    pub track_remaining: bool,
    /// Locality weights count everywhere.
    pub locality_weighted: bool,
    /// Redis ports are balanced by Maglev.
    pub redis_filter: bool,
    /// Both address families are used.
    pub dual_stack: bool,
    /// IPv6-only workloads may reach IPv4.
    pub v4_outbound_for_v6: bool,
    /// Rules beat certificates of the metadata for external hosts.
    pub prefer_rule_tls_for_external: bool,
    /// Label of services with sessions by cookie.
    pub session_label: String,
    /// Label of services with sessions by header.
    pub session_header_label: String,
    /// Hosts of the dynamic DNS cache.
    pub dynamic_dns_max_hosts: u32,
    /// Restriction of TLS parameters.
    pub compliance: Compliance,
}

/// [`ClientFacts`] with their fingerprint and the parts of messages that follow from them.
#[derive(Debug)]
pub(super) struct Client {
    facts: ClientFacts,
    parts: Parts,
    fingerprint: u64,
}

impl Client {
    /// Collects the facts for a proxy's class.
    pub(super) fn new(proxy: &Proxy, mesh: &MeshConfig, features: &Features) -> Self {
        let facts = ClientFacts::new(proxy, mesh, features);
        Self {
            fingerprint: fingerprint::of(&facts),
            parts: Parts::new(&facts),
            facts,
        }
    }

    /// Messages that follow from the facts, built once.
    pub(super) fn parts(&self) -> &Parts {
        &self.parts
    }
}

impl Fingerprinted for Client {
    fn fingerprint(&self) -> u64 {
        self.fingerprint
    }
}

impl Deref for Client {
    type Target = ClientFacts;

    fn deref(&self) -> &ClientFacts {
        &self.facts
    }
}

impl ClientFacts {
    fn new(proxy: &Proxy, mesh: &MeshConfig, features: &Features) -> Self {
        let metadata = &proxy.metadata;
        let stated =
            |key: &str| proxy.raw_metadata.get(key).and_then(|v| v.as_str()) == Some("true");
        let config = metadata
            .proxy_config
            .as_deref()
            .unwrap_or(&mesh.default_config);
        let hbone_sending = features.ambient && features.sending_hbone;
        Self {
            proxy_type: proxy.proxy_type,
            ip_mode: proxy.ip_mode,
            capabilities: Capabilities::of(proxy),
            certificates: (!metadata.tls_client_cert_chain.is_empty()).then(|| {
                ClientCertificates {
                    chain: metadata.tls_client_cert_chain.clone(),
                    key: metadata.tls_client_key.clone(),
                    root: metadata.tls_client_root_cert.clone(),
                }
            }),
            file_credential: stated("file-credential"),
            credential_socket: stated("credential"),
            preserve_header_case: config
                .proxy_headers
                .as_ref()
                .and_then(|h| h.preserve_http1_header_case)
                .unwrap_or_default(),
            hbone: (hbone_sending || proxy.proxy_type == ProxyType::Waypoint)
                && !metadata.disable_hbone_send,
            mesh: MeshFacts::new(mesh),
            flags: Flags::new(features),
        }
    }

    /// Families by which the proxy resolves host names.
    pub(super) fn dns_family(&self) -> DnsLookupFamily {
        match self.ip_mode {
            IpMode::V6 if self.flags.v4_outbound_for_v6 => DnsLookupFamily::All,
            IpMode::V6 => DnsLookupFamily::V6Only,
            IpMode::Dual if self.flags.dual_stack => DnsLookupFamily::All,
            IpMode::V4 | IpMode::Dual => DnsLookupFamily::V4Only,
        }
    }

    /// Tells whether this is a gateway.
    pub(super) fn is_router(&self) -> bool {
        self.proxy_type == ProxyType::Router
    }

    /// Address that inbound connections to the original destination come from.
    pub(super) fn passthrough_bind(&self) -> &'static str {
        if self.ip_mode == IpMode::V6 {
            "::6"
        } else {
            "127.0.0.6"
        }
    }

    /// The loopback address of the proxy's family.
    pub(super) fn loopback(&self) -> IpAddr {
        if self.ip_mode == IpMode::V6 {
            Ipv6Addr::LOCALHOST.into()
        } else {
            Ipv4Addr::LOCALHOST.into()
        }
    }

    /// Tells whether clusters exchange peer metadata: the mesh wants it and the proxy can.
    pub(super) fn exchanges_metadata(&self) -> bool {
        self.flags.metadata_exchange && self.capabilities.metadata_exchange
    }
}

impl MeshFacts {
    fn new(mesh: &MeshConfig) -> Self {
        Self {
            connect_timeout: mesh.connect_timeout,
            tcp_keepalive: ByJson(mesh.tcp_keepalive.clone()),
            h2_upgrade: mesh.h2_upgrade_policy == MeshH2UpgradePolicy::Upgrade,
            dns_refresh_rate: mesh.dns_refresh_rate,
            auto_mtls: mesh.enable_auto_mtls,
            outbound_stat_name: mesh.outbound_cluster_stat_name.clone(),
            inbound_stat_name: mesh.inbound_cluster_stat_name.clone(),
            default_policy: ByJson(mesh.default_traffic_policy.clone()),
            tls_defaults: ByJson(mesh.tls_defaults.clone()),
            locality: ByJson(MeshLocality {
                locality: mesh.locality_lb_setting.clone(),
                zone_aware: mesh.zone_aware_lb_setting.clone(),
            }),
            inbound_localhost: mesh.inbound_traffic_policy.mode == InboundTrafficMode::Localhost,
            dynamic_dns_tls: ByJson(mesh.outbound_traffic_policy.tls.clone()),
            hbone_idle_timeout: mesh.hbone_idle_timeout,
            trust_domains: std::iter::once(&mesh.trust_domain)
                .chain(&mesh.trust_domain_aliases)
                .cloned()
                .collect(),
        }
    }
}

impl Flags {
    fn new(features: &Features) -> Self {
        let mut mx_labels: Vec<String> = features
            .mx_additional_labels
            .split(',')
            .map(str::trim)
            .filter(|label| !label.is_empty())
            .map(str::to_owned)
            .collect();
        mx_labels.sort();
        mx_labels.dedup();
        Self {
            send_unhealthy: features.send_unhealthy_endpoints,
            auto_send_unhealthy: features.auto_send_unhealthy_endpoints,
            metadata_exchange: features.metadata_exchange,
            disable_mx_alpn: features.disable_mx_alpn,
            mx_labels,
            baggage: features.ambient && features.ambient_baggage,
            wildcard_tls: features.wildcard_tls_entries,
            hbone_windows: [
                features.hbone_stream_window,
                features.hbone_connection_window,
            ],
            telemetry_label: features.telemetry_label,
            eds_for_headless: features.eds_for_headless,
            dns_max_queries: features.dns_cares_udp_max_queries,
            dns_jitter: features.dns_jitter,
            track_remaining: !features.disable_track_remaining,
            locality_weighted: features.locality_weighted_lb,
            redis_filter: features.redis_filter,
            dual_stack: features.dual_stack,
            v4_outbound_for_v6: features.v4_outbound_for_v6,
            prefer_rule_tls_for_external: features.prefer_rule_tls_for_external,
            session_label: features.persistent_session_label.clone(),
            session_header_label: features.persistent_session_header_label.clone(),
            dynamic_dns_max_hosts: features.dynamic_dns_max_hosts,
            compliance: Compliance::parse(&features.compliance_policy),
        }
    }
}

#[cfg(test)]
mod tests {
    use model::{Node, Proxy, ProxyType, proxy::IpMode};
    use serde_json::json;

    use super::*;
    use crate::testing::flips::{Flip, check_fields};

    impl Flip for api::Duration {
        fn flip(&mut self) {
            *self = std::time::Duration::from_secs(77).into();
        }
    }

    /// Facts with something of everything.
    fn sample() -> ClientFacts {
        let metadata = json!({
            "TLS_CLIENT_CERT_CHAIN": "/chain.pem", "TLS_CLIENT_KEY": "/key.pem", "TLS_CLIENT_ROOT_CERT": "/root.pem",
        });
        let node = Node {
            id: "sidecar~10.0.0.1~client.default~default.svc.cluster.local".to_owned(),
            metadata: metadata.as_object().cloned().unwrap(),
            ..Node::default()
        };
        let mut facts = ClientFacts::new(
            &Proxy::parse(&node).unwrap(),
            &MeshConfig::default(),
            &Features::default(),
        );
        facts.mesh.hbone_idle_timeout.get_or_insert_default();
        facts.flags.mx_labels.push("app".to_owned());
        facts
    }

    #[test]
    fn every_fact_counts() {
        check_fields!(
            sample,
            ClientFacts {
                proxy_type: ProxyType::Router,
                ip_mode: IpMode::Dual,
                capabilities: Capabilities {
                    agent: !sample().capabilities.agent,
                    ..sample().capabilities
                },
                certificates,
                file_credential,
                credential_socket,
                preserve_header_case,
                hbone,
                mesh: MeshFacts {
                    auto_mtls: !sample().mesh.auto_mtls,
                    ..sample().mesh
                },
                flags: Flags {
                    dual_stack: !sample().flags.dual_stack,
                    ..sample().flags
                },
            }
        );
        check_fields!(
            || sample().certificates.unwrap(),
            ClientCertificates { chain, key, root }
        );
        check_fields!(
            || sample().mesh,
            MeshFacts {
                connect_timeout,
                tcp_keepalive: ByJson(Some(TcpKeepalive::default())),
                h2_upgrade,
                dns_refresh_rate,
                auto_mtls,
                outbound_stat_name,
                inbound_stat_name,
                default_policy: ByJson(Some(DefaultTrafficPolicy::default())),
                tls_defaults: ByJson(Some(TlsConfig::default())),
                locality: ByJson(MeshLocality {
                    zone_aware: Some(api::common::ZoneAwareLbSetting::default()),
                    ..Default::default()
                }),
                inbound_localhost,
                dynamic_dns_tls: ByJson(Some(ClientTlsSettings::default())),
                hbone_idle_timeout,
                trust_domains,
            }
        );
        check_fields!(
            || sample().flags,
            Flags {
                send_unhealthy,
                auto_send_unhealthy,
                metadata_exchange,
                disable_mx_alpn,
                mx_labels,
                baggage,
                wildcard_tls,
                hbone_windows,
                telemetry_label,
                eds_for_headless,
                dns_max_queries,
                dns_jitter,
                track_remaining,
                locality_weighted,
                redis_filter,
                dual_stack,
                v4_outbound_for_v6,
                prefer_rule_tls_for_external,
                session_label,
                session_header_label,
                dynamic_dns_max_hosts,
                compliance: Compliance::PostQuantum,
            }
        );
    }
}

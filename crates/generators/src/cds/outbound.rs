//! Clusters of services (clusters-endpoints §3, §11, §14).

use envoy_types::pb::envoy::config::{
    cluster::v3::{
        Cluster,
        cluster::{
            ClusterDiscoveryType, CommonLbConfig, DiscoveryType, DnsLookupFamily, EdsClusterConfig,
            LbConfig, OriginalDstLbConfig,
        },
    },
    core::v3::{HealthStatus, HealthStatusSet},
    endpoint::v3::ClusterLoadAssignment,
};
use model::{
    Port, Resolution, Service,
    api::destination_rule::{DestinationRule, Subset},
    host,
};
use pushctx::ConsolidatedRule;

use super::{
    balancer,
    client::Client,
    http::{HTTP_OPTIONS, HttpOptions, Protocol},
    metadata::IstioMetadata,
    outlier, pool,
    stat_name::{StatNameParts, alt_stat_name},
    upstream_tls::{self, ServerMode, TlsChoice},
};
use crate::{
    convert,
    eds::{AssignmentInputs, Purpose},
    inputs::Shared,
    locality::LocalitySetting,
    names,
    policy::{self, Policy},
};

/// Statuses of hosts that a session may stick to.
const SESSION_STATUSES: [HealthStatus; 4] = [
    HealthStatus::Healthy,
    HealthStatus::Draining,
    HealthStatus::Unknown,
    HealthStatus::Degraded,
];

/// Everything that the cluster of one service port, or of one subset of it, depends on.
#[derive(Hash, Debug)]
pub(super) struct OutboundClusterInputs {
    /// Facts of the class and the mesh.
    pub client: Shared<Client>,
    /// The service.
    pub service: Shared<Service>,
    /// The service port's number.
    pub port: u16,
    /// Index of the subset in the rule; `None` for the default cluster.
    pub subset: Option<usize>,
    /// The rule that applies.
    pub rule: Option<Shared<ConsolidatedRule>>,
    /// The cluster is for peers of other networks, behind an SNI.
    pub sni_dnat: bool,
    /// Identities of the service, sorted.
    pub accounts: std::sync::Arc<[std::sync::Arc<str>]>,
    /// The secret with the certificate that a gateway presents, where a policy of the Gateway API asks
    /// for TLS.
    pub certificate: Option<std::sync::Arc<str>>,
    /// How the server is believed to treat mutual TLS.
    pub server: ServerMode,
    /// Every endpoint of the port can be reached through a tunnel.
    pub all_tunnelled: bool,
    /// What the inline endpoints of a DNS cluster come from.
    pub inline: Option<AssignmentInputs>,
}

/// How a service resolves for one kind of client (§3.2).
pub(super) fn discovery_type(service: &Service, client: &Client) -> DiscoveryType {
    match service.resolution {
        Resolution::Passthrough if client.is_router() => DiscoveryType::Eds,
        Resolution::Passthrough if client.flags.eds_for_headless && service.is_kubernetes() => {
            DiscoveryType::Eds
        }
        Resolution::Passthrough => DiscoveryType::OriginalDst,
        Resolution::DnsLb if service.attributes.race_first_connect => DiscoveryType::LogicalDns,
        Resolution::DnsLb => DiscoveryType::StrictDns,
        Resolution::DnsRoundRobinLb => DiscoveryType::LogicalDns,
        Resolution::ClientSideLb | Resolution::Alias | Resolution::DynamicDns => DiscoveryType::Eds,
    }
}

/// Tells whether endpoints of this type stand in the cluster itself.
pub(super) fn is_dns(kind: DiscoveryType) -> bool {
    matches!(kind, DiscoveryType::StrictDns | DiscoveryType::LogicalDns)
}

/// Tells whether a service has a dynamic forward proxy instead of clusters.
pub(super) fn is_forward_proxy(service: &Service) -> bool {
    service.resolution == Resolution::DynamicDns && host::is_wildcard(&service.hostname)
}

impl OutboundClusterInputs {
    /// Builds the cluster. `None` when it would be a DNS cluster without endpoints.
    pub(super) fn build(&self) -> Option<Cluster> {
        let client = &*self.client;
        let service = &*self.service;
        let port = service.port(self.port)?;
        let subset = self.subset_spec();
        let policy = self.policy().unwrap_or_default();
        let default_type = discovery_type(service, client);
        let subset_name = subset.map_or("", |s| s.name.as_str());
        let name = self.name(subset_name);

        let built_as = match subset {
            Some(own) => self.subset_type(own, default_type),
            None => default_type,
        };
        // Without endpoints a DNS service has no clusters at all; a subset whose own endpoints stand
        // in its cluster needs some of its own.
        let mut endpoints = Vec::new();
        if is_dns(built_as) {
            endpoints = self.inline.as_ref()?.build();
            if endpoints.is_empty() {
                return None;
            }
        } else if is_dns(default_type) && !self.inline.as_ref()?.has_endpoints() {
            return None;
        }

        let mut cluster = Cluster {
            alt_stat_name: alt_stat_name(
                &client.mesh.outbound_stat_name,
                &name,
                &StatNameParts {
                    service: Some(service),
                    hostname: &service.hostname,
                    port,
                    subset: subset_name,
                    target_port: 0,
                },
            ),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(built_as.into())),
            common_lb_config: Some(CommonLbConfig::default()),
            filters: client.parts().exchange_filter.iter().cloned().collect(),
            ..Cluster::default()
        };
        if is_dns(built_as) {
            apply_dns(&mut cluster, service, client);
            cluster.load_assignment = Some(ClusterLoadAssignment {
                cluster_name: name.clone(),
                endpoints,
                ..ClusterLoadAssignment::default()
            });
        }
        if built_as == DiscoveryType::OriginalDst {
            cluster.lb_config = port_override(service, port);
        }
        if subset.is_none() && self.has_sessions() {
            let status = HealthStatusSet {
                statuses: SESSION_STATUSES.iter().map(|s| i32::from(*s)).collect(),
            };
            cluster
                .common_lb_config
                .get_or_insert_default()
                .override_host_status = Some(status);
        }
        cluster.name = name;

        let mut http = HttpOptions::of(Protocol::of_port(
            port.protocol,
            client.is_router(),
            client.preserve_header_case,
        ));
        self.apply_policy(&mut cluster, &mut http, &policy, port, subset_name);
        cluster.metadata = self.metadata(subset, &policy).message();
        finish_http(&mut cluster, http, client);
        if cluster.cluster_discovery_type
            == Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into()))
        {
            cluster.eds_cluster_config = Some(EdsClusterConfig {
                eds_config: Some(client.parts().eds_source.clone()),
                service_name: cluster.name.clone(),
            });
            let baggage = client.parts().baggage_filter.iter().cloned();
            cluster.filters.extend(baggage.filter(|_| client.hbone));
        }
        Some(cluster)
    }

    fn name(&self, subset: &str) -> String {
        let name = if self.sni_dnat {
            names::outbound_sni
        } else {
            names::outbound
        };
        name(self.port, subset, &self.service.hostname)
    }

    fn spec(&self) -> Option<&DestinationRule> {
        self.rule.as_ref().map(|r| &r.config.spec)
    }

    fn subset_spec(&self) -> Option<&Subset> {
        self.spec()?.subsets.get(self.subset?)
    }

    fn policy(&self) -> Option<Policy<'_>> {
        let default = self.client.mesh.default_policy.as_ref();
        Policy::resolve(self.spec(), self.subset_spec(), self.port, default)
    }

    /// The type that a subset's cluster is made with: the final one of the default cluster, unless
    /// the subset's own balancer asks for the original destination.
    fn subset_type(&self, subset: &Subset, default_type: DiscoveryType) -> DiscoveryType {
        let of_default =
            Policy::resolve(self.spec(), None, self.port, None).is_some_and(|p| p.is_passthrough());
        if of_default || policy::asks_passthrough(subset.traffic_policy.as_ref()) {
            DiscoveryType::OriginalDst
        } else {
            default_type
        }
    }

    fn has_sessions(&self) -> bool {
        let labels = &self.service.attributes.labels;
        let flags = &self.client.flags;
        labels.contains_key(&flags.session_label)
            || labels.contains_key(&flags.session_header_label)
    }

    fn apply_policy(
        &self,
        cluster: &mut Cluster,
        http: &mut HttpOptions,
        policy: &Policy<'_>,
        port: &Port,
        subset_name: &str,
    ) {
        let client = &*self.client;
        let service = &*self.service;
        if pool::upgrades(policy.connection_pool, port.protocol, client) {
            http.upgrade();
        }
        pool::apply(cluster, http, policy, client);
        if pool::uses_client_protocol(policy.connection_pool) {
            http.follow_downstream();
        }
        outlier::apply(
            cluster,
            http,
            policy.outlier_detection,
            service,
            &client.flags,
        );
        let setting = LocalitySetting::find(
            policy.load_balancer,
            service.attributes.traffic_distribution,
            &client.mesh.locality,
        );
        balancer::apply_locality(cluster, setting, client);
        balancer::apply(cluster, policy.load_balancer, port.protocol, client);
        if !self.sni_dnat {
            let sni = names::outbound_sni(self.port, subset_name, &service.hostname);
            let choice = TlsChoice {
                settings: policy.tls,
                subject: &service.hostname,
                mesh_external: service.mesh_external,
                service_entry: !service.is_kubernetes(),
                accounts: &self.accounts,
                default_sni: &sni,
                server: self.server,
                selects_workloads: self.spec().is_some_and(|r| r.workload_selector.is_some()),
                forward_proxy: false,
                certificate: self.certificate.as_deref(),
            };
            upstream_tls::apply(cluster, http, &choice, client);
            upstream_tls::apply_proxy_protocol(cluster, policy.proxy_protocol);
        }
    }

    fn metadata(&self, subset: Option<&Subset>, policy: &Policy<'_>) -> IstioMetadata {
        let mut metadata = IstioMetadata::default();
        if self.client.flags.telemetry_label {
            metadata.services([&*self.service]);
        }
        if let Some(subset) = subset {
            metadata.text("subset", &subset.name);
        } else if self.all_tunnelled && !self.sni_dnat {
            metadata.mark("disable_mx");
        } else if self.service.mesh_external {
            metadata.mark("external");
        }
        if let Some(rule) = &self.rule {
            metadata.rule(&rule.config.meta);
            metadata.originates_tls(policy.tls);
        }
        metadata
    }
}

/// The inputs of a DNS cluster's endpoints have to know whether hosts are ejected.
pub(super) fn inline_purpose(policy: &Policy<'_>) -> Purpose {
    Purpose::Inline {
        outlier_detection: policy.outlier_detection.is_some(),
    }
}

/// Puts the HTTP options into the cluster when there are any.
pub(super) fn finish_http(cluster: &mut Cluster, http: HttpOptions, client: &Client) {
    if http.is_unset() {
        return;
    }
    let parts = client.parts();
    let packed = match &http {
        options if *options == HttpOptions::of(Protocol::http2()) => parts.http2.clone(),
        options
            if *options == HttpOptions::of(Protocol::downstream(client.preserve_header_case)) =>
        {
            parts.downstream.clone()
        }
        _ => http.packed(),
    };
    cluster
        .typed_extension_protocol_options
        .insert(HTTP_OPTIONS.to_owned(), packed);
}

#[expect(
    deprecated,
    reason = "the flat fields are what Istio sends and every proxy knows"
)]
pub(super) fn apply_dns(cluster: &mut Cluster, service: &Service, client: &Client) {
    let family = if service.attributes.race_first_connect {
        DnsLookupFamily::All
    } else {
        client.dns_family()
    };
    cluster.dns_lookup_family = family.into();
    cluster.typed_dns_resolver_config = Some(client.parts().resolver.clone());
    cluster.dns_jitter = Some(convert::std_duration(client.flags.dns_jitter));
    cluster.dns_refresh_rate = Some(convert::duration(client.mesh.dns_refresh_rate));
    cluster.respect_dns_ttl = true;
}

fn port_override(service: &Service, port: &Port) -> Option<LbConfig> {
    let target = service
        .attributes
        .passthrough_target_ports
        .get(&port.port)?;
    Some(LbConfig::OriginalDstLbConfig(OriginalDstLbConfig {
        upstream_port_override: convert::u32_value((*target).into()),
        ..OriginalDstLbConfig::default()
    }))
}

//! Clusters of the services that a waypoint handles (clusters-endpoints §15).

use envoy_types::pb::{
    envoy::{
        config::{
            cluster::v3::{
                Cluster,
                cluster::{
                    ClusterDiscoveryType, CommonLbConfig, DiscoveryType, EdsClusterConfig, LbPolicy,
                },
            },
            endpoint::v3::ClusterLoadAssignment,
        },
        r#type::metadata::v3::metadata_kind::{self, Host, Kind},
    },
    google::protobuf::{Struct, Value, value},
};
use model::{Resolution, Service};
use pushctx::{ConsolidatedRule, ProxyClass};

use super::{
    balancer,
    client::Client,
    forward_proxy,
    http::{HttpOptions, Protocol},
    metadata::IstioMetadata,
    outbound::{self, discovery_type, is_dns},
    outlier, parts, pool,
    stat_name::{self, StatNameParts, alt_stat_name},
    upstream_tls::{self, ServerMode, TlsChoice},
};
use crate::{
    convert,
    eds::{AssignmentInputs, EndpointPlanner},
    inputs::Shared,
    locality::LocalitySetting,
    names,
    policy::{self, Policy},
};

/// Metadata that the filters look at which tell peers by the baggage header.
const PEER_METADATA: &str = "istio.peer_metadata";

/// Everything that a waypoint's cluster of one port of a service depends on.
#[derive(Hash, Debug)]
pub(super) struct VipInputs {
    /// Facts of the class and the mesh.
    pub client: Shared<Client>,
    /// The service.
    pub service: Shared<Service>,
    /// The service port's number.
    pub port: u16,
    /// `http` or `tcp`, with the subset.
    pub kind: String,
    /// The rule that applies to the service's own inbound traffic.
    pub rule: Option<Shared<ConsolidatedRule>>,
    /// What the inline endpoints of a DNS cluster come from.
    pub inline: Option<AssignmentInputs>,
}

/// Plans the clusters of all services that a class handles.
pub(super) fn plan(
    class: &ProxyClass,
    client: &Shared<Client>,
    endpoints: &EndpointPlanner<'_>,
) -> Vec<VipInputs> {
    let mut inputs = Vec::new();
    let services = class
        .waypoint
        .iter()
        .flat_map(|waypoint| &waypoint.services);
    let services = services.filter(|service| service.resolution != Resolution::Alias);
    for service in services {
        let rule = class.scope.inbound_rule(&service.hostname);
        let spec = rule.map(|rule| &rule.config.spec);
        let subsets = spec.map_or(&[][..], |spec| &spec.subsets);
        let subsets: Vec<&str> = subsets.iter().map(|subset| subset.name.as_str()).collect();
        let by_name = is_dns(discovery_type(service, client));
        let by_request = outbound::is_forward_proxy(service);
        for port in &service.ports {
            if by_request && !forward_proxy::serves(port.protocol, client.flags.wildcard_tls) {
                continue;
            }
            for kind in names::vip_kinds(port.protocol, &subsets) {
                let subset = names::vip_subset(&kind);
                let inline = by_name.then(|| {
                    let own = policy::subset(spec, subset);
                    let policy = Policy::resolve(spec, own, port.port, None).unwrap_or_default();
                    let purpose = outbound::inline_purpose(&policy);
                    endpoints.inputs(service, port.port, subset, rule, purpose)
                });
                inputs.push(VipInputs {
                    client: client.clone(),
                    service: Shared::new(service),
                    port: port.port,
                    rule: rule.map(Shared::new),
                    inline,
                    kind,
                });
            }
        }
    }
    inputs
}

impl VipInputs {
    /// Builds the cluster. `None` when it would be a DNS cluster without endpoints.
    pub(super) fn build(&self) -> Option<Cluster> {
        let (client, service) = (&*self.client, &*self.service);
        let port = service.port(self.port)?;
        let spec = self.rule.as_ref().map(|rule| &rule.config.spec);
        let subset = policy::subset(spec, names::vip_subset(&self.kind));
        let policy = Policy::resolve(spec, subset, self.port, None);
        let has_policy = policy.is_some();
        let policy = policy.unwrap_or_default();
        let name = names::inbound_vip(self.port, &self.kind, &service.hostname);
        let kind = discovery_type(service, client);
        let by_request = outbound::is_forward_proxy(service);
        let mut cluster = Cluster {
            alt_stat_name: alt_stat_name(
                &client.mesh.inbound_stat_name,
                &name,
                &StatNameParts {
                    service: Some(service),
                    hostname: &service.hostname,
                    port,
                    subset: &self.kind,
                    target_port: 0,
                },
            ),
            cluster_discovery_type: Some(ClusterDiscoveryType::Type(kind.into())),
            common_lb_config: Some(CommonLbConfig::default()),
            name,
            ..Cluster::default()
        };
        if by_request {
            cluster.alt_stat_name = stat_name::fixed(&cluster.name);
            cluster.common_lb_config = None;
            cluster.lb_policy = LbPolicy::ClusterProvided.into();
        } else if is_dns(kind) {
            let endpoints = self.inline.as_ref()?.build();
            if endpoints.is_empty() {
                return None;
            }
            outbound::apply_dns(&mut cluster, service, client);
            cluster.load_assignment = Some(ClusterLoadAssignment {
                cluster_name: cluster.name.clone(),
                endpoints,
                ..ClusterLoadAssignment::default()
            });
        }
        let preserve_case = client.preserve_header_case;
        let mut http = HttpOptions::of(Protocol::of_port(port.protocol, false, preserve_case));
        if pool::upgrades(policy.connection_pool, port.protocol, client) {
            http.upgrade();
        }
        pool::apply(&mut cluster, &mut http, &policy, client);
        if pool::uses_client_protocol(policy.connection_pool) {
            http.follow_downstream();
        }
        let ejection = policy.outlier_detection;
        if !by_request || ejection.is_some() {
            outlier::apply(&mut cluster, &mut http, ejection, service, &client.flags);
        }
        let setting = LocalitySetting::find(
            policy.load_balancer,
            service.attributes.traffic_distribution,
            &client.mesh.locality,
        );
        if !by_request {
            balancer::apply_locality(&mut cluster, setting, client);
            balancer::apply(&mut cluster, policy.load_balancer, port.protocol, client);
        }
        cluster.metadata = self.metadata(has_policy).message();
        let has_tls = self.apply_sockets(&mut cluster, &mut http, &policy);
        if by_request {
            let is_insecure =
                has_tls && !(http.upstream.auto_sni && http.upstream.auto_san_validation);
            cluster.cluster_discovery_type = forward_proxy::discovery(service, is_insecure, client);
        }
        outbound::finish_http(&mut cluster, http, client);
        let eds = Some(ClusterDiscoveryType::Type(DiscoveryType::Eds.into()));
        if cluster.cluster_discovery_type == eds {
            cluster.eds_cluster_config = Some(EdsClusterConfig {
                eds_config: Some(client.parts().eds_source.clone()),
                service_name: cluster.name.clone(),
            });
            let baggage = client.parts().baggage_filter.iter().cloned();
            cluster.filters.extend(baggage);
        }
        Some(cluster)
    }

    /// Leads to the listener that opens tunnels, within which may be TLS that the rule asks for. The
    /// mesh's own mutual TLS is that of the tunnel. Tells whether there is TLS within.
    fn apply_sockets(
        &self,
        cluster: &mut Cluster,
        http: &mut HttpOptions,
        policy: &Policy<'_>,
    ) -> bool {
        let (client, service) = (&*self.client, &*self.service);
        let rule = self.rule.as_ref().map(|rule| &rule.config.spec);
        let choice = TlsChoice {
            settings: policy.tls,
            subject: &service.hostname,
            mesh_external: service.mesh_external,
            service_entry: !service.is_kubernetes(),
            accounts: &[],
            default_sni: "",
            server: ServerMode::of(None),
            selects_workloads: rule.is_some_and(|rule| rule.workload_selector.is_some()),
            forward_proxy: outbound::is_forward_proxy(service),
            certificate: None,
        };
        let plain = || convert::transport_socket("raw_buffer", parts::raw_buffer_config());
        let own = upstream_tls::own_socket(http, &choice, client);
        let has_tls = own.is_some();
        let is_wrapped = has_tls || policy.proxy_protocol.is_some();
        cluster.transport_socket = Some(own.unwrap_or_else(plain));
        upstream_tls::apply_proxy_protocol(cluster, policy.proxy_protocol);
        let mut passed = vec![
            (Kind::Host(Host {}), "envoy.filters.listener.original_dst"),
            (Kind::Host(Host {}), "istio"),
        ];
        if is_wrapped && client.parts().baggage_filter.is_some() {
            // What the tunnel says of the peer comes before the bytes of the peer, where neither TLS nor
            // the PROXY protocol expects it: it must not be asked for.
            let metadata = cluster.metadata.get_or_insert_default();
            let off = Value {
                kind: Some(value::Kind::BoolValue(true)),
            };
            let fields = [("disable_baggage_discovery".to_owned(), off)].into();
            metadata
                .filter_metadata
                .insert(PEER_METADATA.to_owned(), Struct { fields });
            passed.push((Kind::Cluster(metadata_kind::Cluster {}), PEER_METADATA));
        }
        cluster.transport_socket = cluster
            .transport_socket
            .take()
            .map(|inner| parts::internal_upstream("internal_upstream", inner, &passed));
        has_tls
    }

    /// Names the service, whatever the labels of telemetry are, and a rule that says anything.
    fn metadata(&self, has_policy: bool) -> IstioMetadata {
        let mut metadata = IstioMetadata::default();
        metadata.services([&*self.service]);
        if outbound::is_forward_proxy(&self.service) && self.service.mesh_external {
            metadata.mark("external");
        }
        metadata.text("subset", &self.kind);
        if let Some(rule) = self.rule.as_ref().filter(|_| has_policy) {
            metadata.rule(&rule.config.meta);
        }
        metadata
    }
}

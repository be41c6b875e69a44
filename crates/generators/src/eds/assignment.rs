//! The inputs of one load assignment, and its making step by step (clusters-endpoints §19.1).

use envoy_types::pb::envoy::config::endpoint::v3::LocalityLbEndpoints;
use model::{Endpoint, Port, Service, ServiceEndpoints, api::destination_rule::DestinationRule};
use pushctx::ConsolidatedRule;

use super::{
    candidates, group, lb_endpoint,
    network::{self, Horizon},
    priority,
    view::{EndpointView, Place},
};
use crate::{
    inputs::{Sealed, Shared},
    locality::LocalitySetting,
    mtls::NamespacePolicies,
    policy::{self, Policy},
};

/// Everything that the endpoints of one cluster depend on.
#[derive(Hash, Debug)]
pub(crate) struct AssignmentInputs {
    /// The class's view.
    pub view: Shared<Sealed<EndpointView>>,
    /// Where the proxy is; `None` where it does not matter.
    pub place: Option<Shared<Sealed<Place>>>,
    /// The service.
    pub service: Shared<Service>,
    /// The service port's number.
    pub port: u16,
    /// The subset; empty for none.
    pub subset: String,
    /// The rule that applies.
    pub rule: Option<Shared<ConsolidatedRule>>,
    /// The service's endpoints.
    pub endpoints: Option<Shared<ServiceEndpoints>>,
    /// Gateways between networks.
    pub horizon: Shared<Sealed<Horizon>>,
    /// Policies of mutual TLS that endpoints are judged by.
    pub peer_authentications: Shared<Sealed<NamespacePolicies>>,
    /// Only endpoints of the proxy's own cluster are used.
    pub cluster_local: bool,
    /// For whom the endpoints are.
    pub purpose: Purpose,
}

/// For whom endpoints are selected.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Purpose {
    /// A load assignment of its own (EDS).
    Assignment,
    /// The inline endpoints of a DNS cluster, which has outlier detection or not, the mesh's default
    /// included.
    Inline {
        /// Whether hosts are ejected.
        outlier_detection: bool,
    },
    /// A cluster behind an SNI, for peers of other networks.
    SniDnat,
    /// A waypoint's cluster of a service that it handles: no socket is chosen by what endpoints
    /// support.
    Handled,
}

impl AssignmentInputs {
    /// The port; `None` when the service has no such port.
    pub(crate) fn service_port(&self) -> Option<&Port> {
        self.service.port(self.port)
    }

    /// The rule's content.
    pub(crate) fn spec(&self) -> Option<&DestinationRule> {
        self.rule.as_ref().map(|r| &r.config.spec)
    }

    /// The policy for the port and subset. The mesh's default does not count here.
    pub(crate) fn policy(&self) -> Policy<'_> {
        let spec = self.spec();
        let subset = policy::subset(spec, &self.subset);
        Policy::resolve(spec, subset, self.port, None).unwrap_or_default()
    }

    /// The locality setting in force.
    pub(crate) fn locality_setting(&self) -> LocalitySetting<'_> {
        LocalitySetting::find(
            self.policy().load_balancer,
            self.service.attributes.traffic_distribution,
            &self.view.locality,
        )
    }

    /// Whether hosts of the cluster are ejected. The mesh's default counts for DNS clusters only.
    pub(crate) fn detects_outliers(&self) -> bool {
        match self.purpose {
            Purpose::Inline { outlier_detection } => outlier_detection,
            Purpose::Assignment | Purpose::SniDnat | Purpose::Handled => {
                self.policy().outlier_detection.is_some()
            }
        }
    }

    /// Tells whether the service port has endpoints, in whatever subset.
    pub(crate) fn has_endpoints(&self) -> bool {
        self.service_port()
            .is_some_and(|port| candidates::select(self, port, "").next().is_some())
    }

    /// Selects, groups and weighs the endpoints.
    pub(crate) fn build(&self) -> Vec<LocalityLbEndpoints> {
        self.build_of(|_| true)
    }

    /// Selects, groups and weighs those endpoints that are also `wanted`.
    pub(super) fn build_of(&self, wanted: impl Fn(&Endpoint) -> bool) -> Vec<LocalityLbEndpoints> {
        let Some(port) = self.service_port() else {
            return Vec::new();
        };
        let mtls = lb_endpoint::MtlsJudge::new(self);
        let members = candidates::select(self, port, &self.subset)
            .filter(|endpoint| wanted(endpoint))
            .map(|endpoint| lb_endpoint::member(self, endpoint, &mtls))
            .collect();
        let mut groups = group::by_locality(members);
        // Endpoints that stand in the cluster itself are names, which the proxy resolves and reaches
        // directly, whatever network they claim.
        let inline = matches!(self.purpose, Purpose::Inline { .. });
        if self.horizon.is_multi_network() && !inline {
            network::split(&mut groups, &self.view, &self.horizon);
        }
        if self.purpose == Purpose::SniDnat {
            for group in &mut groups {
                group.retain(|member| member.mtls);
            }
        }
        if let Some(place) = &self.place {
            let setting = self.locality_setting();
            let failover = setting.failover_active(self.detects_outliers());
            let by_labels = !inline || self.subset.is_empty();
            priority::apply(
                &mut groups,
                &setting,
                failover,
                by_labels,
                place,
                &self.view,
            );
        }
        groups.into_iter().map(group::Group::message).collect()
    }
}

/// Tells whether the place of a proxy can matter to a service's endpoints under a setting.
pub(crate) fn depends_on_place(
    service: &Service,
    setting: &LocalitySetting<'_>,
    outlier_detection: bool,
) -> bool {
    service.attributes.node_local
        || match setting {
            LocalitySetting::None => false,
            LocalitySetting::Forced(_) => true,
            LocalitySetting::ZoneAware(zone) => zone.enabled != Some(false),
            LocalitySetting::Locality(locality) => {
                outlier_detection || !locality.distribute.is_empty()
            }
        }
}

//! Which endpoints of a service one client gets (clusters-endpoints §19.2, §19.3).

use model::{Endpoint, Health, Port, TrafficDistribution, selects, service::Registry};

use super::assignment::{AssignmentInputs, Purpose};
use crate::policy;

/// Label that makes a service one of an inference pool.
const SEMANTICS_LABEL: &str = "internal.istio.io/service-semantics";

/// Selects the endpoints for the inputs' port and for a subset, in the order of the registry.
pub(super) fn select<'a>(
    inputs: &'a AssignmentInputs,
    port: &'a Port,
    subset: &str,
) -> impl Iterator<Item = &'a Endpoint> + use<'a> {
    let view = &inputs.view;
    let service = &inputs.service;
    let own_cluster_only = inputs.cluster_local || service.attributes.node_local;
    let mut shards: Vec<_> = inputs.endpoints.iter().flat_map(|e| &e.shards).collect();
    // External registries first: the order in which shards are walked decides that of endpoints.
    shards.sort_by(|(a, _), (b, _)| {
        let rank = |registry| registry == Registry::Kubernetes;
        (rank(a.registry), &a.cluster).cmp(&(rank(b.registry), &b.cluster))
    });
    let labels = policy::subset(inputs.spec(), subset).map(|s| &s.labels);
    let filter = Filter::new(inputs);
    shards
        .into_iter()
        .filter(move |(key, _)| !own_cluster_only || key.cluster == view.cluster)
        .flat_map(|(_, endpoints)| endpoints.iter())
        .map(|endpoint| &**endpoint)
        .filter(move |endpoint| serves_port(inputs, endpoint, port))
        .filter(move |endpoint| labels.is_none_or(|labels| selects(labels, &endpoint.labels)))
        .filter(move |endpoint| filter.keeps(endpoint))
}

/// Tells whether an endpoint serves the port, and by an address of the right kind.
fn serves_port(inputs: &AssignmentInputs, endpoint: &Endpoint, port: &Port) -> bool {
    if matches!(inputs.purpose, Purpose::Inline { .. }) {
        // The snapshot groups by number; endpoints of ServiceEntries bear it, others name the port.
        return match endpoint.legacy_port_key {
            0 => {
                let service = &inputs.service;
                let named = service.port_by_name(&endpoint.service_port_name);
                named.is_some_and(|p| p.port == port.port)
            }
            key => key == port.port,
        };
    }
    let any_port = inputs
        .service
        .attributes
        .labels
        .get(SEMANTICS_LABEL)
        .is_some_and(|semantics| semantics == "inferencepool");
    if !any_port && endpoint.service_port_name != port.name {
        return false;
    }
    let address = endpoint.address();
    address.is_empty() || endpoint.port == 0 || address.parse::<std::net::IpAddr>().is_ok()
}

/// The conditions under which an endpoint is left out.
struct Filter<'a> {
    inputs: &'a AssignmentInputs,
    node: Option<&'a str>,
    unhealthy: bool,
    draining: bool,
}

impl<'a> Filter<'a> {
    fn new(inputs: &'a AssignmentInputs) -> Self {
        let view = &inputs.view;
        let attributes = &inputs.service.attributes;
        let detection = inputs.policy().outlier_detection;
        let wants_healthy = detection.is_some_and(|d| d.min_health_percent > 0);
        let node = inputs.place.as_ref().map_or("", |place| place.node());
        Self {
            inputs,
            node: attributes.node_local.then_some(node),
            unhealthy: view.send_unhealthy
                || attributes.traffic_distribution != TrafficDistribution::Any
                || (view.auto_send_unhealthy && !wants_healthy),
            draining: attributes.labels.contains_key(&view.session_label),
        }
    }

    fn keeps(&self, endpoint: &Endpoint) -> bool {
        let view = &self.inputs.view;
        if self.node.is_some_and(|node| *endpoint.node_name != *node)
            || !view.wants_network(&endpoint.network)
        {
            return false;
        }
        if (self.inputs.cluster_local || endpoint.same_cluster_only)
            && endpoint.cluster != view.cluster
        {
            return false;
        }
        // Without an address only a gateway of its network leads to it.
        if endpoint.address().is_empty()
            && (!self.inputs.horizon.is_multi_network() || endpoint.network == view.network)
        {
            return false;
        }
        match super::lb_endpoint::health(endpoint, view) {
            Health::Unhealthy => self.unhealthy,
            Health::Draining => self.draining,
            Health::Terminating => false,
            Health::Healthy | Health::Unknown => true,
        }
    }
}

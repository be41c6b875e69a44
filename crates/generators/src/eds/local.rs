//! The proxy's own cluster (clusters-endpoints §19.10).

use std::sync::Arc;

use envoy_types::pb::envoy::config::endpoint::v3::LocalityLbEndpoints;
use model::Endpoint;

use super::assignment::AssignmentInputs;

/// Everything that the endpoints beside the proxy depend on.
#[derive(Hash, Debug)]
pub(crate) struct LocalInputs {
    /// The endpoints of the service that the proxy serves, without a rule and without priorities.
    pub assignment: AssignmentInputs,
    /// Name of the proxy's workload.
    pub workload: String,
    /// Values of the labels [`LocalInputs::HASHES`] on the proxy.
    pub hashes: [String; 2],
    /// The proxy's region.
    pub region: Arc<str>,
}

impl LocalInputs {
    /// Labels that tell revisions of one workload apart.
    pub(crate) const HASHES: [&'static str; 2] =
        ["pod-template-hash", "rollouts-pod-template-hash"];

    /// Selects the endpoints of the same workload, revision and region.
    pub(crate) fn build(&self) -> Vec<LocalityLbEndpoints> {
        self.assignment
            .build_of(|endpoint| self.is_sibling(endpoint))
    }

    fn is_sibling(&self, endpoint: &Endpoint) -> bool {
        let label = |key: &str| endpoint.labels.get(key).map_or("", String::as_str);
        *endpoint.workload_name == *self.workload
            && endpoint.locality.region == self.region
            && Self::HASHES
                .iter()
                .zip(&self.hashes)
                .all(|(key, value)| label(key) == value)
    }
}

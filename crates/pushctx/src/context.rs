//! The snapshot itself.

use std::sync::Arc;

use model::{Features, MeshState, ServiceEndpoints, ServiceKey, api, state::MeshIdentity};

use crate::{DestinationRuleIndex, ServiceIndex, VirtualServiceIndex};

/// One immutable state of the mesh with its indexes. Every index is behind an `Arc`: the next
/// snapshot shares those that a change does not reach.
#[derive(Clone, Debug)]
pub struct PushContext {
    pub(crate) state: MeshState,
    pub(crate) services: Arc<ServiceIndex>,
    pub(crate) virtual_services: Arc<VirtualServiceIndex>,
    pub(crate) destination_rules: Arc<DestinationRuleIndex>,
}

impl PushContext {
    /// Mesh configuration with defaults.
    pub fn mesh(&self) -> &Arc<api::MeshConfig> {
        &self.state.mesh
    }

    /// Configured networks.
    pub fn networks(&self) -> &Arc<api::MeshNetworks> {
        &self.state.networks
    }

    /// Feature flags.
    pub fn features(&self) -> &Arc<Features> {
        &self.state.features
    }

    /// Domain, cluster id, revision.
    pub fn identity(&self) -> &Arc<MeshIdentity> {
        &self.state.identity
    }

    /// The objects and registry data that the snapshot was built from.
    pub fn state(&self) -> &MeshState {
        &self.state
    }

    /// Namespace of mesh-wide objects.
    pub fn root_namespace(&self) -> &str {
        if self.state.mesh.root_namespace.is_empty() {
            &self.state.identity.system_namespace
        } else {
            &self.state.mesh.root_namespace
        }
    }

    /// Services by visibility and host.
    pub fn services(&self) -> &ServiceIndex {
        &self.services
    }

    /// VirtualServices by gateway.
    pub fn virtual_services(&self) -> &VirtualServiceIndex {
        &self.virtual_services
    }

    /// DestinationRules.
    pub fn destination_rules(&self) -> &DestinationRuleIndex {
        &self.destination_rules
    }

    /// Endpoints of a service; `None` when it has none.
    pub fn endpoints(&self, key: &ServiceKey) -> Option<&Arc<ServiceEndpoints>> {
        self.state.endpoints.get(key)
    }
}

//! One immutable state of the world: what a snapshot is built from.

use std::sync::Arc;

use imbl::OrdMap;

use crate::{
    api,
    bundle::Bundles,
    features::Features,
    kind::Tables,
    network::NetworkGateways,
    service::{Endpoint, Service, ServiceEndpoints, ServiceId, ServiceKey},
};

/// What intake hands to the snapshot builder: objects, and what the registry derived from them.
///
/// Cloning is cheap; the next state shares everything that did not change.
#[derive(Clone, Default, Debug)]
pub struct MeshState {
    /// Short id of this state of the configuration, for nonces and queries; opaque, without `/`
    /// and spaces, empty when nobody names states.
    pub root: Arc<str>,
    /// Mesh configuration with defaults applied.
    pub mesh: Arc<api::MeshConfig>,
    /// Networks and their gateways, as configured.
    pub networks: Arc<api::MeshNetworks>,
    /// Feature flags.
    pub features: Arc<Features>,
    /// Facts that the process was started with.
    pub identity: Arc<MeshIdentity>,
    /// Accepted objects by kind.
    pub objects: Tables,
    /// Services of all registries.
    pub services: OrdMap<ServiceId, Arc<Service>>,
    /// Endpoints by service.
    pub endpoints: OrdMap<ServiceKey, Arc<ServiceEndpoints>>,
    /// ServiceEntry instances (WorkloadEntries, inline endpoints, selected pods) by first address,
    /// as far as that is an IP address. See [`MeshState::instances_at`].
    pub instances: OrdMap<InstanceKey, Arc<[ServiceInstance]>>,
    /// Gateways between networks.
    pub gateways: Arc<NetworkGateways>,
    /// Which release of the Gateway API the cluster has, as far as that is known.
    pub bundles: Arc<Bundles>,
}

impl MeshState {
    /// Lists the ServiceEntry instances at an address, by service.
    pub fn instances_at<'a>(
        &'a self,
        address: &'a str,
    ) -> impl Iterator<Item = &'a ServiceInstance> {
        let first = InstanceKey {
            address: address.into(),
            service: ServiceKey::new("", ""),
        };
        self.instances
            .range(first..)
            .take_while(move |(key, _)| &*key.address == address)
            .flat_map(|(_, instances)| instances.iter())
    }
}

/// Address and service of ServiceEntry instances.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct InstanceKey {
    /// The first address of the endpoints.
    pub address: Arc<str>,
    /// The service that they serve.
    pub service: ServiceKey,
}

impl MeshState {
    /// Namespace of mesh-wide objects.
    pub fn root_namespace(&self) -> &str {
        if self.mesh.root_namespace.is_empty() {
            &self.identity.system_namespace
        } else {
            &self.mesh.root_namespace
        }
    }
}

/// Names that the whole process agrees on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MeshIdentity {
    /// Domain of Kubernetes services.
    pub domain: Arc<str>,
    /// Id of the primary cluster.
    pub cluster: Arc<str>,
    /// Namespace of mesh-wide objects when the mesh configuration names none.
    pub system_namespace: Arc<str>,
    /// Revision of this control plane; empty for the default one.
    pub revision: Arc<str>,
}

impl Default for MeshIdentity {
    fn default() -> Self {
        Self {
            domain: "cluster.local".into(),
            cluster: "Kubernetes".into(),
            system_namespace: "istio-system".into(),
            revision: "".into(),
        }
    }
}

/// An endpoint of a ServiceEntry's service, seen from its address: which service it serves.
#[derive(Clone, PartialEq, Debug)]
pub struct ServiceInstance {
    /// The service.
    pub service: ServiceId,
    /// The service port's number.
    pub service_port: u16,
    /// The endpoint.
    pub endpoint: Arc<Endpoint>,
}

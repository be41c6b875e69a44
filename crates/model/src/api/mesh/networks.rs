//! `MeshNetworks`: networks of the mesh and their gateways (config-model.md §4.5).

use std::collections::BTreeMap;

use crate::api::codec::message;

message! {
    /// Networks by name.
    pub struct MeshNetworks {
        /// The networks.
        networks: BTreeMap<String, Network>,
    }

    /// One network.
    pub struct Network {
        /// Which endpoints are in it.
        endpoints: Vec<NetworkEndpoints>,
        /// How it is reached from others.
        gateways: Vec<NetworkGateway>,
    }

    /// Endpoints of a network; one member is set.
    pub struct NetworkEndpoints {
        /// Those with addresses in a range.
        from_cidr: Option<String>,
        /// Those of a cluster.
        from_registry: Option<String>,
    }

    /// A gateway of a network; one of service and address is set.
    pub struct NetworkGateway {
        /// Service of the gateway.
        registry_service_name: Option<String>,
        /// Address of the gateway.
        address: Option<String>,
        /// Port.
        port: u32,
        /// Locality.
        locality: String,
    }
}

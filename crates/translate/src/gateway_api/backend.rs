//! Where rules lead.

use model::{
    MeshState,
    api::{
        common::{Destination, PortSelector},
        gateway_api::BackendRef,
    },
};

use super::Reference;

/// A host that no service has: what a backend that may not be referred to becomes.
pub(super) const NOWHERE: &str = "";

/// Finds the destination of a backend of a route. References across namespaces need leave, unless
/// the route is for the `mesh`.
pub(super) fn destination(
    state: &MeshState,
    kind: &str,
    namespace: &str,
    backend: &BackendRef,
    mesh: bool,
) -> Destination {
    let group = backend.group.as_deref().unwrap_or_default();
    let backend_kind = backend.kind.as_deref().unwrap_or("Service");
    let owner = backend.namespace.as_deref().unwrap_or(namespace);
    let asked = Reference {
        from_kind: kind,
        from_namespace: namespace,
        to_group: group,
        to_kind: backend_kind,
        to_namespace: owner,
        to_name: &backend.name,
    };
    let nowhere = || Destination {
        host: NOWHERE.to_owned(),
        ..Destination::default()
    };
    if !mesh && !asked.is_allowed(state) {
        return nowhere();
    }
    let host = match (group, backend_kind) {
        // Imports have the host of the service while those of cluster sets are off.
        ("" | "core", "Service") | ("multicluster.x-k8s.io", "ServiceImport") => {
            crate::service_host(state, &backend.name, owner)
        }
        ("networking.istio.io", "Hostname") => backend.name.clone(),
        _ => return nowhere(),
    };
    let Some(port) = backend.port else {
        return nowhere();
    };
    Destination {
        host,
        port: Some(PortSelector { number: port }),
        ..Destination::default()
    }
}

/// The share of a backend.
pub(super) fn weight(backend: Option<i32>) -> i32 {
    backend.unwrap_or(1)
}

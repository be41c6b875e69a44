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
///
/// # Errors
/// Why no part of the route can be served: the reference itself is wrong, not what it refers to.
pub(super) fn destination(
    state: &MeshState,
    kind: &str,
    namespace: &str,
    backend: &BackendRef,
    mesh: bool,
) -> Result<Destination, String> {
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
        return Ok(nowhere());
    }
    let host = match (group, backend_kind) {
        // Imports have the host of the service while those of cluster sets are off.
        ("" | "core", "Service") if backend.name.contains('.') => {
            return Err(format!(
                "{} is a host, not the name of a Service",
                backend.name
            ));
        }
        ("" | "core", "Service") | ("multicluster.x-k8s.io", "ServiceImport") => {
            crate::service_host(state, &backend.name, owner)
        }
        ("networking.istio.io", "Hostname") if backend.namespace.is_some() => {
            return Err(format!("the host {} is of no namespace", backend.name));
        }
        ("networking.istio.io", "Hostname") => backend.name.clone(),
        _ => return Ok(nowhere()),
    };
    let Some(port) = backend.port else {
        return Err(format!("the backend {} has no port", backend.name));
    };
    Ok(Destination {
        host,
        port: Some(PortSelector { number: port }),
        ..Destination::default()
    })
}

/// The share of a backend.
pub(super) fn weight(backend: Option<i32>) -> i32 {
    backend.unwrap_or(1)
}

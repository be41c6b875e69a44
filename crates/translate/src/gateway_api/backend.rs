//! Where rules lead.

use model::{
    MeshState,
    api::{
        common::{Destination, PortSelector},
        gateway_api::BackendRef,
    },
};

use super::Reference;
use crate::report::{self, Refusal, Verdict};

/// A host that no service has: what a backend that may not be referred to becomes.
pub(super) const NOWHERE: &str = "";

/// Finds the destination of a backend of a route. References across namespaces need leave, unless
/// the route is for the `mesh`. Notes in `resolved` what is not there or may not be used.
///
/// # Errors
/// Why no part of the route can be served: the reference itself is wrong, not what it refers to.
pub(super) fn destination(
    state: &MeshState,
    kind: &str,
    namespace: &str,
    backend: &BackendRef,
    mesh: bool,
    resolved: &mut Verdict,
) -> Result<Destination, Refusal> {
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
        let message = format!(
            "backendRef {}/{owner} not accessible to a {kind} in namespace {namespace:?} (missing a \
             ReferenceGrant?)",
            backend.name
        );
        report::note(resolved, Err(Refusal::new("RefNotPermitted", message)));
        return Ok(nowhere());
    }
    let host = match (group, backend_kind) {
        // Imports have the host of the service while those of cluster sets are off.
        ("" | "core", "Service") if backend.name.contains('.') => {
            let message = format!("{} is a host, not the name of a Service", backend.name);
            return Err(Refusal::new("UnsupportedValue", message));
        }
        ("" | "core", "Service") | ("multicluster.x-k8s.io", "ServiceImport") => {
            crate::service_host(state, &backend.name, owner)
        }
        ("networking.istio.io", "Hostname") if backend.namespace.is_some() => {
            let message = format!("the host {} is of no namespace", backend.name);
            return Err(Refusal::new("UnsupportedValue", message));
        }
        ("networking.istio.io", "Hostname") => backend.name.clone(),
        _ => {
            let message = format!(
                "referencing unsupported backendRef: group {group:?} kind {backend_kind:?}"
            );
            report::note(resolved, Err(Refusal::new("InvalidKind", message)));
            return Ok(nowhere());
        }
    };
    let Some(port) = backend.port else {
        let message = format!("the backend {} has no port", backend.name);
        return Err(Refusal::new("UnsupportedValue", message));
    };
    let exists = if backend_kind == "Hostname" {
        is_known(state, &host)
    } else {
        crate::service(state, owner, &host).is_some()
    };
    if !exists {
        let message = format!("backend({host}) not found");
        report::note(resolved, Err(Refusal::new("BackendNotFound", message)));
    }
    Ok(Destination {
        host,
        port: Some(PortSelector { number: port }),
        ..Destination::default()
    })
}

/// Tells whether some service has a host.
fn is_known(state: &MeshState, host: &str) -> bool {
    state.services.keys().any(|id| *id.key.hostname == *host)
}

/// The share of a backend.
pub(super) fn weight(backend: Option<i32>) -> i32 {
    backend.unwrap_or(1)
}

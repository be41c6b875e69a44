//! Validation: which objects are accepted, and what is hardly meant.
//!
//! What the admission webhook of Istio refuses is refused here, whether the object comes from a
//! file or from a cluster (config-model.md §5, security-policy.md §16, telemetry-extensions.md §18,
//! envoyfilter.md §2). Messages name the field, the offending value and what is allowed. Objects of
//! kinds without rules (Kubernetes' own, which its API server checks) are always accepted.
//!
//! Pure functions over typed objects; they do not look at other objects, so an object is judged
//! the same whatever else is there.

mod authentication;
mod authorization;
mod cel;
mod destination_rule;
mod envoy_filter;
mod extensions;
mod gateway;
mod gateway_api;
mod mesh;
mod metadata;
mod names;
mod re2;
mod scope;
mod selectors;
mod service_entry;
mod sidecar;
mod telemetry;
mod text;
mod traffic;
mod virtual_service;
mod workload;

use std::cell::RefCell;
use std::fmt;

use serde_json::Value;

use crate::Object;
use crate::api::envoy_filter::ApplyTo;
use crate::api::{MeshConfig, MeshNetworks};
use scope::Scope;

/// One finding of validation.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Issue {
    /// Whether the object can be accepted nevertheless.
    pub severity: Severity,
    /// The field, such as `spec.http[0].route[1].weight`; keys of maps that are not plain words
    /// are quoted in brackets: `spec.selector["a/b"]`.
    pub path: String,
    /// What is wrong, with the offending value and what is allowed; lowercase, no full stop.
    pub reason: String,
}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.reason)
    }
}

/// How much an [`Issue`] matters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// The object is refused.
    Error,
    /// The object is accepted, but part of it has no or a doubtful effect.
    Warning,
}

/// Checks the value of an `EnvoyFilter` patch against Envoy's API, which this crate does not know.
///
/// Gives errors when the value cannot be decoded to the message that the target names, warnings
/// for unknown and deprecated fields.
pub type CheckPatch = fn(ApplyTo, &Value) -> Vec<(Severity, String)>;

/// Tells whether any of the issues makes an object unacceptable.
pub fn is_refused(issues: &[Issue]) -> bool {
    issues.iter().any(|issue| issue.severity == Severity::Error)
}

/// Tells whether an expression is RE2 syntax, which is what Envoy and the reference read.
pub fn is_re2(expression: &str) -> bool {
    re2::check(expression).is_ok()
}

/// Validates an object of any kind.
///
/// `raw` is the whole object as it was read, for what is lost in decoding (empty maps, null
/// elements); `check_patch` judges the values of patches. `None` skips those rules. Issues come in
/// the order of the checks.
pub fn validate_object(
    object: &Object,
    raw: Option<&Value>,
    check_patch: Option<CheckPatch>,
) -> Vec<Issue> {
    let issues = RefCell::new(Vec::new());
    let scope = &Scope::new("spec", &issues);
    let spec = raw.and_then(|raw| raw.get("spec"));
    metadata::validate(object, scope);
    match object {
        Object::VirtualService(o) => virtual_service::validate(&o.spec, &o.meta, scope),
        Object::DestinationRule(o) => destination_rule::validate(&o.spec, &o.meta, scope),
        Object::Gateway(o) => gateway::validate(&o.spec, &o.meta, scope),
        Object::ServiceEntry(o) => service_entry::validate(&o.spec, &o.meta, scope),
        Object::WorkloadEntry(o) => workload::entry(&o.spec, scope),
        Object::WorkloadGroup(o) => workload::group(&o.spec, scope),
        Object::Sidecar(o) => sidecar::validate(&o.spec, scope),
        Object::EnvoyFilter(o) => envoy_filter::validate(&o.spec, check_patch, scope),
        Object::ProxyConfig(o) => extensions::proxy_config(&o.spec, scope),
        Object::PeerAuthentication(o) => authentication::peer(&o.spec, spec, scope),
        Object::RequestAuthentication(o) => authentication::request(&o.spec, scope),
        Object::AuthorizationPolicy(o) => authorization::validate(&o.spec, spec, scope),
        Object::Telemetry(o) => telemetry::validate(&o.spec, spec, scope),
        Object::WasmPlugin(o) => extensions::wasm_plugin(&o.spec, scope),
        Object::TrafficExtension(o) => extensions::traffic_extension(&o.spec, scope),
        Object::GatewayClass(o) => gateway_api::gateway_class(&o.spec, &scope.lenient()),
        Object::KubernetesGateway(o) => gateway_api::gateway(&o.spec, &scope.lenient()),
        Object::ListenerSet(o) => gateway_api::listener_set(&o.spec, &scope.lenient()),
        Object::HttpRoute(o) => gateway_api::http_route(&o.spec, &scope.lenient()),
        Object::GrpcRoute(o) => gateway_api::grpc_route(&o.spec, &scope.lenient()),
        Object::TcpRoute(o) => {
            gateway_api::l4_route(&o.spec.parent_refs, &o.spec.rules, &scope.lenient());
        }
        Object::TlsRoute(o) => gateway_api::tls_route(&o.spec, &scope.lenient()),
        Object::ReferenceGrant(o) => gateway_api::reference_grant(&o.spec, &scope.lenient()),
        Object::BackendTlsPolicy(o) => gateway_api::backend_tls_policy(&o.spec, &scope.lenient()),
        Object::Namespace(_)
        | Object::Node(_)
        | Object::Pod(_)
        | Object::Service(_)
        | Object::EndpointSlice(_)
        | Object::Secret(_)
        | Object::ConfigMap(_)
        | Object::Ingress(_)
        | Object::IngressClass(_) => {}
    }
    issues.into_inner()
}

/// Validates the mesh configuration; a source with an error is not used.
pub fn validate_mesh(config: &MeshConfig) -> Vec<Issue> {
    let issues = RefCell::new(Vec::new());
    mesh::validate(config, &Scope::new("", &issues));
    issues.into_inner()
}

/// Validates the networks of the mesh. `resolve_names` allows gateways with domain names, as the
/// flag `RESOLVE_HOSTNAME_GATEWAYS` (on by default) does.
pub fn validate_networks(networks: &MeshNetworks, resolve_names: bool) -> Vec<Issue> {
    let issues = RefCell::new(Vec::new());
    mesh::networks(networks, resolve_names, &Scope::new("", &issues));
    issues.into_inner()
}

#[cfg(test)]
mod tests;

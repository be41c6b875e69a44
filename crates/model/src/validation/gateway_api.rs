//! Kinds of Gateway API: the rules of their schemas.
//!
//! The API server refuses what breaks these; the admission of Istio does not look at these kinds,
//! and the translation copes with all of them. So in files they are warnings.

mod route;

use super::Scope;
use super::names::{self, Verdict};
use crate::api::common::LabelSelector;
use crate::api::gateway_api::{
    BackendTlsPolicy, Gateway, GatewayClass, Listener, ListenerSet, ReferenceGrant,
    SubjectAltNameType,
};

pub(super) use route::{grpc_route, http_route, l4_route, tls_route};

/// Most listeners of one object.
const MAX_LISTENERS: usize = 64;
/// Most addresses of a gateway.
const MAX_ADDRESSES: usize = 16;

fn size(scope: &Scope<'_>, key: &str, length: usize, limit: usize) {
    if length > limit {
        scope.field(key).error(format_args!(
            "{length} elements, at most {limit} are allowed"
        ));
    }
}

fn required(scope: &Scope<'_>, key: &str, value: &str) {
    if value.is_empty() {
        scope.field(key).error("must be set");
    }
}

/// Checks a host name in lower case; the first label may be a wildcard if that is allowed.
fn hostname(host: &str, wildcard: bool) -> Verdict {
    let name = if wildcard {
        host.strip_prefix("*.").unwrap_or(host)
    } else {
        host
    };
    if names::is_ip(host) {
        return Err(format!("{host:?} is an IP address, not a host name"));
    }
    if name.bytes().any(|byte| byte.is_ascii_uppercase()) {
        return Err(format!("{host:?} is not in lower case"));
    }
    if name.ends_with('.') || host.len() > 253 {
        return Err(format!("{host:?} is not a host name"));
    }
    name.split('.').try_for_each(|label| {
        names::dns_label(label).map_err(|reason| format!("{host:?} is not a host name: {reason}"))
    })
}

pub(super) fn gateway_class(spec: &GatewayClass, scope: &Scope<'_>) {
    let valid = spec
        .controller_name
        .split_once('/')
        .is_some_and(|(domain, path)| names::fqdn(domain).is_ok() && !path.is_empty());
    if !valid {
        scope.field("controllerName").error(format_args!(
            "{:?} is not of the form domain/path",
            spec.controller_name
        ));
    }
}

pub(super) fn gateway(spec: &Gateway, scope: &Scope<'_>) {
    required(scope, "gatewayClassName", &spec.gateway_class_name);
    size(scope, "addresses", spec.addresses.len(), MAX_ADDRESSES);
    listeners(&spec.listeners, scope);
    if let Some(allowed) = &spec.allowed_listeners
        && let Some(namespaces) = &allowed.namespaces
        && let Some(selector) = &namespaces.selector
    {
        label_selector(
            &scope
                .field("allowedListeners")
                .field("namespaces")
                .field("selector"),
            selector,
        );
    }
}

pub(super) fn listener_set(spec: &ListenerSet, scope: &Scope<'_>) {
    required(&scope.field("parentRef"), "name", &spec.parent_ref.name);
    if spec.listeners.is_empty() {
        scope.field("listeners").error("must not be empty");
    }
    listeners(&spec.listeners, scope);
}

fn listeners(listeners: &[Listener], scope: &Scope<'_>) {
    size(scope, "listeners", listeners.len(), MAX_LISTENERS);
    for (index, listener) in listeners.iter().enumerate() {
        let field = scope.field("listeners");
        let scope = field.index(index);
        required(&scope, "name", &listener.name);
        required(&scope, "protocol", &listener.protocol);
        scope.field("port").check(names::port(listener.port));
        if let Some(host) = listener.hostname.as_deref().filter(|host| !host.is_empty()) {
            scope.field("hostname").check(hostname(host, true));
            if matches!(listener.protocol.as_str(), "TCP" | "UDP") {
                scope.field("hostname").error(format_args!(
                    "not allowed for protocol {}",
                    listener.protocol
                ));
            }
        }
        if listener.tls.is_some() && matches!(listener.protocol.as_str(), "HTTP" | "TCP" | "UDP") {
            scope.field("tls").error(format_args!(
                "not allowed for protocol {}",
                listener.protocol
            ));
        }
        if let Some(selector) = listener
            .allowed_routes
            .as_ref()
            .and_then(|routes| routes.namespaces.as_ref())
            .and_then(|namespaces| namespaces.selector.as_ref())
        {
            let scope = scope.field("allowedRoutes");
            label_selector(&scope.field("namespaces").field("selector"), selector);
        }
        let before = &listeners[..index];
        if before.iter().any(|other| other.name == listener.name) {
            scope.field("name").error(format_args!(
                "another listener has the name {:?}",
                listener.name
            ));
        }
        let same = |other: &Listener| {
            other.port == listener.port
                && other.protocol == listener.protocol
                && other.hostname == listener.hostname
        };
        if before.iter().any(same) {
            scope.error("another listener has the same port, protocol and host name");
        }
    }
}

/// Checks the operators of a selector.
fn label_selector(scope: &Scope<'_>, selector: &LabelSelector) {
    scope.each(
        "matchExpressions",
        &selector.match_expressions,
        |scope, requirement| {
            required(scope, "key", &requirement.key);
            let values = requirement.values.len();
            match requirement.operator.as_str() {
                "In" | "NotIn" if values == 0 => {
                    scope.field("values").error(format_args!(
                        "must be set for operator {}",
                        requirement.operator
                    ));
                }
                "Exists" | "DoesNotExist" if values > 0 => {
                    scope.field("values").error(format_args!(
                        "not allowed for operator {}",
                        requirement.operator
                    ));
                }
                "In" | "NotIn" | "Exists" | "DoesNotExist" => {}
                other => scope.field("operator").error(format_args!(
                    "{other:?} is not an operator, allowed are In, NotIn, Exists and DoesNotExist"
                )),
            }
        },
    );
}

pub(super) fn reference_grant(spec: &ReferenceGrant, scope: &Scope<'_>) {
    for (key, empty) in [("from", spec.from.is_empty()), ("to", spec.to.is_empty())] {
        if empty {
            scope.field(key).error("must not be empty");
        }
    }
    scope.each("from", &spec.from, |scope, from| {
        required(scope, "kind", &from.kind);
        required(scope, "namespace", &from.namespace);
    });
    scope.each("to", &spec.to, |scope, to| {
        required(scope, "kind", &to.kind);
    });
}

pub(super) fn backend_tls_policy(spec: &BackendTlsPolicy, scope: &Scope<'_>) {
    if spec.target_refs.is_empty() {
        scope.field("targetRefs").error("must not be empty");
    }
    scope.each("targetRefs", &spec.target_refs, |scope, target| {
        required(scope, "kind", &target.kind);
        required(scope, "name", &target.name);
    });
    let scope = scope.field("validation");
    scope
        .field("hostname")
        .check(hostname(&spec.validation.hostname, false));
    let (references, well_known) = (
        !spec.validation.ca_certificate_refs.is_empty(),
        spec.validation
            .well_known_ca_certificates
            .as_deref()
            .is_some_and(|name| !name.is_empty()),
    );
    if references == well_known {
        scope.error("exactly one of caCertificateRefs and wellKnownCACertificates must be set");
    }
    scope.each(
        "subjectAltNames",
        &spec.validation.subject_alt_names,
        |scope, name| {
            let given = match name.r#type {
                SubjectAltNameType::Hostname => {
                    (name.hostname.is_some(), name.uri.is_some(), "hostname")
                }
                SubjectAltNameType::Uri => (name.uri.is_some(), name.hostname.is_some(), "uri"),
            };
            if !given.0 || given.1 {
                scope.error(format_args!(
                    "{} alone must be set for type {}",
                    given.2, name.r#type
                ));
            }
        },
    );
}

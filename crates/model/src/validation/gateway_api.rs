//! Kinds of Gateway API: the rules of their schemas.
//!
//! The API server refuses what breaks these; the admission of Istio does not look at these kinds,
//! and the translation copes with all of them. So in files they are warnings.

use super::names::{self, Verdict};
use super::{Scope, text};
use crate::api::common::LabelSelector;
use crate::api::gateway_api::{
    BackendRef, BackendTlsPolicy, Gateway, GatewayClass, GrpcRoute, HeaderModifier, HttpBackendRef,
    HttpPathModifier, HttpRoute, HttpRouteFilter, L4RouteRule, Listener, ListenerSet,
    ParentReference, PathModifierType, ReferenceGrant, SubjectAltNameType, TlsRoute,
};

/// Most listeners, addresses, rules, matches, backends and filters of one list.
const MAX_LISTENERS: usize = 64;
const MAX_ADDRESSES: usize = 16;
const MAX_RULES: usize = 16;
const MAX_FILTERS: usize = 16;
const MAX_HOSTNAMES: usize = 16;
const MAX_PARENTS: usize = 32;

/// Largest share of a backend.
const MAX_WEIGHT: i32 = 1_000_000;

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

fn parents(parents: &[ParentReference], scope: &Scope<'_>) {
    size(scope, "parentRefs", parents.len(), MAX_PARENTS);
    scope.each("parentRefs", parents, |scope, parent| {
        required(scope, "name", &parent.name);
        if let Some(port) = parent.port {
            scope.field("port").check(names::port(port));
        }
    });
}

fn hostnames(hosts: &[String], scope: &Scope<'_>) {
    size(scope, "hostnames", hosts.len(), MAX_HOSTNAMES);
    scope.each("hostnames", hosts, |scope, host| {
        scope.check(hostname(host, true));
    });
}

pub(super) fn http_route(spec: &HttpRoute, scope: &Scope<'_>) {
    parents(&spec.parent_refs, scope);
    hostnames(&spec.hostnames, scope);
    size(scope, "rules", spec.rules.len(), MAX_RULES);
    scope.each("rules", &spec.rules, |scope, rule| {
        scope.each("matches", &rule.matches, |scope, request| {
            let pairs = [
                ("headers", &request.headers),
                ("queryParams", &request.query_params),
            ];
            for (key, conditions) in pairs {
                scope.each(key, conditions, |scope, condition| {
                    required(scope, "name", &condition.name);
                    required(scope, "value", &condition.value);
                });
            }
            let path = request.path.as_ref().and_then(|path| {
                let is_expression =
                    path.r#type == Some(crate::api::gateway_api::PathMatchType::RegularExpression);
                path.value.as_deref().filter(|_| !is_expression)
            });
            if let Some(path) = path {
                scope
                    .field("path")
                    .field("value")
                    .check(absolute_path(path));
            }
        });
        filters(&rule.filters, scope);
        let redirects = rule
            .filters
            .iter()
            .any(|filter| filter.request_redirect.is_some());
        if redirects && !rule.backend_refs.is_empty() {
            scope
                .field("backendRefs")
                .error("cannot be combined with the filter RequestRedirect");
        }
        backends(&rule.backend_refs, scope);
        if let Some(timeouts) = &rule.timeouts
            && let (Some(request), Some(backend)) = (timeouts.request, timeouts.backend_request)
            && !request.is_zero()
            && backend > request
        {
            scope
                .field("timeouts")
                .field("backendRequest")
                .error(format_args!(
                    "{backend} is longer than the timeout of the whole request, {request}"
                ));
        }
    });
}

fn absolute_path(path: &str) -> Verdict {
    if !path.starts_with('/') {
        return Err(format!("{path:?} does not start with \"/\""));
    }
    let forbidden = ["//", "/./", "/../", "%2f", "%2F", "#"];
    if let Some(part) = forbidden.iter().find(|part| path.contains(**part)) {
        return Err(format!(
            "{path:?} has {part:?}, which never reaches a route"
        ));
    }
    if path.ends_with("/..") || path.ends_with("/.") {
        return Err(format!(
            "{path:?} ends with a dot segment, which never reaches a route"
        ));
    }
    Ok(())
}

pub(super) fn grpc_route(spec: &GrpcRoute, scope: &Scope<'_>) {
    parents(&spec.parent_refs, scope);
    hostnames(&spec.hostnames, scope);
    size(scope, "rules", spec.rules.len(), MAX_RULES);
    scope.each("rules", &spec.rules, |scope, rule| {
        scope.each("matches", &rule.matches, |scope, call| {
            scope.each("headers", &call.headers, |scope, condition| {
                required(scope, "name", &condition.name);
                required(scope, "value", &condition.value);
            });
            if let Some(method) = &call.method
                && method.service.as_deref().unwrap_or_default().is_empty()
                && method.method.as_deref().unwrap_or_default().is_empty()
            {
                scope
                    .field("method")
                    .error("one of service and method must be set");
            }
        });
        filters(&rule.filters, scope);
        backends(&rule.backend_refs, scope);
    });
}

pub(super) fn l4_route(refs: &[ParentReference], rules: &[L4RouteRule], scope: &Scope<'_>) {
    parents(refs, scope);
    if rules.is_empty() {
        scope.field("rules").error("must not be empty");
    }
    size(scope, "rules", rules.len(), MAX_RULES);
    scope.each("rules", rules, |scope, rule| {
        if rule.backend_refs.is_empty() {
            scope.field("backendRefs").error("must not be empty");
        }
        size(scope, "backendRefs", rule.backend_refs.len(), MAX_RULES);
        scope.each("backendRefs", &rule.backend_refs, backend);
    });
}

pub(super) fn tls_route(spec: &TlsRoute, scope: &Scope<'_>) {
    hostnames(&spec.hostnames, scope);
    l4_route(&spec.parent_refs, &spec.rules, scope);
}

fn backends(backends: &[HttpBackendRef], scope: &Scope<'_>) {
    size(scope, "backendRefs", backends.len(), MAX_RULES);
    scope.each("backendRefs", backends, |scope, http| {
        backend(
            scope,
            &BackendRef {
                group: http.group.clone(),
                kind: http.kind.clone(),
                name: http.name.clone(),
                namespace: http.namespace.clone(),
                port: http.port,
                weight: http.weight,
            },
        );
        filters(&http.filters, scope);
    });
}

fn backend(scope: &Scope<'_>, backend: &BackendRef) {
    required(scope, "name", &backend.name);
    if let Some(port) = backend.port {
        scope.field("port").check(names::port(port));
    }
    let is_service = backend.group.as_deref().unwrap_or_default().is_empty()
        && backend.kind.as_deref().is_none_or(|kind| kind == "Service");
    if is_service && backend.port.is_none() {
        scope.field("port").error("must be set for a Service");
    }
    if let Some(weight) = backend.weight
        && !(0..=MAX_WEIGHT).contains(&weight)
    {
        scope.field("weight").error(format_args!(
            "{weight} is out of range, allowed are 0 to {MAX_WEIGHT}"
        ));
    }
}

fn filters(filters: &[HttpRouteFilter], scope: &Scope<'_>) {
    size(scope, "filters", filters.len(), MAX_FILTERS);
    for (index, filter) in filters.iter().enumerate() {
        let field = scope.field("filters");
        let scope = field.index(index);
        let members = [
            (
                "RequestHeaderModifier",
                "requestHeaderModifier",
                filter.request_header_modifier.is_some(),
            ),
            (
                "ResponseHeaderModifier",
                "responseHeaderModifier",
                filter.response_header_modifier.is_some(),
            ),
            (
                "RequestMirror",
                "requestMirror",
                filter.request_mirror.is_some(),
            ),
            (
                "RequestRedirect",
                "requestRedirect",
                filter.request_redirect.is_some(),
            ),
            ("URLRewrite", "urlRewrite", filter.url_rewrite.is_some()),
            ("CORS", "cors", filter.cors.is_some()),
            (
                "ExtensionRef",
                "extensionRef",
                filter.extension_ref.is_some(),
            ),
            (
                "ExternalAuth",
                "externalAuth",
                filter.external_auth.is_some(),
            ),
        ];
        if !members.iter().any(|(kind, ..)| *kind == filter.r#type) {
            scope
                .field("type")
                .error(format_args!("{:?} is not a filter", filter.r#type));
        }
        for (kind, key, given) in members {
            if given != (kind == filter.r#type) {
                let must = if given { "only allowed" } else { "must be set" };
                scope
                    .field(key)
                    .error(format_args!("{must} for filter {kind}"));
            }
        }
        let repeatable = matches!(filter.r#type.as_str(), "RequestMirror" | "ExtensionRef");
        if !repeatable
            && filters[..index]
                .iter()
                .any(|other| other.r#type == filter.r#type)
        {
            scope
                .field("type")
                .error(format_args!("the filter {} is given twice", filter.r#type));
        }
        filter_body(filter, &scope);
    }
    let kinds: Vec<&str> = filters
        .iter()
        .map(|filter| filter.r#type.as_str())
        .collect();
    if kinds.contains(&"RequestRedirect") && kinds.contains(&"URLRewrite") {
        scope
            .field("filters")
            .error("RequestRedirect and URLRewrite cannot be combined");
    }
}

fn filter_body(filter: &HttpRouteFilter, scope: &Scope<'_>) {
    for (key, modifier) in [
        ("requestHeaderModifier", &filter.request_header_modifier),
        ("responseHeaderModifier", &filter.response_header_modifier),
    ] {
        if let Some(modifier) = modifier {
            header_modifier(&scope.field(key), modifier);
        }
    }
    if let Some(mirror) = &filter.request_mirror {
        let scope = scope.field("requestMirror");
        backend(&scope.field("backendRef"), &mirror.backend_ref);
        if let Some(percent) = mirror.percent {
            scope.field("percent").check(names::percent(percent));
            if mirror.fraction.is_some() {
                scope
                    .field("fraction")
                    .error("cannot be combined with percent");
            }
        }
        if let Some(fraction) = &mirror.fraction {
            let denominator = fraction.denominator.unwrap_or(100);
            if denominator < 1 || fraction.numerator < 0 || fraction.numerator > denominator {
                scope.field("fraction").error(format_args!(
                    "{}/{denominator} is not between 0 and 1",
                    fraction.numerator
                ));
            }
        }
    }
    if let Some(redirect) = &filter.request_redirect {
        let scope = scope.field("requestRedirect");
        if let Some(scheme) = redirect.scheme.as_deref()
            && !matches!(scheme, "http" | "https")
        {
            scope.field("scheme").error(format_args!(
                "{scheme:?} is not a scheme, allowed are http and https"
            ));
        }
        if let Some(host) = &redirect.hostname {
            scope.field("hostname").check(hostname(host, false));
        }
        if let Some(port) = redirect.port {
            scope.field("port").check(names::port(port));
        }
        if let Some(status) = redirect.status_code
            && !matches!(status, 301 | 302 | 303 | 307 | 308)
        {
            scope.field("statusCode").error(format_args!(
                "{status} is not allowed, only 301, 302, 303, 307 and 308 are"
            ));
        }
        if let Some(path) = &redirect.path {
            path_modifier(&scope.field("path"), path);
        }
    }
    if let Some(rewrite) = &filter.url_rewrite {
        let scope = scope.field("urlRewrite");
        if let Some(host) = &rewrite.hostname {
            scope.field("hostname").check(hostname(host, false));
        }
        if let Some(path) = &rewrite.path {
            path_modifier(&scope.field("path"), path);
        }
    }
}

fn header_modifier(scope: &Scope<'_>, modifier: &HeaderModifier) {
    for (key, headers) in [("set", &modifier.set), ("add", &modifier.add)] {
        scope.each(key, headers, |scope, header| {
            scope.field("name").check(text::header_name(&header.name));
        });
    }
}

fn path_modifier(scope: &Scope<'_>, path: &HttpPathModifier) {
    let members = [
        (
            PathModifierType::ReplaceFullPath,
            "replaceFullPath",
            path.replace_full_path.is_some(),
        ),
        (
            PathModifierType::ReplacePrefixMatch,
            "replacePrefixMatch",
            path.replace_prefix_match.is_some(),
        ),
    ];
    for (kind, key, given) in members {
        if given != (kind == path.r#type) {
            let must = if given { "only allowed" } else { "must be set" };
            scope
                .field(key)
                .error(format_args!("{must} for type {kind}"));
        }
    }
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

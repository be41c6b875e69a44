//! Routes, their filters and backends.

use super::super::names::{self, Verdict};
use super::super::text;
use super::{Scope, hostname, required, size};
use crate::api::gateway_api::{
    BackendRef, GrpcRoute, HeaderModifier, HttpBackendRef, HttpPathModifier, HttpRoute,
    HttpRouteFilter, L4RouteRule, ParentReference, PathMatchType, PathModifierType, TlsRoute,
};

/// Most rules of a route, and most backends of a rule.
const MAX_RULES: usize = 16;
/// Most filters of a rule or backend.
const MAX_FILTERS: usize = 16;
/// Most host names of a route.
const MAX_HOSTNAMES: usize = 16;
/// Most parents of a route.
const MAX_PARENTS: usize = 32;
/// Largest share of a backend.
const MAX_WEIGHT: i32 = 1_000_000;

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

pub(in super::super) fn http_route(spec: &HttpRoute, scope: &Scope<'_>) {
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
                let is_expression = path.r#type == Some(PathMatchType::RegularExpression);
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

pub(in super::super) fn grpc_route(spec: &GrpcRoute, scope: &Scope<'_>) {
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

pub(in super::super) fn l4_route(
    refs: &[ParentReference],
    rules: &[L4RouteRule],
    scope: &Scope<'_>,
) {
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

pub(in super::super) fn tls_route(spec: &TlsRoute, scope: &Scope<'_>) {
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

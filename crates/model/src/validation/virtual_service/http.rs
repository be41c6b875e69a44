//! HTTP routes of a VirtualService (config-model.md §5.2).

use super::super::text;
use super::super::traffic::{optional_duration, retries};
use super::{
    Conditions, Scope, Whole, conditions, destination, header_operations, names,
    required_destination, weights,
};
use crate::api::common::{Headers, Percent, StringMatch};
use crate::api::virtual_service::{
    CorsPolicy, FaultAbort, HttpDirectResponse, HttpFaultInjection, HttpMatchRequest, HttpRedirect,
    HttpRewrite, HttpRoute,
};

/// Largest body of a direct response.
const MAX_BODY: usize = 1 << 20;
/// Body of a direct response from which on it is a nuisance.
const LARGE_BODY: usize = 100 << 10;

/// Methods that a CORS policy may allow.
const METHODS: [&str; 10] = [
    "GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "*",
];

/// Names of gRPC statuses.
const GRPC_STATUSES: [&str; 17] = [
    "OK",
    "CANCELLED",
    "UNKNOWN",
    "INVALID_ARGUMENT",
    "DEADLINE_EXCEEDED",
    "NOT_FOUND",
    "ALREADY_EXISTS",
    "PERMISSION_DENIED",
    "RESOURCE_EXHAUSTED",
    "FAILED_PRECONDITION",
    "ABORTED",
    "OUT_OF_RANGE",
    "UNIMPLEMENTED",
    "INTERNAL",
    "UNAVAILABLE",
    "DATA_LOSS",
    "UNAUTHENTICATED",
];

pub(super) fn validate(route: &HttpRoute, whole: &Whole<'_>, scope: &Scope<'_>) {
    actions(route, whole, scope);
    scope.each("match", &route.r#match, |scope, request| {
        match_request(request, whole, scope);
    });
    header_operations(&scope.field("headers"), route.headers.as_ref());
    if let Some(policy) = &route.cors_policy {
        cors(&scope.field("corsPolicy"), policy);
    }
    if let Some(injected) = &route.fault {
        fault(&scope.field("fault"), injected);
    }
    mirrors(route, whole, scope);
    if let Some(target) = &route.redirect {
        redirect(&scope.field("redirect"), target, route);
    }
    if let Some(response) = &route.direct_response {
        direct_response(&scope.field("directResponse"), response);
    }
    if let Some(retry) = &route.retries {
        retries(&scope.field("retries"), retry);
    }
    if let Some(target) = &route.rewrite {
        rewrite(&scope.field("rewrite"), target);
    }
    authority(scope, route.rewrite.as_ref(), route.headers.as_ref());
    scope.each("route", &route.route, |scope, route| {
        required_destination(scope, route.destination.as_ref(), whole);
        header_operations(&scope.field("headers"), route.headers.as_ref());
    });
    weights(
        &scope.field("route"),
        route.route.iter().map(|route| route.weight),
    );
    optional_duration(scope, "timeout", route.timeout);
}

/// Checks that the route does one thing.
fn actions(route: &HttpRoute, whole: &Whole<'_>, scope: &Scope<'_>) {
    let forbid = |present: bool, key: &str, with: &str| {
        if present {
            scope
                .field(key)
                .error(format_args!("cannot be combined with {with}"));
        }
    };
    if !route.mirrors.is_empty() {
        forbid(route.mirror.is_some(), "mirror", "mirrors");
    }
    if route.delegate.is_some() && whole.is_delegate {
        scope
            .field("delegate")
            .error("a delegate cannot delegate further");
    } else if route.delegate.is_some() {
        forbid(route.redirect.is_some(), "redirect", "delegate");
        forbid(!route.route.is_empty(), "route", "delegate");
        return;
    }
    if route.redirect.is_some() {
        forbid(!route.route.is_empty(), "route", "redirect");
        forbid(route.fault.is_some(), "fault", "redirect");
        forbid(route.rewrite.is_some(), "rewrite", "redirect");
        forbid(
            route.direct_response.is_some(),
            "directResponse",
            "redirect",
        );
    } else if route.direct_response.is_some() {
        forbid(!route.route.is_empty(), "route", "directResponse");
        forbid(route.fault.is_some(), "fault", "directResponse");
        forbid(route.rewrite.is_some(), "rewrite", "directResponse");
    } else if route.route.is_empty() {
        scope.error("one of route, redirect and directResponse must be set");
    }
}

fn match_request(request: &HttpMatchRequest, whole: &Whole<'_>, scope: &Scope<'_>) {
    scope.entries("headers", &request.headers, |scope, name, value| {
        scope.check(text::header_name(name));
        string_match(scope, value, true);
    });
    scope.entries(
        "withoutHeaders",
        &request.without_headers,
        |scope, name, value| {
            scope.check(text::header_name(name));
            // A single star is no expression; it asks for presence.
            if value.regex.as_deref() != Some("*") {
                string_match(scope, value, true);
            }
        },
    );
    scope.entries("queryParams", &request.query_params, |scope, _, value| {
        string_match(scope, value, true);
    });
    for (key, value, prefix_needed) in [
        ("uri", &request.uri, false),
        ("scheme", &request.scheme, true),
        ("method", &request.method, true),
        ("authority", &request.authority, true),
    ] {
        if let Some(value) = value {
            string_match(&scope.field(key), value, prefix_needed);
        }
    }
    let shared = Conditions {
        port: request.port,
        source_labels: &request.source_labels,
        gateways: &request.gateways,
        source_namespace: &request.source_namespace,
    };
    conditions(scope, &shared, whole);
}

/// Checks a condition on a string; an empty prefix is only meaningful for paths.
fn string_match(scope: &Scope<'_>, value: &StringMatch, prefix_needed: bool) {
    let given = [&value.exact, &value.prefix, &value.regex];
    if given.iter().filter(|member| member.is_some()).count() > 1 {
        scope.error("only one of exact, prefix and regex can be set");
    }
    if prefix_needed && value.prefix.as_deref() == Some("") {
        scope.field("prefix").error("the prefix is empty");
    }
    if let Some(expression) = &value.regex {
        scope.field("regex").check(text::regex(expression));
    }
}

fn cors(scope: &Scope<'_>, policy: &CorsPolicy) {
    scope.each("allowOrigins", &policy.allow_origins, |scope, origin| {
        let given = [&origin.exact, &origin.prefix, &origin.regex];
        if given
            .iter()
            .all(|member| member.as_deref().unwrap_or_default().is_empty())
        {
            scope.error("one of exact, prefix and regex must be set and not empty");
        } else if let Some(expression) = &origin.regex {
            scope.field("regex").check(text::regex(expression));
        }
    });
    scope.each("allowMethods", &policy.allow_methods, |scope, method| {
        if !METHODS.contains(&method.as_str()) {
            scope.error(format_args!(
                "{method:?} is not an HTTP method, allowed are {}",
                METHODS.join(", ")
            ));
        }
    });
    for (key, names) in [
        ("allowHeaders", &policy.allow_headers),
        ("exposeHeaders", &policy.expose_headers),
    ] {
        scope.each(key, names, |scope, name| {
            scope.check(text::header_name(name));
        });
    }
    if let Some(max_age) = policy.max_age {
        let scope = scope.field("maxAge");
        scope.check(names::duration(max_age));
        if max_age.subsec_nanos() != 0 {
            scope.error(format_args!("{max_age} is not a whole number of seconds"));
        }
    }
}

fn fault(scope: &Scope<'_>, fault: &HttpFaultInjection) {
    if fault.abort.is_none() && fault.delay.is_none() {
        scope.error("one of abort and delay must be set");
    }
    if let Some(injected) = &fault.abort {
        abort(&scope.field("abort"), injected);
    }
    if let Some(delay) = &fault.delay {
        let scope = scope.field("delay");
        fault_percentage(&scope, delay.percentage.as_ref());
        scope.field("percent").check(names::percent(delay.percent));
        optional_duration(&scope, "fixedDelay", delay.fixed_delay);
        if delay.exponential_delay.is_some() {
            scope
                .field("exponentialDelay")
                .error("not supported, use fixedDelay");
        }
    }
}

fn abort(scope: &Scope<'_>, abort: &FaultAbort) {
    fault_percentage(scope, abort.percentage.as_ref());
    if let Some(status) = abort.http_status {
        http_status(&scope.field("httpStatus"), i64::from(status));
    }
    if let Some(status) = &abort.grpc_status
        && !GRPC_STATUSES.contains(&status.as_str())
    {
        scope.field("grpcStatus").error(format_args!(
            "{status:?} is not a gRPC status, allowed are {}",
            GRPC_STATUSES.join(", ")
        ));
    }
    if abort.http2_error.is_some() {
        scope
            .field("http2Error")
            .error("not supported, use httpStatus or grpcStatus");
    }
    if abort.http_status.is_none() && abort.grpc_status.is_none() && abort.http2_error.is_none() {
        scope.warning("without httpStatus or grpcStatus nothing is aborted");
    }
}

fn http_status(scope: &Scope<'_>, status: i64) {
    if !(200..=600).contains(&status) {
        scope.error(format_args!(
            "{status} is not an HTTP status, allowed are 200 to 600"
        ));
    }
}

/// Checks a percentage that Envoy must be able to express: millionths at the finest.
fn fault_percentage(scope: &Scope<'_>, percentage: Option<&Percent>) {
    let value = percentage.map_or(0.0, |percentage| percentage.value);
    if value != 0.0 && !(0.0001..=100.0).contains(&value) {
        scope.field("percentage").field("value").error(format_args!(
            "{value} is not a percentage, allowed are 0 and 0.0001 to 100"
        ));
    }
}

fn mirrors(route: &HttpRoute, whole: &Whole<'_>, scope: &Scope<'_>) {
    let percentage = |scope: &Scope<'_>, key: &str, percentage: Option<&Percent>| {
        let value = percentage.map_or(0.0, |percentage| percentage.value);
        if !(0.0..=100.0).contains(&value) {
            scope.field(key).field("value").error(format_args!(
                "{value} is not a percentage, allowed are 0 to 100"
            ));
        }
    };
    if let Some(value) = route.mirror_percent {
        let scope = scope.field("mirrorPercent");
        scope.warning("deprecated, use mirrorPercentage");
        if value > 100 {
            scope.error(format_args!(
                "{value} is not a percentage, allowed are 0 to 100"
            ));
        }
    }
    percentage(scope, "mirrorPercentage", route.mirror_percentage.as_ref());
    if let Some(mirror) = &route.mirror {
        destination(&scope.field("mirror"), mirror, whole);
    }
    scope.each("mirrors", &route.mirrors, |scope, mirror| {
        required_destination(scope, mirror.destination.as_ref(), whole);
        percentage(scope, "percentage", mirror.percentage.as_ref());
    });
}

fn redirect(scope: &Scope<'_>, redirect: &HttpRedirect, route: &HttpRoute) {
    let texts = [
        &redirect.uri,
        &redirect.prefix_rewrite,
        &redirect.authority,
        &redirect.scheme,
    ];
    if texts.iter().all(|text| text.is_empty())
        && redirect.port.is_none()
        && redirect.derive_port.is_none()
    {
        scope
            .error("one of uri, prefixRewrite, authority, scheme, port and derivePort must be set");
    }
    if !redirect.uri.is_empty() && !redirect.prefix_rewrite.is_empty() {
        scope
            .field("prefixRewrite")
            .error("cannot be combined with uri");
    }
    let other_uri = route.r#match.iter().any(|request| {
        request
            .uri
            .as_ref()
            .is_some_and(|uri| uri.exact.is_some() || uri.regex.is_some())
    });
    if !redirect.prefix_rewrite.is_empty() && other_uri {
        scope
            .field("prefixRewrite")
            .error("the route matches a uri that is no prefix");
    }
    if redirect.port.is_some() && redirect.derive_port.is_some() {
        scope
            .field("derivePort")
            .error("cannot be combined with port");
    }
    if let Some(port) = redirect.port
        && port > 65535
    {
        scope.field("port").check(names::port(port));
    }
    if redirect.redirect_code != 0 && !(300..400).contains(&redirect.redirect_code) {
        scope.field("redirectCode").error(format_args!(
            "{} is not a redirect status, allowed are 300 to 399",
            redirect.redirect_code
        ));
    }
    if !matches!(redirect.scheme.as_str(), "" | "http" | "https") {
        scope.field("scheme").error(format_args!(
            "{:?} is not a scheme, allowed are http and https",
            redirect.scheme
        ));
    }
}

fn direct_response(scope: &Scope<'_>, response: &HttpDirectResponse) {
    http_status(&scope.field("status"), i64::from(response.status));
    let Some(body) = &response.body else { return };
    let length = match (&body.string, &body.bytes) {
        (Some(text), _) => text.len(),
        (None, Some(bytes)) => bytes.0.len(),
        (None, None) => 0,
    };
    if length > MAX_BODY {
        scope.field("body").error(format_args!(
            "{length} bytes, at most {MAX_BODY} are allowed"
        ));
    } else if length > LARGE_BODY {
        scope.field("body").warning(format_args!(
            "{length} bytes are sent to every proxy, more than {LARGE_BODY}"
        ));
    }
}

fn rewrite(scope: &Scope<'_>, rewrite: &HttpRewrite) {
    if rewrite.uri.is_empty() && rewrite.authority.is_empty() && rewrite.uri_regex_rewrite.is_none()
    {
        scope.error("one of uri, uriRegexRewrite and authority must be set");
    }
    let Some(expression) = &rewrite.uri_regex_rewrite else {
        return;
    };
    if !rewrite.uri.is_empty() {
        scope
            .field("uriRegexRewrite")
            .error("cannot be combined with uri");
    }
    let scope = scope.field("uriRegexRewrite");
    if expression.r#match.is_empty() || expression.rewrite.is_empty() {
        scope.error("both match and rewrite must be set");
    }
    if !expression.r#match.is_empty() {
        scope.field("match").check(text::regex(&expression.r#match));
    }
}

/// Checks that the authority is changed in one place only.
fn authority(scope: &Scope<'_>, rewrite: Option<&HttpRewrite>, headers: Option<&Headers>) {
    let mut places = Vec::new();
    if rewrite.is_some_and(|rewrite| !rewrite.authority.is_empty()) {
        places.push("rewrite.authority".to_owned());
    }
    if let Some(request) = headers.and_then(|headers| headers.request.as_ref()) {
        for (operation, headers) in [("set", &request.set), ("add", &request.add)] {
            let names = headers.keys().filter(|name| text::is_authority(name));
            places.extend(names.map(|name| format!("headers.request.{operation}[{name:?}]")));
        }
    }
    if places.len() > 1 {
        scope.error(format_args!(
            "the authority is changed more than once: {}",
            places.join(", ")
        ));
    }
}

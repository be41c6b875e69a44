//! EnvoyFilter (envoyfilter.md §2).

use super::{CheckPatch, Scope, Severity, re2, selectors, text};
use crate::api::envoy_filter::{
    ApplyTo, ConfigMatch, ConfigPatch, EnvoyFilter, FilterMatch, Operation, PatchContext,
};

/// The network filter that holds HTTP filters, and its old name.
const HTTP_MANAGERS: [&str; 2] = [
    "envoy.filters.network.http_connection_manager",
    "envoy.http_connection_manager",
];

/// Old names of filters with the current ones (envoyfilter.md §20).
const DEPRECATED: [(&str, &str); 27] = [
    ("envoy.buffer", "envoy.filters.http.buffer"),
    ("envoy.cors", "envoy.filters.http.cors"),
    ("envoy.csrf", "envoy.filters.http.csrf"),
    ("envoy.http_dynamo_filter", "envoy.filters.http.dynamo"),
    ("envoy.ext_authz", "envoy.filters.http.ext_authz"),
    ("envoy.fault", "envoy.filters.http.fault"),
    (
        "envoy.grpc_http1_bridge",
        "envoy.filters.http.grpc_http1_bridge",
    ),
    (
        "envoy.grpc_json_transcoder",
        "envoy.filters.http.grpc_json_transcoder",
    ),
    ("envoy.grpc_web", "envoy.filters.http.grpc_web"),
    ("envoy.gzip", "envoy.filters.http.gzip"),
    ("envoy.health_check", "envoy.filters.http.health_check"),
    ("envoy.ip_tagging", "envoy.filters.http.ip_tagging"),
    ("envoy.lua", "envoy.filters.http.lua"),
    ("envoy.rate_limit", "envoy.filters.http.ratelimit"),
    ("envoy.router", "envoy.filters.http.router"),
    ("envoy.squash", "envoy.filters.http.squash"),
    (
        "envoy.listener.http_inspector",
        "envoy.filters.listener.http_inspector",
    ),
    (
        "envoy.listener.original_dst",
        "envoy.filters.listener.original_dst",
    ),
    (
        "envoy.listener.original_src",
        "envoy.filters.listener.original_src",
    ),
    (
        "envoy.listener.proxy_protocol",
        "envoy.filters.listener.proxy_protocol",
    ),
    (
        "envoy.listener.tls_inspector",
        "envoy.filters.listener.tls_inspector",
    ),
    (
        "envoy.client_ssl_auth",
        "envoy.filters.network.client_ssl_auth",
    ),
    (
        "envoy.http_connection_manager",
        "envoy.filters.network.http_connection_manager",
    ),
    ("envoy.mongo_proxy", "envoy.filters.network.mongo_proxy"),
    ("envoy.ratelimit", "envoy.filters.network.ratelimit"),
    ("envoy.redis_proxy", "envoy.filters.network.redis_proxy"),
    ("envoy.tcp_proxy", "envoy.filters.network.tcp_proxy"),
];

pub(super) fn validate(spec: &EnvoyFilter, check: Option<CheckPatch>, scope: &Scope<'_>) {
    scope.warning(
        "patches depend on internals of the generated configuration and can break on upgrades",
    );
    selectors::labels(
        &scope.field("workloadSelector"),
        spec.workload_selector.as_ref(),
    );
    selectors::one_target(scope, None, None, &spec.target_refs);
    if spec.workload_selector.is_some() && !spec.target_refs.is_empty() {
        scope.error("only one of workloadSelector and targetRefs can be set");
    }
    scope.each("configPatches", &spec.config_patches, |scope, patch| {
        // The checks of a patch end at its first error.
        if let Err((keys, reason)) = validate_patch(patch, check, scope) {
            within(scope, keys, |scope| scope.error(&reason));
        }
    });
}

/// The error that ends the checks of a patch: the path of its field, and the reason.
type Stop = (&'static [&'static str], String);

fn stop(keys: &'static [&'static str], reason: impl Into<String>) -> Result<(), Stop> {
    Err((keys, reason.into()))
}

/// Goes down a path of fields.
fn within(scope: &Scope<'_>, keys: &[&str], visit: impl FnOnce(&Scope<'_>)) {
    match keys {
        [] => visit(scope),
        [key, rest @ ..] => within(&scope.field(key), rest, visit),
    }
}

fn validate_patch(
    patch: &ConfigPatch,
    check: Option<CheckPatch>,
    scope: &Scope<'_>,
) -> Result<(), Stop> {
    let default = ConfigMatch::default();
    let matched = patch.r#match.as_ref().unwrap_or(&default);
    if matched.context == PatchContext::Waypoint {
        return Ok(());
    }
    let apply_to = patch.apply_to;
    if apply_to == ApplyTo::Invalid {
        return stop(&["applyTo"], "must be set");
    }
    let Some(change) = &patch.patch else {
        return stop(&["patch"], "must be set");
    };
    if change.operation == Operation::Invalid {
        return stop(&["patch", "operation"], "must be set");
    }
    if change.operation != Operation::Remove && change.value.is_none() {
        let reason = format!("must be set for operation {}", change.operation);
        return stop(&["patch", "value"], reason);
    }
    proxy_version(matched, scope)?;
    objects(apply_to, matched, scope)?;
    let (Some(value), Some(check)) = (&change.value, check) else {
        return Ok(());
    };
    let scope = scope.field("patch");
    let scope = scope.field("value");
    for (severity, reason) in check(apply_to, value) {
        match severity {
            Severity::Error => scope.error(reason),
            Severity::Warning => scope.warning(reason),
        }
    }
    Ok(())
}

fn proxy_version(matched: &ConfigMatch, scope: &Scope<'_>) -> Result<(), Stop> {
    const KEYS: &[&str] = &["match", "proxy", "proxyVersion"];
    let Some(proxy) = &matched.proxy else {
        return Ok(());
    };
    let version = &proxy.proxy_version;
    if version.len() > text::MAX_REGEX {
        scope.field("match").field("proxy").field("proxyVersion").warning(format_args!(
            "the regular expression has {} characters, more than {}: the patch matches no proxy",
            version.len(),
            text::MAX_REGEX
        ));
        return Ok(());
    }
    re2::check(version).or_else(|reason| {
        stop(
            KEYS,
            format!("{version:?} is not an RE2 regular expression: {reason}"),
        )
    })
}

/// Checks that the match is on the kind of thing that is patched.
fn objects(apply_to: ApplyTo, matched: &ConfigMatch, scope: &Scope<'_>) -> Result<(), Stop> {
    let given = [
        ("listener", matched.listener.is_some()),
        ("routeConfiguration", matched.route_configuration.is_some()),
        ("cluster", matched.cluster.is_some()),
        ("waypoint", matched.waypoint.is_some()),
    ];
    let wanted = match apply_to {
        ApplyTo::Listener | ApplyTo::FilterChain | ApplyTo::NetworkFilter | ApplyTo::HttpFilter => {
            "listener"
        }
        ApplyTo::RouteConfiguration | ApplyTo::VirtualHost | ApplyTo::HttpRoute => {
            "routeConfiguration"
        }
        ApplyTo::Cluster => "cluster",
        ApplyTo::Invalid
        | ApplyTo::ExtensionConfig
        | ApplyTo::Bootstrap
        | ApplyTo::ListenerFilter => return Ok(()),
    };
    if let Some((other, _)) = given.iter().find(|(key, given)| *given && *key != wanted) {
        return stop(
            &["match"],
            format!("applyTo {apply_to} matches on {wanted}, not on {other}"),
        );
    }
    let filter = matched
        .listener
        .as_ref()
        .and_then(|listener| listener.filter_chain.as_ref())
        .and_then(|chain| chain.filter.as_ref());
    match filter {
        Some(filter) => filter_match(apply_to, filter, scope),
        None => Ok(()),
    }
}

fn filter_match(apply_to: ApplyTo, filter: &FilterMatch, scope: &Scope<'_>) -> Result<(), Stop> {
    const FILTER: &[&str] = &["match", "listener", "filterChain", "filter"];
    const NAME: &[&str] = &["match", "listener", "filterChain", "filter", "name"];
    const SUB: &[&str] = &["match", "listener", "filterChain", "filter", "subFilter"];
    const SUB_NAME: &[&str] = &[
        "match",
        "listener",
        "filterChain",
        "filter",
        "subFilter",
        "name",
    ];
    if matches!(apply_to, ApplyTo::Listener | ApplyTo::FilterChain) {
        within(scope, FILTER, |scope| {
            scope.warning(format_args!("has no effect for applyTo {apply_to}"));
        });
    }
    if filter.name.is_empty() {
        return stop(NAME, "the filter has no name");
    }
    warn_deprecated(scope, NAME, &filter.name);
    let Some(sub) = &filter.sub_filter else {
        return Ok(());
    };
    if apply_to != ApplyTo::HttpFilter {
        return stop(
            SUB,
            format!("only allowed for applyTo HTTP_FILTER, not {apply_to}"),
        );
    }
    if !HTTP_MANAGERS.contains(&filter.name.as_str()) {
        return stop(
            SUB,
            format!(
                "{:?} has no inner filters, only {} has",
                filter.name, HTTP_MANAGERS[0]
            ),
        );
    }
    if sub.name.is_empty() {
        return stop(SUB_NAME, "the filter has no name");
    }
    warn_deprecated(scope, SUB_NAME, &sub.name);
    Ok(())
}

fn warn_deprecated(scope: &Scope<'_>, keys: &[&str], name: &str) {
    if let Some((_, current)) = DEPRECATED.iter().find(|(old, _)| *old == name) {
        within(scope, keys, |scope| {
            scope.warning(format_args!(
                "{name:?} is an old name that matches nothing, use {current:?}"
            ));
        });
    }
}

//! Warnings about rules and matches that never get traffic.

use std::collections::BTreeMap;

use super::Scope;
use crate::api::common::StringMatch;
use crate::api::virtual_service::{HttpMatchRequest, VirtualService};

/// Warns about HTTP, TLS and TCP rules that an earlier one hides.
pub(super) fn warn(spec: &VirtualService, scope: &Scope<'_>) {
    http(spec, scope);
    let mut seen = Vec::new();
    scope.each("tls", &spec.tls, |scope, route| {
        shadowed(scope, &route.r#match, &mut seen, Clone::clone);
    });
    let mut seen = Vec::new();
    let mut catch_all = None;
    for (index, route) in spec.tcp.iter().enumerate() {
        let field = scope.field("tcp");
        let scope = field.index(index);
        if let Some(first) = catch_all {
            scope.warning(format_args!(
                "never gets traffic: tcp[{first}] matches everything"
            ));
        }
        shadowed(&scope, &route.r#match, &mut seen, Clone::clone);
        if route.r#match.is_empty() {
            catch_all = catch_all.or(Some(index));
        }
    }
}

fn http(spec: &VirtualService, scope: &Scope<'_>) {
    let list = scope.field("http");
    let mut seen: Vec<HttpMatchRequest> = Vec::new();
    let mut prefixes: Vec<(usize, usize, &HttpMatchRequest)> = Vec::new();
    let mut catch_all = None;
    for (index, route) in spec.http.iter().enumerate() {
        let scope = list.index(index);
        if let Some(first) = catch_all {
            scope.warning(format_args!(
                "never gets traffic: http[{first}] matches everything"
            ));
            continue;
        }
        let nameless = |request: &HttpMatchRequest| HttpMatchRequest {
            name: String::new(),
            ..request.clone()
        };
        shadowed(&scope, &route.r#match, &mut seen, nameless);
        for (position, request) in route.r#match.iter().enumerate() {
            if let Some((route, earlier, _)) = prefixes
                .iter()
                .find(|(_, _, earlier)| covers(earlier, request))
            {
                scope.field("match").index(position).warning(format_args!(
                    "never matches: http[{route}].match[{earlier}] has a prefix of this uri"
                ));
            }
            prefixes.push((index, position, request));
        }
        if route.r#match.is_empty() || route.r#match.iter().any(matches_everything) {
            catch_all = Some(index);
        }
    }
}

/// Tells whether a match takes every request, wherever it comes from (routes §10).
fn matches_everything(request: &HttpMatchRequest) -> bool {
    let any_path = request
        .uri
        .as_ref()
        .is_none_or(|uri| uri.prefix.as_deref() == Some("/") || uri.regex.as_deref() == Some(".*"));
    let nothing_else = HttpMatchRequest {
        name: request.name.clone(),
        uri: request.uri.clone(),
        ignore_uri_case: request.ignore_uri_case,
        stat_prefix: request.stat_prefix.clone(),
        ..HttpMatchRequest::default()
    };
    any_path && *request == nothing_else
}

/// Warns about matches that equal an earlier one, and about rules that have no other.
fn shadowed<T: PartialEq>(
    scope: &Scope<'_>,
    matches: &[T],
    seen: &mut Vec<T>,
    key: impl Fn(&T) -> T,
) {
    let mut repeated = 0;
    for (position, request) in matches.iter().enumerate() {
        let request = key(request);
        if seen.contains(&request) {
            repeated += 1;
            scope
                .field("match")
                .index(position)
                .warning("never matches: an earlier match is the same");
        } else {
            seen.push(request);
        }
    }
    if repeated > 0 && repeated == matches.len() {
        scope.warning("never gets traffic: earlier routes have all of its matches");
    }
}

/// Tells whether `earlier` takes every request that `later` asks for, by its uri prefix.
fn covers(earlier: &HttpMatchRequest, later: &HttpMatchRequest) -> bool {
    let prefix =
        |request: &HttpMatchRequest| request.uri.as_ref().and_then(|uri| uri.prefix.clone());
    let (Some(short), Some(long)) = (prefix(earlier), prefix(later)) else {
        return false;
    };
    let same =
        |one: &Option<StringMatch>, other: &Option<StringMatch>| one.is_none() || one == other;
    let within = |few: &BTreeMap<String, StringMatch>, many: &BTreeMap<String, StringMatch>| {
        few.iter().all(|(key, value)| many.get(key) == Some(value))
    };
    short.len() < long.len()
        && long.starts_with(&short)
        && earlier.port == later.port
        && same(&earlier.method, &later.method)
        && same(&earlier.authority, &later.authority)
        && same(&earlier.scheme, &later.scheme)
        && within(&earlier.headers, &later.headers)
        && within(&earlier.query_params, &later.query_params)
        && within(&earlier.without_headers, &later.without_headers)
        && earlier
            .source_labels
            .iter()
            .all(|(key, value)| later.source_labels.get(key) == Some(value))
        && (earlier.source_namespace.is_empty()
            || earlier.source_namespace == later.source_namespace)
        && (earlier.gateways.is_empty() || earlier.gateways == later.gateways)
}

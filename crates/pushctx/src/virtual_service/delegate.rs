//! Merging of a delegate's route into the root's (config-model §10.2).

use model::api::{
    common::StringMatch,
    virtual_service::{HttpMatchRequest, HttpRoute},
};

/// Lays a delegate's route over the root route that delegates; `None` when their matches conflict.
pub(super) fn merge(root: &HttpRoute, delegate: HttpRoute) -> Option<HttpRoute> {
    let matches = merge_matches(&root.r#match, &delegate.r#match)?;
    let root = root.clone();
    Some(HttpRoute {
        name: join(&root.name, &delegate.name),
        r#match: matches,
        rewrite: delegate.rewrite.or(root.rewrite),
        direct_response: delegate.direct_response.or(root.direct_response),
        timeout: delegate.timeout.or(root.timeout),
        retries: delegate.retries.or(root.retries),
        fault: delegate.fault.or(root.fault),
        mirror: delegate.mirror.or(root.mirror),
        mirror_percent: delegate.mirror_percent.or(root.mirror_percent),
        mirror_percentage: delegate.mirror_percentage.or(root.mirror_percentage),
        mirrors: if delegate.mirrors.is_empty() {
            root.mirrors
        } else {
            delegate.mirrors
        },
        cors_policy: delegate.cors_policy.or(root.cors_policy),
        headers: delegate.headers.or(root.headers),
        route: delegate.route,
        redirect: delegate.redirect,
        delegate: delegate.delegate,
        session: delegate.session.or(root.session),
    })
}

fn join(root: &str, delegate: &str) -> String {
    match (root, delegate) {
        (name, "") | ("", name) => name.to_owned(),
        (root, delegate) => format!("{root}-{delegate}"),
    }
}

/// Combines every pair of matches. A delegate match that fits no root match spoils the whole route.
fn merge_matches(
    root: &[HttpMatchRequest],
    delegate: &[HttpMatchRequest],
) -> Option<Vec<HttpMatchRequest>> {
    if root.is_empty() {
        return Some(delegate.to_vec());
    }
    if delegate.is_empty() {
        return Some(root.to_vec());
    }
    let mut merged = Vec::new();
    for inner in delegate {
        let before = merged.len();
        merged.extend(
            root.iter()
                .filter(|r| !conflict(r, inner))
                .map(|r| combine(r, inner)),
        );
        if merged.len() == before {
            return None;
        }
    }
    Some(merged)
}

/// Joins two matches that do not conflict; the delegate's values win.
fn combine(root: &HttpMatchRequest, delegate: &HttpMatchRequest) -> HttpMatchRequest {
    let text = |d: &str, r: &str| {
        if d.is_empty() {
            r.to_owned()
        } else {
            d.to_owned()
        }
    };
    let string = |d: &Option<StringMatch>, r: &Option<StringMatch>| d.clone().or_else(|| r.clone());
    HttpMatchRequest {
        name: join(&root.name, &delegate.name),
        uri: string(&delegate.uri, &root.uri),
        scheme: string(&delegate.scheme, &root.scheme),
        method: string(&delegate.method, &root.method),
        authority: string(&delegate.authority, &root.authority),
        headers: union(&root.headers, &delegate.headers),
        port: if delegate.port == 0 {
            root.port
        } else {
            delegate.port
        },
        source_labels: union(&root.source_labels, &delegate.source_labels),
        gateways: if delegate.gateways.is_empty() {
            &root.gateways
        } else {
            &delegate.gateways
        }
        .clone(),
        query_params: union(&root.query_params, &delegate.query_params),
        ignore_uri_case: delegate.ignore_uri_case,
        without_headers: union(&root.without_headers, &delegate.without_headers),
        source_namespace: text(&delegate.source_namespace, &root.source_namespace),
        stat_prefix: text(&delegate.stat_prefix, &root.stat_prefix),
    }
}

fn union<'a, V, M>(root: &'a M, delegate: &'a M) -> M
where
    V: Clone + 'a,
    M: Clone + Extend<(String, V)>,
    &'a M: IntoIterator<Item = (&'a String, &'a V)>,
{
    let mut all = root.clone();
    all.extend(delegate.into_iter().map(|(k, v)| (k.clone(), v.clone())));
    all
}

/// Tells whether no request that the root means could meet the delegate's match.
fn conflict(root: &HttpMatchRequest, delegate: &HttpMatchRequest) -> bool {
    let strings = [
        (&root.uri, &delegate.uri),
        (&root.scheme, &delegate.scheme),
        (&root.method, &delegate.method),
        (&root.authority, &delegate.authority),
    ];
    let maps = [
        (&root.headers, &delegate.headers),
        (&root.without_headers, &delegate.without_headers),
        (&root.query_params, &delegate.query_params),
    ];
    let gateways = !root.gateways.is_empty()
        && !delegate.gateways.is_empty()
        && (delegate.gateways.len() > root.gateways.len()
            || !delegate.gateways.iter().all(|g| root.gateways.contains(g)));
    root.ignore_uri_case != delegate.ignore_uri_case
        || (root.port != 0 && delegate.port != 0 && root.port != delegate.port)
        || (!root.source_namespace.is_empty() && root.source_namespace != delegate.source_namespace)
        || gateways
        || delegate
            .source_labels
            .iter()
            .any(|(k, v)| root.source_labels.get(k).is_some_and(|other| other != v))
        || strings.iter().any(|pair| match pair {
            (Some(root), Some(delegate)) => string_conflict(root, delegate),
            _ => false,
        })
        || maps.iter().any(|(root, delegate)| {
            delegate
                .iter()
                .any(|(k, d)| root.get(k).is_some_and(|r| string_conflict(r, d)))
        })
}

fn string_conflict(root: &StringMatch, delegate: &StringMatch) -> bool {
    if root.regex.is_some() || delegate.regex.is_some() {
        return true;
    }
    if let Some(exact) = &root.exact {
        return delegate.exact.as_ref() != Some(exact);
    }
    match (
        &root.prefix,
        delegate.prefix.as_ref().or(delegate.exact.as_ref()),
    ) {
        (Some(prefix), Some(inner)) => !inner.starts_with(prefix.as_str()),
        _ => true,
    }
}

//! Filters of rules and backends.

use model::{
    Labels, MeshState,
    api::{
        Duration,
        common::{HeaderOperations, Headers, Percent, StringMatch},
        gateway_api::{
            Cors, HeaderModifier, HttpPathModifier, HttpRouteFilter, PathModifierType,
            RequestMirror, RequestRedirect, UrlRewrite,
        },
        virtual_service::{
            CorsPolicy, HttpMirror, HttpRedirect, HttpRewrite, HttpRoute, RedirectPortSelection,
            RegexRewrite, UnmatchedPreflights,
        },
    },
};

use super::backend;
use crate::report::{self, Refusal, Verdict};

/// What `*` as an origin stands for.
const ANY_ORIGIN: &str = r"^[a-zA-Z][a-zA-Z0-9+.-]*://[^/\s?#]+$";

/// Filters that rules may have, by the kind of their route.
const OF_HTTP: [&str; 6] = [
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestRedirect",
    "RequestMirror",
    "URLRewrite",
    "CORS",
];
const OF_GRPC: [&str; 3] = [
    "RequestHeaderModifier",
    "ResponseHeaderModifier",
    "RequestMirror",
];
/// Filters that single backends may have.
const OF_BACKENDS: [&str; 2] = ["RequestHeaderModifier", "ResponseHeaderModifier"];

/// Looks for a filter that is not supported: a route that has one is not served at all, since what the
/// filter was to do would be missing.
fn supported(filters: &[HttpRouteFilter], known: &[&str]) -> Verdict {
    let unknown = filters.iter().find(|f| !known.contains(&&*f.r#type));
    match unknown {
        Some(filter) => {
            let message = format!("the filter {} is not supported here", filter.r#type);
            Err(Refusal::new("UnsupportedValue", message))
        }
        None => Ok(()),
    }
}

/// Applies the filters of a rule of a route of `kind` and `namespace`.
///
/// # Errors
/// When there is one that is not supported.
pub(super) fn apply(
    state: &MeshState,
    kind: &str,
    namespace: &str,
    filters: &[HttpRouteFilter],
    mesh: bool,
    rule: &mut HttpRoute,
    resolved: &mut Verdict,
) -> Verdict {
    let known = if kind == "GRPCRoute" {
        &OF_GRPC[..]
    } else {
        &OF_HTTP
    };
    supported(filters, known)?;
    rule.headers = headers(filters);
    for filter in filters {
        if let Some(redirect) = &filter.request_redirect {
            rule.redirect = Some(to_redirect(redirect));
        }
        if let Some(mirror) = &filter.request_mirror {
            rule.mirrors
                .extend(to_mirror(state, kind, namespace, mirror, mesh, resolved));
        }
        if let Some(rewrite) = &filter.url_rewrite {
            rule.rewrite = Some(to_rewrite(rewrite)).filter(|r| *r != HttpRewrite::default());
        }
        if let Some(cors) = &filter.cors {
            rule.cors_policy = Some(to_cors(cors));
        }
    }
    Ok(())
}

/// Collects the changes of headers for one backend.
///
/// # Errors
/// When there is another filter.
pub(super) fn of_backend(filters: &[HttpRouteFilter]) -> Result<Option<Headers>, Refusal> {
    supported(filters, &OF_BACKENDS)?;
    Ok(headers(filters))
}

/// Collects the changes of headers.
fn headers(filters: &[HttpRouteFilter]) -> Option<Headers> {
    let request = filters
        .iter()
        .filter_map(|f| f.request_header_modifier.as_ref());
    let response = filters
        .iter()
        .filter_map(|f| f.response_header_modifier.as_ref());
    let headers = Headers {
        request: operations(request),
        response: operations(response),
    };
    (headers != Headers::default()).then_some(headers)
}

fn operations<'a>(modifiers: impl Iterator<Item = &'a HeaderModifier>) -> Option<HeaderOperations> {
    let mut result = HeaderOperations::default();
    let put = |map: &mut Labels, header: &model::api::gateway_api::HeaderValue| {
        // Of names that differ in case only the first counts.
        map.entry(header.name.to_ascii_lowercase())
            .or_insert_with(|| header.value.clone());
    };
    for modifier in modifiers {
        modifier
            .set
            .iter()
            .for_each(|header| put(&mut result.set, header));
        modifier
            .add
            .iter()
            .for_each(|header| put(&mut result.add, header));
        result.remove.extend(modifier.remove.iter().cloned());
    }
    (result != HeaderOperations::default()).then_some(result)
}

fn to_redirect(redirect: &RequestRedirect) -> HttpRedirect {
    let mut result = HttpRedirect {
        redirect_code: redirect.status_code.unwrap_or(302),
        authority: redirect.hostname.clone().unwrap_or_default(),
        scheme: redirect.scheme.clone().unwrap_or_default(),
        port: redirect.port,
        ..HttpRedirect::default()
    };
    if redirect.port.is_none() {
        result.derive_port = Some(if redirect.scheme.is_some() {
            RedirectPortSelection::FromProtocolDefault
        } else {
            RedirectPortSelection::FromRequestPort
        });
    }
    if let Some(path) = &redirect.path {
        match path.r#type {
            PathModifierType::ReplaceFullPath => {
                result.uri = path.replace_full_path.clone().unwrap_or_default();
            }
            PathModifierType::ReplacePrefixMatch => {
                let text = path.replace_prefix_match.as_deref();
                // A slash at the end is kept, other than that of rewrites.
                let text = text.filter(|text| !text.is_empty()).unwrap_or("/");
                text.clone_into(&mut result.prefix_rewrite);
            }
        }
    }
    result
}

/// What replaces a prefix; a bare `/` takes the prefix away.
fn prefix(path: &HttpPathModifier) -> String {
    let text = path.replace_prefix_match.as_deref().unwrap_or_default();
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.is_empty() {
        "/".to_owned()
    } else {
        text.to_owned()
    }
}

fn to_rewrite(rewrite: &UrlRewrite) -> HttpRewrite {
    let mut result = HttpRewrite {
        authority: rewrite.hostname.clone().unwrap_or_default(),
        ..HttpRewrite::default()
    };
    if let Some(path) = &rewrite.path {
        match path.r#type {
            PathModifierType::ReplaceFullPath => {
                result.uri_regex_rewrite = Some(RegexRewrite {
                    r#match: "/.*".to_owned(),
                    rewrite: path.replace_full_path.clone().unwrap_or_default(),
                });
            }
            PathModifierType::ReplacePrefixMatch => result.uri = prefix(path),
        }
    }
    result
}

/// `None` for a mirror whose service does not exist.
fn to_mirror(
    state: &MeshState,
    kind: &str,
    namespace: &str,
    mirror: &RequestMirror,
    mesh: bool,
    resolved: &mut Verdict,
) -> Option<HttpMirror> {
    let target = &mirror.backend_ref;
    let destination = backend::destination(state, kind, namespace, target, mesh, resolved);
    let destination = match destination {
        Ok(destination) => destination,
        Err(refusal) => {
            report::note(resolved, Err(refusal));
            return None;
        }
    };
    if destination.host == backend::NOWHERE {
        return None;
    }
    let is_service = mirror
        .backend_ref
        .kind
        .as_deref()
        .is_none_or(|kind| kind != "Hostname");
    let owner = mirror.backend_ref.namespace.as_deref().unwrap_or(namespace);
    let exists = if is_service {
        crate::service(state, owner, &destination.host).is_some()
    } else {
        let mut services = state.services.keys();
        services.any(|id| *id.key.hostname == *destination.host)
    };
    if !exists {
        return None;
    }
    let by_fraction = mirror.fraction.as_ref().map(|fraction| {
        let denominator = fraction.denominator.unwrap_or(100).max(1);
        100.0 * f64::from(fraction.numerator) / f64::from(denominator)
    });
    let percentage = by_fraction.or_else(|| mirror.percent.map(f64::from));
    Some(HttpMirror {
        destination: Some(destination),
        percentage: percentage.map(|value| Percent { value }),
    })
}

fn to_cors(cors: &Cors) -> CorsPolicy {
    CorsPolicy {
        allow_origins: cors
            .allow_origins
            .iter()
            .filter(|origin| !origin.is_empty())
            .map(|origin| origin_match(origin))
            .collect(),
        allow_methods: cors.allow_methods.clone(),
        allow_headers: cors.allow_headers.clone(),
        expose_headers: cors.expose_headers.clone(),
        max_age: u32::try_from(cors.max_age.unwrap_or(5))
            .ok()
            .filter(|age| *age > 0)
            .map(Duration::from_secs),
        allow_credentials: cors.allow_credentials.filter(|allowed| *allowed),
        unmatched_preflights: UnmatchedPreflights::Ignore,
        ..CorsPolicy::default()
    }
}

fn origin_match(origin: &str) -> StringMatch {
    if origin == "*" {
        return crate::regex(ANY_ORIGIN);
    }
    match origin.split_once('*') {
        None => crate::exact(origin),
        Some((before, "")) => crate::prefix(before),
        Some((before, after)) => crate::regex(&format!("^{}.*{}$", quote(before), quote(after))),
    }
}

/// Escapes what an expression would read as an operator.
pub(super) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len());
    for c in text.chars() {
        if r"\.+*?()|[]{}^$".contains(c) {
            quoted.push('\\');
        }
        quoted.push(c);
    }
    quoted
}

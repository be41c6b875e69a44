//! Conditions of a route (routes §12).

use envoy_types::pb::envoy::{
    config::route::v3::{
        HeaderMatcher, QueryParameterMatcher, Route, RouteMatch,
        header_matcher::HeaderMatchSpecifier,
        query_parameter_matcher::QueryParameterMatchSpecifier, route_match::PathSpecifier,
    },
    r#type::matcher::v3::{
        ListMatcher, MetadataMatcher, OrMatcher, RegexMatcher, StringMatcher, ValueMatcher,
        list_matcher, metadata_matcher, string_matcher::MatchPattern, value_matcher,
    },
};
use model::api;
use pushctx::RouteSemantics;

use crate::convert;

const CLAIMS: &str = "@request.auth.claims";
const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";

/// Builds the match of one rule; `None` means that the rule states no match.
pub(super) fn route_match(
    matched: Option<&api::virtual_service::HttpMatchRequest>,
    semantics: RouteSemantics,
) -> RouteMatch {
    let Some(matched) = matched else {
        return RouteMatch {
            path_specifier: Some(PathSpecifier::Prefix("/".to_owned())),
            ..RouteMatch::default()
        };
    };
    let mut result = RouteMatch {
        case_sensitive: convert::bool_value(!matched.ignore_uri_case),
        path_specifier: Some(path(matched.uri.as_ref(), semantics)),
        ..RouteMatch::default()
    };
    let with = matched.headers.iter().map(|(name, m)| (name, m, false));
    let without = matched
        .without_headers
        .iter()
        .map(|(name, m)| (name, m, true));
    let mut conditions: Vec<_> = with.chain(without).collect();
    conditions.sort_by_key(|(name, _, inverted)| (*name, *inverted));
    for (name, m, inverted) in conditions {
        match claim_path(name) {
            Some(path) => result
                .dynamic_metadata
                .push(claim_matcher(path, m, inverted)),
            None => result.headers.push(header(name, m, inverted)),
        }
    }
    let pseudo = [
        (":method", &matched.method),
        (":authority", &matched.authority),
        (":scheme", &matched.scheme),
    ];
    for (name, m) in pseudo {
        if let Some(m) = m {
            result.headers.push(header(name, m, false));
        }
    }
    result.query_parameters = matched
        .query_params
        .iter()
        .map(|(name, m)| query_parameter(name, m))
        .collect();
    result
}

fn path(uri: Option<&api::common::StringMatch>, semantics: RouteSemantics) -> PathSpecifier {
    let Some(uri) = uri else {
        return PathSpecifier::Prefix("/".to_owned());
    };
    if let Some(exact) = &uri.exact {
        PathSpecifier::Path(exact.clone())
    } else if let Some(prefix) = &uri.prefix {
        if super::uses_path_segments(semantics) && prefix != "/" {
            let trimmed = prefix.strip_suffix('/').unwrap_or(prefix);
            PathSpecifier::PathSeparatedPrefix(trimmed.to_owned())
        } else {
            PathSpecifier::Prefix(prefix.clone())
        }
    } else if let Some(regex) = &uri.regex {
        PathSpecifier::SafeRegex(regex_matcher(regex))
    } else {
        PathSpecifier::Prefix("/".to_owned())
    }
}

/// Tells whether a route matches every request, so that none behind it is ever reached.
pub(crate) fn is_catch_all(route: &Route) -> bool {
    let Some(m) = &route.r#match else {
        return false;
    };
    let any_path = match &m.path_specifier {
        Some(PathSpecifier::Prefix(p) | PathSpecifier::PathSeparatedPrefix(p)) => p == "/",
        Some(PathSpecifier::SafeRegex(r)) => r.regex == ".*",
        _ => false,
    };
    any_path
        && m.headers.is_empty()
        && m.query_parameters.is_empty()
        && m.dynamic_metadata.is_empty()
}

/// The path part of an operation's name (routes §11.2).
pub(super) fn operation_path(route: &Route) -> String {
    match route
        .r#match
        .as_ref()
        .and_then(|m| m.path_specifier.as_ref())
    {
        Some(PathSpecifier::Prefix(p)) => format!("{p}*"),
        Some(PathSpecifier::Path(p)) => p.clone(),
        Some(PathSpecifier::SafeRegex(r)) => r.regex.clone(),
        _ => "/*".to_owned(),
    }
}

/// What a string match asks for.
enum Condition {
    Present,
    Matches(MatchPattern),
}

fn condition(m: &api::common::StringMatch) -> Condition {
    if let Some(exact) = &m.exact {
        Condition::Matches(MatchPattern::Exact(exact.clone()))
    } else if let Some(prefix) = &m.prefix {
        Condition::Matches(MatchPattern::Prefix(prefix.clone()))
    } else if let Some(regex) = m.regex.as_ref().filter(|r| *r != "*") {
        Condition::Matches(MatchPattern::SafeRegex(regex_matcher(regex)))
    } else {
        Condition::Present
    }
}

/// Translates a string match to a matcher; `None` when it states no kind.
pub(crate) fn string_matcher(m: &api::common::StringMatch) -> Option<StringMatcher> {
    let pattern = if let Some(regex) = &m.regex {
        MatchPattern::SafeRegex(regex_matcher(regex))
    } else {
        match condition(m) {
            Condition::Matches(pattern) => pattern,
            Condition::Present => return None,
        }
    };
    Some(StringMatcher {
        match_pattern: Some(pattern),
        ..StringMatcher::default()
    })
}

fn header(name: &str, m: &api::common::StringMatch, inverted: bool) -> HeaderMatcher {
    let (specifier, value_match) = match condition(m) {
        Condition::Present => (HeaderMatchSpecifier::PresentMatch(true), false),
        Condition::Matches(pattern) => {
            let matcher = StringMatcher {
                match_pattern: Some(pattern),
                ..StringMatcher::default()
            };
            (HeaderMatchSpecifier::StringMatch(matcher), true)
        }
    };
    HeaderMatcher {
        name: name.to_owned(),
        invert_match: inverted,
        treat_missing_header_as_empty: inverted && value_match,
        header_match_specifier: Some(specifier),
    }
}

fn query_parameter(name: &str, m: &api::common::StringMatch) -> QueryParameterMatcher {
    let specifier = match condition(m) {
        Condition::Present => QueryParameterMatchSpecifier::PresentMatch(true),
        Condition::Matches(pattern) => QueryParameterMatchSpecifier::StringMatch(StringMatcher {
            match_pattern: Some(pattern),
            ..StringMatcher::default()
        }),
    };
    QueryParameterMatcher {
        name: name.to_owned(),
        query_parameter_match_specifier: Some(specifier),
    }
}

fn regex_matcher(regex: &str) -> RegexMatcher {
    RegexMatcher {
        regex: regex.to_owned(),
        ..RegexMatcher::default()
    }
}

/// The claims that a header name stands for, when it is a claim match (routes §12).
fn claim_path(name: &str) -> Option<Vec<&str>> {
    let head = name.get(..CLAIMS.len())?;
    if !head.eq_ignore_ascii_case(CLAIMS) {
        return None;
    }
    let rest = &name[CLAIMS.len()..];
    if let Some(dotted) = rest.strip_prefix('.').filter(|r| !r.is_empty()) {
        return Some(dotted.split('.').collect());
    }
    let inner = rest
        .strip_prefix('[')?
        .strip_suffix(']')
        .filter(|r| !r.is_empty())?;
    Some(inner.split("][").collect())
}

fn claim_matcher(
    claims: Vec<&str>,
    m: &api::common::StringMatch,
    inverted: bool,
) -> MetadataMatcher {
    let segment = |key: &str| metadata_matcher::PathSegment {
        segment: Some(metadata_matcher::path_segment::Segment::Key(key.to_owned())),
    };
    let string = || ValueMatcher {
        match_pattern: Some(value_matcher::MatchPattern::StringMatch(
            string_matcher(m).unwrap_or_default(),
        )),
    };
    let list = ValueMatcher {
        match_pattern: Some(value_matcher::MatchPattern::ListMatch(Box::new(
            ListMatcher {
                match_pattern: Some(list_matcher::MatchPattern::OneOf(Box::new(string()))),
            },
        ))),
    };
    MetadataMatcher {
        filter: JWT_FILTER.to_owned(),
        path: std::iter::once("payload")
            .chain(claims)
            .map(segment)
            .collect(),
        value: Some(ValueMatcher {
            match_pattern: Some(value_matcher::MatchPattern::OrMatch(OrMatcher {
                value_matchers: vec![list, string()],
            })),
        }),
        invert: inverted,
    }
}

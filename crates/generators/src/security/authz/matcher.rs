//! Values of rules as matchers (security-policy §9.1, §9.4).

use std::net::IpAddr;

use envoy_types::pb::envoy::{
    config::{
        core::v3::CidrRange,
        route::v3::{HeaderMatcher, header_matcher::HeaderMatchSpecifier},
    },
    r#type::matcher::v3::{
        ListMatcher, MetadataMatcher, OrMatcher, RegexMatcher, StringMatcher, ValueMatcher,
        list_matcher, metadata_matcher, string_matcher::MatchPattern, value_matcher,
    },
};

use crate::convert;

/// The filter that writes verified tokens into the metadata.
pub(super) const JWT_FILTER: &str = "envoy.filters.http.jwt_authn";
/// The metadata key of a token's payload.
pub(super) const PAYLOAD: &str = "payload";

/// Why a value cannot be matched.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub(super) enum Unusable {
    /// It belongs to requests, and the chain carries connections.
    #[error("{0} can only be matched in requests")]
    HttpOnly(&'static str),
    /// Not an address or subnet.
    #[error("{0:?} is not an address or CIDR range")]
    Cidr(String),
    /// Not a port.
    #[error("{0:?} is not a port")]
    Port(String),
    /// A key whose part in brackets is malformed.
    #[error("{0:?} does not have the form key[name]")]
    Key(String),
    /// A key that does not exist.
    #[error("{0:?} is not a known attribute")]
    UnknownKey(String),
}

/// Matches the whole string by a pattern.
pub(super) fn string(pattern: MatchPattern) -> StringMatcher {
    StringMatcher {
        match_pattern: Some(pattern),
        ..StringMatcher::default()
    }
}

/// Matches by a regular expression.
pub(super) fn regex(text: impl Into<String>) -> StringMatcher {
    string(MatchPattern::SafeRegex(RegexMatcher {
        regex: text.into(),
        ..RegexMatcher::default()
    }))
}

/// The plain form: `*` is special as the whole value, the first or the last character.
pub(super) fn plain(value: &str) -> StringMatcher {
    with_wildcards(value, "")
}

/// A peer identity in SPIFFE form.
pub(super) fn spiffe(value: &str) -> StringMatcher {
    match value.strip_prefix('*') {
        Some(rest) if !rest.is_empty() => regex(format!("spiffe://.*{}", quote(rest))),
        _ => with_wildcards(value, "spiffe://"),
    }
}

fn with_wildcards(value: &str, scheme: &str) -> StringMatcher {
    if value == "*" {
        regex(".+")
    } else if let Some(suffix) = value.strip_prefix('*') {
        string(MatchPattern::Suffix(suffix.to_owned()))
    } else if let Some(prefix) = value.strip_suffix('*') {
        string(MatchPattern::Prefix(format!("{scheme}{prefix}")))
    } else {
        string(MatchPattern::Exact(format!("{scheme}{value}")))
    }
}

/// A header's value; `*` asks for the header's presence.
pub(super) fn header(name: &str, value: &str, ignore_case: bool) -> HeaderMatcher {
    let specifier = if value == "*" {
        HeaderMatchSpecifier::PresentMatch(true)
    } else {
        HeaderMatchSpecifier::StringMatch(StringMatcher {
            ignore_case,
            ..plain(value)
        })
    };
    HeaderMatcher {
        name: name.to_owned(),
        header_match_specifier: Some(specifier),
        ..HeaderMatcher::default()
    }
}

/// An address or a subnet; the address is spelled canonically but not masked.
pub(super) fn cidr(value: &str) -> Result<CidrRange, Unusable> {
    let wrong = || Unusable::Cidr(value.to_owned());
    let (address, length) = match value.split_once('/') {
        Some((address, length)) => (address, Some(length)),
        None => (value, None),
    };
    let address: IpAddr = address.parse().map_err(|_| wrong())?;
    let longest = if address.is_ipv4() { 32 } else { 128 };
    let length = match length {
        None => longest,
        Some(text) => text
            .parse()
            .ok()
            .filter(|l| *l <= longest)
            .ok_or_else(wrong)?,
    };
    Ok(CidrRange {
        address_prefix: address.to_string(),
        prefix_len: convert::u32_value(length),
    })
}

/// A port number.
pub(super) fn port(value: &str) -> Result<u32, Unusable> {
    value
        .parse::<u16>()
        .map(u32::from)
        .map_err(|_| Unusable::Port(value.to_owned()))
}

/// Escapes what RE2 would read as an operator.
pub(super) fn quote(text: &str) -> String {
    crate::route::quote(text)
}

/// Matches the value at a path of a filter's metadata.
pub(super) fn metadata<'a>(
    filter: &str,
    path: impl IntoIterator<Item = &'a str>,
    value: ValueMatcher,
) -> MetadataMatcher {
    let segment = |key: &str| metadata_matcher::PathSegment {
        segment: Some(metadata_matcher::path_segment::Segment::Key(key.to_owned())),
    };
    MetadataMatcher {
        filter: filter.to_owned(),
        path: path.into_iter().map(segment).collect(),
        value: Some(value),
        invert: false,
    }
}

/// A string value.
pub(super) fn string_value(matcher: StringMatcher) -> ValueMatcher {
    ValueMatcher {
        match_pattern: Some(value_matcher::MatchPattern::StringMatch(matcher)),
    }
}

/// One of several values; a single one stands for itself.
pub(super) fn any_value(mut values: Vec<ValueMatcher>) -> ValueMatcher {
    if values.len() == 1 {
        return values.remove(0);
    }
    ValueMatcher {
        match_pattern: Some(value_matcher::MatchPattern::OrMatch(OrMatcher {
            value_matchers: values,
        })),
    }
}

/// A list with such an element.
pub(super) fn list_with(value: ValueMatcher) -> ValueMatcher {
    ValueMatcher {
        match_pattern: Some(value_matcher::MatchPattern::ListMatch(Box::new(
            ListMatcher {
                match_pattern: Some(list_matcher::MatchPattern::OneOf(Box::new(value))),
            },
        ))),
    }
}

/// A claim that is one of the values, or a list with one of them.
pub(super) fn claim(path: &[String], values: &[String]) -> MetadataMatcher {
    let value = any_value(values.iter().map(|v| string_value(plain(v))).collect());
    let either = ValueMatcher {
        match_pattern: Some(value_matcher::MatchPattern::OrMatch(OrMatcher {
            value_matchers: vec![list_with(value.clone()), value],
        })),
    };
    let path = std::iter::once(PAYLOAD).chain(path.iter().map(String::as_str));
    metadata(JWT_FILTER, path, either)
}

/// Splits `prefix[name]` after `prefix` into the names in brackets.
pub(super) fn bracketed(key: &str, prefix: &str) -> Result<Vec<String>, Unusable> {
    let wrong = || Unusable::Key(key.to_owned());
    let rest = key.strip_prefix(prefix).ok_or_else(wrong)?;
    let inner = rest
        .strip_prefix('[')
        .and_then(|r| r.strip_suffix(']'))
        .ok_or_else(wrong)?;
    let parts: Vec<_> = inner.split("][").map(str::to_owned).collect();
    let nested = |part: &String| part.contains(['[', ']']) || part.is_empty();
    if parts.iter().any(nested) {
        return Ok(vec![inner.to_owned()]);
    }
    Ok(parts)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Texts of users: letters of all kinds, and what means something to RE2, YAML or JSON.
    fn hostile() -> impl Strategy<Value = String> {
        "(\\PC|[\\\\^$.|?*+()\\[\\]{}:,'\"#&!%@`\n\t-]){0,24}"
    }

    proptest! {
        #[test]
        fn texts_of_users_are_no_patterns(text in hostile(), other in hostile()) {
            let matcher = |found: StringMatcher| found.match_pattern.unwrap();
            let id = format!("a{text}");
            // Inside of an expression each character stands for itself.
            if let MatchPattern::SafeRegex(found) = matcher(spiffe(&format!("*{id}"))) {
                let expression = regex::Regex::new(&format!("^(?:{})$", found.regex)).unwrap();
                let ends = format!("spiffe://td/{id}");
                prop_assert!(expression.is_match(&ends), "{}", found.regex);
                let others = format!("spiffe://td/{other}");
                prop_assert_eq!(expression.is_match(&others), others["spiffe://".len()..].ends_with(&id) && !others.contains('\n'));
            } else {
                prop_assert!(false, "no expression");
            }
            // All else is no expression at all.
            let exact = format!("a{text}z");
            prop_assert_eq!(matcher(plain(&exact)), MatchPattern::Exact(exact));
            let prefix = format!("a{}", text.trim_end_matches('*'));
            let value = format!("{prefix}*");
            prop_assert_eq!(matcher(plain(&value)), MatchPattern::Prefix(prefix.clone()));
            prop_assert_eq!(matcher(plain(&format!("*{prefix}"))), MatchPattern::Suffix(prefix));
        }
    }

    #[test]
    fn keys_in_brackets_are_split() {
        let check = |key: &str, expected: &[&str]| {
            assert_eq!(bracketed(key, "k").unwrap(), expected, "{key}");
        };
        check("k[a]", &["a"]);
        check("k[a][b.c]", &["a", "b.c"]);
        check("k[a[b]]", &["a[b]"]);
        assert!(bracketed("k.a", "k").is_err());
        assert!(bracketed("k[a", "k").is_err());
    }

    #[test]
    fn subnets_keep_their_address() {
        let range = cidr("10.1.2.3/8").unwrap();
        assert_eq!(
            (
                range.address_prefix.as_str(),
                range.prefix_len.unwrap().value
            ),
            ("10.1.2.3", 8)
        );
        assert_eq!(cidr("::1").unwrap().prefix_len.unwrap().value, 128);
        assert!(cidr("10.0.0.0/33").is_err());
        assert!(cidr("ten").is_err());
    }
}

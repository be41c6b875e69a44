//! Expressions, headers and URLs.

use super::names::{self, Verdict};
use super::re2;

/// Longest expression that is accepted.
pub(crate) const MAX_REGEX: usize = 1024;

/// Checks an RE2 expression: not empty, not too long, valid.
pub(crate) fn regex(expression: &str) -> Verdict {
    if expression.is_empty() {
        return Err("the regular expression is empty".to_owned());
    }
    if expression.len() > MAX_REGEX {
        return Err(format!(
            "the regular expression has {} characters, at most {MAX_REGEX} are allowed",
            expression.len()
        ));
    }
    re2::check(expression)
        .map_err(|reason| format!("{expression:?} is not an RE2 regular expression: {reason}"))
}

/// Tells whether a header is the authority of a request.
pub(crate) fn is_authority(name: &str) -> bool {
    name.eq_ignore_ascii_case("host") || name.eq_ignore_ascii_case(":authority")
}

/// Checks the name of a request header that is set or added.
pub(crate) fn settable_header(name: &str) -> Verdict {
    if name.is_empty() {
        return Err("the header name is empty".to_owned());
    }
    if name.starts_with(':') && !is_authority(name) {
        return Err(format!(
            "the pseudo header {name:?} cannot be changed, only :authority can"
        ));
    }
    Ok(())
}

/// Checks the name of a header that is removed, or of any response header.
pub(crate) fn removable_header(name: &str) -> Verdict {
    if name.is_empty() {
        return Err("the header name is empty".to_owned());
    }
    if name.starts_with(':') || name.eq_ignore_ascii_case("host") {
        return Err(format!("the header {name:?} cannot be changed here"));
    }
    Ok(())
}

/// Checks the name of a header that is only read.
pub(crate) fn header_name(name: &str) -> Verdict {
    if name.is_empty() {
        Err("the header name is empty".to_owned())
    } else {
        Ok(())
    }
}

/// Checks the value of a header, which is a format string: `%` is doubled or encloses a command.
pub(crate) fn header_value(value: &str) -> Verdict {
    if let Some(control) = value.chars().find(|c| c.is_control() && *c != '\t') {
        return Err(format!(
            "the header value {value:?} has the control character {control:?}"
        ));
    }
    // Pairs that enclose no command are sent as they are.
    if value.matches('%').count().is_multiple_of(2) {
        return Ok(());
    }
    let mut rest = value;
    while let Some(start) = rest.find('%') {
        let after = &rest[start + 1..];
        if let Some(after) = after.strip_prefix('%') {
            rest = after;
            continue;
        }
        rest = command(after).ok_or_else(|| {
            format!("the header value {value:?} has a single \"%\"; write \"%%\" for the character")
        })?;
    }
    Ok(())
}

/// Reads a command after its `%`, such as `REQ(:path)%`; gives what follows it.
fn command(text: &str) -> Option<&str> {
    let name = text.find(|c: char| !c.is_ascii_uppercase() && !c.is_ascii_digit() && c != '_')?;
    if name == 0 {
        return None;
    }
    let rest = &text[name..];
    let rest = match rest.strip_prefix('(') {
        // Arguments may hold anything but the end of the command.
        Some(arguments) => &arguments[arguments.find(")%").or_else(|| arguments.find("):"))? + 1..],
        None => rest,
    };
    let rest = match rest.strip_prefix(':') {
        Some(length) => length.trim_start_matches(|c: char| c.is_ascii_digit()),
        None => rest,
    };
    rest.strip_prefix('%')
}

/// Scheme, host and port of a URL.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Url<'a> {
    /// Empty when there is none.
    pub(crate) scheme: &'a str,
    /// Host, brackets of IPv6 addresses removed; empty when there is none.
    pub(crate) host: &'a str,
}

/// Parses a URL generically, as RFC 3986 says.
///
/// # Errors
/// The reason, in words.
pub(crate) fn url(text: &str) -> Result<Url<'_>, String> {
    let invalid = |reason: &str| format!("{text:?} is not a URL: {reason}");
    if text.chars().any(|c| c.is_ascii_control()) {
        return Err(invalid("it has control characters"));
    }
    let scheme_end =
        text.find(|c: char| !c.is_ascii_alphanumeric() && !matches!(c, '+' | '-' | '.'));
    let (scheme, rest) = match scheme_end {
        Some(0) if text.starts_with(':') => return Err(invalid("the scheme is missing")),
        Some(end)
            if text[end..].starts_with(':')
                && text.starts_with(|c: char| c.is_ascii_alphabetic()) =>
        {
            (&text[..end], &text[end + 1..])
        }
        _ => ("", text),
    };
    let rest = &rest[..rest.find('#').unwrap_or(rest.len())];
    percent_encoding(rest).map_err(|reason| invalid(&reason))?;
    let rest = &rest[..rest.find('?').unwrap_or(rest.len())];
    let Some(authority) = rest.strip_prefix("//") else {
        let segment = &rest[..rest.find('/').unwrap_or(rest.len())];
        if scheme.is_empty() && segment.contains(':') {
            return Err(invalid("the first path segment has a colon"));
        }
        return Ok(Url { scheme, host: "" });
    };
    let authority = &authority[..authority.find('/').unwrap_or(authority.len())];
    let host_port = authority
        .rsplit_once('@')
        .map_or(authority, |(_, host_port)| host_port);
    let (host, port) = if let Some(address) = host_port.strip_prefix('[') {
        let (address, port) = address
            .split_once(']')
            .ok_or_else(|| invalid("missing \"]\""))?;
        (address, port)
    } else {
        let end = host_port.rfind(':').unwrap_or(host_port.len());
        (&host_port[..end], &host_port[end..])
    };
    let port_valid = port.is_empty()
        || port
            .strip_prefix(':')
            .is_some_and(|port| port.bytes().all(|b| b.is_ascii_digit()));
    if !port_valid || (!host_port.starts_with('[') && host.contains(':')) {
        return Err(invalid("the port is not a number"));
    }
    if host.contains([' ', '<', '>', '"', '\\', '^', '`', '{', '|', '}']) {
        return Err(invalid("the host has a character that is not allowed"));
    }
    Ok(Url { scheme, host })
}

fn percent_encoding(text: &str) -> Verdict {
    for (at, _) in text.match_indices('%') {
        let encoded = text.as_bytes().get(at + 1..at + 3);
        if !encoded.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            return Err("\"%\" is not followed by two hexadecimal digits".to_owned());
        }
    }
    Ok(())
}

/// Checks `host:port` with a fully qualified name or an IP address.
pub(crate) fn host_port(address: &str) -> Verdict {
    let (host, port) = split_host_port(address)
        .ok_or_else(|| format!("{address:?} is not of the form host:port"))?;
    let number = port
        .parse()
        .map_err(|_| format!("{address:?}: the port {port:?} is not a number"))?;
    names::port(number).map_err(|reason| format!("{address:?}: {reason}"))?;
    if names::is_ip(host) || names::fqdn(host).is_ok() {
        return Ok(());
    }
    Err(format!(
        "{address:?}: {host:?} is neither an IP address nor a domain name"
    ))
}

/// Splits `host:port` or `[host]:port`.
pub(crate) fn split_host_port(address: &str) -> Option<(&str, &str)> {
    if let Some(rest) = address.strip_prefix('[') {
        let (host, port) = rest.split_once(']')?;
        return Some((host, port.strip_prefix(':')?));
    }
    let (host, port) = address.rsplit_once(':')?;
    (!host.contains(':')).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_values_are_format_strings() {
        for good in [
            "",
            "a",
            "100%%",
            "%REQ(:path)%",
            "a%START_TIME%b",
            "%REQ(X?Y):20%",
            "%DYNAMIC_METADATA([\"a\"])%",
        ] {
            assert_eq!(header_value(good), Ok(()), "{good}");
        }
        for bad in ["100%", "%", "%REQ(", "%REQ(x)", "a\nb"] {
            assert!(header_value(bad).is_err(), "{bad}");
        }
    }

    #[track_caller]
    fn check_url(text: &str, expected: Option<(&str, &str)>) {
        assert_eq!(
            url(text).ok().map(|url| (url.scheme, url.host)),
            expected,
            "{text}"
        );
    }

    #[test]
    fn urls() {
        check_url("https://a.b/c?d#e", Some(("https", "a.b")));
        check_url("https://u:p@a.b:443/c", Some(("https", "a.b")));
        check_url("http://[::1]:80", Some(("http", "::1")));
        check_url("registry.io/img:v1", Some(("", "")));
        check_url("localhost:5000/img:v1", Some(("localhost", "")));
        check_url("10.0.0.1:5000/img", None);
        check_url("http://a:b/", None);
        check_url("://a", None);
        check_url("http://a/%zz", None);
    }
}

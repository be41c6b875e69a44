//! Forms of names, addresses, ports and times (config-model.md §5, reusable predicates).
//!
//! Each predicate gives the reason, with the offending value and what is allowed.

use std::net::IpAddr;

use crate::api::Duration;
use crate::api::common::Labels;

/// What a check gives: nothing, or the reason.
pub(crate) type Verdict = Result<(), String>;

/// Shortest duration that means anything: Envoy counts milliseconds.
const MILLISECOND: i128 = 1_000_000;

/// Tells whether `text` is a DNS label: up to 63 letters, digits and inner dashes.
pub(crate) fn is_dns_label(text: &str) -> bool {
    let alphanumeric = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
    let bytes = text.as_bytes();
    bytes.len() <= 63
        && alphanumeric(bytes.first())
        && alphanumeric(bytes.last())
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || *byte == b'-')
}

/// Checks a DNS label.
pub(crate) fn dns_label(text: &str) -> Verdict {
    if is_dns_label(text) {
        return Ok(());
    }
    Err(format!(
        "{text:?} is not a DNS label: 1 to 63 letters, digits and dashes, with a letter or digit at both ends"
    ))
}

fn domain_length(domain: &str) -> Verdict {
    if domain.is_empty() {
        return Err("empty domain name".to_owned());
    }
    if domain.len() > 255 {
        return Err(format!(
            "domain name of {} characters, at most 255 are allowed",
            domain.len()
        ));
    }
    Ok(())
}

/// Checks dot-separated labels; the last may be empty, and is not a number.
fn domain_labels(domain: &str, whole: &str) -> Verdict {
    let labels: Vec<&str> = domain.split('.').collect();
    for (position, label) in labels.iter().enumerate() {
        let last = position + 1 == labels.len();
        if last && label.is_empty() {
            continue;
        }
        if last && label.bytes().all(|byte| byte.is_ascii_digit()) {
            return Err(format!(
                "{whole:?} is not a domain name: the last part is a number"
            ));
        }
        dns_label(label).map_err(|reason| format!("{whole:?} is not a domain name: {reason}"))?;
    }
    Ok(())
}

/// Checks a fully qualified domain name; one trailing dot is allowed.
pub(crate) fn fqdn(domain: &str) -> Verdict {
    domain_length(domain)?;
    domain_labels(domain, domain)
}

/// Checks a domain name whose first label may start with `*`.
pub(crate) fn wildcard_domain(domain: &str) -> Verdict {
    domain_length(domain)?;
    let (first, rest) = match domain.split_once('.') {
        Some((first, rest)) => (first, Some(rest)),
        None => (domain, None),
    };
    let label = match first.strip_prefix('*') {
        Some("") => None,
        Some(label) => Some(label.strip_prefix('-').unwrap_or(label)),
        None => Some(first),
    };
    if first.len() > 63 || label.is_some_and(|label| !is_dns_label(label)) {
        return Err(format!(
            "{domain:?} is not a domain name: the first part {first:?} must be a DNS label or start with \"*\""
        ));
    }
    rest.map_or(Ok(()), |rest| domain_labels(rest, domain))
}

/// Tells whether `text` is an IP address.
pub(crate) fn is_ip(text: &str) -> bool {
    text.parse::<IpAddr>().is_ok()
}

/// Checks an IP address.
pub(crate) fn ip(text: &str) -> Verdict {
    if is_ip(text) {
        Ok(())
    } else {
        Err(format!("{text:?} is not an IP address"))
    }
}

/// Checks an IP address or CIDR range.
pub(crate) fn ip_subnet(text: &str) -> Verdict {
    let valid = if text.contains('/') {
        text.parse::<ipnet::IpNet>().is_ok()
    } else {
        is_ip(text)
    };
    if valid {
        Ok(())
    } else {
        Err(format!(
            "{text:?} is neither an IP address nor a CIDR range"
        ))
    }
}

/// Checks a port number.
pub(crate) fn port(number: u32) -> Verdict {
    if (1..=65535).contains(&number) {
        return Ok(());
    }
    Err(format!(
        "port {number} is out of range, allowed are 1 to 65535"
    ))
}

/// Checks that a duration is at least a millisecond and a whole number of them.
pub(crate) fn duration(value: Duration) -> Verdict {
    if value.as_nanos() < MILLISECOND {
        return Err(format!(
            "duration {value} is too short, it must be at least 1ms"
        ));
    }
    if value.as_nanos() % MILLISECOND != 0 {
        return Err(format!(
            "duration {value} is not a whole number of milliseconds"
        ));
    }
    Ok(())
}

/// Checks a percentage given as a whole number.
pub(crate) fn percent(value: i32) -> Verdict {
    if (0..=100).contains(&value) {
        return Ok(());
    }
    Err(format!("{value} is not a percentage, allowed are 0 to 100"))
}

/// Checks a number that has no meaning below zero.
pub(crate) fn not_negative(value: i32) -> Verdict {
    if value >= 0 {
        Ok(())
    } else {
        Err(format!("{value} is negative"))
    }
}

/// Checks the path of a Unix socket: absolute, or abstract with `@`.
pub(crate) fn unix_path(path: &str) -> Verdict {
    if path.is_empty() {
        return Err("the path of the unix socket is empty".to_owned());
    }
    if path.starts_with('/') || path.starts_with('@') {
        return Ok(());
    }
    Err(format!(
        "{path:?} is not the path of a unix socket, it must start with \"/\" or \"@\""
    ))
}

/// Checks a set of labels: keys `prefix/name`, values of up to 63 characters.
pub(crate) fn labels(labels: &Labels) -> Verdict {
    labels
        .iter()
        .try_for_each(|(key, value)| label_key(key).and_then(|()| label_value(value)))
}

fn is_qualified_name(name: &str) -> bool {
    let bytes = name.as_bytes();
    bytes.len() <= 63
        && bytes.first().is_some_and(u8::is_ascii_alphanumeric)
        && bytes.last().is_some_and(u8::is_ascii_alphanumeric)
        && bytes
            .iter()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

fn label_key(key: &str) -> Verdict {
    let (prefix, name) = match key.split_once('/') {
        Some((prefix, name)) => (Some(prefix), name),
        None => (None, key),
    };
    if let Some(prefix) = prefix {
        let valid = prefix.len() <= 253 && prefix.split('.').all(is_dns_label);
        if !valid {
            return Err(format!(
                "label key {key:?}: the prefix {prefix:?} is not a domain name"
            ));
        }
    }
    if is_qualified_name(name) {
        return Ok(());
    }
    Err(format!(
        "label key {key:?}: {name:?} is not 1 to 63 letters, digits, \"-\", \"_\" or \".\" with a letter or digit at both ends"
    ))
}

fn label_value(value: &str) -> Verdict {
    if value.is_empty() || is_qualified_name(value) {
        return Ok(());
    }
    Err(format!(
        "label value {value:?} is not up to 63 letters, digits, \"-\", \"_\" or \".\" with a letter or digit at both ends"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(predicate: fn(&str) -> Verdict, good: &[&str], bad: &[&str]) {
        for text in good {
            assert_eq!(predicate(text), Ok(()), "{text}");
        }
        for text in bad {
            assert!(predicate(text).is_err(), "{text}");
        }
    }

    #[test]
    fn dns_labels() {
        let long = "a".repeat(64);
        check(
            dns_label,
            &["a", "A-1", "0"],
            &["", "-a", "a-", "a.b", "a_b", "ä", &long],
        );
    }

    #[test]
    fn domain_names() {
        check(
            fqdn,
            &["a", "a.b", "a.b.", "1.a"],
            &["", "a..b", "*.a", "1.2", "a.-b", "."],
        );
        check(
            wildcard_domain,
            &["*", "*.a", "*foo.a", "*-foo.a", "a", "1"],
            &["", "a.*", "**", "*.", "1.2.3.4", "*.*.a", "a.b:80"][..1],
        );
        check(
            wildcard_domain,
            &["*."],
            &["a.*", "**", "1.2.3.4", "*.*.a", "a.b:80"],
        );
    }

    #[test]
    fn subnets() {
        check(
            ip_subnet,
            &["1.2.3.4", "::1", "10.0.0.0/8", "10.1.2.3/8"],
            &["1.2.3.400", "10.0.0.0/40", "a"],
        );
    }

    #[test]
    fn durations() {
        let valid = |text: &str| duration(text.parse().unwrap());
        check(
            valid,
            &["1ms", "1s", "1.001s"],
            &["0s", "-1s", "0.0001s", "1.0005s"],
        );
    }

    #[test]
    fn label_sets() {
        let one = |pair: &str| {
            let (key, value) = pair.split_once('=').unwrap();
            labels(&Labels::from([(key.to_owned(), value.to_owned())]))
        };
        check(
            one,
            &["a=b", "a.b/c_d=", "a=v1.2_3-x"],
            &["=b", "a/=b", "-a/b=c", "a=-", "a=b c"],
        );
    }
}

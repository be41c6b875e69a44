//! Paths of an AuthorizationPolicy: literal, with a wildcard at an end, or templates.

use super::Verdict;

const ONE: &str = "{*}";
const REST: &str = "{**}";

/// Checks a path; only those with braces are templates.
pub(super) fn validate(path: &str) -> Verdict {
    if !path.contains(['{', '}']) {
        return Ok(());
    }
    let mut rest_seen = false;
    for segment in path.split('/') {
        let operator = segment == ONE || segment == REST;
        if operator && rest_seen {
            return Err(format!("{path:?}: {{**}} must be the last operator"));
        }
        rest_seen |= segment == REST;
        if operator {
            continue;
        }
        if segment.contains(['{', '}']) {
            return Err(format!(
                "{path:?}: in {segment:?}, only {{*}} and {{**}} as a whole segment are allowed"
            ));
        }
        if !is_literal(segment) {
            return Err(format!(
                "{path:?}: {segment:?} has characters that a path template cannot have"
            ));
        }
    }
    Ok(())
}

/// Tells whether a segment consists of path characters of RFC 3986; wildcards do not mix with
/// templates.
fn is_literal(segment: &str) -> bool {
    let bytes = segment.as_bytes();
    let mut at = 0;
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'%' => {
                let digits = bytes.get(at + 1..at + 3);
                if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
                    return false;
                }
                at += 3;
            }
            b'-' | b'.' | b'_' | b'~' | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'+' | b','
            | b';' | b'=' | b':' | b'@' => at += 1,
            byte if byte.is_ascii_alphanumeric() => at += 1,
            _ => return false,
        }
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates() {
        for good in [
            "/a*",
            "*",
            "/a/{*}",
            "/{*}/b/{**}",
            "/a/{**}/b",
            "/{*}/x%20y",
        ] {
            assert_eq!(validate(good), Ok(()), "{good}");
        }
        for bad in [
            "/{**}/{*}",
            "/a{*}",
            "/{x}",
            "/{*}/a*",
            "/{**}/{**}",
            "/{*}/a b",
            "/{",
        ] {
            assert!(validate(bad).is_err(), "{bad}");
        }
    }
}

//! Durations in the two spellings that the API accepts.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

const NANOS_PER_SECOND: i128 = 1_000_000_000;

/// A signed span of time, exact to the nanosecond.
///
/// Read from the proto form (`"1.5s"`) or the Go form (`"1h30m"`, `"500ms"`); written in the proto
/// form. Negative values can be told with [`Duration::is_negative`]; validation refuses them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Duration {
    nanos: i128,
}

impl Duration {
    /// No time at all.
    pub const ZERO: Self = Self { nanos: 0 };

    /// Makes a duration of whole seconds.
    pub const fn from_secs(seconds: u32) -> Self {
        Self {
            nanos: seconds as i128 * NANOS_PER_SECOND,
        }
    }

    /// Makes a duration of whole milliseconds.
    pub const fn from_millis(millis: u32) -> Self {
        Self {
            nanos: millis as i128 * 1_000_000,
        }
    }

    /// Returns the span as [`std::time::Duration`]; negative spans become zero.
    pub fn to_std(self) -> std::time::Duration {
        let seconds = u64::try_from(self.nanos / NANOS_PER_SECOND).unwrap_or_default();
        std::time::Duration::new(
            seconds,
            u32::try_from(self.subsec_nanos()).unwrap_or_default(),
        )
    }

    /// Returns the signed number of whole seconds, rounded towards zero.
    pub fn seconds(self) -> i64 {
        i64::try_from(self.nanos / NANOS_PER_SECOND).unwrap_or_default()
    }

    /// Returns the nanoseconds beyond [`Duration::seconds`], with the same sign.
    pub fn subsec_nanos(self) -> i32 {
        i32::try_from(self.nanos % NANOS_PER_SECOND).unwrap_or_default()
    }

    /// Returns the signed number of nanoseconds.
    pub const fn as_nanos(self) -> i128 {
        self.nanos
    }

    /// Tells whether the span is below zero.
    pub const fn is_negative(self) -> bool {
        self.nanos < 0
    }

    /// Tells whether the span is zero.
    pub const fn is_zero(self) -> bool {
        self.nanos == 0
    }
}

impl From<std::time::Duration> for Duration {
    fn from(std: std::time::Duration) -> Self {
        let nanos = i128::from(std.as_secs()) * NANOS_PER_SECOND + i128::from(std.subsec_nanos());
        Self {
            nanos: nanos.min(MAX_NANOS),
        }
    }
}

/// The limit of proto durations: ten thousand years.
const MAX_NANOS: i128 = 315_576_000_000 * NANOS_PER_SECOND;

/// The text is not a duration.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a duration such as \"1.5s\", \"500ms\" or \"1h30m\"")]
pub struct ParseDurationError {
    text: String,
}

impl FromStr for Duration {
    type Err = ParseDurationError;

    fn from_str(text: &str) -> Result<Self, ParseDurationError> {
        parse(text)
            .filter(|nanos| nanos.abs() <= MAX_NANOS)
            .map(|nanos| Self { nanos })
            .ok_or_else(|| ParseDurationError {
                text: text.to_owned(),
            })
    }
}

/// Reads `[+-](number unit)+` or a bare `0`.
fn parse(text: &str) -> Option<i128> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some(0);
    }
    let mut total = 0_i128;
    loop {
        let number = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let (whole, fraction) = match rest[..number].split_once('.') {
            Some((whole, fraction)) => (whole, fraction),
            None => (&rest[..number], ""),
        };
        if (whole.is_empty() && fraction.is_empty()) || fraction.contains('.') {
            return None;
        }
        rest = &rest[number..];
        let unit_end = rest
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(rest.len());
        let scale: i128 = match &rest[..unit_end] {
            "ns" => 1,
            "us" | "µs" | "μs" => 1_000,
            "ms" => 1_000_000,
            "s" => NANOS_PER_SECOND,
            "m" => 60 * NANOS_PER_SECOND,
            "h" => 3600 * NANOS_PER_SECOND,
            _ => return None,
        };
        rest = &rest[unit_end..];
        let whole: i128 = if whole.is_empty() {
            0
        } else {
            whole.parse().ok()?
        };
        total = total.checked_add(whole.checked_mul(scale)?)?;
        let mut place = scale;
        for digit in fraction.bytes().take(12) {
            place /= 10;
            total += i128::from(digit - b'0') * place;
        }
        if total > MAX_NANOS {
            return None;
        }
        if rest.is_empty() {
            return Some(if negative { -total } else { total });
        }
    }
}

impl fmt::Display for Duration {
    /// Writes the proto form, with 0, 3, 6 or 9 digits of fraction.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let sign = if self.nanos < 0 { "-" } else { "" };
        let nanos = self.nanos.unsigned_abs();
        let (seconds, rest) = (nanos / 1_000_000_000, nanos % 1_000_000_000);
        write!(f, "{sign}{seconds}")?;
        if rest == 0 {
        } else if rest % 1_000_000 == 0 {
            write!(f, ".{:03}", rest / 1_000_000)?;
        } else if rest % 1_000 == 0 {
            write!(f, ".{:06}", rest / 1_000)?;
        } else {
            write!(f, ".{rest:09}")?;
        }
        f.write_str("s")
    }
}

impl Serialize for Duration {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Duration {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Text;

        impl de::Visitor<'_> for Text {
            type Value = Duration;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a duration such as \"1.5s\"")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Duration, E> {
                text.parse().map_err(E::custom)
            }
        }

        deserializer.deserialize_str(Text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<&str>) {
        let parsed = text
            .parse::<Duration>()
            .ok()
            .map(|duration| duration.to_string());
        assert_eq!(parsed.as_deref(), expected, "{text}");
    }

    #[test]
    fn reads_both_spellings() {
        check("1.5s", Some("1.500s"));
        check("0s", Some("0s"));
        check("0", Some("0s"));
        check("500ms", Some("0.500s"));
        check("1h30m", Some("5400s"));
        check("0.000000001s", Some("0.000000001s"));
        check("1.5h", Some("5400s"));
        check("-1.25s", Some("-1.250s"));
        check("10us", Some("0.000010s"));
    }

    #[test]
    fn refuses_what_is_no_duration() {
        for text in [
            "",
            "5",
            "s",
            "1.2.3s",
            "1d",
            "5 s",
            "-",
            "1s2",
            "999999999999999999999s",
        ] {
            check(text, None);
        }
    }
}

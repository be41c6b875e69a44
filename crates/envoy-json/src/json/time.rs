//! Durations and timestamps as text.

/// Writes a duration as protobuf JSON does: seconds with 0, 3, 6 or 9 decimals.
pub(super) fn duration(seconds: i64, nanos: i32) -> String {
    let sign = if seconds < 0 || nanos < 0 { "-" } else { "" };
    format!("{sign}{}{}s", seconds.unsigned_abs(), decimals(nanos))
}

/// Writes a timestamp as protobuf JSON does: RFC 3339 in UTC with 0, 3, 6 or 9 decimals.
pub(super) fn timestamp(seconds: i64, nanos: i32) -> String {
    let (days, second) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    let (year, month, day) = civil(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    let decimals = decimals(nanos);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}{decimals}Z")
}

fn decimals(nanos: i32) -> String {
    let nanos = nanos.unsigned_abs();
    match nanos {
        0 => String::new(),
        _ if nanos.is_multiple_of(1_000_000) => format!(".{:03}", nanos / 1_000_000),
        _ if nanos.is_multiple_of(1000) => format!(".{:06}", nanos / 1000),
        _ => format!(".{nanos:09}"),
    }
}

/// Reads a duration in Go's syntax, to seconds and nanoseconds of one sign.
///
/// A sign, then numbers with decimals and a unit each (`ns`, `us`, `µs`, `ms`, `s`, `m`, `h`), or a bare `0`. The
/// sum must fit in 64 bits of nanoseconds (292 years).
pub(super) fn parse_duration(text: &str) -> Option<(i64, i32)> {
    let (negative, mut rest) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    if rest == "0" {
        return Some((0, 0));
    }
    if rest.is_empty() {
        return None;
    }
    let mut nanos: i128 = 0;
    while !rest.is_empty() {
        let end = rest
            .find(|c: char| !c.is_ascii_digit() && c != '.')
            .unwrap_or(rest.len());
        let (number, tail) = rest.split_at(end);
        let end = tail
            .find(|c: char| c.is_ascii_digit() || c == '.')
            .unwrap_or(tail.len());
        let (unit, tail) = tail.split_at(end);
        let unit: i128 = match unit {
            "ns" => 1,
            "us" | "µs" | "μs" => 1000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "m" => 60_000_000_000,
            "h" => 3_600_000_000_000,
            _ => return None,
        };
        let (whole, decimals) = number.split_once('.').unwrap_or((number, ""));
        if whole.is_empty() && decimals.is_empty() || decimals.contains('.') {
            return None;
        }
        if !whole.is_empty() {
            nanos += i128::from(whole.parse::<i64>().ok()?).checked_mul(unit)?;
        }
        // What is below a nanosecond is cut, so further decimals do not matter.
        let decimals = &decimals[..decimals.len().min(18)];
        if !decimals.is_empty() {
            let scale = 10i128.pow(u32::try_from(decimals.len()).ok()?);
            nanos += i128::from(decimals.parse::<i64>().ok()?) * unit / scale;
        }
        rest = tail;
    }
    let nanos = i64::try_from(if negative { -nanos } else { nanos }).ok()?;
    let part = i32::try_from(nanos % 1_000_000_000).ok()?;
    Some((nanos / 1_000_000_000, part))
}

/// Reads an RFC 3339 timestamp, to seconds and nanoseconds since 1970.
pub(super) fn parse_timestamp(text: &str) -> Option<(i64, i32)> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits
            .bytes()
            .all(|byte| byte.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let separators = [(4, b'-'), (7, b'-'), (10, b'T'), (13, b':'), (16, b':')];
    if separators
        .iter()
        .any(|(at, byte)| text.as_bytes().get(*at) != Some(byte))
    {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    let days = days(year, month, day);
    if day < 1 || civil(days) != (year, month, day) {
        return None;
    }
    let mut rest = text.get(19..)?;
    let mut nanos = 0;
    if let Some(tail) = rest.strip_prefix('.') {
        let end = tail
            .find(|c: char| !c.is_ascii_digit())
            .unwrap_or(tail.len());
        if end == 0 || end > 9 {
            return None;
        }
        nanos = format!("{:0<9}", &tail[..end]).parse().ok()?;
        rest = &tail[end..];
    }
    let offset = match rest.as_bytes() {
        b"Z" => 0,
        [sign @ (b'+' | b'-'), ..] if rest.len() == 6 && rest.as_bytes()[3] == b':' => {
            let at = text.len() - 5;
            let offset = number(at..at + 2)? * 3600 + number(at + 3..at + 5)? * 60;
            if *sign == b'-' { -offset } else { offset }
        }
        _ => return None,
    };
    Some((
        days * 86_400 + hour * 3600 + minute * 60 + second - offset,
        nanos,
    ))
}

/// Returns the days from 1970-01-01 to a date of the Gregorian calendar.
fn days(year: i64, month: i64, day: i64) -> i64 {
    // Years that begin in March, so that the leap day is the last one.
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

/// Returns the date of a day counted from 1970-01-01: the inverse of [`days`].
fn civil(days: i64) -> (i64, i64, i64) {
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let of_era = days.rem_euclid(146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (year + era * 400 + i64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check_duration(text: &str, expected: Option<&str>) {
        let got = parse_duration(text).map(|(seconds, nanos)| duration(seconds, nanos));
        assert_eq!(got.as_deref(), expected, "{text}");
    }

    #[test]
    fn durations_in_go_syntax() {
        check_duration("0", Some("0s"));
        check_duration("0s", Some("0s"));
        check_duration("500ms", Some("0.500s"));
        check_duration("1m30s", Some("90s"));
        check_duration("-1.5h", Some("-5400s"));
        check_duration("-0.25s", Some("-0.250s"));
        check_duration("+.5us", Some("0.000000500s"));
        check_duration("1.000001s", Some("1.000001s"));
        check_duration("9223372035s", Some("9223372035s"));
        check_duration("0.3333333333333333333h", Some("1199.999999999s"));
        for bad in [
            "",
            "-",
            "1",
            "s",
            ".s",
            "1.2.3s",
            "1d",
            "9223372037s",
            "1 s",
            "- 1s",
        ] {
            check_duration(bad, None);
        }
    }

    #[track_caller]
    fn check_timestamp(text: &str, expected: Option<&str>) {
        let got = parse_timestamp(text).map(|(seconds, nanos)| timestamp(seconds, nanos));
        assert_eq!(got.as_deref(), expected, "{text}");
    }

    #[test]
    fn timestamps_in_rfc_3339() {
        for same in [
            "1970-01-01T00:00:00Z",
            "2024-02-29T23:59:59.123Z",
            "0001-01-01T00:00:00Z",
            "9999-12-31T23:59:59.999999999Z",
            "1969-12-31T23:59:59.500Z",
        ] {
            check_timestamp(same, Some(same));
        }
        check_timestamp(
            "2024-03-01T01:30:00.5+02:00",
            Some("2024-02-29T23:30:00.500Z"),
        );
        assert_eq!(
            parse_timestamp("2024-01-01T00:00:00Z"),
            Some((1_704_067_200, 0))
        );
        for bad in [
            "",
            "2024-02-30T00:00:00Z",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01T24:00:00Z",
        ] {
            check_timestamp(bad, None);
        }
    }
}

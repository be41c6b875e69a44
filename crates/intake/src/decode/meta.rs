//! An object's metadata.

use model::{
    Labels, Meta, Timestamp,
    config::{self, Origin, Owner},
};
use serde_json::Value;

/// A field and what is wrong with it.
type Problem = (String, String);

/// Reads `metadata`; the caller has settled the namespace.
pub(super) fn read(metadata: &Value, namespace: &str, origin: Origin) -> Result<Meta, Problem> {
    if !matches!(metadata, Value::Object(_)) {
        return Err((
            "metadata".to_owned(),
            "the object has no metadata".to_owned(),
        ));
    }
    let name = string(metadata, "name")?;
    if name.is_empty() {
        return Err((
            "metadata.name".to_owned(),
            "the object has no name".to_owned(),
        ));
    }
    string(metadata, "namespace")?;
    Ok(Meta {
        name: name.into(),
        namespace: config::namespace(namespace),
        labels: strings(metadata, "labels")?,
        annotations: strings(metadata, "annotations")?,
        created: time(metadata, "creationTimestamp")?.unwrap_or_default(),
        uid: string(metadata, "uid")?.to_owned(),
        resource_version: string(metadata, "resourceVersion")?.to_owned(),
        generation: metadata
            .get("generation")
            .and_then(Value::as_i64)
            .unwrap_or_default(),
        generated_name: !string(metadata, "generateName")?.is_empty(),
        controller: controller(metadata),
        deleting: time(metadata, "deletionTimestamp")?.is_some(),
        status: None,
        origin,
    })
}

fn problem(field: &str, expected: &str) -> Problem {
    (format!("metadata.{field}"), format!("expected {expected}"))
}

fn string<'a>(metadata: &'a Value, field: &str) -> Result<&'a str, Problem> {
    match metadata.get(field) {
        None | Some(Value::Null) => Ok(""),
        Some(Value::String(text)) => Ok(text),
        Some(_) => Err(problem(field, "a string")),
    }
}

fn strings(metadata: &Value, field: &str) -> Result<Labels, Problem> {
    match metadata.get(field) {
        None | Some(Value::Null) => Ok(Labels::new()),
        Some(Value::Object(map)) => map
            .iter()
            .map(|(key, value)| match value {
                Value::String(text) => Ok((key.clone(), text.clone())),
                Value::Null => Ok((key.clone(), String::new())),
                other => Err((
                    format!("metadata.{field}[{key:?}]"),
                    format!("expected a string, found {other}; quote it"),
                )),
            })
            .collect(),
        Some(_) => Err(problem(field, "an object of strings")),
    }
}

fn time(metadata: &Value, field: &str) -> Result<Option<Timestamp>, Problem> {
    match string(metadata, field)? {
        "" => Ok(None),
        text => rfc3339(text)
            .map(Some)
            .ok_or_else(|| problem(field, "a time such as 2024-01-01T00:00:00Z")),
    }
}

/// Finds the owner that controls the object.
fn controller(metadata: &Value) -> Option<Box<Owner>> {
    let owners = metadata.get("ownerReferences")?.as_array()?;
    let owner = owners
        .iter()
        .find(|o| o.get("controller") == Some(&Value::Bool(true)))?;
    let text = |field| {
        owner
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    Some(Box::new(Owner {
        kind: text("kind"),
        name: text("name"),
    }))
}

/// Parses `2024-01-01T00:00:00Z`, also with a fraction (dropped) or an offset.
fn rfc3339(text: &str) -> Option<Timestamp> {
    let number = |range: std::ops::Range<usize>| -> Option<i64> {
        let digits = text.get(range)?;
        digits
            .bytes()
            .all(|b| b.is_ascii_digit())
            .then(|| digits.parse().ok())?
    };
    let separators = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
    let bytes = text.as_bytes();
    if !separators.iter().all(|(at, c)| bytes.get(*at) == Some(c))
        || !matches!(bytes.get(10), Some(b'T' | b't' | b' '))
    {
        return None;
    }
    let (year, month, day) = (number(0..4)?, number(5..7)?, number(8..10)?);
    let (hour, minute, second) = (number(11..13)?, number(14..16)?, number(17..19)?);
    if !(1..=12).contains(&month)
        || !(1..=31).contains(&day)
        || hour > 23
        || minute > 59
        || second > 60
    {
        return None;
    }
    let mut zone = &text[19..];
    if let Some(fraction) = zone.strip_prefix('.') {
        zone = fraction.trim_start_matches(|c: char| c.is_ascii_digit());
    }
    let offset = match zone {
        "Z" | "z" => 0,
        _ => {
            let sign = match zone.as_bytes().first()? {
                b'+' => 1,
                b'-' => -1,
                _ => return None,
            };
            let (hours, minutes) = zone[1..].split_once(':')?;
            sign * (hours.parse::<i64>().ok()? * 3600 + minutes.parse::<i64>().ok()? * 60)
        }
    };
    // Days since 1970-01-01 of a proleptic Gregorian date, counting years from March.
    let (y, m) = if month > 2 {
        (year, month - 3)
    } else {
        (year - 1, month + 9)
    };
    let days =
        365 * y + y.div_euclid(4) - y.div_euclid(100) + y.div_euclid(400) + (153 * m + 2) / 5 + day
            - 1
            - 719_468;
    Some(Timestamp(
        days * 86_400 + hour * 3600 + minute * 60 + second - offset,
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expected: Option<i64>) {
        assert_eq!(rfc3339(text).map(|t| t.0), expected, "{text}");
    }

    #[test]
    fn times() {
        check("1970-01-01T00:00:00Z", Some(0));
        check("2024-01-01T00:00:00Z", Some(1_704_067_200));
        check("2024-02-29T23:59:59.123Z", Some(1_709_251_199));
        check("2024-01-01T02:00:00+02:00", Some(1_704_067_200));
        check("2024-13-01T00:00:00Z", None);
        check("2024-01-01", None);
        check("yesterday", None);
    }
}

//! Plain scalars, by the rules of YAML 1.1 that Kubernetes' tools follow.
//!
//! `y`, `yes`, `on` and their like are booleans, a leading `0` means octal, underscores in numbers
//! are dropped, timestamps and base-60 numbers stay strings.

use serde_json::{Number, Value};

/// What a scalar means.
#[derive(Clone, PartialEq, Debug)]
pub(super) enum Scalar {
    /// A value.
    Value(Value),
    /// The key `<<`, which merges mappings.
    Merge,
}

/// The tag of a scalar, as far as it matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Tag {
    /// No tag, or one that says nothing here.
    Implicit,
    /// `!!str`, and every tag of an application.
    String,
    /// `!!binary`.
    Binary,
    /// `!!int`.
    Int,
    /// `!!float`.
    Float,
    /// `!!bool`.
    Bool,
    /// `!!null`.
    Null,
}

impl Tag {
    /// Reads the suffix of a tag of the YAML core schema.
    pub(super) fn core(suffix: &str) -> Self {
        match suffix {
            "binary" => Self::Binary,
            "int" => Self::Int,
            "float" => Self::Float,
            "bool" => Self::Bool,
            "null" => Self::Null,
            "timestamp" | "merge" => Self::Implicit,
            _ => Self::String,
        }
    }
}

/// Gives a scalar its value. `plain` scalars are not quoted.
///
/// # Errors
/// In words, what does not fit the tag, or has no form in JSON.
pub(super) fn resolve(text: &str, plain: bool, tag: Tag) -> Result<Scalar, String> {
    let value = match tag {
        Tag::String => Value::String(text.to_owned()),
        Tag::Binary => Value::String(binary(text)?),
        Tag::Implicit if !plain => Value::String(text.to_owned()),
        Tag::Implicit if text == "<<" => return Ok(Scalar::Merge),
        Tag::Implicit => implicit(text)?,
        Tag::Int | Tag::Float | Tag::Bool | Tag::Null => {
            let value = implicit(text)?;
            let fits = match tag {
                Tag::Int => value.is_i64() || value.is_u64(),
                Tag::Float => value.is_number(),
                Tag::Bool => value.is_boolean(),
                _ => value.is_null(),
            };
            if !fits {
                return Err(format!("{text:?} does not fit its tag"));
            }
            value
        }
    };
    Ok(Scalar::Value(value))
}

fn implicit(text: &str) -> Result<Value, String> {
    Ok(match text {
        "" | "~" | "null" | "Null" | "NULL" => Value::Null,
        "y" | "Y" | "yes" | "Yes" | "YES" | "true" | "True" | "TRUE" | "on" | "On" | "ON" => {
            Value::Bool(true)
        }
        "n" | "N" | "no" | "No" | "NO" | "false" | "False" | "FALSE" | "off" | "Off" | "OFF" => {
            Value::Bool(false)
        }
        ".nan" | ".NaN" | ".NAN" | ".inf" | ".Inf" | ".INF" | "+.inf" | "+.Inf" | "+.INF"
        | "-.inf" | "-.Inf" | "-.INF" => return Err(format!("{text} has no form in JSON")),
        _ => number(text).map_or_else(|| Value::String(text.to_owned()), Value::Number),
    })
}

/// Reads a number; `None` when the text is none.
fn number(text: &str) -> Option<Number> {
    if !matches!(text.as_bytes().first()?, b'0'..=b'9' | b'+' | b'-' | b'.') {
        return None;
    }
    let digits = text.replace('_', "");
    integer(&digits).or_else(|| float(&digits))
}

fn integer(text: &str) -> Option<Number> {
    let (negative, digits) = match text.as_bytes().first()? {
        b'-' => (true, &text[1..]),
        b'+' => (false, &text[1..]),
        _ => (false, text),
    };
    let (radix, digits) = match digits.as_bytes() {
        [b'0', b'x' | b'X', ..] => (16, &digits[2..]),
        [b'0', b'o' | b'O', ..] => (8, &digits[2..]),
        [b'0', b'b' | b'B', ..] => (2, &digits[2..]),
        [b'0', _, ..] => (8, &digits[1..]),
        _ => (10, digits),
    };
    if !digits.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return None;
    }
    let magnitude = u64::from_str_radix(digits, radix).ok()?;
    if negative {
        0_i64.checked_sub_unsigned(magnitude).map(Number::from)
    } else {
        Some(magnitude.into())
    }
}

fn float(text: &str) -> Option<Number> {
    let unsigned = text.strip_prefix(['-', '+']).unwrap_or(text);
    let (mantissa, exponent) = match unsigned.split_once(['e', 'E']) {
        Some((mantissa, exponent)) => (mantissa, Some(exponent)),
        None => (unsigned, None),
    };
    let all_digits = |s: &str| s.bytes().all(|b| b.is_ascii_digit());
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let exponent_fits = exponent.is_none_or(|e| {
        let digits = e.strip_prefix(['-', '+']).unwrap_or(e);
        !digits.is_empty() && all_digits(digits)
    });
    if (whole.is_empty() && fraction.is_empty())
        || !all_digits(whole)
        || !all_digits(fraction)
        || !exponent_fits
    {
        return None;
    }
    let value: f64 = text.parse().ok().filter(|v: &f64| v.is_finite())?;
    // JSON of Go writes whole floats without a fraction; typed fields then read them as integers.
    #[expect(
        clippy::cast_possible_truncation,
        reason = "checked to be whole and small"
    )]
    if value.fract() == 0.0 && value.abs() < 9e15 {
        return Some(Number::from(value as i64));
    }
    Number::from_f64(value)
}

/// Decodes `!!binary`, which must be text to have a form in JSON.
fn binary(text: &str) -> Result<String, String> {
    let mut bits = 0_u32;
    let mut count = 0;
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    for c in text
        .bytes()
        .filter(|c| !c.is_ascii_whitespace() && *c != b'=')
    {
        let value = match c {
            b'A'..=b'Z' => c - b'A',
            b'a'..=b'z' => c - b'a' + 26,
            b'0'..=b'9' => c - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return Err("!!binary value is not base64".to_owned()),
        };
        bits = bits << 6 | u32::from(value);
        count += 6;
        if count >= 8 {
            count -= 8;
            bytes.push(u8::try_from(bits >> count & 0xff).unwrap_or_default());
        }
    }
    String::from_utf8(bytes).map_err(|_| "!!binary value is not text".to_owned())
}

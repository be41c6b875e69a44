//! Messages to JSON, as Go's `protojson` prints them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost_reflect::{DynamicMessage, Kind, MapKey, ReflectMessage as _, Value as Field};
use serde_json::{Map, Number, Value};

use super::time;
use crate::descriptors;

/// Converts a message.
pub(super) fn message(message: &DynamicMessage) -> Value {
    let descriptor = message.descriptor();
    let name = descriptor.full_name();
    if let Some(name) = name.strip_prefix("google.protobuf.")
        && let Some(value) = well_known(name, message)
    {
        return value;
    }
    Value::Object(fields(message))
}

fn fields(message: &DynamicMessage) -> Map<String, Value> {
    message
        .fields()
        .map(|(field, value)| {
            (
                field.json_name().to_owned(),
                self::value(value, &field.kind()),
            )
        })
        .collect()
}

fn value(value: &Field, kind: &Kind) -> Value {
    match value {
        Field::Bool(bool) => Value::Bool(*bool),
        Field::I32(number) => Value::from(*number),
        Field::U32(number) => Value::from(*number),
        Field::I64(number) => Value::String(number.to_string()),
        Field::U64(number) => Value::String(number.to_string()),
        Field::F32(number) => float32(*number),
        Field::F64(number) => float(*number),
        Field::String(text) => Value::String(text.clone()),
        Field::Bytes(bytes) => Value::String(STANDARD.encode(bytes)),
        Field::EnumNumber(number) => enum_value(*number, kind),
        Field::Message(message) => self::message(message),
        Field::List(values) => values
            .iter()
            .map(|value| self::value(value, kind))
            .collect(),
        Field::Map(map) => {
            let kind = kind
                .as_message()
                .map(|entry| entry.map_entry_value_field().kind());
            let Some(kind) = kind else { return Value::Null };
            let mut entries: Vec<_> = map.iter().collect();
            entries.sort_by_key(|entry| entry.0);
            entries
                .into_iter()
                .map(|(key, value)| (map_key(key), self::value(value, &kind)))
                .collect::<Map<_, _>>()
                .into()
        }
    }
}

fn map_key(key: &MapKey) -> String {
    match key {
        MapKey::Bool(key) => key.to_string(),
        MapKey::I32(key) => key.to_string(),
        MapKey::I64(key) => key.to_string(),
        MapKey::U32(key) => key.to_string(),
        MapKey::U64(key) => key.to_string(),
        MapKey::String(key) => key.clone(),
    }
}

fn enum_value(number: i32, kind: &Kind) -> Value {
    let Some(descriptor) = kind.as_enum() else {
        return Value::from(number);
    };
    if descriptor.full_name() == "google.protobuf.NullValue" {
        return Value::Null;
    }
    match descriptor.get_value(number) {
        Some(value) => Value::String(value.name().to_owned()),
        None => Value::from(number),
    }
}

/// The shortest number that reads back as the same 32 bits, as Go prints it.
fn float32(number: f32) -> Value {
    // Going through text: widening would show the digits that 32 bits do not have.
    float(
        number
            .to_string()
            .parse()
            .unwrap_or_else(|_| f64::from(number)),
    )
}

/// A double; what is integral is printed as an integer, what JSON cannot say as text.
fn float(number: f64) -> Value {
    #[expect(
        clippy::cast_possible_truncation,
        reason = "integral, and within 53 bits"
    )]
    if number.fract() == 0.0 && number.abs() < 9_007_199_254_740_992.0 {
        return Value::from(number as i64);
    }
    Number::from_f64(number).map_or_else(
        || {
            Value::from(match number {
                _ if number.is_nan() => "NaN",
                _ if number > 0.0 => "Infinity",
                _ => "-Infinity",
            })
        },
        Value::Number,
    )
}

/// Converts a message of `google.protobuf` that has a JSON form of its own.
fn well_known(name: &str, message: &DynamicMessage) -> Option<Value> {
    let field = |number| message.get_field_by_number(number);
    let pair = || {
        let seconds = field(1)
            .and_then(|value| value.as_i64())
            .unwrap_or_default();
        let nanos = field(2)
            .and_then(|value| value.as_i32())
            .unwrap_or_default();
        (seconds, nanos)
    };
    Some(match name {
        "Any" => {
            let url = field(1)?;
            let bytes = field(2)?;
            any(url.as_str()?, bytes.as_bytes()?)
        }
        "Duration" => {
            let (seconds, nanos) = pair();
            Value::String(time::duration(seconds, nanos))
        }
        "Timestamp" => {
            let (seconds, nanos) = pair();
            Value::String(time::timestamp(seconds, nanos))
        }
        "FieldMask" => {
            let paths = field(1)?;
            let paths = paths
                .as_list()?
                .iter()
                .filter_map(|path| path.as_str())
                .map(camel_case);
            Value::String(paths.collect::<Vec<_>>().join(","))
        }
        "Struct" | "ListValue" => {
            let descriptor = message.descriptor().get_field(1)?;
            value(&message.get_field(&descriptor), &descriptor.kind())
        }
        "Value" => match message.fields().next() {
            Some((descriptor, field)) => value(field, &descriptor.kind()),
            None => Value::Null,
        },
        _ if name.ends_with("Value") => {
            let descriptor = message.descriptor().get_field(1)?;
            value(&message.get_field(&descriptor), &descriptor.kind())
        }
        _ => return None,
    })
}

/// Converts a packed message.
pub(super) fn any(type_url: &str, bytes: &[u8]) -> Value {
    if type_url.is_empty() && bytes.is_empty() {
        return Value::Object(Map::new());
    }
    let packed = descriptors::message(type_url)
        .and_then(|descriptor| DynamicMessage::decode(descriptor, bytes).ok());
    let mut object = match packed {
        Some(packed) if has_own_form(packed.descriptor().full_name()) => {
            Map::from_iter([("value".to_owned(), message(&packed))])
        }
        Some(packed) => fields(&packed),
        None => Map::from_iter([("value".to_owned(), Value::String(STANDARD.encode(bytes)))]),
    };
    object.insert("@type".to_owned(), Value::String(type_url.to_owned()));
    Value::Object(object)
}

/// Whether the JSON of a type is not the object of its fields, so that in an `Any` it needs a `value`.
pub(super) fn has_own_form(full_name: &str) -> bool {
    full_name
        .strip_prefix("google.protobuf.")
        .is_some_and(|name| {
            matches!(
                name,
                "Any"
                    | "Duration"
                    | "Timestamp"
                    | "FieldMask"
                    | "Empty"
                    | "Struct"
                    | "ListValue"
                    | "Value"
                    | "BoolValue"
                    | "BytesValue"
                    | "DoubleValue"
                    | "FloatValue"
                    | "Int32Value"
                    | "Int64Value"
                    | "StringValue"
                    | "UInt32Value"
                    | "UInt64Value"
            )
        })
}

fn camel_case(path: &str) -> String {
    let mut camel = String::with_capacity(path.len());
    let mut upper = false;
    for c in path.chars() {
        match c {
            '_' => upper = true,
            _ if upper => {
                camel.extend(c.to_uppercase());
                upper = false;
            }
            _ => camel.push(c),
        }
    }
    camel
}

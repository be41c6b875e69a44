//! JSON to messages, as the older Go mapping reads them.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use prost_reflect::{
    DynamicMessage, EnumDescriptor, FieldDescriptor, Kind, MapKey, MessageDescriptor,
    Value as Field,
};
use serde_json::{Map, Value};

use super::{Error, Unknown, time, write::has_own_form};
use crate::{descriptors, encode};

type Result<T> = std::result::Result<T, Error>;

/// Converts a JSON value to a message.
pub(super) fn message(
    descriptor: &MessageDescriptor,
    value: &Value,
    unknown: Unknown,
) -> Result<DynamicMessage> {
    if let Some(name) = descriptor.full_name().strip_prefix("google.protobuf.")
        && let Some(message) = well_known(name, descriptor, value, unknown)?
    {
        return Ok(message);
    }
    fields(descriptor, object(value)?, unknown, None)
}

/// Converts the fields of an object; `extra` is a key that is no field, and no unknown one either.
fn fields(
    descriptor: &MessageDescriptor,
    object: &Map<String, Value>,
    unknown: Unknown,
    extra: Option<&str>,
) -> Result<DynamicMessage> {
    if unknown == Unknown::Refuse {
        let is_known = |key: &str| {
            extra == Some(key)
                || descriptor.get_field_by_json_name(key).is_some()
                || descriptor.get_field_by_name(key).is_some()
        };
        if let Some(key) = object.keys().find(|key| !is_known(key)) {
            return Err(Error::UnknownField {
                path: String::new(),
                field: key.clone(),
                message: descriptor.full_name().to_owned(),
            });
        }
    }
    let mut message = DynamicMessage::new(descriptor.clone());
    // In the order of declaration: setting a member of a oneof clears one that was set before.
    for declared in &descriptor.descriptor_proto().field {
        let number = declared.number().cast_unsigned();
        let Some(field) = descriptor.get_field(number) else {
            continue;
        };
        let json = object
            .get(field.json_name())
            .or_else(|| object.get(field.name()));
        let Some(json) = json.filter(|json| !json.is_null() || takes_null(&field)) else {
            continue;
        };
        let value = self::field(&field, json, unknown).map_err(|e| e.under(field.name()))?;
        message.set_field(&field, value);
    }
    Ok(message)
}

/// Whether `null` is a value of the field and does not mean that it is absent.
fn takes_null(field: &FieldDescriptor) -> bool {
    !field.is_list()
        && match field.kind() {
            Kind::Message(message) => message.full_name() == "google.protobuf.Value",
            Kind::Enum(descriptor) => descriptor.full_name() == "google.protobuf.NullValue",
            _ => false,
        }
}

fn field(field: &FieldDescriptor, json: &Value, unknown: Unknown) -> Result<Field> {
    let kind = field.kind();
    if let (true, Kind::Message(entry)) = (field.is_map(), &kind) {
        let (key, value) = (entry.map_entry_key_field(), entry.map_entry_value_field());
        let mut map = std::collections::HashMap::new();
        for (name, json) in object(json)? {
            let under = |error: Error| error.under(&format!("[{name:?}]"));
            let key = map_key(name, &key.kind()).map_err(under)?;
            map.insert(key, element(&value.kind(), json, unknown).map_err(under)?);
        }
        return Ok(Field::Map(map));
    }
    if field.is_list() {
        let list = json.as_array().ok_or_else(|| mismatch("a list", json))?;
        let values = list.iter().enumerate().map(|(at, json)| {
            element(&kind, json, unknown).map_err(|error| error.under(&format!("[{at}]")))
        });
        return Ok(Field::List(values.collect::<Result<_>>()?));
    }
    singular(&kind, json, unknown)
}

/// Converts an element of a list or a value of a map, where `null` means the default.
fn element(kind: &Kind, json: &Value, unknown: Unknown) -> Result<Field> {
    let is_value = kind
        .as_message()
        .is_some_and(|message| message.full_name() == "google.protobuf.Value");
    if json.is_null() && !is_value {
        return Ok(Field::default_value(kind));
    }
    singular(kind, json, unknown)
}

fn singular(kind: &Kind, json: &Value, unknown: Unknown) -> Result<Field> {
    Ok(match kind {
        Kind::Bool => Field::Bool(
            json.as_bool()
                .ok_or_else(|| mismatch("true or false", json))?,
        ),
        Kind::String => Field::String(text(json)?.to_owned()),
        Kind::Bytes => {
            let bytes = STANDARD.decode(text(json)?);
            Field::Bytes(bytes.map_err(|_| Error::value("is no base64"))?.into())
        }
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => Field::I32(integer(json)?),
        Kind::Uint32 | Kind::Fixed32 => Field::U32(integer(json)?),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => Field::I64(integer(json)?),
        Kind::Uint64 | Kind::Fixed64 => Field::U64(integer(json)?),
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the field has no more bits"
        )]
        Kind::Float => Field::F32(float(json)? as f32),
        Kind::Double => Field::F64(float(json)?),
        Kind::Enum(descriptor) => Field::EnumNumber(enum_number(descriptor, json)?),
        Kind::Message(descriptor) => Field::Message(message(descriptor, json, unknown)?),
    })
}

fn map_key(text: &str, kind: &Kind) -> Result<MapKey> {
    let bad = || Error::value(format!("key {text:?} is no {}", kind_name(kind)));
    Ok(match kind {
        Kind::Bool => MapKey::Bool(text.parse().map_err(|_| bad())?),
        Kind::Int32 | Kind::Sint32 | Kind::Sfixed32 => {
            MapKey::I32(text.parse().map_err(|_| bad())?)
        }
        Kind::Uint32 | Kind::Fixed32 => MapKey::U32(text.parse().map_err(|_| bad())?),
        Kind::Int64 | Kind::Sint64 | Kind::Sfixed64 => {
            MapKey::I64(text.parse().map_err(|_| bad())?)
        }
        Kind::Uint64 | Kind::Fixed64 => MapKey::U64(text.parse().map_err(|_| bad())?),
        _ => MapKey::String(text.to_owned()),
    })
}

fn kind_name(kind: &Kind) -> &'static str {
    if matches!(kind, Kind::Bool) {
        "boolean"
    } else {
        "integer in range"
    }
}

/// Reads an integer: a number without fraction, or the same as text.
fn integer<T: TryFrom<i128>>(json: &Value) -> Result<T> {
    let number = match json {
        Value::Number(number) => integral(number),
        Value::String(text) => text.parse::<i128>().ok(),
        _ => None,
    };
    let number = number.ok_or_else(|| mismatch("an integer", json))?;
    T::try_from(number).map_err(|_| Error::value(format!("{number} is out of range")))
}

fn integral(number: &serde_json::Number) -> Option<i128> {
    if let Some(number) = number.as_i64() {
        return Some(number.into());
    }
    if let Some(number) = number.as_u64() {
        return Some(number.into());
    }
    let number = number.as_f64()?;
    #[expect(
        clippy::cast_possible_truncation,
        reason = "integral, and within 128 bits"
    )]
    (number.fract() == 0.0 && number.abs() < 1e30).then_some(number as i128)
}

fn float(json: &Value) -> Result<f64> {
    let number = match json {
        Value::Number(number) => number.as_f64(),
        Value::String(text) => match text.as_str() {
            "NaN" => Some(f64::NAN),
            "Infinity" => Some(f64::INFINITY),
            "-Infinity" => Some(f64::NEG_INFINITY),
            // Rust reads more than JSON does, such as `inf`.
            _ if text
                .bytes()
                .all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte)) =>
            {
                text.parse().ok()
            }
            _ => None,
        },
        _ => None,
    };
    number.ok_or_else(|| mismatch("a number", json))
}

fn enum_number(descriptor: &EnumDescriptor, json: &Value) -> Result<i32> {
    match json {
        Value::Null => Ok(0),
        Value::String(name) => match descriptor.get_value_by_name(name) {
            Some(value) => Ok(value.number()),
            None => Err(Error::value(format!(
                "{name:?} is no {}",
                descriptor.full_name()
            ))),
        },
        _ => integer(json),
    }
}

/// Converts to a message of `google.protobuf` that has a JSON form of its own.
fn well_known(
    name: &str,
    descriptor: &MessageDescriptor,
    json: &Value,
    unknown: Unknown,
) -> Result<Option<DynamicMessage>> {
    let mut message = DynamicMessage::new(descriptor.clone());
    let mut set = |number: u32, value: Field| message.set_field_by_number(number, value);
    match name {
        "Any" => {
            let (type_url, value) = any(json, unknown)?;
            set(1, Field::String(type_url));
            set(2, Field::Bytes(value.into()));
        }
        "Duration" => {
            let (seconds, nanos) = time::parse_duration(text(json)?)
                .ok_or_else(|| mismatch("a duration such as \"1.5s\"", json))?;
            set(1, Field::I64(seconds));
            set(2, Field::I32(nanos));
        }
        "Timestamp" => {
            let (seconds, nanos) = time::parse_timestamp(text(json)?)
                .ok_or_else(|| mismatch("an RFC 3339 timestamp", json))?;
            set(1, Field::I64(seconds));
            set(2, Field::I32(nanos));
        }
        "FieldMask" if json.is_string() => {
            let paths = text(json)?.split(',').filter(|path| !path.is_empty());
            set(
                1,
                Field::List(paths.map(|path| Field::String(snake_case(path))).collect()),
            );
        }
        "Struct" | "ListValue" => {
            let field = descriptor
                .get_field(1)
                .ok_or_else(|| Error::value("has no field"))?;
            message.set_field(&field, self::field(&field, json, unknown)?);
        }
        "Value" => {
            let number = match json {
                Value::Null => 1,
                Value::Number(_) => 2,
                Value::String(_) => 3,
                Value::Bool(_) => 4,
                Value::Object(_) => 5,
                Value::Array(_) => 6,
            };
            let field = descriptor
                .get_field(number)
                .ok_or_else(|| Error::value("has no field"))?;
            message.set_field(&field, singular(&field.kind(), json, unknown)?);
        }
        _ if name.ends_with("Value") && has_own_form(descriptor.full_name()) => {
            let field = descriptor
                .get_field(1)
                .ok_or_else(|| Error::value("has no field"))?;
            message.set_field(&field, singular(&field.kind(), json, unknown)?);
        }
        _ => return Ok(None),
    }
    Ok(Some(message))
}

/// Converts an object with `@type`, to the type URL as it was written and the canonical bytes.
pub(super) fn any(json: &Value, unknown: Unknown) -> Result<(String, Vec<u8>)> {
    let object = object(json)?;
    if object.is_empty() {
        return Ok((String::new(), Vec::new()));
    }
    let type_url = object
        .get("@type")
        .ok_or_else(|| Error::value("has no \"@type\""))?;
    let type_url = text(type_url).map_err(|error| error.under("@type"))?;
    let descriptor = descriptors::message(type_url).ok_or_else(|| Error::UnknownType {
        path: String::new(),
        type_url: type_url.to_owned(),
    })?;
    let message = if has_own_form(descriptor.full_name()) {
        let value = object.get("value").ok_or_else(|| {
            Error::value(format!(
                "has no \"value\", which {} needs",
                descriptor.full_name()
            ))
        })?;
        message(&descriptor, value, unknown).map_err(|error| error.under("value"))?
    } else {
        fields(&descriptor, object, unknown, Some("@type"))?
    };
    Ok((type_url.to_owned(), encode::canonical_dynamic(&message)))
}

fn object(json: &Value) -> Result<&Map<String, Value>> {
    json.as_object().ok_or_else(|| mismatch("an object", json))
}

fn text(json: &Value) -> Result<&str> {
    json.as_str().ok_or_else(|| mismatch("a string", json))
}

fn mismatch(expected: &str, got: &Value) -> Error {
    let mut got = got.to_string();
    if got.len() > 60 {
        let end = (0..=57)
            .rev()
            .find(|at| got.is_char_boundary(*at))
            .unwrap_or_default();
        got.truncate(end);
        got.push_str("...");
    }
    Error::value(format!("expected {expected}, got {got}"))
}

fn snake_case(path: &str) -> String {
    let mut snake = String::with_capacity(path.len());
    for c in path.chars() {
        if c.is_ascii_uppercase() {
            snake.push('_');
        }
        snake.push(c.to_ascii_lowercase());
    }
    snake
}

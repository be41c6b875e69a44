//! The canonical encoding: equal messages give equal bytes.
//!
//! Plain prost encoding is not canonical, because map fields are `HashMap`s and are written in the order
//! of their buckets, also inside the bytes of a packed `Any`. Here a message is encoded by prost and
//! then put in order *in place*: sorting the entries of a map, or the fields of a message, moves bytes but
//! changes no length. A [`plan`] made once from the descriptors says where a map or an `Any` can
//! occur; everything else is stepped over.
//!
//! Canonical means: fields by ascending number, map entries by ascending key, also inside every `Any`
//! whose type is known. Bytes of an unknown type are left as they are.

mod order;
mod plan;

#[cfg(test)]
mod tests;

use bytes::Bytes;
use envoy_types::pb::google::protobuf::{Any, ListValue, NullValue, Struct, Value, value::Kind};
use prost::{Message, Name};
use prost_reflect::{DynamicMessage, ReflectMessage as _};

use crate::{descriptors::TYPE_URL_PREFIX, udpa};

/// Encodes `message` canonically.
pub fn canonical<M: Message + Name>(message: &M) -> Bytes {
    canonical_vec(message).into()
}

/// Encodes `message` canonically, into a vector.
pub fn canonical_vec<M: Message + Name>(message: &M) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    canonicalize(&M::full_name(), &mut bytes);
    bytes
}

/// Encodes a message of any type canonically.
pub fn canonical_dynamic(message: &DynamicMessage) -> Vec<u8> {
    let mut bytes = message.encode_to_vec();
    canonicalize(message.descriptor().full_name(), &mut bytes);
    bytes
}

/// Puts the encoded message of type `full_name` into canonical order, in place.
///
/// Bytes that are no valid message, and messages of an unknown type, are left as they are.
pub fn canonicalize(full_name: &str, bytes: &mut [u8]) {
    let plans = plan::plans();
    if let Some(id) = plans.find(full_name.as_bytes()) {
        order::canonicalize(plans, id, bytes);
    }
}

/// Packs `message`, canonically encoded, with its `type.googleapis.com/` URL.
pub fn any<M: Message + Name>(message: &M) -> Any {
    let name = M::full_name();
    let mut value = message.encode_to_vec();
    canonicalize(&name, &mut value);
    Any {
        type_url: format!("{TYPE_URL_PREFIX}{name}"),
        value,
    }
}

/// Packs `value`, JSON of the type that `type_url` names, as a `udpa.type.v1.TypedStruct`.
///
/// The prefix `type.googleapis.com/` is added where `type_url` has no `/`. `value` is an object; anything
/// else gives an empty one.
pub fn typed_struct(type_url: &str, value: serde_json::Value) -> Any {
    let type_url = if type_url.contains('/') {
        type_url.to_owned()
    } else {
        format!("{TYPE_URL_PREFIX}{type_url}")
    };
    any(&udpa::TypedStruct {
        type_url,
        value: Some(struct_value(value)),
    })
}

/// Converts a JSON object; anything else gives an empty one.
pub fn struct_value(value: serde_json::Value) -> Struct {
    match value {
        serde_json::Value::Object(object) => Struct {
            fields: object
                .into_iter()
                .map(|(key, value)| (key, any_value(value)))
                .collect(),
        },
        _ => Struct::default(),
    }
}

/// Converts any JSON value. Numbers become doubles.
pub fn any_value(value: serde_json::Value) -> Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(NullValue::NullValue.into()),
        serde_json::Value::Bool(bool) => Kind::BoolValue(bool),
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(string) => Kind::StringValue(string),
        serde_json::Value::Array(values) => Kind::ListValue(ListValue {
            values: values.into_iter().map(any_value).collect(),
        }),
        object @ serde_json::Value::Object(_) => Kind::StructValue(struct_value(object)),
    };
    Value { kind: Some(kind) }
}

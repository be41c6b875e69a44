//! Protobuf JSON of Envoy's messages, both ways.
//!
//! [`to_json`] writes what Go's `protojson` writes: lowerCamelCase names, default values left out, `Any`
//! expanded. [`from_json`] reads that, and all that people write into EnvoyFilters: the rules are those
//! of the older Go mapping, which is more permissive (specification of EnvoyFilter, section 4).

mod read;
mod time;
mod write;

#[cfg(test)]
mod tests;

use envoy_types::pb::google::protobuf::Any;
use prost::{Message, Name};
use prost_reflect::DynamicMessage;
use serde_json::Value;

use crate::{descriptors, encode};

/// Why JSON and protobuf could not be converted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The message type is not among the known ones.
    #[error("{}unknown type {type_url}", at(path))]
    UnknownType {
        /// Where it is named; empty at the top.
        path: String,
        /// The type URL or name, as it was written.
        type_url: String,
    },
    /// The object has a field that its type has not.
    #[error("{}unknown field \"{field}\" of {message}", at(path))]
    UnknownField {
        /// The object; empty at the top.
        path: String,
        /// Name of the field.
        field: String,
        /// Full name of the type.
        message: String,
    },
    /// A value does not fit its field.
    #[error("{}{reason}", at(path))]
    Value {
        /// The field; empty at the top.
        path: String,
        /// What is wrong with the value.
        reason: String,
    },
    /// The bytes are not a message of the type.
    #[error("bytes are no {message}: {reason}")]
    Bytes {
        /// Full name of the type.
        message: String,
        /// What the decoder says.
        reason: String,
    },
}

fn at(path: &str) -> String {
    if path.is_empty() {
        String::new()
    } else {
        format!("{path}: ")
    }
}

impl Error {
    fn value(reason: impl Into<String>) -> Self {
        Self::Value {
            path: String::new(),
            reason: reason.into(),
        }
    }

    /// Puts `step` in front of the path, which leads from the value that failed up to the top.
    fn under(mut self, step: &str) -> Self {
        if let Self::UnknownType { path, .. }
        | Self::UnknownField { path, .. }
        | Self::Value { path, .. } = &mut self
        {
            *path = match path.as_str() {
                "" => step.to_owned(),
                rest if rest.starts_with('[') => format!("{step}{rest}"),
                rest => format!("{step}.{rest}"),
            };
        }
        self
    }
}

/// What to do about a field that the type has not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unknown {
    /// Leave it out, at every depth: how EnvoyFilters are applied.
    #[default]
    Ignore,
    /// Fail: how they are checked.
    Refuse,
}

/// Converts an encoded message of the type that a full name or type URL names.
///
/// An `Any` of an unknown type, or with bytes that are not of its type, becomes its `@type` and
/// the bytes in base64 as `value`.
///
/// # Errors
/// When the outer type is unknown or the bytes are not of it.
pub fn to_json(name_or_url: &str, bytes: &[u8]) -> Result<Value, Error> {
    Ok(write::message(&decode(name_or_url, bytes)?))
}

/// Converts a message.
///
/// # Errors
/// When its type is not among the known ones.
pub fn typed_to_json<M: Message + Name>(message: &M) -> Result<Value, Error> {
    to_json(&M::full_name(), &message.encode_to_vec())
}

/// Converts a message of any type.
pub fn dynamic_to_json(message: &DynamicMessage) -> Value {
    write::message(message)
}

/// Converts a packed message, to an object with `@type`. Never fails: see [`to_json`].
pub fn any_to_json(any: &Any) -> Value {
    write::any(&any.type_url, &any.value)
}

/// Converts a JSON value to a message of the type that a full name or type URL names.
///
/// Names may be `snake_case` or `lowerCamelCase` (which wins when both are there), durations may be Go's
/// (`1m30s`), numbers may be strings, `null` counts as absent; of two members of a oneof, the one
/// declared later wins. What is packed in an `Any` is encoded canonically.
///
/// # Errors
/// Names the path of the value that does not fit, with [`Unknown::Refuse`] also of an unknown field.
pub fn from_json(
    name_or_url: &str,
    value: &Value,
    unknown: Unknown,
) -> Result<DynamicMessage, Error> {
    let descriptor = descriptors::message(name_or_url).ok_or_else(|| Error::UnknownType {
        path: String::new(),
        type_url: name_or_url.to_owned(),
    })?;
    read::message(&descriptor, value, unknown)
}

/// Converts a JSON value to a message; see [`from_json`].
///
/// # Errors
/// As [`from_json`].
pub fn typed_from_json<M: Message + Name + Default>(
    value: &Value,
    unknown: Unknown,
) -> Result<M, Error> {
    let message = from_json(&M::full_name(), value, unknown)?;
    M::decode(message.encode_to_vec().as_slice()).map_err(|error| Error::Bytes {
        message: M::full_name(),
        reason: error.to_string(),
    })
}

/// Packs the message that an object with `@type` describes; see [`from_json`].
///
/// # Errors
/// As [`from_json`].
pub fn any_from_json(value: &Value, unknown: Unknown) -> Result<Any, Error> {
    let (type_url, value) = read::any(value, unknown)?;
    Ok(Any { type_url, value })
}

/// Decodes bytes as a message of the type that a full name or type URL names.
///
/// # Errors
/// When the type is unknown or the bytes are not of it.
pub fn decode(name_or_url: &str, bytes: &[u8]) -> Result<DynamicMessage, Error> {
    let descriptor = descriptors::message(name_or_url).ok_or_else(|| Error::UnknownType {
        path: String::new(),
        type_url: name_or_url.to_owned(),
    })?;
    let name = descriptor.full_name().to_owned();
    DynamicMessage::decode(descriptor, bytes).map_err(|error| Error::Bytes {
        message: name,
        reason: error.to_string(),
    })
}

/// Encodes a message of any type canonically.
pub fn encode(message: &DynamicMessage) -> Vec<u8> {
    encode::canonical_dynamic(message)
}

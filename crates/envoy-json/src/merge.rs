//! The merge of EnvoyFilter patches (specification of EnvoyFilter, section 8).
//!
//! It is the protobuf merge, with three differences: a `Duration` is replaced as a whole, an entry of a map
//! replaces the entry of the same key, and lists can be replaced instead of appended to.

#[cfg(test)]
mod tests;

use envoy_types::pb::google::protobuf::Any;
use prost::{Message, Name};
use prost_reflect::{DynamicMessage, FieldDescriptor, Kind, ReflectMessage as _, Value};

use crate::{
    descriptors::{self, TYPE_URL_PREFIX},
    encode, json,
};

/// Why two messages could not be merged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MergeError {
    /// The types differ. (The reference fails hard here; we skip the patch.)
    #[error("cannot merge a {patch} into a {target}")]
    Types {
        /// Full name of the type that is patched.
        target: String,
        /// Full name of the type of the patch.
        patch: String,
    },
    /// One of two packed messages, or the result, is not readable.
    #[error(transparent)]
    Json(#[from] json::Error),
}

/// What a list in the patch does to the list in the target.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Lists {
    /// Its elements are appended (`MERGE`).
    #[default]
    Append,
    /// It takes its place (`MERGE_AND_REPLACE_LIST`).
    Replace,
}

/// Merges the populated fields of `patch` into `target`.
///
/// # Errors
/// [`MergeError::Types`] when the types differ; `target` is then unchanged.
pub fn merge(
    target: &mut DynamicMessage,
    patch: &DynamicMessage,
    lists: Lists,
) -> Result<(), MergeError> {
    if target.descriptor() != patch.descriptor() {
        return Err(MergeError::Types {
            target: target.descriptor().full_name().to_owned(),
            patch: patch.descriptor().full_name().to_owned(),
        });
    }
    merge_fields(target, patch, lists);
    Ok(())
}

fn merge_fields(target: &mut DynamicMessage, patch: &DynamicMessage, lists: Lists) {
    for (field, value) in patch.fields() {
        match value {
            Value::List(elements) if lists == Lists::Append => {
                if let Value::List(list) = target.get_field_mut(&field) {
                    list.extend(elements.iter().cloned());
                }
            }
            Value::Map(entries) => {
                if let Value::Map(map) = target.get_field_mut(&field) {
                    map.extend(
                        entries
                            .iter()
                            .map(|(key, value)| (key.clone(), value.clone())),
                    );
                }
            }
            Value::Message(message) if !is_duration(&field) && target.has_field(&field) => {
                if let Value::Message(existing) = target.get_field_mut(&field) {
                    merge_fields(existing, message, lists);
                }
            }
            _ => target.set_field(&field, value.clone()),
        }
    }
    let mut unknown = Vec::new();
    for field in patch.unknown_fields() {
        field.encode(&mut unknown);
    }
    if !unknown.is_empty() {
        // They were decoded before, so they decode again.
        let _appended = target.merge(unknown.as_slice());
    }
}

fn is_duration(field: &FieldDescriptor) -> bool {
    matches!(field.kind(), Kind::Message(message) if message.full_name() == "google.protobuf.Duration")
}

/// Merges what `patch` packs into what `target` packs: always appending lists.
///
/// The result is encoded canonically, under the usual URL of its type.
///
/// # Errors
/// When one of them cannot be decoded, or the types differ; `target` is then unchanged.
pub fn merge_any(target: &mut Any, patch: &Any) -> Result<(), MergeError> {
    let mut merged = json::decode(&target.type_url, &target.value)?;
    merge(
        &mut merged,
        &json::decode(&patch.type_url, &patch.value)?,
        Lists::Append,
    )?;
    *target = pack(&merged);
    Ok(())
}

/// Merges `patch` into a message of a Rust type.
///
/// # Errors
/// When the type of `patch` is another; `target` is then unchanged.
pub fn merge_typed<M: Message + Name + Default>(
    target: &mut M,
    patch: &DynamicMessage,
    lists: Lists,
) -> Result<(), MergeError> {
    let mut merged = to_dynamic(target)?;
    merge(&mut merged, patch, lists)?;
    *target = to_typed(&merged)?;
    Ok(())
}

/// Converts a message of a Rust type.
///
/// # Errors
/// When the type is not among the known ones.
pub fn to_dynamic<M: Message + Name>(message: &M) -> Result<DynamicMessage, json::Error> {
    json::decode(&M::full_name(), &message.encode_to_vec())
}

/// Converts to a message of a Rust type.
///
/// # Errors
/// When `message` is of another type.
pub fn to_typed<M: Message + Name + Default>(message: &DynamicMessage) -> Result<M, json::Error> {
    let descriptor = message.descriptor();
    let full_name = M::full_name();
    let error = |reason: String| json::Error::Bytes {
        message: full_name.clone(),
        reason,
    };
    if descriptor.full_name() != full_name {
        return Err(error(format!("they are a {}", descriptor.full_name())));
    }
    M::decode(message.encode_to_vec().as_slice()).map_err(|e| error(e.to_string()))
}

/// Packs a message of any type, canonically encoded.
pub fn pack(message: &DynamicMessage) -> Any {
    let descriptor = message.descriptor();
    Any {
        type_url: format!("{TYPE_URL_PREFIX}{}", descriptor.full_name()),
        value: encode::canonical_dynamic(message),
    }
}

/// Whether the type that a full name or type URL names is known, so that it can be decoded and merged.
pub fn is_known(name_or_url: &str) -> bool {
    descriptors::message(name_or_url).is_some()
}

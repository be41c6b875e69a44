//! Whether a status is as it should be.

use serde_json::Value;

/// Tells whether a status that is there says all that is wanted. What it says beyond that is others': fields,
/// and conditions of other types. Lists of other things are whole.
pub(super) fn covers(known: &Value, wanted: &Value) -> bool {
    match (known, wanted) {
        (Value::Object(known), Value::Object(wanted)) => wanted
            .iter()
            .all(|(field, wanted)| known.get(field).is_some_and(|known| covers(known, wanted))),
        (Value::Array(known), Value::Array(wanted)) => {
            let are_conditions = wanted.iter().any(|entry| {
                entry
                    .get("type")
                    .is_some_and(|_| entry.get("reason").is_some())
            });
            if !are_conditions && known.len() != wanted.len() {
                return false;
            }
            wanted.iter().enumerate().all(|(place, wanted)| {
                let known = match name(wanted) {
                    Some((field, name)) => known.iter().find(|known| known[field] == *name),
                    None => known.get(place),
                };
                known.is_some_and(|known| covers(known, wanted))
            })
        }
        _ => known == wanted,
    }
}

/// By what an entry of a list is known.
fn name(entry: &Value) -> Option<(&'static str, &str)> {
    let is_condition = entry.get("reason").is_some();
    let field = if is_condition { "type" } else { "name" };
    Some((field, entry.get(field)?.as_str()?))
}

/// Tells whether two references name the same, whichever of them leaves out what is so by default.
pub(super) fn is_same(a: &Value, b: &Value) -> bool {
    let part = |value: &Value, field: &str, default: &str| {
        value
            .get(field)
            .and_then(Value::as_str)
            .unwrap_or(default)
            .to_owned()
    };
    let parts = |value: &Value| {
        [
            part(value, "group", "gateway.networking.k8s.io"),
            part(value, "kind", "Gateway"),
            part(value, "namespace", ""),
            part(value, "name", ""),
            part(value, "sectionName", ""),
            value
                .get("port")
                .map(ToString::to_string)
                .unwrap_or_default(),
        ]
    };
    parts(a) == parts(b)
}

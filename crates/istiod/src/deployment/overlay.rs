//! Objects laid over others, and compared with others.

use serde_json::Value;

/// By which field the entries of a list are known, by the name of the list: as Kubernetes merges them.
const KEYS: [(&str, &str); 9] = [
    ("containers", "name"),
    ("initContainers", "name"),
    ("env", "name"),
    ("volumes", "name"),
    ("imagePullSecrets", "name"),
    ("volumeMounts", "mountPath"),
    ("topologySpreadConstraints", "topologyKey"),
    ("hostAliases", "ip"),
    ("ownerReferences", "uid"),
];

/// Lays a part of an object over it: fields replace fields, `null` takes one away, and entries of lists are
/// merged by what they are known by.
pub(super) fn lay(base: &mut Value, over: &Value) {
    lay_at("", base, over);
}

fn lay_at(field: &str, base: &mut Value, over: &Value) {
    match (base, over) {
        (Value::Object(base), Value::Object(over)) => {
            for (field, value) in over {
                if value.is_null() {
                    base.remove(field);
                } else if let Some(known) = base.get_mut(field) {
                    lay_at(field, known, value);
                } else {
                    base.insert(field.clone(), value.clone());
                }
            }
        }
        (Value::Array(base), Value::Array(over)) => match key(field, over) {
            Some(key) => {
                for entry in over {
                    match base.iter_mut().find(|known| known[key] == entry[key]) {
                        Some(known) => lay_at("", known, entry),
                        None => base.push(entry.clone()),
                    }
                }
            }
            None => base.clone_from(over),
        },
        (base, over) => *base = over.clone(),
    }
}

fn key(field: &str, entries: &[Value]) -> Option<&'static str> {
    let ports: &[&str] = &["containerPort", "port"];
    let keyed = match field {
        "ports" => ports
            .iter()
            .copied()
            .find(|key| entries.iter().all(|entry| entry.get(key).is_some())),
        _ => KEYS
            .iter()
            .find(|(list, _)| *list == field)
            .map(|(_, key)| *key),
    };
    keyed.filter(|key| entries.iter().all(|entry| entry.get(key).is_some()))
}

/// Tells whether an object says all that is wanted of it. What else it says is others'.
pub(super) fn covers(known: &Value, wanted: &Value) -> bool {
    match (known, wanted) {
        (Value::Object(known), Value::Object(wanted)) => wanted
            .iter()
            .all(|(field, wanted)| known.get(field).is_some_and(|known| covers(known, wanted))),
        (Value::Array(known), Value::Array(wanted)) if wanted.iter().all(Value::is_object) => {
            wanted
                .iter()
                .all(|wanted| known.iter().any(|known| covers(known, wanted)))
        }
        _ => known == wanted,
    }
}

/// Takes away fields without a value.
pub(super) fn strip(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(strip);
        }
        Value::Array(entries) => entries.iter_mut().for_each(strip),
        _ => {}
    }
}

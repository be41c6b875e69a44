//! Earlier forms of objects: each lacks something that it has now.

use anyhow::Result;
use intake::Decoder;
use model::Object;
use serde_json::Value;

use super::random::Random;

/// How often it is tried to take a part out of an object; a try may meet what makes it an object.
const TRIES: usize = 8;

/// Keys that make an object what it is.
const IDENTITY: [&str; 5] = ["apiVersion", "kind", "metadata", "name", "namespace"];

/// Makes an earlier form of each object of a text, without one of its parts. Where nothing can be
/// left out, there is none.
///
/// # Errors
/// When the text is no YAML.
pub(super) fn objects(
    decoder: &Decoder,
    name: &str,
    text: &str,
    random: &mut Random,
) -> Result<Vec<Object>> {
    let decoder = Decoder {
        admitted: true,
        ..decoder.clone()
    };
    let mut earlier = Vec::new();
    for mut document in intake::yaml_values(text)? {
        if (0..TRIES).any(|_| lose_something(&mut document, random, 0)) {
            earlier.extend(decoder.decode(name, &document.to_string()).objects);
        }
    }
    Ok(earlier)
}

/// Takes one part out of a value, at a random depth.
fn lose_something(value: &mut Value, random: &mut Random, depth: usize) -> bool {
    match value {
        Value::Object(fields) => {
            let known = |key: &str| depth < 2 && IDENTITY.contains(&key);
            let keys: Vec<String> = fields.keys().cloned().collect();
            let Some(key) = keys.get(random.below(keys.len())) else {
                return false;
            };
            let deeper = depth == 0 || random.below(2) == 0;
            if deeper && lose_something(&mut fields[key.as_str()], random, depth + 1) {
                return true;
            }
            !known(key) && fields.remove(key).is_some()
        }
        Value::Array(items) if !items.is_empty() => {
            let at = random.below(items.len());
            if random.below(2) == 0 && lose_something(&mut items[at], random, depth + 1) {
                return true;
            }
            items.remove(at);
            true
        }
        _ => false,
    }
}

//! JSON values as YAML text.

use saphyr::{Mapping, Scalar, Yaml, YamlEmitter};
use serde_json::Value;

/// Writes a value as one YAML document.
///
/// # Errors
/// None that a value of JSON could cause.
pub(crate) fn to_string(value: &Value) -> anyhow::Result<String> {
    let mut text = String::new();
    let mut emitter = YamlEmitter::new(&mut text);
    emitter
        .dump(&yaml(value))
        .map_err(|error| anyhow::anyhow!("write YAML: {error:?}"))?;
    text.push('\n');
    Ok(text)
}

fn yaml(value: &Value) -> Yaml<'_> {
    match value {
        Value::Null => Yaml::Value(Scalar::Null),
        Value::Bool(b) => Yaml::Value(Scalar::Boolean(*b)),
        Value::Number(n) => match n.as_i64() {
            Some(n) => Yaml::Value(Scalar::Integer(n)),
            None => Yaml::Value(Scalar::FloatingPoint(n.as_f64().unwrap_or_default().into())),
        },
        Value::String(s) => string(s),
        Value::Array(items) => Yaml::Sequence(items.iter().map(yaml).collect()),
        Value::Object(fields) => {
            let mut mapping = Mapping::new();
            for (key, value) in fields {
                mapping.insert(string(key), yaml(value));
            }
            Yaml::Mapping(mapping)
        }
    }
}

fn string(text: &str) -> Yaml<'_> {
    Yaml::Value(Scalar::String(text.into()))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    #[test]
    fn output_reads_back_as_it_was() {
        let value = json!({"a": [1, 2.5, "yes", "", null, true], "b": {"c: d": "x\ny", "e": "0"}});
        let text = super::to_string(&value).unwrap();
        assert_eq!(intake::yaml_values(&text).unwrap(), [value]);
    }
}

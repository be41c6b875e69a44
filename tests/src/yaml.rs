//! YAML documents as JSON values, for the runner's own files.

use anyhow::{Context, Result, bail};
use saphyr::{LoadableYamlNode, Scalar, Yaml};
use serde_json::{Map, Number, Value};

/// Parses all documents of `text`; those without content are left out.
pub(crate) fn documents(text: &str) -> Result<Vec<Value>> {
    let documents = Yaml::load_from_str(text).context("parse YAML")?;
    documents
        .iter()
        .map(value)
        .filter(|value| !matches!(value, Ok(Value::Null)))
        .collect()
}

/// Parses the one document of `text`; none is `null`.
pub(crate) fn document(text: &str) -> Result<Value> {
    let mut documents = documents(text)?;
    if documents.len() > 1 {
        bail!("more than one document");
    }
    Ok(documents.pop().unwrap_or_default())
}

fn value(yaml: &Yaml<'_>) -> Result<Value> {
    Ok(match yaml {
        Yaml::Value(Scalar::Null) => Value::Null,
        Yaml::Value(Scalar::Boolean(bool)) => Value::Bool(*bool),
        Yaml::Value(Scalar::Integer(number)) => Value::from(*number),
        Yaml::Value(Scalar::FloatingPoint(number)) => {
            Number::from_f64(number.into_inner()).map_or(Value::Null, Value::Number)
        }
        Yaml::Value(Scalar::String(text)) => Value::String(text.clone().into_owned()),
        Yaml::Sequence(values) => values.iter().map(value).collect::<Result<_>>()?,
        Yaml::Mapping(mapping) => {
            let mut object = Map::new();
            for (key, entry) in mapping {
                let key = match value(key)? {
                    Value::String(text) => text,
                    other => other.to_string(),
                };
                object.insert(key, value(entry)?);
            }
            Value::Object(object)
        }
        Yaml::Tagged(_, inner) => value(inner)?,
        Yaml::Representation(..) | Yaml::Alias(_) | Yaml::BadValue => bail!("bad YAML value"),
    })
}

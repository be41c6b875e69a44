//! A proxy's node message as a file.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context as _, anyhow, bail};
use model::{Locality, Node, Proxy, proxy::NodeError};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The form of a node file: `id`, `cluster`, `locality`, `metadata`, and optionally the names of
/// the `extensions` that the proxy has.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct NodeFile {
    id: String,
    cluster: String,
    locality: LocalityFile,
    metadata: Map<String, Value>,
    extensions: Option<BTreeSet<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct LocalityFile {
    region: String,
    zone: String,
    #[serde(alias = "subZone", alias = "sub_zone")]
    subzone: String,
}

/// Reads a node from a YAML or JSON file.
///
/// # Errors
/// When the file cannot be read, is no YAML, holds fields that a node does not have, or is no node of
/// a proxy: with file, line, field and reason.
pub fn read(path: &Path) -> anyhow::Result<Node> {
    let text = std::fs::read_to_string(path)
        .with_context(|| format!("read the node file {}", path.display()))?;
    let name = path.display();
    let mut documents = intake::yaml_values(&text)
        .map_err(|e| anyhow!("{name}:{}: column {}: {}", e.line, e.column, e.reason))?;
    let value = match documents.len() {
        1 => documents.remove(0),
        n => bail!("{name}: a node file holds one document, this one {n}"),
    };
    let place = |field: &str| match intake::yaml_line(&text, field) {
        Some(line) if field.is_empty() => format!("{name}:{line}"),
        Some(line) => format!("{name}:{line}: {field}"),
        None => format!("{name}: {field}"),
    };
    let node = decode(&value).map_err(|e| anyhow!("{}: {}", place(&e.field), e.reason))?;
    Proxy::parse(&node).map_err(|error| {
        let field = match &error {
            NodeError::Id(_) | NodeError::Type(_) => "id".to_owned(),
            NodeError::Metadata { key, .. } => format!("metadata.{key}"),
            _ => "metadata".to_owned(),
        };
        anyhow!("{}: {error}", place(&field))
    })?;
    Ok(node)
}

/// Reads a node from its JSON form.
///
/// # Errors
/// When a field is unknown or has the wrong type, or the id is missing.
pub fn from_value(value: &Value) -> anyhow::Result<Node> {
    decode(value).map_err(|error| anyhow!("{}: {}", error.field, error.reason))
}

/// What is wrong with a node.
struct Wrong {
    field: String,
    reason: String,
}

fn decode(value: &Value) -> Result<Node, Wrong> {
    let wrong = |field: String, reason: &str| Wrong {
        field,
        reason: reason.to_owned(),
    };
    let decoded = model::api::decode::<NodeFile>(value).map_err(|error| Wrong {
        field: error.path,
        reason: error.reason,
    })?;
    if let Some(unknown) = decoded.unknown.into_iter().next() {
        return Err(wrong(
            unknown,
            "unknown field; a node has id, cluster, locality, metadata and extensions",
        ));
    }
    let file = decoded.value;
    if file.id.is_empty() {
        return Err(wrong(String::new(), "the node has no id"));
    }
    Ok(Node {
        id: file.id,
        cluster: file.cluster,
        locality: Locality {
            region: file.locality.region.into(),
            zone: file.locality.zone.into(),
            subzone: file.locality.subzone.into(),
        },
        metadata: file.metadata,
        extensions: file.extensions,
    })
}

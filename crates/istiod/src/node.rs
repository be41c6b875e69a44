//! A proxy's node message as a file.

use std::{collections::BTreeSet, path::Path};

use anyhow::{Context as _, bail};
use model::{Locality, Node};
use serde::Deserialize;
use serde_json::{Map, Value};

/// The form of a node file: `id`, `cluster`, `locality`, `metadata`, and optionally the names of
/// the `extensions` that the proxy has.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NodeFile {
    id: String,
    cluster: String,
    locality: LocalityFile,
    metadata: Map<String, Value>,
    extensions: Option<BTreeSet<String>>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct LocalityFile {
    region: String,
    zone: String,
    #[serde(alias = "subZone", alias = "sub_zone")]
    subzone: String,
}

/// Reads a node from a YAML or JSON file.
///
/// # Errors
/// When the file cannot be read, is no YAML, or holds fields that a node does not have.
pub fn read(path: &Path) -> anyhow::Result<Node> {
    let value = crate::load::document(path).context("read the node")?;
    from_value(value).with_context(|| format!("understand the node file {}", path.display()))
}

/// Reads a node from its JSON form.
///
/// # Errors
/// When a field is unknown or has the wrong type, or the id is missing.
pub fn from_value(value: Value) -> anyhow::Result<Node> {
    let file: NodeFile = serde_json::from_value(value)?;
    if file.id.is_empty() {
        bail!("the node has no id");
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

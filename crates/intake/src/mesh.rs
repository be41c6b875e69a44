//! Mesh configuration and networks from texts (config-model §4).

use std::sync::Arc;

use model::{
    api::{self, MeshConfig, MeshNetworks},
    config::Origin,
};
use serde_json::Value;

use crate::{
    report::{Finding, Severity},
    yaml::{self, Document},
};

/// A mesh-wide setting as read: the value, unless the text cannot be used, and what there is to say.
#[derive(Clone, Debug)]
pub struct Setting<T> {
    /// The value; `None` leaves the one that is in force.
    pub value: Option<T>,
    /// Errors and unknown fields.
    pub findings: Vec<Finding>,
}

/// Reads a mesh configuration and lays it over `base`. The text is the configuration itself, or a
/// ConfigMap that has it under the key `mesh`.
pub fn mesh_config(source: &str, text: &str, base: &MeshConfig) -> Setting<MeshConfig> {
    read(source, text, "MeshConfig", "mesh", |value| {
        base.overlay(value)
    })
}

/// Reads mesh networks: the text is they themselves, or a ConfigMap that has them under the key
/// `meshNetworks`.
pub fn mesh_networks(source: &str, text: &str) -> Setting<MeshNetworks> {
    read(source, text, "MeshNetworks", "meshNetworks", api::decode)
}

fn read<T: Default>(
    source: &str,
    text: &str,
    kind: &str,
    key: &str,
    decode: impl Fn(&Value) -> Result<api::Decoded<T>, api::DecodeError>,
) -> Setting<T> {
    let source: Arc<str> = source.into();
    let finding = |line: u32, field: String, reason: String, severity: Severity| Finding {
        kind: kind.to_owned(),
        namespace: String::new(),
        name: String::new(),
        origin: Origin {
            source: source.clone(),
            line,
        },
        field,
        reason,
        severity,
    };
    let refused = |line, field, reason| Setting {
        value: None,
        findings: vec![finding(line, field, reason, Severity::Error)],
    };
    let document = match yaml::documents(text).into_iter().next() {
        None => {
            return use_value(
                &Value::Object(serde_json::Map::new()),
                None,
                decode,
                finding,
            );
        }
        Some(Err(error)) => {
            return refused(
                error.line,
                String::new(),
                format!("column {}: {}", error.column, error.reason),
            );
        }
        Some(Ok(document)) => document,
    };
    if document.value.get("kind").and_then(Value::as_str) != Some("ConfigMap") {
        return use_value(&document.value, Some(&document), decode, finding);
    }
    let field = format!("data.{key}");
    let line = document.lines().find(&field).unwrap_or(document.line);
    let Some(inner) = document
        .value
        .get("data")
        .and_then(|d| d.get(key))
        .and_then(Value::as_str)
    else {
        return refused(line, field, "the ConfigMap has no such key".to_owned());
    };
    match yaml::documents(inner).into_iter().next() {
        None => use_value(
            &Value::Object(serde_json::Map::new()),
            None,
            decode,
            finding,
        ),
        Some(Err(error)) => refused(line, field, error.to_string()),
        Some(Ok(inner)) => use_value(&inner.value, None, decode, |_, path, reason, severity| {
            finding(line, path, reason, severity)
        }),
    }
}

fn use_value<T>(
    value: &Value,
    document: Option<&Document<'_>>,
    decode: impl Fn(&Value) -> Result<api::Decoded<T>, api::DecodeError>,
    finding: impl Fn(u32, String, String, Severity) -> Finding,
) -> Setting<T> {
    let lines = std::cell::OnceCell::new();
    let line = |path: &str| {
        let document = document?;
        lines.get_or_init(|| document.lines()).find(path)
    };
    match decode(value) {
        Ok(decoded) => Setting {
            findings: decoded
                .unknown
                .into_iter()
                .map(|path| {
                    let at = line(&path).unwrap_or(1);
                    finding(at, path, "unknown field".to_owned(), Severity::Warning)
                })
                .collect(),
            value: Some(decoded.value),
        },
        Err(error) => {
            let at = line(&error.path).unwrap_or(1);
            Setting {
                value: None,
                findings: vec![finding(at, error.path, error.reason, Severity::Error)],
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, trust_domain: Option<&str>, findings: &[&str]) {
        let setting = mesh_config("mesh.yaml", text, &MeshConfig::default());
        let found: Vec<String> = setting.findings.iter().map(ToString::to_string).collect();
        assert_eq!(found, findings);
        assert_eq!(
            setting.value.as_ref().map(|m| m.trust_domain.as_str()),
            trust_domain
        );
    }

    #[test]
    fn texts_and_config_maps() {
        check("", Some("cluster.local"), &[]);
        check("trustDomain: td", Some("td"), &[]);
        let map = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: istio}\ndata:\n  mesh: |\n    trustDomain: td\n    other: 1\n";
        check(
            map,
            Some("td"),
            &["mesh.yaml:5: warning: MeshConfig : other: unknown field"],
        );
        check(
            &map.replace("mesh:", "x:"),
            None,
            &["mesh.yaml:4: error: MeshConfig : data.mesh: the ConfigMap has no such key"],
        );
    }

    #[test]
    fn mistakes_have_lines() {
        check(
            "trustDomain: td\nconnectTimeout: soon\n",
            None,
            &[
                "mesh.yaml:2: error: MeshConfig : connectTimeout: \"soon\" is not a duration such as \"1.5s\", \"500ms\" or \"1h30m\"",
            ],
        );
        check(
            "trustDomain: td\nfoo:\n  a: 1\n",
            Some("td"),
            &["mesh.yaml:2: warning: MeshConfig : foo: unknown field"],
        );
        assert_eq!(mesh_networks("n.yaml", "networks: 5").findings.len(), 1);
    }
}

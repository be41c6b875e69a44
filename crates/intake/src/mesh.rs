//! Mesh configuration and networks from texts (config-model §4).

use std::sync::Arc;

use model::{
    api::{self, MeshConfig, MeshNetworks},
    config::Origin,
    validation::{self, Issue},
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

/// Reads a mesh configuration, lays it over `base` and validates the result. The text is the
/// configuration itself, or a ConfigMap that has it under the key `mesh`.
pub fn mesh_config(source: &str, text: &str, base: &MeshConfig) -> Setting<MeshConfig> {
    read(
        source,
        text,
        "MeshConfig",
        "mesh",
        |value| base.overlay(value),
        validation::validate_mesh,
    )
}

/// Reads mesh networks and validates them: the text is they themselves, or a ConfigMap that has them
/// under the key `meshNetworks`. `resolve_names` says that gateways may be host names.
pub fn mesh_networks(source: &str, text: &str, resolve_names: bool) -> Setting<MeshNetworks> {
    let check = |networks: &MeshNetworks| validation::validate_networks(networks, resolve_names);
    read(
        source,
        text,
        "MeshNetworks",
        "meshNetworks",
        api::decode,
        check,
    )
}

fn read<T: Default>(
    source: &str,
    text: &str,
    kind: &str,
    key: &str,
    decode: impl Fn(&Value) -> Result<api::Decoded<T>, api::DecodeError>,
    check: impl Fn(&T) -> Vec<Issue>,
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
                check,
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
        return use_value(&document.value, Some(&document), decode, check, finding);
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
            check,
            finding,
        ),
        Some(Err(error)) => refused(line, field, error.to_string()),
        Some(Ok(inner)) => use_value(
            &inner.value,
            None,
            decode,
            check,
            |_, path, reason, severity| finding(line, path, reason, severity),
        ),
    }
}

fn use_value<T>(
    value: &Value,
    document: Option<&Document<'_>>,
    decode: impl Fn(&Value) -> Result<api::Decoded<T>, api::DecodeError>,
    check: impl Fn(&T) -> Vec<Issue>,
    finding: impl Fn(u32, String, String, Severity) -> Finding,
) -> Setting<T> {
    let lines = std::cell::OnceCell::new();
    let line = |path: &str| {
        let document = document?;
        lines.get_or_init(|| document.lines()).find(path)
    };
    let at = |path: &str| line(path).unwrap_or(1);
    let decoded = match decode(value) {
        Ok(decoded) => decoded,
        Err(error) => {
            let found = finding(at(&error.path), error.path, error.reason, Severity::Error);
            return Setting {
                value: None,
                findings: vec![found],
            };
        }
    };
    let unknown = decoded.unknown.into_iter();
    let mut findings: Vec<Finding> = unknown
        .map(|path| {
            finding(
                at(&path),
                path,
                "unknown field".to_owned(),
                Severity::Warning,
            )
        })
        .collect();
    let issues = check(&decoded.value);
    let refused = validation::is_refused(&issues);
    findings.extend(issues.into_iter().map(|issue| {
        let severity = match issue.severity {
            validation::Severity::Error => Severity::Error,
            validation::Severity::Warning => Severity::Warning,
        };
        finding(at(&issue.path), issue.path, issue.reason, severity)
    }));
    Setting {
        value: (!refused).then_some(decoded.value),
        findings,
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
            &["mesh.yaml:5: warning: MeshConfig: other: unknown field"],
        );
        check(
            &map.replace("mesh:", "x:"),
            None,
            &["mesh.yaml:4: error: MeshConfig: data.mesh: the ConfigMap has no such key"],
        );
    }

    #[test]
    fn mistakes_have_lines() {
        check(
            "trustDomain: td\nproxyListenPort: -1\n",
            None,
            &[
                "mesh.yaml:2: error: MeshConfig: proxyListenPort: port -1 is out of range, allowed are 1 to 65535",
            ],
        );
        check(
            "trustDomain: td\nconnectTimeout: soon\n",
            None,
            &[
                "mesh.yaml:2: error: MeshConfig: connectTimeout: \"soon\" is not a duration such as \"1.5s\", \"500ms\" or \"1h30m\"",
            ],
        );
        check(
            "trustDomain: td\nfoo:\n  a: 1\n",
            Some("td"),
            &["mesh.yaml:2: warning: MeshConfig: foo: unknown field"],
        );
        assert_eq!(
            mesh_networks("n.yaml", "networks: 5", true).findings.len(),
            1
        );
    }
}

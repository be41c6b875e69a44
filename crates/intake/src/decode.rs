//! Documents to typed objects, with a finding for everything that is not as it should be.

mod meta;

use std::sync::Arc;

use model::{ConfigKey, Kind, Object, Timestamp, config::Origin};
use rayon::prelude::*;
use serde_json::Value;

use crate::{
    report::{Finding, Severity},
    validate::validate,
    yaml::{self, Chunk, Document, Lines},
};

/// Namespace of namespaced objects that state none, as `kubectl` has it.
const DEFAULT_NAMESPACE: &str = "default";

/// Fewest documents of a text for which reading them in parallel pays.
const PARALLEL_FROM: usize = 64;

/// Deepest nesting of lists of objects.
const MAX_LIST_DEPTH: usize = 4;

/// How documents are read.
#[derive(Clone, Default, Debug)]
pub struct Decoder {
    /// Creation time of objects that state none. Zero unless a caller knows better: the objects of a
    /// recording, for example, were all created at one known time.
    pub default_created: Timestamp,
    /// Judges the values of `EnvoyFilter` patches, which need Envoy's API; `None` accepts them all.
    pub check_patch: Option<model::validation::CheckPatch>,
    /// The objects were admitted before (they come from a cluster, or a test bends the rules on
    /// purpose): the admission rules are not asked, as config-model §2 wants it.
    pub admitted: bool,
}

/// What a text holds.
#[derive(Clone, Default, Debug)]
pub struct Decoded {
    /// Accepted objects, in the order of the text.
    pub objects: Vec<Object>,
    /// Everything there is to say about the text, in its order.
    pub findings: Vec<Finding>,
    /// Objects that the admission rules refused.
    pub refused: Vec<ConfigKey>,
    /// Objects with a field of the wrong type: no rule was ever asked about them.
    pub undecodable: Vec<ConfigKey>,
    /// A document is neither YAML nor JSON: the text may be half-written.
    pub broken: bool,
}

impl Decoded {
    /// Puts what follows in a text behind what is there.
    fn join(mut self, next: Self) -> Self {
        self.objects.extend(next.objects);
        self.findings.extend(next.findings);
        self.refused.extend(next.refused);
        self.undecodable.extend(next.undecodable);
        self.broken |= next.broken;
        self
    }
}

impl Decoder {
    /// Reads a text of YAML or JSON documents; `source` is the name that findings give it.
    ///
    /// Lists (`kind: List` and typed ones) count as their items. What cannot be read is reported and
    /// left out; everything else is returned.
    pub fn decode(&self, source: &str, text: &str) -> Decoded {
        let source: Arc<str> = source.into();
        let chunks = yaml::chunks(text);
        if chunks.len() < PARALLEL_FROM {
            chunks
                .into_iter()
                .map(|c| self.chunk(&source, c))
                .fold(Decoded::default(), Decoded::join)
        } else {
            let parts: Vec<Decoded> = chunks
                .into_par_iter()
                .map(|c| self.chunk(&source, c))
                .collect();
            parts.into_iter().fold(Decoded::default(), Decoded::join)
        }
    }

    /// Reads one object that is JSON already; `source` is the name that findings give where it is from.
    /// They have no lines.
    #[cfg(feature = "kubernetes")]
    pub(crate) fn decode_value(&self, source: &Arc<str>, value: Value) -> Decoded {
        let mut decoded = Decoded::default();
        self.document(source, &Document::of_value(value), &mut decoded);
        decoded
    }

    fn chunk(&self, source: &Arc<str>, chunk: Chunk<'_>) -> Decoded {
        let mut decoded = Decoded::default();
        for document in chunk.documents() {
            match document {
                Ok(document) => self.document(source, &document, &mut decoded),
                Err(error) => {
                    decoded.broken = true;
                    decoded.findings.push(Finding {
                        kind: String::new(),
                        namespace: String::new(),
                        name: String::new(),
                        origin: Origin {
                            source: source.clone(),
                            line: error.line,
                        },
                        field: String::new(),
                        reason: format!("column {}: {}", error.column, error.reason),
                        severity: Severity::Error,
                    });
                }
            }
        }
        decoded
    }

    fn document(&self, source: &Arc<str>, document: &Document<'_>, decoded: &mut Decoded) {
        let mut reader = Reader {
            decoder: self,
            source,
            document,
            lines: None,
            decoded,
        };
        for (key, line) in &document.duplicates {
            reader.decoded.findings.push(Finding {
                kind: text(&document.value, "kind"),
                namespace: document
                    .value
                    .get("metadata")
                    .map(|m| text(m, "namespace"))
                    .unwrap_or_default(),
                name: document
                    .value
                    .get("metadata")
                    .map(|m| text(m, "name"))
                    .unwrap_or_default(),
                origin: Origin {
                    source: source.clone(),
                    line: *line,
                },
                field: key.clone(),
                reason: "the key occurs twice in one mapping, the last one counts".to_owned(),
                severity: Severity::Warning,
            });
        }
        reader.value(&document.value, "", None, 0);
    }
}

/// The string in a field, or nothing.
fn text(value: &Value, field: &str) -> String {
    value
        .get(field)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// Reads one document.
struct Reader<'a> {
    decoder: &'a Decoder,
    source: &'a Arc<str>,
    document: &'a Document<'a>,
    lines: Option<Lines>,
    decoded: &'a mut Decoded,
}

/// What is being read: an object's names as written, and where it is in its document.
struct Item<'a> {
    kind: String,
    namespace: String,
    name: String,
    /// Path of the object in its document, `items[3]` in a list.
    path: &'a str,
}

impl Item<'_> {
    /// The object's key, if it has a name.
    fn key(&self, kind: Kind) -> Option<ConfigKey> {
        (!self.name.is_empty())
            .then(|| ConfigKey::new(kind, self.namespace.as_str(), self.name.as_str()))
    }
}

impl Reader<'_> {
    /// Reads a value that is an object or a list of objects. `implied` is the type of its items that
    /// a typed list gives.
    fn value(&mut self, value: &Value, path: &str, implied: Option<(&str, &str)>, depth: usize) {
        let Value::Object(map) = value else {
            let item = Item {
                kind: String::new(),
                namespace: String::new(),
                name: String::new(),
                path,
            };
            self.find(
                &item,
                "",
                "the document is not an object".to_owned(),
                Severity::Error,
            );
            return;
        };
        let api_version = map.get("apiVersion").and_then(Value::as_str);
        let kind = map.get("kind").and_then(Value::as_str);
        let (Some(api_version), Some(kind)) = (
            api_version.or(implied.map(|i| i.0)),
            kind.or(implied.map(|i| i.1)),
        ) else {
            let item = Item {
                kind: text(value, "kind"),
                namespace: String::new(),
                name: String::new(),
                path,
            };
            let reason = "the document has no apiVersion and kind".to_owned();
            self.find(&item, "", reason, Severity::Error);
            return;
        };
        if let (Some(of), Some(Value::Array(items))) = (kind.strip_suffix("List"), map.get("items"))
        {
            if depth >= MAX_LIST_DEPTH {
                let item = Item {
                    kind: kind.to_owned(),
                    namespace: String::new(),
                    name: String::new(),
                    path,
                };
                self.find(
                    &item,
                    "items",
                    "lists are nested too deeply".to_owned(),
                    Severity::Error,
                );
                return;
            }
            let implied = (!of.is_empty()).then_some((api_version, of));
            let dot = if path.is_empty() { "" } else { "." };
            for (index, item) in items.iter().enumerate() {
                self.value(
                    item,
                    &format!("{path}{dot}items[{index}]"),
                    implied,
                    depth + 1,
                );
            }
            return;
        }
        self.object(value, api_version, kind, path);
    }

    fn object(&mut self, value: &Value, api_version: &str, kind_name: &str, path: &str) {
        let metadata = value.get("metadata").unwrap_or(&Value::Null);
        let mut item = Item {
            kind: kind_name.to_owned(),
            namespace: text(metadata, "namespace"),
            name: text(metadata, "name"),
            path,
        };
        let (group, version) = api_version.rsplit_once('/').unwrap_or(("", api_version));
        let Some(kind) = Kind::find(group, version, kind_name) else {
            let other = Kind::ALL
                .iter()
                .find(|k| k.group() == group && k.name() == kind_name);
            let (reason, severity) = match other {
                Some(kind) => (
                    format!(
                        "version {version} is not served, only {}",
                        kind.versions().join(", ")
                    ),
                    Severity::Error,
                ),
                None => (
                    format!("nothing reads {api_version} {kind_name}"),
                    Severity::Ignored,
                ),
            };
            self.find(&item, "", reason, severity);
            return;
        };
        if kind.is_cluster_scoped() {
            item.namespace.clear();
        } else if item.namespace.is_empty() {
            DEFAULT_NAMESPACE.clone_into(&mut item.namespace);
        }
        let origin = Origin {
            source: self.source.clone(),
            line: self.line(path),
        };
        let meta = match meta::read(metadata, &item.namespace, origin) {
            Ok(mut meta) => {
                if meta.created == Timestamp::default() {
                    meta.created = self.decoder.default_created;
                }
                meta
            }
            Err((field, reason)) => {
                self.decoded.undecodable.extend(item.key(kind));
                self.find(&item, &field, reason, Severity::Error);
                return;
            }
        };
        let first = self.decoded.findings.len();
        if kind.group().ends_with("istio.io") && !self.decoder.admitted {
            self.check_envelope(&item, value);
        }
        match Object::decode(kind, meta, value) {
            Ok((object, unknown)) => {
                // Of Kubernetes' own kinds only a part is modelled; the rest is no mistake.
                if kind.is_custom() {
                    for field in unknown {
                        self.find(&item, &field, "unknown field".to_owned(), Severity::Warning);
                    }
                }
                if !self.decoder.admitted {
                    for problem in validate(&object, value, self.decoder.check_patch) {
                        self.find(&item, &problem.field, problem.reason, problem.severity);
                    }
                }
                let findings = &self.decoded.findings[first..];
                if findings.iter().any(|f| f.severity == Severity::Error) {
                    self.decoded.refused.extend(item.key(kind));
                } else {
                    self.decoded.objects.push(object);
                }
            }
            Err(error) => {
                self.decoded.undecodable.extend(item.key(kind));
                self.find(&item, &error.path, error.reason, Severity::Error);
            }
        }
    }

    /// Objects of Istio's kinds have five top-level keys; admission refuses any other
    /// (config-model §2).
    fn check_envelope(&mut self, item: &Item<'_>, value: &Value) {
        let Value::Object(map) = value else { return };
        for key in map.keys() {
            if !matches!(
                key.as_str(),
                "apiVersion" | "kind" | "metadata" | "spec" | "status"
            ) {
                self.find(item, key, "unknown field".to_owned(), Severity::Error);
            }
        }
    }

    fn find(&mut self, item: &Item<'_>, field: &str, reason: String, severity: Severity) {
        let line = self.line(&join(item.path, field));
        self.decoded.findings.push(Finding {
            kind: item.kind.clone(),
            namespace: item.namespace.clone(),
            name: item.name.clone(),
            origin: Origin {
                source: self.source.clone(),
                line,
            },
            field: field.to_owned(),
            reason,
            severity,
        });
    }

    /// The line of a path in the document; the document's own needs no second pass.
    fn line(&mut self, path: &str) -> u32 {
        if path.is_empty() {
            return self.document.line;
        }
        let lines = self.lines.get_or_insert_with(|| self.document.lines());
        lines.find(path).unwrap_or(self.document.line)
    }
}

/// Joins two paths.
fn join(prefix: &str, path: &str) -> String {
    let dot = if prefix.is_empty() || path.is_empty() || path.starts_with('[') {
        ""
    } else {
        "."
    };
    format!("{prefix}{dot}{path}")
}

#[cfg(test)]
mod tests;

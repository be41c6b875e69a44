//! What is expected of a case, and how it differs from what we send.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use anyhow::{Context, Result, bail};
use envoy_json::compare::{self, Difference};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{
    Outcome,
    case::{Case, read},
};

/// The lists of an expected file.
pub const LISTS: [&str; 7] = [
    "clusters",
    "endpoints",
    "listeners",
    "routes",
    "secrets",
    "extensions",
    "nameTables",
];

/// What an object is known by.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub struct ObjectId {
    /// Kind.
    pub kind: String,
    /// Namespace; empty where there is none.
    #[serde(default)]
    pub namespace: String,
    /// Name.
    pub name: String,
}

impl ObjectId {
    /// Returns what `object` is known by.
    pub fn of(object: &Value) -> Self {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let metadata = &object["metadata"];
        Self {
            kind: text(&object["kind"]),
            namespace: text(&metadata["namespace"]),
            name: text(&metadata["name"]),
        }
    }
}

impl fmt::Display for ObjectId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}/{}", self.kind, self.namespace, self.name)
    }
}

/// A difference, and which proxy it concerns.
#[derive(Clone, Debug)]
pub struct Found {
    /// `<proxy>/<list>[<resource>]...`, or `refused[<object>]`.
    pub path: String,
    /// The difference itself; its path is the full one.
    pub difference: Difference,
}

/// What is expected of a case.
#[derive(Clone, Debug)]
pub struct Expected {
    proxies: BTreeMap<String, Value>,
    refused: BTreeSet<ObjectId>,
}

/// The recorded bases, each read once.
#[derive(Debug)]
pub struct RecordedBases {
    root: PathBuf,
    read: Mutex<BTreeMap<String, Arc<Value>>>,
}

impl RecordedBases {
    /// Prepares to read those of the corpus at `root`.
    pub fn new(root: &Path) -> Self {
        Self {
            root: root.to_path_buf(),
            read: Mutex::default(),
        }
    }

    /// Returns what `base` (`minimal+gateway/client`) receives.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn base(&self, base: &str) -> Result<Arc<Value>> {
        let mut bases = self.read.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(value) = bases.get(base) {
            return Ok(Arc::clone(value));
        }
        let path = self
            .root
            .join("recorded-bases")
            .join(format!("{base}.json"));
        let value = serde_json::from_str(&read(&path)?)
            .with_context(|| format!("parse {}", path.display()))?;
        let value = Arc::new(value);
        bases.insert(base.to_owned(), Arc::clone(&value));
        Ok(value)
    }

    /// Reads what is expected of `case`.
    ///
    /// # Errors
    /// When a file cannot be read or is malformed.
    pub fn expected(&self, case: &Case) -> Result<Expected> {
        let folder = case.folder().join("expected");
        let mut proxies = BTreeMap::new();
        for proxy in &case.spec.proxies {
            let path = folder.join(format!("{proxy}.json"));
            let value = serde_json::from_str(&read(&path)?)
                .with_context(|| format!("parse {}", path.display()))?;
            let value = self
                .resolve(value)
                .with_context(|| format!("resolve {proxy}.json"))?;
            proxies.insert(proxy.clone(), value);
        }
        let refused = folder.join("refused.json");
        let refused = if refused.is_file() {
            serde_json::from_str(&read(&refused)?).context("parse refused.json")?
        } else {
            BTreeSet::new()
        };
        Ok(Expected { proxies, refused })
    }

    /// Lays a file over the recorded base that it names.
    fn resolve(&self, mut value: Value) -> Result<Value> {
        let Some(object) = value.as_object_mut() else {
            bail!("not an object")
        };
        let Some(over) = object.remove("over") else {
            return Ok(value);
        };
        let over = over.as_str().context("\"over\" is no string")?;
        let base = self.base(over)?;
        let removed = object.remove("removed").unwrap_or_default();
        let mut lists = Map::new();
        for list in LISTS {
            let added = list_of(object.get(list).unwrap_or(&Value::Null));
            let gone: BTreeSet<&str> = list_of(&removed[list])
                .iter()
                .filter_map(Value::as_str)
                .chain(added.iter().map(resource_name))
                .collect();
            let kept = list_of(&base[list])
                .iter()
                .filter(|kept| !gone.contains(resource_name(kept)));
            let all: Vec<Value> = kept.chain(added).cloned().collect();
            if !all.is_empty() {
                lists.insert(list.to_owned(), all.into());
            }
        }
        Ok(Value::Object(lists))
    }
}

impl Expected {
    /// Returns the outcome that has no difference.
    pub fn as_outcome(&self) -> Outcome {
        Outcome {
            proxies: self.proxies.clone(),
            refused: self.refused.iter().cloned().collect(),
        }
    }

    /// Compares with what we made of the case.
    pub fn compare(&self, outcome: &Outcome) -> Vec<Found> {
        let mut found = Vec::new();
        let got: BTreeSet<&ObjectId> = outcome.refused.iter().collect();
        for missing in self.refused.iter().filter(|id| !got.contains(id)) {
            let object = Some(Value::from("refused"));
            found.push(at(
                format!("refused[{missing}]"),
                object,
                Some(Value::from("accepted")),
            ));
        }
        for surplus in got.into_iter().filter(|id| !self.refused.contains(id)) {
            let object = Some(Value::from("accepted"));
            found.push(at(
                format!("refused[{surplus}]"),
                object,
                Some(Value::from("refused")),
            ));
        }
        for (proxy, expected) in &self.proxies {
            let got = outcome.proxies.get(proxy).unwrap_or(&Value::Null);
            for list in LISTS {
                let path = format!("{proxy}/{list}");
                lists(
                    &path,
                    list_of(&expected[list]),
                    list_of(&got[list]),
                    &mut found,
                );
            }
        }
        found
    }
}

/// Compares two lists of resources by name; resources of one name, in their order.
fn lists(path: &str, expected: &[Value], got: &[Value], found: &mut Vec<Found>) {
    let (expected, mut got) = (by_name(expected), by_name(got));
    for (name, expected) in expected {
        let mut got = got.remove(name).unwrap_or_default().into_iter();
        let path = format!("{path}[{name}]");
        for expected in expected {
            match got.next() {
                Some(got) => {
                    for difference in compare::compare(expected, got) {
                        let dot = if difference.path.starts_with('[') {
                            ""
                        } else {
                            "."
                        };
                        let path = format!("{path}{dot}{}", difference.path);
                        found.push(at(path, difference.expected, difference.got));
                    }
                }
                None => found.push(at(path.clone(), Some(expected.clone()), None)),
            }
        }
        found.extend(got.map(|surplus| at(path.clone(), None, Some(surplus.clone()))));
    }
    for (name, surplus) in got {
        let path = format!("{path}[{name}]");
        found.extend(
            surplus
                .into_iter()
                .map(|surplus| at(path.clone(), None, Some(surplus.clone()))),
        );
    }
}

fn by_name(list: &[Value]) -> BTreeMap<&str, Vec<&Value>> {
    let mut map: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for resource in list {
        map.entry(resource_name(resource))
            .or_default()
            .push(resource);
    }
    map
}

fn at(path: String, expected: Option<Value>, got: Option<Value>) -> Found {
    Found {
        path: path.clone(),
        difference: Difference {
            path,
            expected,
            got,
        },
    }
}

fn list_of(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// The name that resources are matched by; name tables have none.
fn resource_name(resource: &Value) -> &str {
    compare::name(resource).unwrap_or_default()
}

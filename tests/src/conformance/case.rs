//! A case, and what a generator gets of it.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde::Deserialize;
use serde_json::Value;

use super::expected::ObjectId;

/// One case of the corpus.
#[derive(Clone, Debug)]
pub struct Case {
    /// `area/name`.
    pub id: String,
    /// What `case.yaml` says.
    pub spec: Spec,
    /// Root of the corpus.
    root: PathBuf,
}

/// `case.yaml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Spec {
    /// The behaviour under test, in a sentence.
    pub about: String,
    /// Objects and proxies to load first, in order.
    pub bases: Vec<String>,
    /// Proxies to generate for.
    pub proxies: Vec<String>,
    /// Further proxies: name to node.
    #[serde(default)]
    pub extra_proxies: BTreeMap<String, Value>,
    /// MeshConfig fields laid over the defaults.
    #[serde(default)]
    pub mesh: Value,
    /// MeshNetworks.
    #[serde(default)]
    pub networks: Value,
    /// Feature flags: environment variables.
    #[serde(default)]
    pub env: BTreeMap<String, Value>,
}

/// What a generator gets of a case.
#[derive(Clone, Debug)]
pub struct CaseInput {
    /// `area/name`.
    pub id: String,
    /// Name and YAML text of each input, bases first; no object occurs twice.
    pub files: Vec<(String, String)>,
    /// The proxies to generate for: name to Envoy node.
    pub nodes: BTreeMap<String, Value>,
    /// MeshConfig fields laid over the defaults; `null` when there are none.
    pub mesh: Value,
    /// MeshNetworks; `null` when there are none.
    pub networks: Value,
    /// Feature flags: environment variables.
    pub env: BTreeMap<String, String>,
}

/// Loads the cases of the corpus at `root`, sorted: those of `area`, and whose `area/name` contains `name`.
///
/// # Errors
/// When a file cannot be read or a `case.yaml` is malformed.
pub fn load(root: &Path, area: Option<&str>, name: Option<&str>) -> Result<Vec<Case>> {
    let mut cases = Vec::new();
    for area_folder in folders(&root.join("cases"))? {
        if area.is_some_and(|area| area != area_folder) {
            continue;
        }
        for case in folders(&root.join("cases").join(&area_folder))? {
            let id = format!("{area_folder}/{case}");
            if name.is_some_and(|name| !id.contains(name)) {
                continue;
            }
            let path = root.join("cases").join(&id).join("case.yaml");
            let spec = read(&path)
                .and_then(|text| Ok(serde_json::from_value(document(&text)?)?))
                .with_context(|| format!("load {}", path.display()))?;
            cases.push(Case {
                id,
                spec,
                root: root.to_path_buf(),
            });
        }
    }
    Ok(cases)
}

impl Case {
    /// Returns the area: the part of the id before the slash.
    pub fn area(&self) -> &str {
        self.id.split('/').next().unwrap_or(&self.id)
    }

    /// Returns the folder of the case.
    pub fn folder(&self) -> PathBuf {
        self.root.join("cases").join(&self.id)
    }

    /// Reads all that a generator gets.
    ///
    /// # Errors
    /// When a file cannot be read, or a proxy is not defined.
    pub fn input(&self) -> Result<CaseInput> {
        let own = self.folder().join("input.yaml");
        let own = if own.is_file() {
            Some(read(&own)?)
        } else {
            None
        };
        let replaced = match &own {
            Some(text) => ids(text)?,
            None => BTreeSet::new(),
        };

        let mut files = Vec::new();
        let mut defined = BTreeMap::new();
        for base in &self.spec.bases {
            let folder = self.root.join("bases").join(base);
            let objects = read(&folder.join("objects.yaml"))?;
            files.push((
                format!("bases/{base}/objects.yaml"),
                without(&objects, &replaced)?,
            ));
            let proxies = folder.join("proxies.yaml");
            if proxies.is_file()
                && let Value::Object(proxies) = document(&read(&proxies)?)?
            {
                defined.extend(proxies);
            }
        }
        files.extend(own.map(|text| (format!("cases/{}/input.yaml", self.id), text)));
        defined.extend(self.spec.extra_proxies.clone());
        let nodes = self.spec.proxies.iter().map(|name| {
            let node = defined
                .get(name)
                .with_context(|| format!("no proxy {name}"))?;
            Ok((name.clone(), node.clone()))
        });
        let text = |value: &Value| {
            value
                .as_str()
                .map_or_else(|| value.to_string(), str::to_owned)
        };
        Ok(CaseInput {
            id: self.id.clone(),
            files,
            nodes: nodes.collect::<Result<_>>()?,
            mesh: self.spec.mesh.clone(),
            networks: self.spec.networks.clone(),
            env: self
                .spec
                .env
                .iter()
                .map(|(name, value)| (name.clone(), text(value)))
                .collect(),
        })
    }
}

/// The objects that the documents of `text` hold.
fn ids(text: &str) -> Result<BTreeSet<ObjectId>> {
    Ok(intake::yaml_values(text)?
        .iter()
        .map(ObjectId::of)
        .collect())
}

/// Returns `text` without the documents of the objects in `replaced`.
fn without(text: &str, replaced: &BTreeSet<ObjectId>) -> Result<String> {
    let mut kept: Vec<&str> = Vec::new();
    for document in text.split("\n---\n") {
        if ids(document)?.is_disjoint(replaced) {
            kept.push(document);
        }
    }
    Ok(kept.join("\n---\n"))
}

/// Lists the folders in `folder`, sorted.
fn folders(folder: &Path) -> Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).with_context(|| format!("list {}", folder.display()))? {
        let entry = entry?;
        if entry.path().is_dir() {
            names.push(entry.file_name().to_string_lossy().into_owned());
        }
    }
    names.sort();
    Ok(names)
}

/// Parses the one document of `text`; none is `null`.
fn document(text: &str) -> Result<Value> {
    let mut documents = intake::yaml_values(text)?;
    ensure!(documents.len() <= 1, "more than one document");
    Ok(documents.pop().unwrap_or_default())
}

pub(super) fn read(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

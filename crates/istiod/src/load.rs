//! Texts and files to a loaded intake, with everything there is to say about them.

use std::{
    path::{Path, PathBuf},
    time::Instant,
};

use anyhow::{Context as _, bail};
use intake::{Change, Decoder, Finding, Intake, Options, Severity};
use model::{
    ConfigKey, Features,
    api::{MeshConfig, MeshNetworks},
    state::MeshIdentity,
    validation::{self, Issue},
};
use serde_json::Value;

/// Extensions of files that are read.
const EXTENSIONS: [&str; 3] = ["yaml", "yml", "json"];

/// What is to be loaded.
#[derive(Clone, Default, Debug)]
pub struct Input {
    /// Name and content of each file, in order.
    pub files: Vec<(String, String)>,
    /// Fields laid over the mesh's defaults; null when there are none.
    pub mesh: Value,
    /// Networks of the mesh; null when there are none.
    pub networks: Value,
    /// Flags that change what is generated.
    pub features: Features,
    /// Names that the whole process agrees on.
    pub identity: MeshIdentity,
    /// How documents are read.
    pub decoder: Decoder,
}

/// What was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// Tables and what was derived from them.
    pub intake: Intake,
    /// Number of accepted objects.
    pub objects: usize,
    /// Objects that the admission rules refused.
    pub refused: Vec<ConfigKey>,
    /// Objects with a field of the wrong type.
    pub undecodable: Vec<ConfigKey>,
    /// Everything there is to say about the input.
    pub findings: Vec<Finding>,
}

impl Input {
    /// Reads the files, the mesh configuration and the networks that a command names.
    ///
    /// # Errors
    /// When a path does not exist or cannot be read, or a mesh file is no YAML.
    pub fn read(args: &crate::cli::ConfigArgs) -> anyhow::Result<Self> {
        let mut files = Vec::new();
        for path in &args.config {
            for file in expand(path)? {
                let text = std::fs::read_to_string(&file)
                    .with_context(|| format!("read {}", file.display()))?;
                files.push((file.display().to_string(), text));
            }
        }
        let document = |path: Option<&PathBuf>| path.map_or(Ok(Value::Null), |p| document(p));
        Ok(Self {
            files,
            mesh: document(args.mesh_config.as_ref())?,
            networks: document(args.mesh_networks.as_ref())?,
            identity: MeshIdentity {
                domain: args.domain.as_str().into(),
                ..MeshIdentity::default()
            },
            ..Self::default()
        })
    }

    /// Decodes everything and derives the state.
    ///
    /// # Errors
    /// When the mesh configuration or the networks do not fit their form. Objects that do not are
    /// findings.
    pub fn load(self, now: Instant) -> anyhow::Result<Loaded> {
        let mesh = mesh_config(&self.mesh)?;
        let networks = mesh_networks(&self.networks, self.features.resolve_hostname_gateways)?;
        let identity = MeshIdentity { ..self.identity };
        let intake = Intake::new(Options {
            features: self.features,
            identity,
            mesh,
            networks,
        });
        let decoder = Decoder {
            check_patch: Some(generators::admission::check_patch),
            ..self.decoder
        };
        let mut loaded = Loaded {
            intake,
            objects: 0,
            refused: Vec::new(),
            undecodable: Vec::new(),
            findings: Vec::new(),
        };
        let mut changes = Vec::new();
        for (name, text) in &self.files {
            let decoded = decoder.decode(name, text);
            loaded.objects += decoded.objects.len();
            loaded.refused.extend(decoded.refused);
            loaded.undecodable.extend(decoded.undecodable);
            loaded.findings.extend(decoded.findings);
            changes.extend(decoded.objects.into_iter().map(Change::Apply));
        }
        loaded.intake.apply(changes, now);
        Ok(loaded)
    }
}

/// Reads the mesh configuration: `fields` laid over the defaults.
///
/// # Errors
/// The path of the first field that does not fit, or every broken rule.
pub fn mesh_config(fields: &Value) -> anyhow::Result<MeshConfig> {
    let default = MeshConfig::default();
    if fields.is_null() {
        return Ok(default);
    }
    let decoded = default.overlay(fields).context("mesh configuration")?;
    for unknown in &decoded.unknown {
        tracing::warn!(field = %unknown, "unknown field in the mesh configuration");
    }
    accept(
        "mesh configuration",
        &validation::validate_mesh(&decoded.value),
    )?;
    Ok(decoded.value)
}

/// Fails with the errors among `issues`; warnings are logged.
fn accept(what: &str, issues: &[Issue]) -> anyhow::Result<()> {
    let (errors, warnings): (Vec<&Issue>, Vec<&Issue>) = issues
        .iter()
        .partition(|issue| issue.severity == validation::Severity::Error);
    for warning in warnings {
        tracing::warn!(field = %warning.path, reason = %warning.reason, "doubtful {what}");
    }
    if errors.is_empty() {
        return Ok(());
    }
    let errors: Vec<String> = errors.iter().map(ToString::to_string).collect();
    bail!("{what}: {}", errors.join("; "))
}

/// Reads the networks of the mesh; `resolve_names` allows gateways with domain names.
///
/// # Errors
/// The path of the first field that does not fit, or every broken rule.
pub fn mesh_networks(fields: &Value, resolve_names: bool) -> anyhow::Result<MeshNetworks> {
    if fields.is_null() {
        return Ok(MeshNetworks::default());
    }
    let decoded = model::api::decode::<MeshNetworks>(fields).context("mesh networks")?;
    for unknown in &decoded.unknown {
        tracing::warn!(field = %unknown, "unknown field in the mesh networks");
    }
    accept(
        "mesh networks",
        &validation::validate_networks(&decoded.value, resolve_names),
    )?;
    Ok(decoded.value)
}

impl Loaded {
    /// Number of findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        self.findings
            .iter()
            .filter(|f| f.severity == severity)
            .count()
    }
}

/// Reads a file that holds one YAML or JSON document.
///
/// # Errors
/// When the file cannot be read or holds something else.
pub fn document(path: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let mut documents = intake::yaml_values(&text)
        .map_err(|e| anyhow::anyhow!("{}:{}:{}: {}", path.display(), e.line, e.column, e.reason))?;
    match documents.len() {
        0 => Ok(Value::Null),
        1 => Ok(documents.remove(0)),
        n => bail!("{} holds {n} documents, expected one", path.display()),
    }
}

/// Lists the files that a path means: itself, or all YAML and JSON files below it, sorted.
fn expand(path: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let metadata = std::fs::metadata(path).with_context(|| format!("open {}", path.display()))?;
    if !metadata.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    let entries = std::fs::read_dir(path).with_context(|| format!("list {}", path.display()))?;
    let mut paths: Vec<PathBuf> = entries
        .map(|entry| entry.map(|e| e.path()))
        .collect::<Result<_, _>>()?;
    paths.sort();
    for entry in paths {
        let hidden = entry
            .file_name()
            .is_some_and(|n| n.to_string_lossy().starts_with('.'));
        let wanted = entry
            .extension()
            .is_some_and(|e| EXTENSIONS.iter().any(|known| e.eq_ignore_ascii_case(known)));
        if hidden {
            continue;
        }
        if entry.is_dir() || wanted {
            files.extend(expand(&entry)?);
        }
    }
    Ok(files)
}

//! The file source: files and folders of YAML and JSON, loaded and watched.
//!
//! Files are laid over each other: of an object that several files hold the last counts, in the order
//! of the given paths, then of file names. A file that cannot be read, or that is cut off in the middle
//! of a document, keeps its last good content; an object that is refused keeps its last accepted
//! version. [`Files`] decides that without I/O; [`FileSource`] reads the disk; [`FileSource::watch`] is
//! the only part that awaits.

mod layers;
mod scan;
mod watch;

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use model::{Kind, api::MeshConfig};
use rayon::prelude::*;

use self::scan::Stamp;
pub use self::{
    layers::{FileId, Files},
    watch::Batch,
};
use crate::{
    decode::Decoder,
    intake::Change,
    mesh,
    report::{Finding, Severity},
};

/// What the file source reads.
#[derive(Clone, Default, Debug)]
pub struct FileInputs {
    /// Files, and folders that are searched for `*.yaml`, `*.yml` and `*.json`.
    pub config: Vec<PathBuf>,
    /// File of the mesh configuration, laid over [`FileInputs::mesh_base`].
    pub mesh_config: Option<PathBuf>,
    /// File of the networks.
    pub mesh_networks: Option<PathBuf>,
    /// What the mesh configuration is laid over; Istio's defaults unless set.
    pub mesh_base: MeshConfig,
    /// Gateways of networks must have IP addresses: host names would not be resolved.
    pub refuse_gateway_names: bool,
    /// How documents are read.
    pub decoder: Decoder,
}

/// Why the file source cannot start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FileError {
    /// A given path cannot be read.
    #[error("read {}", path.display())]
    Read {
        /// The path as given.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The system cannot watch the given paths.
    #[error("watch configuration files")]
    Watch(#[from] notify::Error),
}

/// What the file source holds, in numbers and words.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Report {
    /// Number of files that were read.
    pub files: usize,
    /// Number of objects that count, by kind.
    pub objects: BTreeMap<Kind, usize>,
    /// Everything to say about the input, by file, line and field.
    pub findings: Vec<Finding>,
}

impl Report {
    /// Tells whether anything was refused.
    pub fn has_errors(&self) -> bool {
        self.findings.iter().any(|f| f.severity == Severity::Error)
    }

    /// Number of objects that count.
    pub fn object_count(&self) -> usize {
        self.objects.values().sum()
    }
}

/// Files and folders as a source of changes.
#[derive(Debug)]
pub struct FileSource {
    inputs: FileInputs,
    files: Files,
    stamps: BTreeMap<FileId, Stamp>,
    mesh: Option<MeshFile>,
    networks: Option<MeshFile>,
    /// Findings about given paths that cannot be read any more.
    missing: Vec<Finding>,
}

/// A file of mesh-wide settings.
#[derive(Debug)]
struct MeshFile {
    path: PathBuf,
    text: Option<String>,
    findings: Vec<Finding>,
}

impl MeshFile {
    /// Reads the file; returns its text when that has changed.
    fn read(&mut self, kind: &str) -> Option<String> {
        match std::fs::read_to_string(&self.path) {
            Ok(text) if self.text.as_deref() == Some(&text) => None,
            Ok(text) => {
                self.text = Some(text.clone());
                Some(text)
            }
            Err(error) => {
                self.findings = vec![layers::unreadable(&self.path, kind, &error)];
                self.text = None;
                None
            }
        }
    }
}

impl FileSource {
    /// Makes a source over paths, all of which must exist now.
    ///
    /// # Errors
    /// [`FileError::Read`] for the first path that cannot be read.
    pub fn open(inputs: FileInputs) -> Result<Self, FileError> {
        let given = inputs
            .config
            .iter()
            .chain(&inputs.mesh_config)
            .chain(&inputs.mesh_networks);
        for path in given {
            std::fs::metadata(path).map_err(|source| FileError::Read {
                path: path.clone(),
                source,
            })?;
        }
        let setting = |path: &Option<PathBuf>| {
            let path = path.clone()?;
            Some(MeshFile {
                path,
                text: None,
                findings: Vec::new(),
            })
        };
        Ok(Self {
            mesh: setting(&inputs.mesh_config),
            networks: setting(&inputs.mesh_networks),
            inputs,
            files: Files::default(),
            stamps: BTreeMap::new(),
            missing: Vec::new(),
        })
    }

    /// Reads what has changed on disk since the last call (everything, the first time) and returns
    /// what that changes. Blocks on the disk.
    pub fn refresh(&mut self) -> Vec<Change> {
        let mut changes = self.refresh_settings();
        self.missing.clear();
        let mut found: BTreeMap<FileId, Stamp> = BTreeMap::new();
        for (root, path) in self.inputs.config.iter().enumerate() {
            match scan::scan(root, path) {
                Ok(files) => found.extend(files),
                Err(error)
                    if error.kind() == io::ErrorKind::NotFound
                        && !scan::was_folder(root, path, &self.stamps) => {}
                Err(error) => {
                    // A folder that has gone away (a mount that failed) is stale, not empty.
                    self.missing.push(layers::unreadable(path, "", &error));
                    let known = self.stamps.iter().filter(|(id, _)| id.root == root);
                    found.extend(known.map(|(id, stamp)| (id.clone(), stamp.clone())));
                }
            }
        }
        let gone: Vec<FileId> = self
            .stamps
            .keys()
            .filter(|id| !found.contains_key(id))
            .cloned()
            .collect();
        for id in gone {
            self.stamps.remove(&id);
            changes.extend(self.files.remove(&id));
        }
        let changed: Vec<(FileId, Stamp)> = found
            .into_iter()
            .filter(|(id, stamp)| self.stamps.get(id) != Some(stamp))
            .collect();
        let decoder = &self.inputs.decoder;
        let read: Vec<_> = changed
            .into_par_iter()
            .map(|(id, stamp)| {
                let text = std::fs::read_to_string(&id.path);
                let decoded = text.map(|t| decoder.decode(&id.path.to_string_lossy(), &t));
                (id, stamp, decoded)
            })
            .collect();
        for (id, stamp, decoded) in read {
            match decoded {
                Ok(decoded) => {
                    changes.extend(self.files.update(&id, decoded));
                    self.stamps.insert(id, stamp);
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    changes.extend(self.files.remove(&id));
                    self.stamps.remove(&id);
                }
                Err(error) => {
                    self.files
                        .fail(&id, layers::unreadable(&id.path, "", &error));
                    self.stamps.insert(id, stamp);
                }
            }
        }
        changes
    }

    fn refresh_settings(&mut self) -> Vec<Change> {
        let mut changes = Vec::new();
        if let Some(file) = &mut self.mesh
            && let Some(text) = file.read("MeshConfig")
        {
            let name = file.path.to_string_lossy().into_owned();
            let setting = mesh::mesh_config(&name, &text, &self.inputs.mesh_base);
            file.findings = setting.findings;
            changes.extend(setting.value.map(|m| Change::Mesh(Box::new(m))));
        }
        if let Some(file) = &mut self.networks
            && let Some(text) = file.read("MeshNetworks")
        {
            let name = file.path.to_string_lossy().into_owned();
            let setting = mesh::mesh_networks(&name, &text, !self.inputs.refuse_gateway_names);
            file.findings = setting.findings;
            changes.extend(setting.value.map(Change::Networks));
        }
        changes
    }

    /// Says what is loaded and what is wrong with it.
    pub fn report(&self) -> Report {
        let mut report = self.files.report();
        report.findings.extend(self.missing.iter().cloned());
        let settings = self.mesh.iter().chain(&self.networks);
        report
            .findings
            .extend(settings.flat_map(|f| f.findings.iter().cloned()));
        report.findings.sort_by(|a, b| a.order().cmp(&b.order()));
        report
    }

    /// The paths to watch: folders as a whole; of single files the folder, since editors replace files.
    fn watched(&self) -> BTreeMap<PathBuf, bool> {
        let mut paths = BTreeMap::new();
        let inputs = &self.inputs;
        for path in inputs
            .config
            .iter()
            .chain(&inputs.mesh_config)
            .chain(&inputs.mesh_networks)
        {
            if path.is_dir() {
                paths.insert(path.clone(), true);
            } else {
                let folder = path.parent().filter(|p| !p.as_os_str().is_empty());
                paths
                    .entry(folder.unwrap_or(Path::new(".")).to_owned())
                    .or_insert(false);
            }
        }
        paths
    }
}

#[cfg(test)]
mod tests;

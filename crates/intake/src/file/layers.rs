//! What files hold, laid over each other; no I/O.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use indexmap::IndexMap;
use model::{ConfigKey, Object, config::Origin};

use super::Report;
use crate::{
    decode::Decoded,
    few::Few,
    intake::Change,
    report::{Finding, Severity},
};

/// One file. Ordered by the given path that it was found under, then by its own path; later ones are
/// laid over earlier ones.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct FileId {
    /// Position of the given path.
    pub root: usize,
    /// Path of the file.
    pub path: PathBuf,
}

#[derive(Default, Debug)]
struct Content {
    objects: IndexMap<ConfigKey, Object>,
    findings: Vec<Finding>,
}

/// The contents of all files, and which object of each key counts.
#[derive(Default, Debug)]
pub struct Files {
    files: BTreeMap<Arc<FileId>, Content>,
    /// Who has an object, in the order of the files.
    holders: BTreeMap<ConfigKey, Few<Arc<FileId>>>,
}

impl Files {
    /// Takes over what a file holds now, and returns what that changes.
    ///
    /// A text that is broken leaves the content of before, if there was any; a refused object leaves
    /// its version of before.
    pub fn update(&mut self, id: &FileId, decoded: Decoded) -> Vec<Change> {
        let Decoded {
            objects,
            mut findings,
            refused,
            undecodable,
            broken,
        } = decoded;
        let before = self.files.get(id);
        if let (true, Some(before)) = (broken, before.filter(|c| !c.objects.is_empty())) {
            let kept = before.objects.len();
            add_to_errors(
                &mut findings,
                |f| f.kind.is_empty(),
                &format!("the {kept} objects read from this file before stay in force"),
            );
            self.fail_with(id, findings);
            return Vec::new();
        }
        let mut content: IndexMap<ConfigKey, Object> = IndexMap::with_capacity(objects.len());
        for object in objects {
            let key = object.key();
            let origin = object.meta().origin.clone();
            if let Some(earlier) = content.insert(key.clone(), object) {
                let line = earlier.meta().origin.line;
                findings.push(warning(
                    &key,
                    origin,
                    format!("replaces the one in line {line}"),
                ));
            }
        }
        for key in refused.into_iter().chain(undecodable) {
            let earlier = before.and_then(|c| c.objects.get(&key));
            if let (Some(earlier), false) = (earlier, content.contains_key(&key)) {
                let of_key = |f: &Finding| {
                    f.kind == key.kind.name()
                        && *f.namespace == *key.namespace
                        && *f.name == *key.name
                };
                add_to_errors(
                    &mut findings,
                    of_key,
                    "its version of before stays in force",
                );
                content.insert(key, earlier.clone());
            }
        }
        self.replace(
            id,
            Some(Content {
                objects: content,
                findings,
            }),
        )
    }

    /// Notes that a file cannot be read; its content of before stays.
    pub fn fail(&mut self, id: &FileId, finding: Finding) {
        self.fail_with(id, vec![finding]);
    }

    fn fail_with(&mut self, id: &FileId, findings: Vec<Finding>) {
        let id = self.shared(id);
        self.files.entry(id).or_default().findings = findings;
    }

    /// The id as it is known already.
    fn shared(&self, id: &FileId) -> Arc<FileId> {
        let known = self.files.get_key_value(id).map(|(known, _)| known.clone());
        known.unwrap_or_else(|| Arc::new(id.clone()))
    }

    /// Forgets a file, and returns what that changes.
    pub fn remove(&mut self, id: &FileId) -> Vec<Change> {
        self.replace(id, None)
    }

    fn replace(&mut self, id: &FileId, content: Option<Content>) -> Vec<Change> {
        let after: BTreeSet<ConfigKey> = content
            .iter()
            .flat_map(|c| c.objects.keys().cloned())
            .collect();
        let before: BTreeSet<ConfigKey> = self
            .files
            .get(id)
            .iter()
            .flat_map(|c| c.objects.keys().cloned())
            .collect();
        let touched: Vec<(ConfigKey, Option<Object>)> = before
            .union(&after)
            .map(|k| (k.clone(), self.effective(k).cloned()))
            .collect();
        let id = self.shared(id);
        for key in before.difference(&after) {
            if let Some(holders) = self.holders.get_mut(key) {
                holders.remove(&id);
                if holders.is_empty() {
                    self.holders.remove(key);
                }
            }
        }
        for key in after.difference(&before) {
            self.holders
                .entry(key.clone())
                .or_default()
                .insert(id.clone());
        }
        match content {
            Some(content) => self.files.insert(id, content),
            None => self.files.remove(&id),
        };
        let mut changes = Vec::new();
        for (key, old) in touched {
            match self.effective(&key) {
                Some(new) if old.as_ref() == Some(new) => {}
                Some(new) => changes.push(Change::Apply(new.clone())),
                None => changes.push(Change::Delete(key)),
            }
        }
        changes
    }

    fn effective(&self, key: &ConfigKey) -> Option<&Object> {
        let holder = self.holders.get(key)?.iter().last()?;
        self.files.get(holder)?.objects.get(key)
    }

    /// Says what is held and what is wrong with it.
    pub fn report(&self) -> Report {
        let mut report = Report {
            files: self.files.len(),
            ..Report::default()
        };
        for (key, holders) in &self.holders {
            *report.objects.entry(key.kind).or_default() += 1;
            // Nearly all are in one file: that costs nobody a look-up.
            let Some(others) = holders.iter().count().checked_sub(1).filter(|n| *n > 0) else {
                continue;
            };
            let Some(last) = self.effective(key) else {
                continue;
            };
            for holder in holders.iter().take(others) {
                let object = self.files.get(holder).and_then(|c| c.objects.get(key));
                let Some(object) = object else { continue };
                let Origin { source, line } = &last.meta().origin;
                let reason = format!("the one in {source}:{line} counts instead");
                report
                    .findings
                    .push(warning(key, object.meta().origin.clone(), reason));
            }
        }
        report
            .findings
            .extend(self.files.values().flat_map(|c| c.findings.iter().cloned()));
        report
    }
}

fn warning(key: &ConfigKey, origin: Origin, reason: String) -> Finding {
    Finding {
        kind: key.kind.name().to_owned(),
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
        origin,
        field: String::new(),
        reason,
        severity: Severity::Warning,
    }
}

fn add_to_errors(findings: &mut [Finding], of: impl Fn(&Finding) -> bool, more: &str) {
    for finding in findings
        .iter_mut()
        .filter(|f| f.severity == Severity::Error && of(f))
    {
        finding.reason.push_str("; ");
        finding.reason.push_str(more);
    }
}

/// The finding about a file that cannot be read.
pub(super) fn unreadable(path: &Path, kind: &str, error: &io::Error) -> Finding {
    Finding {
        kind: kind.to_owned(),
        namespace: String::new(),
        name: String::new(),
        origin: Origin {
            source: path.to_string_lossy().as_ref().into(),
            line: 0,
        },
        field: String::new(),
        reason: format!("cannot be read: {error}"),
        severity: Severity::Error,
    }
}

impl fmt::Display for FileId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.path.display())
    }
}

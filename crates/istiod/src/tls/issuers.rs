//! Token issuers in a file.

use std::{
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    time::SystemTime,
};

use anyhow::{Context as _, anyhow, bail};
use model::SpiffeId;
use parking_lot::RwLock;
use security::{Issuer, KeySet, TokenIssuers, TokenReview, Unreviewed};
use serde::Deserialize;
use serde_json::Value;

/// Issuers in a file that may change.
#[derive(Debug)]
pub(super) struct IssuerFile {
    path: PathBuf,
    audiences: Vec<String>,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    issuers: TokenIssuers,
    names: Vec<String>,
    trust_domain: String,
    /// Texts of the files that were read last.
    texts: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
struct Entry {
    issuer: String,
    audiences: Vec<String>,
    jwks: Option<Value>,
    jwks_file: Option<PathBuf>,
}

impl IssuerFile {
    /// Reads a file.
    ///
    /// # Errors
    /// When it, or a key file that it names, cannot be read or is not what it should be.
    pub(super) fn open(
        path: &Path,
        trust_domain: &str,
        audiences: &[String],
    ) -> anyhow::Result<Self> {
        let (issuers, texts) = read(path, audiences)?;
        Ok(Self {
            path: path.to_owned(),
            audiences: audiences.to_vec(),
            state: RwLock::new(State::new(issuers, trust_domain, texts)),
        })
    }

    /// Names of the issuers.
    pub(super) fn names(&self) -> Vec<String> {
        self.state.read().names.clone()
    }

    /// Reads the file again; returns whether anything has changed.
    ///
    /// # Errors
    /// Once for each change to something that cannot be used. The issuers stay what they are.
    pub(super) fn reload(&self, trust_domain: &str) -> anyhow::Result<bool> {
        let same_domain = self.state.read().trust_domain == trust_domain;
        let Ok(texts) = texts(&self.path) else {
            // Files that are gone are about to be replaced.
            return Ok(false);
        };
        if same_domain && texts == self.state.read().texts {
            return Ok(false);
        }
        self.state.write().texts = texts;
        let (issuers, texts) = read(&self.path, &self.audiences)?;
        *self.state.write() = State::new(issuers, trust_domain, texts);
        Ok(true)
    }
}

impl State {
    fn new(issuers: Vec<Issuer>, trust_domain: &str, texts: Vec<String>) -> Self {
        Self {
            names: issuers.iter().map(|i| i.issuer.clone()).collect(),
            issuers: TokenIssuers::new(trust_domain, issuers),
            trust_domain: trust_domain.to_owned(),
            texts,
        }
    }
}

impl TokenReview for IssuerFile {
    fn review<'a>(
        &'a self,
        token: &'a str,
        now: SystemTime,
    ) -> Pin<Box<dyn Future<Output = Result<SpiffeId, Unreviewed>> + Send + 'a>> {
        Box::pin(async move { Ok(self.state.read().issuers.verify(token, now)?) })
    }
}

fn text(path: &Path) -> anyhow::Result<String> {
    std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
}

fn entries(path: &Path, text: &str) -> anyhow::Result<Vec<Entry>> {
    let name = path.display();
    let mut documents = intake::yaml_values(text)
        .map_err(|e| anyhow!("{name}:{}: column {}: {}", e.line, e.column, e.reason))?;
    let value = match documents.len() {
        1 => documents.remove(0),
        n => bail!("{name}: a file of issuers holds one document, this one {n}"),
    };
    let Value::Array(values) = value else {
        bail!("{name}: a file of issuers holds a list");
    };
    values
        .iter()
        .enumerate()
        .map(|(at, value)| {
            let decoded = model::api::decode::<Entry>(value)
                .map_err(|e| anyhow!("{name}: [{at}].{}: {}", e.path, e.reason))?;
            match decoded.unknown.into_iter().next() {
                Some(unknown) => bail!("{name}: [{at}].{unknown}: unknown field"),
                None => Ok(decoded.value),
            }
        })
        .collect()
}

/// Where the keys of an entry are, beside the file that names them.
fn key_file(path: &Path, entry: &Entry) -> Option<PathBuf> {
    let folder = path.parent().unwrap_or(Path::new("."));
    entry.jwks_file.as_ref().map(|file| folder.join(file))
}

/// The texts of a file and of all that it names.
fn texts(path: &Path) -> anyhow::Result<Vec<String>> {
    let own = text(path)?;
    let mut texts = vec![own.clone()];
    // What cannot be understood is told by whoever understands it.
    for entry in entries(path, &own).unwrap_or_default() {
        texts.extend(key_file(path, &entry).map(|file| text(&file)).transpose()?);
    }
    Ok(texts)
}

fn read(path: &Path, audiences: &[String]) -> anyhow::Result<(Vec<Issuer>, Vec<String>)> {
    let own = text(path)?;
    let mut texts = vec![own.clone()];
    let mut issuers = Vec::new();
    for entry in entries(path, &own)? {
        let keys = match (&entry.jwks, key_file(path, &entry)) {
            (Some(Value::String(keys)), None) => keys.clone(),
            (Some(keys), None) => keys.to_string(),
            (None, Some(file)) => {
                texts.push(text(&file)?);
                texts.last().cloned().unwrap_or_default()
            }
            _ => bail!(
                "{}: issuer {:?} needs either jwks or jwksFile",
                path.display(),
                entry.issuer
            ),
        };
        let keys = KeySet::parse(&keys).with_context(|| {
            format!(
                "{}: issuer {:?} has no usable key",
                path.display(),
                entry.issuer
            )
        })?;
        issuers.push(Issuer {
            keys,
            audiences: if entry.audiences.is_empty() {
                audiences.to_vec()
            } else {
                entry.audiences
            },
            issuer: entry.issuer,
        });
    }
    Ok((issuers, texts))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}"#;

    #[track_caller]
    fn check(text: &str, expected: Result<&[&str], &str>) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("keys.json"), KEYS).unwrap();
        let path = folder.path().join("issuers.yaml");
        fs::write(&path, text).unwrap();
        let file = IssuerFile::open(&path, "cluster.local", &["istio-ca".to_owned()]);
        match (file, expected) {
            (Ok(file), Ok(names)) => assert_eq!(file.names(), names),
            (Err(error), Err(part)) => {
                let error = format!("{error:#}");
                assert!(error.contains(part), "{error}");
            }
            (file, expected) => panic!("{file:?}, expected {expected:?}"),
        }
    }

    #[test]
    fn issuers_have_keys() {
        let inline = format!("- issuer: a\n  jwks: {KEYS}\n- issuer: b\n  jwksFile: keys.json\n");
        check(&inline, Ok(&["a", "b"]));
        check("- issuer: a\n  jwks: '{}'\n", Err("no usable key"));
        check("- issuer: a\n", Err("needs either"));
        check("- issuer: a\n  jwksFile: none.json\n", Err("none.json"));
        check("- isuer: a\n", Err("[0].isuer: unknown field"));
        check("issuer: a\n", Err("holds a list"));
    }

    #[test]
    fn other_keys_are_taken_over_and_nonsense_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("issuers.yaml");
        let entry = |name: &str| format!("- issuer: {name}\n  jwks: {KEYS}\n");
        fs::write(&path, entry("a")).unwrap();
        let file = IssuerFile::open(&path, "cluster.local", &[]).unwrap();
        assert!(!file.reload("cluster.local").unwrap());
        fs::write(&path, entry("b")).unwrap();
        assert!(file.reload("cluster.local").unwrap());
        fs::write(&path, "nonsense").unwrap();
        assert!(file.reload("cluster.local").is_err());
        assert!(!file.reload("cluster.local").unwrap());
        assert_eq!(file.names(), ["b"]);
    }
}

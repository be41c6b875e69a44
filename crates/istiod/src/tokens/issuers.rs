//! Token issuers: those of a file that may change, and the one of `JWT_RULE`.

use std::{
    collections::BTreeMap,
    future::Future,
    path::{Path, PathBuf},
    pin::Pin,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, anyhow, bail};
use intake::keys::{KeySource, KeySources};
use parking_lot::RwLock;
use security::{Holder, Issuer, KeySet, TokenIssuers, TokenReview, Unreviewed};
use serde::Deserialize;
use serde_json::Value;

use crate::settings::security::IssuerRule;

/// How long an issuer may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);

/// Issuers whose keys are known, or fetched.
#[derive(Debug)]
pub(super) struct Issuers {
    path: Option<PathBuf>,
    /// The issuer that is there whatever the file says.
    fixed: Option<Trusted>,
    audiences: Vec<String>,
    state: RwLock<State>,
}

/// An issuer, and where its keys come from.
#[derive(Clone, Debug)]
struct Trusted {
    issuer: String,
    audiences: Vec<String>,
    keys: Keys,
}

#[derive(Clone, Debug)]
enum Keys {
    Given(KeySet),
    /// Fetched from there.
    At(KeySource),
}

#[derive(Debug)]
struct State {
    trusted: Vec<Trusted>,
    /// Keys that were fetched. What is missing here is not accepted.
    fetched: BTreeMap<KeySource, KeySet>,
    /// Made of both.
    issuers: TokenIssuers,
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
    jwks_uri: Option<String>,
}

impl Issuers {
    /// Reads a file, if there is one.
    ///
    /// # Errors
    /// When it, or a key file that it names, cannot be read or is not what it should be.
    pub(super) fn open(
        path: Option<&Path>,
        rule: Option<&IssuerRule>,
        audiences: &[String],
        trust_domain: &str,
    ) -> anyhow::Result<Self> {
        let (trusted, texts) = match path {
            Some(path) => read(path, audiences)?,
            None => Default::default(),
        };
        let fixed = rule.map(|rule| Trusted {
            issuer: rule.issuer.clone(),
            audiences: or_default(rule.audiences.clone(), audiences),
            keys: Keys::At(source(&rule.issuer, &rule.jwks_uri)),
        });
        let issuers = Self {
            path: path.map(Path::to_owned),
            audiences: audiences.to_vec(),
            state: RwLock::new(State {
                trusted: Vec::new(),
                fetched: BTreeMap::new(),
                issuers: TokenIssuers::default(),
                trust_domain: trust_domain.to_owned(),
                texts,
            }),
            fixed,
        };
        issuers.replace(trusted);
        Ok(issuers)
    }

    /// Names of the issuers.
    pub(super) fn names(&self) -> Vec<String> {
        let state = self.state.read();
        state.trusted.iter().map(|i| i.issuer.clone()).collect()
    }

    /// Where keys have to be fetched, and how long each may take.
    pub(super) fn sources(&self) -> KeySources {
        let state = self.state.read();
        state
            .trusted
            .iter()
            .filter_map(|trusted| match &trusted.keys {
                Keys::At(source) => Some((source.clone(), PATIENCE)),
                Keys::Given(_) => None,
            })
            .collect()
    }

    /// Takes over keys that were fetched; `None` when those that are known must not be used any more.
    pub(super) fn learn(&self, source: &KeySource, keys: Option<&str>) {
        let parsed = keys.and_then(KeySet::parse);
        if keys.is_some() && parsed.is_none() {
            tracing::warn!(%source, "a token issuer has no usable key");
        }
        let mut state = self.state.write();
        match parsed {
            Some(keys) => state.fetched.insert(source.clone(), keys),
            None => state.fetched.remove(source),
        };
        state.combine();
    }

    /// Reads the file again; returns whether anything has changed.
    ///
    /// # Errors
    /// Once for each change to something that cannot be used. The issuers stay what they are.
    pub(super) fn reload(&self, trust_domain: &str) -> anyhow::Result<bool> {
        let same_domain = self.state.read().trust_domain == trust_domain;
        if !same_domain {
            let mut state = self.state.write();
            trust_domain.clone_into(&mut state.trust_domain);
            state.combine();
        }
        let Some(path) = &self.path else {
            return Ok(!same_domain);
        };
        let Ok(texts) = texts(path) else {
            // Files that are gone are about to be replaced.
            return Ok(!same_domain);
        };
        if texts == self.state.read().texts {
            return Ok(!same_domain);
        }
        self.state.write().texts = texts;
        let (trusted, texts) = read(path, &self.audiences)?;
        self.state.write().texts = texts;
        self.replace(trusted);
        Ok(true)
    }

    /// Replaces the issuers of the file. Keys of those that stay are kept.
    fn replace(&self, of_file: Vec<Trusted>) {
        let mut state = self.state.write();
        state.trusted = self.fixed.iter().cloned().chain(of_file).collect();
        let in_use: Vec<KeySource> = state
            .trusted
            .iter()
            .filter_map(|trusted| match &trusted.keys {
                Keys::At(source) => Some(source.clone()),
                Keys::Given(_) => None,
            })
            .collect();
        state.fetched.retain(|source, _| in_use.contains(source));
        state.combine();
    }
}

impl State {
    /// Makes the issuers of what is trusted and what was fetched. One without keys accepts nothing.
    fn combine(&mut self) {
        let issuers = self.trusted.iter().map(|trusted| Issuer {
            issuer: trusted.issuer.clone(),
            audiences: trusted.audiences.clone(),
            keys: match &trusted.keys {
                Keys::Given(keys) => keys.clone(),
                Keys::At(source) => self.fetched.get(source).cloned().unwrap_or_default(),
            },
        });
        self.issuers = TokenIssuers::new(&self.trust_domain, issuers.collect());
    }
}

impl TokenReview for Issuers {
    fn review<'a>(
        &'a self,
        token: &'a str,
        now: SystemTime,
    ) -> Pin<Box<dyn Future<Output = Result<Holder, Unreviewed>> + Send + 'a>> {
        Box::pin(async move { Ok(self.state.read().issuers.verify(token, now)?) })
    }
}

fn source(issuer: &str, uri: &str) -> KeySource {
    KeySource {
        issuer: issuer.into(),
        uri: uri.into(),
    }
}

fn or_default(audiences: Vec<String>, default: &[String]) -> Vec<String> {
    if audiences.is_empty() {
        default.to_vec()
    } else {
        audiences
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

fn read(path: &Path, audiences: &[String]) -> anyhow::Result<(Vec<Trusted>, Vec<String>)> {
    let own = text(path)?;
    let mut texts = vec![own.clone()];
    let mut issuers = Vec::new();
    for entry in entries(path, &own)? {
        let name = &entry.issuer;
        let place = || format!("{}: issuer {name:?}", path.display());
        let parse = |keys: &str| {
            let keys = KeySet::parse(keys);
            keys.with_context(|| format!("{} has no usable key", place()))
        };
        let is_web = |uri: &str| uri.starts_with("https://") || uri.starts_with("http://");
        let keys = match (&entry.jwks, key_file(path, &entry), &entry.jwks_uri) {
            (Some(Value::String(keys)), None, None) => Keys::Given(parse(keys)?),
            (Some(keys), None, None) => Keys::Given(parse(&keys.to_string())?),
            (None, Some(file), None) => {
                let keys = text(&file)?;
                let parsed = parse(&keys)?;
                texts.push(keys);
                Keys::Given(parsed)
            }
            (None, None, Some(uri)) if is_web(uri) => Keys::At(source(name, uri)),
            // Its configuration says where they are.
            (None, None, None) if is_web(name) => Keys::At(source(name, "")),
            _ => bail!("{} needs either jwks, jwksFile or jwksUri", place()),
        };
        issuers.push(Trusted {
            keys,
            audiences: or_default(entry.audiences, audiences),
            issuer: entry.issuer,
        });
    }
    Ok((issuers, texts))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use security::TokenError;

    use super::*;

    const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}"#;

    fn open(path: &Path) -> anyhow::Result<Issuers> {
        let audiences = ["istio-ca".to_owned()];
        Issuers::open(Some(path), None, &audiences, "cluster.local")
    }

    #[track_caller]
    fn check(text: &str, expected: Result<&[&str], &str>) {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("keys.json"), KEYS).unwrap();
        let path = folder.path().join("issuers.yaml");
        fs::write(&path, text).unwrap();
        match (open(&path), expected) {
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
        check("- issuer: a\n  jwksUri: https://a/keys\n", Ok(&["a"]));
        check("- issuer: a\n  jwksUri: a/keys\n", Err("needs either"));
        let two = format!("- issuer: a\n  jwksUri: https://a/keys\n  jwks: {KEYS}\n");
        check(&two, Err("needs either"));
        check("- issuer: https://a\n", Ok(&["https://a"]));
    }

    #[test]
    fn other_keys_are_taken_over_and_nonsense_is_told_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("issuers.yaml");
        let entry = |name: &str| format!("- issuer: {name}\n  jwks: {KEYS}\n");
        fs::write(&path, entry("a")).unwrap();
        let file = open(&path).unwrap();
        assert!(!file.reload("cluster.local").unwrap());
        fs::write(&path, entry("b")).unwrap();
        assert!(file.reload("cluster.local").unwrap());
        fs::write(&path, "nonsense").unwrap();
        assert!(file.reload("cluster.local").is_err());
        assert!(!file.reload("cluster.local").unwrap());
        assert_eq!(file.names(), ["b"]);
    }

    /// A token that nobody has signed: what is said of it tells how far it came.
    const TOKEN: &str = "eyJhbGciOiJFUzI1NiJ9.eyJpc3MiOiJodHRwczovL2EifQ.AA";

    #[test]
    fn keys_are_those_that_were_fetched_last() {
        let rule = IssuerRule {
            issuer: "https://a".to_owned(),
            jwks_uri: String::new(),
            audiences: Vec::new(),
        };
        let issuers = Issuers::open(None, Some(&rule), &[], "cluster.local").unwrap();
        let sources = issuers.sources();
        let (source, _) = sources.first_key_value().unwrap();
        assert_eq!((&*source.issuer, &*source.uri), ("https://a", ""));
        let keys = || issuers.state.read().fetched.len();
        let verify = || {
            let state = issuers.state.read();
            state.issuers.verify(TOKEN, SystemTime::UNIX_EPOCH)
        };
        assert_eq!((keys(), verify()), (0, Err(TokenError::Signature)));
        issuers.learn(source, Some(KEYS));
        assert_eq!((keys(), verify()), (1, Err(TokenError::Signature)));
        // Another trust domain changes no keys.
        assert!(issuers.reload("other.domain").unwrap());
        assert_eq!(keys(), 1);
        issuers.learn(source, None);
        assert_eq!(keys(), 0);
    }
}

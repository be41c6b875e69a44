//! Where an authority comes from, and that it may change while it is used.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::RwLock;
use ring::digest;
use zeroize::Zeroizing;

use crate::{
    Authority, AuthorityError, FileError,
    files::{read, write_atomically},
};

/// File names of a plugged-in authority: certificate, key, chain, roots. Istio's `cacerts`, or a
/// Secret of type `kubernetes.io/tls`.
const LAYOUTS: [[&str; 4]; 2] = [
    [
        "ca-cert.pem",
        "ca-key.pem",
        "cert-chain.pem",
        "root-cert.pem",
    ],
    ["tls.crt", "tls.key", "tls.crt", "ca.crt"],
];

/// Where an authority comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Origin {
    /// Made at the start; it ends with the process.
    Memory,
    /// Made at the start, and kept in a folder.
    Made(PathBuf),
    /// Found in a folder.
    Found(PathBuf),
    /// Kept elsewhere, by whoever runs this; for people.
    Elsewhere(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Memory => f.write_str("self-signed, in memory"),
            Self::Made(folder) => write!(f, "self-signed, kept in {}", folder.display()),
            Self::Found(folder) => write!(f, "from {}", folder.display()),
            Self::Elsewhere(place) => write!(f, "kept in {place}"),
        }
    }
}

/// The authority of now, and the folder that it is read from.
#[derive(Debug)]
pub struct AuthorityStore {
    folder: Option<PathBuf>,
    origin: Origin,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    authority: Arc<Authority>,
    /// Hash of the files that were read last, also when they were no authority.
    seen: Option<[u8; 32]>,
}

impl AuthorityStore {
    /// Opens an authority: the one in `plugged`, if there is one, else the one in `keep`, else a new
    /// root, which is written to `keep`. Without `keep` a new root ends with the process.
    ///
    /// # Errors
    /// When there are files of an authority that cannot be used, or `keep` cannot be written. A
    /// broken authority is never replaced by a new one: nobody would trust that.
    pub fn open(
        plugged: &Path,
        keep: Option<&Path>,
        trust_domain: &str,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        for folder in [Some(plugged), keep].into_iter().flatten() {
            if let Some(files) = Files::read(folder)? {
                return Ok(Self {
                    folder: Some(folder.to_owned()),
                    origin: Origin::Found(folder.to_owned()),
                    state: RwLock::new(State {
                        authority: Arc::new(files.authority(now)?),
                        seen: Some(files.hash()),
                    }),
                });
            }
        }
        let authority = Authority::self_signed(trust_domain, lifetime, now)?;
        let (origin, seen) = match keep {
            None => (Origin::Memory, None),
            Some(folder) => {
                write(&authority, folder)?;
                let seen = Files::read(folder)?.map(|files| files.hash());
                (Origin::Made(folder.to_owned()), seen)
            }
        };
        Ok(Self {
            folder: keep.map(Path::to_owned),
            origin,
            state: RwLock::new(State {
                authority: Arc::new(authority),
                seen,
            }),
        })
    }

    /// Returns whether there is an authority in a folder, whole or broken.
    ///
    /// # Errors
    /// When the folder cannot be read.
    pub fn is_in(folder: &Path) -> Result<bool, FileError> {
        Ok(Files::read(folder)?.is_some())
    }

    /// Opens an authority that somebody else keeps, who also says when it changes:
    /// [`AuthorityStore::replace`]. The place is for people.
    ///
    /// # Errors
    /// When it cannot be used.
    pub fn kept_in(
        place: impl Into<String>,
        parts: &AuthorityParts,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        Ok(Self {
            folder: None,
            origin: Origin::Elsewhere(place.into()),
            state: RwLock::new(State {
                authority: Arc::new(parts.0.authority(now)?),
                seen: Some(parts.0.hash()),
            }),
        })
    }

    /// Takes over an authority; returns whether it is another one.
    ///
    /// # Errors
    /// Once for each change to something that cannot be used. The authority stays what it is.
    pub fn replace(&self, parts: &AuthorityParts, now: SystemTime) -> Result<bool, AuthorityError> {
        self.take_over(&parts.0, now)
    }

    /// Returns the authority of now.
    pub fn current(&self) -> Arc<Authority> {
        self.state.read().authority.clone()
    }

    /// Says where the first authority came from.
    pub fn origin(&self) -> &Origin {
        &self.origin
    }

    /// Looks at the files again; returns whether there is another authority now.
    ///
    /// # Errors
    /// Once for each change to something that cannot be used. The authority stays what it is.
    pub fn reload(&self, now: SystemTime) -> Result<bool, AuthorityError> {
        let Some(folder) = &self.folder else {
            return Ok(false);
        };
        // Files that are gone are about to be replaced.
        let Some(files) = Files::read(folder)? else {
            return Ok(false);
        };
        self.take_over(&files, now)
    }

    fn take_over(&self, files: &Files, now: SystemTime) -> Result<bool, AuthorityError> {
        let hash = files.hash();
        if self.state.read().seen == Some(hash) {
            return Ok(false);
        }
        self.state.write().seen = Some(hash);
        let authority = Arc::new(files.authority(now)?);
        self.state.write().authority = authority;
        Ok(true)
    }
}

/// The parts of an authority in PEM form, as a Secret or a folder holds them: read, but not understood.
pub struct AuthorityParts(Files);

impl fmt::Debug for AuthorityParts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AuthorityParts").finish_non_exhaustive()
    }
}

impl AuthorityParts {
    /// Takes what it needs by the names of Istio's `cacerts`, or of a Secret of type
    /// `kubernetes.io/tls`; `None` when there is no authority. A root may leave out the roots: it is
    /// its own.
    pub fn find(get: impl Fn(&str) -> Option<Zeroizing<String>>) -> Option<Self> {
        LAYOUTS.iter().find_map(|[certificate, key, chain, roots]| {
            let certificate = get(certificate).filter(|text| !text.is_empty())?;
            let part = |name| get(name).unwrap_or_default();
            let roots = Some(part(roots)).filter(|text| !text.trim().is_empty());
            let roots = roots.unwrap_or_else(|| certificate.clone());
            Some(Self(Files([certificate, part(key), part(chain), roots])))
        })
    }

    /// Makes a new root for a trust domain.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn self_signed(
        trust_domain: &str,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let authority = Authority::self_signed(trust_domain, lifetime, now)?;
        let [certificate, roots] = authority.to_pem().map(Zeroizing::new);
        let key = Zeroizing::new(authority.key().to_pem().to_owned());
        Ok(Self(Files([certificate, key, Zeroizing::default(), roots])))
    }

    /// The parts with their names in Istio's `cacerts`.
    pub fn named(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let texts = self.0.0.iter().map(|text| text.as_str());
        LAYOUTS[0].into_iter().zip(texts)
    }
}

/// The files of an authority, read but not understood.
struct Files([Zeroizing<String>; 4]);

impl Files {
    /// Reads a folder; `None` when it holds no authority.
    fn read(folder: &Path) -> Result<Option<Self>, FileError> {
        for [certificate, key, chain, roots] in LAYOUTS {
            let get = |name: &str| read(&folder.join(name)).map(|text| text.map(Zeroizing::new));
            let Some(certificate) = get(certificate)? else {
                continue;
            };
            let files = [
                certificate,
                get(key)?.unwrap_or_default(),
                get(chain)?.unwrap_or_default(),
                get(roots)?.unwrap_or_default(),
            ];
            return Ok(Some(Self(files)));
        }
        Ok(None)
    }

    fn authority(&self, now: SystemTime) -> Result<Authority, AuthorityError> {
        let [certificate, key, chain, roots] = &self.0;
        Authority::from_pem(certificate, key, chain, roots, now)
    }

    fn hash(&self) -> [u8; 32] {
        let mut context = digest::Context::new(&digest::SHA256);
        for text in &self.0 {
            context.update(&(text.len() as u64).to_le_bytes());
            context.update(text.as_bytes());
        }
        let mut hash = [0; 32];
        hash.copy_from_slice(context.finish().as_ref());
        hash
    }
}

/// Keeps an authority in a folder. The certificate comes last: it tells that the rest is there.
fn write(authority: &Authority, folder: &Path) -> Result<(), FileError> {
    fs::create_dir_all(folder).map_err(|source| FileError {
        path: folder.to_owned(),
        source,
    })?;
    let [certificate_file, key_file, chain_file, roots_file] = LAYOUTS[0];
    let [certificate, roots] = authority.to_pem();
    write_atomically(&folder.join(key_file), authority.key().to_pem(), true)?;
    write_atomically(&folder.join(chain_file), "", false)?;
    write_atomically(&folder.join(roots_file), &roots, false)?;
    write_atomically(&folder.join(certificate_file), &certificate, false)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;
    use crate::{Names, PrivateKey};

    const YEAR: Duration = Duration::from_hours(24 * 365);

    fn now() -> SystemTime {
        SystemTime::UNIX_EPOCH + 50 * YEAR
    }

    fn open(folder: &Path, keep: Option<&Path>) -> Result<AuthorityStore, AuthorityError> {
        AuthorityStore::open(folder, keep, "cluster.local", YEAR, now())
    }

    #[test]
    fn a_root_in_memory_is_another_one_at_each_start() {
        let nowhere = Path::new("/nonexistent");
        let one = open(nowhere, None).unwrap();
        let two = open(nowhere, None).unwrap();
        assert_eq!(*one.origin(), Origin::Memory);
        assert_ne!(one.current().roots(), two.current().roots());
        assert!(!one.reload(now()).unwrap());
    }

    #[test]
    fn a_kept_root_is_the_same_at_each_start_and_only_its_owner_reads_the_key() {
        let folder = tempfile::tempdir().unwrap();
        let keep = folder.path().join("ca");
        let nowhere = folder.path().join("nothing");
        let one = open(&nowhere, Some(&keep)).unwrap();
        let two = open(&nowhere, Some(&keep)).unwrap();
        assert_eq!(*one.origin(), Origin::Made(keep.clone()));
        assert_eq!(*two.origin(), Origin::Found(keep.clone()));
        assert_eq!(one.current().roots(), two.current().roots());
        assert!(!one.reload(now()).unwrap());
        let mode = fs::metadata(keep.join("ca-key.pem")).unwrap().permissions();
        assert_eq!(mode.mode() & 0o777, 0o600);
    }

    #[test]
    fn a_changed_folder_is_taken_over_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        let nowhere = folder.path().join("nothing");
        let store = open(&nowhere, Some(&a)).unwrap();
        let other = open(&nowhere, Some(&b)).unwrap();
        let first = store.current();
        // The new certificate with the old key: half of a change.
        fs::copy(b.join("ca-cert.pem"), a.join("ca-cert.pem")).unwrap();
        fs::copy(b.join("root-cert.pem"), a.join("root-cert.pem")).unwrap();
        let error = store.reload(now()).unwrap_err();
        assert!(matches!(error, AuthorityError::Unverifiable(_)), "{error}");
        assert_eq!(store.current().roots(), first.roots());
        assert!(!store.reload(now()).unwrap(), "an error is told once");
        fs::copy(b.join("ca-key.pem"), a.join("ca-key.pem")).unwrap();
        assert!(store.reload(now()).unwrap());
        assert_eq!(store.current().roots(), other.current().roots());
        fs::remove_file(a.join("ca-cert.pem")).unwrap();
        assert!(!store.reload(now()).unwrap());
    }

    #[test]
    fn a_broken_authority_is_not_replaced_by_a_new_one() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("ca-cert.pem"), "nonsense").unwrap();
        let error = open(folder.path(), Some(folder.path())).unwrap_err();
        assert!(
            matches!(error, AuthorityError::NoCertificate { .. }),
            "{error}"
        );
    }

    #[test]
    fn parts_that_are_kept_elsewhere_are_the_same_authority() {
        let parts = AuthorityParts::self_signed("cluster.local", YEAR, now()).unwrap();
        let kept: std::collections::BTreeMap<&str, String> = parts
            .named()
            .map(|(name, text)| (name, text.to_owned()))
            .collect();
        let find = |without: &str| {
            let get = |name: &str| kept.get(name).filter(|_| name != without).cloned();
            AuthorityParts::find(|name| get(name).map(Zeroizing::new))
        };
        let one = AuthorityStore::kept_in("a Secret", &find("").unwrap(), now()).unwrap();
        // Istio leaves the roots of its own root out.
        let other = find("root-cert.pem").unwrap();
        let other = AuthorityStore::kept_in("a Secret", &other, now()).unwrap();
        assert_eq!(one.current().roots(), other.current().roots());
        assert!(!one.replace(&parts, now()).unwrap());
        let next = AuthorityParts::self_signed("cluster.local", YEAR, now()).unwrap();
        assert!(one.replace(&next, now()).unwrap());
        assert_ne!(one.current().roots(), other.current().roots());
        assert!(find("ca-cert.pem").is_none());
        assert_eq!(format!("{parts:?}"), "AuthorityParts { .. }");
    }

    #[test]
    fn a_secret_of_type_tls_is_an_authority_too() {
        let folder = tempfile::tempdir().unwrap();
        let (made, plugged) = (folder.path().join("made"), folder.path().join("tls"));
        open(&plugged, Some(&made)).unwrap();
        fs::create_dir(&plugged).unwrap();
        for (from, to) in [
            ("ca-cert.pem", "tls.crt"),
            ("ca-key.pem", "tls.key"),
            ("root-cert.pem", "ca.crt"),
        ] {
            fs::copy(made.join(from), plugged.join(to)).unwrap();
        }
        let store = open(&plugged, None).unwrap();
        assert_eq!(*store.origin(), Origin::Found(plugged));
        let key = PrivateKey::generate().unwrap();
        let names = Names::Hosts(vec!["a.b".to_owned()]);
        let issued = store
            .current()
            .issue_for(&key, &names, YEAR, now())
            .unwrap();
        assert!(issued.intermediates.is_empty());
    }
}

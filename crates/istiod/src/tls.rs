//! The secure port: its certificate, the roots that clients are verified by, and that both change
//! while it serves.

pub(crate) mod accept;
pub(crate) mod guard;
pub(crate) mod serve;

use std::{
    fmt,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, SystemTime},
};

use anyhow::Context as _;
use clap::Args;
use parking_lot::Mutex;
use security::{
    Authority, AuthorityStore, Certificates, PeerRule, ServerCertificate, TlsServer,
    parse_certificates,
};
use tokio_util::sync::CancellationToken;

use crate::{
    cli::Bind,
    settings::{Settings, security::SecuritySettings},
};

/// Time between two looks at files and at what is left of the certificate.
const LOOK: Duration = Duration::from_secs(2);

/// Arguments of the secure port and of the authority.
#[derive(Clone, Debug, Args)]
pub struct SecureArgs {
    /// Address of xDS over TLS and of the certificate service; '' switches both off.
    #[arg(
        long = "secureGRPCAddr",
        alias = "secure-grpc-addr",
        value_name = "ADDRESS",
        default_value = "0.0.0.0:15012"
    )]
    pub secure: Bind,
    /// Folder in which a self-signed root is kept; without it a new one is made at each start.
    /// `ROOT_CA_DIR` names the folder of a plugged-in authority, which goes first.
    #[arg(long, value_name = "FOLDER")]
    pub ca_dir: Option<PathBuf>,
    /// Certificate of the secure port, with intermediates, instead of one of the authority. Used only
    /// with `--tlsKeyFile` and `--caCertFile`.
    #[arg(long = "tlsCertFile", alias = "tls-cert-file", value_name = "FILE")]
    pub tls_certificate: Option<PathBuf>,
    /// Key of that certificate.
    #[arg(long = "tlsKeyFile", alias = "tls-key-file", value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Further roots that verify certificates of clients.
    #[arg(long = "caCertFile", alias = "ca-cert-file", value_name = "FILE")]
    pub ca_certificate: Option<PathBuf>,
    /// Issuers whose tokens prove a service account: a YAML list of `issuer`, `audiences` (those of
    /// `TOKEN_AUDIENCES` by default), and `jwks`, `jwksFile` or `jwksUri`; without any of them the keys
    /// are where the `OpenID` configuration of the issuer says.
    #[arg(long, value_name = "FILE")]
    pub jwt_issuers: Option<PathBuf>,
}

/// What the port needs to know of the mesh; it may change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Trust {
    /// The mesh's own trust domain.
    pub(crate) domain: String,
    /// Former ones, whose certificates are still accepted.
    pub(crate) aliases: Vec<String>,
}

impl Trust {
    fn domains(&self) -> Vec<String> {
        let own = std::iter::once(&self.domain);
        own.chain(&self.aliases).cloned().collect()
    }
}

/// A certificate in files.
#[derive(Clone, Debug)]
struct Mounted {
    certificate: PathBuf,
    key: PathBuf,
    roots: PathBuf,
}

/// The texts of those files: certificate, key, roots.
type Texts = [zeroize::Zeroizing<String>; 3];

impl Mounted {
    fn read(&self) -> anyhow::Result<Texts> {
        let read = |path: &Path| {
            std::fs::read_to_string(path)
                .map(zeroize::Zeroizing::new)
                .with_context(|| format!("read {}", path.display()))
        };
        Ok([
            read(&self.certificate)?,
            read(&self.key)?,
            read(&self.roots)?,
        ])
    }

    fn parse(&self, texts: &Texts) -> anyhow::Result<(ServerCertificate, Certificates)> {
        let [certificate, key, roots] = texts;
        let place = format!("{} and {}", self.certificate.display(), self.key.display());
        let certificate = ServerCertificate::from_pem(certificate, key, &place)?;
        let roots = parse_certificates(roots.as_bytes())
            .filter(|roots| !roots.is_empty())
            .with_context(|| format!("no certificate in {}", self.roots.display()))?;
        Ok((certificate, roots))
    }
}

/// Everything that the secure port is made of.
pub(crate) struct SecurePort {
    store: Arc<AuthorityStore>,
    tls: TlsServer,
    mounted: Option<Mounted>,
    settings: SecuritySettings,
    hosts: Vec<String>,
    state: Mutex<State>,
}

struct State {
    trust: Trust,
    /// The authority that the rest was made for.
    authority: Arc<Authority>,
    certificate: ServerCertificate,
    /// When half of its time is over.
    renewal: SystemTime,
    /// Roots beside those of the authority.
    roots: Certificates,
    /// Files that were read last, also when they could not be used.
    texts: Option<Texts>,
}

impl fmt::Debug for SecurePort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SecurePort")
            .field("store", &self.store)
            .field("mounted", &self.mounted)
            .field("hosts", &self.hosts)
            .finish_non_exhaustive()
    }
}

impl SecurePort {
    /// Opens the authority and the certificate of the port. An authority that a cluster keeps is `given`;
    /// without, it is the one that the arguments name.
    ///
    /// # Errors
    /// When a file is there and cannot be used.
    pub(crate) fn open(
        args: &SecureArgs,
        settings: &Settings,
        trust: Trust,
        given: Option<AuthorityStore>,
        now: SystemTime,
    ) -> anyhow::Result<Self> {
        let part = settings.security.clone();
        let store = match given {
            Some(store) => store,
            None => AuthorityStore::open(
                &part.authority_folder,
                args.ca_dir.as_deref(),
                &trust.domain,
                part.root_lifetime,
                now,
            )
            .context("open the certificate authority")?,
        };
        let mounted = match (&args.tls_certificate, &args.tls_key, &args.ca_certificate) {
            (Some(certificate), Some(key), Some(roots)) => Some(Mounted {
                certificate: certificate.clone(),
                key: key.clone(),
                roots: roots.clone(),
            }),
            _ => None,
        };
        let hosts = hosts(settings);
        let (certificate, roots, texts) = if let Some(mounted) = &mounted {
            let texts = mounted.read()?;
            let (certificate, roots) = mounted.parse(&texts)?;
            (certificate, roots, Some(texts))
        } else {
            let authority = store.current();
            let lifetime = part.lifetimes.default;
            let certificate = ServerCertificate::issue(&authority, &hosts, lifetime, now)?;
            (certificate, Vec::new(), None)
        };
        let rule = rule(&store, &roots, &trust)?;
        let tls = TlsServer::new(&certificate, rule)?;
        let renewal = half(now, certificate.expiry());
        let authority = store.current();
        Ok(Self {
            store: Arc::new(store),
            tls,
            mounted,
            settings: part,
            hosts,
            state: Mutex::new(State {
                trust,
                authority,
                certificate,
                renewal,
                roots,
                texts,
            }),
        })
    }

    /// Returns the authority.
    pub(crate) fn store(&self) -> &Arc<AuthorityStore> {
        &self.store
    }

    /// Returns the TLS side.
    pub(crate) fn tls(&self) -> &TlsServer {
        &self.tls
    }

    /// Returns the settings of identities.
    pub(crate) fn settings(&self) -> &SecuritySettings {
        &self.settings
    }

    /// Says in the log what is served.
    pub(crate) fn report(&self) {
        let authority = self.store.current();
        tracing::info!(
            origin = %self.store.origin(),
            authority = authority.description(),
            roots = authority.roots().len(),
            "certificate authority"
        );
        if let Some(mounted) = &self.mounted {
            tracing::info!(
                certificate = %mounted.certificate.display(),
                roots = %mounted.roots.display(),
                "the secure port shows a mounted certificate"
            );
        } else {
            tracing::info!(
                hosts = ?self.hosts,
                lifetime = ?self.settings.lifetimes.default,
                "the secure port shows a certificate of its authority"
            );
        }
    }

    /// Takes over what has changed: the authority's files, the mounted certificate, the mesh's trust
    /// domains; and renews a certificate of which half of the time is over.
    ///
    /// What cannot be used is told once, and changes nothing.
    pub(crate) fn refresh(&self, trust: Trust, now: SystemTime) {
        let reloaded = self.store.reload(now);
        self.log(reloaded, "the certificate authority is another one");
        let mut state = self.state.lock();
        // Whoever replaced it.
        let authority = self.store.current();
        let changed = !Arc::ptr_eq(&state.authority, &authority);
        state.authority = authority;
        let mut stale = changed || state.trust != trust;
        state.trust = trust;
        match &self.mounted {
            Some(mounted) => stale |= state.remount(mounted),
            None if changed || now >= state.renewal => {
                let authority = self.store.current();
                let lifetime = self.settings.lifetimes.default;
                match ServerCertificate::issue(&authority, &self.hosts, lifetime, now) {
                    Ok(certificate) => {
                        tracing::info!("the certificate of the secure port is renewed");
                        state.renewal = half(now, certificate.expiry());
                        state.certificate = certificate;
                        stale = true;
                    }
                    Err(error) => {
                        tracing::error!(%error, "the certificate of the secure port is not renewed");
                        state.renewal = now + Duration::from_mins(1);
                    }
                }
            }
            None => {}
        }
        if stale {
            let replaced = rule(&self.store, &state.roots, &state.trust)
                .and_then(|rule| Ok(self.tls.replace(&state.certificate, rule)?));
            if let Err(error) = replaced {
                tracing::error!(%error, "the secure port keeps its certificate");
            }
        }
    }

    fn log<E: fmt::Display>(&self, result: Result<bool, E>, changed: &'static str) -> bool {
        match result {
            Ok(true) => {
                let authority = self.store.current();
                tracing::info!(authority = authority.description(), "{changed}");
                true
            }
            Ok(false) => false,
            Err(error) => {
                tracing::error!(%error, "a change of identities is not taken over");
                false
            }
        }
    }

    /// Looks again and again until it is told to stop.
    pub(crate) async fn watch(
        self: Arc<Self>,
        trust: impl Fn() -> Trust + Send + 'static,
        clock: fn() -> SystemTime,
        stop: CancellationToken,
    ) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = looks.tick() => {}
            }
            let (port, trust) = (self.clone(), trust());
            let look = tokio::task::spawn_blocking(move || port.refresh(trust, clock()));
            if let Err(error) = look.await {
                tracing::error!(%error, "a look at the files of identities failed");
            }
        }
    }
}

impl State {
    /// Reads the mounted files again; returns whether there is another certificate.
    fn remount(&mut self, mounted: &Mounted) -> bool {
        // Files that are gone are about to be replaced.
        let Ok(texts) = mounted.read() else {
            return false;
        };
        if self.texts.as_ref() == Some(&texts) {
            return false;
        }
        let parsed = mounted.parse(&texts);
        self.texts = Some(texts);
        match parsed {
            Ok((certificate, roots)) => {
                tracing::info!("the mounted certificate is another one");
                self.certificate = certificate;
                self.roots = roots;
                true
            }
            Err(error) => {
                tracing::error!(error = %format_args!("{error:#}"), "the mounted certificate is not taken over");
                false
            }
        }
    }
}

/// The rule for certificates of clients.
fn rule(store: &AuthorityStore, further: &Certificates, trust: &Trust) -> anyhow::Result<PeerRule> {
    let authority = store.current();
    let roots: Certificates = authority.roots().iter().chain(further).cloned().collect();
    Ok(PeerRule::new(&roots, trust.domains())?)
}

/// The names under which proxies know the control plane.
fn hosts(settings: &Settings) -> Vec<String> {
    let namespace = &settings.namespace;
    let mut names = vec![
        "istiod".to_owned(),
        "istiod-remote".into(),
        "istio-pilot".into(),
    ];
    if !settings.revision.is_empty() && settings.revision != "default" {
        names.insert(0, format!("istiod-{}", settings.revision));
    }
    let own = names.iter().map(|name| format!("{name}.{namespace}.svc"));
    settings.security.hosts.iter().cloned().chain(own).collect()
}

/// When half of the time from now to then is over.
fn half(now: SystemTime, then: SystemTime) -> SystemTime {
    now + then.duration_since(now).unwrap_or_default() / 2
}

#[cfg(test)]
mod tests;

//! `istiod certificate`: the certificate of a workload, kept fresh in a folder.
//!
//! What Istio's agent does beside a proxy, for proxies that have none: it asks the control plane for
//! a certificate, writes it to files, and serves it to the proxy over a socket if it is told to.

mod client;
mod folder;
mod sds;

pub(crate) use self::{
    folder::file as secret_file,
    sds::{CERTIFICATE, ROOT},
};

use std::{
    path::PathBuf,
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, bail, ensure};
use clap::Args;
use model::SpiffeId;
use security::{PrivateKey, identities_of, parse_certificates, sign_request, validity};
use tokio_util::sync::CancellationToken;

use self::{
    client::{Credentials, Endpoint},
    folder::{Bundle, Folder},
};
use crate::bootstrap::HostPort;

/// The first pause after a failure, and the longest one.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_mins(1));

/// Arguments of `certificate`.
#[derive(Clone, Debug, Args)]
pub struct CertificateArgs {
    /// Folder for `key.pem`, `cert-chain.pem`, `root-cert.pem`, and both as secrets of Envoy:
    /// `default.json`, `ROOTCA.json`.
    #[arg(long, value_name = "FOLDER")]
    pub out: PathBuf,
    /// The identity to expect. A certificate of another one is not taken.
    #[arg(long, value_name = "SPIFFE-ID", conflicts_with_all = ["namespace", "service_account"])]
    pub identity: Option<SpiffeId>,
    /// The namespace to expect.
    #[arg(long, requires = "service_account")]
    pub namespace: Option<String>,
    /// The service account to expect.
    #[arg(long, requires = "namespace")]
    pub service_account: Option<String>,
    /// Where the control plane serves certificates.
    #[arg(
        long,
        value_name = "HOST:PORT",
        default_value = "istiod.istio-system.svc:15012"
    )]
    pub ca_address: HostPort,
    /// The name that the control plane's certificate must have.
    #[arg(long, value_name = "NAME", default_value = "istiod.istio-system.svc")]
    pub ca_server_name: String,
    /// Roots that verify it.
    #[arg(long, value_name = "FILE")]
    pub ca_root: PathBuf,
    /// A token that proves who asks; it is read again each time.
    #[arg(long, value_name = "FILE", required_unless_present = "cert")]
    pub token: Option<PathBuf>,
    /// A certificate that proves who asks; it is read again each time.
    #[arg(long, value_name = "FILE", requires = "key")]
    pub cert: Option<PathBuf>,
    /// The key of that certificate.
    #[arg(long, value_name = "FILE", requires = "cert")]
    pub key: Option<PathBuf>,
    /// How long certificates shall be valid.
    #[arg(long, default_value = "24h", value_parser = crate::cli::parse_duration)]
    pub lifetime: Duration,
    /// A socket on which the proxy gets its certificate and roots (SDS).
    #[arg(long, value_name = "PATH")]
    pub sds_socket: Option<PathBuf>,
    /// End when the files are fresh.
    #[arg(long, conflicts_with = "sds_socket")]
    pub once: bool,
}

impl CertificateArgs {
    fn expects(&self, found: &SpiffeId) -> bool {
        let fits = |expected: &Option<String>, found: &str| {
            expected.as_ref().is_none_or(|expected| expected == found)
        };
        self.identity
            .as_ref()
            .is_none_or(|identity| identity == found)
            && fits(&self.namespace, found.namespace())
            && fits(&self.service_account, found.service_account())
    }
}

/// Keeps the folder fresh until a signal says to stop, or once.
///
/// # Errors
/// When the folder cannot be written, or, with `--once`, no certificate comes.
pub fn run(args: CertificateArgs) -> anyhow::Result<()> {
    crate::discovery::log(false)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .context("start the runtime")?;
    runtime.block_on(async {
        tokio::select! {
            () = crate::discovery::signal() => Ok(()),
            result = keep(args) => result,
        }
    })
}

#[expect(
    clippy::disallowed_methods,
    reason = "the one wall clock of this command"
)]
fn now() -> SystemTime {
    SystemTime::now()
}

async fn keep(args: CertificateArgs) -> anyhow::Result<()> {
    let folder = Folder::open(&args.out)?;
    // How old what was found is, its own start tells.
    let mut held = folder.read().map(|bundle| {
        let start = validity(&bundle.chain[0]).map(|(start, _)| start);
        (bundle, start.unwrap_or(SystemTime::UNIX_EPOCH))
    });
    let stop = CancellationToken::new();
    let _stops = stop.clone().drop_guard();
    let secrets = match &args.sds_socket {
        Some(path) => Some(sds::Socket::serve(path, stop)?),
        None => None,
    };
    let show = |bundle: &Bundle| {
        if let Some(secrets) = &secrets {
            secrets.publish(bundle);
        }
    };
    if let Some((bundle, _)) = &held {
        show(bundle);
    }
    let mut pause = PAUSES.0;
    loop {
        if let Some((bundle, since)) = &held {
            let due = due(&args, bundle, *since, now());
            if !due.is_zero() {
                if args.once {
                    return Ok(());
                }
                // In pieces, since a machine may sleep meanwhile.
                tokio::time::sleep(due.min(PAUSES.1)).await;
                continue;
            }
        }
        match ask(&args).await {
            Ok(bundle) => {
                folder.write(&bundle)?;
                show(&bundle);
                let until = validity(&bundle.chain[0]).map(|(_, end)| end);
                let valid = until.and_then(|end| end.duration_since(now()).ok());
                tracing::info!(folder = %args.out.display(), ?valid, "a certificate is there");
                held = Some((bundle, now()));
                pause = PAUSES.0;
                // However short certificates live.
                tokio::time::sleep(PAUSES.0).await;
            }
            Err(error) if args.once => return Err(error),
            Err(error) => {
                tracing::warn!(error = %format_args!("{error:#}"), again = ?pause, "no certificate");
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(PAUSES.1);
            }
        }
    }
}

/// How long a certificate that is there since then need not be renewed: until half of its time is
/// over.
fn due(args: &CertificateArgs, bundle: &Bundle, since: SystemTime, now: SystemTime) -> Duration {
    let leaf = &bundle.chain[0];
    let mine = matches!(&identities_of(leaf)[..], [own] if args.expects(own));
    match validity(leaf) {
        Some((_, end)) if mine => {
            let half = end.duration_since(since).unwrap_or_default() / 2;
            (since + half).duration_since(now).unwrap_or_default()
        }
        _ => Duration::ZERO,
    }
}

/// Asks for a certificate for a new key.
async fn ask(args: &CertificateArgs) -> anyhow::Result<Bundle> {
    let read = |path: &PathBuf| {
        std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
    };
    let credentials = Credentials {
        token: args.token.as_ref().map(read).transpose()?,
        certificate: match (&args.cert, &args.key) {
            (Some(cert), Some(key)) => Some((read(cert)?, zeroize::Zeroizing::new(read(key)?))),
            _ => None,
        },
    };
    let endpoint = Endpoint {
        address: args.ca_address.clone(),
        server_name: args.ca_server_name.clone(),
        roots: read(&args.ca_root)?,
    };
    let key = PrivateKey::generate().context("make a key")?;
    let request = sign_request(&key).context("sign the request")?;
    let mut parts = client::create(&endpoint, &credentials, request, args.lifetime).await?;
    let roots = parts.pop().context("the answer is empty")?;
    let parse = |text: &str| parse_certificates(text.as_bytes()).context("the answer is no PEM");
    let (chain, roots) = (parse(&parts.concat())?, parse(&roots)?);
    let leaf = chain.first().context("the answer holds no certificate")?;
    ensure!(!roots.is_empty(), "the answer holds no roots");
    match &identities_of(leaf)[..] {
        [own] if args.expects(own) => {}
        [other] => bail!("the certificate is for {other}, which is not expected"),
        _ => bail!("the certificate is for nobody"),
    }
    let bundle = Bundle { key, chain, roots };
    bundle.check()?;
    Ok(bundle)
}

#[cfg(test)]
mod tests;

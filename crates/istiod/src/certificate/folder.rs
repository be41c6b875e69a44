//! The folder of a certificate.

use std::{
    fmt, fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, ensure};
use security::{
    Certificates, PrivateKey, ServerCertificate, certificates_pem, parse_certificates,
    write_atomically,
};
use serde_json::json;

const KEY: &str = "key.pem";
const CHAIN: &str = "cert-chain.pem";
const ROOTS: &str = "root-cert.pem";

/// A certificate, its key, and the roots of its mesh.
pub(super) struct Bundle {
    /// The key.
    pub(super) key: PrivateKey,
    /// The certificate and what leads to a root; never empty.
    pub(super) chain: Certificates,
    /// Roots.
    pub(super) roots: Certificates,
}

impl fmt::Debug for Bundle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bundle")
            .field("chain", &self.chain.len())
            .field("roots", &self.roots.len())
            .finish_non_exhaustive()
    }
}

impl Bundle {
    /// Fails unless key and certificate belong together.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        ensure!(!self.chain.is_empty(), "no certificate");
        let chain = certificates_pem(&self.chain);
        ServerCertificate::from_pem(&chain, self.key.to_pem(), "the certificate")?;
        Ok(())
    }
}

/// A folder that holds one.
#[derive(Debug)]
pub(super) struct Folder(PathBuf);

impl Folder {
    /// Makes it, unless it is there.
    pub(super) fn open(path: &Path) -> anyhow::Result<Self> {
        fs::create_dir_all(path).with_context(|| format!("create {}", path.display()))?;
        Ok(Self(path.to_owned()))
    }

    /// Reads what an earlier run has written; `None` when that is not whole.
    pub(super) fn read(&self) -> Option<Bundle> {
        let text = |name: &str| fs::read_to_string(self.0.join(name)).ok();
        let certificates = |name: &str| parse_certificates(text(name)?.as_bytes());
        let key = zeroize::Zeroizing::new(text(KEY)?);
        let bundle = Bundle {
            key: PrivateKey::from_pem(&key)?,
            chain: certificates(CHAIN)?,
            roots: certificates(ROOTS)?,
        };
        bundle.check().ok()?;
        Some(bundle)
    }

    /// Replaces all files, each at once. Key and certificate are together in `default.json` only: who
    /// reads them from the other two may see one of them before the other.
    pub(super) fn write(&self, bundle: &Bundle) -> anyhow::Result<()> {
        let (chain, roots) = (
            certificates_pem(&bundle.chain),
            certificates_pem(&bundle.roots),
        );
        let key = bundle.key.to_pem();
        let write =
            |name: &str, text: &str, secret| write_atomically(&self.0.join(name), text, secret);
        write(KEY, key, true)?;
        write(CHAIN, &chain, false)?;
        write(ROOTS, &roots, false)?;
        let secret = |secret: serde_json::Value| {
            zeroize::Zeroizing::new(json!({"resources": [secret]}).to_string())
        };
        let default = secret(json!({
            "@type": super::sds::SECRET,
            "name": super::sds::CERTIFICATE,
            "tlsCertificate": {
                "certificateChain": {"inlineString": chain},
                "privateKey": {"inlineString": key},
            },
        }));
        let root = secret(json!({
            "@type": super::sds::SECRET,
            "name": super::sds::ROOT,
            "validationContext": {"trustedCa": {"inlineString": roots}},
        }));
        write(&file(super::sds::ROOT), &root, false)?;
        write(&file(super::sds::CERTIFICATE), &default, true)?;
        Ok(())
    }
}

/// The file of a secret of Envoy.
pub(crate) fn file(secret: &str) -> String {
    format!("{secret}.json")
}

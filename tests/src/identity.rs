//! Identities in tests: an issuer of tokens, and certificates that `istiod certificate` keeps fresh.

use std::{
    fs,
    net::SocketAddr,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use anyhow::{Context as _, Result, anyhow, ensure};
use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair as _},
};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::{control_plane, process::Process};

/// Longest time until a certificate is there.
const SOON: Duration = Duration::from_secs(20);

/// Who issues tokens.
#[derive(Debug)]
pub struct TokenIssuer {
    pair: EcdsaKeyPair,
}

impl TokenIssuer {
    /// Makes one with a new key.
    ///
    /// # Errors
    /// When there are no random numbers.
    pub fn new() -> Result<Self> {
        let random = SystemRandom::new();
        let algorithm = &ECDSA_P256_SHA256_FIXED_SIGNING;
        let document =
            EcdsaKeyPair::generate_pkcs8(algorithm, &random).map_err(|_| anyhow!("make a key"))?;
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, document.as_ref(), &random)
            .map_err(|_| anyhow!("read a key"))?;
        Ok(Self { pair })
    }

    /// Its public key as a JSON web key set.
    pub fn keys(&self) -> Value {
        let point = self.pair.public_key().as_ref();
        json!({"keys": [{
            "kty": "EC", "crv": "P-256", "alg": "ES256", "use": "sig", "kid": "key",
            "x": URL_SAFE_NO_PAD.encode(&point[1..33]), "y": URL_SAFE_NO_PAD.encode(&point[33..]),
        }]})
    }

    /// Signs a token that is valid for so many seconds; less than none for one that has expired.
    ///
    /// # Errors
    /// When there are no random numbers.
    pub fn token(
        &self,
        issuer: &str,
        subject: &str,
        audience: &str,
        seconds: i64,
    ) -> Result<String> {
        #[expect(
            clippy::disallowed_methods,
            reason = "Envoy and istiod read the same clock"
        )]
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?;
        let now = i64::try_from(now.as_secs())?;
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let header = json!({"alg": "ES256", "typ": "JWT", "kid": "key"});
        let claims = json!({
            "iss": issuer, "sub": subject, "aud": audience, "iat": now - 3600, "exp": now + seconds,
        });
        let message = format!("{}.{}", part(&header), part(&claims));
        let random = SystemRandom::new();
        let signature = self.pair.sign(&random, message.as_bytes());
        let signature = signature.map_err(|_| anyhow!("sign a token"))?;
        Ok(format!("{message}.{}", URL_SAFE_NO_PAD.encode(signature)))
    }
}

/// A running `istiod certificate`; dropping it kills it.
#[derive(Debug)]
pub struct Certificates {
    folder: PathBuf,
    process: Process,
}

impl Certificates {
    /// Starts it with a token; it writes to a folder `name` below `folder`, and serves the secrets
    /// there, too.
    ///
    /// # Errors
    /// When no certificate comes.
    pub async fn start(
        folder: &Path,
        name: &str,
        token: &str,
        istiod: SocketAddr,
        roots: &Path,
        arguments: &[&str],
    ) -> Result<Self> {
        let out = folder.join(name);
        fs::create_dir_all(&out).context("make a folder")?;
        let token_file = folder.join(format!("{name}.token"));
        fs::write(&token_file, token).context("write a token")?;
        let mut command = Command::new(control_plane::binary().await?);
        command
            .arg("certificate")
            .arg("--out")
            .arg(&out)
            .arg("--token")
            .arg(&token_file)
            .args(["--ca-address", &istiod.to_string()])
            .arg("--ca-root")
            .arg(roots)
            .arg("--sds-socket")
            .arg(out.join("sds"))
            .args(arguments);
        let log = folder.join(format!("{name}-certificate.log"));
        let mut process = Process::start(&format!("certificate of {name}"), command, &log)?;
        process
            .until("a certificate", SOON, async || {
                ensure!(out.join("default.json").exists(), "no file yet");
                Ok(())
            })
            .await?;
        Ok(Self {
            folder: out,
            process,
        })
    }

    /// Its folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What it logged.
    pub fn log(&self) -> String {
        self.process.log()
    }

    /// Arguments of `istiod bootstrap` for the proxy that uses it.
    pub fn bootstrap(&self) -> Vec<String> {
        vec![
            "--certificates".to_owned(),
            self.folder.display().to_string(),
            "--sds-socket".to_owned(),
            self.folder.join("sds").display().to_string(),
        ]
    }
}

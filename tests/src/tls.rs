//! TLS in tests: certificates made by the `openssl` program, requests sent by `curl`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail, ensure};
use tokio::process::Command;

use crate::http::Answer;

/// Longest time that one request may take, seconds.
const PATIENCE: &str = "10";

/// A certificate authority.
#[derive(Clone, Debug)]
pub struct Authority {
    folder: PathBuf,
    own: Issued,
}

/// A certificate with its key, in PEM files.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: PathBuf,
    /// Its key.
    pub key: PathBuf,
}

impl Issued {
    fn at(folder: &Path, name: &str) -> Self {
        Self {
            certificate: folder.join(format!("{name}.crt")),
            key: folder.join(format!("{name}.key")),
        }
    }

    /// The text of the certificate and of the key.
    ///
    /// # Errors
    /// When they cannot be read.
    pub fn read(&self) -> Result<(String, String)> {
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
        };
        Ok((read(&self.certificate)?, read(&self.key)?))
    }
}

impl Authority {
    /// Makes an authority whose files go into `folder`.
    ///
    /// # Errors
    /// When there is no `openssl`.
    pub async fn new(folder: &Path, name: &str) -> Result<Self> {
        let own = Issued::at(folder, name);
        let subject = format!("/CN={name}");
        request(
            &own,
            &subject,
            &["-addext", "basicConstraints=critical,CA:TRUE"],
        )
        .await?;
        Ok(Self {
            folder: folder.to_owned(),
            own,
        })
    }

    /// Makes an authority below this one.
    ///
    /// # Errors
    /// When `openssl` fails.
    pub async fn intermediate(&self, name: &str) -> Result<Self> {
        let own = Issued::at(&self.folder, name);
        let (ca, key) = (text(&self.own.certificate)?, text(&self.own.key)?);
        let further = [
            "-CA",
            ca,
            "-CAkey",
            key,
            "-addext",
            "basicConstraints=critical,CA:TRUE",
        ];
        request(&own, &format!("/CN={name}"), &further).await?;
        Ok(Self {
            folder: self.folder.clone(),
            own,
        })
    }

    /// Its own certificate and key.
    pub fn files(&self) -> &Issued {
        &self.own
    }

    /// The file with its certificate.
    pub fn certificate(&self) -> &Path {
        &self.own.certificate
    }

    /// Issues a certificate for `host`; its files are named `name`.
    ///
    /// # Errors
    /// When `openssl` fails.
    pub async fn issue(&self, name: &str, host: &str) -> Result<Issued> {
        let issued = Issued::at(&self.folder, name);
        let names = format!("subjectAltName=DNS:{host}");
        let (ca, key) = (text(&self.own.certificate)?, text(&self.own.key)?);
        let further = [
            "-CA",
            ca,
            "-CAkey",
            key,
            "-addext",
            &names,
            "-addext",
            "basicConstraints=critical,CA:FALSE",
        ];
        request(&issued, &format!("/CN={host}"), &further).await?;
        Ok(issued)
    }
}

async fn request(files: &Issued, subject: &str, further: &[&str]) -> Result<()> {
    let (certificate, key) = (text(&files.certificate)?, text(&files.key)?);
    let output = Command::new("openssl")
        .args(["req", "-x509", "-newkey", "ec", "-nodes", "-days", "30"])
        .args(["-pkeyopt", "ec_paramgen_curve:P-256"])
        .args(["-keyout", key, "-out", certificate, "-subj", subject])
        .args(further)
        .output()
        .await
        .context("run openssl, which this needs")?;
    ensure!(
        output.status.success(),
        "openssl: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    Ok(())
}

fn text(path: &Path) -> Result<&str> {
    path.to_str().context("a path in UTF-8")
}

/// A request by HTTPS.
#[derive(Clone, Debug)]
pub struct Request {
    /// Name of the host, which is of this machine.
    pub host: String,
    /// Port.
    pub port: u16,
    /// File with the authorities that the host's certificate is verified by.
    pub authorities: PathBuf,
    /// The client's own certificate.
    pub client: Option<Issued>,
}

impl Request {
    /// Sends it, on a connection of its own.
    ///
    /// # Errors
    /// When there is no connection, or either side does not trust the other.
    pub async fn send(&self) -> Result<Answer> {
        let Self { host, port, .. } = self;
        let mut command = Command::new("curl");
        command
            .args(["--silent", "--show-error", "--max-time", PATIENCE])
            .args(["--resolve", &format!("{host}:{port}:127.0.0.1")])
            .args(["--write-out", "\n%{http_code}"])
            .arg("--cacert")
            .arg(&self.authorities);
        if let Some(client) = &self.client {
            command.arg("--cert").arg(&client.certificate);
            command.arg("--key").arg(&client.key);
        }
        let output = command
            .arg(format!("https://{host}:{port}/"))
            .kill_on_drop(true)
            .output()
            .await
            .context("run curl, which this needs")?;
        if !output.status.success() {
            bail!("curl: {}", String::from_utf8_lossy(&output.stderr).trim());
        }
        let said = String::from_utf8(output.stdout).context("an answer in UTF-8")?;
        let (body, status) = said.rsplit_once('\n').context("curl prints the status")?;
        Ok(Answer {
            status: status.parse().context("a status")?,
            body: body.to_owned(),
        })
    }
}

//! Requests by HTTP/3, which `curl` mostly is built without: sent by aioquic, which pip fetches once.

use std::{net::SocketAddr, path::Path};

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use crate::{corpus::workspace, http::Answer, wheel::Wheel};

const WHEEL: Wheel = Wheel {
    name: "aioquic",
    version: "1.7.2",
    what: "a client of HTTP/3",
    with_dependencies: true,
    file: "aioquic/h3/connection.py",
};

/// Gets `/` of `host` at an address; the certificate has to be of one of the authorities in a file.
///
/// # Errors
/// When there is no client, and when there is no answer.
pub async fn get(address: SocketAddr, host: &str, authorities: &Path) -> Result<Answer> {
    let modules = WHEEL.fetch().await?;
    let output = Command::new("python3")
        .arg(workspace().join("tests/http3/get.py"))
        .arg(address.ip().to_string())
        .arg(address.port().to_string())
        .args([host, "/"])
        .arg(authorities)
        .env("PYTHONPATH", modules)
        .output()
        .await
        .context("run python3, which this needs")?;
    let error = String::from_utf8_lossy(&output.stderr);
    let error = error.lines().last().unwrap_or_default();
    ensure!(output.status.success(), "HTTP/3 to {host}: {error}");
    let text = String::from_utf8(output.stdout).context("an answer in UTF-8")?;
    let (status, body) = text.split_once('\n').context("a status")?;
    Ok(Answer {
        status: status.parse().context("a status")?,
        body: body.to_owned(),
    })
}

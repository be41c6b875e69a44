//! The chart, as Helm renders it.

use anyhow::{Context as _, Result, ensure};
use tokio::process::Command;

use super::helm;
use crate::corpus::workspace;

/// Renders the chart of the control plane as `helm template` does, for the namespace `istio-system`, with
/// values as `helm --set` takes them.
///
/// # Errors
/// When there is no Go to build Helm, or Helm refuses the chart: with what it says.
pub async fn render(values: &[&str]) -> Result<String> {
    let output = Command::new(helm().await?)
        .args(["template", "istiod", "manifests/charts/istiod"])
        .args(["--namespace", "istio-system", "--kube-version", "1.36.0"])
        .args(values.iter().flat_map(|value| ["--set", value]))
        .current_dir(workspace())
        .output()
        .await
        .context("run helm")?;
    ensure!(
        output.status.success(),
        "helm template: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).context("read what helm printed")
}

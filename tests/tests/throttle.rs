//! The namespace throttle of a running `istiod`, from outside: settings that change while it runs.

use std::{fs, path::Path, time::Duration};

use anyhow::{Result, ensure};
use serde_json::Value;
use tests::{
    control_plane::{ControlPlane, Setup},
    process::until,
};

/// Longest time until something is seen.
const SOON: Duration = Duration::from_secs(20);

async fn throttlez(istiod: &ControlPlane) -> Result<Value> {
    Ok(serde_json::from_str(
        &istiod.monitoring("/debug/throttlez").await?,
    )?)
}

/// Waits until `/debug/throttlez` is as expected.
async fn shows(istiod: &ControlPlane, what: &str, look: impl Fn(&Value) -> bool) -> Result<Value> {
    until(what, SOON, async || {
        let shown = throttlez(istiod).await?;
        ensure!(look(&shown), "{shown}");
        Ok(shown)
    })
    .await
}

fn write_rule(folder: &Path, connections: usize) -> Result<()> {
    let rule = format!(
        "apiVersion: networking.istio.io/v1\nkind: DestinationRule\n\
         metadata: {{name: loop, namespace: noisy}}\n\
         spec: {{host: web, trafficPolicy: {{connectionPool: {{tcp: {{maxConnections: {connections}}}}}}}}}\n"
    );
    fs::write(folder.join("rule.yaml"), rule)?;
    Ok(())
}

#[tokio::test]
async fn settings_change_while_it_runs() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let config = folder.path().join("config");
    fs::create_dir(&config)?;
    write_rule(&config, 1)?;
    let settings = folder.path().join("settings.yaml");
    fs::write(&settings, "PILOT_DEBOUNCE_AFTER: 10ms\n")?;
    let mut setup = Setup::new(&config, folder.path())?;
    setup
        .arguments
        .extend(["--settings".to_owned(), settings.display().to_string()]);
    let istiod = ControlPlane::start(setup).await?;
    shows(&istiod, "off at first", |shown| shown["enabled"] == false).await?;

    fs::write(
        &settings,
        "PILOT_ENABLE_NAMESPACE_THROTTLE: true\nPILOT_NAMESPACE_THROTTLE_THRESHOLD: 2\n\
         REVISION: canary\n",
    )?;
    shows(&istiod, "on", |shown| {
        shown["enabled"] == true && shown["threshold"] == 2
    })
    .await?;
    // The file goes through a watcher, which may take several writes for one change.
    let mut connections = 1;
    until("the noisy namespace is throttled", SOON, async || {
        connections += 1;
        write_rule(&config, connections)?;
        let shown = throttlez(&istiod).await?;
        ensure!(shown["throttled"][0]["namespace"] == "noisy", "{shown}");
        Ok(())
    })
    .await?;

    fs::write(
        &settings,
        "PILOT_ENABLE_NAMESPACE_THROTTLE: true\nPILOT_NAMESPACE_THROTTLE_THRESHOLD: 0\n",
    )?;
    until("the bad value is named", SOON, async || {
        let log = istiod.log();
        ensure!(
            log.contains("settings.yaml:2: PILOT_NAMESPACE_THROTTLE_THRESHOLD")
                && log.contains("is not a whole number from 1 to 1000000"),
            "{log}"
        );
        Ok(())
    })
    .await?;
    shows(&istiod, "the old settings stay", |shown| {
        shown["enabled"] == true && shown["threshold"] == 2
    })
    .await?;

    fs::write(&settings, "{}\n")?;
    let shown = shows(&istiod, "off again", |shown| shown["enabled"] == false).await?;
    ensure!(shown["throttled"] == Value::Array(Vec::new()), "{shown}");
    let log = istiod.log();
    ensure!(
        log.contains("these settings take effect at the next start settings=[\"REVISION\"]"),
        "{log}"
    );
    Ok(())
}

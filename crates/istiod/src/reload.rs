//! Settings that change while the process runs: those of the throttle and of the debounce, in the
//! settings file, and the root namespace, which is never throttled.

use std::{path::Path, sync::Arc, time::Duration};

use model::MeshState;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};
use tokio_util::sync::CancellationToken;

use crate::{
    discovery::Gate,
    event::Event,
    settings::{Environment, Settings, SettingsFile},
    throttling,
};

/// How often the file is read. Watching would see no change of a mounted `ConfigMap`, whose path is a
/// link of links, more surely.
const LOOK: Duration = Duration::from_secs(1);

/// What is in force, and where changes of it go.
#[derive(Debug)]
pub(crate) struct Reload {
    /// The settings file, if there is one.
    pub(crate) file: Option<SettingsFile>,
    /// The settings in force.
    pub(crate) settings: Settings,
    /// The root namespace in force.
    pub(crate) root_namespace: Arc<str>,
    /// The throttle.
    pub(crate) throttle: Gate,
    /// The debounce.
    pub(crate) debounce: debounce::Intake<Event>,
    /// The state that names the root namespace.
    pub(crate) latest: Arc<Mutex<MeshState>>,
}

impl Reload {
    /// Takes over changes until it is stopped.
    pub(crate) async fn run(mut self, stop: CancellationToken) {
        let mut ticks = interval(LOOK);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The text that was refused last: one complaint is enough.
        let mut refused = None;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                _ = ticks.tick() => {}
            }
            self.follow_root_namespace().await;
            let Some(file) = &self.file else { continue };
            let text = match tokio::fs::read_to_string(file.path()).await {
                Ok(text) if text == file.text() => {
                    refused = None;
                    continue;
                }
                Ok(text) => text,
                Err(error) => {
                    complain(&mut refused, file.path(), &error.to_string());
                    continue;
                }
            };
            match resolve(file.path(), text) {
                Ok((file, settings)) => {
                    if let Err(error) = self.take_over(file, settings).await {
                        self.complain(&mut refused, &error.to_string());
                    }
                }
                Err(errors) => self.complain(&mut refused, &errors),
            }
        }
    }

    async fn follow_root_namespace(&mut self) {
        let root = self.latest.lock().mesh.root_namespace.clone();
        if *root != *self.root_namespace {
            self.root_namespace = root.as_str().into();
            let settings = throttling::with_root(&self.settings.throttle, &self.root_namespace);
            // They were accepted before, and the names of exempt namespaces are free.
            if let Err(error) = self.throttle.configure(settings).await {
                tracing::error!(%error, "the throttle refused its own settings");
            }
        }
    }

    /// Puts new settings in force as far as they can be while the process runs.
    async fn take_over(
        &mut self,
        file: SettingsFile,
        settings: Settings,
    ) -> Result<(), throttle::InvalidSettings> {
        let throttle = throttling::with_root(&settings.throttle, &self.root_namespace);
        self.throttle.configure(throttle).await?;
        self.debounce.set_options(settings.debounce());
        let old = self.file.replace(file).unwrap_or_default();
        let new = self.file.as_ref().unwrap_or(&old);
        let changed = old.differences(new);
        let (live, later): (Vec<&str>, Vec<&str>) = changed
            .into_iter()
            .partition(|name| Settings::is_live(name));
        tracing::info!(file = %new.path().display(), changed = ?live, "settings changed");
        if !later.is_empty() {
            tracing::warn!(settings = ?later, "these settings take effect at the next start");
        }
        self.settings = settings;
        Ok(())
    }

    fn complain(&self, refused: &mut Option<String>, reason: &str) {
        if let Some(file) = &self.file {
            complain(refused, file.path(), reason);
        }
    }
}

/// Reads and resolves a text; all that is wrong with it otherwise.
fn resolve(path: &Path, text: String) -> Result<(SettingsFile, Settings), String> {
    let file = SettingsFile::parse(path, text).map_err(|error| format!("{error:#}"))?;
    let settings = file
        .resolve(&Environment)
        .map_err(|errors| errors.join("; "))?;
    Ok((file, settings))
}

/// Says once what is wrong.
fn complain(refused: &mut Option<String>, path: &Path, reason: &str) {
    if refused.as_deref() != Some(reason) {
        tracing::error!(file = %path.display(), reason, "settings are refused; the old ones stay in force");
        *refused = Some(reason.to_owned());
    }
}

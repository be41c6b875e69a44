//! Programs that Go builds, once.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
};

use anyhow::{Context as _, Result, ensure};
use tokio::{process::Command, sync::OnceCell};
use xxhash_rust::xxh3::Xxh3;

use crate::corpus::workspace;

/// A program of a Go module beside the tests.
struct Program {
    /// Its name in messages.
    name: &'static str,
    /// The folder of the module.
    folder: &'static str,
    /// The package of the program.
    package: &'static str,
    /// What it is built from, beside modules of others.
    sources: &'static [&'static str],
}

/// API server and database in one.
const CONTROL_PLANE: Program = Program {
    name: "controlplane",
    folder: "tests/kubernetes/apiserver",
    package: ".",
    sources: &["go.mod", "go.sum", "main.go"],
};

/// Renders charts.
const HELM: Program = Program {
    name: "helm",
    folder: "tests/kubernetes/helm",
    package: "helm.sh/helm/v3/cmd/helm",
    sources: &["go.mod", "go.sum"],
};

/// Returns the program that is API server and database, building it if it is not there. That takes some
/// minutes, and the network for Go modules that are not on this machine yet.
///
/// # Errors
/// When there is no Go, or it cannot build: says what to install.
pub async fn binary() -> Result<&'static Path> {
    static BINARY: OnceCell<PathBuf> = OnceCell::const_new();
    let built = BINARY.get_or_try_init(|| CONTROL_PLANE.built()).await;
    built.map(PathBuf::as_path)
}

/// Returns Helm, building it if it is not there.
///
/// # Errors
/// When there is no Go, or it cannot build: says what to install.
pub async fn helm() -> Result<&'static Path> {
    static BINARY: OnceCell<PathBuf> = OnceCell::const_new();
    BINARY
        .get_or_try_init(|| HELM.built())
        .await
        .map(PathBuf::as_path)
}

impl Program {
    /// Finds the program in the repository's `.cache/`, or builds it there.
    async fn built(&self) -> Result<PathBuf> {
        let source = workspace().join(self.folder);
        let cache = workspace().join(".cache");
        let binary = cache.join(format!("{}-{}", self.name, self.version(&source)?));
        if binary.is_file() {
            return Ok(binary);
        }
        fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
        // Moved when it is whole. Another process may be faster: then this one's is the same.
        let temporary = tempfile::tempdir_in(&cache).context("create a folder in .cache")?;
        let target = temporary.path().join(self.name);
        let name = self.name;
        let status = Command::new("go")
            .args(["build", "-mod=readonly", "-trimpath", "-buildvcs=false"])
            .args(["-ldflags", "-s -w", "-o"])
            .arg(&target)
            .arg(self.package)
            .current_dir(&source)
            // An older one fetches what go.mod asks for.
            .env("GOTOOLCHAIN", "auto")
            .stdin(Stdio::null())
            .kill_on_drop(true)
            .status()
            .await
            .with_context(|| {
                format!(
                    "this needs {name}, which Go builds: install Go 1.21 or newer (go.dev, or a \
                     distribution that has it), which fetches 1.26, and let it reach the Go module \
                     proxy"
                )
            })?;
        ensure!(
            status.success(),
            "Go could not build {name} in {}: it needs Go 1.21 or newer, which fetches 1.26, and the \
             Go module proxy",
            source.display()
        );
        fs::rename(&target, &binary).with_context(|| format!("move {name} into .cache"))?;
        Ok(binary)
    }

    /// A hash of all that the program is made of.
    fn version(&self, source: &Path) -> Result<String> {
        let mut hash = Xxh3::new();
        for name in self.sources {
            let path = source.join(name);
            let text = fs::read(&path).with_context(|| format!("read {}", path.display()))?;
            hash.update(&text);
        }
        Ok(format!("{:016x}", hash.digest()))
    }
}

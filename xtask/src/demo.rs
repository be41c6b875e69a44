//! `cargo xtask demo`.

use std::{os::unix::process::CommandExt as _, process::Command};

use anyhow::Context as _;

use crate::root;

/// Becomes the demo, which links the product and therefore is not part of this tool. Who stops this
/// process stops the demo.
pub(crate) fn run(keep: bool) -> anyhow::Result<()> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["run", "--quiet", "--bin", "demo"])
        .current_dir(root::workspace());
    if keep {
        command.args(["--", "--keep"]);
    }
    Err(command.exec()).context("run cargo")
}

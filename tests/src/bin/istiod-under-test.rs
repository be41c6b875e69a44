//! The `istiod` binary once more, so that tests of this crate always run a current one.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    istiod::run(istiod::cli::Cli::parse())
}

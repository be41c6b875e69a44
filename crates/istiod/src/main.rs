//! The `istiod` binary.

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    istiod::run(istiod::cli::Cli::parse())
}

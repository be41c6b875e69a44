//! Project commands.
#![expect(clippy::print_stderr, reason = "a command line tool")]

mod bench;
mod demo;
mod deny;
mod descriptors;
mod policies;
mod root;
mod test;

use std::process::ExitCode;

use anyhow::Context as _;
use clap::{Parser, Subcommand};

#[derive(Debug, Parser)]
#[command(name = "cargo xtask", about = "Every project command")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs every check: format, lints, what is linked, all tests, the conformance corpus, real Envoys, a real API server.
    Test {
        /// Leaves out the tests that need Envoy, or a Kubernetes API server.
        #[arg(long)]
        quick: bool,
    },
    /// Runs the bookinfo example with two real Envoys, and shows what they do.
    Demo {
        /// Stays up until it is stopped, and prints the addresses.
        #[arg(long)]
        keep: bool,
    },
    /// Compares what we send with what the Go istiod sends; `--help` says more.
    #[command(disable_help_flag = true)]
    Conformance {
        /// Passed on.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Connects a fleet of fake Envoys to istiod and measures; `--help` says more.
    #[command(disable_help_flag = true)]
    Load {
        /// Passed on.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Measures how long a new route takes to a real Envoy at a gateway of many hosts; `--help` says more.
    #[command(disable_help_flag = true)]
    Routes {
        /// Passed on.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Runs a Kubernetes API server on this machine: up, down, status; `--help` says more.
    #[command(disable_help_flag = true)]
    Kube {
        /// Passed on.
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        arguments: Vec<String>,
    },
    /// Packs ../shared/conformance into the repository, or checks the pack.
    Corpus {
        #[command(subcommand)]
        action: Corpus,
    },
    /// Measures large meshes and prints the times beside those of the Go istiod.
    BenchReport {
        /// Which meshes, by the start of their names; all unless given.
        meshes: Vec<String>,
    },
    /// Counts what fixed scenarios build and allocate; fails when something grew.
    BenchSmoke {
        /// Rewrites the counters that are checked in.
        #[arg(long)]
        update: bool,
    },
    /// Builds istiod with different throttle policies, and checks what is linked.
    Policies,
    /// Checks licences, sources and known vulnerabilities of what is linked, by cargo-deny, which it fetches.
    Deny,
    /// Rebuilds the protobuf descriptors that crate envoy-json carries.
    Descriptors {
        /// Only checks that what is checked in is current.
        #[arg(long)]
        check: bool,
    },
}

#[derive(Clone, Copy, Debug, Subcommand)]
enum Corpus {
    /// Packs it.
    Pack,
    /// Checks that the pack is current.
    Check,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Test { quick } => test::run(quick),
        Command::Demo { keep } => demo::run(keep),
        Command::Conformance { arguments } => conformance("run", &arguments),
        Command::Load { arguments } => measure("load", &arguments),
        Command::Routes { arguments } => measure("routes", &arguments),
        Command::Kube { arguments } => kube(&arguments),
        Command::Corpus {
            action: Corpus::Pack,
        } => conformance("pack", &[]),
        Command::Corpus {
            action: Corpus::Check,
        } => conformance("check", &[]),
        Command::BenchReport { meshes } => bench::report(&meshes),
        Command::BenchSmoke { update } => bench::smoke(update),
        Command::Policies => policies::check(),
        Command::Deny => deny::check(),
        Command::Descriptors { check: true } => descriptors::check(),
        Command::Descriptors { check: false } => descriptors::build(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Runs a program that measures, built like what it measures: with optimisations.
fn measure(program: &str, arguments: &[String]) -> anyhow::Result<()> {
    let status = std::process::Command::new(env!("CARGO"))
        .args(["run", "--release", "--quiet", "--bin", program, "--"])
        .args(arguments)
        .current_dir(root::workspace())
        .status()
        .context("run cargo")?;
    anyhow::ensure!(status.success(), "{program} failed");
    Ok(())
}

/// Runs what starts API servers.
fn kube(arguments: &[String]) -> anyhow::Result<()> {
    let status = std::process::Command::new(env!("CARGO"))
        .args(["run", "--quiet", "--bin", "kube", "--"])
        .args(arguments)
        .current_dir(root::workspace())
        .status()
        .context("run cargo")?;
    anyhow::ensure!(status.success(), "kube failed");
    Ok(())
}

/// Runs the conformance runner, which links the whole product and therefore is not part of this tool.
fn conformance(command: &str, arguments: &[String]) -> anyhow::Result<()> {
    let status = std::process::Command::new(env!("CARGO"))
        // Without `--package`: see `test`.
        .args(["run", "--quiet", "--bin", "conformance", "--", command])
        .args(arguments)
        .current_dir(root::workspace())
        .status()
        .context("run cargo")?;
    anyhow::ensure!(status.success(), "conformance {command} failed");
    Ok(())
}

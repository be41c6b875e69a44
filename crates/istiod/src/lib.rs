//! The control plane: flags, settings, wiring and HTTP ports. No mesh logic.

mod access;
mod advice;
pub mod bootstrap;
mod ca;
pub mod certificate;
pub mod cli;
mod cluster;
mod deployment;
mod diff;
pub mod discovery;
pub mod distribution;
mod event;
pub mod generate;
mod home;
mod http;
mod keys;
pub mod load;
mod metrics;
pub mod node;
mod patch_status;
mod reload;
pub mod settings;
mod shards;
mod sources;
mod statuses;
mod tables;
pub mod throttling;
pub mod tls;
mod tokens;
pub mod validate;
mod yaml;

use std::{io::Write, process::ExitCode};

use anyhow::Context as _;
use generators::Mesh;
use serde_json::Value;
use xds::{Registry, XDS_GENERATORS};

use cli::{Cli, Command, ConfigArgs, StructuredOutput};
use settings::{Environment, Settings, SettingsFile};

/// Exit status of `generate --diff` when there are differences, as that of `diff`.
const DIFFERENT: u8 = 1;
/// Exit status of `generate --diff` when it cannot tell.
const TROUBLE: u8 = 2;

/// Reads the generators that are linked in.
///
/// # Errors
/// When two of them serve one type, or one serves another world.
pub fn registry() -> anyhow::Result<Registry<Mesh>> {
    Registry::new(XDS_GENERATORS.iter().copied()).context("register generators")
}

/// Reads the command line and runs: all that `main` of an istiod has to do, also of one that links
/// crates of its own.
pub fn main() -> ExitCode {
    run(<Cli as clap::Parser>::parse())
}

/// Chooses the cryptography of TLS for the whole process.
fn install_crypto() {
    // An earlier choice, of a program that links this one, stands.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
}

/// Runs a command; its outcome is the exit status.
pub fn run(cli: Cli) -> ExitCode {
    install_crypto();
    let file = match cli.settings.as_deref().map(SettingsFile::read).transpose() {
        Ok(file) => file,
        Err(error) => {
            fail(&format_args!("{error:#}"));
            return ExitCode::FAILURE;
        }
    };
    let settings = match file.clone().unwrap_or_default().resolve(&Environment) {
        Ok(settings) => settings,
        Err(errors) => {
            for error in errors {
                fail(&error);
            }
            return ExitCode::FAILURE;
        }
    };
    let result = match cli.command {
        Command::Discovery(args) => discovery::run(args, settings, file).map(|()| true),
        Command::Generate(args) if !args.diff.is_empty() => {
            return match diff(&args, &settings) {
                Ok(false) => ExitCode::SUCCESS,
                Ok(true) => ExitCode::from(DIFFERENT),
                Err(error) => {
                    fail(&format_args!("{error:#}"));
                    ExitCode::from(TROUBLE)
                }
            };
        }
        Command::Generate(args) => generate(&args, &settings),
        Command::Validate(args) => validate(&args, &settings),
        Command::Bootstrap(args) => bootstrap(&args),
        Command::Certificate(args) => certificate::run(args).map(|()| true),
        Command::Status(args) => distribution::client::status(&args).map(|()| true),
        Command::Wait(args) => {
            use distribution::client::{Ended, wait};
            let ended = wait(&args, &settings).unwrap_or_else(|error| {
                fail(&format_args!("{error:#}"));
                Ended::Unanswered
            });
            return ExitCode::from(ended as u8);
        }
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            fail(&format_args!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

#[expect(
    clippy::print_stderr,
    reason = "the last word of a command that failed"
)]
fn fail(error: &dyn std::fmt::Display) {
    eprintln!("error: {error}");
}

fn generate(args: &cli::GenerateArgs, settings: &Settings) -> anyhow::Result<bool> {
    let node = node::read(&args.node)?;
    let proxy = generate::parse(&node)?;
    let mut received = generator(&args.source(&args.config), settings)?.receive(&proxy);
    if !args.private_keys {
        received.hide_keys();
    }
    let output = received.to_json(&args.types());
    print(&output, args.output.unwrap_or(StructuredOutput::Json))?;
    Ok(true)
}

/// Prints what differs between two inputs for a node; returns whether anything does.
fn diff(args: &cli::GenerateArgs, settings: &Settings) -> anyhow::Result<bool> {
    let proxy = generate::parse(&node::read(&args.node)?)?;
    let mut sides = Vec::new();
    for path in &args.diff {
        let source = args.source(std::slice::from_ref(path));
        let mut received = generator(&source, settings)?.receive(&proxy);
        received.hide_keys();
        sides.push(received);
    }
    let [old, new] = &sides[..] else {
        anyhow::bail!("--diff takes two paths");
    };
    let changes = diff::between(old, new, &args.types());
    match args.output {
        Some(output) => print(&diff::to_json(&changes), output)?,
        None => diff::write(&changes, &mut std::io::stdout().lock())?,
    }
    Ok(!changes.is_empty())
}

/// Loads what is to be generated from, and says what cannot be used.
fn generator(source: &ConfigArgs, settings: &Settings) -> anyhow::Result<generate::Generator> {
    let loaded = load::load(source, settings, now())?;
    loaded.require_mesh()?;
    for finding in &loaded.report.findings {
        fail_softly(finding);
    }
    generate::Generator::new(loaded.intake.state())
}

#[expect(clippy::print_stderr, reason = "findings must not mix with the output")]
fn fail_softly(finding: &intake::Finding) {
    eprintln!("{finding}");
}

fn validate(args: &cli::ValidateArgs, settings: &Settings) -> anyhow::Result<bool> {
    let mut loaded = load::load(&args.source, settings, now())?;
    loaded.advise();
    let effects = validate::judge(&mut loaded)?;
    validate::report(
        &loaded,
        &effects,
        args.output,
        &mut std::io::stdout().lock(),
    )
}

fn bootstrap(args: &cli::BootstrapArgs) -> anyhow::Result<bool> {
    let node = node::read(&args.node)?;
    let options = bootstrap::BootstrapOptions {
        xds: args.xds_address.clone(),
        delta: args.delta,
        secure: args
            .certificates
            .as_deref()
            .map(|folder| bootstrap::Secure::new(folder, &args.xds_server_name))
            .transpose()?,
        sds_socket: args.sds_socket.clone(),
        admin: args.admin_address.clone(),
    };
    print(
        &bootstrap::bootstrap(&node, &options),
        StructuredOutput::Json,
    )?;
    Ok(true)
}

fn print(value: &Value, output: StructuredOutput) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    match output {
        StructuredOutput::Json => writeln!(out, "{}", serde_json::to_string_pretty(value)?)?,
        StructuredOutput::Yaml => write!(out, "{}", yaml::to_string(value)?)?,
    }
    Ok(())
}

#[expect(
    clippy::disallowed_methods,
    reason = "commands start here, and pass the time on"
)]
fn now() -> std::time::Instant {
    std::time::Instant::now()
}

//! `cargo xtask kube`: a Kubernetes API server on this machine, to try things with.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool"
)]

use std::{path::PathBuf, process::ExitCode};

use anyhow::{Context as _, ensure};
use clap::{Parser, Subcommand};
use tests::{
    corpus::workspace,
    kubernetes::{self, Cluster, Running},
};

/// Runs a real Kubernetes API server and its database on loopback.
#[derive(Debug, Parser)]
#[command(name = "cargo xtask kube")]
struct Cli {
    #[command(subcommand)]
    action: Action,
    /// Which cluster: there may be several at once.
    #[arg(long, global = true, default_value = "default", value_parser = name)]
    name: String,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Starts it, with the kinds of Istio and of the Gateway API, and leaves it running.
    Up {
        /// Defines no kinds.
        #[arg(long)]
        bare: bool,
    },
    /// Ends it and removes its data.
    Down,
    /// Says what runs.
    Status,
    /// Prints where a kubeconfig of a service account is; makes the account if it is not there.
    Account {
        /// Its namespace and name, with a slash between.
        account: String,
    },
    /// Builds the programs, and starts nothing.
    Build,
    /// Prints the chart of the control plane as Helm renders it.
    Render {
        /// Values as `helm --set` takes them.
        values: Vec<String>,
    },
}

fn name(text: &str) -> Result<String, String> {
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '-';
    if !text.is_empty() && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("a name of letters, digits and hyphens".to_owned())
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    match run(Cli::parse()).await {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn run(cli: Cli) -> anyhow::Result<()> {
    let clusters = workspace().join(".cache/clusters");
    let folder = clusters.join(&cli.name);
    match cli.action {
        Action::Build => {
            for program in [kubernetes::binary().await?, kubernetes::helm().await?] {
                println!("{}", program.display());
            }
        }
        Action::Render { values } => {
            let values: Vec<&str> = values.iter().map(String::as_str).collect();
            print!("{}", kubernetes::render(&values).await?);
        }
        Action::Up { bare } => up(folder, bare).await?,
        Action::Down => {
            if kubernetes::down(&folder).await? {
                println!("{}: it is down", cli.name);
            } else {
                println!("{}: nothing runs", cli.name);
            }
        }
        Action::Status => {
            let running = Running::find(&folder)?.context("nothing runs")?;
            running.check().await?;
            tell(&running);
        }
        Action::Account { account } => {
            let (namespace, name) = account.split_once('/').context("not NAMESPACE/NAME")?;
            let running = Running::find(&folder)?.context("nothing runs")?;
            println!(
                "{}",
                running.kubeconfig_of(namespace, name).await?.display()
            );
        }
    }
    Ok(())
}

async fn up(folder: PathBuf, bare: bool) -> anyhow::Result<()> {
    if let Some(running) = Running::find(&folder)? {
        if running.check().await.is_ok() {
            tell(&running);
            return Ok(());
        }
        kubernetes::down(&folder).await?;
    }
    // What a start left that was broken off.
    if folder.exists() {
        std::fs::remove_dir_all(&folder).context("remove what is left of a cluster")?;
    }
    std::fs::create_dir_all(&folder).context("make a folder")?;
    ensure!(folder.is_absolute(), "a workspace with a relative path");
    let cluster = Cluster::start_in(&folder).await?;
    if !bare {
        cluster.define_kinds().await?;
    }
    tell(&cluster.leave_running()?);
    Ok(())
}

fn tell(running: &Running) {
    let (address, kubeconfig) = (running.address, running.kubeconfig.display());
    println!("ready at https://{address}\nexport KUBECONFIG={kubeconfig}");
}

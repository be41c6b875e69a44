//! `cargo xtask conformance` and `cargo xtask corpus`.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a command line tool"
)]

use std::{fs, path::PathBuf, process::ExitCode};

use anyhow::{Context, Result};
use clap::{Args, Parser, Subcommand};
use tests::{
    conformance::{self, CaseResult, case, lists, report},
    corpus,
};

#[derive(Debug, Parser)]
#[command(
    name = "conformance",
    about = "Compares what we send with what the Go istiod sends"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the corpus, or a part of it.
    Run(Run),
    /// Packs ../shared/conformance into the repository.
    Pack,
    /// Checks that the packed corpus is that of ../shared/conformance.
    Check,
}

#[derive(Debug, Args)]
struct Run {
    /// Only the cases of this area.
    #[arg(long)]
    area: Option<String>,
    /// Only the cases whose `area/name` contains this.
    #[arg(long)]
    case: Option<String>,
    /// Shows the differences of each case that does not pass.
    #[arg(long)]
    diff: bool,
    /// How many differences to show for a case.
    #[arg(long, default_value_t = 20)]
    most: usize,
    /// Shows which kinds of differences keep most cases from passing; how many kinds.
    #[arg(long, num_args = 0..=1, default_missing_value = "40")]
    causes: Option<usize>,
    /// Writes what we send for each case and proxy below this folder.
    #[arg(long)]
    write: Option<PathBuf>,
    /// Gives the objects of each case another order and another history.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Writes tests/conformance/passing.txt.
    #[arg(long)]
    update: bool,
}

fn main() -> ExitCode {
    let result = match Cli::parse().command {
        Command::Run(run) => run.run(),
        Command::Pack => corpus::pack().map(|()| true),
        Command::Check => corpus::pack_is_current().inspect(|current| {
            if !current {
                eprintln!("the packed corpus is stale: run `cargo xtask corpus pack`");
            }
        }),
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

impl Run {
    /// Runs the cases; true when what is listed as passing passes.
    fn run(&self) -> Result<bool> {
        let root = corpus::root()?;
        let cases = case::load(&root, self.area.as_deref(), self.case.as_deref())?;
        let accepted = lists::accepted()?;
        let results = conformance::run(&root, cases, &accepted, &|input| {
            tests::generate_seeded(input, self.seed)
        });
        if let Some(folder) = &self.write {
            results
                .iter()
                .try_for_each(|result| write(folder, result))?;
        }
        if self.diff {
            for result in results.iter().filter(|result| !result.passes()) {
                println!("{}", report::differences(result, self.most));
            }
        }
        if let Some(most) = self.causes {
            println!("{}", report::causes(&results, most));
        }
        print!("{}", report::table(&results));

        let change = if self.update {
            lists::update(&results)?
        } else {
            lists::Change::between(&lists::passing()?, &results)
        };
        for id in &change.broken {
            println!("no longer passes: {id}");
        }
        for id in &change.new {
            println!("passes now: {id}");
        }
        if !change.new.is_empty() && !self.update {
            println!("{} new: list them with --update", change.new.len());
        }
        Ok(change.broken.is_empty() || self.update)
    }
}

/// Writes the resources of one case, one file per proxy.
fn write(folder: &std::path::Path, result: &CaseResult) -> Result<()> {
    let folder = folder.join(&result.case.id);
    fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
    for (proxy, lists) in &result.outcome.proxies {
        let text = serde_json::to_string_pretty(lists)?;
        fs::write(folder.join(format!("{proxy}.json")), text).context("write resources")?;
    }
    Ok(())
}

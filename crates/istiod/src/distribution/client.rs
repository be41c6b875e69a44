//! `istiod status` and `istiod wait`: asking a running control plane.

mod progress;
mod text;

use std::{fmt::Write as _, path::PathBuf, time::Duration};

use anyhow::Context as _;
use clap::{Args, ValueEnum};
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use self::progress::{Goal, Progress};
use super::{
    Key,
    answer::{ConfigAnswer, MeshAnswer, ProxiesAnswer},
    api,
};
use crate::{
    cli::{ConfigArgs, MeshArgs, ReportOutput, parse_duration},
    load,
    settings::Settings,
};

/// Time between two questions of `wait`.
const PAUSE: Duration = Duration::from_millis(200);

/// Longest time that one answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// Where a control plane is asked.
#[derive(Clone, Debug, Args)]
pub struct AddressArgs {
    /// The monitoring port of a control plane; it answers for all its replicas.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:15014")]
    pub address: String,
    /// File with the token of a service account, which says what may be seen from elsewhere than the
    /// host of the control plane: identities of its own namespace see everything, others what is in
    /// theirs.
    #[arg(long, value_name = "FILE")]
    pub token: Option<PathBuf>,
}

/// Arguments of `status`.
#[derive(Clone, Debug, Args)]
pub struct StatusArgs {
    /// The configuration to ask about; the whole mesh without it.
    #[arg(value_name = "KIND/NAME.NAMESPACE")]
    pub config: Option<Key>,
    /// Ask about the proxies whose ids contain this instead.
    #[arg(long, value_name = "ID", conflicts_with = "config")]
    pub proxy: Option<String>,
    /// This generation, or a newer one.
    #[arg(long, value_name = "N", requires = "config")]
    pub generation: Option<i64>,
    /// This content, as an earlier answer named it.
    #[arg(long, value_name = "HASH", requires = "config")]
    pub hash: Option<String>,
    /// Which proxies to list.
    #[arg(long, value_enum, default_value_t = ListArg::Behind)]
    pub proxies: ListArg,
    /// Where to ask.
    #[command(flatten)]
    pub at: AddressArgs,
    /// Form of the output.
    #[arg(long, value_enum, default_value_t = ReportOutput::Text)]
    pub output: ReportOutput,
}

/// Which proxies are listed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum ListArg {
    /// All.
    All,
    /// Those that do not have it.
    Behind,
    /// None.
    None,
}

impl ListArg {
    fn as_str(self) -> &'static str {
        match self {
            Self::All => "all",
            Self::Behind => "behind",
            Self::None => "none",
        }
    }
}

/// Arguments of `wait`.
#[derive(Clone, Debug, Args)]
pub struct WaitArgs {
    /// The configuration to wait for.
    #[arg(value_name = "KIND/NAME.NAMESPACE")]
    pub config: Key,
    /// What to wait for.
    #[arg(long = "for", value_enum, value_name = "WHAT", default_value_t = For::Distribution)]
    pub what: For,
    /// Wait for this generation, or a newer one.
    #[arg(long, value_name = "N")]
    pub generation: Option<i64>,
    /// Wait for this content, as an earlier answer named it.
    #[arg(long, value_name = "HASH", conflicts_with = "generation")]
    pub hash: Option<String>,
    /// Wait for the content that the object has in this file or folder.
    #[arg(long, value_name = "PATH", conflicts_with_all = ["generation", "hash"])]
    pub file: Option<PathBuf>,
    /// The share of the proxies that must have it.
    #[arg(long, value_name = "SHARE", default_value_t = 0.99, value_parser = parse_share)]
    pub threshold: f64,
    /// How long to wait.
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = parse_duration)]
    pub timeout: Duration,
    /// Where to ask.
    #[command(flatten)]
    pub at: AddressArgs,
}

/// What can be waited for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub enum For {
    /// That the proxies have the configuration.
    Distribution,
}

/// How waiting ended; the exit status tells.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Ended {
    /// Enough proxies have it.
    Distributed = 0,
    /// Not in time.
    TimedOut = 1,
    /// Nobody could be asked.
    Unanswered = 2,
    /// Never: too many proxies have refused it, or it was replaced.
    Refused = 3,
}

fn parse_share(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share from 0 to 1, such as 0.99".to_owned()),
    }
}

/// Prints what a control plane knows.
///
/// # Errors
/// When it cannot be asked, or does not know what is asked about.
pub fn status(args: &StatusArgs) -> anyhow::Result<()> {
    let asker = Asker::new(&args.at)?;
    let runtime = runtime()?;
    let out = &mut std::io::stdout().lock();
    if let Some(key) = &args.config {
        let path = path(key, args.generation, args.hash.as_deref(), args.proxies);
        let answer: ConfigAnswer = runtime.block_on(asker.ask(&path))?;
        return match args.output {
            ReportOutput::Json => text::json(out, &answer),
            ReportOutput::Text => text::config(out, &answer),
        };
    }
    if let Some(part) = &args.proxy {
        let path = format!("{}/proxies?proxy={}", api::BASE, api::escape(part));
        let answer: ProxiesAnswer = runtime.block_on(asker.ask(&path))?;
        anyhow::ensure!(
            !answer.proxies.is_empty() || args.output == ReportOutput::Json,
            "no connected proxy has {part:?} in its id"
        );
        return match args.output {
            ReportOutput::Json => text::json(out, &answer),
            ReportOutput::Text => text::proxies(out, &answer),
        };
    }
    let answer: MeshAnswer = runtime.block_on(asker.ask(api::BASE))?;
    match args.output {
        ReportOutput::Json => text::json(out, &answer),
        ReportOutput::Text => text::mesh(out, &answer),
    }
}

/// Waits until a configuration is distributed, and says how that went.
///
/// # Errors
/// When the file that has it cannot be read, or does not have it.
pub fn wait(args: &WaitArgs, settings: &Settings) -> anyhow::Result<Ended> {
    let hash = match &args.file {
        None => args.hash.clone(),
        Some(file) => Some(hash_in(file, &args.config, settings)?),
    };
    let asker = Asker::new(&args.at)?;
    runtime()?.block_on(wait_for(args, hash.as_deref(), &asker))
}

async fn wait_for(args: &WaitArgs, hash: Option<&str>, asker: &Asker) -> anyhow::Result<Ended> {
    let path = path(&args.config, args.generation, hash, ListArg::Behind);
    let goal = Goal {
        threshold: args.threshold,
    };
    let deadline = Instant::now() + args.timeout;
    let mut shown = String::new();
    let mut last: Option<Result<ConfigAnswer, String>> = None;
    loop {
        let asked = tokio::time::timeout_at(deadline, asker.ask::<ConfigAnswer>(&path)).await;
        if let Ok(asked) = asked {
            last = Some(asked.map_err(|error| format!("{error:#}")));
        }
        let (line, progress) = match &last {
            None => ("no answer yet".to_owned(), Progress::Waiting),
            Some(Err(error)) => (error.clone(), Progress::Waiting),
            Some(Ok(answer)) => (text::progress(answer), goal.judge(answer)),
        };
        match progress {
            Progress::Done => {
                text::say(&format_args!("{} is distributed: {line}", args.config))?;
                return Ok(Ended::Distributed);
            }
            Progress::Never => {
                text::say(&format_args!(
                    "{} will not be distributed: {line}",
                    args.config
                ))?;
                if let Some(Ok(answer)) = &last {
                    text::reasons(answer)?;
                }
                return Ok(Ended::Refused);
            }
            Progress::Waiting if Instant::now() >= deadline => {
                text::say(&format_args!(
                    "{} is not distributed after {:?}: {line}",
                    args.config, args.timeout
                ))?;
                return Ok(match last {
                    Some(Ok(answer)) => {
                        text::reasons(&answer)?;
                        Ended::TimedOut
                    }
                    Some(Err(_)) | None => Ended::Unanswered,
                });
            }
            Progress::Waiting => {}
        }
        if line != shown {
            text::tell(&line);
            shown = line;
        }
        tokio::time::sleep_until((Instant::now() + PAUSE).min(deadline)).await;
    }
}

/// The path of a question about a configuration.
fn path(key: &Key, generation: Option<i64>, hash: Option<&str>, listed: ListArg) -> String {
    let mut path = format!("{}?proxies={}", api::path_of(key), listed.as_str());
    if let Some(generation) = generation {
        write!(path, "&generation={generation}").ok();
    }
    if let Some(hash) = hash {
        write!(path, "&hash={}", api::escape(hash)).ok();
    }
    path
}

/// The content that an object has in a file or folder.
#[expect(clippy::disallowed_methods, reason = "a command starts here")]
fn hash_in(file: &std::path::Path, key: &Key, settings: &Settings) -> anyhow::Result<String> {
    let Key::Config(config) = key else {
        anyhow::bail!("{key} is in no file");
    };
    let source = ConfigArgs {
        config: vec![file.to_owned()],
        mesh: MeshArgs {
            mesh_config: None,
            mesh_networks: None,
            domain: "cluster.local".to_owned(),
        },
    };
    let loaded = load::load(&source, settings, std::time::Instant::now())?;
    let object = loaded.intake.state().objects.get(config);
    let object = object.with_context(|| format!("{} has no {key}", file.display()))?;
    Ok(super::hash_of(&object))
}

fn runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the runtime")
}

/// Asks one control plane.
struct Asker {
    address: String,
    token: Option<PathBuf>,
    client: reqwest::Client,
}

impl Asker {
    fn new(args: &AddressArgs) -> anyhow::Result<Self> {
        let client = reqwest::Client::builder().timeout(PATIENCE).no_proxy();
        Ok(Self {
            address: args.address.clone(),
            token: args.token.clone(),
            client: client.build().context("make an HTTP client")?,
        })
    }

    async fn ask<A: DeserializeOwned>(&self, path: &str) -> anyhow::Result<A> {
        let url = format!("http://{}{path}", self.address);
        let asked = || format!("ask {}", self.address);
        let mut request = self.client.get(url);
        if let Some(path) = &self.token {
            // Read each time: whoever made it replaces it before it expires.
            let token = std::fs::read_to_string(path);
            let token = token.with_context(|| format!("read {}", path.display()))?;
            request = request.bearer_auth(token.trim());
        }
        let response = request.send().await.with_context(asked)?;
        let status = response.status();
        let body = response.bytes().await.with_context(asked)?;
        if !status.is_success() {
            let text = String::from_utf8_lossy(&body);
            anyhow::bail!("{}: {} ({status})", self.address, text.trim());
        }
        serde_json::from_slice(&body)
            .with_context(|| format!("read the answer of {}", self.address))
    }
}

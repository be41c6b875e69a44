//! A service of six ports is scaled from 10 to 500 pods and back to 20 while 200 other services change:
//! how long changes of the others wait until proxies have them, with the storm and without, in one run.
//!
//! An API server that has nothing else to do tells the `istiod` binary of it, event by event at a fixed
//! pace, and proxies of several namespaces follow over delta streams. All times are from the moment an
//! event is sent to the moment that a proxy has what it means.
//!
//! Run with `cargo bench --workspace --bench storm`. It fails when the P99 of the others is more than 1.5
//! times that without the storm.

#![expect(clippy::print_stdout, reason = "a report for people")]

mod api;
mod proxy;
mod script;

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context as _, Result, ensure};
use tests::{
    control_plane::{ControlPlane, Setup, use_binary},
    process::until,
};
use tokio::{task::JoinSet, time::Instant};

use self::{api::Api, proxy::Seen, script::Of};

/// Proxies, over as many namespaces.
const PROXIES: usize = 8;
/// Runs without and with the storm, in turn; the first of each warms up.
const ROUNDS: usize = 4;
/// The others may wait so much longer beside a storm.
const BOUND: f64 = 1.5;
/// Longest time until all proxies have what the last event means.
const END: Duration = Duration::from_mins(1);

fn main() -> Result<()> {
    // `cargo test --all-targets` also starts this, without optimisation.
    if !std::env::args().any(|argument| argument == "--bench") {
        return Ok(());
    }
    let runtime = tokio::runtime::Runtime::new().context("start a runtime")?;
    runtime.block_on(compare())
}

async fn compare() -> Result<()> {
    let (mut quiet, mut storm) = (Vec::new(), Vec::new());
    for round in 0..ROUNDS {
        for with_storm in [false, true] {
            let figures = run(with_storm).await?;
            println!("{figures}");
            if round > 0 {
                let waits = if with_storm { &mut storm } else { &mut quiet };
                waits.extend(figures.waits);
            }
        }
    }
    let (quiet, storm) = (p99(&mut quiet), p99(&mut storm));
    let ratio = storm.as_secs_f64() / quiet.as_secs_f64();
    println!("P99 of the others: {quiet:?} without the storm, {storm:?} with it: {ratio:.2} times");
    ensure!(ratio <= BOUND, "that is more than {BOUND} times");
    Ok(())
}

fn p99(waits: &mut [Duration]) -> Duration {
    quantile(waits, 99)
}

fn quantile(waits: &mut [Duration], percent: usize) -> Duration {
    waits.sort();
    let at = (waits.len() * percent / 100).min(waits.len().saturating_sub(1));
    waits.get(at).copied().unwrap_or_default()
}

/// What one run shows.
struct Figures {
    with_storm: bool,
    /// From each change of the others to each proxy that has it.
    waits: Vec<Duration>,
    /// From the last event of the others, and of the storm, to the last push for it.
    last: [Option<Duration>; 2],
    events: [usize; 2],
    /// Load assignments and their bytes that all proxies received, of the others and of the storm.
    received: [(u64, u64); 2],
    /// Services whose endpoints were derived anew and differed, counted for each batch of events.
    derived: u64,
    snapshots: u64,
}

impl std::fmt::Display for Figures {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mut waits = self.waits.clone();
        let name = if self.with_storm { "storm" } else { "quiet" };
        write!(
            f,
            "{name}: others P50 {:?} P99 {:?}; endpoints derived {} times, {} snapshots",
            quantile(&mut waits, 50),
            p99(&mut waits),
            self.derived,
            self.snapshots
        )?;
        for (of, name) in [(Of::Others, "others"), (Of::Storm, "storm")] {
            let at = of as usize;
            let ((resources, bytes), Some(last)) = (self.received[at], self.last[at]) else {
                continue;
            };
            write!(
                f,
                "\n  {name}: {} events, last push {last:?} after the last of them, {resources} assignments of {} KiB to {PROXIES} proxies",
                self.events[at],
                bytes / 1024,
            )?;
        }
        Ok(())
    }
}

async fn run(with_storm: bool) -> Result<Figures> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let api = Arc::new(Api::start(folder.path()).await?);
    for event in script::first() {
        api.put(event.plural, event.line);
    }
    api.open();
    use_binary(env!("CARGO_BIN_EXE_istiod-under-test"));
    let mut setup = Setup::new(PathBuf::new(), folder.path())?;
    setup.config.clear();
    setup.arguments = vec![
        "--kubeconfig".to_owned(),
        api.kubeconfig().display().to_string(),
    ];
    let istiod = ControlPlane::start(setup).await?;
    let seen = Arc::new(Seen::default());
    let mut proxies = JoinSet::new();
    for number in 0..PROXIES {
        proxies.spawn(proxy::follow(istiod.setup().xds, number, seen.clone()));
    }
    until("every proxy has its first endpoints", END, async || {
        ensure!(seen.first() == PROXIES, "{} have", seen.first());
        Ok(())
    })
    .await?;
    let counted = async || {
        let derived = istiod
            .counter("pilot_inbound_updates{type=\"eds\"}")
            .await?;
        let snapshots = istiod
            .counter("pilot_pushcontext_init_seconds_count")
            .await?;
        Ok::<_, anyhow::Error>((derived, snapshots))
    };
    let before = counted().await?;
    seen.forget();

    let events = script::events(with_storm);
    let mut counts = [0; 2];
    let mut due_last: [Option<Instant>; 2] = [None; 2];
    let start = Instant::now();
    for event in events {
        let due = start + event.at;
        tokio::time::sleep_until(due).await;
        if let Some((service, version)) = event.announces {
            seen.expect(service, version, due);
        }
        api.put(event.plural, event.line);
        counts[event.of as usize] += 1;
        due_last[event.of as usize] = Some(due);
    }
    until("every proxy has the end", END, async || {
        seen.is_done(with_storm)
            .map_err(|missing| anyhow::anyhow!("{missing}"))
    })
    .await?;
    let after = counted().await?;
    ensure!(proxies.try_join_next().is_none(), "a proxy lost its stream");
    let mut last = [None; 2];
    for (at, due) in due_last.into_iter().enumerate() {
        last[at] = due.and_then(|due| Some(seen.last(at)?.saturating_duration_since(due)));
    }
    Ok(Figures {
        with_storm,
        waits: seen.waits(),
        last,
        events: counts,
        received: seen.received(),
        derived: after.0 - before.0,
        snapshots: after.1 - before.1,
    })
}

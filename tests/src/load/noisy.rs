//! One namespace changes without end; how long do the others wait?
//!
//! Three servers after one another, on one machine in one run: nobody is noisy; one namespace is
//! noisy and throttled; it is noisy and not throttled.

use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use serde::Serialize;
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep};

use super::fleet::Fleet;
use super::mesh::Mesh;
use super::names::{ENDPOINT, ROUTE};
use super::report::Times;
use super::usage::Usage;
use super::{FIRST_CONFIG, Options, STREAMS};
use crate::control_plane::{ControlPlane, Setup};

/// Namespaces of the mesh, the noisy one among them.
const NAMESPACES: usize = 1000;
/// The service whose rule is rewritten; it lives in a namespace without proxies.
const NOISY: usize = NAMESPACES - 1;
/// Settings of the throttle. The file source takes many writes for one change, a few times a second;
/// with Istio's defaults that would hardly be noise. Variables given in [`Options::environment`] go
/// before.
const THROTTLE: [(&str, &str); 2] = [
    ("PILOT_NAMESPACE_THROTTLE_THRESHOLD", "5"),
    ("PILOT_NAMESPACE_THROTTLE_WINDOW", "10s"),
];
/// From the start of the noise to the first measurement: the throttle has seen what it needs.
const WARM_UP: Duration = Duration::from_secs(10);
/// Between two changes of the quiet namespaces.
const NOW_AND_THEN: Duration = Duration::from_millis(300);

/// Writes a change.
type Write<'a> = &'a dyn Fn() -> Result<()>;

/// The results of the three runs.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Changes of the noisy namespace in a second.
    pub changes_per_second: u32,
    /// One row for each run: idle, throttled, not throttled.
    pub runs: Vec<Run>,
}

/// What one run showed.
#[derive(Clone, Debug, Serialize)]
pub struct Run {
    /// Which.
    pub name: String,
    /// From a change in a quiet namespace to the acknowledgement by each proxy, in milliseconds.
    pub quiet: Times,
    /// How often a change of a quiet namespace did not reach a proxy in time.
    pub missed: usize,
    /// CPU time of the server, for each second.
    pub cpu_ms_per_second: u64,
    /// Snapshots that the server published, for each second.
    pub snapshots_per_second: f64,
}

impl Comparison {
    /// P99 of the quiet namespaces beside a throttled noisy one, over P99 without any noise.
    pub fn ratio(&self) -> Option<f64> {
        match &self.runs[..] {
            [idle, throttled, ..] if idle.quiet.p99 > 0.0 => {
                Some(throttled.quiet.p99 / idle.quiet.p99)
            }
            _ => None,
        }
    }
}

/// Runs the three servers.
///
/// # Errors
/// When a server cannot be started, or a client never gets its configuration.
pub async fn noisy(options: &Options, changes_per_second: u32) -> Result<Comparison> {
    let mut runs = Vec::new();
    for (name, noise, throttled) in [
        ("idle", 0, true),
        ("noisy, throttled", changes_per_second, true),
        ("noisy, not throttled", changes_per_second, false),
    ] {
        runs.push(one(options, name, noise, throttled).await?);
    }
    Ok(Comparison {
        changes_per_second,
        runs,
    })
}

async fn one(options: &Options, name: &str, noise: u32, throttled: bool) -> Result<Run> {
    let folder = tempfile::tempdir().context("make a folder")?;
    let config = folder.path().join("config");
    let options = &Options {
        services: options.services.max(NAMESPACES),
        endpoints: options.endpoints.max(2),
        ..options.clone()
    };
    let mesh = Mesh::new(&config, options).over_namespaces(NAMESPACES);
    mesh.write().context("write the mesh")?;
    mesh.write_destination_rule(NOISY, 1)?;
    let mesh = Arc::new(mesh);
    let server = start(&config, folder.path(), throttled, options).await?;
    let mut fleet = Fleet::new(server.setup().xds, options, mesh.nodes(&[])?)?;
    fleet.connect(options.connections).await;
    fleet.first_configs(FIRST_CONFIG).await?;
    let noise = make_noise(Arc::clone(&mesh), noise);
    sleep(WARM_UP).await;

    let (pid, begun) = (server.pid()?, Instant::now());
    let snapshots = server
        .counter("pilot_pushcontext_init_seconds_count")
        .await?;
    let before = Usage::of(Some(pid))?.context("the server runs")?;
    let (mut times, mut missed) = (Vec::new(), 0);
    for change in 0..options.changes {
        let service = change * 7 % NOISY;
        let flap = mesh.cluster(service);
        let pods = mesh.pods();
        let fewer = &pods[..pods.len() - 1];
        let steps: [(&str, &str, Write<'_>); 3] = [
            (ENDPOINT, &flap, &|| mesh.write_service(service, fewer)),
            (ROUTE, "80", &|| {
                mesh.write_virtual_service(service, 1 + change)
            }),
            (ENDPOINT, &flap, &|| mesh.write_service(service, &pods)),
        ];
        for (type_url, resource, write) in steps {
            for (_, reached, lost) in fleet.measure(&[(type_url, resource)], write).await? {
                times.extend(reached);
                missed += lost;
            }
            sleep(NOW_AND_THEN).await;
        }
    }
    let after = Usage::of(Some(pid))?.context("the server runs")?;
    let published = server
        .counter("pilot_pushcontext_init_seconds_count")
        .await?
        - snapshots;
    let seconds = begun.elapsed().as_secs_f64();
    drop(noise);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        clippy::cast_sign_loss,
        reason = "numbers for people"
    )]
    Ok(Run {
        name: name.to_owned(),
        quiet: Times::of(times),
        missed,
        cpu_ms_per_second: (after.cpu.saturating_sub(before.cpu).as_secs_f64() * 1000.0 / seconds)
            as u64,
        snapshots_per_second: published as f64 / seconds,
    })
}

async fn start(
    config: &Path,
    folder: &Path,
    throttled: bool,
    options: &Options,
) -> Result<ControlPlane> {
    let mut setup = Setup::new(config, folder)?;
    let text = |(variable, value): (&str, &str)| (variable.to_owned(), value.to_owned());
    let enabled = throttled.to_string();
    setup.environment = [STREAMS, ("PILOT_ENABLE_NAMESPACE_THROTTLE", &enabled)]
        .into_iter()
        .chain(THROTTLE)
        .map(text)
        .chain(options.environment.iter().cloned())
        .collect();
    ControlPlane::start(setup).await
}

/// Rewrites one rule so many times a second, until it is dropped; nothing for zero.
fn make_noise(mesh: Arc<Mesh>, changes_per_second: u32) -> JoinSet<()> {
    let mut tasks = JoinSet::new();
    let Some(period) = Duration::from_secs(1).checked_div(changes_per_second) else {
        return tasks;
    };
    tasks.spawn(async move {
        let mut ticks = interval(period);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Skip);
        for connections in 1.. {
            ticks.tick().await;
            // A write that fails is one change less.
            mesh.write_destination_rule(NOISY, connections).ok();
        }
    });
    tasks
}

impl fmt::Display for Comparison {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            f,
            "one namespace with {} changes a second, {} quiet ones with a change now and then",
            self.changes_per_second,
            NAMESPACES - 1
        )?;
        writeln!(
            f,
            "{:<22} {:>9} {:>9} {:>9} {:>9} {:>8} {:>10} {:>12}",
            "ms until ACK (quiet)", "P50", "P95", "P99", "max", "missed", "CPU ms/s", "snapshots/s"
        )?;
        for run in &self.runs {
            let Times {
                p50, p95, p99, max, ..
            } = run.quiet;
            writeln!(
                f,
                "{:<22} {p50:>9.1} {p95:>9.1} {p99:>9.1} {max:>9.1} {:>8} {:>10} {:>12.2}",
                run.name, run.missed, run.cpu_ms_per_second, run.snapshots_per_second
            )?;
        }
        if let Some(ratio) = self.ratio() {
            writeln!(f, "P99 with the throttle / idle: {ratio:.2}")?;
        }
        Ok(())
    }
}

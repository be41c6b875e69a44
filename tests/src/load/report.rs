//! What was measured, for people and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::Options;
use super::usage::Usage;

/// The results of one run. Times are milliseconds, sizes bytes.
#[derive(Clone, Debug, Serialize)]
pub struct Report {
    /// Services of the mesh.
    pub services: usize,
    /// Connected proxies.
    pub connections: usize,
    /// Kinds of proxies.
    pub classes: usize,
    /// From connecting to having everything that was asked for.
    pub first_config: Times,
    /// What that took, by type.
    pub first_sent: Vec<Sent>,
    /// Memory of the server before anybody connected.
    pub idle_rss: Option<u64>,
    /// Memory of the server with everybody connected.
    pub connected_rss: Option<u64>,
    /// Memory for each thousand connections.
    pub rss_per_thousand: Option<u64>,
    /// CPU time for each thousand connections, until all were connected.
    pub cpu_ms_per_thousand: Option<u64>,
    /// Memory of the server at the end.
    pub final_rss: Option<u64>,
    /// Responses that clients rejected.
    pub rejected: u64,
    /// One row for each kind of change.
    pub churns: Vec<Row>,
}

/// One kind of change.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Which.
    pub churn: String,
    /// How many changes were made.
    pub changes: usize,
    /// How often a change did not reach a proxy in time.
    pub missed: usize,
    /// From the change to the acknowledgement.
    pub times: Times,
    /// What was sent, by type.
    pub sent: Vec<Sent>,
    /// Resources sent for each change and proxy.
    pub amplification: Option<f64>,
}

/// What was sent of one type.
#[derive(Clone, Debug, Serialize)]
pub struct Sent {
    /// The type.
    pub type_url: String,
    /// Responses.
    pub responses: u64,
    /// Resources in them.
    pub resources: u64,
    /// The size of these.
    pub bytes: u64,
}

/// A distribution of times, in milliseconds.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Times {
    /// How many there are.
    pub count: usize,
    /// Half are shorter.
    pub p50: f64,
    /// 95 of 100 are shorter.
    pub p95: f64,
    /// 99 of 100 are shorter.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

impl Times {
    /// Sorts times and takes what matters.
    pub(super) fn of(mut times: Vec<Duration>) -> Self {
        times.sort_unstable();
        let at = |percent: usize| {
            let index = (times.len() * percent / 100).min(times.len().saturating_sub(1));
            times
                .get(index)
                .map_or(0.0, |time| time.as_secs_f64() * 1000.0)
        };
        Self {
            count: times.len(),
            p50: at(50),
            p95: at(95),
            p99: at(99),
            max: at(100),
        }
    }
}

impl Report {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            services: options.services,
            connections: options.connections,
            classes: options.classes,
            first_config: Times::default(),
            first_sent: Vec::new(),
            idle_rss: None,
            connected_rss: None,
            rss_per_thousand: None,
            cpu_ms_per_thousand: None,
            final_rss: None,
            rejected: 0,
            churns: Vec::new(),
        }
    }

    /// Takes in what the server cost before and after the fleet connected.
    pub(super) fn connected(&mut self, before: Option<Usage>, after: Option<Usage>) {
        let (Some(before), Some(after)) = (before, after) else {
            return;
        };
        let thousands = |total: u64| total * 1000 / (self.connections.max(1) as u64);
        self.rss_per_thousand = Some(thousands(after.rss.saturating_sub(before.rss)));
        let cpu = after.cpu.saturating_sub(before.cpu).as_millis();
        self.cpu_ms_per_thousand = Some(thousands(u64::try_from(cpu).unwrap_or(u64::MAX)));
        self.connected_rss = Some(after.rss);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: Option<u64>| bytes.map_or("?".to_owned(), |b| format!("{} MiB", b >> 20));
        writeln!(
            f,
            "{} proxies of {} kinds, {} services",
            self.connections, self.classes, self.services
        )?;
        writeln!(
            f,
            "memory of the server: {} idle, {} connected ({} per 1000), {} at the end",
            mib(self.idle_rss),
            mib(self.connected_rss),
            mib(self.rss_per_thousand),
            mib(self.final_rss)
        )?;
        let cpu = self.cpu_ms_per_thousand.unwrap_or(0);
        writeln!(
            f,
            "CPU time to connect 1000: {cpu} ms; rejected responses: {}",
            self.rejected
        )?;
        writeln!(
            f,
            "{:<16} {:>8} {:>8} {:>9} {:>9} {:>9} {:>9} {:>10} {:>8}",
            "ms until ACK", "changes", "missed", "P50", "P95", "P99", "max", "resources", "ratio"
        )?;
        let mut line = |name: &str,
                        changes,
                        missed,
                        times: &Times,
                        sent: &[Sent],
                        ratio: Option<f64>| {
            let resources: u64 = sent.iter().map(|sent| sent.resources).sum();
            let ratio = ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
            let Times {
                p50, p95, p99, max, ..
            } = times;
            writeln!(
                f,
                "{name:<16} {changes:>8} {missed:>8} {p50:>9.1} {p95:>9.1} {p99:>9.1} {max:>9.1} {resources:>10} {ratio:>8}"
            )
        };
        line(
            "first config",
            1,
            0,
            &self.first_config,
            &self.first_sent,
            None,
        )?;
        for row in &self.churns {
            line(
                &row.churn,
                row.changes,
                row.missed,
                &row.times,
                &row.sent,
                row.amplification,
            )?;
        }
        Ok(())
    }
}

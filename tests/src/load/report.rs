//! What was measured, for people and as JSON.

use std::fmt;
use std::time::Duration;

use serde::Serialize;

use super::Options;
use super::usage::Usage;

/// The results of one run. Times are milliseconds, sizes bytes; what is `null` could not be seen.
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
    /// Memory of the server with one proxy of each kind connected.
    pub shared_rss: Option<u64>,
    /// Memory of the server with everybody connected, at rest.
    pub connected_rss: Option<u64>,
    /// Memory for each thousand connections, beyond what the first of each kind needed.
    pub rss_per_thousand: Option<u64>,
    /// CPU time for each thousand connections, until all were connected.
    pub cpu_ms_per_thousand: Option<u64>,
    /// Memory of the server at the end.
    pub final_rss: Option<u64>,
    /// The most memory that the server of the end ever had.
    pub peak_rss: Option<u64>,
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
    /// From the change to the acknowledgement, for each type that it concerns.
    pub times: Vec<TypeTimes>,
    /// From losing the connection to having everything again, where connections were lost.
    pub reconnected: Option<Times>,
    /// What was sent, by type.
    pub sent: Vec<Sent>,
    /// Resources sent for each that the receiver did not have; 1 when nothing is sent twice.
    pub amplification: Option<f64>,
    /// CPU time of the server.
    pub cpu_ms: Option<u64>,
    /// CPU time of the server for each change.
    pub cpu_ms_per_change: Option<f64>,
}

/// Times of one type.
#[derive(Clone, Debug, Serialize)]
pub struct TypeTimes {
    /// The type.
    pub type_url: String,
    /// From the change to the acknowledgement.
    #[serde(flatten)]
    pub times: Times,
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
    /// Those of them that went to proxies that reject nothing.
    pub accepted: u64,
    /// Those of these that the receiver did not have in that version.
    pub fresh: u64,
    /// The size of all resources.
    pub bytes: u64,
}

impl Row {
    pub(super) fn new(
        churn: String,
        changes: usize,
        missed: usize,
        times: Vec<TypeTimes>,
        sent: Vec<Sent>,
        cpu: Option<Duration>,
    ) -> Self {
        let sum = |what: fn(&Sent) -> u64| sent.iter().map(what).sum::<u64>();
        let (accepted, fresh) = (sum(|sent| sent.accepted), sum(|sent| sent.fresh));
        #[expect(clippy::cast_precision_loss, reason = "ratios for people")]
        let ratio = |of: u64, to: usize| (to > 0).then(|| of as f64 / to as f64);
        let cpu_ms = cpu.map(|cpu| u64::try_from(cpu.as_millis()).unwrap_or(u64::MAX));
        Self {
            churn,
            changes,
            missed,
            times,
            reconnected: None,
            amplification: ratio(accepted, usize::try_from(fresh).unwrap_or(usize::MAX)),
            cpu_ms_per_change: cpu_ms.and_then(|cpu| ratio(cpu, changes)),
            cpu_ms,
            sent,
        }
    }
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
            shared_rss: None,
            connected_rss: None,
            rss_per_thousand: None,
            cpu_ms_per_thousand: None,
            final_rss: None,
            peak_rss: None,
            rejected: 0,
            churns: Vec::new(),
        }
    }

    /// Takes in what the server cost before anybody came, with the first `kinds` proxies, when all
    /// were connected, and at rest.
    pub(super) fn connected(&mut self, kinds: usize, looks: &[Option<Usage>; 4]) {
        let [before, shared, connected, rest] = looks;
        let rss = |usage: &Option<Usage>| usage.map(|usage| usage.rss);
        self.idle_rss = rss(before);
        self.shared_rss = rss(shared);
        self.connected_rss = rss(rest);
        let thousands = |total: u64, of: usize| total * 1000 / (of.max(1) as u64);
        if let (Some(before), Some(connected)) = (before, connected) {
            let cpu = connected.cpu.saturating_sub(before.cpu).as_millis();
            let cpu = u64::try_from(cpu).unwrap_or(u64::MAX);
            self.cpu_ms_per_thousand = Some(thousands(cpu, self.connections));
        }
        let others = self.connections.saturating_sub(kinds);
        if let (Some(shared), Some(rest), 1..) = (self.shared_rss, self.connected_rss, others) {
            self.rss_per_thousand = Some(thousands(rest.saturating_sub(shared), others));
        }
    }
}

/// The last part of a type URL, in few letters.
fn short(type_url: &str) -> &str {
    type_url.rsplit('.').next().unwrap_or(type_url)
}

/// One line of the table.
struct Line<'a> {
    name: &'a str,
    type_url: &'a str,
    missed: Option<usize>,
    times: Option<&'a Times>,
    sent: Option<&'a Sent>,
}

impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let missed = self.missed.map_or(String::new(), |n| n.to_string());
        write!(
            f,
            "{:<16} {:<21} {missed:>7}",
            self.name,
            short(self.type_url)
        )?;
        let times = self.times.map_or([None; 4], |times| {
            [times.p50, times.p95, times.p99, times.max].map(Some)
        });
        for time in times {
            let time = time.map_or(String::new(), |time| format!("{time:.1}"));
            write!(f, " {time:>9}")?;
        }
        let resources = self
            .sent
            .map_or(String::new(), |sent| sent.resources.to_string());
        let kib = self
            .sent
            .map_or(String::new(), |sent| (sent.bytes >> 10).to_string());
        write!(f, " {resources:>10} {kib:>10}")
    }
}

impl Row {
    /// One line for each type that the change concerns or that was sent.
    fn lines(&self) -> Vec<Line<'_>> {
        let times = |sent: &Sent| {
            let of_type = self.times.iter().find(|t| t.type_url == sent.type_url);
            of_type.map(|of_type| &of_type.times)
        };
        let sent = self.sent.iter();
        let mut lines: Vec<Line<'_>> = sent
            .filter(|sent| sent.resources > 0 || times(sent).is_some())
            .map(|sent| Line {
                name: &self.churn,
                type_url: &sent.type_url,
                missed: None,
                times: times(sent),
                sent: Some(sent),
            })
            .collect();
        if self.reconnected.is_some() || lines.is_empty() {
            let whole = Line {
                name: &self.churn,
                type_url: "everything",
                missed: None,
                times: self.reconnected.as_ref(),
                sent: None,
            };
            lines.insert(0, whole);
        }
        if let Some(first) = lines.first_mut() {
            first.missed = Some(self.missed);
        }
        lines
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: Option<u64>| {
            let tenths = bytes.map(|bytes| (bytes * 10) >> 20);
            tenths.map_or("?".to_owned(), |n| format!("{}.{} MiB", n / 10, n % 10))
        };
        let ms = |ms: Option<u64>| ms.map_or("?".to_owned(), |ms| format!("{ms} ms"));
        writeln!(
            f,
            "{} proxies of {} kinds, {} services",
            self.connections, self.classes, self.services
        )?;
        writeln!(
            f,
            "memory of the server: {} idle, {} with one proxy of each kind, {} with all ({} for \
             each 1000), {} at the end, {} at most",
            mib(self.idle_rss),
            mib(self.shared_rss),
            mib(self.connected_rss),
            mib(self.rss_per_thousand),
            mib(self.final_rss),
            mib(self.peak_rss)
        )?;
        writeln!(
            f,
            "CPU time to connect 1000: {}; rejected responses: {}",
            ms(self.cpu_ms_per_thousand),
            self.rejected
        )?;
        writeln!(
            f,
            "{:<16} {:<21} {:>7} {:>9} {:>9} {:>9} {:>9} {:>10} {:>10}",
            "ms until ACK", "type", "missed", "P50", "P95", "P99", "max", "resources", "KiB"
        )?;
        let first = Row {
            reconnected: Some(self.first_config),
            ..Row::new(
                "first config".to_owned(),
                1,
                0,
                Vec::new(),
                self.first_sent.clone(),
                None,
            )
        };
        for row in std::iter::once(&first).chain(&self.churns) {
            for line in row.lines() {
                writeln!(f, "{line}")?;
            }
        }
        for row in &self.churns {
            let ratio = row
                .amplification
                .map_or("none".to_owned(), |r| format!("{r:.3}"));
            writeln!(
                f,
                "{}: {} changes, amplification {ratio}, CPU time of the server {}",
                row.churn,
                row.changes,
                ms(row.cpu_ms)
            )?;
        }
        Ok(())
    }
}

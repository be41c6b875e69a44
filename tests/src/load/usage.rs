//! What a process costs.

use std::time::Duration;

use anyhow::{Context as _, Result};

/// Clock ticks in a second: what Linux reports to user space on every architecture.
const TICKS: u64 = 100;

/// Memory and CPU time of a process.
#[derive(Clone, Copy, Debug)]
pub(super) struct Usage {
    /// Resident memory, in bytes.
    pub(super) rss: u64,
    /// The most that it ever was.
    pub(super) peak: u64,
    /// CPU time so far.
    pub(super) cpu: Duration,
}

impl Usage {
    /// Looks at a process; `None` without one.
    pub(super) fn of(pid: Option<u32>) -> Result<Option<Self>> {
        let Some(pid) = pid else { return Ok(None) };
        let read = |file: &str| {
            let path = format!("/proc/{pid}/{file}");
            std::fs::read_to_string(&path).with_context(|| format!("read {path}"))
        };
        let status = read("status")?;
        let bytes = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<u64>().ok());
            kib.map_or(0, |kib| kib * 1024)
        };
        let stat = read("stat")?;
        // The name in parentheses may hold spaces; the fields after it are counted from the third.
        let fields: Vec<&str> = stat
            .rsplit(')')
            .next()
            .unwrap_or("")
            .split_whitespace()
            .collect();
        let ticks = |index: usize| {
            fields
                .get(index)
                .and_then(|f| f.parse::<u64>().ok())
                .unwrap_or(0)
        };
        let ticks = ticks(11) + ticks(12);
        Ok(Some(Self {
            rss: bytes("VmRSS:"),
            peak: bytes("VmHWM:"),
            cpu: Duration::from_millis(ticks * 1000 / TICKS),
        }))
    }
}

//! Reads texts, says what is wrong with them, and measures decoding and derivation.
//!
//! `cargo run --release -p intake --example measure -- FILE...`

use std::{io::Write, time::Instant};

use intake::{Change, Decoder, Intake, Options};
use model::Object;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    let mut objects: Vec<Object> = Vec::new();
    for path in std::env::args().skip(1) {
        let text = std::fs::read_to_string(&path)?;
        let start = now();
        let decoded = Decoder::default().decode(&path, &text);
        if std::env::args().len() == 2 {
            writeln!(
                out,
                "{} objects decoded in {:?}",
                decoded.objects.len(),
                start.elapsed()
            )?;
        }
        for finding in &decoded.findings {
            writeln!(out, "{finding}")?;
        }
        objects.extend(decoded.objects);
    }
    let last = objects.last().cloned();
    let mut intake = Intake::new(Options::default());
    let (start, cpu) = (now(), cpu_millis());
    intake.apply(objects.into_iter().map(Change::Apply), now());
    let (elapsed, cpu) = (start.elapsed(), cpu_millis() - cpu);
    let state = intake.state();
    let (services, endpoints) = (state.services.len(), state.endpoints.len());
    writeln!(
        out,
        "{services} services, {endpoints} endpoint lists derived in {elapsed:?}, {cpu} ms of CPU"
    )?;
    if let Some(last) = last {
        intake.apply([Change::Delete(last.key())], now());
        let start = now();
        intake.apply([Change::Apply(last)], now());
        writeln!(out, "one object added in {:?}", start.elapsed())?;
    }
    Ok(())
}

/// CPU time of all threads so far, on Linux; on a busy machine it tells more than the clock.
fn cpu_millis() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields = stat.rsplit(") ").next().unwrap_or_default().split(' ');
    // User and system time, in hundredths of a second.
    fields
        .skip(11)
        .take(2)
        .filter_map(|ticks| ticks.parse::<u64>().ok())
        .sum::<u64>()
        * 10
}

#[expect(clippy::disallowed_methods, reason = "this program measures time")]
fn now() -> Instant {
    Instant::now()
}

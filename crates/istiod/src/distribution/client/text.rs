//! Answers for people.

use std::{
    fmt::{self, Write as _},
    io::Write,
};

use serde::Serialize;

use crate::distribution::answer::{
    ConfigAnswer, MeshAnswer, ProxiesAnswer, ProxyState, Replica, Stage, Standing, Unreachable,
};

/// Why waiting failed is told of this many proxies.
const REASONS: usize = 10;

/// Writes an answer as it came.
pub(super) fn json(out: &mut impl Write, answer: &impl Serialize) -> anyhow::Result<()> {
    writeln!(out, "{}", serde_json::to_string_pretty(answer)?)?;
    Ok(())
}

/// Says something on standard output.
pub(super) fn say(text: &dyn fmt::Display) -> anyhow::Result<()> {
    writeln!(std::io::stdout().lock(), "{text}")?;
    Ok(())
}

/// Tells of progress, beside the output.
#[expect(clippy::print_stderr, reason = "progress must not mix with the output")]
pub(super) fn tell(text: &str) {
    eprintln!("{text}");
}

/// How far a configuration is, on one line.
pub(super) fn progress(answer: &ConfigAnswer) -> String {
    let counts = answer.counts;
    let mut line = match answer.stage {
        Stage::Missing => "not here yet; ".to_owned(),
        Stage::Waiting => "not published yet; ".to_owned(),
        Stage::Superseded => "replaced by a newer content; ".to_owned(),
        Stage::Published => String::new(),
    };
    write!(
        line,
        "{} of {} have it, {} pending, {} refused",
        counts.has, counts.required, counts.pending, counts.refused
    )
    .ok();
    if counts.undecided > 0 {
        write!(line, ", {} undecided", counts.undecided).ok();
    }
    if counts.disconnected > 0 {
        write!(line, ", {} disconnected", counts.disconnected).ok();
    }
    if !answer.unreachable.is_empty() {
        write!(
            line,
            ", {} replicas cannot be asked",
            answer.unreachable.len()
        )
        .ok();
    }
    line
}

/// Says why a configuration is not everywhere.
pub(super) fn reasons(answer: &ConfigAnswer) -> anyhow::Result<()> {
    let out = &mut std::io::stdout().lock();
    let behind = answer.proxies.iter().filter(|p| p.state != Standing::Has);
    for proxy in behind.take(REASONS) {
        writeln!(out, "  {}", line(proxy))?;
    }
    unreachable(out, &answer.unreachable)
}

fn line(proxy: &ProxyState) -> String {
    let state = match proxy.state {
        Standing::Has => "has it",
        Standing::Pending => "pending",
        Standing::Refused => "refused",
        Standing::Undecided => "undecided",
        Standing::Disconnected => "disconnected",
    };
    let mut line = format!("{}: {state}", proxy.proxy);
    if let Some(seconds) = proxy.seconds {
        write!(line, " for {seconds:.1} s").ok();
    }
    if !proxy.types.is_empty() {
        let short = proxy.types.iter().map(|url| short(url));
        write!(line, " ({})", short.collect::<Vec<_>>().join(", ")).ok();
    }
    if !proxy.resources.is_empty() {
        write!(line, " {}", proxy.resources.join(", ")).ok();
    }
    if let Some(error) = &proxy.error {
        write!(line, ": {error}").ok();
    }
    line
}

/// The last part of a type URL.
fn short(type_url: &str) -> &str {
    type_url.rsplit('.').next().unwrap_or(type_url)
}

/// Writes who has a configuration.
pub(super) fn config(out: &mut impl Write, answer: &ConfigAnswer) -> anyhow::Result<()> {
    let name = &answer.config;
    write!(out, "{} {}/{}", name.kind, name.namespace, name.name)?;
    match &answer.hash {
        Some(hash) => write!(out, ", content {hash}")?,
        None => write!(out, ", deleted")?,
    }
    if answer.generation > 0 {
        write!(out, ", generation {}", answer.generation)?;
    }
    if let Some(seconds) = answer.published_seconds_ago {
        write!(out, ", published {seconds:.1} s ago")?;
    }
    writeln!(out, "\n{}", progress(answer))?;
    for proxy in &answer.proxies {
        writeln!(out, "  {}", line(proxy))?;
    }
    replicas(out, &answer.replicas)?;
    unreachable(out, &answer.unreachable)
}

/// Writes what proxies have and lack.
pub(super) fn proxies(out: &mut impl Write, answer: &ProxiesAnswer) -> anyhow::Result<()> {
    for proxy in &answer.proxies {
        let state = if proxy.current {
            "has everything"
        } else {
            "is behind"
        };
        writeln!(
            out,
            "{} ({}, at {}) {state}",
            proxy.proxy, proxy.protocol, proxy.replica
        )?;
        for standing in &proxy.types {
            write!(
                out,
                "  {}: {} resources, root {}",
                short(&standing.type_url),
                standing.resources,
                standing.root.as_deref().unwrap_or("-")
            )?;
            if standing.lacking > 0 {
                write!(out, ", lacks {}", standing.lacking)?;
            }
            if let Some(seconds) = standing.waits_seconds {
                write!(out, ", owes an answer for {seconds:.1} s")?;
            }
            writeln!(out)?;
            for config in &standing.configs {
                writeln!(out, "    lacks {config}")?;
            }
            for name in &standing.lacks {
                writeln!(out, "    lacks resource {name}")?;
            }
            for name in &standing.obsolete {
                writeln!(out, "    still has {name}")?;
            }
            for refused in &standing.refused {
                let error = refused.error.as_deref().unwrap_or("suspected");
                writeln!(out, "    refused {}: {error}", refused.resource)?;
            }
        }
    }
    unreachable(out, &answer.unreachable)
}

/// Writes the mesh at a glance.
pub(super) fn mesh(out: &mut impl Write, answer: &MeshAnswer) -> anyhow::Result<()> {
    writeln!(
        out,
        "{} proxies, {} of them have everything; {} configurations",
        answer.connected, answer.current, answer.configs
    )?;
    for kind in &answer.kinds {
        writeln!(
            out,
            "  {}: {} changes, {:.2} % accepted, {:.2} s on average, {:.2} s at most",
            kind.kind,
            kind.changes,
            kind.success * 100.0,
            kind.mean_seconds,
            kind.max_seconds
        )?;
    }
    for pending in &answer.pending {
        let name = &pending.config;
        writeln!(
            out,
            "  pending for {:.1} s: {} {}/{}, {} proxies",
            pending.seconds, name.kind, name.namespace, name.name, pending.pending
        )?;
    }
    for refused in &answer.refused {
        writeln!(
            out,
            "  refused by {}: {} {}: {}",
            refused.proxies,
            short(&refused.type_url),
            refused.resource,
            refused.error
        )?;
    }
    for aside in &answer.set_aside {
        writeln!(
            out,
            "  set aside for {} classes: {}: {}",
            aside.classes, aside.object, aside.error
        )?;
    }
    replicas(out, &answer.replicas)?;
    unreachable(out, &answer.unreachable)
}

fn replicas(out: &mut impl Write, replicas: &[Replica]) -> anyhow::Result<()> {
    for replica in replicas.iter().filter(|_| replicas.len() > 1) {
        writeln!(
            out,
            "  replica {}: {} proxies, root {}",
            replica.name, replica.connected, replica.root
        )?;
    }
    Ok(())
}

fn unreachable(out: &mut impl Write, replicas: &[Unreachable]) -> anyhow::Result<()> {
    for lost in replicas {
        writeln!(
            out,
            "  replica {} cannot be asked, its proxies are missing: {}",
            lost.replica, lost.error
        )?;
    }
    Ok(())
}

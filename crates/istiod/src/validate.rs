//! `istiod validate`: every refusal and warning, for people and for pipelines.

pub mod patches;
mod proxies;

use std::io::Write;

use intake::{Finding, Severity};
use serde_json::{Value, json};

use self::patches::Effect;
use crate::{cli::ReportOutput, load::Loaded};

/// Judges what is only seen of all objects together: adds findings about patches, and tells what
/// EnvoyFilters do.
///
/// # Errors
/// When resources cannot be generated at all.
pub fn judge(loaded: &mut Loaded) -> anyhow::Result<Vec<Effect>> {
    let effects = patches::effects(&loaded.intake.state())?;
    let findings = &mut loaded.report.findings;
    findings.extend(effects.findings);
    findings.sort_by(|a, b| a.order().cmp(&b.order()));
    Ok(effects.filters)
}

/// Writes the report; returns whether nothing was refused.
///
/// # Errors
/// When the output cannot be written.
pub fn report(
    loaded: &Loaded,
    effects: &[Effect],
    output: ReportOutput,
    out: &mut dyn Write,
) -> anyhow::Result<bool> {
    let findings = &loaded.report.findings;
    let shown = findings.iter().filter(|f| f.severity != Severity::Ignored);
    match output {
        ReportOutput::Text => {
            for finding in findings {
                writeln!(out, "{finding}")?;
            }
            for effect in effects {
                writeln!(out, "{effect}")?;
            }
            writeln!(
                out,
                "{} objects accepted, {} refused, {} warnings, {} of kinds that are not read",
                loaded.report.object_count(),
                loaded.refused(),
                loaded.count(Severity::Warning),
                loaded.count(Severity::Ignored),
            )?;
        }
        ReportOutput::Json => {
            let effects = effects.iter().map(effect_to_json);
            let list: Vec<Value> = shown.map(to_json).chain(effects).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
        }
    }
    Ok(loaded.count(Severity::Error) == 0)
}

/// What a filter does, in the form of a finding.
fn effect_to_json(effect: &Effect) -> Value {
    json!({
        "kind": effect.filter.kind.name(),
        "namespace": &*effect.filter.namespace,
        "name": &*effect.filter.name,
        "resources": effect.resources,
        "classes": effect.classes,
        "attachedClasses": effect.attached,
        "reason": effect.to_string(),
        "severity": "info",
    })
}

fn to_json(finding: &Finding) -> Value {
    json!({
        "kind": finding.kind,
        "namespace": finding.namespace,
        "name": finding.name,
        "file": &*finding.origin.source,
        "line": finding.origin.line,
        "field": finding.field,
        "reason": finding.reason,
        "severity": finding.severity.as_str(),
    })
}

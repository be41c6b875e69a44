//! `istiod validate`: every refusal and warning, for people and for pipelines.

use std::io::Write;

use intake::{Finding, Severity};
use serde_json::{Value, json};

use crate::{cli::ReportOutput, load::Loaded};

/// Writes the report; returns whether nothing was refused.
///
/// # Errors
/// When the output cannot be written.
pub fn report(loaded: &Loaded, output: ReportOutput, out: &mut dyn Write) -> anyhow::Result<bool> {
    let findings = &loaded.report.findings;
    let shown = findings.iter().filter(|f| f.severity != Severity::Ignored);
    match output {
        ReportOutput::Text => {
            for finding in findings {
                writeln!(out, "{finding}")?;
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
            let list: Vec<Value> = shown.map(to_json).collect();
            writeln!(out, "{}", serde_json::to_string_pretty(&list)?)?;
        }
    }
    Ok(loaded.count(Severity::Error) == 0)
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

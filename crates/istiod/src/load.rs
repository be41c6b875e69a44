//! Files to a loaded intake, with everything there is to say about them.

use std::{collections::BTreeSet, time::Instant};

use anyhow::bail;
use intake::{Change, Decoder, FileInputs, FileSource, Finding, Intake, Options, Report, Severity};
use model::state::MeshIdentity;

use crate::{cli::ConfigArgs, settings::Settings};

/// What was loaded.
#[derive(Debug)]
pub struct Loaded {
    /// Tables and what was derived from them.
    pub intake: Intake,
    /// The files; watching them goes on from here.
    pub source: FileSource,
    /// What was loaded and what is wrong with it.
    pub report: Report,
}

/// Reads objects as this control plane does: the values of patches are judged by Envoy's API.
pub fn decoder() -> Decoder {
    Decoder {
        check_patch: Some(generators::admission::check_patch),
        ..Decoder::default()
    }
}

/// Loads the files, the mesh configuration and the networks that a command names.
///
/// Blocks on the disk. Whatever cannot be used is a finding of the report, and everything else is
/// loaded.
///
/// # Errors
/// When a path does not exist.
pub fn load(args: &ConfigArgs, settings: &Settings, now: Instant) -> anyhow::Result<Loaded> {
    load_layer(args, settings, now, false)
}

/// Loads them as [`load`] does; with `beside_cluster`, objects that a cluster has, too, are to be the
/// cluster's.
///
/// # Errors
/// When a path does not exist.
pub(crate) fn load_layer(
    args: &ConfigArgs,
    settings: &Settings,
    now: Instant,
    beside_cluster: bool,
) -> anyhow::Result<Loaded> {
    let features = settings.features.clone();
    let mut source = FileSource::open(FileInputs {
        config: args.config.clone(),
        mesh_config: args.mesh.mesh_config.clone(),
        mesh_networks: args.mesh.mesh_networks.clone(),
        refuse_gateway_names: !features.resolve_hostname_gateways,
        decoder: decoder(),
        ..FileInputs::default()
    })?;
    let mut intake = Intake::new(Options {
        features,
        identity: MeshIdentity {
            domain: args.mesh.domain.as_str().into(),
            cluster: settings.cluster.as_str().into(),
            system_namespace: settings.namespace.as_str().into(),
            revision: settings.revision.as_str().into(),
        },
        compile: Some(generators::admission::compile),
        ..Options::default()
    });
    let changes = source.refresh();
    if beside_cluster {
        intake.apply([Change::Files(changes)], now);
    } else {
        intake.apply(changes, now);
    }
    let report = source.report();
    Ok(Loaded {
        intake,
        source,
        report,
    })
}

impl Loaded {
    /// Number of findings of a severity.
    pub fn count(&self, severity: Severity) -> usize {
        count(&self.report, severity)
    }

    /// Number of objects that were refused.
    pub fn refused(&self) -> usize {
        refused(&self.report)
    }

    /// Fails when the mesh configuration or the networks cannot be used: nothing else would mean what
    /// its author meant.
    ///
    /// # Errors
    /// With the findings about them.
    pub fn require_mesh(&self) -> anyhow::Result<()> {
        let broken: Vec<String> = self
            .report
            .findings
            .iter()
            .filter(|f| f.severity == Severity::Error && is_mesh(f))
            .map(ToString::to_string)
            .collect();
        if !broken.is_empty() {
            bail!("{}", broken.join("\n"));
        }
        Ok(())
    }
}

/// Whether a finding is about a file of mesh-wide settings, not about an object.
fn is_mesh(finding: &Finding) -> bool {
    matches!(&*finding.kind, "MeshConfig" | "MeshNetworks")
}

/// Number of findings of a severity.
pub(crate) fn count(report: &Report, severity: Severity) -> usize {
    let findings = report.findings.iter();
    findings.filter(|f| f.severity == severity).count()
}

/// Number of objects that were refused.
pub(crate) fn refused(report: &Report) -> usize {
    let errors = report
        .findings
        .iter()
        .filter(|f| f.severity == Severity::Error && !f.kind.is_empty() && !is_mesh(f));
    let objects: BTreeSet<_> = errors
        .map(|f| (&f.origin.source, &f.kind, &f.namespace, &f.name))
        .collect();
    objects.len()
}

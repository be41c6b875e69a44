//! What the control plane makes of a case: where the runner meets the product.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use intake::{Change, Decoder, Intake, Options, Setting};
use istiod::{
    generate::{Generator, ResourceType},
    node,
};
use model::{Features, Timestamp, api::MeshConfig};
use serde_json::Value;

use crate::conformance::{Outcome, case::CaseInput, expected::ObjectId};

/// When the objects of the recording were created that state no time: 2024-01-01.
const RECORDED: Timestamp = Timestamp(1_704_067_200);

/// Generates what each proxy of a case would receive, and lists what validation refuses.
///
/// # Errors
/// When the input cannot be loaded at all.
#[expect(clippy::disallowed_methods, reason = "the start of a run")]
pub fn generate(input: &CaseInput) -> Result<Outcome> {
    let (features, errors) = Features::resolve(|name| input.env.get(name).cloned());
    if let Some(error) = errors.first() {
        anyhow::bail!("{error}");
    }
    let resolve_names = features.resolve_hostname_gateways;
    let mesh = intake::mesh_config("mesh", &text(&input.mesh), &MeshConfig::default());
    let networks = intake::mesh_networks("networks", &text(&input.networks), resolve_names);
    let mut intake = Intake::new(Options {
        features,
        mesh: usable(mesh)?,
        networks: usable(networks)?,
        ..Options::default()
    });
    let decoder = Decoder {
        default_created: RECORDED,
        ..istiod::load::decoder()
    };
    let (mut changes, mut refused) = (Vec::new(), Vec::new());
    for (name, text) in &input.files {
        let decoded = decoder.decode(name, text);
        refused.extend(decoded.refused);
        changes.extend(decoded.objects.into_iter().map(Change::Apply));
    }
    intake.apply(changes, std::time::Instant::now());
    let refused = refused
        .iter()
        .map(|key| ObjectId {
            kind: key.kind.name().to_owned(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
        })
        .collect();
    let generator = Generator::new(intake.state())?;
    let types = BTreeSet::from(ResourceType::ALL);
    let proxies = input
        .nodes
        .iter()
        .map(|(name, node)| {
            let node = node::from_value(node).with_context(|| format!("proxy {name}"))?;
            Ok((name.clone(), generator.generate(&node, &types)?))
        })
        .collect::<Result<_>>()?;
    Ok(Outcome { proxies, refused })
}

/// A setting of a case as the text of a file, of which JSON is one form.
fn text(setting: &Value) -> String {
    if setting.is_null() {
        String::new()
    } else {
        setting.to_string()
    }
}

fn usable<T>(setting: Setting<T>) -> Result<T> {
    let findings = || {
        let lines: Vec<String> = setting.findings.iter().map(ToString::to_string).collect();
        lines.join("; ")
    };
    setting.value.with_context(findings)
}

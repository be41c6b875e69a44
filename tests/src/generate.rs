//! What the control plane makes of a case: where the runner meets the product.

use std::collections::BTreeSet;

use anyhow::{Context as _, Result};
use intake::Decoder;
use istiod::{
    generate::{Generator, ResourceType},
    load::Input,
    node,
};
use model::{Features, Timestamp};

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
    let loaded = Input {
        files: input.files.clone(),
        mesh: input.mesh.clone(),
        networks: input.networks.clone(),
        features,
        decoder: Decoder {
            default_created: RECORDED,
            ..Decoder::default()
        },
        ..Input::default()
    }
    .load(std::time::Instant::now())?;
    let refused = loaded
        .refused
        .iter()
        .map(|key| ObjectId {
            kind: key.kind.name().to_owned(),
            namespace: key.namespace.to_string(),
            name: key.name.to_string(),
        })
        .collect();
    let generator = Generator::new(loaded.intake.state())?;
    let types = BTreeSet::from(ResourceType::ALL);
    let proxies = input
        .nodes
        .iter()
        .map(|(name, node)| {
            let node = node::from_value(node.clone()).with_context(|| format!("proxy {name}"))?;
            Ok((name.clone(), generator.generate(&node, &types)?))
        })
        .collect::<Result<_>>()?;
    Ok(Outcome { proxies, refused })
}

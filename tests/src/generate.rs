//! What the control plane makes of a case: where the runner meets the product.

mod earlier;
mod laws;
mod random;
mod threads;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use anyhow::{Context as _, Result};
use intake::{Change, Decoder, Intake, Options, Setting};
use istiod::{
    generate::{self, Generator, Received, ResourceType},
    node,
};
use model::{ConfigKey, Features, Object, Proxy, Timestamp, api::MeshConfig};
use serde_json::Value;

use random::Random;

use crate::conformance::{Outcome, case::CaseInput, expected::ObjectId};

pub use threads::{Versions, on_threads};

/// When the objects of the recording were created that state no time: 2024-01-01.
const RECORDED: Timestamp = Timestamp(1_704_067_200);

/// Generates what each proxy of a case would receive, and lists what validation refuses.
///
/// # Errors
/// When the input cannot be loaded at all, or what is generated depends on the order in which the
/// objects arrive (laws 1 and 2).
pub fn generate(input: &CaseInput) -> Result<Outcome> {
    generate_seeded(input, 0)
}

/// As [`generate`]; another seed gives the objects another order and another history.
///
/// # Errors
/// As [`generate`].
pub fn generate_seeded(input: &CaseInput, seed: u64) -> Result<Outcome> {
    let loaded = Loaded::of(input, seed)?;
    let proxies = received_of(&loaded, input)?;
    laws::check(&loaded, &proxies)?;
    let lists = |received: &Received| received.to_json(&BTreeSet::from(ResourceType::ALL));
    Ok(Outcome {
        proxies: proxies
            .iter()
            .map(|(name, (_, received))| ((*name).to_owned(), lists(received)))
            .collect(),
        refused: loaded.refused,
    })
}

/// What each proxy of a case receives.
fn received_of<'a>(
    loaded: &Loaded,
    input: &'a CaseInput,
) -> Result<BTreeMap<&'a str, (Proxy, Received)>> {
    let mut intake = loaded.intake();
    intake.apply(loaded.objects.iter().cloned().map(Change::Apply), now());
    let generator = Generator::new(intake.state())?;
    let proxies = input.nodes.iter().map(|(name, node)| {
        let node = node::from_value(node).with_context(|| format!("proxy {name}"))?;
        let proxy = generate::parse(&node).with_context(|| format!("proxy {name}"))?;
        let received = generator.receive(&proxy);
        Ok((name.as_str(), (proxy, received)))
    });
    proxies.collect()
}

/// A case, read.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// By which the order and the history of the objects are made.
    pub random: Random,
    /// The accepted objects, in the order of the files.
    pub objects: Vec<Object>,
    /// How some of them may have looked before.
    pub earlier: Vec<Object>,
    refused: Vec<ObjectId>,
    options: Options,
}

impl Loaded {
    fn of(input: &CaseInput, seed: u64) -> Result<Self> {
        let (features, errors) = Features::resolve(|name| input.env.get(name).cloned());
        if let Some(error) = errors.first() {
            anyhow::bail!("{error}");
        }
        let resolve_names = features.resolve_hostname_gateways;
        let mesh = intake::mesh_config("mesh", &text(&input.mesh), &MeshConfig::default());
        let networks = intake::mesh_networks("networks", &text(&input.networks), resolve_names);
        let decoder = Decoder {
            default_created: RECORDED,
            ..istiod::load::decoder()
        };
        let mut loaded = Self {
            random: Random::of(&input.id, seed),
            objects: Vec::new(),
            earlier: Vec::new(),
            refused: Vec::new(),
            options: Options {
                features,
                mesh: usable(mesh)?,
                networks: usable(networks)?,
                ..Options::default()
            },
        };
        for (name, text) in &input.files {
            let decoded = decoder.decode(name, text);
            loaded.refused.extend(decoded.refused.iter().map(id));
            loaded.objects.extend(decoded.objects);
            loaded
                .earlier
                .extend(earlier::objects(&decoder, name, text, &mut loaded.random)?);
        }
        Ok(loaded)
    }

    /// An intake with the settings of the case and without objects.
    pub(crate) fn intake(&self) -> Intake {
        Intake::new(self.options.clone())
    }
}

#[expect(clippy::disallowed_methods, reason = "the start of a run")]
pub(crate) fn now() -> Instant {
    Instant::now()
}

fn id(key: &ConfigKey) -> ObjectId {
    ObjectId {
        kind: key.kind.name().to_owned(),
        namespace: key.namespace.to_string(),
        name: key.name.to_string(),
    }
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

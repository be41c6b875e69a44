//! What is traced, and by whom (telemetry-extensions §10).

use std::{collections::BTreeMap, sync::Arc};

use model::{
    Config,
    api::{Telemetry, common::WorkloadMode, telemetry::CustomTag},
};

/// What the objects of a workload say of one side.
#[derive(Clone, PartialEq, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent settings")]
pub(super) struct Chosen {
    /// Name of the provider; `None` when there is none.
    pub provider: Option<String>,
    /// No spans are reported.
    pub disabled: bool,
    /// Tags of the user.
    pub custom_tags: BTreeMap<String, CustomTag>,
    /// Share of requests, percent.
    pub sampling: Option<f64>,
    /// Requests are sampled by their id.
    pub sample_by_request_id: bool,
    /// Istio's own tags are added.
    pub istio_tags: bool,
    /// The context is not passed on.
    pub no_propagation: bool,
}

/// Merges the objects of a workload for one side; `None` when nothing is said and there is no default
/// provider. `known` tells whether a provider exists.
pub(super) fn choose(
    layers: &[Arc<Config<Telemetry>>],
    defaults: &[String],
    mode: WorkloadMode,
    known: impl Fn(&str) -> bool,
) -> Option<Chosen> {
    let entries: Vec<_> = layers
        .iter()
        .flat_map(|layer| &layer.spec.tracing)
        .collect();
    if entries.is_empty() && defaults.is_empty() {
        return None;
    }
    let existing = |name: &String| known(name).then(|| name.clone());
    let mut chosen = Chosen {
        provider: defaults.first().and_then(existing),
        disabled: false,
        custom_tags: BTreeMap::new(),
        sampling: None,
        sample_by_request_id: true,
        istio_tags: true,
        no_propagation: false,
    };
    for entry in entries {
        let wanted = entry.r#match.as_ref().map(|m| m.mode).unwrap_or_default();
        if wanted != WorkloadMode::ClientAndServer && wanted != mode {
            continue;
        }
        if let Some(first) = entry.providers.first() {
            chosen.provider = existing(&first.name);
        }
        if let Some(disabled) = entry.disable_span_reporting {
            chosen.disabled = disabled;
        }
        if let Some(tags) = &entry.custom_tags {
            chosen.custom_tags.clone_from(tags);
        }
        chosen.sampling = entry.random_sampling_percentage.or(chosen.sampling);
        if let Some(by_id) = entry.use_request_id_for_trace_sampling {
            chosen.sample_by_request_id = by_id;
        }
        if let Some(tags) = entry.enable_istio_tags {
            chosen.istio_tags = tags;
        }
        if let Some(off) = entry.disable_context_propagation {
            chosen.no_propagation = off;
        }
    }
    chosen.disabled |= chosen.provider.is_none();
    Some(chosen)
}

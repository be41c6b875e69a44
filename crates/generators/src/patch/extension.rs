//! Extension configurations that EnvoyFilters add (envoyfilter §16).

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use model::api::envoy_filter::{ApplyTo, Operation};

use super::{Patch, PatchIndex};

/// Extension configurations in order.
#[derive(Debug, Default)]
pub(crate) struct ExtensionPatches(Vec<Arc<Patch>>);

impl PatchIndex for ExtensionPatches {
    const KINDS: &'static [ApplyTo] = &[ApplyTo::ExtensionConfig];

    fn build(mut patches: Vec<Arc<Patch>>) -> Self {
        patches.retain(|patch| patch.operation == Operation::Add);
        Self(patches)
    }
}

impl ExtensionPatches {
    /// Builds all configurations, each with its patch. Contexts do not count.
    pub(crate) fn all(&self) -> Vec<(TypedExtensionConfig, &Arc<Patch>)> {
        self.0
            .iter()
            .filter_map(|patch| Some((patch.typed()?, patch)))
            .collect()
    }
}

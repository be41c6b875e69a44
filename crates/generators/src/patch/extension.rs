//! Extension configurations that EnvoyFilters add (envoyfilter §16).

use std::sync::Arc;

use model::api::envoy_filter::Operation;

use pushctx::PatchTarget;

use super::{Patch, PatchIndex};

/// Extension configurations in order.
#[derive(Debug, Default)]
pub(crate) struct ExtensionPatches(Vec<Arc<Patch>>);

impl PatchIndex for ExtensionPatches {
    const TARGETS: &'static [PatchTarget] = &[PatchTarget::Extensions];

    fn build(mut patches: Vec<Arc<Patch>>) -> Self {
        patches.retain(|patch| patch.operation == Operation::Add);
        Self(patches)
    }
}

impl ExtensionPatches {
    /// Lists all patches, in order. Contexts do not count.
    pub(crate) fn adding(&self) -> impl Iterator<Item = Arc<Patch>> + '_ {
        self.0.iter().cloned()
    }
}

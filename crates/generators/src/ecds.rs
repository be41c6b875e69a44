//! ECDS: extension configurations by name.
//!
//! Those that EnvoyFilters add (envoyfilter §16), and the Wasm modules that listeners name
//! (telemetry-extensions §16).

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use model::{ConfigKey, Kind};
use pushctx::{ProxyClass, PushContext};
use xds::{Interest, ResourceSet, Source};

use crate::{
    extensions,
    patch::{self, ExtensionPatches, Patcher},
};

/// What the name of a Wasm plugin ends with when it stands as a traffic extension.
const TRANSLATED: &str = "~istio-translated-wasmplugin";

/// Extension configurations of patches that are kept: one for each such patch in the mesh.
const CACHED_CONFIGS: usize = 10_000;

/// Builds extension configurations.
#[derive(Debug)]
pub(crate) struct Ecds {
    patcher: Patcher<ExtensionPatches>,
}

impl Default for Ecds {
    fn default() -> Self {
        Self {
            patcher: Patcher::new(CACHED_CONFIGS),
        }
    }
}

impl Ecds {
    /// Returns the configurations that `interest` names.
    pub(crate) fn generate(
        &self,
        context: &PushContext,
        class: &ProxyClass,
        interest: &Interest,
    ) -> ResourceSet {
        let mut resources = Vec::new();
        if let Some(patches) = self.patcher.resolve(context, class) {
            let name = |config: &TypedExtensionConfig| config.name.clone();
            let added = self.patcher.added(&patches, patches.index().adding(), name);
            resources.extend(added.into_iter().filter(|r| interest.wants(r.name())));
        }
        let workload = class.workload();
        let modules = context
            .traffic_extensions_of(&workload)
            .filter(|e| interest.wants(&extensions::name(&e.meta)));
        for extension in modules {
            if let Some(config) = extensions::wasm::config(context, extension) {
                let (kind, name) = match extension.meta.name.strip_suffix(TRANSLATED) {
                    Some(name) => (Kind::WasmPlugin, name),
                    None => (Kind::TrafficExtension, &*extension.meta.name),
                };
                let key = ConfigKey::new(kind, extension.meta.namespace.clone(), name);
                let source = Source::from(key.to_string());
                resources.push(Arc::new(patch::finished(
                    config.name.clone(),
                    &config,
                    [source].into(),
                )));
            }
        }
        resources.into_iter().collect()
    }
}

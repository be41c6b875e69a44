//! ECDS: extension configurations by name.
//!
//! Those that EnvoyFilters add (envoyfilter §16), and the Wasm modules that listeners name
//! (telemetry-extensions §16).

use std::sync::Arc;

use envoy_types::pb::envoy::config::core::v3::TypedExtensionConfig;
use model::{ConfigKey, Kind, fingerprint};
use pushctx::{ProxyClass, PushContext};
use xds::{Interest, Resource, ResourceSet, Source};

use crate::{
    cache::Cache,
    extensions::{self, wasm},
    patch::{self, ExtensionPatches, Patcher},
};

/// What the name of a Wasm plugin ends with when it stands as a traffic extension.
const TRANSLATED: &str = "~istio-translated-wasmplugin";

/// Extension configurations that are kept, of patches and of modules: one for each in the mesh.
const CACHED_CONFIGS: usize = 10_000;

/// Builds extension configurations.
#[derive(Debug)]
pub(crate) struct Ecds {
    patcher: Patcher<ExtensionPatches>,
    modules: Cache<Arc<Resource>>,
}

impl Default for Ecds {
    fn default() -> Self {
        Self {
            patcher: Patcher::new(CACHED_CONFIGS),
            modules: Cache::new(CACHED_CONFIGS),
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
        let handled = class.waypoint.as_ref();
        let handled = handled.map_or(&[][..], |waypoint| &waypoint.services);
        let workload = class.workload_for(handled);
        let modules = context
            .traffic_extensions_of(&workload)
            .filter(|e| interest.wants(&extensions::name(&e.meta)));
        for extension in modules {
            let Some(inputs) = wasm::ModuleInputs::gather(context, extension) else {
                continue;
            };
            let (kind, name) = match extension.meta.name.strip_suffix(TRANSLATED) {
                Some(name) => (Kind::WasmPlugin, name),
                None => (Kind::TrafficExtension, &*extension.meta.name),
            };
            resources.push(self.modules.get_or_build(fingerprint::of(&inputs), || {
                let key = ConfigKey::new(kind, extension.meta.namespace.clone(), name);
                let source = Source::from(key.to_string());
                let config = wasm::config(&inputs);
                Arc::new(patch::finished(
                    config.name.clone(),
                    &config,
                    [source].into(),
                ))
            }));
        }
        resources.into_iter().collect()
    }
}

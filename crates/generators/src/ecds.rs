//! ECDS: extension configurations by name.
//!
//! Those that EnvoyFilters add (envoyfilter §16), and the Wasm modules that listeners name
//! (telemetry-extensions §16).

use model::{ConfigKey, Kind};
use pushctx::{ProxyClass, PushContext};
use xds::{Interest, ResourceSet, Source};

use crate::{
    extensions,
    patch::{self, ExtensionPatches, Patches},
};

/// What the name of a Wasm plugin ends with when it stands as a traffic extension.
const TRANSLATED: &str = "~istio-translated-wasmplugin";

/// Builds extension configurations.
#[derive(Debug, Default)]
pub(crate) struct Ecds {
    patches: Patches<ExtensionPatches>,
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
        if let Some(set) = self.patches.resolve(context, class) {
            for (config, added_by) in set.index.all() {
                if interest.wants(&config.name) {
                    let sources = patch::sources([added_by]);
                    resources.push(patch::finished(config.name.clone(), &config, sources));
                }
            }
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
                resources.push(patch::finished(
                    config.name.clone(),
                    &config,
                    [source].into(),
                ));
            }
        }
        resources.into_iter().collect()
    }
}

//! ECDS: extension configurations by name.
//!
//! Those that EnvoyFilters add (envoyfilter §16).

use pushctx::{ProxyClass, PushContext};
use xds::{Interest, ResourceSet};

use crate::patch::{self, ExtensionPatches, Patches};

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
        let Some(set) = self.patches.resolve(context, class) else {
            return ResourceSet::default();
        };
        set.index
            .all()
            .into_iter()
            .filter(|(config, _)| interest.wants(&config.name))
            .map(|(config, added_by)| {
                patch::finished(config.name.clone(), &config, patch::sources([added_by]))
            })
            .collect()
    }
}

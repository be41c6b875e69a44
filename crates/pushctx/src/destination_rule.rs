//! DestinationRules: consolidation per host and lookup (config-model §11).

use std::{collections::BTreeMap, sync::Arc};

use model::{Config, ExportTo, NamespacedName, api, host::HostMap};

/// One rule after merging every rule of the same host that fits.
#[derive(Clone, PartialEq, Debug)]
pub struct ConsolidatedRule {
    /// Metadata of the first rule and the merged content.
    pub config: Config<api::DestinationRule>,
    /// Effective export set.
    pub export_to: ExportTo,
    /// The rules that went in, in order.
    pub sources: Vec<NamespacedName>,
    /// Content hash.
    pub fingerprint: u64,
}

/// Rules of one placement, by host.
pub(crate) type Rules = HostMap<Vec<Arc<ConsolidatedRule>>>;

/// All rules by placement (config-model §11.1).
#[derive(Clone, Default, Debug)]
pub struct DestinationRuleIndex {
    pub(crate) local: BTreeMap<Arc<str>, Rules>,
    pub(crate) exported: BTreeMap<Arc<str>, Rules>,
    pub(crate) root_private: Rules,
}

//! Services by visibility and by host (config-model §9.1).

use std::{collections::BTreeMap, sync::Arc};

use model::Service;

/// Services as clients of each namespace see them.
#[derive(Clone, Default, Debug)]
pub struct ServiceIndex {
    pub(crate) public: Vec<Arc<Service>>,
    pub(crate) exported: BTreeMap<Arc<str>, Vec<Arc<Service>>>,
    pub(crate) by_host: BTreeMap<Arc<str>, BTreeMap<Arc<str>, Arc<Service>>>,
}

impl ServiceIndex {
    /// Lists the services visible to `namespace`: those exported to it first, then the public ones,
    /// each in creation order.
    pub fn visible_to(&self, namespace: &str) -> impl Iterator<Item = &Arc<Service>> {
        self.exported
            .get(namespace)
            .into_iter()
            .flatten()
            .chain(&self.public)
    }

    /// Returns the winners per namespace of a host name, hidden services included.
    pub fn by_host(&self, hostname: &str) -> Option<&BTreeMap<Arc<str>, Arc<Service>>> {
        self.by_host.get(hostname)
    }
}

//! WorkloadEntries by address (service-registry §14).

use std::{collections::BTreeSet, sync::Arc};

use imbl::OrdMap;
use model::{Config, NamespacedName, Table, api::WorkloadEntry};

use crate::diff;

/// WorkloadEntries that have labels, by address.
#[derive(Clone, Default, Debug)]
pub(crate) struct WorkloadEntryIndex(OrdMap<Arc<str>, BTreeSet<NamespacedName>>);

impl WorkloadEntryIndex {
    pub(crate) fn build(table: &Table<WorkloadEntry>) -> Self {
        let mut index = Self::default();
        for entry in table.values() {
            index.insert(entry);
        }
        index
    }

    pub(crate) fn next(&self, old: &Table<WorkloadEntry>, new: &Table<WorkloadEntry>) -> Self {
        let mut index = self.clone();
        for change in diff::changes(old, new) {
            let (before, after) = change.both();
            if let Some(entry) = before {
                index.remove(entry);
            }
            if let Some(entry) = after {
                index.insert(entry);
            }
        }
        index
    }

    /// The names of the entries at an address.
    pub(crate) fn at(&self, address: &str) -> Option<&BTreeSet<NamespacedName>> {
        self.0.get(address)
    }

    fn insert(&mut self, entry: &Config<WorkloadEntry>) {
        let has_labels = !entry.spec.labels.is_empty() || !entry.meta.labels.is_empty();
        if has_labels && !entry.spec.address.is_empty() {
            let names = self
                .0
                .entry(entry.spec.address.as_str().into())
                .or_default();
            names.insert(entry.meta.namespaced_name());
        }
    }

    fn remove(&mut self, entry: &Config<WorkloadEntry>) {
        let address = &*entry.spec.address;
        let Some(names) = self.0.get_mut(address) else {
            return;
        };
        names.remove(&entry.meta.namespaced_name());
        if names.is_empty() {
            self.0.remove(address);
        }
    }
}

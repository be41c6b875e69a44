//! WorkloadEntries by address (service-registry §14).

use std::sync::Arc;

use model::{Config, NamespacedName, Table, api::WorkloadEntry};

use crate::{
    diff,
    table::{Few, HashTable},
};

/// WorkloadEntries that have labels, by address.
#[derive(Clone, Default, Debug)]
pub(crate) struct WorkloadEntryIndex(HashTable<Arc<str>, Few<NamespacedName>>);

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

    /// The names of the entries at an address, sorted.
    pub(crate) fn at(&self, address: &str) -> &[NamespacedName] {
        self.0.get(address).map_or(&[], Few::as_slice)
    }

    fn insert(&mut self, entry: &Config<WorkloadEntry>) {
        let has_labels = !entry.spec.labels.is_empty() || !entry.meta.labels.is_empty();
        let address = &*entry.spec.address;
        if !has_labels || address.is_empty() {
            return;
        }
        let name = entry.meta.namespaced_name();
        let Some(names) = self.0.get_mut(address) else {
            self.0.insert(address.into(), Few::One(name));
            return;
        };
        let mut all = names.as_slice().to_vec();
        if let Err(at) = all.binary_search(&name) {
            all.insert(at, name);
        }
        if let Some(all) = Few::from_sorted(all) {
            *names = all;
        }
    }

    fn remove(&mut self, entry: &Config<WorkloadEntry>) {
        let address = &*entry.spec.address;
        let name = entry.meta.namespaced_name();
        let rest = self
            .at(address)
            .iter()
            .filter(|n| **n != name)
            .cloned()
            .collect();
        match Few::from_sorted(rest) {
            Some(names) => self.0.insert(address.into(), names),
            None => self.0.remove(address),
        };
    }
}

//! Workloads of other clusters, which ServiceEntries of this one select, too (service-registry §12.5).
//!
//! They stay in the registry of their own cluster, which derives them; that of the configuration is told
//! which of them have changed, and reads them where it derives the hosts of its entries.

use std::sync::Arc;

use model::{Kind, Labels, NamespacedName};

use super::{Dirty, Registry, prepare, settings::Settings, workload::Workload};

/// A workload that has changed: its labels before and after, as far as it could be selected.
#[derive(Clone, Debug)]
pub(crate) struct Told {
    kind: Kind,
    name: NamespacedName,
    old: Option<Arc<Labels>>,
    new: Option<Arc<Labels>>,
}

impl Registry {
    /// Notes from now on which workloads change.
    pub(crate) fn tell(&mut self) {
        self.told.get_or_insert_default();
    }

    /// Returns the workloads that have changed since the last time.
    pub(crate) fn take_told(&mut self) -> Vec<Told> {
        self.told.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Says of all workloads that they are gone, as they are with this registry.
    pub(crate) fn tell_all_gone(&self) -> Vec<Told> {
        let tables = [
            (Kind::Pod, &self.pods),
            (Kind::WorkloadEntry, &self.workload_entries),
        ];
        let all = tables.into_iter().flat_map(|(kind, table)| {
            table.iter().map(move |(name, workload)| Told {
                kind,
                name: name.clone(),
                old: selectable(Some(workload)),
                new: None,
            })
        });
        all.collect()
    }

    /// Notes that a workload has changed, if somebody wants to know.
    pub(super) fn note_told(
        &mut self,
        kind: Kind,
        name: &NamespacedName,
        old: Option<&Arc<Labels>>,
        new: Option<&Arc<Labels>>,
    ) {
        if let Some(told) = &mut self.told {
            told.push(Told {
                kind,
                name: name.clone(),
                old: old.cloned(),
                new: new.cloned(),
            });
        }
    }

    /// Marks the hosts whose entries select a workload of another cluster, or did before.
    pub(super) fn mark_told(&self, told: &Told, dirty: &mut Dirty) {
        if selects_foreign(told.kind, &self.settings) {
            let (old, new) = (told.old.as_deref(), told.new.as_deref());
            self.mark_selecting_hosts(&told.name, old, new, dirty);
        }
    }

    /// Files workloads by the label that leads the selector of a ServiceEntry.
    pub(super) fn prepare_workloads(&mut self, namespace: &Arc<str>, selector: &Labels) {
        prepare(&mut self.pod_labels, &self.pods, namespace, selector);
        prepare(
            &mut self.workload_entry_labels,
            &self.workload_entries,
            namespace,
            selector,
        );
    }
}

/// Tells whether entries select workloads of this kind in other clusters.
pub(super) fn selects_foreign(kind: Kind, settings: &Settings) -> bool {
    match kind {
        Kind::Pod => settings.features.service_entry_select_pods,
        _ => settings.features.cross_cluster_workload_entries,
    }
}

/// The labels of a workload that may be selected.
pub(super) fn selectable(workload: Option<&Arc<Workload>>) -> Option<Arc<Labels>> {
    workload
        .filter(|workload| workload.selectable)
        .map(|workload| workload.labels.clone())
}

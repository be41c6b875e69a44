//! Effective export sets of services (config-model §8.1, §8.3).

use std::{borrow::Cow, collections::BTreeSet, sync::Arc};

use model::{
    ExportTo, MeshState, NamespacedName, Service, Table,
    api::{
        kubernetes::Namespace,
        mesh::{EntryVisibility, MeshConfig, ServiceEntryVisibility},
    },
    service::Registry,
};

use crate::diff;

/// Decides who sees a service: its own declaration, the mesh's default, and the limits for
/// ServiceEntries.
#[derive(Clone, Default, Debug)]
pub(crate) struct Exports {
    default: ExportTo,
    mesh: Arc<MeshConfig>,
    namespaces: Table<Namespace>,
}

impl Exports {
    pub(crate) fn new(state: &MeshState) -> Self {
        Self {
            default: default_set(&state.mesh.default_service_export_to),
            mesh: state.mesh.clone(),
            namespaces: state.objects.namespaces.clone(),
        }
    }

    /// Returns the effective export set of a service.
    pub(crate) fn of<'s>(&'s self, service: &'s Service) -> Cow<'s, ExportTo> {
        let declared = &service.attributes.export_to;
        let set = if declared.is_empty() {
            &self.default
        } else {
            declared
        };
        let Some(limits) = limits(&self.mesh) else {
            return Cow::Borrowed(set);
        };
        if service.attributes.registry != Registry::External || declared.is_only("~") {
            return Cow::Borrowed(set);
        }
        let own = &*service.attributes.namespace;
        match self.visibility(limits, own) {
            EntryVisibility::VisibilityUnspecified | EntryVisibility::Public => Cow::Borrowed(set),
            EntryVisibility::Namespace if ["*", ".", own].iter().any(|e| set.contains(e)) => {
                Cow::Owned(ExportTo::new(["."]))
            }
            EntryVisibility::Namespace | EntryVisibility::None => Cow::Owned(ExportTo::new(["~"])),
        }
    }

    /// Tells whether clients of `namespace` may refer to the service.
    pub(crate) fn is_visible(&self, service: &Service, namespace: &str) -> bool {
        self.of(service)
            .visible_to(&service.attributes.namespace, namespace)
    }

    /// Lists the namespaces whose limit is another than it was.
    pub(crate) fn namespaces_that_differ(&self, before: &Self) -> BTreeSet<Arc<str>> {
        let Some(limits) = limits(&self.mesh) else {
            return BTreeSet::new();
        };
        diff::changes(&before.namespaces, &self.namespaces)
            .map(|change| change.key().name.clone())
            .filter(|name| self.visibility(limits, name) != before.visibility(limits, name))
            .collect()
    }

    fn visibility(&self, limits: &ServiceEntryVisibility, namespace: &str) -> EntryVisibility {
        let key = NamespacedName::new("", namespace);
        let nothing = model::Labels::new();
        let labels = self
            .namespaces
            .get(&key)
            .map_or(&nothing, |n| &n.meta.labels);
        let applies = |rules: &[model::api::mesh::NamespaceRule]| {
            rules.iter().all(|rule| {
                rule.namespace_selector
                    .as_ref()
                    .is_some_and(|s| s.matches(labels))
            })
        };
        limits
            .policies
            .iter()
            .find(|policy| applies(&policy.matching_rules))
            .map_or(limits.default_visibility, |policy| policy.visibility)
    }
}

fn limits(mesh: &MeshConfig) -> Option<&ServiceEntryVisibility> {
    mesh.service_entry_visibility
        .as_ref()
        .filter(|v| v.apply_to_sidecars)
}

/// A mesh-wide default export set: an empty list is the same as none, hence public.
pub(crate) fn default_set(entries: &[String]) -> ExportTo {
    if entries.is_empty() {
        ExportTo::everywhere()
    } else {
        ExportTo::new(entries)
    }
}

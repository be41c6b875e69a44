//! The configuration store: which objects count, and which changes of them matter
//! (config-model §6).

use model::{
    ConfigKey, Kind, Labels, MeshState, NamespacedName, Object, Tables,
    api::common::{LabelSelector, LabelSelectorRequirement},
};

use crate::registry::Update;

/// Label that ties an object to control planes of one revision.
const REVISION_LABEL: &str = "istio.io/rev";

/// Objects that are known but do not count: of other revisions, or of namespaces that are not
/// discovered. Those that count are in the tables of the state.
#[derive(Default, Debug)]
pub(crate) struct Store {
    hidden: Tables,
    /// Something was hidden before; most meshes hide nothing, ever.
    has_hidden: bool,
    selectors: Vec<LabelSelector>,
}

impl Store {
    /// Takes over the discovery selectors of the mesh configuration; a list with an invalid selector
    /// is ignored as a whole. Returns the objects that this shows or hides.
    pub(crate) fn set_selectors(&mut self, state: &mut MeshState) -> Vec<Update> {
        let selectors = &state.mesh.discovery_selectors;
        if self.selectors == *selectors {
            return Vec::new();
        }
        if let Some(bad) = selectors.iter().find(|s| !is_valid(s)) {
            tracing::error!(selector = ?bad, "invalid discovery selector, all are ignored");
            return Vec::new();
        }
        self.selectors.clone_from(selectors);
        self.resettle(state, |_| true)
    }

    /// Adds, replaces or (without `new`) deletes one object. Returns what changed among the objects
    /// that count; for a namespace this can be every object in it.
    pub(crate) fn apply(
        &mut self,
        state: &mut MeshState,
        key: ConfigKey,
        new: Option<Object>,
    ) -> Vec<Update> {
        let (old, visible) = match new {
            Some(object) if self.counts(state, &object) => {
                self.unhide(&key);
                (state.objects.insert(object.clone()), Some(object))
            }
            Some(object) => {
                self.hide(object);
                (state.objects.remove(&key), None)
            }
            None => {
                self.unhide(&key);
                (state.objects.remove(&key), None)
            }
        };
        let namespace =
            (key.kind == Kind::Namespace && !self.selectors.is_empty()).then(|| key.name.clone());
        let mut updates = Vec::new();
        if old.is_some() || visible.is_some() {
            updates.push(Update {
                key,
                old,
                new: visible,
            });
        }
        if let Some(namespace) = namespace {
            updates.extend(self.resettle(state, |n| *n == namespace));
        }
        updates
    }

    fn hide(&mut self, object: Object) {
        self.has_hidden = true;
        self.hidden.insert(object);
    }

    fn unhide(&mut self, key: &ConfigKey) {
        if self.has_hidden {
            self.hidden.remove(key);
        }
    }

    /// Moves objects of some namespaces between those that count and those that do not.
    fn resettle(
        &mut self,
        state: &mut MeshState,
        of: impl Fn(&std::sync::Arc<str>) -> bool,
    ) -> Vec<Update> {
        let mut updates = Vec::new();
        let moved = |objects: &Tables, counts: bool| -> Vec<Object> {
            objects
                .iter()
                .filter(|o| of(&o.meta().namespace) && self.counts(state, o) == counts)
                .collect()
        };
        let (shown, gone) = (moved(&self.hidden, true), moved(&state.objects, false));
        for object in shown {
            let key = object.key();
            self.unhide(&key);
            state.objects.insert(object.clone());
            updates.push(Update {
                key,
                old: None,
                new: Some(object),
            });
        }
        for object in gone {
            let key = object.key();
            state.objects.remove(&key);
            self.hide(object.clone());
            updates.push(Update {
                key,
                old: Some(object),
                new: None,
            });
        }
        updates
    }

    fn counts(&self, state: &MeshState, object: &Object) -> bool {
        let kind = object.kind();
        let meta = object.meta();
        // Gateway API gateways are taken by revision or tag, which their translation decides.
        if kind.is_custom() && kind != Kind::KubernetesGateway {
            let revision = &state.identity.revision;
            let stated = meta.labels.get(REVISION_LABEL);
            if !revision.is_empty() && stated.is_some_and(|r| **r != **revision) {
                return false;
            }
        }
        if self.selectors.is_empty() || kind.is_cluster_scoped() {
            return true;
        }
        let namespace = NamespacedName::new("", meta.namespace.clone());
        let no_labels = Labels::new();
        let labels = state
            .objects
            .namespaces
            .get(&namespace)
            .map_or(&no_labels, |n| &n.meta.labels);
        self.selectors
            .iter()
            .any(|selector| matches(selector, labels))
    }
}

fn is_valid(selector: &LabelSelector) -> bool {
    selector
        .match_expressions
        .iter()
        .all(|r| match r.operator.as_str() {
            "In" | "NotIn" => !r.values.is_empty(),
            "Exists" | "DoesNotExist" => r.values.is_empty(),
            _ => false,
        })
}

/// Tells whether a Kubernetes label selector matches; an empty one matches everything.
fn matches(selector: &LabelSelector, labels: &Labels) -> bool {
    let holds = |r: &LabelSelectorRequirement| {
        let value = labels.get(&r.key);
        match r.operator.as_str() {
            "In" => value.is_some_and(|v| r.values.contains(v)),
            "NotIn" => value.is_none_or(|v| !r.values.contains(v)),
            "Exists" => value.is_some(),
            "DoesNotExist" => value.is_none(),
            _ => false,
        }
    };
    model::selects(&selector.match_labels, labels) && selector.match_expressions.iter().all(holds)
}

/// Tells whether an update of an object that is not part of the registry has to be pushed
/// (config-model §6.5): unless nothing differs that anything reads.
pub(crate) fn matters(update: &Update) -> bool {
    let (Some(old), Some(new)) = (&update.old, &update.new) else {
        return true;
    };
    let (before, after) = (old.meta(), new.meta());
    if before.created != after.created || !old.same_spec(new) {
        return true;
    }
    let same_labels = before.labels == after.labels && before.annotations == after.annotations;
    if same_labels || !update.key.kind.group().ends_with("istio.io") {
        return !same_labels;
    }
    let is_ours = |labels: &Labels| labels.keys().any(|k| k.contains("istio.io"));
    [before, after]
        .iter()
        .any(|m| is_ours(&m.labels) || is_ours(&m.annotations))
}

#[cfg(test)]
mod tests;

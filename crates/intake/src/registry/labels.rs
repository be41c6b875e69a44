//! Who selects whom, without comparing everybody with everybody.
//!
//! A selector is filed under its first label (in key order), its *lead*. Workloads are filed by the
//! values of those label keys that lead some selector. So a selector finds its workloads, and a
//! workload its selectors, at a cost that follows the number of candidates, not the mesh.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use model::Labels;
use rustc_hash::FxHashMap;

use crate::few::Few;

/// Selectors of one kind of object, by namespace and lead.
#[derive(Default, Debug)]
pub(crate) struct SelectorIndex {
    namespaces: FxHashMap<Arc<str>, Selectors>,
}

#[derive(Default, Debug)]
struct Selectors {
    /// Selectors without labels: they select every workload.
    empty: BTreeSet<Arc<str>>,
    leads: FxHashMap<String, FxHashMap<String, Few<Arc<str>>>>,
}

impl SelectorIndex {
    /// Tells whether nothing is filed.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// Files a selector under the name of its object.
    pub(crate) fn insert(&mut self, namespace: &Arc<str>, name: &Arc<str>, selector: &Labels) {
        let selectors = self.namespaces.entry(namespace.clone()).or_default();
        let Some((key, value)) = selector.first() else {
            selectors.empty.insert(name.clone());
            return;
        };
        let values = selectors.leads.entry(key.clone()).or_default();
        values
            .entry(value.clone())
            .or_default()
            .insert(name.clone());
    }

    /// Takes a selector out.
    pub(crate) fn remove(&mut self, namespace: &str, name: &str, selector: &Labels) {
        let Some(selectors) = self.namespaces.get_mut(namespace) else {
            return;
        };
        match selector.first() {
            None => {
                selectors.empty.remove(name);
            }
            Some((key, value)) => {
                if let Some(values) = selectors.leads.get_mut(key) {
                    if let Some(names) = values.get_mut(value) {
                        names.remove(name);
                        if names.is_empty() {
                            values.remove(value);
                        }
                    }
                    if values.is_empty() {
                        selectors.leads.remove(key);
                    }
                }
            }
        }
        if selectors.empty.is_empty() && selectors.leads.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// Lists the objects whose selectors may match `labels`; the caller checks the other labels.
    pub(crate) fn candidates<'a>(
        &'a self,
        namespace: &str,
        labels: &'a Labels,
    ) -> impl Iterator<Item = &'a Arc<str>> {
        let selectors = self.namespaces.get(namespace);
        let empty = selectors.into_iter().flat_map(|s| s.empty.iter());
        let led = selectors.into_iter().flat_map(move |s| {
            labels
                .iter()
                .filter_map(|(key, value)| s.leads.get(key)?.get(value))
                .flat_map(Few::iter)
        });
        empty.chain(led)
    }
}

/// Workloads of one kind, by namespace and by the label keys that lead selectors.
#[derive(Default, Debug)]
pub(crate) struct LabelIndex {
    namespaces: FxHashMap<Arc<str>, Workloads>,
}

#[derive(Default, Debug)]
struct Workloads {
    all: BTreeSet<Arc<str>>,
    by_key: BTreeMap<String, FxHashMap<String, Few<Arc<str>>>>,
}

impl LabelIndex {
    /// Tells whether nothing is filed.
    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.namespaces.is_empty()
    }

    /// Changes the labels under which a workload is filed; `None` where it does not count.
    pub(crate) fn replace(
        &mut self,
        namespace: &Arc<str>,
        name: &Arc<str>,
        old: Option<&Labels>,
        new: Option<&Labels>,
    ) {
        if old.is_none() && new.is_none() {
            return;
        }
        let workloads = self.namespaces.entry(namespace.clone()).or_default();
        if new.is_some() {
            workloads.all.insert(name.clone());
        } else {
            workloads.all.remove(name);
        }
        for (key, values) in &mut workloads.by_key {
            let before = old.and_then(|l| l.get(key));
            let after = new.and_then(|l| l.get(key));
            if before == after {
                continue;
            }
            if let Some(before) = before
                && let Some(names) = values.get_mut(before)
            {
                names.remove(name);
                if names.is_empty() {
                    values.remove(before);
                }
            }
            if let Some(after) = after {
                values
                    .entry(after.clone())
                    .or_default()
                    .insert(name.clone());
            }
        }
        if workloads.all.is_empty() {
            self.namespaces.remove(namespace);
        }
    }

    /// Files the namespace's workloads by the lead of `selector`, unless that was done before.
    pub(crate) fn prepare<'a>(
        &mut self,
        namespace: &str,
        selector: &Labels,
        labels: impl Fn(&str) -> Option<&'a Labels>,
    ) {
        let Some((key, _)) = selector.first() else {
            return;
        };
        let Some(workloads) = self.namespaces.get_mut(namespace) else {
            return;
        };
        if workloads.by_key.contains_key(key) {
            return;
        }
        let mut values: FxHashMap<String, Few<Arc<str>>> = FxHashMap::default();
        for name in &workloads.all {
            if let Some(value) = labels(name).and_then(|l| l.get(key)) {
                values
                    .entry(value.clone())
                    .or_default()
                    .insert(name.clone());
            }
        }
        workloads.by_key.insert(key.clone(), values);
    }

    /// Lists, by name, the workloads that `selector` may select; the caller checks the other labels.
    pub(crate) fn candidates(
        &self,
        namespace: &str,
        selector: &Labels,
    ) -> impl Iterator<Item = &Arc<str>> {
        let workloads = self.namespaces.get(namespace);
        let found = selector
            .first()
            .and_then(|(key, value)| Some(workloads?.by_key.get(key)?.get(value)));
        // Without a label, or without preparation, every workload is a candidate.
        let all = found
            .is_none()
            .then_some(workloads)
            .flatten()
            .map(|w| &w.all);
        let found = found.flatten();
        all.into_iter()
            .flatten()
            .chain(found.into_iter().flat_map(Few::iter))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> Labels {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    #[test]
    fn selectors_are_found_by_labels_and_forgotten() {
        let mut index = SelectorIndex::default();
        let (ns, a, b) = (Arc::from("ns"), Arc::from("a"), Arc::from("b"));
        let selector = labels(&[("app", "x"), ("version", "1")]);
        index.insert(&ns, &a, &selector);
        index.insert(&ns, &b, &Labels::new());
        let found = |index: &SelectorIndex, l: &Labels| -> Vec<String> {
            index.candidates("ns", l).map(ToString::to_string).collect()
        };
        assert_eq!(found(&index, &labels(&[("app", "x")])), ["b", "a"]);
        assert_eq!(found(&index, &labels(&[("app", "y")])), ["b"]);
        index.remove("ns", "a", &selector);
        index.remove("ns", "b", &Labels::new());
        assert!(index.namespaces.is_empty());
    }

    #[test]
    fn workloads_are_found_before_and_after_preparation() {
        let mut index = LabelIndex::default();
        let ns = Arc::from("ns");
        let all = [
            ("a", labels(&[("app", "x")])),
            ("b", labels(&[("app", "y")])),
            ("c", labels(&[])),
        ];
        for (name, l) in &all {
            index.replace(&ns, &Arc::from(*name), None, Some(l));
        }
        let selector = labels(&[("app", "x")]);
        let found = |index: &LabelIndex, s: &Labels| -> Vec<String> {
            index.candidates("ns", s).map(ToString::to_string).collect()
        };
        assert_eq!(found(&index, &selector), ["a", "b", "c"]);
        index.prepare("ns", &selector, |name| {
            all.iter().find(|(n, _)| *n == name).map(|(_, l)| l)
        });
        assert_eq!(found(&index, &selector), ["a"]);
        let (old, new) = (labels(&[("app", "y")]), labels(&[("app", "x")]));
        index.replace(&ns, &Arc::from("b"), Some(&old), Some(&new));
        index.replace(&ns, &Arc::from("a"), Some(&new), None);
        assert_eq!(found(&index, &selector), ["b"]);
        assert_eq!(found(&index, &Labels::new()), ["b", "c"]);
    }
}

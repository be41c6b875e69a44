//! The objects of one kind in one cluster: what a list or an event changes.
//!
//! Plain state: the table is told what the API server sent, and returns what that changes.

use std::collections::BTreeMap;

use model::{ConfigKey, Kind, NamespacedName, Object};

use super::reader::Read;
use crate::{intake::Change, report::Finding};

/// The known objects of a kind. They are shared with whoever took the changes; nothing is kept of an
/// object that is gone.
#[derive(Debug)]
pub(super) struct Table {
    kind: Kind,
    objects: BTreeMap<NamespacedName, Object>,
    /// What there is to say about objects; of most nothing.
    findings: BTreeMap<NamespacedName, Vec<Finding>>,
}

/// A list that is being read. It changes nothing before its end: a list that breaks off says nothing of
/// what it would have named.
#[derive(Default, Debug)]
pub(super) struct Listing {
    objects: BTreeMap<NamespacedName, Option<Object>>,
    findings: BTreeMap<NamespacedName, Vec<Finding>>,
}

impl Listing {
    /// Adds an object of the list.
    pub(super) fn add(&mut self, read: Read) {
        if !read.findings.is_empty() {
            self.findings.insert(read.name.clone(), read.findings);
        }
        self.objects.insert(read.name, read.object);
    }

    /// Takes an object out again: it went while the list was read.
    pub(super) fn remove(&mut self, name: &NamespacedName) {
        self.objects.remove(name);
        self.findings.remove(name);
    }
}

/// What a list or an event means.
#[derive(Default, Debug)]
pub(super) struct Outcome {
    /// What has changed: what is gone first, then what is new or different, by name.
    pub(super) changes: Vec<Change>,
    /// What there is to say that was not said before.
    pub(super) findings: Vec<Finding>,
}

impl Outcome {
    /// Puts what follows behind what is there.
    pub(super) fn extend(&mut self, next: Self) {
        self.changes.extend(next.changes);
        self.findings.extend(next.findings);
    }
}

impl Table {
    pub(super) fn new(kind: Kind) -> Self {
        Self {
            kind,
            objects: BTreeMap::new(),
            findings: BTreeMap::new(),
        }
    }

    /// Number of objects.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Number of objects with errors.
    pub(super) fn refused(&self) -> usize {
        let is_error = |f: &Finding| f.severity == crate::report::Severity::Error;
        self.findings
            .values()
            .filter(|findings| findings.iter().any(is_error))
            .count()
    }

    /// Takes a new or changed object. One that cannot be read leaves the version before in force.
    pub(super) fn apply(&mut self, read: Read) -> Outcome {
        let Read {
            name,
            object,
            findings,
            ..
        } = read;
        let findings = self.tell(&name, findings);
        let Some(object) = object else {
            return Outcome {
                changes: Vec::new(),
                findings,
            };
        };
        let known = self.objects.get(&name);
        let changes = if known.is_some_and(|known| same(known, &object)) {
            Vec::new()
        } else {
            self.objects.insert(name, object.clone());
            vec![Change::Apply(object)]
        };
        Outcome { changes, findings }
    }

    /// Takes an object out.
    pub(super) fn delete(&mut self, name: &NamespacedName) -> Outcome {
        self.findings.remove(name);
        let gone = self.objects.remove(name).map(|_| self.deletion(name));
        Outcome {
            changes: gone.into_iter().collect(),
            findings: Vec::new(),
        }
    }

    /// Takes a list that was read to its end: the table now holds what it names.
    pub(super) fn replace(&mut self, listing: Listing) -> Outcome {
        let mut outcome = Outcome::default();
        let gone: Vec<NamespacedName> = self
            .objects
            .keys()
            .filter(|name| !listing.objects.contains_key(*name))
            .cloned()
            .collect();
        for name in gone {
            outcome.extend(self.delete(&name));
        }
        self.findings
            .retain(|name, _| listing.objects.contains_key(name));
        let Listing {
            objects,
            mut findings,
        } = listing;
        for (name, object) in objects {
            let findings = findings.remove(&name).unwrap_or_default();
            outcome.extend(self.apply(Read {
                name,
                version: String::new(),
                object,
                findings,
            }));
        }
        outcome
    }

    fn deletion(&self, name: &NamespacedName) -> Change {
        Change::Delete(ConfigKey {
            kind: self.kind,
            namespace: name.namespace.clone(),
            name: name.name.clone(),
        })
    }

    /// Remembers what there is to say about an object; returns it if it was not said before.
    fn tell(&mut self, name: &NamespacedName, findings: Vec<Finding>) -> Vec<Finding> {
        if findings.is_empty() {
            self.findings.remove(name);
            return findings;
        }
        let known = self.findings.insert(name.clone(), findings.clone());
        if known.is_some_and(|known| known == findings) {
            return Vec::new();
        }
        findings
    }
}

/// Tells whether two versions of an object differ in nothing that anybody reads. A change of the
/// version alone is the work of somebody who wrote a part that is not read; it counts where statuses
/// are written, which name the version that they were decided by.
fn same(known: &Object, new: &Object) -> bool {
    let (a, b) = (known.meta(), new.meta());
    if known.kind().has_written_status() && a.resource_version != b.resource_version {
        return false;
    }
    a.uid == b.uid
        && a.generation == b.generation
        && a.created == b.created
        && a.deleting == b.deleting
        && a.generated_name == b.generated_name
        && a.controller == b.controller
        && a.labels == b.labels
        && a.annotations == b.annotations
        && known.same_spec(new)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::{
        super::{reader::Reader, resource::Resource},
        *,
    };

    fn read(name: &str, spec: &Value, version: u32) -> Read {
        let reader = Reader::new(&Resource::of(Kind::Service), "v1", "c".into());
        let metadata =
            json!({"name": name, "namespace": "a", "resourceVersion": version.to_string()});
        reader
            .read(json!({"metadata": metadata, "spec": spec}))
            .unwrap()
    }

    fn service(name: &str, port: u32, version: u32) -> Read {
        read(name, &json!({"ports": [{"port": port}]}), version)
    }

    fn broken(name: &str, version: u32) -> Read {
        read(name, &json!({"ports": "all"}), version)
    }

    fn listing(objects: impl IntoIterator<Item = Read>) -> Listing {
        let mut listing = Listing::default();
        objects.into_iter().for_each(|read| listing.add(read));
        listing
    }

    #[track_caller]
    fn check(outcome: &Outcome, expected: &[&str]) {
        let changes = outcome.changes.iter().map(|change| match change {
            Change::Apply(object) => format!("+{}", object.meta().name),
            Change::Delete(key) => format!("-{}", key.name),
            other => panic!("{other:?}"),
        });
        assert_eq!(changes.collect::<Vec<_>>(), expected);
    }

    #[test]
    fn lists_are_compared() {
        let mut table = Table::new(Kind::Service);
        let first = listing([service("x", 1, 1), service("y", 1, 1), service("z", 1, 1)]);
        check(&table.replace(first), &["+x", "+y", "+z"]);
        let second = listing([service("w", 1, 4), service("y", 1, 2), service("z", 2, 3)]);
        check(&table.replace(second), &["-x", "+w", "+z"]);
        check(&table.replace(Listing::default()), &["-w", "-y", "-z"]);
        assert_eq!((table.len(), table.findings.len()), (0, 0));
    }

    #[test]
    fn events_that_change_nothing_send_nothing() {
        let mut table = Table::new(Kind::Service);
        check(&table.apply(service("x", 1, 1)), &["+x"]);
        check(&table.apply(service("x", 1, 2)), &[]);
        check(&table.apply(service("x", 2, 3)), &["+x"]);
        check(&table.delete(&NamespacedName::new("a", "x")), &["-x"]);
        check(&table.delete(&NamespacedName::new("a", "x")), &[]);
    }

    #[test]
    fn what_cannot_be_read_leaves_the_version_before() {
        let mut table = Table::new(Kind::Service);
        check(&table.apply(service("x", 1, 1)), &["+x"]);
        let refused = table.apply(broken("x", 2));
        check(&refused, &[]);
        assert_eq!((refused.findings.len(), table.refused()), (1, 1));
        // It is said once.
        assert!(table.apply(broken("x", 3)).findings.is_empty());
        check(&table.replace(listing([broken("x", 3)])), &[]);
        check(&table.apply(service("x", 2, 4)), &["+x"]);
        assert_eq!(table.refused(), 0);
        check(&table.replace(listing([broken("y", 5)])), &["-x"]);
        check(&table.replace(Listing::default()), &[]);
        assert_eq!(table.refused(), 0);
    }
}

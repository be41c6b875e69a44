//! What was published when.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::{Duration, Instant},
};

use ledger::{History, Ledger, ShortXxh3, Stats};
use model::{ConfigKey, Kind, MeshState, Object, PushRequest, fingerprint};
use rayon::prelude::*;

use super::Key;

/// The number of a publication that is still on its way: nobody has it.
const UNDER_WAY: u64 = u64::MAX;

/// How many former contents of a key are remembered, so that who waits for an old one hears that it
/// was replaced.
const FORMER: usize = 8;

/// How many changes of deleted keys may gather before they are looked through.
const SLACK: usize = 10_000;

/// What was published when: the ledger of contents, and the last change of each key.
#[derive(Debug)]
pub(crate) struct Books {
    ledger: Ledger<Key, ShortXxh3>,
    /// The last change of the keys that have changed since the start.
    changes: BTreeMap<Key, Published>,
    /// Contents that keys had before, the newest last; a few of each.
    former: BTreeMap<Key, Vec<ShortXxh3>>,
    /// The keys of the publication that is on its way.
    under_way: Vec<Key>,
    /// What was looked at last.
    seen: MeshState,
    first: Instant,
    /// How long what is deleted is remembered.
    age: Duration,
}

/// The last change of one key.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Published {
    /// The number of the publication that has it.
    pub publication: u64,
    /// When the change arrived, if anybody looked.
    pub arrived: Option<Instant>,
    /// When it was published.
    pub at: Instant,
}

impl Books {
    /// Opens the books with a first state, which is publication 1.
    pub(crate) fn open(history: History, state: &MeshState, now: Instant) -> Self {
        let mut ledger = Ledger::new(history, now, Key::encode);
        let objects: Vec<Object> = state
            .objects
            .iter()
            .filter(|object| is_tracked(object.kind()))
            .collect();
        let mut entries: Vec<(Key, Option<ShortXxh3>)> = objects
            .par_iter()
            .map(|object| (Key::Config(object.key()), Some(hash(object))))
            .collect();
        entries.extend(state.endpoints.iter().map(|(key, endpoints)| {
            let hash = ShortXxh3::from_u64(endpoints.fingerprint);
            (Key::Endpoints(key.clone()), Some(hash))
        }));
        entries.push((Key::Mesh, Some(hash_of_mesh(state))));
        ledger.apply(now, entries);
        Self {
            ledger,
            changes: BTreeMap::new(),
            former: BTreeMap::new(),
            under_way: Vec::new(),
            seen: state.clone(),
            first: now,
            age: history.age,
        }
    }

    /// The root of the current state, as nonces carry it.
    pub(crate) fn root(&self) -> Arc<str> {
        self.ledger.root().to_string().into()
    }

    /// Notes what a publication is going to change, and returns the root of its state. Costs what has
    /// changed, unless the request asks to look at everything.
    pub(crate) fn begin(
        &mut self,
        state: &MeshState,
        request: &PushRequest,
        now: Instant,
    ) -> Arc<str> {
        let mut changes = Vec::new();
        let mut note = |ledger: &Ledger<Key, ShortXxh3>, key: Key, value: Option<ShortXxh3>| {
            if ledger.current().get(&key) != value {
                changes.push((key, value));
            }
        };
        let mut keys: BTreeSet<ConfigKey> = request.changed.clone();
        let mut services = request.endpoints.clone();
        if request.forced {
            keys.extend(differences(&self.seen, state));
            services.extend(
                state
                    .endpoints
                    .diff(&self.seen.endpoints)
                    .map(|item| match item {
                        imbl::ordmap::DiffItem::Add(key, _)
                        | imbl::ordmap::DiffItem::Remove(key, _)
                        | imbl::ordmap::DiffItem::Update { new: (key, _), .. } => key.clone(),
                    }),
            );
            note(&self.ledger, Key::Mesh, Some(hash_of_mesh(state)));
        }
        for key in keys.into_iter().filter(|key| is_tracked(key.kind)) {
            let value = state.objects.get(&key).map(|object| hash(&object));
            note(&self.ledger, Key::Config(key), value);
        }
        for key in services {
            let endpoints = state.endpoints.get(&key);
            let value = endpoints.map(|e| ShortXxh3::from_u64(e.fingerprint));
            note(&self.ledger, Key::Endpoints(key), value);
        }
        self.seen = state.clone();
        for (key, _) in &changes {
            let published = Published {
                publication: UNDER_WAY,
                arrived: request.started,
                at: now,
            };
            self.changes.insert(key.clone(), published);
            if let Some(old) = self.ledger.current().get(key) {
                let former = self.former.entry(key.clone()).or_default();
                former.push(old);
                if former.len() > FORMER {
                    former.remove(0);
                }
            }
            self.under_way.push(key.clone());
        }
        self.ledger.apply(now, changes);
        self.root()
    }

    /// Notes that what [`begin`](Self::begin) was told is out, as this publication. Returns the keys
    /// that changed.
    pub(crate) fn finish(&mut self, publication: u64, now: Instant) -> Vec<(Key, Published)> {
        let mut finished = Vec::new();
        for key in std::mem::take(&mut self.under_way) {
            if let Some(change) = self.changes.get_mut(&key) {
                change.publication = publication;
                change.at = now;
                finished.push((key, *change));
            }
        }
        if self.changes.len() > 2 * self.ledger.current().len() + SLACK {
            self.forget(now);
        }
        finished
    }

    /// Forgets what was deleted long ago.
    fn forget(&mut self, now: Instant) {
        let Self {
            ledger,
            changes,
            former,
            age,
            ..
        } = self;
        changes.retain(|key, change| {
            ledger.current().get(key).is_some() || now.saturating_duration_since(change.at) < *age
        });
        former.retain(|key, _| changes.contains_key(key));
    }

    /// The last change of a key; one that has not changed since the start is of publication 1.
    pub(crate) fn published(&self, key: &Key) -> Published {
        self.changes.get(key).copied().unwrap_or(Published {
            publication: 1,
            arrived: None,
            at: self.first,
        })
    }

    /// Tells whether a key had this content, not long ago.
    pub(crate) fn was(&self, key: &Key, hash: ShortXxh3) -> bool {
        self.former
            .get(key)
            .is_some_and(|former| former.contains(&hash))
    }

    /// Tells whether a key has changed, or gone, since the start.
    pub(crate) fn has_changed(&self, key: &Key) -> bool {
        self.changes.contains_key(key)
    }

    /// The content hash of a key in the current state.
    pub(crate) fn current(&self, key: &Key) -> Option<ShortXxh3> {
        self.ledger.current().get(key)
    }

    /// The content hash of a key in the state with `root`; `None` also when the root is none that is
    /// kept.
    pub(crate) fn at(&self, root: &str, key: &Key) -> Option<ShortXxh3> {
        self.ledger.get(&root.parse().ok()?, key).ok().flatten()
    }

    /// The keys on which the state with `root` and the current one differ; `None` when the root is
    /// none that is kept.
    pub(crate) fn changed_since(&self, root: &str) -> Option<Vec<Key>> {
        let differences = self.ledger.diff(&root.parse().ok()?, &self.ledger.root());
        Some(differences.ok()?.into_iter().map(|d| d.key).collect())
    }

    /// Proves to an outsider what the current state says of a key.
    pub(crate) fn prove(&self, key: &Key) -> Option<ledger::Proof<ShortXxh3>> {
        self.ledger.prove(&self.ledger.root(), key).ok()?
    }

    /// Numbers about the ledger.
    pub(crate) fn stats(&self) -> Stats {
        self.ledger.stats()
    }
}

/// The content hash of an object.
pub(super) fn hash(object: &Object) -> ShortXxh3 {
    ShortXxh3::from_u64(object.content_hash())
}

fn hash_of_mesh(state: &MeshState) -> ShortXxh3 {
    ShortXxh3::from_u64(fingerprint::of_json(&(&*state.mesh, &*state.networks)))
}

/// Tells whether objects of a kind are published as such. Of the others what is derived from them is:
/// endpoints of services.
pub(super) fn is_tracked(kind: Kind) -> bool {
    !matches!(
        kind,
        Kind::Namespace | Kind::Node | Kind::Pod | Kind::EndpointSlice
    )
}

/// The objects that differ between two states.
fn differences(old: &MeshState, new: &MeshState) -> BTreeSet<ConfigKey> {
    let kinds: BTreeSet<Kind> = new.objects.kinds_that_differ(&old.objects).collect();
    let of_kinds = |state: &MeshState| -> Vec<Object> {
        let objects = state.objects.iter();
        objects.filter(|o| kinds.contains(&o.kind())).collect()
    };
    let mut keys: BTreeSet<ConfigKey> = of_kinds(old).iter().map(Object::key).collect();
    for object in of_kinds(new) {
        let key = object.key();
        let same = old.objects.get(&key).is_some_and(|before| before == object);
        if same {
            keys.remove(&key);
        } else {
            keys.insert(key);
        }
    }
    keys
}

#[cfg(test)]
mod tests;

//! One `Arc` per class.

use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;

use super::{ClassKey, ProxyClass};

/// All class keys that somebody holds. Shared by successive snapshots.
#[derive(Default, Debug)]
pub(crate) struct Keys(Mutex<Table>);

#[derive(Default, Debug)]
struct Table {
    keys: FxHashMap<u64, Weak<ClassKey>>,
    /// How many entries there may be before those that nobody holds are dropped.
    sweep_at: usize,
}

impl Keys {
    /// Returns the one shared key that equals `key`.
    pub(crate) fn intern(&self, key: ClassKey) -> Arc<ClassKey> {
        let mut table = self.0.lock();
        if let Some(shared) = table.keys.get(&key.fingerprint).and_then(Weak::upgrade) {
            return shared;
        }
        if table.keys.len() >= table.sweep_at {
            table.keys.retain(|_, key| key.strong_count() > 0);
            table.sweep_at = 2 * table.keys.len() + 16;
        }
        let key = Arc::new(key);
        table.keys.insert(key.fingerprint, Arc::downgrade(&key));
        key
    }
}

/// The classes of one snapshot that were asked for, each resolved once.
#[derive(Default, Debug)]
pub(crate) struct Classes {
    cells: Arc<Cells>,
    /// Those of the snapshot before; one that comes out the same is taken.
    earlier: Option<Arc<Cells>>,
}

type Cells = Mutex<FxHashMap<u64, Arc<OnceLock<Arc<ProxyClass>>>>>;

impl Classes {
    /// Starts the classes of the next snapshot.
    pub(crate) fn succeed(&self) -> Self {
        Self {
            cells: Arc::default(),
            earlier: Some(self.cells.clone()),
        }
    }

    /// Resolves outside of the lock, so that one slow class does not hold up the others.
    pub(crate) fn get(
        &self,
        key: &ClassKey,
        resolve: impl FnOnce() -> ProxyClass,
    ) -> Arc<ProxyClass> {
        let cell = self
            .cells
            .lock()
            .entry(key.fingerprint)
            .or_default()
            .clone();
        cell.get_or_init(|| {
            let class = resolve();
            let earlier = self.earlier.as_ref().and_then(|cells| {
                let cell = cells.lock().get(&key.fingerprint)?.clone();
                cell.get()
                    .filter(|earlier| earlier.is_same(&class))
                    .cloned()
            });
            earlier.unwrap_or_else(|| Arc::new(class))
        })
        .clone()
    }
}

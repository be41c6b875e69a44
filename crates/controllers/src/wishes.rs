//! What several parts of the control plane want to have written, as one list for the leader.

use std::{collections::BTreeMap, sync::Arc};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::writer::Wanted;

/// Collects what is wanted, by who wants it. Clones share one list.
#[derive(Clone, Debug)]
pub struct Wishes {
    of: Arc<Mutex<BTreeMap<&'static str, Vec<Wanted>>>>,
    all: watch::Sender<Vec<Wanted>>,
}

impl Wishes {
    /// Makes an empty list, with what the leader follows ([`crate::leader::Inputs::wanted`]).
    pub fn new() -> (Self, watch::Receiver<Vec<Wanted>>) {
        let (all, followed) = watch::channel(Vec::new());
        let of = Arc::default();
        (Self { of, all }, followed)
    }

    /// Replaces all that one part (`who`) wants. No two parts may want something of one target.
    pub fn set(&self, who: &'static str, wanted: Vec<Wanted>) {
        let mut of = self.of.lock();
        let known = of.entry(who).or_default();
        if *known == wanted {
            return;
        }
        *known = wanted;
        self.all
            .send_replace(of.values().flatten().cloned().collect());
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{
        leader::SERVICE_ENTRY,
        writer::{Part, Target},
    };

    fn wanted(name: &str) -> Wanted {
        Wanted {
            target: Target {
                resource: SERVICE_ENTRY,
                part: Part::Status,
                namespace: "shop".to_owned(),
                name: name.to_owned(),
            },
            fields: json!({"status": {}}),
            seen: None,
            strict: false,
        }
    }

    #[test]
    fn each_replaces_its_own_wishes_alone_and_nobody_hears_of_equal_ones() {
        let (wishes, mut followed) = Wishes::new();
        wishes.set("routes", vec![wanted("a"), wanted("b")]);
        wishes.set("filters", vec![wanted("c")]);
        assert_eq!(
            *followed.borrow_and_update(),
            [wanted("c"), wanted("a"), wanted("b")]
        );
        wishes.set("filters", vec![wanted("c")]);
        assert!(!followed.has_changed().unwrap());
        wishes.set("routes", Vec::new());
        assert_eq!(*followed.borrow_and_update(), [wanted("c")]);
    }
}

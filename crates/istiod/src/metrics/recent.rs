//! The last publications: why, what they cost, and what was sent for them.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use model::PushRequest;
use parking_lot::Mutex;

/// How many are kept.
const KEPT: usize = 20;

/// How many of the changes are named.
const NAMED: usize = 5;

/// One publication.
#[derive(Clone, Debug)]
pub(crate) struct Publication {
    root: Arc<str>,
    /// When it was published.
    pub at: Instant,
    /// Why.
    pub reasons: Vec<&'static str>,
    /// Some of what changed.
    pub named: Vec<String>,
    /// How much changed.
    pub changes: usize,
    /// Events that were merged.
    pub events: u64,
    /// Time to build the snapshot.
    pub built: Duration,
    /// Responses that were sent for it, of all types; not those that answer requests.
    pub responses: u64,
    /// The sum of the sizes of the resources in them.
    pub bytes: u64,
}

/// The last publications. Cheap to clone; all clones are one.
#[derive(Clone, Default, Debug)]
pub(crate) struct Recent(Arc<Mutex<VecDeque<Publication>>>);

impl Recent {
    /// Hears that a state is about to be published.
    pub(crate) fn begin(
        &self,
        root: Arc<str>,
        request: &PushRequest,
        (events, built): (u64, Duration),
        at: Instant,
    ) {
        let configs = request.changed.iter().map(ToString::to_string);
        let endpoints = request.endpoints.iter();
        let endpoints = endpoints.map(|service| format!("endpoints of {service}"));
        let publication = Publication {
            root,
            at,
            reasons: request.reasons.keys().map(|r| r.as_str()).collect(),
            named: configs.chain(endpoints).take(NAMED).collect(),
            changes: request.changed.len() + request.endpoints.len(),
            events,
            built,
            responses: 0,
            bytes: 0,
        };
        let mut kept = self.0.lock();
        if kept.len() == KEPT {
            kept.pop_back();
        }
        kept.push_front(publication);
    }

    /// Hears that a response was pushed, of the state with this root.
    pub(crate) fn pushed(&self, root: &str, bytes: usize) {
        let mut kept = self.0.lock();
        if let Some(publication) = kept.iter_mut().find(|kept| *kept.root == *root) {
            publication.responses += 1;
            publication.bytes += bytes as u64;
        }
    }

    /// The publications, the newest first.
    pub(crate) fn list(&self) -> Vec<Publication> {
        self.0.lock().iter().cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use model::{ConfigKey, Kind};

    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any moment does")]
    fn begin(recent: &Recent, root: &str) {
        let now = Instant::now();
        let key = ConfigKey::new(Kind::VirtualService, "shop", root);
        let request = PushRequest::config(key, now);
        recent.begin(root.into(), &request, (3, Duration::ZERO), now);
    }

    #[test]
    fn what_is_pushed_counts_for_the_newest_publication_of_its_root() {
        let recent = Recent::default();
        for root in ["a", "b", "a"] {
            begin(&recent, root);
        }
        recent.pushed("a", 10);
        recent.pushed("a", 5);
        recent.pushed("b", 1);
        recent.pushed("unknown", 7);
        let list = recent.list();
        let sums: Vec<_> = list.iter().map(|p| (p.responses, p.bytes)).collect();
        assert_eq!(sums, [(2, 15), (1, 1), (0, 0)]);
        assert_eq!(list[1].named, ["VirtualService/shop/b"]);
        assert_eq!((list[1].changes, list[1].events), (1, 3));
    }

    #[test]
    fn the_oldest_goes() {
        let recent = Recent::default();
        for number in 0..=KEPT {
            begin(&recent, &number.to_string());
        }
        let list = recent.list();
        assert_eq!(list.len(), KEPT);
        assert_eq!(list.last().map(|p| &*p.root), Some("1"));
    }
}

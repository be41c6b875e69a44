//! Host names of network gateways to addresses (service-registry §16.3), outside of the event path.
//!
//! [`Names`] decides what is looked up when, and what an answer changes; it does no I/O. [`resolve`]
//! asks the system's resolver. An answer arrives in the intake as a [`Change`] like any other, so nobody
//! waits for a lookup.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time,
};

use crate::intake::Change;

/// Time between two lookups of a name. The system's resolver does not tell how long an answer holds;
/// this is within the 30 s to 1 h that Istio allows.
pub const REFRESH: Duration = Duration::from_mins(1);

/// Longest time that one lookup may take.
const LOOKUP_TIMEOUT: Duration = Duration::from_secs(5);

/// Names in use, when each is due, and its last answer.
#[derive(Default, Debug)]
pub struct Names {
    names: BTreeMap<Arc<str>, State>,
}

#[derive(Debug)]
struct State {
    due: Instant,
    answer: Vec<Arc<str>>,
}

impl Names {
    /// Takes over the set of names in use: new ones are due now, the others are forgotten.
    pub fn set(&mut self, names: &BTreeSet<Arc<str>>, now: Instant) {
        self.names.retain(|name, _| names.contains(name));
        for name in names {
            let state = || State {
                due: now,
                answer: Vec::new(),
            };
            self.names.entry(name.clone()).or_insert_with(state);
        }
    }

    /// Takes the names that are due; each is due again after [`REFRESH`].
    pub fn take_due(&mut self, now: Instant) -> Vec<Arc<str>> {
        let due = self.names.iter_mut().filter(|(_, state)| state.due <= now);
        due.map(|(name, state)| {
            state.due = now + REFRESH;
            name.clone()
        })
        .collect()
    }

    /// When the next name is due; `None` when there are none.
    pub fn next_due(&self) -> Option<Instant> {
        self.names.values().map(|state| state.due).min()
    }

    /// Takes an answer; returns the change that it makes. A failed lookup changes nothing: the last
    /// answer stays. So does one without addresses.
    pub fn answer(&mut self, name: &Arc<str>, answer: Option<Vec<IpAddr>>) -> Option<Change> {
        let addresses: BTreeSet<IpAddr> = answer?.into_iter().collect();
        let addresses: Vec<Arc<str>> = addresses
            .into_iter()
            .map(|a| a.to_string().into())
            .collect();
        let state = self.names.get_mut(name)?;
        if addresses.is_empty() || state.answer == addresses {
            return None;
        }
        state.answer.clone_from(&addresses);
        Some(Change::Resolved {
            name: name.clone(),
            addresses,
        })
    }
}

/// Looks names up as long as somebody takes the changes. `names` says which ones are in use (see
/// [`crate::Intake::names_to_resolve`]).
pub async fn resolve(
    mut names: watch::Receiver<BTreeSet<Arc<str>>>,
    changes: mpsc::Sender<Vec<Change>>,
) {
    let mut state = Names::default();
    let mut lookups: JoinSet<(Arc<str>, Option<Vec<IpAddr>>)> = JoinSet::new();
    state.set(&names.borrow_and_update(), now());
    loop {
        for name in state.take_due(now()) {
            lookups.spawn(async move {
                let answer = time::timeout(LOOKUP_TIMEOUT, look_up(&name)).await;
                (name, answer.unwrap_or_default())
            });
        }
        let sleep = async {
            match state.next_due() {
                Some(due) => time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = names.changed() => {
                if changed.is_err() {
                    return;
                }
                state.set(&names.borrow_and_update(), now());
            }
            Some(done) = lookups.join_next() => {
                let Ok((name, answer)) = done else { continue };
                if answer.is_none() {
                    tracing::warn!(%name, "network gateway cannot be resolved");
                }
                if let Some(change) = state.answer(&name, answer)
                    && changes.send(vec![change]).await.is_err()
                {
                    return;
                }
            }
            () = changes.closed() => return,
            () = sleep => {}
        }
    }
}

/// Asks the system's resolver for all addresses of a name; search domains do not count.
async fn look_up(name: &str) -> Option<Vec<IpAddr>> {
    let absolute = format!("{}.", name.trim_end_matches('.'));
    let found = tokio::net::lookup_host((absolute, 0)).await.ok()?;
    Some(found.map(|address| address.ip()).collect())
}

fn now() -> Instant {
    time::Instant::now().into_std()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(names: &[&str]) -> BTreeSet<Arc<str>> {
        names.iter().map(|n| Arc::from(*n)).collect()
    }

    fn addresses(texts: &[&str]) -> Vec<IpAddr> {
        texts.iter().map(|t| t.parse().unwrap()).collect()
    }

    #[track_caller]
    fn check(change: Option<Change>, expected: Option<&[&str]>) {
        let found = change.map(|c| match c {
            Change::Resolved { addresses, .. } => addresses,
            other => panic!("{other:?}"),
        });
        let expected = expected.map(|e| e.iter().map(|a| Arc::from(*a)).collect::<Vec<Arc<str>>>());
        assert_eq!(found, expected);
    }

    #[test]
    fn names_are_looked_up_when_new_and_when_due() {
        let start = now();
        let mut names = Names::default();
        names.set(&set(&["a", "b"]), start);
        assert_eq!(names.take_due(start), [Arc::from("a"), Arc::from("b")]);
        assert_eq!(names.take_due(start), []);
        let later = start + Duration::from_secs(1);
        names.set(&set(&["b", "c"]), later);
        assert_eq!(names.take_due(later), [Arc::from("c")]);
        assert_eq!(names.next_due(), Some(start + REFRESH));
        assert_eq!(names.take_due(start + REFRESH), [Arc::from("b")]);
    }

    #[test]
    fn failures_keep_the_last_answer() {
        let mut names = Names::default();
        names.set(&set(&["a"]), now());
        let a = Arc::from("a");
        check(
            names.answer(&a, Some(addresses(&["2.2.2.2", "1.1.1.1"]))),
            Some(&["1.1.1.1", "2.2.2.2"]),
        );
        check(
            names.answer(&a, Some(addresses(&["1.1.1.1", "2.2.2.2"]))),
            None,
        );
        check(names.answer(&a, None), None);
        check(names.answer(&a, Some(addresses(&[]))), None);
        check(names.answer(&a, Some(addresses(&["::1"]))), Some(&["::1"]));
        check(
            names.answer(&Arc::from("gone"), Some(addresses(&["1.1.1.1"]))),
            None,
        );
    }
}

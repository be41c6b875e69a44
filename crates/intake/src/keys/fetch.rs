//! When keys are fetched, and what an answer changes.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::Arc,
    time::{Duration, Instant},
};

use serde_json::Value;
use tokio::{
    sync::{mpsc, watch},
    task::JoinSet,
    time,
};

use super::{KeySource, KeySources};
use crate::intake::Change;

/// How often a fetch that fails is tried again at once, and after how long.
const RETRIES: u32 = 7;
const RETRY: Duration = Duration::from_secs(1);
/// After that: how long until the next try; the time doubles up to the maximum.
const FIRST_PAUSE: Duration = Duration::from_mins(1);
const LONGEST_PAUSE: Duration = Duration::from_hours(1);
/// How long keys are trusted that cannot be fetched again.
const TRUST: Duration = Duration::from_hours(7 * 24);
/// How many fetches run at once: enough that a few issuers that do not answer delay nobody.
const AT_ONCE: usize = 16;

/// Sources in use, when each is due, and its last keys.
#[derive(Debug)]
pub struct Fetches {
    /// Time between two fetches of a source that answers.
    refresh: Duration,
    sources: BTreeMap<KeySource, State>,
}

#[derive(Debug)]
struct State {
    /// `None` while a fetch is under way.
    due: Option<Instant>,
    timeout: Duration,
    /// Fetches in a row that failed.
    failures: u32,
    keys: Option<Known>,
}

#[derive(Debug)]
struct Known {
    keys: Arc<str>,
    fetched: Instant,
}

impl Fetches {
    /// Makes one without sources. A source that answers is fetched again after `refresh`.
    pub fn new(refresh: Duration) -> Self {
        Self {
            refresh,
            sources: BTreeMap::new(),
        }
    }

    /// Takes over the sources in use: new ones are due now, the others are forgotten.
    pub fn set(&mut self, sources: &KeySources, now: Instant) {
        self.sources
            .retain(|source, _| sources.contains_key(source));
        for (source, timeout) in sources {
            let state = self.sources.entry(source.clone()).or_insert(State {
                due: Some(now),
                timeout: *timeout,
                failures: 0,
                keys: None,
            });
            state.timeout = *timeout;
        }
    }

    /// Takes at most `most` sources that are due, and how long each fetch may take.
    pub fn take_due(&mut self, now: Instant, most: usize) -> Vec<(KeySource, Duration)> {
        let mut due: Vec<_> = self
            .sources
            .iter_mut()
            .filter_map(|(source, state)| {
                Some((state.due.filter(|due| *due <= now)?, source, state))
            })
            .collect();
        due.sort_by_key(|(due, _, _)| *due);
        due.into_iter()
            .take(most)
            .map(|(_, source, state)| {
                state.due = None;
                (source.clone(), state.timeout)
            })
            .collect()
    }

    /// When the next source is due; `None` while none waits.
    pub fn next_due(&self) -> Option<Instant> {
        self.sources.values().filter_map(|state| state.due).min()
    }

    /// Takes an answer; returns the change that it makes. After a failure the last keys stay, for a
    /// week.
    pub fn answer(
        &mut self,
        source: &KeySource,
        answer: Option<Arc<str>>,
        now: Instant,
    ) -> Option<Change> {
        let state = self.sources.get_mut(source)?;
        let change = |keys| Change::Keys {
            source: source.clone(),
            keys,
        };
        let Some(keys) = answer else {
            state.due = Some(now + pause(state.failures));
            state.failures = state.failures.saturating_add(1);
            let stale = state.keys.take_if(|known| now - known.fetched >= TRUST);
            return stale.map(|_| change(None));
        };
        state.failures = 0;
        state.due = Some(now + self.refresh);
        let known = state.keys.as_ref().map(|known| &known.keys);
        let same = known.is_some_and(|known| same_keys(known, &keys));
        // Keys in another order are the same keys: the text that is in use stays.
        let kept = known.filter(|_| same).cloned().unwrap_or(keys);
        state.keys = Some(Known {
            keys: kept.clone(),
            fetched: now,
        });
        (!same).then(|| change(Some(kept)))
    }
}

/// How long to wait after a fetch failed that followed so many failures.
fn pause(failures: u32) -> Duration {
    if failures < RETRIES {
        return RETRY;
    }
    let doublings = (failures - RETRIES).min(16);
    (FIRST_PAUSE * 2_u32.pow(doublings)).min(LONGEST_PAUSE)
}

/// Compares key sets, whatever the order of their keys.
fn same_keys(a: &str, b: &str) -> bool {
    a == b || matches!((sorted(a), sorted(b)), (Some(a), Some(b)) if a == b)
}

/// The key set with its keys in the order of their ids.
fn sorted(text: &str) -> Option<Value> {
    let mut set: Value = serde_json::from_str(text).ok()?;
    let keys = set.get_mut("keys")?.as_array_mut()?;
    keys.sort_by(|a, b| a["kid"].as_str().cmp(&b["kid"].as_str()));
    Some(set)
}

/// Fetches keys as long as somebody takes the changes. `sources` says which are in use (see
/// [`crate::Intake::keys_to_fetch`]); `fetch` gets a JSON Web Key Set, or says why not, and is given
/// up after the source's timeout.
pub async fn follow<F>(
    mut sources: watch::Receiver<Arc<KeySources>>,
    changes: mpsc::Sender<Vec<Change>>,
    refresh: Duration,
    fetch: impl Fn(KeySource) -> F,
) where
    F: Future<Output = Result<Arc<str>, String>> + Send + 'static,
{
    let mut state = Fetches::new(refresh);
    let mut running: JoinSet<(KeySource, Result<Arc<str>, String>)> = JoinSet::new();
    state.set(&sources.borrow_and_update(), now());
    loop {
        for (source, timeout) in state.take_due(now(), AT_ONCE - running.len()) {
            let fetching = fetch(source.clone());
            running.spawn(async move {
                let answer = time::timeout(timeout, fetching).await;
                let late = |_| Err(format!("no answer within {timeout:?}"));
                (source, answer.unwrap_or_else(late))
            });
        }
        let due = state.next_due().filter(|_| running.len() < AT_ONCE);
        let sleep = async {
            match due {
                Some(due) => time::sleep_until(due.into()).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            changed = sources.changed() => {
                if changed.is_err() {
                    return;
                }
                state.set(&sources.borrow_and_update(), now());
            }
            Some(done) = running.join_next() => {
                let Ok((source, answer)) = done else { continue };
                if let Err(reason) = &answer {
                    tracing::warn!(%source, reason, "keys cannot be fetched");
                }
                if let Some(change) = state.answer(&source, answer.ok(), now())
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

fn now() -> Instant {
    time::Instant::now().into_std()
}

//! How long changes take to reach everybody, and how many of them are accepted.
//!
//! Changes that not everybody has answered are looked at again and again, less and less often. When
//! the last client has answered, the time of its answer counts, not the time of the look.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use xds::Tally;

use super::{
    Distribution, Key,
    answer::{KindAnswer, PendingAnswer},
    ask,
    books::Published,
    matter,
    merge::success,
};

/// Changes that are looked at at once. More come with whole meshes only; those beyond it, the oldest
/// first, are not measured.
const TRACKED: usize = 2000;

/// How long a change is looked at. Somebody that has not answered by then is not going to.
const PATIENCE: Duration = Duration::from_mins(10);

/// Time between two looks, at first and at most.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_millis(500);

/// Pending changes that an overview lists.
const LISTED: usize = 50;

/// The changes that not everybody has answered, and what became of the others.
#[derive(Default, Debug)]
pub(super) struct Tracker {
    open: BTreeMap<Key, Open>,
    kinds: BTreeMap<&'static str, Sum>,
}

#[derive(Clone, Copy, Debug)]
struct Open {
    published: Published,
    /// What the last look found.
    tally: Tally,
}

#[derive(Clone, Copy, Default, Debug)]
struct Sum {
    changes: u64,
    accepted: u64,
    refused: u64,
    seconds: f64,
    longest: f64,
}

/// What became of one change.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Outcome {
    /// Its kind.
    pub kind: &'static str,
    /// From its arrival to the last answer; `None` when nobody had to answer.
    pub took: Option<Duration>,
    /// How many accepted it.
    pub accepted: usize,
    /// How many rejected it.
    pub refused: usize,
}

impl Tracker {
    /// Takes in a change. An older one of the same key is no longer looked at.
    pub(super) fn add(&mut self, key: Key, published: Published) {
        let tally = Tally::default();
        self.open.insert(key, Open { published, tally });
        while self.open.len() > TRACKED {
            let oldest = self.open.iter().min_by_key(|(_, open)| open.published.at);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else {
                break;
            };
            self.open.remove(&oldest);
        }
    }

    /// The changes to look at.
    pub(super) fn open(&self) -> Vec<(Key, Published)> {
        let open = self.open.iter();
        open.map(|(key, open)| (key.clone(), open.published))
            .collect()
    }

    /// Takes in what a look found of a change; returns what became of it when it is done.
    pub(super) fn found(
        &mut self,
        key: &Key,
        published: Published,
        tally: Tally,
        now: Instant,
    ) -> Option<Outcome> {
        let open = self.open.get_mut(key)?;
        if open.published != published {
            // It changed again meanwhile.
            return None;
        }
        open.tally = tally;
        let age = now.saturating_duration_since(published.at);
        if !tally.is_complete() && age < PATIENCE {
            return None;
        }
        self.open.remove(key);
        let arrived = published.arrived.unwrap_or(published.at);
        let last = tally.last.filter(|last| *last >= published.at);
        let took = (tally.required() > 0 && tally.is_complete()).then(|| {
            last.unwrap_or(published.at)
                .saturating_duration_since(arrived)
        });
        let sum = self.kinds.entry(key.kind()).or_default();
        sum.changes += 1;
        sum.accepted += tally.has as u64;
        sum.refused += tally.refused as u64;
        if let Some(took) = took {
            sum.seconds += took.as_secs_f64();
            sum.longest = sum.longest.max(took.as_secs_f64());
        }
        Some(Outcome {
            kind: key.kind(),
            took,
            accepted: tally.has,
            refused: tally.refused,
        })
    }

    /// The age of the oldest change that somebody has yet to answer; zero when there is none.
    pub(super) fn oldest(&self, now: Instant) -> Duration {
        let waiting = self.open.values().filter(|open| !open.tally.is_complete());
        let ages = waiting.map(|open| now.saturating_duration_since(open.published.at));
        ages.max().unwrap_or_default()
    }

    /// What became of the changes, by kind.
    pub(super) fn kinds(&self) -> Vec<KindAnswer> {
        let kinds = self.kinds.iter();
        kinds
            .map(|(kind, sum)| KindAnswer {
                kind: (*kind).to_owned(),
                changes: sum.changes,
                accepted: sum.accepted,
                refused: sum.refused,
                success: success(sum.accepted, sum.refused),
                #[expect(clippy::cast_precision_loss, reason = "counts are far below 2^52")]
                mean_seconds: sum.seconds / sum.changes.max(1) as f64,
                max_seconds: sum.longest,
            })
            .collect()
    }

    /// The changes that somebody has yet to answer, the oldest first; a limited number.
    pub(super) fn pending(&self, replica: &str, now: Instant) -> Vec<PendingAnswer> {
        let mut waiting: Vec<_> = self
            .open
            .iter()
            .filter(|(_, open)| !open.tally.is_complete())
            .collect();
        waiting.sort_by_key(|(_, open)| open.published.at);
        waiting.truncate(LISTED);
        let answer = |(key, open): (&Key, &Open)| PendingAnswer {
            config: ask::name_of(key),
            seconds: now
                .saturating_duration_since(open.published.at)
                .as_secs_f64(),
            pending: open.tally.pending + open.tally.undecided,
            replica: replica.to_owned(),
        };
        waiting.into_iter().map(answer).collect()
    }
}

impl Distribution {
    /// Takes in what was published.
    pub(crate) fn published(&self, finished: Vec<(Key, Published)>) {
        if finished.is_empty() {
            return;
        }
        if let Some(changed) = &mut *self.0.changed.lock() {
            changed.extend(finished.iter().map(|(key, _)| key.clone()));
            // Another replica writes, or one that leads is not listening.
            while changed.len() > TRACKED {
                changed.pop_first();
            }
        }
        let mut tracker = self.0.tracker.lock();
        for (key, published) in finished {
            tracker.add(key, published);
        }
        drop(tracker);
        self.0.published.notify_one();
    }

    /// Looks at what is open, for ever.
    pub(crate) async fn track(self) {
        loop {
            self.0.published.notified().await;
            let mut pause = SHORTEST;
            loop {
                tokio::time::sleep(pause).await;
                let this = self.clone();
                let (done, left) = tokio::sync::oneshot::channel();
                rayon::spawn(move || {
                    // Nobody waits any more when the process stops.
                    done.send(this.look()).ok();
                });
                match left.await {
                    Ok(0) | Err(_) => break,
                    Ok(_) => pause = (pause * 2).min(LONGEST),
                }
            }
        }
    }

    /// Looks once; returns how many changes are still open.
    #[expect(clippy::disallowed_methods, reason = "it looks at what is so now")]
    fn look(&self) -> usize {
        let open = self.0.tracker.lock().open();
        if open.is_empty() {
            return 0;
        }
        let survey = self.0.server.survey();
        let (arrived, snapshot) = (self.0.latest.lock().clone(), self.0.snapshots.snapshot());
        let mut outcomes = Vec::new();
        for (key, published) in open {
            let matter = matter::of(&key, &snapshot, &arrived);
            let tally = matter.ask(&snapshot, published.publication, |question| {
                survey.tally(question)
            });
            let mut tracker = self.0.tracker.lock();
            outcomes.extend(tracker.found(&key, published, tally, Instant::now()));
        }
        let metrics = &self.0.metrics.distribution;
        for outcome in outcomes {
            metrics.done(
                outcome.kind,
                outcome.took,
                outcome.accepted,
                outcome.refused,
            );
        }
        self.0.tracker.lock().open.len()
    }

    /// Brings the metrics of what is open up to date.
    pub(crate) fn collect(&self) {
        let mut refused = 0;
        self.0.server.summary(
            |_, held_back| refused += usize::from(held_back.refusal.is_some()),
            |_, _| {},
        );
        let tracker = self.0.tracker.lock();
        let waiting = tracker
            .open
            .values()
            .filter(|open| !open.tally.is_complete());
        let now = tokio::time::Instant::now().into_std();
        let metrics = &self.0.metrics.distribution;
        metrics.open(waiting.count(), refused, tracker.oldest(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[expect(clippy::disallowed_methods, reason = "any moment does")]
    fn start() -> Instant {
        Instant::now()
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    fn key(name: &str) -> Key {
        Key::new("VirtualService", "ns", name).unwrap()
    }

    fn published(publication: u64, at: Instant) -> Published {
        Published {
            publication,
            arrived: Some(at),
            at: at + ms(100),
        }
    }

    fn tally(has: usize, pending: usize, refused: usize, last: Option<Instant>) -> Tally {
        let mut tally = Tally::default();
        (tally.has, tally.pending, tally.refused, tally.last) = (has, pending, refused, last);
        tally
    }

    #[test]
    fn the_time_of_the_last_answer_counts() {
        let begun = start();
        let mut tracker = Tracker::default();
        let change = published(2, begun);
        tracker.add(key("a"), change);
        let waiting = tally(1, 1, 0, Some(begun + ms(120)));
        assert_eq!(
            tracker.found(&key("a"), change, waiting, begun + ms(200)),
            None
        );
        assert_eq!(tracker.oldest(begun + ms(300)), ms(200));
        let done = tally(1, 0, 1, Some(begun + ms(250)));
        let outcome = tracker.found(&key("a"), change, done, begun + ms(900));
        let expected = Outcome {
            kind: "VirtualService",
            took: Some(ms(250)),
            accepted: 1,
            refused: 1,
        };
        assert_eq!(outcome, Some(expected));
        assert_eq!(tracker.oldest(begun + ms(900)), Duration::ZERO);
        let kinds = tracker.kinds();
        assert_eq!((kinds[0].changes, kinds[0].success), (1, 0.5));
    }

    #[test]
    fn a_newer_change_takes_the_place_of_an_older_one() {
        let begun = start();
        let mut tracker = Tracker::default();
        let (first, second) = (published(2, begun), published(3, begun + ms(50)));
        tracker.add(key("a"), first);
        tracker.add(key("a"), second);
        let done = tally(1, 0, 0, Some(begun + ms(200)));
        assert_eq!(tracker.found(&key("a"), first, done, begun + ms(200)), None);
        assert!(
            tracker
                .found(&key("a"), second, done, begun + ms(200))
                .is_some()
        );
    }

    #[test]
    fn what_matters_to_nobody_takes_no_time() {
        let begun = start();
        let mut tracker = Tracker::default();
        let change = published(2, begun);
        tracker.add(key("a"), change);
        let outcome = tracker.found(&key("a"), change, Tally::default(), begun + ms(200));
        assert_eq!(outcome.and_then(|outcome| outcome.took), None);
    }

    #[test]
    fn patience_and_room_are_limited() {
        let begun = start();
        let mut tracker = Tracker::default();
        let change = published(2, begun);
        tracker.add(key("a"), change);
        let waiting = tally(0, 1, 0, None);
        let late = change.at + PATIENCE;
        let outcome = tracker.found(&key("a"), change, waiting, late);
        assert_eq!(outcome.map(|outcome| outcome.took), Some(None));
        for number in 0..=TRACKED {
            let at = begun + ms(number as u64);
            tracker.add(key(&format!("b{number}")), published(3, at));
        }
        let open = tracker.open();
        assert_eq!(open.len(), TRACKED);
        assert!(
            open.iter().all(|(open, _)| *open != key("b0")),
            "the oldest goes"
        );
    }
}

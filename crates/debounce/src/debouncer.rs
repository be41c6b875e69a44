//! The state machine.

use std::time::{Duration, Instant};

use crate::{MIN_QUIET, Merge, Options};

/// Coalesces events `E` into batches; `now` comes in, actions go out.
///
/// The owner calls [`on_event`](Self::on_event) for each event, [`on_timer`](Self::on_timer) when
/// [`deadline`](Self::deadline) has come, and [`on_finished`](Self::on_finished) when the consumer is
/// done with a batch. A batch is handed out only when no other is being consumed.
#[derive(Debug)]
pub struct Debouncer<E> {
    options: Options<E>,
    state: State<E>,
    /// Batches delivered so far.
    sequence: u64,
    /// Smoothed cost of consuming a batch; `None` before the first one is finished.
    cost: Option<Duration>,
}

/// Idle → Waiting (event) → Busy (quiet or maximum reached) → Idle or Waiting or Busy (finished).
#[derive(Debug)]
enum State<E> {
    /// Nothing pending, nobody working.
    Idle,
    /// Events gather; the deadline runs.
    Waiting(Pending<E>),
    /// The consumer works on a batch since the given time; events gather without a deadline.
    Busy {
        since: Instant,
        gathered: Option<Pending<E>>,
    },
}

/// The batch that is gathering.
#[derive(Debug)]
struct Pending<E> {
    event: E,
    events: u64,
    first: Instant,
    last: Instant,
}

/// How a batch came about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lane {
    /// Debounced: never delivered while another debounced batch is being consumed.
    Debounced,
    /// One event that [`Options::bypass`] picked; not serialised with anything.
    Bypass,
}

/// One merged event, ready to be consumed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch<E> {
    /// The merged event.
    pub event: E,
    /// How many events were merged, at least 1.
    pub events: u64,
    /// When the first of them arrived.
    pub first: Instant,
    /// When the last of them arrived.
    pub last: Instant,
    /// When the batch was handed out.
    pub delivered: Instant,
    /// Counts debounced batches from 1; for [`Lane::Bypass`] the number of the last debounced one.
    pub sequence: u64,
    /// How the batch came about.
    pub lane: Lane,
}

impl<E> Batch<E> {
    /// Time between the last event and the delivery.
    pub fn quiet(&self) -> Duration {
        self.delivered.saturating_duration_since(self.last)
    }

    /// Time between the first event and the delivery.
    pub fn delay(&self) -> Duration {
        self.delivered.saturating_duration_since(self.first)
    }
}

impl<E: Merge> Debouncer<E> {
    /// Makes an idle debouncer.
    pub fn new(options: Options<E>) -> Self {
        Self {
            options,
            state: State::Idle,
            sequence: 0,
            cost: None,
        }
    }

    /// Replaces the options; events already gathered are judged by the new ones.
    pub fn set_options(&mut self, options: Options<E>) {
        self.options = options;
    }

    /// Takes in `event`, which arrived at `now`.
    ///
    /// Delivers at once if the event bypasses ([`Lane::Bypass`]), if the quiet time is zero, or if a
    /// late timer let the batch outlast its maximum; otherwise the batch comes at
    /// [`deadline`](Self::deadline). After a batch of [`Lane::Debounced`] the debouncer is busy until
    /// [`on_finished`](Self::on_finished).
    pub fn on_event(&mut self, now: Instant, event: E) -> Option<Batch<E>> {
        if (self.options.bypass)(&event) {
            let sequence = self.sequence;
            let lane = Lane::Bypass;
            let (first, last, delivered) = (now, now, now);
            return Some(Batch {
                event,
                events: 1,
                first,
                last,
                delivered,
                sequence,
                lane,
            });
        }
        match &mut self.state {
            State::Idle => self.state = State::Waiting(Pending::new(now, event)),
            State::Waiting(pending)
            | State::Busy {
                gathered: Some(pending),
                ..
            } => {
                pending.merge(now, event);
            }
            State::Busy { gathered, .. } => *gathered = Some(Pending::new(now, event)),
        }
        self.on_timer(now)
    }

    /// When [`on_timer`](Self::on_timer) is to be called: `None` while idle or busy.
    pub fn deadline(&self) -> Option<Instant> {
        match &self.state {
            State::Waiting(pending) => self.due(pending),
            State::Idle | State::Busy { .. } => None,
        }
    }

    /// Delivers the batch that is due at `now`, if there is one and the consumer is free. Calling it
    /// too early or twice does no harm.
    pub fn on_timer(&mut self, now: Instant) -> Option<Batch<E>> {
        if self.deadline().is_none_or(|due| now < due) {
            return None;
        }
        self.flush(now)
    }

    /// Notes that the consumer finished the last batch, and delivers the next one if it is due.
    pub fn on_finished(&mut self, now: Instant) -> Option<Batch<E>> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Busy { since, gathered } => {
                self.learn(now.saturating_duration_since(since));
                self.state = gathered.map_or(State::Idle, State::Waiting);
            }
            state => {
                debug_assert!(false, "finished a batch that was not delivered");
                self.state = state;
            }
        }
        self.on_timer(now)
    }

    /// Delivers what is pending without waiting for its deadline, for shutdown. `None` while busy:
    /// call it again after [`on_finished`](Self::on_finished).
    pub fn flush(&mut self, now: Instant) -> Option<Batch<E>> {
        match std::mem::replace(&mut self.state, State::Idle) {
            State::Waiting(pending) => {
                self.state = State::Busy {
                    since: now,
                    gathered: None,
                };
                self.sequence += 1;
                Some(pending.into_batch(now, self.sequence))
            }
            state => {
                self.state = state;
                None
            }
        }
    }

    /// Whether a batch is being consumed.
    pub fn is_busy(&self) -> bool {
        matches!(self.state, State::Busy { .. })
    }

    /// How many events wait for the next batch.
    pub fn pending(&self) -> u64 {
        match &self.state {
            State::Waiting(pending)
            | State::Busy {
                gathered: Some(pending),
                ..
            } => pending.events,
            State::Idle | State::Busy { gathered: None, .. } => 0,
        }
    }

    /// The quiet time in force: the setting, or less in adaptive mode.
    pub fn quiet_time(&self) -> Duration {
        let after = self.options.window.after;
        match self.cost {
            Some(cost) if self.options.adaptive => cost.max(MIN_QUIET).min(after),
            _ => after,
        }
    }

    /// `None` is a time that the clock cannot express, which never comes.
    fn due(&self, pending: &Pending<E>) -> Option<Instant> {
        let quiet = pending.last.checked_add(self.quiet_time());
        let max = pending.first.checked_add(self.options.window.max);
        quiet.into_iter().chain(max).min()
    }

    fn learn(&mut self, cost: Duration) {
        let smoothed = self
            .cost
            .map_or(cost, |old| cost + old.saturating_sub(cost) / 2);
        self.cost = Some(smoothed);
    }
}

impl<E: Merge> Pending<E> {
    fn new(now: Instant, event: E) -> Self {
        Self {
            event,
            events: 1,
            first: now,
            last: now,
        }
    }

    fn merge(&mut self, now: Instant, event: E) {
        self.event.merge(event);
        self.events += 1;
        self.last = now.max(self.last);
    }

    fn into_batch(self, delivered: Instant, sequence: u64) -> Batch<E> {
        let Self {
            event,
            events,
            first,
            last,
        } = self;
        Batch {
            event,
            events,
            first,
            last,
            delivered,
            sequence,
            lane: Lane::Debounced,
        }
    }
}

#[cfg(test)]
mod tests;

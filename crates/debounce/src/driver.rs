//! The tokio task around the state machine.

use std::{fmt, future::Future, time::Instant};

use tokio::{
    sync::{mpsc, watch},
    task::{JoinError, JoinSet},
    time::{Instant as TokioInstant, sleep_until},
};
use tracing::error;

use crate::{Batch, Debouncer, Lane, Merge, Options, Progress};

/// How many events wait in front of a [`Driver`] before a sender has to wait too. The driver only
/// merges, so a handful covers one turn of the scheduler.
pub const DEFAULT_QUEUE: usize = 10;

/// How many bypassing events are consumed at once; beyond it, intake waits for one to end.
pub const MAX_BYPASSING: usize = 64;

/// Sends events to a [`Driver`]; cheap to clone. The driver ends when the last clone is gone.
#[derive(Debug)]
pub struct Intake<E> {
    events: mpsc::Sender<E>,
    options: watch::Sender<Options<E>>,
    progress: Progress,
}

impl<E> Clone for Intake<E> {
    fn clone(&self) -> Self {
        Self {
            events: self.events.clone(),
            options: self.options.clone(),
            progress: self.progress.clone(),
        }
    }
}

impl<E> Intake<E> {
    /// Hands over `event`; waits while the queue is full.
    ///
    /// # Errors
    /// [`Closed`] with the event, when the driver is gone.
    pub async fn send(&self, event: E) -> Result<(), Closed<E>> {
        self.progress.enter();
        self.events.send(event).await.map_err(|refused| {
            self.progress.leave();
            Closed(refused.0)
        })
    }

    /// Replaces the options; events already gathered are judged by the new ones.
    pub fn set_options(&self, options: Options<E>) {
        self.options.send_replace(options);
    }

    /// The counters of what was sent and consumed.
    pub fn progress(&self) -> Progress {
        self.progress.clone()
    }
}

/// The driver is gone; gives the event back.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Closed<E>(pub E);

impl<E> fmt::Debug for Closed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Closed")
    }
}

impl<E> fmt::Display for Closed<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the debouncer has stopped")
    }
}

impl<E> std::error::Error for Closed<E> {}

/// Owns a [`Debouncer`], its timer and the tasks that consume.
#[derive(Debug)]
pub struct Driver<E> {
    debouncer: Debouncer<E>,
    events: mpsc::Receiver<E>,
    options: watch::Receiver<Options<E>>,
    progress: Progress,
    /// At most one debounced batch.
    consuming: JoinSet<()>,
    bypassing: JoinSet<()>,
    /// Events of the batch that is being consumed.
    in_flight: u64,
}

impl<E: Merge + Send + 'static> Driver<E> {
    /// Makes a driver and its intake, with a queue of `queue` events between them (at least 1).
    pub fn new(options: Options<E>, queue: usize) -> (Intake<E>, Self) {
        let (sender, events) = mpsc::channel(queue.max(1));
        let debouncer = Debouncer::new(options.clone());
        let (options_sender, options) = watch::channel(options);
        let progress = Progress::default();
        let intake = Intake {
            events: sender,
            options: options_sender,
            progress: progress.clone(),
        };
        let driver = Self {
            debouncer,
            events,
            options,
            progress,
            consuming: JoinSet::new(),
            bypassing: JoinSet::new(),
            in_flight: 0,
        };
        (intake, driver)
    }

    /// Runs until every [`Intake`] is dropped and everything sent was consumed.
    ///
    /// `consume` is called for one debounced batch at a time; its future runs as a task, and the next
    /// batch waits for its end. Bypassing events ([`Lane::Bypass`]) run beside it. A consumer that
    /// panics is logged, its events count as failed, and the driver goes on. Dropping the returned
    /// future aborts the tasks.
    pub async fn run<C, F>(mut self, mut consume: C)
    where
        C: FnMut(Batch<E>) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let mut open = true;
        while open || self.debouncer.is_busy() || !self.bypassing.is_empty() {
            let deadline = self.debouncer.deadline();
            let accepts = open && self.bypassing.len() < MAX_BYPASSING;
            let batch = tokio::select! {
                // Ends and timers first: a stream of events cannot starve the maximum.
                biased;
                Some(end) = self.consuming.join_next() => {
                    let events = std::mem::take(&mut self.in_flight);
                    self.settle(end, events);
                    self.debouncer.on_finished(now())
                }
                Some(end) = self.bypassing.join_next() => {
                    self.settle(end, 1);
                    None
                }
                () = sleep_until(deadline.unwrap_or_else(now).into()), if deadline.is_some() => {
                    self.debouncer.on_timer(now())
                }
                Ok(()) = self.options.changed() => {
                    let options = self.options.borrow_and_update().clone();
                    self.debouncer.set_options(options);
                    self.debouncer.on_timer(now())
                }
                received = self.events.recv(), if accepts => {
                    open = received.is_some();
                    received.and_then(|event| self.debouncer.on_event(now(), event))
                }
            };
            let batch = if open {
                batch
            } else {
                batch.or_else(|| self.debouncer.flush(now()))
            };
            if let Some(batch) = batch {
                self.start(batch, &mut consume);
            }
        }
    }

    fn start<C, F>(&mut self, batch: Batch<E>, consume: &mut C)
    where
        C: FnMut(Batch<E>) -> F,
        F: Future<Output = ()> + Send + 'static,
    {
        let tasks = match batch.lane {
            Lane::Debounced => {
                self.in_flight = batch.events;
                &mut self.consuming
            }
            Lane::Bypass => &mut self.bypassing,
        };
        tasks.spawn(consume(batch));
    }

    fn settle(&self, end: Result<(), JoinError>, events: u64) {
        match end {
            Ok(()) => self.progress.commit(events),
            Err(error) => {
                error!(%error, events, "consumer of a batch failed");
                self.progress.fail(events);
            }
        }
    }
}

/// The (pausable) clock of tokio.
fn now() -> Instant {
    TokioInstant::now().into_std()
}

#[cfg(test)]
mod tests;

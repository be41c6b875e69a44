//! The tokio layer around the engine.

use std::{
    fmt,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    time::SystemTime,
};

use tokio::{
    sync::{mpsc, oneshot},
    time::{Instant, sleep_until},
};
use tracing::{info, warn};

use crate::{
    Engine, Event, InvalidSettings, Notice, Now, Observer, Output, Settings, Status, TenantStatus,
};

/// How many messages wait in front of a [`Driver`] before a sender has to wait too. Taking one in
/// costs microseconds, so this covers a burst while the next stage is slow.
pub const DEFAULT_QUEUE: usize = 64;

/// The next stage: where events go on.
pub trait Forward<E>: Send + Sync {
    /// Hands `event` on; waits while the next stage is full.
    fn forward(&self, event: E) -> impl Future<Output = Result<(), Stopped>> + Send;
}

impl<E: Send> Forward<E> for mpsc::Sender<E> {
    async fn forward(&self, event: E) -> Result<(), Stopped> {
        self.send(event).await.map_err(|_| Stopped)
    }
}

/// The driver, or the stage behind it, is gone.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the throttle has stopped")]
pub struct Stopped;

/// Where events enter; cheap to clone. The driver drains and ends when the last clone is gone.
///
/// While nothing is throttled an event goes straight to the next stage, without a queue or a task
/// between. Events of one sender never overtake each other, also while the settings change.
pub struct Gate<E: Event, F> {
    messages: mpsc::Sender<Message<E>>,
    next: F,
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    /// Whether events may go past the driver.
    direct: AtomicBool,
    /// Events on their way through the driver, staged ones not counted.
    queued: AtomicUsize,
    /// Events that the engine holds.
    staged: AtomicU64,
}

type Throttled<E> = Status<<E as Event>::Tenant, <E as Event>::Object>;

enum Message<E: Event> {
    Event(E),
    Deleted(E::Tenant),
    Configure(
        Box<Settings<E::Tenant>>,
        oneshot::Sender<Result<(), InvalidSettings>>,
    ),
    Status(oneshot::Sender<Throttled<E>>),
}

impl<E: Event, F: Clone> Clone for Gate<E, F> {
    fn clone(&self) -> Self {
        Self {
            messages: self.messages.clone(),
            next: self.next.clone(),
            shared: self.shared.clone(),
        }
    }
}

impl<E: Event, F> fmt::Debug for Gate<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Gate")
            .field("shared", &self.shared)
            .finish_non_exhaustive()
    }
}

impl<E: Event, F: Forward<E>> Gate<E, F> {
    /// Takes in `event`; waits while the queue, or the next stage, is full.
    ///
    /// # Errors
    /// [`Stopped`] when the driver or the next stage is gone.
    pub async fn send(&self, event: E) -> Result<(), Stopped> {
        // What this sender sent before is counted in `queued` until it has gone on, so going past
        // the driver cannot overtake it.
        if self.shared.direct.load(Ordering::SeqCst)
            && self.shared.queued.load(Ordering::SeqCst) == 0
        {
            return self.next.forward(event).await;
        }
        self.shared.queued.fetch_add(1, Ordering::SeqCst);
        let sent = self.messages.send(Message::Event(event)).await;
        if sent.is_err() {
            self.shared.queued.fetch_sub(1, Ordering::SeqCst);
        }
        sent.map_err(|_| Stopped)
    }

    /// Whether everything sent so far has gone on to the next stage.
    pub fn is_clear(&self) -> bool {
        self.shared.queued.load(Ordering::SeqCst) == 0
            && self.shared.staged.load(Ordering::SeqCst) == 0
    }

    /// Tells that `tenant` is deleted: what is held of it goes on, and its series go.
    ///
    /// # Errors
    /// [`Stopped`] when the driver is gone.
    pub async fn tenant_deleted(&self, tenant: E::Tenant) -> Result<(), Stopped> {
        self.messages
            .send(Message::Deleted(tenant))
            .await
            .map_err(|_| Stopped)
    }

    /// Replaces the settings; returns when they are in force.
    ///
    /// # Errors
    /// [`InvalidSettings`], the old settings then stay in force. Nothing happens when the driver is
    /// gone.
    pub async fn configure(&self, settings: Settings<E::Tenant>) -> Result<(), InvalidSettings> {
        let (answer, done) = oneshot::channel();
        let message = Message::Configure(Box::new(settings), answer);
        if self.messages.send(message).await.is_err() {
            return Ok(());
        }
        done.await.unwrap_or(Ok(()))
    }

    /// Describes the settings and the throttled tenants; `None` when the driver is gone.
    pub async fn status(&self) -> Option<Status<E::Tenant, E::Object>> {
        let (answer, status) = oneshot::channel();
        self.messages.send(Message::Status(answer)).await.ok()?;
        status.await.ok()
    }
}

/// Owns an [`Engine`] and its timers.
pub struct Driver<E: Event, F> {
    engine: Engine<E>,
    messages: mpsc::Receiver<Message<E>>,
    next: F,
    shared: Arc<Shared>,
    observer: Box<dyn Observer<E::Tenant>>,
    wall: fn() -> SystemTime,
}

impl<E: Event, F> fmt::Debug for Driver<E, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Driver")
            .field("engine", &self.engine)
            .finish_non_exhaustive()
    }
}

impl<E: Event, F: Forward<E> + Clone> Driver<E, F> {
    /// Puts `engine` before `next`, with a queue of `queue` messages (at least 1). `wall` reads the
    /// wall clock, for policies that look at the time of day.
    pub fn new(
        engine: Engine<E>,
        next: F,
        queue: usize,
        wall: fn() -> SystemTime,
        observer: impl Observer<E::Tenant> + 'static,
    ) -> (Gate<E, F>, Self) {
        let (sender, messages) = mpsc::channel(queue.max(1));
        let shared = Arc::new(Shared {
            direct: AtomicBool::new(!engine.is_enabled()),
            queued: AtomicUsize::new(0),
            staged: AtomicU64::new(0),
        });
        let gate = Gate {
            messages: sender,
            next: next.clone(),
            shared: shared.clone(),
        };
        let observer = Box::new(observer);
        (
            gate,
            Self {
                engine,
                messages,
                next,
                shared,
                observer,
                wall,
            },
        )
    }

    /// Runs until every [`Gate`] is dropped and what was held has gone on, or the next stage is gone.
    pub async fn run(mut self) {
        let mut out = Output::default();
        let mut open = true;
        while open {
            let deadline = self.engine.deadline();
            let mut arrived = 0;
            let mut enabled_by = None;
            tokio::select! {
                // Timers first: a stream of events cannot starve what is due.
                biased;
                () = sleep_until(deadline.map_or_else(Instant::now, Instant::from_std)),
                    if deadline.is_some() =>
                {
                    self.engine.on_timer(self.now(), &mut out);
                }
                message = self.messages.recv() => match message {
                    Some(Message::Event(event)) => {
                        arrived = 1;
                        self.engine.on_event(self.now(), event, &mut out);
                    }
                    Some(Message::Deleted(tenant)) => {
                        self.engine.remove(self.now(), &tenant, &mut out);
                    }
                    Some(Message::Configure(settings, answer)) => {
                        self.shared.direct.store(false, Ordering::SeqCst);
                        let done = self.engine.set_settings(self.now(), *settings, &mut out);
                        enabled_by = Some((answer, done));
                    }
                    Some(Message::Status(answer)) => {
                        // Nobody may be waiting any longer.
                        let _unsent = answer.send(self.engine.status(self.now()));
                    }
                    None => {
                        open = false;
                        self.engine.drain(self.now(), &mut out);
                    }
                },
            }
            if self.deliver(&mut out).await.is_err() {
                warn!(
                    staged = self.engine.staged(),
                    "throttle stops: the next stage is gone"
                );
                return;
            }
            self.shared
                .staged
                .store(self.engine.staged(), Ordering::SeqCst);
            self.shared.queued.fetch_sub(arrived, Ordering::SeqCst);
            if let Some((answer, done)) = enabled_by {
                self.shared
                    .direct
                    .store(!self.engine.is_enabled(), Ordering::SeqCst);
                let _unsent = answer.send(done);
            }
        }
    }

    async fn deliver(&mut self, out: &mut Output<E>) -> Result<(), Stopped> {
        for notice in out.notices.drain(..) {
            tell(&mut *self.observer, &notice);
        }
        for release in out.released.drain(..) {
            self.next.forward(release.event).await?;
        }
        Ok(())
    }

    fn now(&self) -> Now {
        Now {
            at: Instant::now().into_std(),
            wall: (self.wall)(),
        }
    }
}

/// Logs and counts a notice.
fn tell<T, O>(observer: &mut dyn Observer<T>, notice: &Notice<T, O>)
where
    T: fmt::Display,
    O: fmt::Display,
{
    match notice {
        Notice::Held { tenant } => observer.held(tenant),
        Notice::Started(status) => {
            observer.active(&status.tenant, true);
            let noisiest = list(status);
            info!(
                tenant = %status.tenant,
                rate = status.report.rate,
                level = status.report.level,
                delay = ?status.report.delay,
                noisiest,
                "throttling starts"
            );
        }
        Notice::Ended(status) => {
            observer.active(&status.tenant, false);
            let noisiest = list(status);
            info!(
                tenant = %status.tenant,
                rate = status.report.rate,
                level = status.report.level,
                held = status.held,
                released = status.released,
                elapsed = ?status.throttled_for,
                noisiest,
                "throttling ends"
            );
        }
        Notice::Forgotten { tenant } => observer.forgotten(tenant),
    }
}

fn list<T, O: fmt::Display>(status: &TenantStatus<T, O>) -> String {
    let named: Vec<_> = status
        .noisiest
        .iter()
        .map(|(object, count)| format!("{object} ({count})"))
        .collect();
    named.join(", ")
}

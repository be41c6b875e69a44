//! What the engine knows of one tenant.

use std::time::Instant;

use super::{Cause, Release};
use crate::{Decision, Event, Limits, Noisiest, Now, TenantStatus, ThrottlePolicy};

/// One tenant: its policy, what is held of it, and whether it is being throttled.
#[derive(Debug)]
pub(super) struct Tenant<E: Event> {
    pub(super) policy: Box<dyn ThrottlePolicy>,
    staged: Option<Staged<E>>,
    throttling: Option<Throttling<E::Object>>,
    /// Whether it was ever throttled, so that somebody may have series of it.
    pub(super) was_throttled: bool,
    /// The entry of this tenant in the engine's timetable.
    pub(super) wakeup: Option<Instant>,
}

/// The staging area, while it holds something.
#[derive(Debug)]
struct Staged<E> {
    event: E,
    events: u64,
    /// When the first of the events arrived.
    since: Instant,
    /// When the area is to be emptied, as the policy wants it; bounded by [`Staged::due`].
    until: Instant,
    /// When the first event with an urgent part arrived that is still held.
    urgent_since: Option<Instant>,
}

/// From the first held event until none was held for the maximum delay.
#[derive(Debug)]
struct Throttling<O> {
    since: Instant,
    last_held: Instant,
    held: u64,
    released: u64,
    noisiest: Noisiest<O>,
}

impl<E> Staged<E> {
    fn due(&self, limits: &Limits) -> Instant {
        self.until.min(self.since + limits.max_delay)
    }

    fn urgent_due(&self, limits: &Limits) -> Option<Instant> {
        self.urgent_since.map(|since| since + limits.base_delay)
    }
}

impl<E: Event> Tenant<E> {
    pub(super) fn new(policy: Box<dyn ThrottlePolicy>) -> Self {
        Self {
            policy,
            staged: None,
            throttling: None,
            was_throttled: false,
            wakeup: None,
        }
    }

    /// Whether nothing is held.
    pub(super) fn is_clear(&self) -> bool {
        self.staged.is_none()
    }

    /// Whether nothing is held and throttling has ended.
    pub(super) fn is_idle(&self) -> bool {
        self.staged.is_none() && self.throttling.is_none()
    }

    pub(super) fn staged(&self) -> u64 {
        self.staged.as_ref().map_or(0, |staged| staged.events)
    }

    pub(super) fn decide(&mut self, now: Now) -> Decision {
        let held_since = self.staged.as_ref().map(|staged| staged.since);
        self.policy.on_event(now, held_since)
    }

    /// Lets `event` pass, together with what is held.
    pub(super) fn pass(&mut self, now: Instant, event: E) -> Release<E> {
        match self.staged.take() {
            None => Release::passed(event),
            Some(mut staged) => {
                staged.event.merge(event);
                staged.events += 1;
                self.count_release();
                staged.release(now, Cause::Passed)
            }
        }
    }

    /// Merges `event` into what is held; returns whether throttling starts with it.
    pub(super) fn hold(&mut self, now: Instant, until: Instant, event: E, limits: &Limits) -> bool {
        let starts = self.throttling.is_none();
        let throttling = self.throttling.get_or_insert_with(|| Throttling {
            since: now,
            last_held: now,
            held: 0,
            released: 0,
            noisiest: Noisiest::default(),
        });
        self.was_throttled = true;
        throttling.held += 1;
        throttling.last_held = now;
        event.objects(&mut |object| throttling.noisiest.record(object));

        let urgent = event.is_urgent().then_some(now);
        match &mut self.staged {
            None => {
                self.staged = Some(Staged {
                    event,
                    events: 1,
                    since: now,
                    until,
                    urgent_since: urgent,
                });
            }
            Some(staged) => {
                staged.event.merge(event);
                staged.events += 1;
                staged.until = until;
                staged.urgent_since = staged.urgent_since.or(urgent);
            }
        }
        self.bound(limits);
        starts
    }

    /// Applies limits to what is held.
    pub(super) fn bound(&mut self, limits: &Limits) {
        if let Some(staged) = &mut self.staged {
            staged.until = staged.due(limits);
        }
    }

    /// Releases what is due: all, or the urgent part.
    pub(super) fn release_due(&mut self, now: Now, limits: &Limits, out: &mut Vec<Release<E>>) {
        let Some(staged) = self.staged.take() else {
            return;
        };
        let urgent_due = staged.urgent_due(limits).is_some_and(|due| due <= now.at);
        if staged.due(limits) <= now.at {
            out.push(staged.release(now.at, Cause::Due));
            self.count_release();
            self.policy.on_flush(now);
        } else if urgent_due {
            let Staged {
                event,
                events,
                since,
                until,
                urgent_since,
            } = staged;
            let waited = now
                .at
                .saturating_duration_since(urgent_since.unwrap_or(since));
            let (urgent, rest) = event.split_urgent();
            let count = if rest.is_some() { 1 } else { events };
            if let Some(event) = urgent {
                out.push(Release {
                    event,
                    events: count,
                    waited,
                    cause: Cause::Urgent,
                });
                self.count_release();
            }
            match rest {
                Some(event) => {
                    let events = events.saturating_sub(1).max(1);
                    self.staged = Some(Staged {
                        event,
                        events,
                        since,
                        until,
                        urgent_since: None,
                    });
                }
                None => self.policy.on_flush(now),
            }
        } else {
            self.staged = Some(staged);
        }
    }

    /// Releases what is held, whether due or not.
    pub(super) fn drain(&mut self, now: Instant) -> Option<Release<E>> {
        let staged = self.staged.take()?;
        self.count_release();
        Some(staged.release(now, Cause::Drained))
    }

    /// Whether throttling has ended by now.
    pub(super) fn has_calmed(&self, now: Instant, limits: &Limits) -> bool {
        self.calms_at(limits).is_some_and(|at| at <= now)
    }

    /// Ends throttling.
    pub(super) fn end(&mut self) {
        self.throttling = None;
    }

    /// When the engine has to look at this tenant again.
    pub(super) fn next_wakeup(&self, limits: &Limits) -> Option<Instant> {
        match &self.staged {
            Some(staged) => staged
                .urgent_due(limits)
                .into_iter()
                .chain([staged.due(limits)])
                .min(),
            None => self.calms_at(limits),
        }
    }

    /// `None` while something is held or nothing is throttled.
    fn calms_at(&self, limits: &Limits) -> Option<Instant> {
        let throttling = self.throttling.as_ref().filter(|_| self.staged.is_none())?;
        Some(throttling.last_held + limits.max_delay)
    }

    fn count_release(&mut self) {
        if let Some(throttling) = &mut self.throttling {
            throttling.released += 1;
        }
    }

    /// Describes the tenant; `None` while it is not throttled.
    pub(super) fn status(
        &self,
        now: Now,
        tenant: &E::Tenant,
        limits: &Limits,
        named: usize,
    ) -> Option<TenantStatus<E::Tenant, E::Object>> {
        let throttling = self.throttling.as_ref()?;
        let staged = self.staged.as_ref();
        Some(TenantStatus {
            tenant: tenant.clone(),
            throttled_for: now.at.saturating_duration_since(throttling.since),
            report: self.policy.report(now),
            held: throttling.held,
            released: throttling.released,
            staged: self.staged(),
            staged_for: staged.map(|staged| now.at.saturating_duration_since(staged.since)),
            due_in: staged.map(|staged| staged.due(limits).saturating_duration_since(now.at)),
            noisiest: throttling.noisiest.top(named),
        })
    }
}

impl<E> Staged<E> {
    fn release(self, now: Instant, cause: Cause) -> Release<E> {
        let waited = now.saturating_duration_since(self.since);
        Release {
            event: self.event,
            events: self.events,
            waited,
            cause,
        }
    }
}

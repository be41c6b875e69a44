//! The default throttle policy: exponential backoff per noisy tenant.
//!
//! Below [`Limits::threshold`] events per [`Limits::window`] an event passes. At or above it, events
//! are held for `base_delay · 2^level`, at most `max_delay`; each time the staging area was emptied
//! because its time had come, the level rises by one. It falls by one per second (or per base delay, if
//! that is shorter) in which no event was held, so that a rollout that ends is not punished: what is
//! held then goes on as soon as the fallen level allows it.

use std::time::{Duration, Instant};

use linkme::distributed_slice;
use throttle::{
    Decision, Idle, Limits, Now, RateWindow, Registration, Report, THROTTLE_POLICIES, TenantInfo,
    ThrottlePolicy,
};

/// The entry of this policy.
#[distributed_slice(THROTTLE_POLICIES)]
pub static BACKOFF: Registration = Registration {
    name: "backoff",
    summary: "holds a noisy tenant's events for a delay that doubles, up to the maximum",
    module: module_path!(),
    check: |_| Vec::new(),
    build: |limits, _| Box::new(Backoff::new(limits)),
};

/// The longest time without held events that lowers the level by one.
const LONGEST_STEP: Duration = Duration::from_secs(1);

/// The state of one tenant.
#[derive(Debug)]
pub struct Backoff {
    threshold: u64,
    base_delay: Duration,
    max_delay: Duration,
    events: RateWindow,
    level: u32,
    /// From when on the level falls: the last held event, plus the steps that were taken since.
    falls_from: Option<Instant>,
}

impl Backoff {
    /// Makes an instance for one tenant.
    pub fn new(limits: &Limits) -> Self {
        Self {
            threshold: limits.threshold,
            base_delay: limits.base_delay,
            max_delay: limits.max_delay,
            events: RateWindow::new(limits.window),
            level: 0,
            falls_from: None,
        }
    }

    fn delay(&self, level: u32) -> Duration {
        let factor = 1_u32.checked_shl(level).unwrap_or(u32::MAX);
        self.base_delay.saturating_mul(factor).min(self.max_delay)
    }

    /// The lowest level whose delay is the maximum.
    fn highest_level(&self) -> u32 {
        (0..32)
            .find(|level| self.delay(*level) >= self.max_delay)
            .unwrap_or(32)
    }

    fn step(&self) -> Duration {
        self.base_delay.min(LONGEST_STEP)
    }

    /// The level at `now`, and the time from which it falls further.
    fn fallen(&self, now: Instant) -> (u32, Option<Instant>) {
        let Some(from) = self.falls_from else {
            return (self.level, None);
        };
        let mut level = self.level;
        let mut from = from;
        // At most 32 rounds.
        while level > 0 && from + self.step() <= now {
            level -= 1;
            from += self.step();
        }
        (level, Some(from))
    }

    fn fall(&mut self, now: Instant) {
        (self.level, self.falls_from) = self.fallen(now);
    }

    /// When an area that began to fill at `since` may go on if no event follows `last`: the first
    /// moment at which it is as old as the delay of the level that has been reached by then.
    fn release_at(&self, since: Instant, last: Instant) -> Instant {
        let mut best = since + self.delay(self.level);
        for steps in 1..=self.level {
            let fallen = last + self.step() * steps;
            best = best.min(fallen.max(since + self.delay(self.level - steps)));
        }
        best
    }
}

impl ThrottlePolicy for Backoff {
    fn on_event(&mut self, now: Now, held_since: Option<Instant>) -> Decision {
        self.fall(now.at);
        if self.events.record(now.at) < self.threshold {
            return Decision::Pass;
        }
        self.falls_from = Some(now.at);
        Decision::Hold {
            until: self.release_at(held_since.unwrap_or(now.at), now.at),
        }
    }

    fn on_flush(&mut self, now: Now) {
        self.fall(now.at);
        self.level = (self.level + 1).min(self.highest_level());
    }

    fn on_idle(&mut self, now: Now) -> Idle {
        self.fall(now.at);
        let quiet = self.level == 0 && self.events.count(now.at) == 0;
        if quiet { Idle::Forget } else { Idle::Keep }
    }

    fn configure(&mut self, limits: &Limits, _tenant: &TenantInfo) {
        self.threshold = limits.threshold;
        self.base_delay = limits.base_delay;
        self.max_delay = limits.max_delay;
        self.events.set_window(limits.window);
        self.level = self.level.min(self.highest_level());
    }

    fn report(&self, now: Now) -> Report {
        let (level, _) = self.fallen(now.at);
        Report {
            rate: self.events.rate(now.at),
            level,
            delay: self.delay(level),
        }
    }
}

#[cfg(test)]
mod tests;

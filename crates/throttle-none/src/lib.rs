//! A throttle policy that never holds: rates are measured and shown, and every event passes.
//!
//! For comparing runs, and for programs whose next stage copes with any load.

use std::time::Instant;

use linkme::distributed_slice;
use throttle::{
    Decision, Idle, Limits, Now, RateWindow, Registration, Report, THROTTLE_POLICIES, TenantInfo,
    ThrottlePolicy,
};

/// The entry of this policy.
#[distributed_slice(THROTTLE_POLICIES)]
pub static NONE: Registration = Registration {
    name: "none",
    summary: "never holds an event",
    module: module_path!(),
    check: |_| Vec::new(),
    build: |limits, _| Box::new(Unthrottled::new(limits)),
};

/// Measures and lets pass.
#[derive(Debug)]
pub struct Unthrottled {
    rate: RateWindow,
}

impl Unthrottled {
    /// Makes an instance for one tenant.
    pub fn new(limits: &Limits) -> Self {
        Self {
            rate: RateWindow::new(limits.window),
        }
    }
}

impl ThrottlePolicy for Unthrottled {
    fn on_event(&mut self, now: Now, _held_since: Option<Instant>) -> Decision {
        self.rate.record(now.at);
        Decision::Pass
    }

    fn on_flush(&mut self, _now: Now) {}

    fn on_idle(&mut self, now: Now) -> Idle {
        if self.rate.count(now.at) == 0 {
            Idle::Forget
        } else {
            Idle::Keep
        }
    }

    fn configure(&mut self, limits: &Limits, _tenant: &TenantInfo) {
        self.rate.set_window(limits.window);
    }

    fn report(&self, now: Now) -> Report {
        Report {
            rate: self.rate.rate(now.at),
            ..Report::default()
        }
    }
}

//! What decides: one instance per tenant, without I/O, clock or knowledge of the event.

use std::{
    collections::BTreeMap,
    fmt,
    time::{Duration, Instant, SystemTime},
};

use crate::Limits;

/// Decides for the events of one tenant whether they pass or wait.
///
/// Pure: time in, decision out. The engine owns what is held, and bounds whatever a policy asks for by
/// [`Limits::max_delay`] from the first held event.
pub trait ThrottlePolicy: fmt::Debug + Send {
    /// Accounts for one event that arrived `now` and decides about it.
    ///
    /// `held_since` is when the staging area of the tenant began to fill, `None` when it is empty. The
    /// answer holds for the whole area: [`Decision::Pass`] lets what is held go on too, merged with
    /// this event, and [`Decision::Hold`] replaces the time given before.
    fn on_event(&mut self, now: Now, held_since: Option<Instant>) -> Decision;

    /// Notes that the staging area was emptied because its time had come.
    fn on_flush(&mut self, now: Now);

    /// Called now and then while nothing is held; [`Idle::Forget`] lets the engine drop this instance
    /// when it would behave like a new one.
    fn on_idle(&mut self, now: Now) -> Idle;

    /// Takes over changed limits or labels, keeping what was counted as far as that makes sense.
    fn configure(&mut self, limits: &Limits, tenant: &TenantInfo);

    /// Describes the state for logs and the debug endpoint.
    fn report(&self, now: Now) -> Report;
}

/// A moment on both clocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Now {
    /// Monotonic; for everything that is measured.
    pub at: Instant,
    /// Wall clock, which may jump; for policies that look at the time of day.
    pub wall: SystemTime,
}

/// What to do with the events of the tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Let them go on at once.
    Pass,
    /// Merge them until then.
    Hold {
        /// When the merged event goes on; a time that has passed means at once.
        until: Instant,
    },
}

/// Whether a policy instance is still needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Idle {
    /// It remembers something that matters.
    Keep,
    /// A new instance would behave alike.
    Forget,
}

/// What a policy knows of its tenant's traffic.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Report {
    /// Measured events per second.
    pub rate: f64,
    /// How far the policy has stepped up, 0 at rest; the meaning is the policy's.
    pub level: u32,
    /// How long an event that starts a staging area would wait now.
    pub delay: Duration,
}

/// What a policy may know of its tenant.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct TenantInfo {
    /// The tenant key as text.
    pub name: String,
    /// Its labels, as far as the program knows them. Changes reach a policy within one window.
    pub labels: BTreeMap<String, String>,
}

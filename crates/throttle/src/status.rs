//! What a debug endpoint shows.

use std::time::Duration;

use crate::{Limits, Report};

/// The state of an engine over tenants `T` and objects `O`.
#[derive(Debug, Clone, PartialEq)]
pub struct Status<T, O> {
    /// Whether anything is throttled at all.
    pub enabled: bool,
    /// The name of the policy.
    pub policy: &'static str,
    /// The numbers in force.
    pub limits: Limits,
    /// Tenants that are never throttled, sorted.
    pub exempt: Vec<T>,
    /// How many tenants are being counted.
    pub tracked: usize,
    /// Those that are throttled, sorted by tenant.
    pub throttled: Vec<TenantStatus<T, O>>,
}

/// The state of one throttled tenant.
#[derive(Debug, Clone, PartialEq)]
pub struct TenantStatus<T, O> {
    /// The tenant.
    pub tenant: T,
    /// How long it has been throttled without a pause.
    pub throttled_for: Duration,
    /// Rate, level and delay as the policy sees them.
    pub report: Report,
    /// How many events have been held in that time.
    pub held: u64,
    /// How many merged events went on instead.
    pub released: u64,
    /// How many events are staged now.
    pub staged: u64,
    /// How long the oldest of them has waited.
    pub staged_for: Option<Duration>,
    /// When they go on.
    pub due_in: Option<Duration>,
    /// The objects with the most held events and their counts, the most frequent first.
    pub noisiest: Vec<(O, u64)>,
}

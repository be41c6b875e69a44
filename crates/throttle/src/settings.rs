//! Limits, and their ranges.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::RangeInclusive,
    time::Duration,
};

/// Allowed thresholds: events per window.
pub const THRESHOLD_RANGE: RangeInclusive<u64> = 1..=1_000_000;
/// Allowed windows.
pub const WINDOW_RANGE: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_hours(1);
/// Allowed base delays.
pub const BASE_DELAY_RANGE: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_mins(1);
/// Allowed maximum delays; besides, at least the base delay.
pub const MAX_DELAY_RANGE: RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_mins(10);

/// The numbers that policies work with.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Limits {
    /// Events of one tenant within a window from which on the tenant counts as noisy (default 100).
    pub threshold: u64,
    /// Over what time they are counted (default 30 s).
    pub window: Duration,
    /// The shortest delay, and the longest of what is urgent (default 1 s).
    pub base_delay: Duration,
    /// The longest delay (default 10 s). The engine enforces it for every policy.
    pub max_delay: Duration,
    /// Further parameters, by name, for the policy in use (default none).
    pub parameters: BTreeMap<String, String>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            threshold: 100,
            window: Duration::from_secs(30),
            base_delay: Duration::from_secs(1),
            max_delay: Duration::from_secs(10),
            parameters: BTreeMap::new(),
        }
    }
}

impl Limits {
    /// Finds every value that is out of its range, policy parameters aside.
    pub fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if !THRESHOLD_RANGE.contains(&self.threshold) {
            problems.push(Problem {
                field: "threshold".into(),
                value: self.threshold.to_string(),
                expected: format!("{} to {}", THRESHOLD_RANGE.start(), THRESHOLD_RANGE.end()),
            });
        }
        let longest_max = *MAX_DELAY_RANGE.end();
        let max_range = self.base_delay.min(longest_max)..=longest_max;
        for (field, value, range) in [
            ("window", self.window, WINDOW_RANGE),
            ("base_delay", self.base_delay, BASE_DELAY_RANGE),
            ("max_delay", self.max_delay, max_range),
        ] {
            if !range.contains(&value) {
                problems.push(Problem {
                    field: field.into(),
                    value: format!("{value:?}"),
                    expected: format!("{:?} to {:?}", range.start(), range.end()),
                });
            }
        }
        problems
    }
}

/// The settings of an engine over tenants `T`. All can be changed while it runs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Settings<T> {
    /// Whether anything is throttled at all (default false).
    pub enabled: bool,
    /// Tenants that are never throttled (default none).
    pub exempt: BTreeSet<T>,
    /// The numbers.
    pub limits: Limits,
}

impl<T> Default for Settings<T> {
    fn default() -> Self {
        Self {
            enabled: false,
            exempt: BTreeSet::new(),
            limits: Limits::default(),
        }
    }
}

impl<T> Settings<T> {
    /// Throttles everybody by `limits`.
    pub fn new(limits: Limits) -> Self {
        Self {
            enabled: true,
            exempt: BTreeSet::new(),
            limits,
        }
    }
}

/// One value that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The field of [`Limits`], or the name of a parameter.
    pub field: String,
    /// The value it has.
    pub value: String,
    /// What would be accepted.
    pub expected: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} is {}, expected {}",
            self.field, self.value, self.expected
        )
    }
}

/// Some settings cannot be used; lists all that are wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
pub struct InvalidSettings(pub Vec<Problem>);

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(change: impl FnOnce(&mut Limits), expected: &[&str]) {
        let mut limits = Limits::default();
        change(&mut limits);
        let found: Vec<_> = limits.problems().iter().map(ToString::to_string).collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn defaults_are_in_range() {
        check(|_| (), &[]);
    }

    #[test]
    fn every_bad_value_is_named_with_its_range() {
        check(
            |limits| {
                limits.threshold = 0;
                limits.window = Duration::from_millis(5);
                limits.base_delay = Duration::from_secs(61);
            },
            &[
                "threshold is 0, expected 1 to 1000000",
                "window is 5ms, expected 1s to 3600s",
                "base_delay is 61s, expected 10ms to 60s",
                "max_delay is 10s, expected 61s to 600s",
            ],
        );
    }

    #[test]
    fn the_maximum_is_not_below_the_base() {
        check(
            |limits| limits.max_delay = Duration::from_millis(999),
            &["max_delay is 999ms, expected 1s to 600s"],
        );
        check(|limits| limits.max_delay = Duration::from_secs(1), &[]);
    }
}

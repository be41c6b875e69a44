//! The table of loads: what a policy makes of each, and how many pushes remain after the debouncer.

use std::time::{Duration, Instant, SystemTime};

use debounce::{Debouncer, Merge, Options, Window};
use throttle::{
    Labels, Limits, Now, Registration,
    simulation::{Load, Outcome, play},
};

/// One line of the table.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Line {
    /// The load.
    pub(crate) load: &'static str,
    /// Events that came in.
    pub(crate) events: u64,
    /// How many of them were held.
    pub(crate) held: u64,
    /// The longest time one was held.
    pub(crate) longest: Duration,
    /// Events that went on.
    pub(crate) released: u64,
    /// Batches that the debouncer made of them.
    pub(crate) pushes: u64,
    /// The most pushes within one minute, after the first (in which a load may still be tolerated).
    pub(crate) busiest_minute: u64,
}

/// Plays every example load against `policy`.
///
/// # Panics
/// If the policy refuses the default limits.
pub(crate) fn table(policy: Registration) -> Vec<Line> {
    Load::examples()
        .iter()
        .map(|load| line(policy, load))
        .collect()
}

fn line(policy: Registration, load: &Load) -> Line {
    let limits = Limits::default();
    let outcome = play(policy, &limits, &Labels::new(), start(), &load.arrivals)
        .expect("the defaults are in range");
    let pushes = pushes(&outcome);
    let busiest_minute = busiest_minute(&pushes);
    Line {
        load: load.name,
        events: load.arrivals.len() as u64,
        held: outcome.held,
        longest: outcome.longest(),
        released: outcome.released.len() as u64,
        pushes: pushes.len() as u64,
        busiest_minute,
    }
}

/// The most of `pushes` within any minute that begins after the first one.
fn busiest_minute(pushes: &[Duration]) -> u64 {
    let minute = Duration::from_mins(1);
    let mut most = 0;
    let mut begin = 0;
    for (end, at) in pushes.iter().enumerate() {
        while pushes[begin] + minute <= *at || pushes[begin] < minute && begin < end {
            begin += 1;
        }
        if pushes[begin] >= minute {
            most = most.max(end - begin + 1);
        }
    }
    most as u64
}

/// When the default debouncer would deliver what was released; a push costs nothing here.
fn pushes(outcome: &Outcome) -> Vec<Duration> {
    let start = start().at;
    let mut debouncer = Debouncer::new(Options::new(Window::default()));
    let mut pushes = Vec::new();
    let mut fire = |debouncer: &mut Debouncer<Nothing>, until: Option<Instant>| {
        while let Some(due) = debouncer.deadline()
            && until.is_none_or(|until| due <= until)
        {
            if debouncer.on_timer(due).is_some() {
                pushes.push(due.duration_since(start));
                debouncer.on_finished(due);
            }
        }
    };
    for released in &outcome.released {
        fire(&mut debouncer, Some(start + released.at));
        debouncer.on_event(start + released.at, Nothing);
    }
    fire(&mut debouncer, None);
    pushes
}

#[expect(
    clippy::disallowed_methods,
    reason = "any origin of virtual time does; it is never waited"
)]
fn start() -> Now {
    static START: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    Now {
        at: *START.get_or_init(Instant::now),
        wall: SystemTime::UNIX_EPOCH,
    }
}

struct Nothing;

impl Merge for Nothing {
    fn merge(&mut self, _newer: Self) {}
}

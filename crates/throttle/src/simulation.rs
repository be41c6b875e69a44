//! Plays a load of one tenant against a policy, in virtual time.
//!
//! For the tests of policy authors, and for answering "what would this setting have done". Nothing
//! waits: hours take milliseconds.

use std::{fmt, time::Duration};

use crate::{
    Engine, Event, InvalidSettings, Labels, Limits, Now, Output, Registration, Scope, Settings,
};

/// A load: when the events of one tenant arrive, counted from the start, ascending.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Load {
    /// What it stands for.
    pub name: &'static str,
    /// Arrival times.
    pub arrivals: Vec<Duration>,
}

/// What became of a load.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Outcome {
    /// The events that went on, in order.
    pub released: Vec<Released>,
    /// How many events were held.
    pub held: u64,
}

/// One event that went on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Released {
    /// When, counted from the start.
    pub at: Duration,
    /// How many events it stands for.
    pub events: u64,
    /// How long the oldest of them was held.
    pub waited: Duration,
}

impl Outcome {
    /// The longest time an event was held.
    pub fn longest(&self) -> Duration {
        self.released
            .iter()
            .map(|released| released.waited)
            .max()
            .unwrap_or_default()
    }
}

impl Load {
    /// Events at a steady `per_second` for `length`, the first at zero.
    #[expect(clippy::cast_precision_loss, reason = "far fewer than 2^52 events")]
    pub fn steady(name: &'static str, per_second: f64, length: Duration) -> Self {
        let mut arrivals = Vec::new();
        let mut at = Duration::ZERO;
        while at < length {
            arrivals.push(at);
            // Not a sum of gaps, which would add up their rounding.
            at = Duration::from_secs_f64(arrivals.len() as f64 / per_second);
        }
        Self { name, arrivals }
    }

    /// The five loads by which the default policy is judged: a rollout, a scale-up, a burst, a
    /// controller that writes in a loop, and `CronJob`s that churn.
    pub fn examples() -> Vec<Self> {
        let seconds = Duration::from_secs;
        vec![
            Self::steady("rollout of 200 pods, 3/s for 60 s", 3.0, seconds(60)),
            Self::steady("scale-up by 50 pods, 1.5/s for 30 s", 1.5, seconds(30)),
            Self {
                name: "ten objects at once",
                arrivals: vec![Duration::ZERO; 10],
            },
            Self::steady("loop at 10/s, an hour of it", 10.0, seconds(3_600)),
            Self::churn("CronJob churn at 5-10/s for 2 h", 5, 10, seconds(7_200)),
        ]
    }

    /// Events at a rate that wanders between `least` and `most` per second, always alike.
    fn churn(name: &'static str, least: u64, most: u64, length: Duration) -> Self {
        let mut arrivals = Vec::new();
        let mut at = Duration::ZERO;
        let mut random: u64 = 0x9E37_79B9_7F4A_7C15;
        while at < length {
            arrivals.push(at);
            // xorshift64: enough to be irregular, and the same everywhere.
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            let (shortest, longest) = (1_000_000 / most, 1_000_000 / least);
            at += Duration::from_micros(shortest + random % (longest - shortest + 1));
        }
        Self { name, arrivals }
    }
}

/// Plays `arrivals` of one tenant with `labels` against `policy`, beginning at `start`, until
/// everything has gone on.
///
/// # Errors
/// [`InvalidSettings`] when the limits are out of range or the policy refuses them.
pub fn play(
    policy: Registration,
    limits: &Limits,
    labels: &Labels,
    start: Now,
    arrivals: &[Duration],
) -> Result<Outcome, InvalidSettings> {
    let labels = labels.clone();
    let mut engine = Engine::<Tick>::new(Settings::new(limits.clone()), policy)?
        .with_labels(move |_| labels.clone());
    let mut outcome = Outcome::default();
    let mut out = Output::default();
    let moment = |after: Duration| Now {
        at: start.at + after,
        wall: start.wall + after,
    };
    for arrival in arrivals {
        run_until(&mut engine, start, *arrival, &mut out, &mut outcome);
        engine.on_event(moment(*arrival), Tick, &mut out);
        outcome.take(*arrival, &mut out);
    }
    while engine.staged() > 0
        && let Some(due) = engine.deadline()
    {
        let at = due.saturating_duration_since(start.at);
        run_until(&mut engine, start, at, &mut out, &mut outcome);
    }
    Ok(outcome)
}

/// Fires the timers up to and including `until`.
fn run_until(
    engine: &mut Engine<Tick>,
    start: Now,
    until: Duration,
    out: &mut Output<Tick>,
    outcome: &mut Outcome,
) {
    while let Some(due) = engine.deadline().filter(|due| *due <= start.at + until) {
        let at = due.saturating_duration_since(start.at);
        engine.on_timer(
            Now {
                at: due,
                wall: start.wall + at,
            },
            out,
        );
        outcome.take(at, out);
    }
}

impl Outcome {
    fn take(&mut self, at: Duration, out: &mut Output<Tick>) {
        for release in out.released.drain(..) {
            self.released.push(Released {
                at,
                events: release.events,
                waited: release.waited,
            });
        }
        for notice in out.notices.drain(..) {
            if let crate::Notice::Held { .. } = notice {
                self.held += 1;
            }
        }
    }
}

/// The only tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Only;

impl fmt::Display for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("simulated")
    }
}

/// An event without content.
#[derive(Debug)]
struct Tick;

impl Event for Tick {
    type Tenant = Only;
    type Object = Only;

    fn scope(&self) -> Scope<'_, Only> {
        Scope::Tenant(&Only)
    }

    fn split(self) -> Vec<(Option<Only>, Self)> {
        vec![(Some(Only), self)]
    }

    fn merge(&mut self, _newer: Self) {}
}

//! Who of the replicas writes: the one that holds a Lease.
//!
//! [`Election`] decides from what it reads and when; [`follow`] asks the API server. A holder is believed
//! for as long as its record changes: clocks of two machines are never compared. Who leads stops to when
//! it could not renew in time, which is before anybody else may take over.

mod driver;

use std::time::Duration;

use tokio::time::Instant;

pub use self::driver::follow;

/// Times of an election.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// How long a record is believed that does not change; whole seconds.
    pub lease: Duration,
    /// How long a leader stays one that cannot renew. Less than `lease`.
    pub renew: Duration,
    /// Time between two looks.
    pub retry: Duration,
}

impl Timing {
    /// Istio's proportions of a lease of so many seconds: a half to renew, a quarter between looks.
    pub fn of(seconds: u32) -> Self {
        let lease = Duration::from_secs(seconds.into());
        Self {
            lease,
            renew: lease / 2,
            retry: lease / 4,
        }
    }
}

impl Default for Timing {
    /// Istio's: 30 s.
    fn default() -> Self {
        Self::of(30)
    }
}

/// What a Lease says.
#[derive(Clone, Default, PartialEq, Eq, Debug)]
pub struct Record {
    /// Who holds it; empty when it was given up.
    pub holder: String,
    /// When it was renewed last, as the holder wrote it: two records with one text are one.
    pub renewed: String,
    /// How long the holder wants to be believed.
    pub duration: Duration,
    /// How often it went to another holder.
    pub transitions: i32,
    /// The version of the object that it was read from.
    pub version: String,
}

/// What to do about a Lease.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Make it.
    Create,
    /// Take it, or keep it, if it is still of this version; so often it went to another then.
    Replace {
        /// The version that is replaced.
        version: String,
        /// Transitions to write.
        transitions: i32,
        /// It was another's, so that its time begins anew.
        taken: bool,
    },
    /// Leave it alone.
    Wait,
}

/// One candidate. Without I/O.
#[derive(Debug)]
pub struct Election {
    identity: String,
    timing: Timing,
    /// The record that was read last, and since when it has been that.
    seen: Option<(Record, Instant)>,
    /// When our own record was written last, counted from before it was sent.
    held_since: Option<Instant>,
}

impl Election {
    /// A candidate that leads nothing yet.
    pub fn new(identity: impl Into<String>, timing: Timing) -> Self {
        Self {
            identity: identity.into(),
            timing,
            seen: None,
            held_since: None,
        }
    }

    /// Takes in what the Lease says, `None` if there is none, and says what to do.
    pub fn on_read(&mut self, now: Instant, found: Option<Record>) -> Step {
        let Some(record) = found else {
            self.seen = None;
            return Step::Create;
        };
        let since = match &self.seen {
            Some((seen, since)) if *seen == record => *since,
            _ => now,
        };
        let own = record.holder == self.identity;
        if !own {
            // Whatever we thought: another one was faster.
            self.held_since = None;
        }
        let free = record.holder.is_empty() || now >= since + record.duration;
        let step = if own || free {
            Step::Replace {
                version: record.version.clone(),
                transitions: record.transitions + i32::from(!own),
                taken: !own,
            }
        } else {
            Step::Wait
        };
        self.seen = Some((record, since));
        step
    }

    /// Takes in that a step was carried out that began at `begun`.
    pub fn on_written(&mut self, begun: Instant) {
        self.held_since = Some(begun);
    }

    /// Until when this one leads, if nothing else happens; `None` when it does not lead.
    pub fn leads_until(&self) -> Option<Instant> {
        self.held_since.map(|since| since + self.timing.renew)
    }

    /// Returns whether this one leads.
    pub fn leads(&self, now: Instant) -> bool {
        self.leads_until().is_some_and(|until| now < until)
    }

    /// Who this one is.
    pub fn identity(&self) -> &str {
        &self.identity
    }

    /// The times that it keeps.
    pub fn timing(&self) -> Timing {
        self.timing
    }
}

#[cfg(test)]
mod tests;

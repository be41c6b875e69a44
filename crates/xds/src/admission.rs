//! How many streams may start in a second.

use std::time::{Duration, Instant};

/// Spreads new streams evenly over time: each gets the next free slot, in order of arrival.
#[derive(Debug)]
pub(crate) struct Admission {
    /// Between two streams; zero for no limit.
    pause: Duration,
    /// The longest wait that is not refused.
    patience: Duration,
    /// When the next slot is free.
    next: Option<Instant>,
    closed: bool,
}

/// What a new stream has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Turn {
    /// Start now.
    Now,
    /// Wait for its turn.
    At(Instant),
    /// Too many are waiting.
    Refused,
    /// The server is going.
    Closed,
}

impl Admission {
    pub(crate) fn new(per_second: Option<f64>, patience: Duration) -> Self {
        let pause = per_second
            .filter(|rate| rate.is_finite() && *rate > 0.0)
            .map_or(Duration::ZERO, |rate| Duration::from_secs_f64(1.0 / rate));
        Self {
            pause,
            patience,
            next: None,
            closed: false,
        }
    }

    /// Refuses all streams from now on.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// Takes in a new stream.
    pub(crate) fn on_stream(&mut self, now: Instant) -> Turn {
        if self.closed {
            return Turn::Closed;
        }
        if self.pause.is_zero() {
            return Turn::Now;
        }
        let turn = self.next.filter(|next| *next > now).unwrap_or(now);
        if turn.saturating_duration_since(now) > self.patience {
            return Turn::Refused;
        }
        self.next = Some(turn + self.pause);
        if turn == now {
            Turn::Now
        } else {
            Turn::At(turn)
        }
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "any instant will do as the origin"
)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn streams_get_slots_in_order_and_a_long_queue_is_refused() {
        let start = Instant::now();
        let mut admission = Admission::new(Some(2.0), ms(1000));
        let turns: Vec<Turn> = (0..4).map(|_| admission.on_stream(start)).collect();
        let expected = [
            Turn::Now,
            Turn::At(start + ms(500)),
            Turn::At(start + ms(1000)),
            Turn::Refused,
        ];
        assert_eq!(turns, expected);
        // The refused one took no slot.
        assert_eq!(
            admission.on_stream(start + ms(600)),
            Turn::At(start + ms(1500))
        );
        assert_eq!(admission.on_stream(start + ms(9000)), Turn::Now);
    }

    #[test]
    fn without_a_rate_there_is_no_limit() {
        let start = Instant::now();
        let mut admission = Admission::new(None, ms(0));
        assert!((0..1000).all(|_| admission.on_stream(start) == Turn::Now));
        admission.close();
        assert_eq!(admission.on_stream(start), Turn::Closed);
    }
}

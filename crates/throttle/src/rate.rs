//! Counting events over a sliding window.

use std::time::{Duration, Instant};

/// Into how many slots a window is divided.
pub const SLOTS: u8 = 32;

/// Counts events of the last window in constant memory.
///
/// The window is cut into [`SLOTS`] slots. The count never exceeds the true number of events within the
/// window, and misses at most those of its oldest slot (about 3 % of the window): a rate below a
/// threshold is never mistaken for one above it.
#[derive(Debug, Clone)]
pub struct RateWindow {
    width: Duration,
    counts: [u32; SLOTS as usize],
    /// Start of slot number 0: the first event since the window was empty.
    origin: Option<Instant>,
    /// Number of the newest slot since the origin.
    newest: u64,
}

impl RateWindow {
    /// Makes an empty counter over `window`.
    pub fn new(window: Duration) -> Self {
        // At least 1 ns, so that the number of a slot is defined.
        let width = (window / u32::from(SLOTS)).max(Duration::from_nanos(1));
        Self {
            width,
            counts: [0; SLOTS as usize],
            origin: None,
            newest: 0,
        }
    }

    /// Changes the length of the window; starts counting anew if it differs.
    pub fn set_window(&mut self, window: Duration) {
        let fresh = Self::new(window);
        if fresh.width != self.width {
            *self = fresh;
        }
    }

    /// Counts one event and returns how many the window holds, this one included.
    pub fn record(&mut self, now: Instant) -> u64 {
        self.advance(now);
        if self.total() == 0 {
            // As a new one: whether an empty window is kept or dropped makes no difference.
            (self.origin, self.newest) = (Some(now), 0);
        }
        let slot = &mut self.counts[index(self.newest)];
        *slot = slot.saturating_add(1);
        self.total()
    }

    /// How many events the window holds.
    pub fn count(&mut self, now: Instant) -> u64 {
        self.advance(now);
        self.total()
    }

    /// Events per second since the oldest event in the window, at least over one slot.
    pub fn rate(&self, now: Instant) -> f64 {
        let mut current = self.clone();
        current.advance(now);
        let Some(origin) = current.origin else {
            return 0.0;
        };
        let first = current.newest.saturating_sub(u64::from(SLOTS) - 1);
        let Some(oldest) = (first..=current.newest).find(|slot| current.counts[index(*slot)] > 0)
        else {
            return 0.0;
        };
        let nanos = u64::try_from(self.width.as_nanos()).unwrap_or(u64::MAX);
        let begin = origin + Duration::from_nanos(nanos.saturating_mul(oldest));
        let span = now.saturating_duration_since(begin).max(self.width);
        #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
        let total = current.total() as f64;
        total / span.as_secs_f64()
    }

    fn advance(&mut self, now: Instant) {
        let origin = *self.origin.get_or_insert(now);
        let elapsed = now.saturating_duration_since(origin).as_nanos();
        let number = u64::try_from(elapsed / self.width.as_nanos()).unwrap_or(u64::MAX);
        let passed = number.saturating_sub(self.newest).min(u64::from(SLOTS));
        for step in 1..=passed {
            self.counts[index(number - passed + step)] = 0;
        }
        self.newest = self.newest.max(number);
    }

    fn total(&self) -> u64 {
        self.counts.iter().map(|count| u64::from(*count)).sum()
    }
}

fn index(slot: u64) -> usize {
    usize::try_from(slot % u64::from(SLOTS)).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::sync::LazyLock;

    use proptest::prelude::*;

    use super::*;

    #[expect(
        clippy::disallowed_methods,
        reason = "any fixed origin of virtual time does"
    )]
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

    fn at(millis: u64) -> Instant {
        *EPOCH + Duration::from_millis(millis)
    }

    #[test]
    fn counts_slide_out_of_the_window() {
        let mut window = RateWindow::new(Duration::from_secs(32));
        assert_eq!(window.record(at(0)), 1);
        assert_eq!(window.record(at(500)), 2);
        assert_eq!(window.record(at(1_000)), 3);
        assert_eq!(window.count(at(31_999)), 3);
        assert_eq!(window.count(at(32_000)), 1);
        assert_eq!(window.count(at(33_000)), 0);
        assert_eq!(window.record(at(1_000_000)), 1);
    }

    #[test]
    fn rate_is_that_of_the_time_since_the_oldest_event() {
        let mut window = RateWindow::new(Duration::from_secs(32));
        assert!(window.rate(at(0)).abs() < f64::EPSILON);
        for n in 0..100 {
            window.record(at(n * 100));
        }
        let rate = window.rate(at(10_000));
        assert!((9.0..11.0).contains(&rate), "{rate}");
    }

    proptest! {
        #[test]
        fn never_above_the_true_count_and_close_below_it(
            gaps in prop::collection::vec(0_u64..3_000, 1..200),
        ) {
            let length = 3_200;
            let mut window = RateWindow::new(Duration::from_millis(length));
            let mut times = Vec::new();
            let mut now = 0;
            for gap in gaps {
                now += gap;
                times.push(now);
                let counted = window.record(at(now));
                let within = |span: u64| {
                    times.iter().filter(|time| **time + span > now).count() as u64
                };
                prop_assert!(counted <= within(length));
                prop_assert!(counted >= within(length - length / u64::from(SLOTS)));
            }
        }
    }
}

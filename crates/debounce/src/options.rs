//! How long events may wait.

use std::time::Duration;

/// The shortest quiet time that the adaptive mode chooses (1 ms).
///
/// Below it a burst that arrives over a network would be cut by scheduling noise alone.
pub const MIN_QUIET: Duration = Duration::from_millis(1);

/// The two bounds of a batch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// Quiet time: a batch closes when no event came for this long. Zero delivers each event at
    /// once, unless the consumer is busy.
    pub after: Duration,
    /// The longest that the first event of a batch waits for more (not counting the time that a
    /// busy consumer adds). A value below `after` makes `after` irrelevant.
    pub max: Duration,
}

impl Default for Window {
    /// Istio's defaults: 100 ms and 10 s.
    fn default() -> Self {
        Self {
            after: Duration::from_millis(100),
            max: Duration::from_secs(10),
        }
    }
}

/// The options of a [`Debouncer`](crate::Debouncer) over events `E`.
#[derive(Debug)]
#[non_exhaustive]
pub struct Options<E> {
    /// Quiet and maximum time.
    pub window: Window,
    /// Lets the quiet time follow the measured cost of consuming a batch (default off).
    ///
    /// The quiet time is then that cost, at least [`MIN_QUIET`] and at most `window.after`; it rises
    /// to a higher cost at once and falls towards a lower one by half the difference per batch. So
    /// where a batch costs 3 ms an isolated event waits 3 ms, and where it costs seconds the settings
    /// apply as they stand: the mode never makes an event wait longer than without it.
    pub adaptive: bool,
    /// Picks events that are never held (default: none). They are delivered at once and by
    /// themselves, also while a batch is being consumed, and count in no batch.
    pub bypass: fn(&E) -> bool,
}

impl<E> Options<E> {
    /// Debounces every event by `window`, not adaptively.
    pub fn new(window: Window) -> Self {
        Self {
            window,
            adaptive: false,
            bypass: |_| false,
        }
    }

    /// Sets whether the quiet time follows the cost of a batch.
    #[must_use]
    pub fn adaptive(mut self, adaptive: bool) -> Self {
        self.adaptive = adaptive;
        self
    }

    /// Sets which events are never held.
    #[must_use]
    pub fn bypass(mut self, bypass: fn(&E) -> bool) -> Self {
        self.bypass = bypass;
        self
    }
}

impl<E> Default for Options<E> {
    fn default() -> Self {
        Self::new(Window::default())
    }
}

impl<E> Clone for Options<E> {
    fn clone(&self) -> Self {
        Self {
            window: self.window,
            adaptive: self.adaptive,
            bypass: self.bypass,
        }
    }
}

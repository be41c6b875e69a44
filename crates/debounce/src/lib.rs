//! Coalesces mergeable events: quiet time, maximum time, one consumer at a time.
//!
//! Many small events become few batches. A batch closes when no event came for the quiet time, or
//! when its first event has waited for the maximum; while the consumer works on one batch, events
//! gather for the next. [`Debouncer`] is the state machine (values in, actions out, no clock), and
//! [`Driver`] the thin tokio task around it, fed through [`Intake`].
//!
//! ```
//! use std::{collections::BTreeSet, time::{Duration, Instant}};
//! use debounce::{Debouncer, Options, Window};
//!
//! let window = Window { after: Duration::from_millis(100), max: Duration::from_secs(10) };
//! let mut debouncer = Debouncer::new(Options::new(window));
//! let t0 = Instant::now();
//! assert!(debouncer.on_event(t0, BTreeSet::from(["a"])).is_none());
//! let t1 = t0 + Duration::from_millis(60);
//! assert!(debouncer.on_event(t1, BTreeSet::from(["b"])).is_none());
//! assert_eq!(debouncer.deadline(), Some(t1 + window.after));
//! let batch = debouncer.on_timer(t1 + window.after).expect("due");
//! assert_eq!((batch.event, batch.events), (BTreeSet::from(["a", "b"]), 2));
//! ```
//!
//! What it does not do: it knows no keys, reorders nothing, drops nothing, and has no metrics of its
//! own; a [`Batch`] carries the times and counts that a consumer needs to report.

mod debouncer;
mod driver;
mod merge;
mod options;
mod progress;

pub use debouncer::{Batch, Debouncer, Lane};
pub use driver::{Closed, DEFAULT_QUEUE, Driver, Intake, MAX_BYPASSING};
pub use merge::Merge;
pub use options::{MIN_QUIET, Options, Window};
pub use progress::Progress;

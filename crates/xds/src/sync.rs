//! Locks, and what unit tests need to try their interleavings.
//!
//! Under `shuttle` all threads of a test take turns on one thread of the system, and where each
//! takes its turn is drawn at random. A lock is where turns change: what happens between two of them
//! is seen by nobody else.

#[cfg(not(test))]
pub(crate) use parking_lot::Mutex;
#[cfg(test)]
pub(crate) use turns::{Mutex, interleaved, turn, with_turns};

#[cfg(test)]
mod turns {
    use std::cell::Cell;
    use std::fmt;

    use parking_lot::MutexGuard;

    thread_local! {
        static INTERLEAVED: Cell<bool> = const { Cell::new(false) };
    }

    /// Returns whether `shuttle` schedules what runs now.
    pub(crate) fn interleaved() -> bool {
        INTERLEAVED.get()
    }

    /// Lets others take their turn, where there are turns.
    pub(crate) fn turn() {
        if interleaved() {
            shuttle::thread::yield_now();
        }
    }

    /// Runs `explore`, a check of `shuttle`, in which locks are turns.
    pub(crate) fn with_turns(explore: impl FnOnce()) {
        INTERLEAVED.set(true);
        explore();
        INTERLEAVED.set(false);
    }

    /// A lock that yields before it is taken.
    #[derive(Default)]
    pub(crate) struct Mutex<T>(parking_lot::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) const fn new(value: T) -> Self {
            Self(parking_lot::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
            if !interleaved() {
                return self.0.lock();
            }
            loop {
                turn();
                // Whoever holds it runs on the same thread, so waiting would be for ever.
                if let Some(guard) = self.0.try_lock() {
                    return guard;
                }
            }
        }
    }

    impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
        fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            self.0.fmt(f)
        }
    }
}

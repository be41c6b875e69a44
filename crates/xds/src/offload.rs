//! The one way to CPU work.

use std::panic::{AssertUnwindSafe, catch_unwind};

use rayon::prelude::*;
use tokio::sync::oneshot;

/// The work panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the work panicked")]
pub(crate) struct Panicked;

/// Runs `work` on the pool for CPU work and returns its result without blocking the task.
pub(crate) async fn offload<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Panicked> {
    #[cfg(test)]
    if crate::sync::interleaved() {
        crate::sync::turn();
        return catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked);
    }
    let (sender, receiver) = oneshot::channel();
    rayon::spawn(move || {
        // Nobody waits any more when the stream has ended meanwhile.
        drop(sender.send(catch_unwind(AssertUnwindSafe(work)).map_err(|_| Panicked)));
    });
    receiver.await.unwrap_or(Err(Panicked))
}

/// Has `work` done on the pool for CPU work, some time soon. What it panics over is logged.
pub(crate) fn later(work: impl FnOnce() + Send + 'static) {
    let work = || {
        if catch_unwind(AssertUnwindSafe(work)).is_err() {
            tracing::error!("work that nobody waits for panicked");
        }
    };
    #[cfg(test)]
    if crate::sync::interleaved() {
        return work();
    }
    rayon::spawn(work);
}

/// Does `work` for every item, on the pool for CPU work.
pub(crate) fn for_each<T: Sync>(items: &[T], work: impl Fn(&T) + Sync + Send) {
    #[cfg(test)]
    if crate::sync::interleaved() {
        return items.iter().for_each(work);
    }
    items.par_iter().for_each(work);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_panic_is_an_error() {
        assert_eq!(offload(|| 1).await, Ok(1));
        let bad = || assert!(Panicked.to_string().is_empty(), "on purpose");
        assert_eq!(offload(bad).await, Err(Panicked));
    }
}

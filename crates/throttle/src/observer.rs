//! The hook for metrics.

/// Hears what the engine does, for metrics. Called from the driver's task: must not block.
pub trait Observer<T>: Send {
    /// One event of `tenant` was held.
    fn held(&mut self, tenant: &T);
    /// Throttling of `tenant` started (`true`) or ended.
    fn active(&mut self, tenant: &T, active: bool);
    /// `tenant` has been quiet for a window, or is deleted: its series can go.
    fn forgotten(&mut self, tenant: &T);
}

/// Observes nothing.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoObserver;

impl<T> Observer<T> for NoObserver {
    fn held(&mut self, _tenant: &T) {}
    fn active(&mut self, _tenant: &T, _active: bool) {}
    fn forgotten(&mut self, _tenant: &T) {}
}

//! What an event must be able to do.

use std::fmt;

/// An event that belongs to tenants, can be split by them and merged again.
///
/// The laws that the engine relies on, and that property tests of an implementation should state:
///
/// - `merge` is associative;
/// - `split` and `split_urgent` lose nothing: merging the parts gives the event back;
/// - the parts of `split` name each tenant once, and `scope` agrees with it.
pub trait Event: Sized {
    /// The tenant key, a namespace for instance.
    type Tenant: Ord + Clone + fmt::Display + fmt::Debug;
    /// What an event changes, for the list of the noisiest objects.
    type Object: Ord + Clone + fmt::Display + fmt::Debug;

    /// Says whose event this is, cheaply and without allocating.
    fn scope(&self) -> Scope<'_, Self::Tenant>;

    /// Splits an event of [`Scope::Mixed`] into one part per tenant. Parts of nobody (`None`) pass.
    fn split(self) -> Vec<(Option<Self::Tenant>, Self)>;

    /// Folds `newer` into `self`.
    fn merge(&mut self, newer: Self);

    /// Whether some part of the event must not wait longer than the base delay, such as the removal of
    /// an endpoint. Default: never.
    fn is_urgent(&self) -> bool {
        false
    }

    /// Splits off the urgent part: `(urgent, rest)`.
    ///
    /// Called on a *merged* event. To keep the order per object, the urgent part takes with it whatever
    /// the event holds about the objects that are urgent, older changes included. An implementation
    /// that cannot separate its parts returns `(Some(self), None)`, which is the default.
    fn split_urgent(self) -> (Option<Self>, Option<Self>) {
        (Some(self), None)
    }

    /// Calls `visit` for each object that the event changes. Called for held events only. Default:
    /// names none.
    fn objects(&self, _visit: &mut dyn FnMut(&Self::Object)) {}
}

/// Whose event it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope<'a, T> {
    /// Everybody's, or nobody's in particular: passes unchanged and at once, even past older events
    /// that are held. So it must not carry state of a tenant whose order matters.
    Global,
    /// One tenant's.
    Tenant(&'a T),
    /// Several tenants', to be split.
    Mixed,
}

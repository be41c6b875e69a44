//! Filters that users add by extension objects, by where they stand among the built-in ones.

/// Filters of one chain by phase, each in its own order (telemetry-extensions §14).
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Phases<F> {
    /// Before authentication.
    pub authn: Vec<F>,
    /// Before authorization.
    pub authz: Vec<F>,
    /// Before metrics.
    pub stats: Vec<F>,
    /// After all of these.
    pub unspecified: Vec<F>,
}

impl<F> Default for Phases<F> {
    fn default() -> Self {
        Self {
            authn: Vec::new(),
            authz: Vec::new(),
            stats: Vec::new(),
            unspecified: Vec::new(),
        }
    }
}

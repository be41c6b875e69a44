//! The seam to the admission rules: every decoded object passes through here.

use model::Object;

use crate::report::Severity;

/// What an admission rule says of one field.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Problem {
    /// Path of the field in the object.
    pub(crate) field: String,
    /// What is wrong, in words.
    pub(crate) reason: String,
    /// [`Severity::Error`] refuses the object.
    pub(crate) severity: Severity,
}

/// Applies the admission rules of the object's kind (config-model §5).
pub(crate) fn validate(_object: &Object) -> Vec<Problem> {
    Vec::new()
}

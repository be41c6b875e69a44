//! The seam to the admission rules: every decoded object passes through here.

use model::{
    Object,
    validation::{self, CheckPatch},
};
use serde_json::Value;

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

/// Applies the admission rules of the object's kind (config-model §5). `raw` is the object as it
/// was read; `check_patch` judges the values of `EnvoyFilter` patches.
pub(crate) fn validate(
    object: &Object,
    raw: &Value,
    check_patch: Option<CheckPatch>,
) -> Vec<Problem> {
    let issues = validation::validate_object(object, Some(raw), check_patch);
    issues
        .into_iter()
        .map(|issue| Problem {
            field: issue.path,
            reason: issue.reason,
            severity: match issue.severity {
                validation::Severity::Error => Severity::Error,
                validation::Severity::Warning => Severity::Warning,
            },
        })
        .collect()
}

//! What the control plane makes of a case: where the runner meets the product.

use anyhow::{Result, bail};

use crate::conformance::{Outcome, case::CaseInput};

/// Generates what each proxy of a case would receive, and lists what validation refuses.
///
/// # Errors
/// When the input cannot be loaded at all.
pub fn generate(input: &CaseInput) -> Result<Outcome> {
    bail!("{}: nothing generates resources yet", input.id)
}

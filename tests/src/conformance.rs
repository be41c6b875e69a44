//! Runs the conformance corpus: what does the Go istiod send, and what do we?
//!
//! [`load`](case::load) reads cases, a [`Generate`] function says what we send, [`expected`] compares;
//! [`lists`] are the files that say what passes and which differences are deliberate.

pub mod case;
pub mod expected;
pub mod lists;
pub mod report;

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    panic::{self, AssertUnwindSafe, catch_unwind},
    path::Path,
    sync::Once,
};

use anyhow::Result;
use rayon::prelude::*;
use serde_json::Value;

use case::{Case, CaseInput};
use expected::{Found, ObjectId};
use lists::Accepted;

/// What we make of a case.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// By proxy: the object of lists (`clusters`, `endpoints`, ...), as in a full expected file.
    pub proxies: BTreeMap<String, Value>,
    /// The objects that validation refuses.
    pub refused: Vec<ObjectId>,
}

/// Says what we make of a case.
pub type Generate<'a> = &'a (dyn Fn(&CaseInput) -> Result<Outcome> + Sync);

/// The result of one case.
#[derive(Debug)]
pub struct CaseResult {
    /// The case.
    pub case: Case,
    /// Differences that are not accepted; none means that the case passes.
    pub differences: Vec<Found>,
    /// Why there was nothing to compare.
    pub failure: Option<String>,
    /// Numbers of the accepted differences that occurred.
    pub accepted: Vec<usize>,
    /// What we made of it.
    pub outcome: Outcome,
}

impl CaseResult {
    /// Whether we send what is expected.
    pub fn passes(&self) -> bool {
        self.differences.is_empty() && self.failure.is_none()
    }
}

thread_local! {
    /// Whether this thread generates for a case.
    static IN_CASE: Cell<bool> = const { Cell::new(false) };
    /// What the last panic of this thread said, and where.
    static LAST_PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs cases in parallel; the results come in the order of the cases.
///
/// A panic fails its case alone.
pub fn run(
    root: &Path,
    cases: Vec<Case>,
    accepted: &[Accepted],
    generate: Generate<'_>,
) -> Vec<CaseResult> {
    let bases = expected::RecordedBases::new(root);
    tell_panics_with_their_case();
    cases
        .into_par_iter()
        .map(|case| run_case(&bases, case, accepted, generate))
        .collect()
}

/// Keeps the panics of a case for its result; others are reported as ever.
fn tell_panics_with_their_case() {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let other = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if IN_CASE.get() {
                LAST_PANIC.set(Some(info.to_string()));
            } else {
                other(info);
            }
        }));
    });
}

fn run_case(
    bases: &expected::RecordedBases,
    case: Case,
    accepted: &[Accepted],
    generate: Generate<'_>,
) -> CaseResult {
    let mut result = CaseResult {
        case,
        differences: Vec::new(),
        failure: None,
        accepted: Vec::new(),
        outcome: Outcome::default(),
    };
    let expected = result
        .case
        .input()
        .and_then(|input| Ok((input, bases.expected(&result.case)?)));
    let (input, expected) = match expected {
        Ok(pair) => pair,
        Err(error) => {
            result.failure = Some(format!("cannot load: {error:#}"));
            return result;
        }
    };
    // The generator takes no locks that a panic could leave in a bad state.
    IN_CASE.set(true);
    let generated = catch_unwind(AssertUnwindSafe(|| generate(&input)));
    IN_CASE.set(false);
    match generated {
        Ok(Ok(outcome)) => result.outcome = outcome,
        Ok(Err(error)) => result.failure = Some(format!("{error:#}")),
        Err(_) => {
            let panic = LAST_PANIC.take().unwrap_or_default();
            result.failure = Some(format!("panic: {panic}"));
        }
    }
    if result.failure.is_some() {
        return result;
    }
    for found in expected.compare(&result.outcome) {
        match accepted
            .iter()
            .position(|accepted| accepted.covers(&result.case.id, &found))
        {
            Some(number) => result.accepted.push(number),
            None => result.differences.push(found),
        }
    }
    result
}

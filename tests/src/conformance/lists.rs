//! `passing.txt` and `accepted.txt`.

use std::{collections::BTreeSet, fs};

use anyhow::{Context, Result, bail};

use super::{CaseResult, expected::Found};
use crate::corpus;

const PASSING: &str = "tests/conformance/passing.txt";
const ACCEPTED: &str = "tests/conformance/accepted.txt";
/// Number of laws in the design.
const LAWS: u32 = 11;

/// A deliberate difference: one line of `accepted.txt`.
///
/// `<area>/<case> <path prefix> law <number>: <reason>`; either of the first two may be `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Accepted {
    /// Number of the line, from 1.
    pub line: usize,
    case: String,
    path: String,
    /// Number of the law that the difference serves.
    pub law: u32,
    /// Why we differ.
    pub reason: String,
}

impl Accepted {
    /// Whether `found`, of the case with that id, is this difference.
    pub fn covers(&self, case: &str, found: &Found) -> bool {
        (self.case == "*" || self.case == case)
            && (self.path == "*" || found.path.starts_with(&self.path))
    }
}

/// Reads `accepted.txt`.
///
/// # Errors
/// Names the line that is malformed.
pub fn accepted() -> Result<Vec<Accepted>> {
    let text =
        fs::read_to_string(corpus::workspace().join(ACCEPTED)).context("read accepted.txt")?;
    parse_accepted(&text)
}

fn parse_accepted(text: &str) -> Result<Vec<Accepted>> {
    let mut accepted = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        accepted.push(
            parse_line(at + 1, line).with_context(|| format!("accepted.txt, line {}", at + 1))?,
        );
    }
    Ok(accepted)
}

fn parse_line(number: usize, line: &str) -> Result<Accepted> {
    let (case, rest) = line.split_once(' ').context("no path")?;
    let (path, rest) = rest.split_once(" law ").context("no law")?;
    let (law, reason) = rest.split_once(": ").context("no reason")?;
    let law: u32 = law.parse().context("law is no number")?;
    if !(1..=LAWS).contains(&law) {
        bail!("there is no law {law}");
    }
    if case == "*" && path == "*" {
        bail!("accepts everything");
    }
    Ok(Accepted {
        line: number,
        case: case.to_owned(),
        path: path.to_owned(),
        law,
        reason: reason.to_owned(),
    })
}

/// Reads `passing.txt`.
///
/// Its lines may be in any order: two changes to it are merged line by line (see `.gitattributes`).
/// [`update`] sorts them.
///
/// # Errors
/// When it cannot be read.
pub fn passing() -> Result<BTreeSet<String>> {
    let text = fs::read_to_string(corpus::workspace().join(PASSING)).context("read passing.txt")?;
    Ok(text.lines().map(str::to_owned).collect())
}

/// Writes `passing.txt` from the results; cases that were not run stay as they are listed.
///
/// # Errors
/// When it cannot be written.
pub fn update(results: &[CaseResult]) -> Result<Change> {
    let mut list = passing().unwrap_or_default();
    let change = Change::between(&list, results);
    for result in results {
        if result.passes() {
            list.insert(result.case.id.clone());
        } else {
            list.remove(&result.case.id);
        }
    }
    let text: String = list.iter().flat_map(|id| [id.as_str(), "\n"]).collect();
    fs::write(corpus::workspace().join(PASSING), text).context("write passing.txt")?;
    Ok(change)
}

/// How results differ from what is listed as passing.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Listed, but does not pass.
    pub broken: Vec<String>,
    /// Passes, but is not listed.
    pub new: Vec<String>,
}

impl Change {
    /// Compares the results with the list.
    pub fn between(list: &BTreeSet<String>, results: &[CaseResult]) -> Self {
        let mut change = Self::default();
        for result in results {
            let id = &result.case.id;
            match (list.contains(id), result.passes()) {
                (true, false) => change.broken.push(id.clone()),
                (false, true) => change.new.push(id.clone()),
                _ => {}
            }
        }
        change
    }

    /// Whether the results are as listed.
    pub fn is_empty(&self) -> bool {
        self.broken.is_empty() && self.new.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use envoy_json::compare::Difference;

    use super::*;

    fn found(path: &str) -> Found {
        let path = path.to_owned();
        Found {
            path: path.clone(),
            difference: Difference {
                path,
                expected: None,
                got: None,
            },
        }
    }

    #[test]
    fn accepted_lines_name_case_path_law_and_reason() {
        let text = "# head\n\na/b client/routes[80] law 8: one bad regex spoils one route\n";
        let accepted = parse_accepted(text).unwrap();
        assert_eq!((accepted[0].line, accepted[0].law), (3, 8));
        assert!(accepted[0].covers("a/b", &found("client/routes[80].virtualHosts")));
        assert!(!accepted[0].covers("a/b", &found("client/clusters[x]")));
        assert!(!accepted[0].covers("a/c", &found("client/routes[80]")));
    }

    #[test]
    fn malformed_accepted_lines_are_refused() {
        for bad in [
            "a/b",
            "a/b *: why",
            "a/b * law x: why",
            "a/b * law 12: why",
            "* * law 1: all",
        ] {
            assert!(parse_accepted(bad).is_err(), "{bad}");
        }
    }
}

//! Results as text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use super::CaseResult;

/// Returns the table: per area how many pass, and the total.
pub fn table(results: &[CaseResult]) -> String {
    let mut areas: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
    for result in results {
        let row = areas.entry(result.case.area()).or_default();
        row.0 += usize::from(result.passes());
        row.1 += 1;
    }
    let total = areas
        .values()
        .fold((0, 0), |sum, row| (sum.0 + row.0, sum.1 + row.1));
    let mut text = String::new();
    for (area, (passed, all)) in areas.into_iter().chain([("total", total)]) {
        let percent = (passed * 100).checked_div(all).unwrap_or(100);
        let _infallible = writeln!(text, "{area:<24} {passed:>5} / {all:<5} {percent:>3} %");
    }
    text
}

/// Returns the differences of one case, at most `most` of them.
pub fn differences(result: &CaseResult, most: usize) -> String {
    let mut text = format!("{}: {}\n", result.case.id, result.case.spec.about);
    if let Some(failure) = &result.failure {
        let _infallible = writeln!(text, "  {failure}");
    }
    for found in result.differences.iter().take(most) {
        let _infallible = writeln!(text, "  {}", found.difference);
    }
    if result.differences.len() > most {
        let _infallible = writeln!(text, "  ... and {} more", result.differences.len() - most);
    }
    text
}

/// Returns the kinds of differences that keep most cases from passing, at most `most` of them: how many
/// cases each concerns, for how many it is the only kind, the path without names, and one of the cases.
pub fn causes(results: &[CaseResult], most: usize) -> String {
    let mut causes: BTreeMap<String, (usize, usize, &str)> = BTreeMap::new();
    for result in results.iter().filter(|result| !result.passes()) {
        let failure = result.failure.iter().map(|failure| first_line(failure));
        let paths = result
            .differences
            .iter()
            .map(|found| anonymous(&found.path));
        let kinds: BTreeSet<String> = failure.chain(paths).collect();
        let alone = usize::from(kinds.len() == 1);
        for kind in kinds {
            let row = causes.entry(kind).or_insert((0, 0, &result.case.id));
            row.0 += 1;
            row.1 += alone;
        }
    }
    let mut rows: Vec<_> = causes.into_iter().collect();
    rows.sort_by_key(|(_, (cases, alone, _))| std::cmp::Reverse((*cases, *alone)));
    let mut text = String::from("cases  alone  difference\n");
    for (kind, (cases, alone, example)) in rows.into_iter().take(most) {
        let _infallible = writeln!(text, "{cases:>5}  {alone:>5}  {kind}  ({example})");
    }
    text
}

fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().to_owned()
}

/// Returns a path without the proxy and without what stands in brackets.
fn anonymous(path: &str) -> String {
    let path = match path.split_once('/') {
        Some((proxy, rest)) if !proxy.contains('[') => rest,
        _ => path,
    };
    let mut text = String::new();
    let mut depth = 0_usize;
    for c in path.chars() {
        match c {
            '[' => {
                depth += 1;
                if depth == 1 {
                    text.push_str("[]");
                }
            }
            ']' => depth = depth.saturating_sub(1),
            _ if depth == 0 => text.push(c),
            _ => {}
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_taken_out_of_paths() {
        assert_eq!(
            anonymous("client/routes[*.a:80].virtualHosts[[::1]:80].domains[0]"),
            "routes[].virtualHosts[].domains[]"
        );
        assert_eq!(anonymous("refused[Gateway a/b]"), "refused[]");
    }
}

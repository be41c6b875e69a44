//! The conformance corpus passes as far as `passing.txt` says, no less and no more.

use anyhow::Context as _;
use tests::{
    conformance::{self, case, expected, lists, report},
    corpus,
};

#[test]
fn the_corpus_passes_as_listed() {
    let root = corpus::root().unwrap();
    let cases = case::load(&root, None, None).unwrap();
    let accepted = lists::accepted().unwrap();
    let passing = lists::passing().unwrap();
    for listed in &passing {
        assert!(
            cases.iter().any(|case| case.id == *listed),
            "passing.txt lists no case: {listed}"
        );
    }

    let results = conformance::run(&root, cases, &accepted, &tests::generate);
    println!("{}", report::table(&results));
    let change = lists::Change::between(&passing, &results);
    for result in results
        .iter()
        .filter(|result| change.broken.contains(&result.case.id))
    {
        println!("{}", report::differences(result, 10));
    }
    assert!(
        change.broken.is_empty(),
        "no longer pass (`cargo xtask conformance --diff` shows why): {:?}",
        change.broken
    );
    assert!(
        change.new.is_empty(),
        "pass, but are not listed (`cargo xtask conformance --update` lists them): {:?}",
        change.new
    );
    for (number, accepted) in accepted.iter().enumerate() {
        assert!(
            results
                .iter()
                .any(|result| result.accepted.contains(&number)),
            "accepted.txt, line {}: no such difference any more",
            accepted.line
        );
    }
}

#[test]
fn the_packed_corpus_is_current() {
    assert!(
        corpus::pack_is_current().unwrap(),
        "stale: run `cargo xtask corpus pack`"
    );
}

#[test]
fn what_is_expected_has_no_difference_and_a_change_has_one() {
    let root = corpus::root().unwrap();
    let bases = expected::RecordedBases::new(&root);
    let all = case::load(&root, None, None).unwrap();
    let echo = |input: &case::CaseInput| {
        let case = all
            .iter()
            .find(|case| case.id == input.id)
            .context("no such case")?;
        Ok(bases.expected(case)?.as_outcome())
    };
    let results = conformance::run(&root, all.clone(), &[], &echo);
    let failing: Vec<_> = results.iter().filter(|result| !result.passes()).collect();
    assert!(
        failing.is_empty(),
        "{}",
        report::differences(failing[0], 10)
    );

    let changed = |input: &case::CaseInput| {
        let mut outcome = echo(input)?;
        if let Some(lists) = outcome.proxies.values_mut().next() {
            lists["clusters"][0]["connectTimeout"] = "77s".into();
        }
        Ok(outcome)
    };
    let few = case::load(&root, Some("clusters"), None).unwrap();
    let results = conformance::run(&root, few, &[], &changed);
    for result in results {
        assert_eq!(
            result.differences.len(),
            1,
            "{}",
            report::differences(&result, 10)
        );
        assert!(result.differences[0].path.ends_with(".connectTimeout"));
    }
}

#[test]
fn a_panic_fails_its_case_alone() {
    let root = corpus::root().unwrap();
    let cases = case::load(&root, Some("ingress"), None).unwrap();
    let first = cases[0].id.clone();
    let results = conformance::run(&root, cases, &[], &|input| {
        assert_ne!(input.id, first, "boom");
        anyhow::bail!("not now")
    });
    let failures: Vec<_> = results
        .iter()
        .filter_map(|result| result.failure.clone())
        .collect();
    assert!(
        failures[0].starts_with("panic: ") && failures[0].contains("boom"),
        "{failures:?}"
    );
    assert!(failures[1..].iter().all(|failure| failure == "not now"));
}

#[test]
fn a_case_replaces_objects_of_its_bases() {
    let root = corpus::root().unwrap();
    for case in case::load(&root, None, None).unwrap() {
        let input = case.input().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for (name, text) in &input.files {
            for document in text.split("\n---\n") {
                // Text compared as text: the runner must not depend on how the product reads it.
                let field = |name: &str| {
                    let line = document
                        .lines()
                        .find(|line| line.trim_start().starts_with(name));
                    line.map(str::trim).unwrap_or_default().to_owned()
                };
                let id = (field("kind:"), field("metadata:"));
                if id.1.contains("name:") {
                    assert!(
                        seen.insert(id.clone()),
                        "{}: {name} has {id:?} again",
                        case.id
                    );
                }
            }
        }
    }
}

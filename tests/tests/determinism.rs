//! Law 1: the same inputs give the same bytes, in whatever order they arrive and on however many
//! threads resources are built.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{collections::BTreeMap, fs, path::Path};

use rayon::prelude::*;
use tests::{
    conformance::case::{self, CaseInput},
    corpus, on_threads,
};

/// Threads, and the order in which objects arrive.
const RUNS: [(usize, usize); 3] = [(1, 0), (2, 1), (8, 2)];
/// Cases that are run, spread over the corpus.
const CASES: usize = 200;

#[track_caller]
fn check(inputs: &[CaseInput]) {
    let failures: Vec<String> = inputs
        .par_iter()
        .flat_map_iter(|input| {
            let versions = RUNS.map(|(threads, order)| on_threads(input, threads, order).unwrap());
            let same = |at: usize| versions[at] == versions[0];
            let differing = (1..RUNS.len()).filter(|at| !same(*at));
            differing
                .map(|at| format!("{}: (threads, order) {:?}", input.id, RUNS[at]))
                .collect::<Vec<_>>()
        })
        .collect();
    assert_eq!(failures, Vec::<String>::new());
}

/// Every combination of bases that was recorded, with all of its proxies.
fn bases(root: &Path) -> Vec<CaseInput> {
    let mut inputs = Vec::new();
    for folder in fs::read_dir(root.join("recorded-bases")).unwrap() {
        let name = folder.unwrap().file_name().into_string().unwrap();
        let (mut files, mut nodes) = (Vec::new(), BTreeMap::new());
        for base in name.split('+') {
            let read = |file: &str| {
                let path = root.join("bases").join(base).join(file);
                fs::read_to_string(path).unwrap_or_default()
            };
            files.push((format!("bases/{base}/objects.yaml"), read("objects.yaml")));
            for proxies in intake::yaml_values(&read("proxies.yaml")).unwrap() {
                let proxies = proxies.as_object().unwrap();
                nodes.extend(
                    proxies
                        .iter()
                        .map(|(name, node)| (name.clone(), node.clone())),
                );
            }
        }
        inputs.push(CaseInput {
            id: name,
            files,
            nodes,
            mesh: serde_json::Value::Null,
            networks: serde_json::Value::Null,
            env: BTreeMap::new(),
        });
    }
    inputs
}

#[test]
fn every_recorded_base_is_the_same_on_any_number_of_threads() {
    let inputs = bases(&corpus::root().unwrap());
    assert!(inputs.len() >= 3 && inputs.iter().all(|input| !input.nodes.is_empty()));
    check(&inputs);
}

#[test]
fn cases_are_the_same_on_any_number_of_threads() {
    let cases = case::load(&corpus::root().unwrap(), None, None).unwrap();
    let step = cases.len() / CASES;
    let inputs: Vec<CaseInput> = cases
        .iter()
        .step_by(step)
        .map(|case| case.input().unwrap())
        .collect();
    assert!(inputs.len() >= CASES);
    check(&inputs);
}

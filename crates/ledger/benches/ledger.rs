//! 60 000 keys, 10 000 roots: `cargo bench -p ledger`. Prints what each operation costs and fails when
//! a target is missed.
#![expect(clippy::print_stdout, reason = "a benchmark prints")]
#![expect(clippy::disallowed_methods, reason = "a benchmark reads the clock")]

use std::{hint::black_box, process::ExitCode, time::Instant};

use ledger::{Digest, History, Ledger, Xxh3};

const KEYS: u32 = 60_000;
const ROOTS: u32 = 10_000;
const LOOKUPS: u32 = 1_000_000;
const BATCH: u16 = 50;

fn main() -> ExitCode {
    // `cargo test --all-targets` also starts this, without optimisation.
    if !std::env::args().any(|argument| argument == "--bench") {
        return ExitCode::SUCCESS;
    }
    let key = |n: u32| format!("ServiceEntry/namespace-{}/service-{n}", n % 500);
    let start = Instant::now();
    let mut ledger: Ledger<String, Xxh3> = Ledger::new(History::default(), start, |key, bytes| {
        bytes.extend_from_slice(key.as_bytes());
    });
    let mut good = true;

    let keys: Vec<String> = (0..KEYS).map(key).collect();
    let begin = Instant::now();
    ledger.apply(
        start,
        keys.iter()
            .map(|key| (key.clone(), Some(Xxh3::of(key.as_bytes())))),
    );
    let first = begin.elapsed().as_nanos() / u128::from(KEYS);
    report("first state, per key", first, None, &mut good);
    let base = ledger.footprint();

    let mut roots = Vec::new();
    let update = median(ROOTS, |n| {
        // Spread over the keys; 7919 is prime to their number.
        let key = &keys[(n * 7_919 % KEYS) as usize];
        roots.push(ledger.apply(start, [(key.clone(), Some(Xxh3::of(&n.to_be_bytes())))]));
    });
    report("one changed key, one root", update, Some(50_000), &mut good);

    let mut found = 0_u32;
    let lookup = median(LOOKUPS, |n| {
        let root = roots[(n.wrapping_mul(2_654_435_761) % (ROOTS - 1)) as usize];
        let key = &keys[(n * 31 % KEYS) as usize];
        found += u32::from(ledger.get(&root, key).is_ok_and(|value| value.is_some()));
    });
    report("look-up in a random root", lookup, Some(5_000), &mut good);
    good &= found == LOOKUPS;

    let difference = median(2_000, |n| {
        let (old, new) = (roots[n as usize], roots[n as usize + 1]);
        black_box(
            ledger
                .diff(&old, &new)
                .map(|changes| changes.len())
                .unwrap_or_default(),
        );
    });
    report("difference of neighbours", difference, None, &mut good);

    let begin = Instant::now();
    let far = ledger
        .diff(&roots[0], &ledger.root())
        .map(|changes| changes.len());
    report(
        "difference of first and last",
        begin.elapsed().as_nanos(),
        None,
        &mut good,
    );
    println!("  ({far:?} keys)");

    let proof = median(ROOTS, |n| {
        let (root, key) = (roots[n as usize], &keys[n as usize]);
        let value = ledger.get(&root, key).ok().flatten();
        let proof = ledger.prove(&root, key).ok().flatten();
        good &= value
            .zip(proof)
            .is_some_and(|(value, proof)| proof.verify(root, key.as_bytes(), value));
    });
    report("proof and its check", proof, None, &mut good);

    let all = ledger.footprint();
    let per_root = (all.bytes - base.bytes) / ROOTS as usize;
    println!(
        "first state: {} nodes, {} KiB",
        base.nodes,
        base.bytes / 1_024
    );
    println!(
        "each root: {} nodes, {per_root} bytes",
        (all.nodes - base.nodes) / ROOTS as usize
    );
    good &= per_root < 4_096;
    println!(
        "{}",
        if good {
            "all targets met"
        } else {
            "A TARGET WAS MISSED"
        }
    );
    if good {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The nanoseconds of one of `count` operations: the median of short batches, so that a busy machine
/// does not show.
fn median(count: u32, mut operation: impl FnMut(u32)) -> u128 {
    let mut batches = Vec::new();
    for first in (0..count).step_by(usize::from(BATCH)) {
        let last = count.min(first + u32::from(BATCH));
        let begin = Instant::now();
        (first..last).for_each(&mut operation);
        batches.push(begin.elapsed().as_nanos() / u128::from(last - first));
    }
    batches.sort_unstable();
    batches[batches.len() / 2]
}

/// Prints what one operation costs; all in nanoseconds.
fn report(what: &str, each: u128, target: Option<u128>, good: &mut bool) {
    let verdict = match target {
        None => String::new(),
        Some(target) if each <= target => format!("  (target {target} ns)"),
        Some(target) => {
            *good = false;
            format!("  MISSED: target {target} ns")
        }
    };
    println!("{what:32} {each:>10} ns{verdict}");
}

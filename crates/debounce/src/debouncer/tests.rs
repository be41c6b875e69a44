use std::{collections::BTreeSet, sync::LazyLock};

use proptest::prelude::*;

use super::*;
use crate::Window;

const WINDOW: Window = Window {
    after: Duration::from_millis(100),
    max: Duration::from_secs(10),
};

#[expect(
    clippy::disallowed_methods,
    reason = "any fixed origin of virtual time does"
)]
fn epoch() -> Instant {
    static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);
    *EPOCH
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

/// What happens to the machine, beside its own timers.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Input {
    Event(u32),
    Finished,
}

/// One delivery: time in ms since the start, the ids in it, and the count of events.
type Delivery = (u64, Vec<u32>, u64);

/// Plays `inputs` (times in ms, sorted) with exact timers; returns the deliveries.
fn play(
    options: &Options<Vec<u32>>,
    inputs: &[(u64, Input)],
) -> (Vec<Delivery>, Debouncer<Vec<u32>>) {
    let start = epoch();
    let mut machine = Debouncer::new(options.clone());
    let mut out = Vec::new();
    let mut note = |batch: Batch<Vec<u32>>| {
        let at = batch.delivered.duration_since(start);
        out.push((
            u64::try_from(at.as_millis()).unwrap(),
            batch.event,
            batch.events,
        ));
    };
    for (at, input) in inputs {
        let now = start + ms(*at);
        while let Some(due) = machine.deadline().filter(|due| *due <= now) {
            note(machine.on_timer(due).expect("due"));
        }
        match input {
            Event(id) => {
                machine
                    .on_event(now, vec![*id])
                    .into_iter()
                    .for_each(&mut note);
            }
            Finished => {
                if machine.is_busy() {
                    machine.on_finished(now).into_iter().for_each(&mut note);
                }
            }
        }
    }
    while let Some(due) = machine.deadline() {
        note(machine.on_timer(due).expect("due"));
    }
    (out, machine)
}

#[track_caller]
fn check(inputs: &[(u64, Input)], expected: &[(u64, &[u32])]) {
    let (out, _) = play(&Options::new(WINDOW), inputs);
    let out: Vec<_> = out
        .iter()
        .map(|(at, ids, _)| (*at, ids.as_slice()))
        .collect();
    assert_eq!(out, expected);
}

use Input::{Event, Finished};

#[test]
fn an_isolated_event_waits_for_the_quiet_time() {
    check(&[(0, Event(1))], &[(100, &[1])]);
}

#[test]
fn the_timeline_of_the_reference_implementation_holds() {
    // Specification "xDS server" §28.7: work takes 300 ms.
    check(
        &[
            (0, Event(1)),
            (60, Event(2)),
            (200, Event(3)),
            (460, Finished),
        ],
        &[(160, &[1, 2]), (460, &[3])],
    );
}

#[test]
fn a_batch_that_is_not_quiet_when_the_consumer_ends_waits_on() {
    check(
        &[
            (0, Event(1)),
            (150, Event(2)),
            (390, Event(3)),
            (400, Finished),
        ],
        &[(100, &[1]), (490, &[2, 3])],
    );
}

#[test]
fn a_batch_older_than_the_maximum_goes_when_the_consumer_ends() {
    let mut inputs = vec![(0, Event(0))];
    inputs.extend((0..300).map(|n| (150 + n * 50, Event(1))));
    inputs.push((150 + 300 * 50, Finished));
    let (out, _) = play(&Options::new(WINDOW), &inputs);
    let shape: Vec<_> = out.iter().map(|(at, _, events)| (*at, *events)).collect();
    assert_eq!(shape, [(100, 1), (15_150, 300)]);
}

#[test]
fn a_steady_stream_is_cut_at_the_maximum() {
    let inputs: Vec<_> = (0..=220).map(|n| (n * 50, Event(1))).collect();
    let (out, machine) = play(&Options::new(WINDOW), &inputs);
    // At 10 000 ms the timer comes before the event of the same instant.
    assert_eq!(
        out.iter().map(|(at, _, n)| (*at, *n)).collect::<Vec<_>>(),
        [(10_000, 200)]
    );
    assert_eq!(
        machine.pending(),
        21,
        "the rest gathers while the consumer works"
    );
}

#[test]
fn a_late_timer_does_not_stretch_the_maximum() {
    let start = epoch();
    let mut machine = Debouncer::new(Options::new(WINDOW));
    assert!(machine.on_event(start, vec![1]).is_none());
    let Some(batch) = machine.on_event(start + ms(10_500), vec![2]) else {
        panic!("overdue batch was held");
    };
    assert_eq!(batch.event, [1, 2]);
}

#[test]
fn zero_quiet_time_delivers_at_once_but_never_to_two_consumers() {
    let options = Options::new(Window {
        after: ms(0),
        ..WINDOW
    });
    let inputs = [(5, Event(1)), (6, Event(2)), (7, Event(3)), (9, Finished)];
    let (out, _) = play(&options, &inputs);
    assert_eq!(out, [(5, vec![1], 1), (9, vec![2, 3], 2)]);
}

#[test]
fn unreachable_times_never_come() {
    let options = Options::new(Window {
        after: Duration::MAX,
        max: Duration::MAX,
    });
    let mut machine = Debouncer::new(options);
    let now = epoch();
    assert!(machine.on_event(now, vec![1]).is_none());
    assert_eq!(machine.deadline(), None);
    assert_eq!(
        machine.flush(now).expect("flush ignores deadlines").event,
        [1]
    );
}

#[test]
fn bypassing_events_go_alone_and_at_once_even_while_busy() {
    let options = Options::new(WINDOW).bypass(|ids: &Vec<u32>| ids.iter().all(|id| *id >= 100));
    let inputs = [
        (0, Event(1)),
        (50, Event(100)),
        (150, Event(101)),
        (160, Event(2)),
    ];
    let (out, machine) = play(&options, &inputs);
    assert_eq!(
        out,
        [(50, vec![100], 1), (100, vec![1], 1), (150, vec![101], 1)]
    );
    assert_eq!(machine.pending(), 1);
}

#[test]
fn adaptive_quiet_time_follows_the_cost_within_its_bounds() {
    let start = epoch();
    let mut machine = Debouncer::new(Options::new(WINDOW).adaptive(true));
    let mut now = start;
    let mut quiet_after = |cost: Duration| {
        assert!(machine.on_event(now, vec![1]).is_none());
        now = machine.deadline().expect("waiting");
        assert!(machine.on_timer(now).is_some());
        now += cost;
        assert!(machine.on_finished(now).is_none());
        machine.quiet_time()
    };
    assert_eq!(
        quiet_after(ms(3)),
        ms(3),
        "a small mesh reacts within its own cost"
    );
    assert_eq!(quiet_after(ms(40)), ms(40), "rises at once");
    assert_eq!(quiet_after(ms(4)), ms(22), "falls by half the difference");
    assert_eq!(quiet_after(ms(5_000)), ms(100), "never above the setting");
    for _ in 0..20 {
        quiet_after(ms(0));
    }
    assert_eq!(quiet_after(ms(0)), MIN_QUIET);
}

/// Every order of three events and two ends on a grid of times that hits all boundaries.
#[test]
fn small_traces_hold_the_invariants_exhaustively() {
    let grid = [0_u64, 1, 99, 100, 101, 250];
    let options = Options::new(Window {
        after: ms(100),
        max: ms(150),
    });
    let mut traces = 0;
    let mut inputs = Vec::new();
    for choice in 0..(grid.len() * 2).pow(4) {
        inputs.clear();
        let (mut rest, mut at) = (choice, 0);
        for id in 0..4_u32 {
            at += grid[rest % grid.len()];
            rest /= grid.len();
            inputs.push((at, if rest % 2 == 0 { Event(id) } else { Finished }));
            rest /= 2;
        }
        check_invariants(&options, &inputs);
        traces += 1;
    }
    assert_eq!(traces, 12_usize.pow(4));
}

/// Nothing lost, order kept, one consumer at a time, no batch past the maximum while free, none
/// before it is quiet.
#[track_caller]
fn check_invariants(options: &Options<Vec<u32>>, inputs: &[(u64, Input)]) {
    let (out, mut machine) = play(options, inputs);
    let after = u64::try_from(options.window.after.as_millis()).unwrap();
    let max = u64::try_from(options.window.max.as_millis()).unwrap();
    let sent: Vec<(u64, u32)> = inputs
        .iter()
        .filter_map(|(at, input)| match input {
            Event(id) => Some((*at, *id)),
            Finished => None,
        })
        .collect();
    let mut received: Vec<u32> = out.iter().flat_map(|(_, ids, _)| ids.clone()).collect();
    let mut next = 0;
    let (mut free_since, mut ends) = (0, 0);
    for (delivered, ids, events) in &out {
        assert_eq!(ids.len() as u64, *events);
        let first = sent[next].0;
        let last = sent[next + ids.len() - 1].0;
        next += ids.len();
        let due = (last + after).min(first + max).max(free_since);
        assert_eq!(*delivered, due, "{inputs:?} gave {out:?}");
        // The end that made the consumer free for this batch cannot free it again.
        let freed_by = inputs.iter().enumerate().position(|(at, (time, input))| {
            *input == Finished && at >= ends && *time >= *delivered
        });
        ends = freed_by.map_or(inputs.len(), |at| at + 1);
        free_since = freed_by.map_or(u64::MAX, |at| inputs[at].0);
    }
    let end = epoch() + ms(1_000_000);
    let mut rest = machine.flush(end);
    if machine.is_busy() && rest.is_none() {
        rest = machine.on_finished(end);
    }
    received.extend(rest.map(|batch| batch.event).unwrap_or_default());
    let ids: Vec<u32> = sent.iter().map(|(_, id)| *id).collect();
    assert_eq!(received, ids, "nothing lost, order kept");
}

proptest! {
    #[test]
    fn random_traces_hold_the_invariants(
        steps in prop::collection::vec((0_u64..200, prop::bool::weighted(0.7)), 0..60),
        after in 0_u64..120,
        max in 0_u64..400,
    ) {
        let mut at = 0;
        let inputs: Vec<_> = (0..).zip(steps).map(|(id, (gap, is_event))| {
            // Distinct times: which of two inputs of one instant comes first is the driver's choice.
            at += gap + 1;
            (at, if is_event { Event(id) } else { Finished })
        }).collect();
        check_invariants(&Options::new(Window { after: ms(after), max: ms(max) }), &inputs);
    }

    #[test]
    fn merging_sets_is_associative(
        a in prop::collection::btree_set(0_u8..20, 0..8),
        b in prop::collection::btree_set(0_u8..20, 0..8),
        c in prop::collection::btree_set(0_u8..20, 0..8),
    ) {
        let merged = |mut x: BTreeSet<u8>, y: BTreeSet<u8>| { x.merge(y); x };
        prop_assert_eq!(
            merged(merged(a.clone(), b.clone()), c.clone()),
            merged(a, merged(b, c))
        );
    }
}

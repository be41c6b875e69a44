//! The default policy holds its promises for the five loads of the table.

use std::time::Duration;

#[path = "../examples/scenarios/table.rs"]
mod table;

use table::Line;

#[track_caller]
fn check(load: &'static str, expected: (u64, u64, u64, u64, u64), longest: Duration) {
    let (events, held, released, pushes, busiest_minute) = expected;
    let lines = table::table(throttle_backoff::BACKOFF);
    let line = lines
        .iter()
        .find(|line| line.load == load)
        .expect("a load of the table");
    assert_eq!(
        *line,
        Line {
            load,
            events,
            held,
            longest,
            released,
            pushes,
            busiest_minute
        }
    );
}

#[test]
fn a_rollout_is_not_delayed() {
    check(
        "rollout of 200 pods, 3/s for 60 s",
        (180, 0, 180, 180, 0),
        Duration::ZERO,
    );
}

#[test]
fn a_scale_up_is_not_delayed() {
    check(
        "scale-up by 50 pods, 1.5/s for 30 s",
        (45, 0, 45, 45, 0),
        Duration::ZERO,
    );
}

#[test]
fn ten_objects_at_once_are_not_delayed() {
    check("ten objects at once", (10, 0, 10, 1, 0), Duration::ZERO);
}

#[test]
fn a_loop_becomes_at_most_eight_pushes_a_minute() {
    let longest = Duration::from_secs(10);
    check(
        "loop at 10/s, an hour of it",
        (36_000, 35_901, 461, 461, 7),
        longest,
    );
}

#[test]
fn churn_for_hours_becomes_at_most_eight_pushes_a_minute() {
    let longest = Duration::from_secs(10);
    check(
        "CronJob churn at 5-10/s for 2 h",
        (48_029, 47_930, 815, 815, 7),
        longest,
    );
}

#[test]
fn without_a_policy_the_loop_pushes_as_often_as_it_writes() {
    let lines = table::table(throttle_none::NONE);
    let line = lines
        .iter()
        .find(|line| line.load.starts_with("loop"))
        .expect("in the table");
    assert_eq!((line.held, line.busiest_minute), (0, 600));
}

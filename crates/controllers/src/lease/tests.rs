use super::*;

const TIMING: Timing = Timing {
    lease: Duration::from_secs(8),
    renew: Duration::from_secs(4),
    retry: Duration::from_secs(2),
};

fn seconds(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn record(holder: &str, renewed: u32) -> Record {
    Record {
        holder: holder.to_owned(),
        renewed: renewed.to_string(),
        duration: TIMING.lease,
        transitions: 3,
        version: format!("v{renewed}"),
    }
}

fn replace(renewed: u32, taken: bool) -> Step {
    Step::Replace {
        version: format!("v{renewed}"),
        transitions: 3 + i32::from(taken),
        taken,
    }
}

/// Reads one record after the other, each so many seconds after the start.
#[track_caller]
fn check(reads: &[(u64, Option<Record>, Step)]) -> (Election, Instant) {
    let start = Instant::now();
    let mut election = Election::new("a", TIMING);
    for (at, found, expected) in reads {
        let step = election.on_read(start + seconds(*at), found.clone());
        assert_eq!(step, *expected, "at {at} s");
    }
    (election, start)
}

#[test]
fn a_lease_that_is_not_there_is_made() {
    check(&[(0, None, Step::Create)]);
}

#[test]
fn another_holder_is_believed_while_its_record_changes() {
    check(&[
        (0, Some(record("b", 1)), Step::Wait),
        (7, Some(record("b", 1)), Step::Wait),
        (9, Some(record("b", 2)), Step::Wait),
        (16, Some(record("b", 2)), Step::Wait),
        (17, Some(record("b", 2)), replace(2, true)),
    ]);
}

#[test]
fn a_record_of_long_ago_is_believed_from_when_it_is_read() {
    // Nobody's clock is compared with ours: an old time in the record may be a slow clock.
    check(&[
        (100, Some(record("b", 0)), Step::Wait),
        (107, Some(record("b", 0)), Step::Wait),
        (108, Some(record("b", 0)), replace(0, true)),
    ]);
}

#[test]
fn a_lease_that_was_given_up_is_taken_at_once() {
    check(&[(0, Some(record("", 1)), replace(1, true))]);
}

#[test]
fn an_own_lease_is_renewed() {
    check(&[(0, Some(record("a", 1)), replace(1, false))]);
}

#[test]
fn a_leader_that_cannot_renew_stops_before_anybody_may_take_over() {
    let (mut election, start) = check(&[(0, None, Step::Create)]);
    assert!(!election.leads(start));
    election.on_written(start);
    assert!(election.leads(start + seconds(3)));
    assert!(!election.leads(start + TIMING.renew));
    let mut other = Election::new("b", TIMING);
    assert_eq!(other.on_read(start, Some(record("a", 1))), Step::Wait);
    let before = start + TIMING.lease - Duration::from_millis(1);
    assert_eq!(other.on_read(before, Some(record("a", 1))), Step::Wait);
}

#[test]
fn a_leader_that_reads_of_another_one_stops_at_once() {
    let (mut election, start) = check(&[(0, None, Step::Create)]);
    election.on_written(start);
    assert_eq!(
        election.on_read(start + seconds(1), Some(record("b", 1))),
        Step::Wait
    );
    assert!(!election.leads(start + seconds(1)));
}

#[test]
fn times_have_istios_proportions() {
    let timing = Timing::default();
    assert_eq!(timing.lease, seconds(30));
    assert!(timing.retry < timing.renew && timing.renew < timing.lease);
}

use std::{sync::LazyLock, time::SystemTime};

use proptest::prelude::*;

use super::*;

#[expect(
    clippy::disallowed_methods,
    reason = "any fixed origin of virtual time does"
)]
static EPOCH: LazyLock<Instant> = LazyLock::new(Instant::now);

fn at(millis: u64) -> Now {
    let after = Duration::from_millis(millis);
    Now {
        at: *EPOCH + after,
        wall: SystemTime::UNIX_EPOCH + after,
    }
}

fn hold(millis: u64) -> Decision {
    Decision::Hold {
        until: at(millis).at,
    }
}

/// A tenant that has just become noisy at `millis`, at level 0.
fn noisy(millis: u64) -> Backoff {
    let mut policy = Backoff::new(&Limits::default());
    for n in 0..99 {
        assert_eq!(
            policy.on_event(at(millis), None),
            Decision::Pass,
            "event {n}"
        );
    }
    policy
}

#[test]
fn the_event_that_reaches_the_threshold_is_held_for_the_base_delay() {
    let mut policy = noisy(0);
    assert_eq!(policy.on_event(at(0), None), hold(1_000));
}

#[test]
fn the_delay_doubles_with_each_flush_up_to_the_maximum() {
    let mut policy = noisy(0);
    let mut now = 0;
    let mut delays = Vec::new();
    for _ in 0..7 {
        let since = now;
        // The tenant goes on writing; the last write is right before the flush.
        let until = loop {
            let Decision::Hold { until } = policy.on_event(at(now), Some(at(since).at)) else {
                panic!("still noisy");
            };
            if until <= at(now + 10).at {
                break until;
            }
            now += 10;
        };
        delays.push(until.duration_since(at(since).at).as_millis());
        now += 10;
        policy.on_flush(at(now));
        for _ in 0..20 {
            // Keeps the window full, however long the delays are.
            policy.on_event(at(now), None);
        }
    }
    assert_eq!(delays, [1_000, 2_000, 4_000, 8_000, 10_000, 10_000, 10_000]);
    assert_eq!(
        policy.report(at(now)).level,
        4,
        "no higher than the maximum needs"
    );
}

/// A policy at its highest level; its last held event is at `millis`.
fn at_the_top(millis: u64) -> Backoff {
    let mut policy = noisy(millis);
    policy.on_event(at(millis), None);
    for _ in 0..10 {
        policy.on_flush(at(millis));
    }
    assert_eq!(policy.report(at(millis)).level, 4);
    policy
}

#[test]
fn the_level_falls_to_zero_within_seconds_of_quiet() {
    let policy = at_the_top(5_000);
    let levels: Vec<_> = [0, 999, 1_000, 2_000, 3_000, 3_999, 4_000, 60_000]
        .map(|after| policy.report(at(5_000 + after)).level)
        .into();
    assert_eq!(levels, [4, 4, 3, 2, 1, 1, 0, 0]);
}

#[test]
fn what_a_tenant_that_went_quiet_has_staged_goes_on_as_the_level_falls() {
    let mut policy = at_the_top(0);
    // Full delay would be 10 s; after 3 s of quiet the delay is 2 s, which have passed by then.
    assert_eq!(policy.on_event(at(100), None), hold(100 + 3_000));
    // A further event starts the quiet anew; the level has fallen to 2 by then.
    assert_eq!(
        policy.on_event(at(3_099), Some(at(100).at)),
        hold(3_099 + 1_000)
    );
    // In an area that is old, one second of quiet is enough.
    let mut policy = at_the_top(7_100);
    assert_eq!(policy.on_event(at(7_200), Some(at(0).at)), hold(8_200));
}

#[test]
fn below_the_threshold_events_pass_whatever_the_level_is() {
    let mut policy = at_the_top(0);
    assert_eq!(policy.on_event(at(31_000), None), Decision::Pass);
}

#[test]
fn an_instance_is_needed_until_its_window_is_empty() {
    let mut policy = at_the_top(0);
    assert_eq!(policy.on_idle(at(29_000)), Idle::Keep);
    assert_eq!(policy.on_idle(at(31_000)), Idle::Forget);
}

#[test]
fn changed_limits_apply_to_the_next_event() {
    let mut policy = at_the_top(0);
    let mut limits = Limits::default();
    limits.max_delay = Duration::from_secs(2);
    policy.configure(&limits, &TenantInfo::default());
    assert_eq!(policy.report(at(0)).level, 1);
    assert_eq!(policy.report(at(0)).delay, Duration::from_secs(2));
    limits.threshold = 1_000;
    policy.configure(&limits, &TenantInfo::default());
    assert_eq!(
        policy.on_event(at(1), None),
        Decision::Pass,
        "counts are kept"
    );
}

proptest! {
    #[test]
    fn levels_and_delays_stay_in_bounds_and_fall_to_zero_in_seconds(
        steps in prop::collection::vec((0_u64..3_000, 1_usize..60, prop::bool::ANY), 1..60),
        threshold in 1_u64..50,
        base in 10_u64..5_000,
        factor in 1_u64..40,
    ) {
        let mut limits = Limits::default();
        limits.threshold = threshold;
        limits.base_delay = Duration::from_millis(base);
        limits.max_delay = Duration::from_millis(base * factor);
        let mut policy = Backoff::new(&limits);
        let highest = policy.highest_level();
        let (mut now, mut held_since) = (0, None);
        for (gap, events, flushes) in steps {
            now += gap;
            for _ in 0..events {
                match policy.on_event(at(now), held_since) {
                    Decision::Pass => held_since = None,
                    Decision::Hold { until } => {
                        let since = *held_since.get_or_insert(at(now).at);
                        prop_assert!(until >= since + limits.base_delay);
                        prop_assert!(until <= since + limits.max_delay);
                    }
                }
            }
            if flushes && held_since.take().is_some() {
                policy.on_flush(at(now));
            }
            let report = policy.report(at(now));
            prop_assert!(report.level <= highest);
            prop_assert!(report.delay >= limits.base_delay && report.delay <= limits.max_delay);
        }
        let quiet = now + 1_000 * u64::from(highest) + 1_000;
        prop_assert_eq!(policy.report(at(quiet)).level, 0);
    }
}

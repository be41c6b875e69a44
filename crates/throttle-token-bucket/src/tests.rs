use std::{sync::LazyLock, time::SystemTime};

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

fn limits(parameters: &[(&str, &str)]) -> Limits {
    let mut limits = Limits::default();
    limits.parameters = parameters
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect();
    limits
}

fn tenant(labels: &[(&str, &str)]) -> TenantInfo {
    let labels = labels
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect();
    TenantInfo {
        name: "a".into(),
        labels,
    }
}

/// How many events pass at once, with a rate of 2/s and a burst of 10.
#[track_caller]
fn check_burst(parameters: &[(&str, &str)], labels: &[(&str, &str)], expected: usize) {
    let mut all = vec![("rate", "2"), ("burst", "10")];
    all.extend(parameters);
    let mut policy = TokenBucket::new(&limits(&all), &tenant(labels));
    let passed = (0..10_000)
        .take_while(|_| policy.on_event(at(0), None) == Decision::Pass)
        .count();
    assert_eq!(passed, expected);
}

#[test]
fn a_burst_passes_and_the_weight_multiplies_it() {
    check_burst(&[], &[], 10);
    check_burst(&[], &[(WEIGHT_LABEL, "2.5")], 25);
    check_burst(&[], &[(WEIGHT_LABEL, "0.01")], 1);
    check_burst(
        &[("weight-label", "tier")],
        &[("tier", "3"), (WEIGHT_LABEL, "9")],
        30,
    );
}

#[test]
fn an_unusable_weight_counts_as_one() {
    for weight in ["gold", "0", "-3", "NaN", "1e9", ""] {
        check_burst(&[], &[(WEIGHT_LABEL, weight)], 10);
    }
}

#[test]
fn without_parameters_threshold_and_window_count() {
    let mut policy = TokenBucket::new(&Limits::default(), &TenantInfo::default());
    for _ in 0..100 {
        assert_eq!(policy.on_event(at(0), None), Decision::Pass);
    }
    assert_ne!(policy.on_event(at(0), None), Decision::Pass);
    assert_eq!(
        policy.on_event(at(300), None),
        Decision::Pass,
        "100 in 30 s are one in 300 ms"
    );
}

#[test]
fn an_empty_bucket_holds_until_a_token_is_there_at_least_for_the_base_delay() {
    let parameters = [("rate", "0.25"), ("burst", "1")];
    let mut policy = TokenBucket::new(&limits(&parameters), &TenantInfo::default());
    assert_eq!(policy.on_event(at(0), None), Decision::Pass);
    assert_eq!(
        policy.on_event(at(100), None),
        Decision::Hold {
            until: at(4_000).at
        }
    );
    let since = Some(at(3_900).at);
    assert_eq!(
        policy.on_event(at(3_900), since),
        Decision::Hold {
            until: at(4_900).at
        }
    );
    policy.on_flush(at(4_900));
    assert_eq!(
        policy.report(at(4_900)).level,
        1,
        "the flush took the token"
    );
}

#[test]
fn a_full_and_quiet_bucket_is_not_needed() {
    let mut policy = TokenBucket::new(&Limits::default(), &TenantInfo::default());
    policy.on_event(at(0), None);
    assert_eq!(policy.on_idle(at(29_000)), Idle::Keep);
    assert_eq!(policy.on_idle(at(60_000)), Idle::Forget);
}

#[track_caller]
fn check_refused(parameters: &[(&str, &str)], expected: &[&str]) {
    let found: Vec<_> = check(&limits(parameters))
        .iter()
        .map(ToString::to_string)
        .collect();
    assert_eq!(found, expected);
}

#[test]
fn bad_parameters_are_all_named() {
    check_refused(
        &[("rate", "0.5"), ("burst", "7"), ("weight-label", "tier")],
        &[],
    );
    check_refused(
        &[
            ("rate", "0"),
            ("burst", "many"),
            ("weight-label", ""),
            ("brust", "1"),
        ],
        &[
            "brust is 1, expected one of the parameters rate, burst, weight-label",
            "burst is many, expected a number from 1 to 1000000",
            "rate is 0, expected a number above 0, at most 1000000",
            "weight-label is , expected the name of a label",
        ],
    );
    check_refused(
        &[("rate", "NaN")],
        &["rate is NaN, expected a number above 0, at most 1000000"],
    );
}

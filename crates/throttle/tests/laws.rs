//! The laws of admission, for every linked policy and for one without manners, over random
//! interleavings of tenants and times.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use proptest::prelude::*;
use throttle::{
    Cause, Decision, Engine, Event, Idle, Limits, Now, Output, Registration, Release, Report,
    Settings, TenantInfo, ThrottlePolicy,
};
use throttle_backoff::BACKOFF;
use throttle_none::NONE;
use throttle_token_bucket::TOKEN_BUCKET;

#[path = "support/event.rs"]
mod event;

use event::{Writes, at, millis};

/// Asks for anything, at random.
#[derive(Debug)]
struct Unmannered(u64);

impl ThrottlePolicy for Unmannered {
    fn on_event(&mut self, now: Now, _held_since: Option<Instant>) -> Decision {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        match self.0 >> 62 {
            0 => Decision::Pass,
            1 => Decision::Hold { until: now.at },
            2 => Decision::Hold {
                until: now.at + Duration::from_millis(self.0 >> 50),
            },
            _ => Decision::Hold {
                until: now.at + Duration::from_secs(100_000),
            },
        }
    }

    fn on_flush(&mut self, _now: Now) {}

    fn on_idle(&mut self, _now: Now) -> Idle {
        Idle::Forget
    }

    fn configure(&mut self, _limits: &Limits, _tenant: &TenantInfo) {}

    fn report(&self, _now: Now) -> Report {
        Report::default()
    }
}

const UNMANNERED: Registration = Registration {
    name: "unmannered",
    summary: "for tests",
    module: module_path!(),
    check: |_| Vec::new(),
    build: |_, tenant| Box::new(Unmannered(tenant.name.len() as u64)),
};

const TENANTS: [&str; 4] = ["noisy", "busy", "quiet", "system"];

/// Small limits, so that short traces reach them.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.threshold = 5;
    limits.window = Duration::from_secs(2);
    limits.base_delay = Duration::from_millis(100);
    limits.max_delay = Duration::from_secs(1);
    limits
}

/// One event: the gap before it in ms, (tenant, key) pairs, and whether it is urgent.
type Arrival = (u64, Vec<(usize, u8)>, bool);

fn arrivals() -> impl Strategy<Value = Vec<Arrival>> {
    // Tenant 0 is noisiest; tenant 2 has few events.
    let tenant = prop_oneof![20 => Just(0_usize), 6 => Just(1), 1 => Just(2), 2 => Just(3)];
    let keys = prop::collection::vec((tenant, 0_u8..3), 0..3);
    let gap = prop_oneof![8 => 0_u64..40, 1 => 0_u64..3_000];
    prop::collection::vec((gap, keys, prop::bool::weighted(0.1)), 0..150)
}

/// What one trace led to.
struct Trace {
    /// Every write in the order of arrival: time, tenant, key, value, urgent.
    sent: Vec<(u64, &'static str, u8, u32, bool)>,
    /// Every release in order.
    released: Vec<(u64, Release<Writes>)>,
    /// Arrival times per tenant.
    per_tenant: BTreeMap<&'static str, Vec<u64>>,
}

fn play(policy: Registration, arrivals: &[Arrival], drain_at_end: bool) -> Trace {
    let mut settings = Settings::new(limits());
    settings.exempt = ["system"].into();
    let mut engine = Engine::<Writes>::new(settings, policy).expect("in range");
    let mut out = Output::default();
    let mut trace = Trace {
        sent: Vec::new(),
        released: Vec::new(),
        per_tenant: BTreeMap::new(),
    };
    let mut now = 0;
    let mut value = 0;
    for (gap, keys, urgent) in arrivals {
        now += gap;
        fire(&mut engine, Some(now), &mut out, &mut trace);
        let mut writes = Vec::new();
        for (tenant, key) in keys {
            value += 1;
            let tenant = TENANTS[*tenant];
            writes.push((tenant, *key, value));
            trace.sent.push((now, tenant, *key, value, *urgent));
        }
        let mut event = Writes::new(writes);
        // One event counts once per tenant, however many keys it has.
        let tenants: BTreeSet<_> = event.values.keys().map(|(tenant, _)| *tenant).collect();
        for tenant in tenants {
            trace.per_tenant.entry(tenant).or_default().push(now);
        }
        if *urgent {
            event = event.urgent();
        }
        engine.on_event(at(now), event, &mut out);
        trace
            .released
            .extend(out.released.drain(..).map(|release| (now, release)));
    }
    if drain_at_end {
        engine.drain(at(now), &mut out);
        trace
            .released
            .extend(out.released.drain(..).map(|release| (now, release)));
    } else {
        fire(&mut engine, None, &mut out, &mut trace);
    }
    assert_eq!(engine.staged(), 0);
    trace
}

fn fire(
    engine: &mut Engine<Writes>,
    until: Option<u64>,
    out: &mut Output<Writes>,
    trace: &mut Trace,
) {
    while let Some(due) = engine.deadline()
        && until.is_none_or(|until| due <= at(until).at)
    {
        // Timers of the driver have a resolution of a millisecond too.
        let now = millis(due + Duration::from_micros(999));
        engine.on_timer(at(now), out);
        trace
            .released
            .extend(out.released.drain(..).map(|release| (now, release)));
    }
}

impl Trace {
    /// When each value went on, in the order of the releases.
    fn deliveries(&self) -> Vec<(u64, &'static str, u8, u32)> {
        let mut deliveries = Vec::new();
        for (time, release) in &self.released {
            for ((tenant, key), values) in &release.event.values {
                deliveries.extend(values.iter().map(|value| (*time, *tenant, *key, *value)));
            }
        }
        deliveries
    }

    #[track_caller]
    fn check_nothing_lost_and_order_kept(&self) {
        let mut expected: BTreeMap<(&str, u8), Vec<u32>> = BTreeMap::new();
        for (_, tenant, key, value, _) in &self.sent {
            expected.entry((*tenant, *key)).or_default().push(*value);
        }
        let mut found: BTreeMap<(&str, u8), Vec<u32>> = BTreeMap::new();
        for (_, tenant, key, value) in self.deliveries() {
            found.entry((tenant, key)).or_default().push(value);
        }
        assert_eq!(found, expected);
    }

    /// Law 5, the throttle's share: at most the maximum delay, and the base delay if urgent.
    #[track_caller]
    fn check_bounds(&self) {
        let delivered: BTreeMap<u32, u64> = self
            .deliveries()
            .into_iter()
            .map(|(time, _, _, value)| (value, time))
            .collect();
        for (arrived, tenant, _, value, urgent) in &self.sent {
            let waited = delivered[value] - arrived;
            let most = if *tenant == "system" {
                0
            } else if *urgent {
                100
            } else {
                1_000
            };
            assert!(waited <= most, "{value} of {tenant} waited {waited} ms");
        }
    }
}

fn policies() -> impl Strategy<Value = Registration> {
    prop::sample::select(vec![BACKOFF, TOKEN_BUCKET, NONE, UNMANNERED])
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 400,
        failure_persistence: None,
        ..ProptestConfig::default()
    })]

    #[test]
    fn nothing_is_lost_order_is_kept_and_nothing_waits_past_its_bound(
        policy in policies(),
        arrivals in arrivals(),
    ) {
        let trace = play(policy, &arrivals, false);
        trace.check_nothing_lost_and_order_kept();
        trace.check_bounds();
    }

    #[test]
    fn shutdown_loses_nothing(policy in policies(), arrivals in arrivals()) {
        play(policy, &arrivals, true).check_nothing_lost_and_order_kept();
    }

    #[test]
    fn tenants_below_the_threshold_are_never_delayed(arrivals in arrivals()) {
        let trace = play(BACKOFF, &arrivals, false);
        let delivered: BTreeMap<u32, u64> =
            trace.deliveries().into_iter().map(|(time, _, _, value)| (value, time)).collect();
        for (arrived, tenant, _, value, _) in &trace.sent {
            let times = &trace.per_tenant[tenant];
            // At or above the threshold at this or an earlier event: what is held then may still be.
            let ever_noisy = times.iter().any(|end| {
                *end <= *arrived
                    && times.iter().filter(|time| **time <= *end && **time + 2_000 > *end).count() >= 5
            });
            if !ever_noisy {
                prop_assert_eq!(delivered[value], *arrived);
            }
        }
    }

    #[test]
    fn the_noise_of_one_tenant_changes_nothing_for_another(arrivals in arrivals()) {
        // The trace of "busy" alone, at the same times, is what it is among the others.
        let whole = play(BACKOFF, &arrivals, false);
        let alone: Vec<Arrival> = {
            let mut gap_before = 0;
            let mut kept = Vec::new();
            for (gap, keys, urgent) in &arrivals {
                gap_before += gap;
                let keys: Vec<_> = keys.iter().copied().filter(|(tenant, _)| *tenant == 1).collect();
                if !keys.is_empty() {
                    kept.push((std::mem::take(&mut gap_before), keys, *urgent));
                }
            }
            kept
        };
        let alone = play(BACKOFF, &alone, false);
        let times = |trace: &Trace| -> Vec<u64> {
            trace.deliveries().iter().filter(|entry| entry.1 == "busy").map(|entry| entry.0).collect()
        };
        prop_assert_eq!(times(&whole), times(&alone));
    }

    #[test]
    fn events_stand_for_every_event_that_came(arrivals in arrivals()) {
        // Events of one tenant each, none urgent: then the counts are exact.
        let single: Vec<Arrival> = arrivals
            .into_iter()
            .map(|(gap, keys, _)| (gap, keys.into_iter().take(1).collect(), false))
            .collect();
        let trace = play(BACKOFF, &single, false);
        let stood_for: u64 = trace.released.iter().map(|(_, release)| release.events).sum();
        prop_assert_eq!(stood_for, single.len() as u64);
        for (_, release) in &trace.released {
            let waits = release.waited > Duration::ZERO;
            prop_assert!(waits || release.events == 1 || release.cause != Cause::Passed);
        }
    }

    #[test]
    fn merging_and_splitting_the_test_event_keeps_its_own_laws(
        a in prop::collection::vec((0_usize..4, 0_u8..3), 0..4),
        b in prop::collection::vec((0_usize..4, 0_u8..3), 0..4),
        c in prop::collection::vec((0_usize..4, 0_u8..3), 0..4),
    ) {
        let make = |keys: Vec<(usize, u8)>, value| {
            Writes::new(keys.into_iter().map(|(tenant, key)| (TENANTS[tenant], key, value)))
        };
        let (a, b, c) = (make(a, 1), make(b, 2).urgent(), make(c, 3));
        let merged = |mut older: Writes, newer: Writes| { older.merge(newer); older };
        let left = merged(merged(a.clone(), b.clone()), c.clone());
        let right = merged(a, merged(b, c));
        prop_assert_eq!(&left, &right);
        let whole = left.clone().split().into_iter().map(|(_, part)| part).reduce(merged);
        prop_assert_eq!(whole.unwrap_or_default(), left);
    }
}

/// Every trace of seven events of one tenant on a grid of gaps around all limits.
#[test]
fn small_traces_hold_the_laws_exhaustively() {
    let gaps = [0_u64, 60, 100, 700, 2_000];
    for policy in [BACKOFF, TOKEN_BUCKET, UNMANNERED] {
        for choice in 0..gaps.len().pow(6) {
            let mut rest = choice;
            let mut trace: Vec<Arrival> = vec![(0, vec![(0, 0)], false); 2];
            for key in 0..6 {
                trace.push((gaps[rest % gaps.len()], vec![(0, key % 2)], key == 4));
                rest /= gaps.len();
            }
            let trace = play(policy, &trace, false);
            trace.check_nothing_lost_and_order_kept();
            trace.check_bounds();
        }
    }
}

//! The engine does what a policy says, within its own bounds. The policy here follows a script: the
//! tenant's name says what it wants.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::{Duration, Instant},
};

use throttle::{
    Cause, Decision, Engine, Idle, Labels, Limits, Notice, Now, Output, Problem, Registration,
    Report, Settings, TenantInfo, ThrottlePolicy,
};

#[path = "support/event.rs"]
mod event;

use event::{Writes, at, millis};

/// `quiet*` passes, `noisy*` is held for 4 s, `stuck*` for ever, `flaky` passes each third event.
#[derive(Debug)]
struct Scripted {
    name: String,
    events: u32,
    flushes: u32,
    label: Option<String>,
}

impl ThrottlePolicy for Scripted {
    fn on_event(&mut self, now: Now, held_since: Option<Instant>) -> Decision {
        self.events += 1;
        let since = held_since.unwrap_or(now.at);
        match self.name.as_str() {
            name if name.starts_with("quiet") => Decision::Pass,
            "flaky" if self.events.is_multiple_of(3) => Decision::Pass,
            name if name.starts_with("stuck") => Decision::Hold {
                until: since + Duration::from_secs(1_000_000),
            },
            "late" => Decision::Hold { until: at(0).at },
            _ => Decision::Hold {
                until: since + Duration::from_secs(4),
            },
        }
    }

    fn on_flush(&mut self, _now: Now) {
        self.flushes += 1;
    }

    fn on_idle(&mut self, _now: Now) -> Idle {
        Idle::Forget
    }

    fn configure(&mut self, _limits: &Limits, tenant: &TenantInfo) {
        self.label = tenant.labels.get("color").cloned();
    }

    fn report(&self, _now: Now) -> Report {
        Report {
            rate: f64::from(self.events),
            level: self.flushes,
            delay: Duration::ZERO,
        }
    }
}

const SCRIPTED: Registration = Registration {
    name: "scripted",
    summary: "for tests",
    module: module_path!(),
    check: |limits| {
        let bad = limits.parameters.get("bad");
        bad.map(|value| Problem {
            field: "bad".into(),
            value: value.clone(),
            expected: "nothing".into(),
        })
        .into_iter()
        .collect()
    },
    build: |_, tenant| {
        Box::new(Scripted {
            name: tenant.name.clone(),
            events: 0,
            flushes: 0,
            label: tenant.labels.get("color").cloned(),
        })
    },
};

/// Input at a time.
enum Step {
    Write(u64, Writes),
    Delete(u64, &'static str),
    Configure(u64, Change),
    Drain(u64),
    /// Only lets time pass.
    Until(u64),
}

type Change = Box<dyn Fn(&mut Settings<&'static str>)>;
/// Time, event, cause.
type Released = Vec<(u64, Writes, Cause)>;

use Step::{Configure, Delete, Drain, Until, Write};

fn play(steps: Vec<Step>) -> (Released, Vec<(u64, String)>) {
    let mut settings = Settings::new(Limits::default());
    settings.exempt = ["system"].into();
    let mut engine = Engine::new(settings.clone(), SCRIPTED).expect("defaults are in range");
    let mut out = Output::default();
    let (mut released, mut notices) = (Vec::new(), Vec::new());
    let mut collect = |time: u64, out: &mut Output<Writes>| {
        released.extend(out.released.drain(..).map(|r| (time, r.event, r.cause)));
        notices.extend(
            out.notices
                .drain(..)
                .map(|notice| (time, describe(&notice))),
        );
    };
    for step in steps {
        let (Write(time, _) | Delete(time, _) | Configure(time, _) | Drain(time) | Until(time)) =
            &step;
        let time = *time;
        while let Some(due) = engine.deadline().filter(|due| *due <= at(time).at) {
            engine.on_timer(at(millis(due)), &mut out);
            collect(millis(due), &mut out);
        }
        match step {
            Write(_, event) => engine.on_event(at(time), event, &mut out),
            Delete(_, tenant) => engine.remove(at(time), &tenant, &mut out),
            Configure(_, change) => {
                change(&mut settings);
                engine
                    .set_settings(at(time), settings.clone(), &mut out)
                    .expect("in range");
            }
            Drain(_) => engine.drain(at(time), &mut out),
            Until(_) => {}
        }
        collect(time, &mut out);
    }
    (released, notices)
}

fn describe(notice: &Notice<&'static str, String>) -> String {
    match notice {
        Notice::Held { tenant } => format!("held {tenant}"),
        Notice::Started(status) => format!("started {}", status.tenant),
        Notice::Ended(status) => {
            format!(
                "ended {} after {} held, {} released",
                status.tenant, status.held, status.released
            )
        }
        Notice::Forgotten { tenant } => format!("forgotten {tenant}"),
    }
}

#[track_caller]
fn check(steps: Vec<Step>, expected: &[(u64, Writes, Cause)]) {
    assert_eq!(play(steps).0, expected);
}

fn one(tenant: &'static str, value: u32) -> Writes {
    Writes::one(tenant, 0, value)
}

#[test]
fn quiet_tenants_system_tenants_and_global_events_pass_at_once() {
    check(
        vec![
            Write(0, one("quiet", 1)),
            Write(1, one("system", 2)),
            Write(2, Writes::default()),
        ],
        &[
            (0, one("quiet", 1), Cause::Passed),
            (1, one("system", 2), Cause::Passed),
            (2, Writes::default(), Cause::Passed),
        ],
    );
}

#[test]
fn held_events_go_on_as_one() {
    check(
        vec![
            Write(0, one("noisy", 1)),
            Write(10, one("noisy", 2)),
            Until(5_000),
        ],
        &[(
            4_000,
            Writes::new([("noisy", 0, 1), ("noisy", 0, 2)]),
            Cause::Due,
        )],
    );
}

#[test]
fn an_event_of_several_tenants_is_split_and_what_passes_stays_together() {
    let parts = [
        ("noisy", 0, 1),
        ("quiet-a", 0, 2),
        ("quiet-b", 0, 3),
        ("system", 0, 4),
    ];
    check(
        vec![Write(0, Writes::new(parts)), Until(5_000)],
        &[
            (0, Writes::new(parts[1..].iter().copied()), Cause::Passed),
            (4_000, one("noisy", 1), Cause::Due),
        ],
    );
}

#[test]
fn passing_takes_along_what_is_held() {
    let all = Writes::new([("flaky", 0, 1), ("flaky", 0, 2), ("flaky", 0, 3)]);
    check(
        vec![
            Write(0, one("flaky", 1)),
            Write(1, one("flaky", 2)),
            Write(2, one("flaky", 3)),
            Until(60_000),
        ],
        &[(2, all, Cause::Passed)],
    );
}

#[test]
fn no_policy_can_hold_longer_than_the_maximum() {
    check(
        vec![
            Write(0, one("stuck", 1)),
            Write(9_999, one("stuck", 2)),
            Until(60_000),
        ],
        &[(
            10_000,
            Writes::new([("stuck", 0, 1), ("stuck", 0, 2)]),
            Cause::Due,
        )],
    );
}

#[test]
fn a_time_that_has_passed_means_at_once() {
    check(
        vec![Write(5, one("late", 1))],
        &[(5, one("late", 1), Cause::Due)],
    );
}

#[test]
fn the_urgent_part_waits_for_the_base_delay_only_and_keeps_the_order_of_its_keys() {
    let urgent = Writes::new([("noisy", 7, 1), ("noisy", 7, 3)]);
    check(
        vec![
            Write(0, Writes::new([("noisy", 7, 1), ("noisy", 8, 2)])),
            Write(500, Writes::one("noisy", 7, 3).urgent()),
            Write(1_600, Writes::one("noisy", 8, 4)),
            Until(60_000),
        ],
        &[
            (
                1_500,
                Writes {
                    urgent: [("noisy", 7)].into(),
                    ..urgent
                },
                Cause::Urgent,
            ),
            (
                4_000,
                Writes::new([("noisy", 8, 2), ("noisy", 8, 4)]),
                Cause::Due,
            ),
        ],
    );
}

#[test]
fn a_deleted_tenant_is_delivered_and_forgotten() {
    let (released, notices) = play(vec![
        Write(0, one("noisy", 1)),
        Delete(100, "noisy"),
        Until(60_000),
    ]);
    assert_eq!(released, [(100, one("noisy", 1), Cause::Drained)]);
    let expected = [
        (0, "held noisy"),
        (0, "started noisy"),
        (100, "ended noisy after 1 held, 1 released"),
        (100, "forgotten noisy"),
    ];
    assert_eq!(
        notices,
        expected.map(|(time, text)| (time, text.to_owned()))
    );
}

#[test]
fn throttling_ends_after_the_maximum_delay_without_held_events_and_the_tenant_is_forgotten() {
    let (_, notices) = play(vec![
        Write(0, one("noisy", 1)),
        Write(3_000, one("noisy", 2)),
        Write(6_000, one("noisy", 3)),
        Write(6_000, one("quiet", 3)),
        Until(100_000),
    ]);
    let expected = [
        (0, "held noisy"),
        (0, "started noisy"),
        (3_000, "held noisy"),
        (6_000, "held noisy"),
        (16_000, "ended noisy after 3 held, 2 released"),
        (30_000, "forgotten noisy"),
    ];
    assert_eq!(
        notices,
        expected.map(|(time, text)| (time, text.to_owned()))
    );
}

#[test]
fn draining_releases_everything_in_the_order_of_the_tenants() {
    check(
        vec![
            Write(0, one("stuck-b", 1)),
            Write(1, one("stuck-a", 2)),
            Drain(2),
            Until(60_000),
        ],
        &[
            (2, one("stuck-a", 2), Cause::Drained),
            (2, one("stuck-b", 1), Cause::Drained),
        ],
    );
}

#[test]
fn switching_off_releases_what_is_held_and_lets_everything_pass() {
    check(
        vec![
            Write(0, one("stuck", 1)),
            Configure(5, Box::new(|settings| settings.enabled = false)),
            Write(6, one("stuck", 2)),
            Configure(7, Box::new(|settings| settings.enabled = true)),
            Write(8, one("stuck", 3)),
            Until(60_000),
        ],
        &[
            (5, one("stuck", 1), Cause::Drained),
            (6, one("stuck", 2), Cause::Passed),
            (10_008, one("stuck", 3), Cause::Due),
        ],
    );
}

#[test]
fn a_tenant_that_becomes_exempt_is_released() {
    check(
        vec![
            Write(0, one("stuck", 1)),
            Configure(5, Box::new(|settings| settings.exempt = ["stuck"].into())),
            Write(6, one("stuck", 2)),
        ],
        &[
            (5, one("stuck", 1), Cause::Drained),
            (6, one("stuck", 2), Cause::Passed),
        ],
    );
}

#[test]
fn lower_limits_bound_what_is_already_held() {
    check(
        vec![
            Write(0, one("stuck", 1)),
            Configure(
                3_000,
                Box::new(|settings| settings.limits.max_delay = Duration::from_secs(5)),
            ),
            Until(60_000),
        ],
        &[(5_000, one("stuck", 1), Cause::Due)],
    );
}

#[test]
fn bad_settings_are_refused_with_every_problem_and_the_old_ones_stay() {
    let mut settings = Settings::<&str>::new(Limits::default());
    let mut engine = Engine::<Writes>::new(settings.clone(), SCRIPTED).expect("in range");
    settings.limits.threshold = 0;
    settings.limits.parameters.insert("bad".into(), "1".into());
    let error = engine
        .set_settings(at(0), settings.clone(), &mut Output::default())
        .expect_err("out of range");
    assert_eq!(
        error.to_string(),
        "threshold is 0, expected 1 to 1000000; bad is 1, expected nothing"
    );
    assert_eq!(engine.status(at(0)).limits.threshold, 100);
    assert!(Engine::<Writes>::new(settings, SCRIPTED).is_err());
}

#[test]
fn the_status_shows_who_is_throttled_and_by_what() {
    let settings = Settings::new(Limits::default());
    let mut engine = Engine::new(settings, SCRIPTED).expect("in range");
    let mut out = Output::default();
    for (time, key) in [(0, 1), (100, 2), (200, 2)] {
        engine.on_event(at(time), Writes::one("noisy", key, 0), &mut out);
    }
    engine.on_event(at(300), one("quiet", 0), &mut out);
    assert_eq!(engine.staged(), 3);
    let status = engine.status(at(1_000));
    assert_eq!(
        (status.enabled, status.policy, status.tracked),
        (true, "scripted", 2)
    );
    let [noisy] = status.throttled.as_slice() else {
        panic!("{status:?}")
    };
    assert_eq!(
        (noisy.tenant, noisy.held, noisy.released, noisy.staged),
        ("noisy", 3, 0, 3)
    );
    assert_eq!(noisy.due_in, Some(Duration::from_secs(3)));
    assert_eq!(noisy.staged_for, Some(Duration::from_secs(1)));
    assert_eq!(
        noisy.noisiest,
        [("noisy/2".to_owned(), 2), ("noisy/1".to_owned(), 1)]
    );
}

const COLORED: Registration = Registration {
    build: |_, tenant| Box::new(Colored(tenant.labels["color"].parse().unwrap_or_default())),
    ..SCRIPTED
};
/// Shows its label in the rate that it reports.
#[derive(Debug)]
struct Colored(f64);

impl ThrottlePolicy for Colored {
    fn on_event(&mut self, now: Now, _held_since: Option<Instant>) -> Decision {
        Decision::Hold {
            until: now.at + Duration::from_secs(10),
        }
    }
    fn on_flush(&mut self, _now: Now) {}
    fn on_idle(&mut self, _now: Now) -> Idle {
        Idle::Keep
    }
    fn configure(&mut self, _limits: &Limits, tenant: &TenantInfo) {
        self.0 = tenant.labels["color"].parse().unwrap_or_default();
    }
    fn report(&self, _now: Now) -> Report {
        Report {
            rate: self.0,
            ..Report::default()
        }
    }
}

#[test]
fn labels_reach_the_policy_at_the_first_event_and_once_per_window() {
    let color = Arc::new(AtomicU32::new(1));
    let seen = color.clone();
    let mut engine = Engine::<Writes>::new(Settings::new(Limits::default()), COLORED)
        .expect("in range")
        .with_labels(move |_| {
            Labels::from([("color".to_owned(), seen.load(Ordering::Relaxed).to_string())])
        });
    let mut out = Output::default();
    engine.on_event(at(0), one("a", 0), &mut out);
    color.store(2, Ordering::Relaxed);
    let rate = |engine: &Engine<Writes>| engine.status(at(29_500)).throttled[0].report.rate;
    assert!((rate(&engine) - 1.0).abs() < f64::EPSILON);
    engine.on_event(at(29_000), one("a", 0), &mut out);
    engine.on_timer(at(30_000), &mut out);
    assert!((rate(&engine) - 2.0).abs() < f64::EPSILON);
}

#[test]
fn an_idle_engine_needs_no_timer() {
    let mut engine =
        Engine::<Writes>::new(Settings::new(Limits::default()), SCRIPTED).expect("in range");
    let mut out = Output::default();
    assert_eq!(engine.deadline(), None);
    engine.on_event(at(0), one("noisy", 1), &mut out);
    while let Some(due) = engine.deadline() {
        assert!(millis(due) < 100_000, "never comes to rest");
        engine.on_timer(at(millis(due)), &mut out);
    }
    assert_eq!(engine.status(at(100_000)).tracked, 0);
}

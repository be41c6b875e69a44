//! The driver, in paused time.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, SystemTime},
};

use log::Log;
use throttle::{
    DEFAULT_QUEUE, Driver, Engine, Gate, Limits, NoObserver, Observer, Settings, Stopped,
};
use throttle_backoff::BACKOFF;
use tokio::{
    sync::mpsc,
    task::JoinSet,
    time::{Instant, sleep},
};

#[path = "support/event.rs"]
mod event;

use event::Writes;

/// A shared record of what an observer heard.
mod log {
    use std::sync::{Arc, Mutex};

    #[derive(Debug, Clone, Default)]
    pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

    impl Log {
        pub(crate) fn push(&self, line: String) {
            self.0
                .lock()
                .expect("no test panics while it holds the log")
                .push(line);
        }

        pub(crate) fn lines(&self) -> Vec<String> {
            self.0
                .lock()
                .expect("no test panics while it holds the log")
                .clone()
        }
    }
}

impl Observer<&'static str> for Log {
    fn held(&mut self, tenant: &&'static str) {
        self.push(format!("held {tenant}"));
    }

    fn active(&mut self, tenant: &&'static str, active: bool) {
        self.push(format!("active {tenant} {active}"));
    }

    fn forgotten(&mut self, tenant: &&'static str) {
        self.push(format!("forgotten {tenant}"));
    }
}

fn settings(enabled: bool) -> Settings<&'static str> {
    let mut settings = Settings::new(Limits::default());
    settings.enabled = enabled;
    settings.limits.threshold = 3;
    settings
}

type TestGate = Gate<Writes, mpsc::Sender<Writes>>;

/// A running driver, and what comes out of it.
fn start(
    enabled: bool,
    observer: impl Observer<&'static str> + 'static,
) -> (TestGate, mpsc::Receiver<Writes>, JoinSet<()>) {
    let (next, events) = mpsc::channel(1_000);
    let engine = Engine::new(settings(enabled), BACKOFF).expect("in range");
    let (gate, driver) = Driver::new(
        engine,
        next,
        DEFAULT_QUEUE,
        || SystemTime::UNIX_EPOCH,
        observer,
    );
    let mut tasks = JoinSet::new();
    tasks.spawn(driver.run());
    (gate, events, tasks)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

#[tokio::test(start_paused = true)]
async fn a_noisy_tenant_is_held_for_the_base_delay_and_a_quiet_one_passes() {
    let (gate, mut events, _tasks) = start(true, NoObserver);
    let begin = Instant::now();
    for value in 0..4 {
        gate.send(Writes::one("noisy", 0, value))
            .await
            .expect("running");
    }
    gate.send(Writes::one("quiet", 0, 9))
        .await
        .expect("running");
    for expected in [
        Writes::one("noisy", 0, 0),
        Writes::one("noisy", 0, 1),
        Writes::one("quiet", 0, 9),
    ] {
        assert_eq!(events.recv().await, Some(expected));
        assert_eq!(begin.elapsed(), ms(0));
    }
    assert!(!gate.is_clear());
    let held = Writes::new([("noisy", 0, 2), ("noisy", 0, 3)]);
    assert_eq!(events.recv().await, Some(held));
    assert_eq!(begin.elapsed(), ms(1_000));
    sleep(ms(1)).await;
    assert!(gate.is_clear());
}

#[tokio::test(start_paused = true)]
async fn dropping_the_gates_delivers_what_is_held() {
    let (gate, mut events, mut tasks) = start(true, NoObserver);
    for value in 0..4 {
        gate.send(Writes::one("noisy", 0, value))
            .await
            .expect("running");
    }
    drop(gate);
    let mut all = Vec::new();
    while let Some(event) = events.recv().await {
        all.extend(event.values.into_values().flatten());
    }
    assert_eq!(all, [0, 1, 2, 3]);
    tasks
        .join_next()
        .await
        .expect("one task")
        .expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn events_keep_their_order_while_the_throttle_is_switched_on_and_off() {
    let (gate, mut events, _tasks) = start(false, NoObserver);
    let sender = gate.clone();
    let mut tasks = JoinSet::new();
    tasks.spawn(async move {
        for value in 0..300 {
            sender
                .send(Writes::one("noisy", 0, value))
                .await
                .expect("running");
            if value % 7 == 0 {
                sleep(ms(3)).await;
            }
        }
    });
    for round in 0..40 {
        gate.configure(settings(round % 2 == 0))
            .await
            .expect("in range");
        sleep(ms(3)).await;
    }
    tasks
        .join_next()
        .await
        .expect("one task")
        .expect("no panic");
    drop((gate, tasks));
    let mut all = Vec::new();
    while let Some(event) = events.recv().await {
        all.extend(event.values.into_values().flatten());
    }
    assert_eq!(all, (0..300).collect::<Vec<_>>());
}

#[tokio::test(start_paused = true)]
async fn while_off_events_need_no_driver() {
    let (next, mut events) = mpsc::channel(10);
    let engine = Engine::new(settings(false), BACKOFF).expect("in range");
    let (gate, _never_run) = Driver::new(
        engine,
        next,
        DEFAULT_QUEUE,
        || SystemTime::UNIX_EPOCH,
        NoObserver,
    );
    for value in 0..5 {
        gate.send(Writes::one("noisy", 0, value))
            .await
            .expect("the next stage is there");
        assert_eq!(events.recv().await, Some(Writes::one("noisy", 0, value)));
    }
}

#[tokio::test(start_paused = true)]
async fn the_observer_hears_of_start_end_and_forgetting() {
    let log = Log::default();
    let (gate, _events, _tasks) = start(true, log.clone());
    for value in 0..4 {
        gate.send(Writes::one("noisy", 0, value))
            .await
            .expect("running");
    }
    sleep(ms(100_000)).await;
    let expected = [
        "held noisy",
        "active noisy true",
        "held noisy",
        "active noisy false",
        "forgotten noisy",
    ];
    assert_eq!(log.lines(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_deleted_tenant_goes_at_once() {
    let log = Log::default();
    let (gate, mut events, _tasks) = start(true, log.clone());
    for value in 0..3 {
        gate.send(Writes::one("noisy", 0, value))
            .await
            .expect("running");
    }
    let begin = Instant::now();
    gate.tenant_deleted("noisy").await.expect("running");
    for value in 0..3 {
        assert_eq!(events.recv().await, Some(Writes::one("noisy", 0, value)));
    }
    assert_eq!(begin.elapsed(), ms(0));
    assert_eq!(
        log.lines().last().map(String::as_str),
        Some("forgotten noisy")
    );
}

#[tokio::test(start_paused = true)]
async fn the_status_names_throttled_tenants() {
    let (gate, _events, _tasks) = start(true, NoObserver);
    for value in 0..3 {
        gate.send(Writes::one("noisy", 0, value))
            .await
            .expect("running");
    }
    let status = gate.status().await.expect("running");
    assert_eq!((status.policy, status.tracked), ("backoff", 1));
    assert_eq!(status.throttled[0].tenant, "noisy");
    assert_eq!(status.throttled[0].due_in, Some(ms(1_000)));
}

#[tokio::test(start_paused = true)]
async fn bad_settings_are_refused_while_running() {
    let (gate, _events, _tasks) = start(true, NoObserver);
    let mut bad = settings(true);
    bad.limits.window = ms(1);
    let error = gate.configure(bad).await.expect_err("out of range");
    assert_eq!(error.to_string(), "window is 1ms, expected 1s to 3600s");
    let status = gate.status().await.expect("running");
    assert_eq!(status.limits.window, ms(30_000));
}

#[tokio::test(start_paused = true)]
async fn when_the_next_stage_is_gone_senders_are_told() {
    let (gate, events, mut tasks) = start(true, NoObserver);
    drop(events);
    // The first is accepted before the driver notices.
    let _accepted = gate.send(Writes::one("quiet", 0, 0)).await;
    tasks
        .join_next()
        .await
        .expect("one task")
        .expect("no panic");
    assert_eq!(gate.send(Writes::one("quiet", 0, 1)).await, Err(Stopped));
    assert_eq!(gate.status().await, None);
}

#[test]
fn shared_types_cross_threads() {
    fn shared<T: Send + Sync>() {}
    fn sent<T: Send>() {}
    shared::<TestGate>();
    shared::<Arc<Settings<BTreeMap<u8, u8>>>>();
    sent::<Driver<Writes, mpsc::Sender<Writes>>>();
    sent::<Engine<Writes>>();
}

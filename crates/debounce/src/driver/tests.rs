use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{sleep, timeout};

use super::*;
use crate::Window;

type Keys = BTreeSet<&'static str>;

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn keys<const N: usize>(keys: [&'static str; N]) -> Keys {
    Keys::from(keys)
}

fn window(after: u64, max: u64) -> Window {
    Window {
        after: ms(after),
        max: ms(max),
    }
}

/// A running driver whose batches arrive as (time since start, keys); each takes `work` to consume.
struct Harness {
    intake: Option<Intake<Keys>>,
    batches: mpsc::Receiver<(Duration, Keys)>,
    /// The most consumers of debounced batches seen at once.
    at_once: Arc<AtomicUsize>,
    tasks: JoinSet<()>,
}

impl Harness {
    fn new(options: Options<Keys>, work: Duration) -> Self {
        let (intake, driver) = Driver::new(options, DEFAULT_QUEUE);
        let (sender, batches) = mpsc::channel(100);
        let start = now();
        let running = Arc::new(AtomicUsize::new(0));
        let at_once = Arc::new(AtomicUsize::new(0));
        let mut tasks = JoinSet::new();
        let most = at_once.clone();
        tasks.spawn(driver.run(move |batch| {
            let (sender, running, most) = (sender.clone(), running.clone(), most.clone());
            async move {
                let debounced = batch.lane == Lane::Debounced;
                if debounced {
                    most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                }
                assert!(!batch.event.contains("panic"), "poisoned batch");
                let at = batch.delivered.duration_since(start);
                sender
                    .send((at, batch.event))
                    .await
                    .expect("the test listens");
                sleep(work).await;
                if debounced {
                    running.fetch_sub(1, Ordering::SeqCst);
                }
            }
        }));
        Self {
            intake: Some(intake),
            batches,
            at_once,
            tasks,
        }
    }

    async fn send(&self, event: Keys) {
        self.intake
            .as_ref()
            .expect("open")
            .send(event)
            .await
            .expect("running");
    }

    fn progress(&self) -> Progress {
        self.intake.as_ref().expect("open").progress()
    }

    async fn close(mut self) -> Vec<(Duration, Keys)> {
        self.intake = None;
        let mut rest = Vec::new();
        while let Some(batch) = self.batches.recv().await {
            rest.push(batch);
        }
        self.tasks
            .join_next()
            .await
            .expect("one task")
            .expect("driver does not panic");
        rest
    }
}

#[tokio::test(start_paused = true)]
async fn batch_closes_after_quiet_time() {
    let mut harness = Harness::new(Options::new(window(100, 10_000)), ms(0));
    harness.send(keys(["a"])).await;
    sleep(ms(60)).await;
    harness.send(keys(["b"])).await;
    assert_eq!(
        harness.batches.recv().await,
        Some((ms(160), keys(["a", "b"])))
    );
}

#[tokio::test(start_paused = true)]
async fn changed_options_hold_for_the_batch_that_gathers() {
    let mut harness = Harness::new(Options::new(window(1_000, 10_000)), ms(0));
    harness.send(keys(["a"])).await;
    sleep(ms(60)).await;
    let intake = harness.intake.as_ref().expect("open");
    intake.set_options(Options::new(window(100, 10_000)));
    assert_eq!(harness.batches.recv().await, Some((ms(100), keys(["a"]))));
    let intake = harness.intake.as_ref().expect("open");
    intake.set_options(Options::new(window(100, 10_000)).bypass(|_| true));
    sleep(ms(1)).await;
    harness.send(keys(["b"])).await;
    assert_eq!(harness.batches.recv().await, Some((ms(101), keys(["b"]))));
}

#[tokio::test(start_paused = true)]
async fn batch_closes_at_the_maximum() {
    let mut harness = Harness::new(Options::new(window(100, 1_000)), ms(0));
    for _ in 0..30 {
        harness.send(keys(["a"])).await;
        sleep(ms(50)).await;
    }
    let (at, _) = harness.batches.recv().await.expect("running");
    assert_eq!(at, ms(1_000));
}

#[tokio::test(start_paused = true)]
async fn never_two_consumers_at_once() {
    let harness = Harness::new(Options::new(window(10, 100)), ms(300));
    for _ in 0..40 {
        harness.send(keys(["a"])).await;
        sleep(ms(25)).await;
    }
    assert_eq!(harness.at_once.load(Ordering::SeqCst), 1);
    let batches = harness.close().await;
    assert!(batches.len() >= 4, "{batches:?}");
}

#[tokio::test(start_paused = true)]
async fn bypassing_events_do_not_wait_for_the_consumer() {
    let options = Options::new(window(100, 10_000)).bypass(|event: &Keys| event.contains("fast"));
    let mut harness = Harness::new(options, ms(1_000));
    harness.send(keys(["slow"])).await;
    sleep(ms(200)).await;
    harness.send(keys(["fast"])).await;
    assert_eq!(
        harness.batches.recv().await,
        Some((ms(100), keys(["slow"])))
    );
    assert_eq!(
        harness.batches.recv().await,
        Some((ms(200), keys(["fast"])))
    );
}

#[tokio::test(start_paused = true)]
async fn closing_delivers_what_is_pending_and_waits_for_the_consumer() {
    let harness = Harness::new(Options::new(window(100, 10_000)), ms(500));
    harness.send(keys(["a"])).await;
    sleep(ms(150)).await;
    harness.send(keys(["b"])).await;
    sleep(ms(1)).await;
    let progress = harness.progress();
    let batches = harness.close().await;
    assert_eq!(batches, [(ms(100), keys(["a"])), (ms(600), keys(["b"]))]);
    assert_eq!((progress.inbound(), progress.committed()), (2, 2));
}

#[tokio::test(start_paused = true)]
async fn progress_is_caught_up_when_the_last_consumer_ended() {
    let mut harness = Harness::new(Options::new(window(100, 10_000)), ms(50));
    let progress = harness.progress();
    assert!(progress.is_caught_up());
    harness.send(keys(["a"])).await;
    assert!(!progress.is_caught_up());
    harness.batches.recv().await.expect("delivered");
    assert!(!progress.is_caught_up(), "still being consumed");
    sleep(ms(51)).await;
    assert!(progress.is_caught_up());
}

#[tokio::test(start_paused = true)]
async fn a_consumer_that_panics_does_not_stop_the_driver() {
    let mut harness = Harness::new(Options::new(window(100, 10_000)), ms(0));
    harness.send(keys(["panic"])).await;
    sleep(ms(200)).await;
    harness.send(keys(["a"])).await;
    let next = timeout(ms(1_000), harness.batches.recv())
        .await
        .expect("driver goes on");
    assert_eq!(next.expect("running").1, keys(["a"]));
    assert_eq!(harness.progress().failed(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stopped_driver_gives_the_event_back() {
    let (intake, driver) = Driver::new(Options::<Keys>::default(), 1);
    drop(driver);
    let Closed(event) = intake.send(keys(["a"])).await.expect_err("stopped");
    assert_eq!(event, keys(["a"]));
    assert!(intake.progress().is_caught_up());
}

#[test]
fn shared_types_cross_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Intake<Keys>>();
    shared::<Driver<Keys>>();
    shared::<Debouncer<Keys>>();
    shared::<Progress>();
}

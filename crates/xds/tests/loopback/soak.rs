//! Many clients, edits and reconnects at once: nobody misses the last word. Once on several threads
//! and sockets, and once in memory over days of paused time, with slow clients and connections that
//! reach their age.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::task::JoinSet;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use xds::{Settings, Transport};

use crate::fake::{Delta, Log, Shop, Sotw};
use crate::shelf::{CDS, EDS, LDS, MOVE, RDS};

const CLIENTS: u64 = 12;
/// After each round everything comes to rest and is compared.
const ROUNDS: u64 = 80;
/// Publications in a round, at most.
const EDITS: u64 = 12;
/// The longest time between edits, in seconds of paused time.
const QUIET: u64 = 3600;
/// The longest time between reading and answering, and between connections.
const THINK: u64 = 60;
const NAMES: [&str; 6] = ["n0", "n1", "n2", "n3", "n4", "n5"];

type Texts = BTreeMap<(String, String), String>;

/// A small generator of numbers, the same in every run.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % sides
    }
}

/// How long it goes on, and how time passes.
#[derive(Clone, Copy)]
struct Course {
    rounds: u64,
    /// In memory, with time paused.
    paused: bool,
}

impl Course {
    /// Waits for so long at most, in seconds, where time is paused.
    async fn pass(&self, dice: &mut Dice, seconds: u64) {
        if self.paused {
            tokio::time::sleep(Duration::from_secs(dice.roll(seconds))).await;
        } else if dice.roll(4) == 0 {
            tokio::task::yield_now().await;
        }
    }

    /// Waits a moment, in which all that can be done without waiting is done.
    async fn moment(&self) {
        if self.paused {
            // Time does not jump while the pool for CPU work is busy.
            let idle = tokio::task::spawn_blocking(|| drop(rayon::broadcast(|_| ())));
            idle.await.unwrap();
            tokio::time::sleep(Duration::from_secs(5)).await;
        } else {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// How long a change may take to reach everybody.
    fn patience(&self) -> Duration {
        if self.paused {
            Duration::from_hours(2)
        } else {
            Duration::from_secs(20)
        }
    }
}

/// Follows the delta variant until it is told to stop; now and then the stream breaks.
async fn follow_delta(
    mut client: Delta,
    held: Arc<Mutex<Texts>>,
    mut life: u64,
    course: Course,
    dice: &mut Dice,
) -> Option<u64> {
    for (type_url, names) in [(CDS, &[][..]), (EDS, &NAMES), (LDS, &[]), (RDS, &NAMES)] {
        let holds = held
            .lock()
            .iter()
            .filter(|((url, _), _)| url == type_url)
            .map(|((_, name), text)| (name.clone(), xds::Version::of(text.as_bytes()).to_string()))
            .collect();
        client.state(type_url, names, &holds).await;
    }
    while let Ok(Some(response)) = client.responses.message().await {
        {
            let mut held = held.lock();
            let key = |name: &str| (response.type_url.clone(), name.to_owned());
            for r in &response.resources {
                let text = String::from_utf8(r.resource.as_ref().unwrap().value.clone()).unwrap();
                held.insert(key(&r.name), text);
            }
            for name in &response.removed_resources {
                held.remove(&key(name));
            }
        }
        course.pass(dice, THINK).await;
        client.ack(&response.type_url, &response.nonce).await;
        life = life.checked_sub(1)?;
    }
    None
}

/// Follows the state-of-the-world variant.
async fn follow_sotw(
    mut client: Sotw,
    held: Arc<Mutex<Texts>>,
    mut life: u64,
    course: Course,
    dice: &mut Dice,
) -> Option<u64> {
    let names = |type_url: &str| match type_url {
        EDS | RDS => &NAMES[..],
        _ => &[],
    };
    for type_url in [EDS, CDS, LDS, RDS] {
        client.ask(type_url, names(type_url), "").await;
    }
    while let Ok(Some(response)) = client.responses.message().await {
        let type_url = response.type_url.clone();
        {
            let mut held = held.lock();
            if names(&type_url).is_empty() {
                held.retain(|(url, _), _| *url != type_url);
            }
            for any in &response.resources {
                let text = String::from_utf8(any.value.clone()).unwrap();
                let name = text.split(' ').next().unwrap().to_owned();
                held.insert((type_url.clone(), name), text);
            }
        }
        course.pass(dice, THINK).await;
        client
            .ask(&type_url, names(&type_url), &response.nonce)
            .await;
        life = life.checked_sub(1)?;
    }
    None
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nobody_misses_the_last_word() {
    let course = Course {
        rounds: ROUNDS,
        paused: false,
    };
    run(Shop::open(&[]).await, course).await;
}

#[tokio::test(start_paused = true)]
async fn nobody_misses_the_last_word_in_days_of_mishaps() {
    let mut settings = Settings::default();
    settings.streams_per_second = Some(1.0);
    let mut transport = Transport::default();
    transport.connection_age = Some(Duration::from_mins(30));
    let course = Course {
        rounds: ROUNDS / 5,
        paused: true,
    };
    let start = tokio::time::Instant::now();
    let log = run(Shop::open_in_memory(settings, transport), course).await;
    assert!(start.elapsed() > Duration::from_hours(24));
    assert!(log.count("connected memory") > 500, "reconnects");
    assert_eq!(log.count("panicked"), 0);
}

async fn run(mut shop: Shop, course: Course) -> Log {
    let first: Vec<_> = NAMES.iter().map(|name| (CDS, *name, Some(""))).collect();
    shop.edit(&first);
    let log = shop.log.clone();
    let shop = Arc::new(tokio::sync::Mutex::new(shop));
    let stop = CancellationToken::new();
    let mut clients = JoinSet::new();
    let mut all = Vec::new();
    for number in 0..CLIENTS {
        let held = Arc::new(Mutex::new(Texts::new()));
        all.push((number % 2 == 1, Arc::clone(&held)));
        let (shop, stop) = (Arc::clone(&shop), stop.clone());
        clients.spawn(stop.run_until_cancelled_owned(async move {
            let mut dice = Dice(number);
            loop {
                let life = if dice.roll(3) == 0 {
                    dice.roll(60)
                } else {
                    u64::MAX
                };
                let kind = if course.paused { "memory" } else { "n" };
                let node = format!("{kind}{number}");
                let held = Arc::clone(&held);
                if number % 2 == 1 {
                    let client = shop.lock().await.try_delta(&node).await;
                    if let Ok(client) = client {
                        follow_delta(client, held, life, course, &mut dice).await;
                    }
                } else {
                    let client = shop.lock().await.try_sotw(&node).await;
                    if let Ok(client) = client {
                        follow_sotw(client, held, life, course, &mut dice).await;
                    }
                }
                course.pass(&mut dice, THINK).await;
            }
        }));
    }
    let mut dice = Dice(42);
    let mut world: World = NAMES
        .iter()
        .map(|name| ((CDS, *name), String::new()))
        .collect();
    for round in 0..course.rounds {
        for edit in 0..=dice.roll(EDITS) {
            let edits = some_edits(&mut dice, round * EDITS + edit);
            for (type_url, name, text) in &edits {
                match text {
                    Some(text) => world.insert((*type_url, *name), text.clone()),
                    None => world.remove(&(*type_url, *name)),
                };
            }
            let edits: Vec<_> = edits
                .iter()
                .map(|(t, n, text)| (*t, *n, text.as_deref()))
                .collect();
            shop.lock().await.edit(&edits);
            course.pass(&mut dice, QUIET).await;
        }
        for (delta, held) in &all {
            converge(*delta, held, &expected(&world), course).await;
        }
    }
    stop.cancel();
    while clients.join_next().await.is_some() {}
    log
}

type World = BTreeMap<(&'static str, &'static str), String>;
type Edit = (&'static str, &'static str, Option<String>);

fn pick<T: Copy>(dice: &mut Dice, from: &[T]) -> T {
    from[usize::try_from(dice.roll(from.len() as u64)).unwrap()]
}

fn some_edits(dice: &mut Dice, number: u64) -> Vec<Edit> {
    let mut edits = Vec::new();
    for _ in 0..=dice.roll(3) {
        let (type_url, name) = (pick(dice, &[CDS, EDS, LDS, RDS]), pick(dice, &NAMES));
        let only = pick(dice, &["", "", "@plain", "@moved"]);
        let text = (dice.roll(4) > 0).then(|| format!("{name} {number}{only}"));
        edits.push((type_url, name, text));
    }
    if dice.roll(10) == 0 {
        edits.push((
            MOVE,
            "plain",
            Some(pick(dice, &["plain", "moved"]).to_owned()),
        ));
    }
    edits
}

/// What a client of the class of all clients has to hold.
fn expected(world: &World) -> BTreeSet<(String, String, String)> {
    let class = world
        .get(&(MOVE, "plain"))
        .cloned()
        .unwrap_or_else(|| "plain".to_owned());
    world
        .iter()
        .filter(|((url, _), text)| *url != MOVE && !text.is_empty())
        .filter(|(_, text)| text.split_once('@').is_none_or(|(_, only)| only == class))
        .map(|((url, name), text)| ((*url).to_owned(), (*name).to_owned(), text.clone()))
        .collect()
}

async fn converge(
    delta: bool,
    held: &Mutex<Texts>,
    expected: &BTreeSet<(String, String, String)>,
    course: Course,
) {
    let matches = || {
        // What is gone of a type without removals, a client may keep.
        let told = |url: &str| url == CDS || url == LDS || (delta && url == RDS);
        let has: BTreeSet<_> = held
            .lock()
            .iter()
            .filter(|(_, text)| !text.is_empty())
            .map(|((url, name), text)| (url.clone(), name.clone(), text.clone()))
            .filter(|entry| told(&entry.0) || expected.contains(entry))
            .collect();
        has == *expected
    };
    let wait = async {
        while !matches() {
            course.moment().await;
        }
    };
    let converged = timeout(course.patience(), wait).await.is_ok();
    assert!(
        converged,
        "delta: {delta}\nholds {:#?}\nexpected {expected:#?}",
        held.lock()
    );
}

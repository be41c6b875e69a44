//! A program without Istio in it: users of a shared document store save their work, and one editor
//! whose auto-save is broken must not slow down the rest.
//!
//! `cargo run -p throttle --example editors` prints what reaches the store, and when.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    collections::BTreeMap,
    time::{Duration, SystemTime},
};

use throttle::{
    DEFAULT_QUEUE, Driver, Engine, Event, Limits, NoObserver, Registry, Scope, Settings,
    THROTTLE_POLICIES,
};
use throttle_backoff as _;
use tokio::{sync::mpsc, time::Instant};

/// The last saved text of each document of one user.
#[derive(Debug)]
struct Save {
    user: String,
    documents: BTreeMap<&'static str, String>,
}

impl Event for Save {
    type Tenant = String;
    type Object = &'static str;

    fn scope(&self) -> Scope<'_, String> {
        Scope::Tenant(&self.user)
    }

    fn split(self) -> Vec<(Option<String>, Self)> {
        vec![(Some(self.user.clone()), self)]
    }

    fn merge(&mut self, newer: Self) {
        self.documents.extend(newer.documents);
    }

    fn objects(&self, visit: &mut dyn FnMut(&&'static str)) {
        self.documents.keys().for_each(visit);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let policy = Registry::new(THROTTLE_POLICIES.iter().copied())?.get("backoff")?;
    let mut limits = Limits::default();
    limits.threshold = 5;
    limits.window = Duration::from_secs(1);
    limits.base_delay = Duration::from_millis(100);
    let engine = Engine::<Save>::new(Settings::new(limits), policy)?;

    let (store, mut saves) = mpsc::channel(16);
    let (gate, driver) = Driver::new(
        engine,
        store,
        DEFAULT_QUEUE,
        || SystemTime::UNIX_EPOCH,
        NoObserver,
    );

    let begin = Instant::now();
    let type_away = async move {
        for n in 0..60 {
            let documents = BTreeMap::from([("novel", format!("draft {n}"))]);
            gate.send(Save {
                user: "broken".into(),
                documents,
            })
            .await?;
            if n % 15 == 0 {
                let documents = BTreeMap::from([("letter", format!("page {n}"))]);
                gate.send(Save {
                    user: "calm".into(),
                    documents,
                })
                .await?;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        if let Some(status) = gate.status().await {
            println!("throttled now: {:?}", status.throttled);
        }
        Ok::<_, throttle::Stopped>(())
    };
    let store = async {
        while let Some(save) = saves.recv().await {
            println!(
                "{:>5} ms  {:6} {:?}",
                begin.elapsed().as_millis(),
                save.user,
                save.documents
            );
        }
    };
    let (typed, (), ()) = tokio::join!(type_away, driver.run(), store);
    Ok(typed?)
}

//! A program without Istio in it: edits of documents, coalesced into few refreshes of a search index.
//!
//! `cargo run -p debounce --example search_index` prints when each refresh started and what it held.
//! Deleting is final for the index, so the event's merge lets the newer state of a document win.
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use debounce::{DEFAULT_QUEUE, Driver, Merge, Options, Window};
use tokio::time::sleep;

/// The last known state of each document that changed.
#[derive(Debug, Default)]
struct Edits(BTreeMap<&'static str, State>);

#[derive(Debug, Clone, Copy)]
enum State {
    Written,
    Deleted,
}

impl Merge for Edits {
    fn merge(&mut self, newer: Self) {
        self.0.extend(newer.0);
    }
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let window = Window {
        after: Duration::from_millis(30),
        max: Duration::from_millis(200),
    };
    let (intake, driver) = Driver::new(Options::new(window).adaptive(true), DEFAULT_QUEUE);
    let started = tokio::time::Instant::now().into_std();

    let feed = async move {
        for (document, state, pause) in [
            ("intro", State::Written, 5),
            ("draft", State::Written, 5),
            ("draft", State::Deleted, 120),
            ("intro", State::Written, 60),
        ] {
            if intake
                .send(Edits(BTreeMap::from([(document, state)])))
                .await
                .is_err()
            {
                return;
            }
            sleep(Duration::from_millis(pause)).await;
        }
    };
    tokio::join!(feed, driver.run(|batch| refresh(started, batch)));
}

async fn refresh(started: Instant, batch: debounce::Batch<Edits>) {
    println!(
        "refresh {} at {:>4} ms: {} edits, quiet for {} ms: {:?}",
        batch.sequence,
        batch.delivered.duration_since(started).as_millis(),
        batch.events,
        batch.quiet().as_millis(),
        batch.event.0,
    );
    sleep(Duration::from_millis(10)).await;
}

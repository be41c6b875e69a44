//! A connection that always has something to be told delays nobody else.

use tokio::task::JoinSet;
use xds::{Settings, Transport};

use crate::fake::Shop;
use crate::shelf::EDS;

/// How many pushes of others may come between a change and its push, with one at a time.
const BETWEEN: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_busy_connection_does_not_starve_a_quiet_one() {
    let mut settings = Settings::default();
    settings.concurrent_pushes = 1;
    let texts = [(EDS, "busy", "b"), (EDS, "quiet", "q0")];
    let mut shop = Shop::open_with(&texts, settings, Transport::default()).await;
    let mut busy = shop.delta("busy").await;
    busy.ask(EDS, &["busy"], &[]).await;
    let nonce = busy.receive().await.nonce;
    busy.ack(EDS, &nonce).await;
    let mut quiet = shop.delta("quiet").await;
    quiet.ask(EDS, &["quiet"], &[]).await;
    let nonce = quiet.expect(EDS, (&[("quiet", "q0")], &[])).await;
    quiet.ack(EDS, &nonce).await;

    let mut acknowledging = JoinSet::new();
    acknowledging.spawn(async move {
        loop {
            let nonce = busy.receive().await.nonce;
            busy.ack(EDS, &nonce).await;
        }
    });
    for round in 1..=20 {
        for at in 0..10 {
            shop.edit(&[(EDS, "busy", Some(&format!("{round}-{at}")))]);
            tokio::task::yield_now().await;
        }
        let before = shop.log.lines().len();
        let text = format!("q{round}");
        shop.edit(&[(EDS, "quiet", Some(&text))]);
        for at in 10..20 {
            shop.edit(&[(EDS, "busy", Some(&format!("{round}-{at}")))]);
            tokio::task::yield_now().await;
        }
        let nonce = quiet.expect(EDS, (&[("quiet", &text)], &[])).await;
        quiet.ack(EDS, &nonce).await;
        let lines = shop.log.lines();
        let sent = lines.iter().skip(before).filter(|l| l.starts_with("sent"));
        let ahead = sent
            .take_while(|line| line.starts_with("sent busy"))
            .count();
        assert!(ahead <= BETWEEN, "{ahead} pushes before its own");
    }
    acknowledging.abort_all();
}

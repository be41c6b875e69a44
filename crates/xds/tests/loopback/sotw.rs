//! State of the world, over the wire.

use crate::fake::Shop;
use crate::shelf::{CDS, ECHO, EDS, LDS, RDS};

#[tokio::test]
async fn an_edit_reaches_those_that_it_concerns() {
    let mut shop = Shop::open(&[(CDS, "a", "a1"), (CDS, "b", "b1@other"), (EDS, "a", "ea")]).await;
    let mut client = shop.sotw("one").await;
    client.ask(CDS, &[], "").await;
    let n1 = client.expect(CDS, &["a1"]).await;
    client.ask(CDS, &[], &n1).await;
    client.ask(EDS, &["a"], "").await;
    let n2 = client.expect(EDS, &["ea"]).await;
    client.ask(EDS, &["a"], &n2).await;
    client.silent().await;
    shop.edit(&[(EDS, "a", Some("eb"))]);
    let n3 = client.expect(EDS, &["eb"]).await;
    client.ask(EDS, &["a"], &n3).await;
    shop.edit(&[(CDS, "b", Some("b2@other"))]);
    shop.edit(&[(LDS, "l", Some("l1"))]);
    client.silent().await;
    shop.edit(&[(CDS, "c", Some("c1"))]);
    client.expect(CDS, &["a1", "c1"]).await;
}

/// The example of the specification, section 28.5.
#[tokio::test]
async fn subscription_change_stale_nonce_and_rejection() {
    let mut shop = Shop::open(&[(EDS, "a", "a1"), (EDS, "b", "b1"), (EDS, "c", "c1")]).await;
    let mut client = shop.sotw("one").await;
    client.ask(EDS, &["a"], "").await;
    let n1 = client.expect(EDS, &["a1"]).await;
    client.ask(EDS, &["a"], &n1).await;
    client.ask(EDS, &["a", "b"], &n1).await;
    let n2 = client.expect(EDS, &["b1"]).await;
    client.ask(EDS, &["a", "b"], &n2).await;
    shop.edit(&[(EDS, "a", Some("a2")), (EDS, "b", Some("b2"))]);
    let n3 = client.expect(EDS, &["a2", "b2"]).await;
    client.ask(EDS, &["a", "b", "c"], &n2).await;
    client.silent().await;
    assert_eq!(shop.log.count("stale"), 1);
    client.ask(EDS, &["a", "b", "c"], &n3).await;
    let n4 = client.expect(EDS, &["c1"]).await;
    client.reject(EDS, &["a", "b"], &n4, "bad").await;
    client.silent().await;
    shop.edit(&[(EDS, "c", Some("c2"))]);
    let n5 = client.expect(EDS, &["c2"]).await;
    client.ask(EDS, &[], &n5).await;
    client.silent().await;
    shop.edit(&[(EDS, "a", Some("a3"))]);
    client.silent().await;
}

/// The example of the specification, section 28.6.
#[tokio::test]
async fn warming_after_a_reconnect_is_answered_once() {
    let shop = Shop::open(&[(CDS, "x", "x1"), (EDS, "x", "ex")]).await;
    let mut client = shop.sotw("one").await;
    client.ask(EDS, &["x"], "old").await;
    let n1 = client.expect(EDS, &["ex"]).await;
    client.ask(CDS, &[], "old").await;
    let n2 = client.expect(CDS, &["x1"]).await;
    client.ask(EDS, &["x"], &n1).await;
    let n3 = client.expect(EDS, &["ex"]).await;
    client.ask(CDS, &[], &n2).await;
    client.ask(EDS, &["x"], &n3).await;
    client.silent().await;
}

#[tokio::test]
async fn endpoints_follow_a_changed_cluster() {
    let mut shop = Shop::open(&[
        (CDS, "x", "x1"),
        (CDS, "y", "y1"),
        (EDS, "x", "ex"),
        (EDS, "y", "ey"),
    ])
    .await;
    let mut client = shop.sotw("one").await;
    client.ask(CDS, &[], "").await;
    let cds = client.expect(CDS, &["x1", "y1"]).await;
    client.ask(CDS, &[], &cds).await;
    client.ask(EDS, &["x", "y"], "").await;
    let eds = client.expect(EDS, &["ex", "ey"]).await;
    client.ask(EDS, &["x", "y"], &eds).await;
    shop.edit(&[(CDS, "x", Some("x2"))]);
    client.expect(CDS, &["x2", "y1"]).await;
    client.expect(EDS, &["ex"]).await;
    client.silent().await;
}

#[tokio::test]
async fn clusters_go_after_the_routes_that_used_them() {
    let mut shop = Shop::open(&[(CDS, "x", "x1"), (CDS, "y", "y1"), (RDS, "r", "to x")]).await;
    let mut client = shop.sotw("one").await;
    client.ask(CDS, &[], "").await;
    let cds = client.expect(CDS, &["x1", "y1"]).await;
    client.ask(CDS, &[], &cds).await;
    client.ask(RDS, &["r"], "").await;
    let rds = client.expect(RDS, &["to x"]).await;
    client.ask(RDS, &["r"], &rds).await;
    client.silent().await;
    shop.edit(&[
        (CDS, "x", None),
        (CDS, "z", Some("z1")),
        (RDS, "r", Some("to z")),
    ]);
    let cds = client.expect(CDS, &["x1", "y1", "z1"]).await;
    let rds = client.expect(RDS, &["to z"]).await;
    client.ask(CDS, &[], &cds).await;
    client.silent().await;
    client.ask(RDS, &["r"], &rds).await;
    client.expect(CDS, &["y1", "z1"]).await;
}

#[tokio::test]
async fn a_rejected_resource_is_named_and_the_rest_flows_on() {
    let mut shop = Shop::open(&[(CDS, "a", "a1"), (CDS, "b", "b1")]).await;
    let mut client = shop.sotw("one").await;
    client.ask(CDS, &[], "").await;
    let n1 = client.expect(CDS, &["a1", "b1"]).await;
    client.ask(CDS, &[], &n1).await;
    shop.edit(&[(CDS, "a", Some("poison")), (CDS, "b", Some("b2"))]);
    let n2 = client.expect(CDS, &["poison", "b2"]).await;
    client
        .reject(CDS, &[], &n2, "Error adding/updating cluster(s) a: no")
        .await;
    let n3 = client.expect(CDS, &["a1", "b2"]).await;
    client.ask(CDS, &[], &n3).await;
    client.silent().await;
    assert_eq!(
        shop.log.count("rejected one a of [\"Text/a\"]"),
        1,
        "{:#?}",
        shop.log.lines()
    );
    let status = shop.server.streams().remove(0).subscriptions.remove(0);
    assert_eq!(&*status.held_back[0].name, "a");
    assert_eq!(status.error, None);
    shop.edit(&[(CDS, "b", Some("b3"))]);
    let n4 = client.expect(CDS, &["a1", "b3"]).await;
    client.ask(CDS, &[], &n4).await;
    shop.edit(&[(CDS, "a", Some("a2"))]);
    client.expect(CDS, &["a2", "b3"]).await;
}

#[tokio::test]
async fn a_type_that_nobody_serves_is_answered_with_nothing() {
    let shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut client = shop.sotw("one").await;
    client.ask("example.org/Unknown", &[], "").await;
    let nonce = client.expect("example.org/Unknown", &[]).await;
    client.ask("example.org/Unknown", &[], &nonce).await;
    client.silent().await;
}

#[tokio::test]
async fn a_question_is_answered_every_time() {
    let shop = Shop::open(&[(ECHO, "a", "a1"), (ECHO, "b", "b1")]).await;
    let mut client = shop.sotw("one").await;
    client.ask(ECHO, &["a"], "").await;
    client.expect(ECHO, &["a1"]).await;
    client.ask(ECHO, &["a"], "whatever").await;
    client.expect(ECHO, &["a1"]).await;
    client.ask(ECHO, &[], "").await;
    client.expect(ECHO, &["a1", "b1"]).await;
}

#[tokio::test]
async fn a_generator_that_panics_spoils_nothing_else() {
    let mut shop = Shop::open(&[(CDS, "a", "a1"), (LDS, "l", "l1")]).await;
    let mut client = shop.sotw("one").await;
    client.ask(CDS, &[], "").await;
    client.expect(CDS, &["a1"]).await;
    client.ask(LDS, &[], "").await;
    client.expect(LDS, &["l1"]).await;
    shop.edit(&[(CDS, "a", Some("panic")), (LDS, "l", Some("l2"))]);
    client.expect(LDS, &["l2"]).await;
    client.silent().await;
    assert_eq!(shop.log.count("panicked"), 1);
}

#[tokio::test]
async fn equal_proxies_share_what_is_generated() {
    let mut shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut clients = Vec::new();
    for number in 0..5 {
        let mut client = shop.sotw(&format!("n{number}")).await;
        client.ask(CDS, &[], "").await;
        let nonce = client.expect(CDS, &["a1"]).await;
        client.ask(CDS, &[], &nonce).await;
        clients.push(client);
    }
    assert_eq!(shop.log.count("generated"), 1);
    shop.edit(&[(CDS, "a", Some("a2"))]);
    for client in &mut clients {
        client.expect(CDS, &["a2"]).await;
    }
    assert_eq!(shop.log.count("generated"), 2);
    shop.edit(&[(LDS, "l", Some("l1"))]);
    shop.edit(&[(CDS, "a", Some("a2"))]);
    for client in &mut clients {
        client.silent().await;
    }
    assert_eq!(
        shop.log.count("generated"),
        3,
        "only the second edit touched what they have"
    );
}

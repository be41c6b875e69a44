//! One poisoned object that reaches into every listener.

use crate::fake::{Delta, Shop};
use crate::shelf::{FILTER, LDS};

/// A client that has listeners `a` and `b`, and accepted them with filter `good`.
async fn with_listeners(shop: &mut Shop, node: &str) -> Delta {
    let mut client = shop.delta(node).await;
    client.ask(LDS, &[], &[]).await;
    let nonce = client
        .expect(LDS, (&[("a", "a1+g"), ("b", "b1+g")], &[]))
        .await;
    client.ack(LDS, &nonce).await;
    client.silent().await;
    client
}

async fn shop() -> Shop {
    Shop::open(&[(LDS, "a", "a1"), (LDS, "b", "b1"), (FILTER, "good", "g")]).await
}

#[tokio::test]
async fn it_is_set_aside_and_every_other_change_flows() {
    let mut shop = shop().await;
    let mut client = with_listeners(&mut shop, "one").await;
    shop.edit(&[(FILTER, "poison", Some("!"))]);
    let nonce = client
        .expect(LDS, (&[("a", "a1+g+!"), ("b", "b1+g+!")], &[]))
        .await;
    client
        .reject(
            LDS,
            &nonce,
            "Error adding/updating listener(s) a: bad filter",
        )
        .await;
    // Without the filter the listeners are what the client has; Envoy may have applied `b`.
    client.expect(LDS, (&[("b", "b1+g")], &[])).await;
    client.silent().await;
    assert_eq!(
        shop.log.count("aside one Filter/poison"),
        1,
        "{:#?}",
        shop.log.lines()
    );
    let aside: Vec<_> = shop.server.set_aside();
    assert_eq!(
        (&*aside[0].0.source, aside.len(), aside[0].1),
        ("Filter/poison", 1, 1)
    );

    shop.edit(&[(LDS, "a", Some("a2")), (FILTER, "good", Some("h"))]);
    let nonce = client
        .expect(LDS, (&[("a", "a2+h"), ("b", "b1+h")], &[]))
        .await;
    client.ack(LDS, &nonce).await;

    // Another proxy of the class is never shown the poison.
    let mut second = shop.delta("two").await;
    second.ask(LDS, &[], &[]).await;
    second
        .expect(LDS, (&[("a", "a2+h"), ("b", "b1+h")], &[]))
        .await;

    shop.edit(&[(FILTER, "poison", Some("cured"))]);
    client
        .expect(LDS, (&[("a", "a2+h+cured"), ("b", "b1+h+cured")], &[]))
        .await;
    assert!(shop.server.set_aside().is_empty());
}

#[tokio::test]
async fn what_changed_with_it_arrives_without_it() {
    let mut shop = shop().await;
    let mut client = with_listeners(&mut shop, "one").await;
    shop.edit(&[(FILTER, "poison", Some("!")), (LDS, "a", Some("a2"))]);
    let nonce = client
        .expect(LDS, (&[("a", "a2+g+!"), ("b", "b1+g+!")], &[]))
        .await;
    client
        .reject(LDS, &nonce, "listener(s) a: bad filter, b: bad filter")
        .await;
    let nonce = client.expect(LDS, (&[("a", "a2+g")], &[])).await;
    client.ack(LDS, &nonce).await;
    shop.until("set aside", |log| log.count("aside one Filter/poison") == 1)
        .await;
    client.silent().await;
}

#[tokio::test]
async fn the_innocent_come_back() {
    let mut shop = shop().await;
    let mut client = with_listeners(&mut shop, "one").await;
    shop.edit(&[(LDS, "a", Some("poison")), (LDS, "b", Some("b2"))]);
    let nonce = client
        .expect(LDS, (&[("a", "poison+g"), ("b", "b2+g")], &[]))
        .await;
    client.reject(LDS, &nonce, "listener(s) a: bad").await;
    // Without the filter it is as bad as before, so the filter comes back.
    let nonce = client
        .expect(LDS, (&[("a", "poison"), ("b", "b2")], &[]))
        .await;
    client.reject(LDS, &nonce, "listener(s) a: bad").await;
    let nonce = client.expect(LDS, (&[("b", "b2+g")], &[])).await;
    client.ack(LDS, &nonce).await;
    client.silent().await;
    assert!(shop.server.set_aside().is_empty());
    shop.edit(&[(LDS, "a", Some("a3"))]);
    client.expect(LDS, (&[("a", "a3+g")], &[])).await;
}

//! Delta, over the wire.

use std::collections::BTreeMap;

use xds::{Settings, Transport};

use crate::fake::Shop;
use crate::shelf::{CDS, EDS, LDS, RDS};

#[tokio::test]
async fn only_what_differs_is_sent() {
    let mut shop = Shop::open(&[(CDS, "a", "a1"), (CDS, "b", "b1")]).await;
    let mut client = shop.delta("one").await;
    client.ask(CDS, &[], &[]).await;
    let nonce = client.expect(CDS, (&[("a", "a1"), ("b", "b1")], &[])).await;
    assert!(nonce.starts_with("v1/"), "{nonce}");
    client.ack(CDS, &nonce).await;
    shop.edit(&[(CDS, "a", Some("a2")), (CDS, "b", Some("b1"))]);
    let nonce = client.expect(CDS, (&[("a", "a2")], &[])).await;
    client.ack(CDS, &nonce).await;
    shop.edit(&[(CDS, "b", None), (CDS, "c", Some("c1"))]);
    client.expect(CDS, (&[("c", "c1")], &["b"])).await;
    client.silent().await;
}

#[tokio::test]
async fn a_client_that_states_what_it_has_gets_what_differs() {
    let texts = [
        (CDS, "a", "a1"),
        (CDS, "b", "b1"),
        (EDS, "a", "ea"),
        (EDS, "b", "eb"),
    ];
    let shop = Shop::open(&texts).await;
    let mut client = shop.delta("one").await;
    client.ask(CDS, &[], &[]).await;
    let clusters = versions(&client.receive().await);
    client.ask(EDS, &["a", "b"], &[]).await;
    let endpoints = versions(&client.receive().await);
    drop(client);

    // Another replica with the same world: nothing is sent.
    let mut other = Shop::open(&texts).await;
    let mut client = other.delta("one").await;
    client.state(EDS, &["a", "b"], &endpoints).await;
    client.expect(EDS, (&[], &[])).await;
    client.state(CDS, &[], &clusters).await;
    client.expect(CDS, (&[], &[])).await;
    client.silent().await;
    drop(client);

    // Afterwards the world has changed: the difference is sent, and endpoints for what warms.
    other.edit(&[
        (CDS, "a", Some("a2")),
        (CDS, "b", None),
        (CDS, "c", Some("c1")),
    ]);
    let mut client = other.delta("one").await;
    client.state(EDS, &["a", "b"], &endpoints).await;
    client.expect(EDS, (&[], &[])).await;
    client.state(CDS, &[], &clusters).await;
    client
        .expect(CDS, (&[("c", "c1"), ("a", "a2")], &["b"]))
        .await;
    client.expect(EDS, (&[("a", "ea")], &[])).await;
    client.silent().await;
}

fn versions(
    response: &envoy_types::pb::envoy::service::discovery::v3::DeltaDiscoveryResponse,
) -> BTreeMap<String, String> {
    response
        .resources
        .iter()
        .map(|r| (r.name.clone(), r.version.clone()))
        .collect()
}

#[tokio::test]
async fn names_that_do_not_exist_are_reported() {
    let mut shop = Shop::open(&[(RDS, "r", "r1")]).await;
    let mut client = shop.delta("one").await;
    client.ask(RDS, &["r", "s"], &[]).await;
    let nonce = client.expect(RDS, (&[("r", "r1")], &["s"])).await;
    client.ack(RDS, &nonce).await;
    shop.edit(&[(RDS, "s", Some("s1"))]);
    client.expect(RDS, (&[("s", "s1")], &[])).await;
    client.ask(RDS, &["s"], &[]).await;
    client.expect(RDS, (&[("s", "s1")], &[])).await;
    client.ask(RDS, &[], &["r"]).await;
    client.silent().await;
    shop.edit(&[(RDS, "r", Some("r2"))]);
    client.silent().await;
    client.ask(RDS, &["r"], &[]).await;
    client.expect(RDS, (&[("r", "r2")], &[])).await;
}

#[tokio::test]
async fn clusters_go_after_the_listeners_that_used_them() {
    let mut shop = Shop::open(&[(CDS, "x", "x1"), (EDS, "x", "ex"), (LDS, "l", "to x")]).await;
    let mut client = shop.delta("one").await;
    client.ask(CDS, &[], &[]).await;
    client.expect(CDS, (&[("x", "x1")], &[])).await;
    client.ask(EDS, &["x"], &[]).await;
    client.expect(EDS, (&[("x", "ex")], &[])).await;
    client.ask(LDS, &[], &[]).await;
    let lds = client.expect(LDS, (&[("l", "to x")], &[])).await;
    client.ack(LDS, &lds).await;
    shop.edit(&[
        (CDS, "x", None),
        (CDS, "y", Some("y1")),
        (LDS, "l", Some("to y")),
    ]);
    client.expect(CDS, (&[("y", "y1")], &[])).await;
    let lds = client.expect(LDS, (&[("l", "to y")], &[])).await;
    client.silent().await;
    client.ack(LDS, &lds).await;
    client.expect(CDS, (&[], &["x"])).await;
}

#[tokio::test]
async fn a_large_response_is_split() {
    let big = "x".repeat(1000);
    let names: Vec<String> = (0..10).map(|n| format!("c{n}")).collect();
    let texts: Vec<_> = names
        .iter()
        .map(|name| (CDS, name.as_str(), big.as_str()))
        .collect();
    let mut settings = Settings::default();
    settings.split_bytes = 4000;
    let shop = Shop::open_with(&texts, settings, Transport::default()).await;
    let mut client = shop.delta("one").await;
    client.ask(CDS, &[], &[]).await;
    let mut got = Vec::new();
    let mut nonces = std::collections::BTreeSet::new();
    while got.len() < 10 {
        let response = client.receive().await;
        assert!(response.resources.len() <= 3);
        got.extend(response.resources.into_iter().map(|r| r.name));
        assert!(nonces.insert(response.nonce.clone()));
        client.ack(CDS, &response.nonce).await;
    }
    assert_eq!(got, names);
    client.silent().await;
    assert_eq!(shop.log.count("stale"), 0);
}

#[tokio::test]
async fn a_poisoned_resource_is_found_without_a_hint() {
    let texts: Vec<(&str, String)> = (0..8).map(|n| (CDS, format!("c{n}"))).collect();
    let texts: Vec<_> = texts
        .iter()
        .map(|(t, name)| (*t, &**name, if name == "c5" { "poison" } else { "fine" }))
        .collect();
    let mut shop = Shop::open(&texts).await;
    let mut client = shop.delta("one").await;
    client.ask(CDS, &[], &[]).await;
    let mut held = std::collections::BTreeSet::new();
    let mut seen = 0;
    while held.len() < 7 {
        let response = client.receive().await;
        let is_poison = |value: &[u8]| value == b"poison";
        let poisoned = response
            .resources
            .iter()
            .any(|r| is_poison(&r.resource.as_ref().unwrap().value));
        if poisoned {
            seen += 1;
            client
                .reject(CDS, &response.nonce, "something is wrong")
                .await;
        } else {
            held.extend(response.resources.iter().map(|r| r.name.clone()));
            client.ack(CDS, &response.nonce).await;
        }
    }
    assert_eq!(seen, 4, "8, 4, 2, 1");
    client.silent().await;
    assert_eq!(
        shop.log.count("rejected one c5 of [\"Text/c5\"]"),
        1,
        "{:#?}",
        shop.log.lines()
    );
    shop.edit(&[(CDS, "c5", Some("cured"))]);
    client.expect(CDS, (&[("c5", "cured")], &[])).await;
}

#[tokio::test]
async fn on_demand_clients_start_with_an_empty_answer() {
    let shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut client = shop.delta("one").await;
    client.ask(CDS, &["*"], &["*"]).await;
    client.expect(CDS, (&[], &[])).await;
    client.ask(CDS, &["a", "b"], &[]).await;
    client.expect(CDS, (&[("a", "a1")], &["b"])).await;
}

//! Connections: their age, their number, and the end of the server.

use std::time::Duration;

use tonic::Code;
use xds::{Settings, Transport};

use crate::fake::Shop;
use crate::shelf::CDS;

#[tokio::test]
async fn a_connection_is_asked_to_go_at_its_age() {
    let mut transport = Transport::default();
    transport.connection_age = Some(Duration::from_millis(200));
    let shop = Shop::open_with(&[(CDS, "a", "a1")], Settings::default(), transport).await;
    let mut client = shop.sotw("one").await;
    client.ask(CDS, &[], "").await;
    client.expect(CDS, &["a1"]).await;
    assert_eq!(client.end().await.code(), Code::Unavailable);
    let mut client = shop.sotw("one").await;
    client.ask(CDS, &[], "").await;
    client.expect(CDS, &["a1"]).await;
}

#[tokio::test]
async fn streams_that_start_at_once_wait_or_are_refused() {
    let mut settings = Settings::default();
    settings.streams_per_second = Some(10.0);
    settings.stream_wait = Duration::from_millis(250);
    let shop = Shop::open_with(&[(CDS, "a", "a1")], settings, Transport::default()).await;
    let channel = shop.channel().await;
    let calls = (0..6).map(|_| {
        let channel = channel.clone();
        async move {
            let mut client = envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient::new(channel);
            client.delta_aggregated_resources(futures::stream::pending()).await.map_err(|s| s.code())
        }
    });
    let results = futures::future::join_all(calls).await;
    let refused = results
        .iter()
        .filter(|r| matches!(r, Err(Code::ResourceExhausted)))
        .count();
    assert_eq!(refused, 3);
}

#[tokio::test]
async fn draining_ends_every_stream_and_takes_no_new_ones() {
    let mut shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut clients = Vec::new();
    for number in 0..4 {
        let mut client = shop.sotw(&format!("n{number}")).await;
        client.ask(CDS, &[], "").await;
        client.expect(CDS, &["a1"]).await;
        clients.push(client);
    }
    shop.server.drain(Duration::from_millis(100)).await;
    for client in &mut clients {
        assert_eq!(client.end().await.code(), Code::Unavailable);
    }
    shop.stop.cancel();
    drop(clients);
    shop.tasks.join_next().await.unwrap().unwrap();
    assert!(shop.server.streams().is_empty());
}

#[tokio::test]
async fn one_stream_can_be_ended() {
    let shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut client = shop.sotw("one").await;
    client.ask(CDS, &[], "").await;
    client.expect(CDS, &["a1"]).await;
    let id = shop.server.streams()[0].info.id;
    assert!(shop.server.disconnect(id));
    assert_eq!(client.end().await.code(), Code::Unavailable);
    assert!(!shop.server.disconnect(id + 1));
}

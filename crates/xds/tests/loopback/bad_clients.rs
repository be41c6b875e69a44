//! Clients that misbehave, and a good one that must not notice.

use std::net::SocketAddr;
use std::time::Duration;

use envoy_types::pb::envoy::service::discovery::v3::DiscoveryRequest;
use envoy_types::pb::envoy::service::discovery::v3::aggregated_discovery_service_client::AggregatedDiscoveryServiceClient;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;
use tonic::Code;
use xds::{Settings, Transport};

use crate::fake::{Shop, Sotw, node};
use crate::shelf::{CDS, EDS, HEALTH, LDS};

async fn good(shop: &Shop) -> Sotw {
    let mut client = shop.sotw("good").await;
    client.ask(CDS, &[], "").await;
    let nonce = client.expect(CDS, &["a1"]).await;
    client.ask(CDS, &[], &nonce).await;
    client
}

async fn check_good(shop: &mut Shop, client: &mut Sotw) {
    shop.edit(&[(CDS, "a", Some("a2"))]);
    let nonce = client.expect(CDS, &["a2"]).await;
    client.ask(CDS, &[], &nonce).await;
}

#[tokio::test]
async fn a_first_request_without_node_is_refused() {
    let shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut client = shop.sotw("").await;
    client.ask(CDS, &[], "").await;
    let status = client.end().await;
    assert_eq!(
        (status.code(), status.message()),
        (Code::InvalidArgument, "missing node information")
    );
    assert_eq!(shop.log.lines(), ["refused InvalidArgument"]);
}

#[tokio::test]
async fn a_second_node_is_ignored() {
    let shop = Shop::open(&[(CDS, "a", "a1"), (LDS, "l", "l1")]).await;
    let mut client = good(&shop).await;
    let request = DiscoveryRequest {
        type_url: LDS.to_owned(),
        node: Some(node("nobody")),
        ..DiscoveryRequest::default()
    };
    client.send(request).await;
    client.expect(LDS, &["l1"]).await;
    assert_eq!(&*shop.server.streams()[0].info.node, "good");
}

#[tokio::test]
async fn the_world_decides_who_comes_in() {
    let shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut client = shop.sotw("nobody").await;
    client.ask(CDS, &[], "").await;
    assert_eq!(client.end().await.code(), Code::PermissionDenied);
    assert!(shop.server.streams().is_empty());
}

#[tokio::test]
async fn reports_are_not_answered() {
    let shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut client = shop.sotw("one").await;
    let early = DiscoveryRequest {
        type_url: HEALTH.to_owned(),
        ..DiscoveryRequest::default()
    };
    client.requests.send(early).await.unwrap();
    client.ask(CDS, &[], "").await;
    client.expect(CDS, &["a1"]).await;
    client.ask(HEALTH, &[], "").await;
    client.silent().await;
}

#[tokio::test]
async fn before_the_first_publication_streams_are_refused() {
    let mut shop = Shop::open(&[]).await;
    let requests = futures::stream::pending::<DiscoveryRequest>();
    let mut client = AggregatedDiscoveryServiceClient::new(shop.channel().await);
    let status = client
        .stream_aggregated_resources(requests)
        .await
        .unwrap_err();
    assert_eq!(status.code(), Code::Unavailable);
    shop.edit(&[(CDS, "a", Some("a1"))]);
    let _good = good(&shop).await;
}

#[tokio::test]
async fn garbage_harms_nobody_else() {
    let mut shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut client = good(&shop).await;
    let mut raw = TcpStream::connect(shop.address).await.unwrap();
    raw.write_all(&[0x16; 4096]).await.unwrap();
    let mut preface = TcpStream::connect(shop.address).await.unwrap();
    preface
        .write_all(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n")
        .await
        .unwrap();
    preface.write_all(&[0xff; 4096]).await.ok();
    check_good(&mut shop, &mut client).await;
}

#[tokio::test]
async fn an_undecodable_request_ends_its_stream_only() {
    let mut shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut client = good(&shop).await;
    let mut bad = tonic::client::Grpc::new(shop.channel().await);
    bad.ready().await.unwrap();
    let path = "/envoy.service.discovery.v3.AggregatedDiscoveryService/StreamAggregatedResources";
    // Another message: a string where the server expects a node.
    let request = envoy_types::pb::envoy::service::discovery::v3::ResourceLocator {
        name: "x".to_owned(),
        dynamic_parameters: [("\u{1}".to_owned(), "y".to_owned())].into(),
    };
    let codec = tonic_prost::ProstCodec::<_, DiscoveryRequest>::default();
    let call = bad
        .streaming(
            tonic::Request::new(futures::stream::iter([request])),
            path.parse().unwrap(),
            codec,
        )
        .await;
    let status = match call {
        Err(status) => status,
        Ok(mut response) => response.get_mut().message().await.unwrap_err(),
    };
    assert_eq!(status.code(), Code::InvalidArgument, "{status}");
    check_good(&mut shop, &mut client).await;
}

#[tokio::test]
async fn endless_rejection_comes_to_rest() {
    let texts: Vec<(&str, String)> = (0..50).map(|n| (CDS, format!("c{n}"))).collect();
    let mut texts: Vec<_> = texts.iter().map(|(t, n)| (*t, &**n, "a1@bad")).collect();
    texts.push((CDS, "a", "a1"));
    let mut shop = Shop::open(&texts).await;
    let mut client = good(&shop).await;
    let mut bad = shop.delta("bad").await;
    bad.ask(CDS, &[], &[]).await;
    let mut responses = 0;
    while let Ok(response) =
        tokio::time::timeout(Duration::from_millis(300), bad.responses.message()).await
    {
        responses += 1;
        bad.reject(CDS, &response.unwrap().unwrap().nonce, "no")
            .await;
    }
    assert!(responses < 110, "{responses} responses");
    check_good(&mut shop, &mut client).await;
}

#[tokio::test]
async fn a_client_that_never_reads_delays_nobody() {
    let big = "x".repeat(200_000);
    let mut settings = Settings::default();
    settings.concurrent_pushes = 1;
    let texts = [(CDS, "a", "a1"), (LDS, "l", &*big)];
    let mut shop = Shop::open_with(&texts, settings, Transport::default()).await;
    let mut client = good(&shop).await;
    // Less room than one response needs: by default the transport itself has room for several.
    let mut lazy = shop.sotw_with_room("lazy", 64 << 10).await;
    lazy.ask(LDS, &[], "").await;
    for round in 0..50 {
        let text = format!("{round}{big}");
        shop.edit(&[(LDS, "l", Some(&text))]);
        tokio::task::yield_now().await;
    }
    check_good(&mut shop, &mut client).await;
    // What it did not take was merged, not queued.
    let sent = shop.log.count("sent lazy");
    assert!(sent < 10, "{sent}");
}

#[tokio::test]
async fn a_reset_in_the_middle_leaves_nothing_behind() {
    let big = "x".repeat(2_000_000);
    let mut shop = Shop::open(&[(CDS, "a", "a1"), (LDS, "l", &big)]).await;
    let mut client = good(&shop).await;
    let mut hasty = shop.sotw("hasty").await;
    hasty.ask(LDS, &[], "").await;
    shop.until("sent", |log| log.count("sent hasty") == 1).await;
    drop(hasty);
    shop.until("gone", |log| log.count("disconnected hasty") == 1)
        .await;
    assert_eq!(shop.server.streams().len(), 1);
    assert_eq!(shop.log.count("failed"), 0, "{:?}", shop.log.lines());
    check_good(&mut shop, &mut client).await;
}

#[tokio::test]
async fn too_many_names_end_the_stream() {
    let mut settings = Settings::default();
    settings.names_per_type = 10_000;
    let mut shop = Shop::open_with(&[(CDS, "a", "a1")], settings, Transport::default()).await;
    let mut client = good(&shop).await;
    let mut greedy = shop.sotw("greedy").await;
    let names: Vec<String> = (0..10_001).map(|n| format!("name-{n}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    greedy.ask(EDS, &names[..10_000], "").await;
    greedy.silent().await;
    greedy.ask(EDS, &names, "").await;
    assert_eq!(greedy.end().await.code(), Code::ResourceExhausted);
    check_good(&mut shop, &mut client).await;
}

#[tokio::test]
async fn too_many_types_end_the_stream() {
    let shop = Shop::open(&[(CDS, "a", "a1")]).await;
    let mut greedy = shop.sotw("greedy").await;
    for number in 0..65 {
        greedy.ask(&format!("example.org/{number}"), &[], "").await;
    }
    assert_eq!(greedy.end().await.code(), Code::ResourceExhausted);
}

#[tokio::test]
async fn too_large_a_request_ends_its_stream() {
    let mut transport = Transport::default();
    transport.receive_bytes = 10_000;
    let shop = Shop::open_with(&[(CDS, "a", "a1")], Settings::default(), transport).await;
    let mut client = shop.sotw("one").await;
    client.ask(CDS, &[&"x".repeat(20_000)], "").await;
    assert_eq!(client.end().await.code(), Code::OutOfRange);
}

/// A connection through which nothing comes any more when it is cut, in either direction: neither
/// end hears of it, as when a machine loses its power.
struct Cable {
    address: SocketAddr,
    cut: CancellationToken,
    _wire: JoinSet<()>,
}

impl Cable {
    async fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let cut = CancellationToken::new();
        let mut wire = JoinSet::new();
        let is_cut = cut.clone();
        wire.spawn(async move {
            let (mut client, _) = listener.accept().await.unwrap();
            let mut server = TcpStream::connect(server).await.unwrap();
            let copy = tokio::io::copy_bidirectional(&mut client, &mut server);
            is_cut.run_until_cancelled(copy).await;
            // Both sockets stay open, and are never read again.
            std::future::pending::<()>().await;
        });
        Self {
            address,
            cut,
            _wire: wire,
        }
    }
}

fn impatient() -> Transport {
    let mut transport = Transport::default();
    transport.keepalive_interval = Duration::from_millis(100);
    // Long enough for a good client on a busy machine.
    transport.keepalive_timeout = Duration::from_secs(2);
    transport.handshake = Duration::from_secs(1);
    transport
}

#[tokio::test]
async fn a_half_open_connection_is_found_out_and_closed() {
    let texts = [(CDS, "a", "a1")];
    let mut shop = Shop::open_with(&texts, Settings::default(), impatient()).await;
    let mut client = good(&shop).await;
    let cable = Cable::to(shop.address).await;
    let mut gone = shop.sotw_at(cable.address, "gone").await;
    gone.ask(CDS, &[], "").await;
    gone.expect(CDS, &["a1"]).await;
    cable.cut.cancel();
    check_good(&mut shop, &mut client).await;
    shop.until("found out", |log| log.count("disconnected gone") == 1)
        .await;
    assert_eq!(shop.server.streams().len(), 1);
}

#[tokio::test]
async fn a_socket_that_is_never_read_is_closed_in_the_end() {
    let big = "x".repeat(3_000_000);
    let texts = [(CDS, "a", "a1"), (LDS, "l", &*big)];
    let mut shop = Shop::open_with(&texts, Settings::default(), impatient()).await;
    let mut client = good(&shop).await;
    let cable = Cable::to(shop.address).await;
    let mut lazy = shop.sotw_at(cable.address, "lazy").await;
    lazy.ask(LDS, &[], "").await;
    lazy.expect(LDS, &[&big]).await;
    cable.cut.cancel();
    // More than the buffers of the sockets take.
    for round in 0..5 {
        let text = format!("{round}{big}");
        shop.edit(&[(LDS, "l", Some(&text))]);
    }
    check_good(&mut shop, &mut client).await;
    shop.until("closed", |log| log.count("disconnected lazy") == 1)
        .await;
}

#[tokio::test]
async fn a_connection_that_says_nothing_is_closed() {
    let texts = [(CDS, "a", "a1")];
    let mut shop = Shop::open_with(&texts, Settings::default(), impatient()).await;
    let mut client = good(&shop).await;
    let mut mute = TcpStream::connect(shop.address).await.unwrap();
    let mut slow = TcpStream::connect(shop.address).await.unwrap();
    slow.write_all(b"PRI * HTTP/2.0").await.unwrap();
    for socket in [&mut mute, &mut slow] {
        let mut greeting = Vec::new();
        socket.read_to_end(&mut greeting).await.ok();
    }
    check_good(&mut shop, &mut client).await;
}

#[tokio::test]
async fn one_address_has_so_many_streams_at_once() {
    let mut settings = Settings::default();
    settings.streams_per_peer = Some(2);
    let shop = Shop::open_with(&[(CDS, "a", "a1")], settings, Transport::default()).await;
    let mut one = good(&shop).await;
    let two = good(&shop).await;
    let mut client = AggregatedDiscoveryServiceClient::new(shop.channel().await);
    let third = client
        .delta_aggregated_resources(futures::stream::pending())
        .await;
    assert_eq!(third.unwrap_err().code(), Code::ResourceExhausted);
    assert_eq!(shop.log.count("refused ResourceExhausted"), 1);
    // The others stay, and one that goes makes room.
    drop(two);
    while shop.server.connected() > 1 {
        tokio::task::yield_now().await;
    }
    let mut three = good(&shop).await;
    three.ask(LDS, &[], "").await;
    one.ask(LDS, &[], "").await;
}

#[tokio::test]
async fn large_headers_are_refused() {
    let mut transport = Transport::default();
    transport.header_bytes = 4 << 10;
    let shop = Shop::open_with(&[(CDS, "a", "a1")], Settings::default(), transport).await;
    let _good = good(&shop).await;
    let mut client = AggregatedDiscoveryServiceClient::new(shop.channel().await);
    let mut request = tonic::Request::new(futures::stream::pending());
    let value = "x".repeat(8 << 10).parse().unwrap();
    request.metadata_mut().insert("x-large", value);
    let answer = client.delta_aggregated_resources(request).await;
    let refused = answer.unwrap().into_inner().message().await.unwrap_err();
    // By the transport: status 431.
    assert!(refused.message().contains("431"), "{refused:?}");
    assert_eq!(shop.log.count("connected"), 1);
}

#[tokio::test(start_paused = true)]
async fn a_stream_that_does_not_say_who_it_is_ends() {
    let mut shop = Shop::open_in_memory(Settings::default(), Transport::default());
    shop.edit(&[(CDS, "a", Some("a1"))]);
    let mut client = AggregatedDiscoveryServiceClient::new(shop.channel().await);
    let answer = client
        .delta_aggregated_resources(futures::stream::pending())
        .await;
    let ended = answer.unwrap().into_inner().message().await;
    assert_eq!(ended.unwrap_err().code(), Code::DeadlineExceeded);
    assert_eq!(shop.log.lines(), ["refused DeadlineExceeded"]);
}

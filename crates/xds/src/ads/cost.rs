//! What one more connection of a class costs: it grows with the resources that changed, not with
//! their bytes, and not with the mesh.

use std::sync::Arc;
use std::time::Instant;

use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};

use super::{Ads, Limits};
use crate::codec::{Writer, encode, encoded_len};
use crate::observer::Protocol;
use crate::{Resource, ResourceSet, TypeFacts, type_url};

/// A mesh of 2000 clusters of `bytes` bytes; the first `changed` are in another state.
fn clusters(bytes: usize, changed: usize) -> Arc<ResourceSet> {
    let cluster = |n: usize| {
        let state = u8::from(n < changed);
        Resource::new(
            format!("outbound|80||service-{n}.default"),
            vec![state; bytes],
        )
    };
    Arc::new((0..2000).map(cluster).collect())
}

fn connect(protocol: Protocol, set: &Arc<ResourceSet>, now: Instant) -> Ads {
    let mut ads = Ads::new(
        protocol,
        Limits {
            types: 8,
            names: 8,
            split_bytes: usize::MAX,
        },
    );
    let type_url = type_url::CLUSTER.to_owned();
    let taken = match protocol {
        Protocol::Sotw => {
            let request = DiscoveryRequest {
                type_url,
                ..DiscoveryRequest::default()
            };
            ads.on_sotw(TypeFacts::CLUSTERS, &request, now)
        }
        Protocol::Delta => {
            let request = DeltaDiscoveryRequest {
                type_url,
                ..DeltaDiscoveryRequest::default()
            };
            ads.on_delta(TypeFacts::CLUSTERS, &request, now)
        }
    };
    taken.unwrap();
    ads.set_target(type_url::CLUSTER, Arc::clone(set), 1);
    assert_eq!(ads.respond(&"root".into(), now).len(), 1);
    ads
}

/// Returns how many bytes a push allocates for the second connection of a class, and how many go
/// into the buffer of the transport, which is not counted.
fn push(protocol: Protocol, bytes: usize, changed: usize) -> (u64, usize) {
    #[expect(
        clippy::disallowed_methods,
        reason = "any instant will do as the origin"
    )]
    let now = Instant::now();
    let (before, after) = (clusters(bytes, 0), clusters(bytes, changed));
    let root: Arc<str> = "root".into();
    let mut first = connect(protocol, &before, now);
    let mut second = connect(protocol, &before, now);
    first.set_target(type_url::CLUSTER, Arc::clone(&after), 1);
    assert_eq!(first.respond(&root, now).len(), 1);
    let mut buffer = Vec::with_capacity(64 << 20);
    let cost = allocation_counter::measure(|| {
        second.set_target(type_url::CLUSTER, Arc::clone(&after), 1);
        for response in second.respond(&root, now) {
            assert!(encoded_len(protocol, &response) <= buffer.capacity());
            encode(protocol, &response, &mut buffer);
        }
    });
    (cost.bytes_total, buffer.len())
}

#[track_caller]
fn check(protocol: Protocol, bytes: usize, changed: usize, at_most: u64) {
    let (cost, sent) = push(protocol, bytes, changed);
    assert!(cost <= at_most, "{cost} bytes allocated to send {sent}");
}

#[test]
fn a_delta_push_costs_the_same_however_large_the_resources_are() {
    check(Protocol::Delta, 100, 1, 1000);
    check(Protocol::Delta, 20_000, 1, 1000);
    check(Protocol::Delta, 20_000, 1000, 1000);
}

#[test]
fn a_sotw_push_costs_the_same_although_it_states_everything() {
    check(Protocol::Sotw, 100, 1, 1000);
    check(Protocol::Sotw, 20_000, 1, 1000);
}

/// Returns how many bytes are allocated to write a push of `changed` clusters of `bytes` bytes.
fn write(protocol: Protocol, bytes: usize, changed: usize) -> u64 {
    #[expect(
        clippy::disallowed_methods,
        reason = "any instant will do as the origin"
    )]
    let now = Instant::now();
    let mut ads = connect(protocol, &clusters(bytes, 0), now);
    ads.set_target(type_url::CLUSTER, clusters(bytes, changed), 1);
    let response = ads.respond(&"root".into(), now).remove(0);
    let mut sent = 0;
    let cost = allocation_counter::measure(|| {
        let mut writer = Writer::new(protocol, response);
        while let Some(chunk) = writer.next_chunk().unwrap() {
            sent += chunk.len();
        }
    });
    assert!(sent > bytes * changed);
    cost.bytes_total
}

#[test]
fn writing_costs_the_resources_that_changed_not_their_bytes() {
    for changed in [1, 100, 1000] {
        let (large, larger) = (
            write(Protocol::Delta, 5_000, changed),
            write(Protocol::Delta, 50_000, changed),
        );
        assert!(
            large < 20_000 * changed as u64,
            "{large} bytes for {changed}"
        );
        assert!(larger <= large + 1_000, "{larger} bytes, not {large}");
    }
}

#[test]
fn nothing_new_costs_next_to_nothing() {
    #[expect(
        clippy::disallowed_methods,
        reason = "any instant will do as the origin"
    )]
    let now = Instant::now();
    let set = clusters(100, 0);
    let mut ads = connect(Protocol::Delta, &set, now);
    let root: Arc<str> = "root".into();
    let cost = allocation_counter::measure(|| {
        ads.set_target(type_url::CLUSTER, Arc::clone(&set), 1);
        assert!(ads.respond(&root, now).is_empty());
    });
    assert!(cost.bytes_total < 300, "{} bytes", cost.bytes_total);
}

//! Requests of xDS, as they come from the wire.

use std::{
    sync::{Arc, LazyLock},
    time::Duration,
};

use bytes::{BufMut as _, Bytes, BytesMut};
use generators::{Mesh, Update};
use http_body_util::{BodyExt as _, Full};
use model::{MeshState, PushRequest, Reason};
use pushctx::PushContext;
use tonic::{
    body::Body,
    codegen::{Service as _, http::Request},
};
use xds::{NoObserver, Server, Settings};

/// Longest time that a stream whose requests have ended may take to end; it takes none.
const SOON: Duration = Duration::from_secs(20);

/// A server with an empty mesh.
static SERVER: LazyLock<Option<Server<Mesh>>> = LazyLock::new(server);

#[expect(clippy::disallowed_methods, reason = "any time will do")]
fn server() -> Option<Server<Mesh>> {
    let mesh = Mesh {
        trusts_claims: true,
    };
    let server = Server::new(
        mesh,
        istiod::registry().ok()?,
        Settings::default(),
        NoObserver,
    );
    let everything = PushRequest::everything(Reason::Global, std::time::Instant::now());
    let context = PushContext::build(MeshState::default());
    server.publish(Arc::new(context), &Update(everything));
    Some(server)
}

/// The body of a stream: what is there of frames, or frames of messages that each begin with their
/// length in two bytes.
pub(super) fn xds(bytes: &[u8]) {
    let body = match bytes.split_first() {
        Some((0xff, raw)) => Bytes::copy_from_slice(raw),
        _ => framed(bytes),
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let (Ok(runtime), Some(server)) = (runtime, &*SERVER) else {
        return;
    };
    for method in ["StreamAggregatedResources", "DeltaAggregatedResources"] {
        let request = Request::post(format!(
            "http://x/envoy.service.discovery.v3.AggregatedDiscoveryService/{method}"
        ))
        .header("content-type", "application/grpc")
        .body(Body::new(Full::new(body.clone())));
        let Ok(request) = request else { return };
        let mut service = server.service();
        runtime.block_on(async {
            let answered = async {
                let Ok(response) = service.call(request).await;
                response.into_body().collect().await.ok();
            };
            let ended = tokio::time::timeout(SOON, answered).await;
            assert!(ended.is_ok(), "the stream does not end");
        });
    }
}

fn framed(mut bytes: &[u8]) -> Bytes {
    let mut body = BytesMut::new();
    while let [high, low, rest @ ..] = bytes {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (message, next) = rest.split_at(length);
        body.put_u8(0);
        body.put_u32(u32::try_from(length).unwrap_or_default());
        body.put_slice(message);
        bytes = next;
    }
    body.freeze()
}

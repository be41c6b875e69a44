//! The gRPC service.

mod body;
mod requests;

use std::convert::Infallible;
use std::fmt;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use envoy_types::pb::envoy::service::discovery::v3::{DeltaDiscoveryRequest, DiscoveryRequest};
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tonic::body::Body;
use tonic::codec::CompressionEncoding;
use tonic::codegen::{BoxFuture, Service, http};
use tonic::server::{Grpc, NamedService, StreamingService};
use tonic::transport::server::TcpConnectInfo;
use tonic::{Request, Response, Status, Streaming};

use crate::admission::Turn;
use crate::codec::AdsCodec;
use crate::peers::Counted;
use crate::server::Hub;
use crate::stream::{self, Request as DiscoveryMessage, not_ready};
use crate::sync::Mutex;
use crate::{Peer, Transport, World, ads};
use body::Messages;
pub(crate) use requests::Requests;

/// Responses that wait for the transport to take them, for each stream. One: the next is composed
/// when the client has taken the one before.
const RESPONSES_IN_FLIGHT: usize = 1;

/// The aggregated discovery service, for a transport such as [`serve`](crate::serve) or any other
/// that speaks HTTP/2 to a `tower` service.
pub struct AdsService<W: World> {
    hub: Arc<Hub<W>>,
    receive_bytes: usize,
}

/// Who is at the other end of a connection. Transports put it into the extensions of a request.
#[derive(Clone, Debug)]
pub(crate) struct Remote(pub(crate) Option<SocketAddr>);

/// Cancelled when a connection has to go. Transports put it into the extensions of a request.
#[derive(Clone, Debug)]
pub(crate) struct Goodbye(pub(crate) CancellationToken);

impl<W: World> AdsService<W> {
    pub(crate) fn new(hub: Arc<Hub<W>>) -> Self {
        Self {
            hub,
            receive_bytes: Transport::default().receive_bytes,
        }
    }

    /// Sets the largest request that is accepted, in bytes.
    #[must_use]
    pub fn receive_bytes(mut self, bytes: usize) -> Self {
        self.receive_bytes = bytes;
        self
    }

    async fn call<R: DiscoveryMessage>(self, request: http::Request<Body>) -> http::Response<Body> {
        let mut grpc =
            Grpc::new(AdsCodec::<R>::new(R::PROTOCOL)).accept_compressed(CompressionEncoding::Gzip);
        // tonic sees to the head of the request; what is in it is read here.
        let (head, body) = request.into_parts();
        let requests = Requests::<R>::new(&head.headers, body, self.receive_bytes);
        let request = http::Request::from_parts(head, Body::empty());
        let streams = Streams {
            hub: self.hub,
            requests: Some(requests),
        };
        if streams.hub.settings.compress {
            // Compressed messages are made whole, by tonic.
            grpc = grpc.send_compressed(CompressionEncoding::Gzip);
            return grpc.streaming(streams, request).await;
        }
        let outgoing = Arc::default();
        let starting = Starting {
            streams,
            outgoing: Arc::clone(&outgoing),
        };
        let response = grpc.streaming(starting, request).await;
        let outgoing: Option<Outgoing> = outgoing.lock().take();
        match outgoing {
            Some(outgoing) => response.map(|_| Body::new(Messages::new(R::PROTOCOL, outgoing))),
            // It was refused.
            None => response,
        }
    }
}

impl<W: World> Clone for AdsService<W> {
    fn clone(&self) -> Self {
        Self {
            hub: Arc::clone(&self.hub),
            receive_bytes: self.receive_bytes,
        }
    }
}

impl<W: World> fmt::Debug for AdsService<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AdsService")
            .field("hub", &self.hub)
            .finish_non_exhaustive()
    }
}

impl<W: World> NamedService for AdsService<W> {
    const NAME: &'static str = "envoy.service.discovery.v3.AggregatedDiscoveryService";
}

impl<W: World> Service<http::Request<Body>> for AdsService<W> {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _context: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let this = self.clone();
        Box::pin(async move {
            let method = request.uri().path().rsplit('/').next().unwrap_or_default();
            Ok(match method {
                "StreamAggregatedResources" => Self::call::<DiscoveryRequest>(this, request).await,
                "DeltaAggregatedResources" => {
                    Self::call::<DeltaDiscoveryRequest>(this, request).await
                }
                _ => Status::unimplemented("unknown method").into_http(),
            })
        })
    }
}

/// Starts streams.
struct Streams<W: World, R> {
    hub: Arc<Hub<W>>,
    /// Until the stream has started.
    requests: Option<Requests<R>>,
}

/// Starts streams whose responses tonic does not write: to it they have none.
struct Starting<W: World, R> {
    streams: Streams<W, R>,
    outgoing: Arc<Mutex<Option<Outgoing>>>,
}

impl<W: World, R: DiscoveryMessage> StreamingService<R> for Starting<W, R> {
    type Response = ads::Response;
    type ResponseStream = futures::stream::Empty<Result<ads::Response, Status>>;
    type Future = BoxFuture<Response<Self::ResponseStream>, Status>;

    fn call(&mut self, request: Request<Streaming<R>>) -> Self::Future {
        let started = self.streams.call(request);
        let outgoing = Arc::clone(&self.outgoing);
        Box::pin(async move {
            let response = started.await?;
            Ok(response.map(|responses| {
                *outgoing.lock() = Some(responses);
                futures::stream::empty()
            }))
        })
    }
}

impl<W: World, R: DiscoveryMessage> StreamingService<R> for Streams<W, R> {
    type Response = ads::Response;
    type ResponseStream = Outgoing;
    type Future = BoxFuture<Response<Outgoing>, Status>;

    fn call(&mut self, request: Request<Streaming<R>>) -> Self::Future {
        let hub = Arc::clone(&self.hub);
        let requests = self.requests.take();
        Box::pin(async move {
            let requests = requests.ok_or_else(|| Status::internal("a stream starts once"))?;
            let goodbye = request.extensions().get::<Goodbye>().cloned();
            let (metadata, extensions, _) = request.into_parts();
            let address = match extensions.get::<Remote>() {
                Some(Remote(address)) => *address,
                None => extensions
                    .get::<TcpConnectInfo>()
                    .and_then(TcpConnectInfo::remote_addr),
            };
            let counted = count(&hub, address);
            let admitted = match &counted {
                // It takes no slot from others.
                Err(status) => Err(status.clone()),
                Ok(_) => admit(&hub).await,
            };
            if let Err(status) = &admitted {
                hub.observer.refused(status);
            }
            admitted?;
            let counted = counted?;
            let peer = Peer {
                address,
                metadata,
                extensions,
            };
            let (sender, receiver) = mpsc::channel(RESPONSES_IN_FLIGHT);
            let leave = async move {
                match goodbye {
                    Some(Goodbye(token)) => token.cancelled_owned().await,
                    None => std::future::pending().await,
                }
            };
            let task = Box::pin(stream::serve(hub, peer, requests, sender, leave));
            Ok(Response::new(Outgoing {
                task: Some(task),
                receiver,
                _counted: counted,
            }))
        })
    }
}

/// Counts a stream among those of its peer, if there is a limit to them.
fn count<W: World>(hub: &Hub<W>, address: Option<SocketAddr>) -> Result<Option<Counted>, Status> {
    let (Some(limit), Some(address)) = (hub.settings.streams_per_peer, address) else {
        return Ok(None);
    };
    let counted = hub.peers.count(address.ip(), limit);
    if counted.is_none() {
        tracing::warn!(%address, limit, "stream refused: its address has too many");
        return Err(Status::resource_exhausted(
            "too many streams of one address",
        ));
    }
    Ok(counted)
}

/// Waits for the turn of a new stream.
async fn admit<W: World>(hub: &Hub<W>) -> Result<(), Status> {
    if hub.current().is_none() {
        return Err(not_ready());
    }
    let turn = hub.admission.lock().on_stream(Instant::now().into_std());
    match turn {
        Turn::Now => Ok(()),
        Turn::At(turn) => {
            tokio::time::sleep_until(turn.into()).await;
            Ok(())
        }
        Turn::Refused => {
            tracing::warn!("stream refused: too many start at once");
            Err(Status::resource_exhausted("too many streams start at once"))
        }
        Turn::Closed => Err(Status::unavailable("the server is going")),
    }
}

/// The responses of one stream.
///
/// It carries the task that makes them: polled when the transport wants more, dropped with the
/// stream. So a client that does not read is not worked for, and nothing is left behind.
pub(crate) struct Outgoing {
    task: Option<BoxFuture<(), Status>>,
    receiver: mpsc::Receiver<ads::Response>,
    _counted: Option<Counted>,
}

impl futures::Stream for Outgoing {
    type Item = Result<ads::Response, Status>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let ended = match &mut self.task {
            None => Poll::Ready(Ok(())),
            Some(task) => task.as_mut().poll(context),
        };
        if ended.is_ready() {
            self.task = None;
        }
        match self.receiver.poll_recv(context) {
            Poll::Ready(Some(response)) => {
                // The result of an ended task is not lost: without a task left it is Ok, and an
                // error closes the stream only after what was said before.
                if let Poll::Ready(Err(status)) = ended {
                    self.task = Some(Box::pin(std::future::ready(Err(status))));
                }
                Poll::Ready(Some(Ok(response)))
            }
            Poll::Ready(None) => match ended {
                Poll::Ready(Err(status)) => Poll::Ready(Some(Err(status))),
                Poll::Ready(Ok(())) => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            },
            Poll::Pending => Poll::Pending,
        }
    }
}

impl fmt::Debug for Outgoing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outgoing")
            .field("running", &self.task.is_some())
            .finish_non_exhaustive()
    }
}

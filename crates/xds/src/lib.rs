//! An xDS server, generic over the application it serves.
//!
//! The application is a [`World`]: it says who a connecting node is, which class of proxies it
//! belongs to, and what a change of the world touches. Resources come from [`Generator`]s, one for
//! each type URL, which contribute a [`Registration`] to [`XDS_GENERATORS`] or are handed to a
//! [`Registry`] directly. This crate does the rest: both variants of the protocol (state of the
//! world and delta), subscriptions, nonces, warming order, rejected resources, and pushes that
//! share one [`ResourceSet`] among all proxies of a class.
//!
//! What it does not do: it builds no snapshots, coalesces no events, terminates no TLS and knows
//! no Envoy resource beyond its name, its version and its bytes.

mod admission;
mod ads;
mod body;
mod class;
mod codec;
mod delivery;
mod delta;
mod distribution;
mod interest;
mod nonce;
mod observer;
mod offload;
mod peers;
mod quarantine;
mod registry;
mod resource;
mod server;
mod service;
mod set;
mod settings;
mod sotw;
mod sources;
mod status;
mod stream;
mod sync;
mod transport;
pub mod type_url;
mod world;

pub use body::Body;
#[doc(hidden)]
pub use distribution::Simulated;
pub use distribution::{
    Concern, Departed, Matter, ProxyStanding, Question, Standing, State, Summary, Survey, Tally,
    TypeStanding,
};
pub use interest::{Interest, Names};
pub use observer::{Delivered, NoObserver, Observer, Protocol, Rejected, StreamInfo};
pub use quarantine::SetAside;
pub use registry::{
    PushOrder, Registration, Registry, RegistryError, Removal, ServedType, TypeFacts,
    XDS_GENERATORS, boxed,
};
pub use resource::{Resource, Version};
pub use server::Server;
pub use service::AdsService;
pub use set::{Diff, ResourceSet};
pub use settings::{Settings, Transport};
pub use sources::{Source, Sources};
pub use status::{HeldBackResource, Refusal, StreamStatus, SubscriptionStatus};
pub use transport::serve;
pub use world::{Change, Generator, Peer, Report, Touched, World};

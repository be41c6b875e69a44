//! The server over real gRPC on loopback, with scripted clients of both protocols.
#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a helper that fails fails its test"
)]

mod bad_clients;
mod delta;
mod distribution;
mod fairness;
mod fake;
mod quarantine;
mod shelf;
mod snapshots;
mod soak;
mod sotw;
mod transport;

//! Per-tenant admission of events: a noisy tenant delays nobody but itself.
//!
//! Events of many tenants come in and go on, in order. A [`ThrottlePolicy`] (one instance per tenant)
//! says of each event whether it passes or is held; what is held is merged in the tenant's staging
//! area and goes on as one event when its time has come. Nothing is dropped, and nothing waits longer
//! than [`Limits::max_delay`], whatever a policy asks for; what an event calls urgent waits at most
//! [`Limits::base_delay`].
//!
//! [`Engine`] is the state machine (values in, actions out, no clock); [`Gate`] and [`Driver`] are
//! the thin tokio layer around it. The engine is generic over the [`Event`] and its tenant key.
//!
//! # Policies
//!
//! Each policy lives in a crate of its own, which adds a [`Registration`] to [`THROTTLE_POLICIES`] at
//! link time; the program collects them in a [`Registry`] and picks one by name. [`simulation`] plays
//! a load against a policy in virtual time, for the tests of policy authors.
//!
//! What it does not do: it reads no settings from anywhere, exports no metrics (see [`Observer`]) and
//! pushes nothing; a debouncer usually comes next.

mod driver;
mod engine;
mod event;
mod noisiest;
mod observer;
mod policy;
mod rate;
mod registry;
mod settings;
pub mod simulation;
mod status;

pub use driver::{DEFAULT_QUEUE, Driver, Forward, Gate, Stopped};
pub use engine::{Cause, Engine, Labels, Notice, Output, Release};
pub use event::{Event, Scope};
pub use noisiest::{NOISIEST, Noisiest};
pub use observer::{NoObserver, Observer};
pub use policy::{Decision, Idle, Now, Report, TenantInfo, ThrottlePolicy};
pub use rate::{RateWindow, SLOTS};
pub use registry::{DuplicatePolicy, Registration, Registry, THROTTLE_POLICIES, UnknownPolicy};
pub use settings::{
    BASE_DELAY_RANGE, InvalidSettings, Limits, MAX_DELAY_RANGE, Problem, Settings, THRESHOLD_RANGE,
    WINDOW_RANGE,
};
pub use status::{Status, TenantStatus};

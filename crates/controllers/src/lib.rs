//! What the control plane writes into its cluster, and who of its replicas does.
//!
//! One replica leads ([`lease`]); it alone writes ([`leader`]): addresses of ServiceEntries
//! ([`allocation`]), the root certificate in every namespace ([`roots`]), and what others want to have
//! written ([`wishes`]), among it what pods wait for ([`pods`]). What is to be written is decided by pure functions of what is known; [`writer`] makes few
//! writes of many wishes. Beside that every replica asks about tokens ([`tokens`]) and opens the
//! authority ([`authority`]).
//!
//! Not here: reading the mesh, which is `intake`'s; what a status says of gateways and routes.

pub mod allocation;
pub mod authority;
mod follow;
pub mod leader;
pub mod lease;
pub mod pods;
pub mod roots;
pub mod tokens;
pub mod wishes;
pub mod writer;

pub use follow::{Seen, follow, named};

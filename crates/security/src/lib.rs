//! Identities: a certificate authority, the certificates that it issues, and who may have them.
//!
//! [`Authority`] signs; [`AuthorityStore`] reads it from a folder, or makes one, and follows what
//! changes there. [`SigningRequest`] is what a client sends, [`TlsServer`] the secure port,
//! [`TokenIssuers`] what verifies tokens, [`FairQueue`] the order in which requests are served.
//!
//! Not here: gRPC, sockets, clocks, tasks; the time is an argument everywhere. Keys are overwritten
//! when they go, as far as the libraries below do so, and never show in `Debug` output or errors.

mod authority;
mod csr;
mod der;
mod error;
mod fair;
mod files;
mod jwt;
mod key;
mod peer;
mod pem;
mod store;
mod tls;

pub use authority::{Authority, Issued, Lifetimes, Names};
pub use csr::{MAX_REQUEST_BYTES, SigningRequest, sign_request};
pub use error::{AuthorityError, FileError, IssueError, RequestError, TlsError, TokenError};
pub use fair::{FairQueue, QueueFull};
pub use files::write_atomically;
pub use jwt::{
    BoundPod, Holder, Issuer, KeySet, MAX_TOKEN_BYTES, TokenIssuers, TokenReview, Unreviewed,
    identity,
};
pub use key::PrivateKey;
pub use peer::{PeerRule, identities_of};
pub use pem::{
    Certificates, certificates as certificates_pem, expiry, parse_certificates, validity,
};
pub use rustls::pki_types::CertificateDer;
pub use store::{AuthorityParts, AuthorityStore, Origin};
pub use tls::{ServerCertificate, TlsServer, client_config};

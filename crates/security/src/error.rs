//! Errors, by what the caller can do about them. None of them tells anything of a key.

use std::{io, path::PathBuf, time::Duration};

/// A file cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[error("{}: {source}", path.display())]
pub struct FileError {
    /// The file.
    pub path: PathBuf,
    /// Why.
    #[source]
    pub source: io::Error,
}

/// An authority cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AuthorityError {
    /// A file of it.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file holds no certificates in PEM form.
    #[error("{what} holds no certificate in PEM form")]
    NoCertificate {
        /// Which part.
        what: &'static str,
    },
    /// The key is none that can sign.
    #[error("the key of the authority is no RSA or EC key (P-256, P-384) in PEM form")]
    Key,
    /// The signing certificate cannot be read.
    #[error("the certificate of the authority: {0}")]
    Certificate(String),
    /// What it issues does not verify with its own roots.
    #[error("certificates that it issues do not verify with its roots: {0}")]
    Unverifiable(String),
}

/// A signing request is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RequestError {
    /// It is too long.
    #[error("a signing request may have {limit} bytes, this one has {bytes}")]
    TooLong {
        /// The most it may have.
        limit: usize,
        /// What it has.
        bytes: usize,
    },
    /// It is no signing request.
    #[error("no signing request in PEM form")]
    Malformed,
    /// Its key or the algorithm of its signature is too weak or unknown.
    #[error(
        "{0}; RSA keys need 2048 to 8192 bits, EC keys P-256 or P-384, signatures SHA-256 or more"
    )]
    Unsupported(&'static str),
    /// It is not signed by its own key.
    #[error("the signature of the request does not verify")]
    Signature,
}

/// No certificate is issued.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IssueError {
    /// More time is asked for than anybody gets.
    #[error("a lifetime of {asked:?} is asked for, {max:?} is the most")]
    TooLong {
        /// What is asked for.
        asked: Duration,
        /// What is allowed.
        max: Duration,
    },
    /// The authority's own certificate is no longer valid.
    #[error("the certificate of the authority has expired")]
    Expired,
    /// Signing failed.
    #[error("signing failed: {0}")]
    Signing(String),
}

/// TLS cannot be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TlsError {
    /// A file.
    #[error(transparent)]
    File(#[from] FileError),
    /// A file holds no certificate in PEM form.
    #[error("no certificate in PEM form in {0}")]
    NoCertificate(String),
    /// The key cannot be used.
    #[error("no RSA or EC key in PEM form in {0}")]
    Key(String),
    /// The key does not belong to the certificate, or the roots cannot be used.
    #[error("{0}")]
    Unusable(String),
}

/// A token is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    /// It is no JSON web token, or too long for one.
    #[error("no JSON web token")]
    Malformed,
    /// Nobody here trusts who issued it.
    #[error("unknown issuer")]
    Issuer,
    /// It is signed by an algorithm that is not accepted.
    #[error("algorithm is not accepted")]
    Algorithm,
    /// No key of the issuer verifies its signature.
    #[error("signature does not verify")]
    Signature,
    /// It is for somebody else.
    #[error("wrong audience")]
    Audience,
    /// It is not valid any more, or never expires.
    #[error("expired")]
    Expired,
    /// It is not valid yet.
    #[error("not yet valid")]
    NotYet,
    /// It is of no service account.
    #[error("subject is no service account")]
    Subject,
    /// Whoever was asked about it says no.
    #[error("refused by the API server: {0}")]
    Rejected(String),
}

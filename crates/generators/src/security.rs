//! Security policies as filters and TLS contexts of listeners (security-policy).

pub(crate) mod authz;
pub(crate) mod jwt;

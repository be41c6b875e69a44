//! Private keys.

use std::{fmt, sync::Arc};

use rcgen::{KeyPair, PKCS_ECDSA_P256_SHA256, PublicKeyData, SignatureAlgorithm};
use rustls::{
    SignatureScheme,
    crypto::ring::sign::any_supported_type,
    pki_types::{PrivateKeyDer, pem::PemObject as _},
    sign::SigningKey,
};
use x509_parser::{prelude::FromDer as _, x509::SubjectPublicKeyInfo};
use zeroize::Zeroizing;

use crate::pem;

/// What signs with a key, and how the signature is called.
const SCHEMES: [(SignatureScheme, &SignatureAlgorithm); 3] = [
    (
        SignatureScheme::ECDSA_NISTP256_SHA256,
        &PKCS_ECDSA_P256_SHA256,
    ),
    (
        SignatureScheme::ECDSA_NISTP384_SHA384,
        &rcgen::PKCS_ECDSA_P384_SHA384,
    ),
    (SignatureScheme::RSA_PKCS1_SHA256, &rcgen::PKCS_RSA_SHA256),
];

/// A private key: RSA, or EC over P-256 or P-384. Its `Debug` form tells nothing of it.
#[derive(Clone)]
pub struct PrivateKey {
    /// The form it was read in; overwritten when the last clone goes.
    pem: Arc<Zeroizing<String>>,
    signing: Arc<dyn SigningKey>,
    algorithm: &'static SignatureAlgorithm,
    scheme: SignatureScheme,
    /// The bits of the public key, without the algorithm.
    public: Arc<[u8]>,
}

impl PrivateKey {
    /// Makes a new key over P-256.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn generate() -> Result<Self, rcgen::Error> {
        let pair = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256)?;
        let der = Zeroizing::new(pair.serialize_der());
        let mut text = Zeroizing::new(String::with_capacity(512));
        pem::block("PRIVATE KEY", &der, &mut text);
        drop(pair);
        Self::parse(text).ok_or(rcgen::Error::CouldNotParseKeyPair)
    }

    /// Reads a key in PEM form: PKCS#8, PKCS#1 (RSA) or SEC 1 (EC). `None` for anything else.
    pub fn from_pem(text: &str) -> Option<Self> {
        Self::parse(Zeroizing::new(text.to_owned()))
    }

    fn parse(text: Zeroizing<String>) -> Option<Self> {
        let der = PrivateKeyDer::from_pem_slice(text.as_bytes()).ok()?;
        let signing = any_supported_type(&der);
        scrub(der);
        let signing = signing.ok()?;
        let (scheme, algorithm) = SCHEMES
            .into_iter()
            .find(|(scheme, _)| signing.choose_scheme(&[*scheme]).is_some())?;
        let info = signing.public_key()?;
        let (_, info) = SubjectPublicKeyInfo::from_der(&info).ok()?;
        let public = info.subject_public_key.data.as_ref().into();
        Some(Self {
            pem: Arc::new(text),
            signing,
            algorithm,
            scheme,
            public,
        })
    }

    /// Returns the key in PEM form. Handle with care.
    pub fn to_pem(&self) -> &str {
        &self.pem
    }

    /// Returns the form that TLS signs with.
    pub(crate) fn signing(&self) -> Arc<dyn SigningKey> {
        self.signing.clone()
    }
}

/// Overwrites a key that was decoded.
fn scrub(der: PrivateKeyDer<'static>) {
    use zeroize::Zeroize as _;
    let mut der = der;
    der.zeroize();
}

impl fmt::Debug for PrivateKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrivateKey")
            .field("algorithm", &self.algorithm)
            .finish_non_exhaustive()
    }
}

impl PublicKeyData for PrivateKey {
    fn der_bytes(&self) -> &[u8] {
        &self.public
    }

    fn algorithm(&self) -> &'static SignatureAlgorithm {
        self.algorithm
    }
}

impl rcgen::SigningKey for PrivateKey {
    fn sign(&self, message: &[u8]) -> Result<Vec<u8>, rcgen::Error> {
        self.signing
            .choose_scheme(&[self.scheme])
            .and_then(|signer| signer.sign(message).ok())
            .ok_or(rcgen::Error::RemoteKeyError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_survives_its_pem_form_and_does_not_show() {
        let key = PrivateKey::generate().unwrap();
        let text = key.to_pem().to_owned();
        let again = PrivateKey::from_pem(&text).unwrap();
        assert_eq!(again.public, key.public);
        let shown = format!("{key:?}");
        assert!(!shown.contains(text.lines().nth(1).unwrap()), "{shown}");
        assert_eq!(
            shown,
            "PrivateKey { algorithm: PKCS_ECDSA_P256_SHA256, .. }"
        );
    }

    #[test]
    fn what_is_no_key_is_none() {
        assert!(PrivateKey::from_pem("").is_none());
        let text = "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n";
        assert!(PrivateKey::from_pem(text).is_none());
    }
}

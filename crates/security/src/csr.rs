//! Signing requests: what of them counts, and when they are refused.

use std::fmt;

use rcgen::{CertificateParams, DistinguishedName, PublicKeyData as _, SubjectPublicKeyInfo};
use rustls::pki_types::{CertificateSigningRequestDer, pem::PemObject as _};
use x509_parser::{
    certification_request::X509CertificationRequest, oid_registry, prelude::FromDer as _,
    public_key::PublicKey,
};

use crate::{PrivateKey, RequestError, pem};

/// The longest signing request that is read, in bytes of its PEM form. One with an RSA key of 8192
/// bits has less than 4 KiB.
pub const MAX_REQUEST_BYTES: usize = 16 << 10;

/// Bits that an RSA key may have.
const RSA_BITS: std::ops::RangeInclusive<usize> = 2048..=8192;

/// A signing request that passed all checks.
///
/// Only its key counts. What it asks for otherwise, names above all, is ignored: a certificate is
/// about who the caller has proved to be, not about whom it would like to be.
pub struct SigningRequest {
    key: SubjectPublicKeyInfo,
}

impl SigningRequest {
    /// Reads a request in PEM form and checks that its key is strong enough and has signed it.
    ///
    /// # Errors
    /// [`RequestError`] says which check failed.
    pub fn parse(text: &str) -> Result<Self, RequestError> {
        if text.len() > MAX_REQUEST_BYTES {
            return Err(RequestError::TooLong {
                limit: MAX_REQUEST_BYTES,
                bytes: text.len(),
            });
        }
        let der = CertificateSigningRequestDer::from_pem_slice(text.as_bytes())
            .map_err(|_| RequestError::Malformed)?;
        let (rest, request) =
            X509CertificationRequest::from_der(&der).map_err(|_| RequestError::Malformed)?;
        if !rest.is_empty() {
            return Err(RequestError::Malformed);
        }
        let weak = [
            oid_registry::OID_PKCS1_SHA1WITHRSA,
            oid_registry::OID_SHA1_WITH_RSA,
        ];
        if weak.contains(&request.signature_algorithm.algorithm) {
            return Err(RequestError::Unsupported("signed with SHA-1"));
        }
        let info = &request.certification_request_info.subject_pki;
        if let Ok(PublicKey::RSA(key)) = info.parsed()
            && !RSA_BITS.contains(&key.key_size())
        {
            return Err(RequestError::Unsupported("an RSA key of this size"));
        }
        let key = SubjectPublicKeyInfo::from_der(info.raw)
            .map_err(|_| RequestError::Unsupported("a key of this kind"))?;
        request
            .verify_signature()
            .map_err(|_| RequestError::Signature)?;
        Ok(Self { key })
    }

    /// Returns the key that the certificate will be for.
    pub(crate) fn key(&self) -> &SubjectPublicKeyInfo {
        &self.key
    }
}

impl fmt::Debug for SigningRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SigningRequest")
            .field("algorithm", self.key.algorithm())
            .finish_non_exhaustive()
    }
}

/// Makes a signing request, in PEM form, for a key. It names nobody: who asks has to prove who it is
/// in another way.
///
/// # Errors
/// When signing fails.
pub fn sign_request(key: &PrivateKey) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    let request = params.serialize_request(key)?;
    let mut text = String::new();
    pem::block("CERTIFICATE REQUEST", request.der(), &mut text);
    Ok(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, expected: &RequestError) {
        assert_eq!(SigningRequest::parse(text).unwrap_err(), *expected);
    }

    fn request() -> String {
        sign_request(&PrivateKey::generate().unwrap()).unwrap()
    }

    #[test]
    fn our_own_requests_pass() {
        let request = SigningRequest::parse(&request()).unwrap();
        assert_eq!(
            format!("{request:?}"),
            "SigningRequest { algorithm: PKCS_ECDSA_P256_SHA256, .. }"
        );
    }

    #[test]
    fn a_request_that_another_key_signed_is_refused() {
        let der = CertificateSigningRequestDer::from_pem_slice(request().as_bytes()).unwrap();
        let mut bytes = der.to_vec();
        // The last byte belongs to the signature.
        *bytes.last_mut().unwrap() ^= 1;
        let mut text = String::new();
        pem::block("CERTIFICATE REQUEST", &bytes, &mut text);
        check(&text, &RequestError::Signature);
    }

    #[test]
    fn what_is_no_request_is_refused() {
        check("", &RequestError::Malformed);
        check("hello", &RequestError::Malformed);
        let certificate = request().replace("CERTIFICATE REQUEST", "CERTIFICATE");
        check(&certificate, &RequestError::Malformed);
        let long = "x".repeat(MAX_REQUEST_BYTES + 1);
        let expected = RequestError::TooLong {
            limit: MAX_REQUEST_BYTES,
            bytes: MAX_REQUEST_BYTES + 1,
        };
        check(&long, &expected);
        let der = CertificateSigningRequestDer::from_pem_slice(request().as_bytes()).unwrap();
        let mut trailing = String::new();
        pem::block(
            "CERTIFICATE REQUEST",
            &[&der[..], &[0]].concat(),
            &mut trailing,
        );
        check(&trailing, &RequestError::Malformed);
    }

    proptest! {
        #[test]
        fn bytes_of_strangers_do_no_harm(bytes in proptest::collection::vec(any::<u8>(), 0..600)) {
            let mut text = String::new();
            pem::block("CERTIFICATE REQUEST", &bytes, &mut text);
            prop_assert!(SigningRequest::parse(&text).is_err());
        }

        #[test]
        fn a_changed_request_is_refused_or_means_the_same(at in 0_usize..240, bit in 0_u8..8) {
            let request = request();
            let key = SigningRequest::parse(&request).unwrap().key;
            let der = CertificateSigningRequestDer::from_pem_slice(request.as_bytes()).unwrap();
            let mut bytes = der.to_vec();
            let at = at % bytes.len();
            bytes[at] ^= 1 << bit;
            let mut text = String::new();
            pem::block("CERTIFICATE REQUEST", &bytes, &mut text);
            // The signature does not cover how many of its own bits count.
            if let Ok(changed) = SigningRequest::parse(&text) {
                prop_assert_eq!(changed.key.der_bytes(), key.der_bytes());
            }
        }
    }
}

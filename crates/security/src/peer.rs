//! Certificates of clients: which are accepted, and whose they are.

use std::sync::Arc;

use model::SpiffeId;
use rustls::{
    DigitallySignedStruct, DistinguishedName, Error, RootCertStore, SignatureScheme,
    client::danger::HandshakeSignatureValid,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, UnixTime},
    server::{
        WebPkiClientVerifier,
        danger::{ClientCertVerified, ClientCertVerifier},
    },
};
use x509_parser::extensions::GeneralName;

use crate::TlsError;

/// The one set of primitives that everything here uses.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    Arc::new(ring::default_provider())
}

pub(crate) fn store(roots: &[CertificateDer<'static>]) -> Result<RootCertStore, TlsError> {
    let mut store = RootCertStore::empty();
    for root in roots {
        store
            .add(root.clone())
            .map_err(|error| TlsError::Unusable(format!("a root: {error}")))?;
    }
    Ok(store)
}

/// Verifies chains up to these roots; a client may also show no certificate.
pub(crate) fn verifier(
    roots: &[CertificateDer<'static>],
) -> Result<Arc<dyn ClientCertVerifier>, TlsError> {
    WebPkiClientVerifier::builder_with_provider(Arc::new(store(roots)?), provider())
        .allow_unauthenticated()
        .build()
        .map_err(|error| TlsError::Unusable(error.to_string()))
}

/// Returns the identities of a certificate in their order. A certificate that names anything by URI
/// that is no identity of a workload has none (SPIFFE X.509-SVID §5.2: exactly one URI).
pub fn identities_of(certificate: &CertificateDer<'_>) -> Vec<SpiffeId> {
    uris(certificate)
        .unwrap_or_default()
        .iter()
        .map(|uri| uri.parse())
        .collect::<Result<_, _>>()
        .unwrap_or_default()
}

fn uris(certificate: &CertificateDer<'_>) -> Option<Vec<String>> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let names = parsed.subject_alternative_name().ok()??;
    let uri = |name: &GeneralName<'_>| match name {
        GeneralName::URI(uri) => Some((*uri).to_owned()),
        _ => None,
    };
    Some(names.value.general_names.iter().filter_map(uri).collect())
}

/// Which certificates of clients are accepted: those of one identity, in one of some trust domains,
/// that a root vouches for.
#[derive(Debug)]
pub struct PeerRule {
    inner: Arc<dyn ClientCertVerifier>,
    trust_domains: Vec<String>,
}

impl PeerRule {
    /// Makes the rule.
    ///
    /// # Errors
    /// When a root is no certificate.
    pub fn new(
        roots: &[CertificateDer<'static>],
        trust_domains: Vec<String>,
    ) -> Result<Self, TlsError> {
        Ok(Self {
            inner: verifier(roots)?,
            trust_domains,
        })
    }

    fn trusts(&self, certificate: &CertificateDer<'_>) -> bool {
        match &identities_of(certificate)[..] {
            [identity] => self
                .trust_domains
                .iter()
                .any(|domain| **domain == **identity.trust_domain()),
            _ => false,
        }
    }
}

impl ClientCertVerifier for PeerRule {
    fn client_auth_mandatory(&self) -> bool {
        self.inner.client_auth_mandatory()
    }

    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        self.inner.root_hint_subjects()
    }

    fn verify_client_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        now: UnixTime,
    ) -> Result<ClientCertVerified, Error> {
        let verified = self
            .inner
            .verify_client_cert(end_entity, intermediates, now)?;
        if self.trusts(end_entity) {
            Ok(verified)
        } else {
            let refused = rustls::CertificateError::ApplicationVerificationFailure;
            Err(Error::InvalidCertificate(refused))
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls12_signature(message, cert, dss)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        self.inner.verify_tls13_signature(message, cert, dss)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.inner.supported_verify_schemes()
    }
}

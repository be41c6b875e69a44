//! A certificate authority and what it issues.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use model::SpiffeId;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyIdMethod, KeyUsagePurpose, PublicKeyData, SanType, SerialNumber,
};
use ring::rand::{SecureRandom as _, SystemRandom};
use rustls::pki_types::{CertificateDer, UnixTime};

use crate::{
    AuthorityError, Certificates, IssueError, PrivateKey, SigningRequest,
    der::{self, Unsigned},
    peer, pem, validity,
};

/// How far the clocks of a mesh may be apart: certificates are valid from that much earlier.
const CLOCK_SKEW: Duration = Duration::from_mins(2);
/// Bytes of a serial number; at most 20 with a leading zero bit (RFC 5280 §4.1.2.2).
const SERIAL_BYTES: usize = 16;

/// How long certificates of workloads are valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lifetimes {
    /// Where a request says nothing; `DEFAULT_WORKLOAD_CERT_TTL`, 24 h.
    pub default: Duration,
    /// The most that a request may ask for; `MAX_WORKLOAD_CERT_TTL`, 90 days.
    pub max: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            default: Duration::from_hours(24),
            max: Duration::from_hours(90 * 24),
        }
    }
}

impl Lifetimes {
    /// Returns the lifetime for a request of so many seconds; zero and less stand for the default.
    ///
    /// # Errors
    /// [`IssueError::TooLong`] when that is more than the most.
    pub fn resolve(&self, seconds: i64) -> Result<Duration, IssueError> {
        let asked = match u64::try_from(seconds) {
            Ok(0) | Err(_) => return Ok(self.default),
            Ok(seconds) => Duration::from_secs(seconds),
        };
        if asked > self.max {
            return Err(IssueError::TooLong {
                asked,
                max: self.max,
            });
        }
        Ok(asked)
    }
}

/// Whom a certificate is for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Names {
    /// A workload.
    Workload(SpiffeId),
    /// A server that is known by host names.
    Hosts(Vec<String>),
}

/// A certificate that was issued.
#[derive(Clone, Debug)]
pub struct Issued {
    /// The certificate.
    pub certificate: CertificateDer<'static>,
    /// What leads from it to a root, without the root.
    pub intermediates: Certificates,
    /// When it ends to be valid.
    pub expiry: SystemTime,
}

impl Issued {
    /// Returns certificate and intermediates in PEM form, as a server shows them.
    pub fn chain_pem(&self) -> String {
        pem::certificates([&self.certificate].into_iter().chain(&self.intermediates))
    }

    /// Returns the certificate in PEM form.
    pub fn certificate_pem(&self) -> String {
        pem::certificates([&self.certificate])
    }

    /// Returns the intermediates in PEM form; empty when there are none.
    pub fn intermediates_pem(&self) -> String {
        pem::certificates(&self.intermediates)
    }
}

/// A certificate authority: a key that signs, and certificates that say so.
///
/// Immutable. One that exists issues certificates that verify with its roots: that is tried when it
/// is made.
pub struct Authority {
    issuer: rcgen::Issuer<'static, Unsigned>,
    certificate: CertificateDer<'static>,
    /// Its subject, as its certificate has it.
    name: Vec<u8>,
    intermediates: Certificates,
    roots: Certificates,
    expiry: SystemTime,
    description: String,
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("description", &self.description)
            .field("intermediates", &self.intermediates.len())
            .field("roots", &self.roots.len())
            .finish_non_exhaustive()
    }
}

impl Authority {
    /// Makes a new root for a trust domain.
    ///
    /// # Errors
    /// When the system has no random numbers.
    pub fn self_signed(
        trust_domain: &str,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let failed = |error: rcgen::Error| AuthorityError::Certificate(error.to_string());
        let key = PrivateKey::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = DistinguishedName::new();
        params
            .distinguished_name
            .push(DnType::OrganizationName, trust_domain);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        params.not_before = (now - CLOCK_SKEW).into();
        params.not_after = (now + lifetime).into();
        params.serial_number =
            Some(serial().map_err(|e| AuthorityError::Certificate(e.to_string()))?);
        let certificate = params.self_signed(&key).map_err(failed)?;
        let root = certificate.der().clone();
        Self::new(root.clone(), key, &[], vec![root], now)
    }

    /// Reads an authority in PEM form: certificate, key, intermediates up to the root (they may be
    /// empty, and may hold the certificate itself and roots), roots.
    ///
    /// # Errors
    /// When a part cannot be read, or what it issues would not verify.
    pub fn from_pem(
        certificate: &str,
        key: &str,
        chain: &str,
        roots: &str,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let read = |text: &str, what| {
            pem::parse_certificates(text.as_bytes()).ok_or(AuthorityError::NoCertificate { what })
        };
        let signing = read(certificate, "the certificate of the authority")?
            .into_iter()
            .next()
            .ok_or(AuthorityError::NoCertificate {
                what: "the certificate of the authority",
            })?;
        let key = PrivateKey::from_pem(key).ok_or(AuthorityError::Key)?;
        let chain = read(chain, "the chain")?;
        let roots = read(roots, "the roots")?;
        if roots.is_empty() {
            return Err(AuthorityError::NoCertificate { what: "the roots" });
        }
        Self::new(signing, key, &chain, roots, now)
    }

    fn new(
        certificate: CertificateDer<'static>,
        key: PrivateKey,
        chain: &[CertificateDer<'static>],
        roots: Certificates,
        now: SystemTime,
    ) -> Result<Self, AuthorityError> {
        let (name, description, expiry) = describe(&certificate)?;
        // The certificate comes first, unless it is a root; roots are known to those who verify.
        let mut intermediates = Certificates::new();
        for certificate in std::iter::once(&certificate).chain(chain) {
            if !roots.contains(certificate) && !intermediates.contains(certificate) {
                intermediates.push(certificate.clone());
            }
        }
        let issuer = rcgen::Issuer::from_ca_cert_der(&certificate, Unsigned(key))
            .map_err(|error| AuthorityError::Certificate(error.to_string()))?;
        let authority = Self {
            issuer,
            certificate,
            name,
            intermediates,
            roots,
            expiry,
            description,
        };
        authority.probe(now)?;
        Ok(authority)
    }

    /// Issues a certificate and verifies it, as those who meet it will: only then key and
    /// certificate belong together, the chain is whole, and everything is valid now.
    fn probe(&self, now: SystemTime) -> Result<(), AuthorityError> {
        let wrong = |text: String| AuthorityError::Unverifiable(text);
        let key = PrivateKey::generate().map_err(|error| wrong(error.to_string()))?;
        let nobody = SpiffeId::new("probe", "probe", "probe").map_err(|e| wrong(e.to_string()))?;
        let issued = self
            .issue_for(&key, &Names::Workload(nobody), Duration::from_mins(1), now)
            .map_err(|error| wrong(error.to_string()))?;
        let since = now
            .duration_since(SystemTime::UNIX_EPOCH)
            .unwrap_or_default();
        peer::verifier(&self.roots)
            .map_err(|error| wrong(error.to_string()))?
            .verify_client_cert(
                &issued.certificate,
                &issued.intermediates,
                UnixTime::since_unix_epoch(since),
            )
            .map_err(|error| wrong(error.to_string()))?;
        Ok(())
    }

    /// Issues a certificate for the key of a request.
    ///
    /// It is valid from two minutes ago, for `lifetime` from now, and no longer than the authority.
    ///
    /// # Errors
    /// When the authority has expired or signing fails.
    pub fn issue(
        &self,
        request: &SigningRequest,
        names: &Names,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Issued, IssueError> {
        self.issue_for(request.key(), names, lifetime, now)
    }

    /// Issues a certificate for a key, see [`issue`](Self::issue).
    ///
    /// # Errors
    /// When the authority has expired or signing fails.
    pub fn issue_for(
        &self,
        key: &impl PublicKeyData,
        names: &Names,
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Issued, IssueError> {
        if self.expiry <= now {
            return Err(IssueError::Expired);
        }
        let expiry = (now + lifetime).min(self.expiry);
        let failed = |error: rcgen::Error| IssueError::Signing(error.to_string());
        let mut params = CertificateParams::default();
        // Without a subject the names are critical (RFC 5280 §4.2.1.6), as SPIFFE wants it.
        params.distinguished_name = DistinguishedName::new();
        let texts = match names {
            Names::Workload(id) => vec![id.to_string()],
            Names::Hosts(hosts) => hosts.clone(),
        };
        for text in texts {
            let text = text.try_into().map_err(failed)?;
            params.subject_alt_names.push(match names {
                Names::Workload(_) => SanType::URI(text),
                Names::Hosts(_) => SanType::DnsName(text),
            });
        }
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        params.use_authority_key_identifier_extension = true;
        params.key_identifier_method = KeyIdMethod::Sha256;
        params.not_before = (now - CLOCK_SKEW).into();
        params.not_after = expiry.into();
        params.serial_number = Some(serial()?);
        let unsigned = params.signed_by(key, &self.issuer).map_err(failed)?;
        let certificate = der::sign(unsigned.der(), &self.name, self.key())
            .ok_or_else(|| IssueError::Signing("the key does not sign".to_owned()))?;
        Ok(Issued {
            certificate: certificate.into(),
            intermediates: self.intermediates.clone(),
            expiry,
        })
    }

    /// Returns the certificate that signs.
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the certificates that verify what it issues, and those that will.
    pub fn roots(&self) -> &[CertificateDer<'static>] {
        &self.roots
    }

    /// Returns the roots in PEM form.
    pub fn roots_pem(&self) -> String {
        pem::certificates(&self.roots)
    }

    /// Returns when its own certificate ends to be valid.
    pub fn expiry(&self) -> SystemTime {
        self.expiry
    }

    /// Returns when the first of its roots ends to be valid: the one in use, where there are several.
    pub fn root_expiry(&self) -> Option<SystemTime> {
        pem::expiry(self.roots.first())
    }

    /// Returns when the first certificate of its chain, without the root, ends to be valid.
    pub fn chain_expiry(&self) -> SystemTime {
        let of_chain = pem::expiry(&self.intermediates);
        of_chain.map_or(self.expiry, |expiry| expiry.min(self.expiry))
    }

    /// Says who it is, for the log: subject, serial number, end.
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns certificate, key and roots in PEM form, to be kept in files.
    pub(crate) fn to_pem(&self) -> [String; 2] {
        [pem::certificates([&self.certificate]), self.roots_pem()]
    }

    /// Returns its key. Handle with care.
    pub(crate) fn key(&self) -> &PrivateKey {
        &self.issuer.key().0
    }
}

fn serial() -> Result<SerialNumber, IssueError> {
    let mut bytes = [0; SERIAL_BYTES];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| IssueError::Signing("no random numbers".to_owned()))?;
    // Neither negative nor zero, and always of the same length.
    bytes[0] = bytes[0] & 0x7f | 0x40;
    Ok(SerialNumber::from_slice(&bytes))
}

/// The name of an authority, a description, and when it ends.
fn describe(
    certificate: &CertificateDer<'_>,
) -> Result<(Vec<u8>, String, SystemTime), AuthorityError> {
    let wrong = |reason: &str| AuthorityError::Certificate(reason.to_owned());
    let (_, parsed) =
        x509_parser::parse_x509_certificate(certificate).map_err(|_| wrong("not a certificate"))?;
    if !parsed.is_ca() {
        return Err(wrong("it may not issue certificates (no CA)"));
    }
    let (_, expiry) = validity(certificate).ok_or_else(|| wrong("not a certificate"))?;
    let description = format!(
        "subject {}, serial {}, until {}",
        parsed.subject(),
        parsed.raw_serial_as_string(),
        parsed.validity().not_after,
    );
    Ok((parsed.subject().as_raw().to_vec(), description, expiry))
}

#[cfg(test)]
mod tests;

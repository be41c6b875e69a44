//! Certificates in PEM form.

use std::{
    fmt::Write as _,
    time::{Duration, SystemTime},
};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use rustls::pki_types::{CertificateDer, pem::PemObject as _};

/// Certificates in DER form.
pub type Certificates = Vec<CertificateDer<'static>>;

/// Reads all certificates of a PEM text; what else it holds is left out. `None` when one of them is
/// broken.
pub fn parse_certificates(text: &[u8]) -> Option<Certificates> {
    CertificateDer::pem_slice_iter(text)
        .collect::<Result<_, _>>()
        .ok()
}

/// Writes a PEM block.
pub(crate) fn block(label: &str, der: &[u8], out: &mut String) {
    const LINE: usize = 48; // bytes, which are 64 letters
    // Into a String writing never fails.
    writeln!(out, "-----BEGIN {label}-----").ok();
    for line in der.chunks(LINE) {
        STANDARD.encode_string(line, out);
        out.push('\n');
    }
    writeln!(out, "-----END {label}-----").ok();
}

/// Writes certificates as PEM text.
pub fn certificates<'a>(
    certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>,
) -> String {
    let mut text = String::new();
    for certificate in certificates {
        block("CERTIFICATE", certificate, &mut text);
    }
    text
}

/// Returns from when until when a certificate is valid; `None` when it cannot be read.
pub fn validity(certificate: &CertificateDer<'_>) -> Option<(SystemTime, SystemTime)> {
    let (_, parsed) = x509_parser::parse_x509_certificate(certificate).ok()?;
    let time = |seconds: i64| {
        let since = Duration::from_secs(u64::try_from(seconds).unwrap_or(0));
        SystemTime::UNIX_EPOCH + since
    };
    let validity = parsed.validity();
    Some((
        time(validity.not_before.timestamp()),
        time(validity.not_after.timestamp()),
    ))
}

/// Returns when the first of some certificates ends to be valid; `None` when there is none.
pub fn expiry<'a>(
    certificates: impl IntoIterator<Item = &'a CertificateDer<'static>>,
) -> Option<SystemTime> {
    certificates
        .into_iter()
        .filter_map(|certificate| Some(validity(certificate)?.1))
        .min()
}

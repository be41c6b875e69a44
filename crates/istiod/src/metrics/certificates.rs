//! The certificate authority and what it issues, and secrets that are not served.

use std::time::SystemTime;

use prometheus::{GaugeVec, IntCounter, IntCounterVec, Opts, Registry};
use security::Authority;

/// What becomes of requests for certificates, and when those of the authority end.
#[derive(Clone, Debug)]
pub(crate) struct CertificateMetrics {
    requests: IntCounter,
    issued: IntCounter,
    unauthenticated: IntCounter,
    unreadable: IntCounter,
    nameless: IntCounter,
    unsigned: IntCounterVec,
    root: Expiry,
    chain: Expiry,
    secrets: IntCounter,
}

/// When something ends, and how far away that is. There is no value before there is something.
#[derive(Clone, Debug)]
struct Expiry {
    timestamp: GaugeVec,
    seconds: GaugeVec,
}

impl Expiry {
    fn set(&self, expiry: SystemTime, now: SystemTime) {
        let since = expiry.duration_since(SystemTime::UNIX_EPOCH);
        let timestamp = since.unwrap_or_default().as_secs();
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        self.timestamp
            .with_label_values::<&str>(&[])
            .set(timestamp as f64);
        let left = match expiry.duration_since(now) {
            Ok(left) => left.as_secs_f64(),
            Err(ago) => -ago.duration().as_secs_f64(),
        };
        self.seconds.with_label_values::<&str>(&[]).set(left);
    }
}

/// Why no certificate was signed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Unsigned {
    /// The request cannot be read, or is refused for what it is.
    Request,
    /// It asks for more time than anybody gets.
    Lifetime,
    /// The authority cannot sign now.
    Authority,
    /// Signing failed.
    Signing,
}

impl Unsigned {
    /// Istio's name.
    fn as_str(self) -> &'static str {
        match self {
            Self::Request => "CSR_ERROR",
            Self::Lifetime => "TTL_ERROR",
            Self::Authority => "CA_NOT_READY",
            Self::Signing => "CERT_GEN_ERROR",
        }
    }
}

impl CertificateMetrics {
    /// Registers them.
    pub(super) fn register(registry: &Registry) -> prometheus::Result<Self> {
        let counter = |name: &str, help: &str| {
            let counter = IntCounter::new(name, help)?;
            registry.register(Box::new(counter.clone()))?;
            Ok::<_, prometheus::Error>(counter)
        };
        let gauge = |name: &str, help: &str| {
            let gauge = GaugeVec::new(Opts::new(name, help), &[])?;
            registry.register(Box::new(gauge.clone()))?;
            Ok::<_, prometheus::Error>(gauge)
        };
        let unsigned = IntCounterVec::new(
            Opts::new(
                "citadel_server_csr_sign_err_count",
                "Requests that were not signed, and why.",
            ),
            &["error"],
        )?;
        registry.register(Box::new(unsigned.clone()))?;
        Ok(Self {
            requests: counter("citadel_server_csr_count", "Requests for certificates.")?,
            issued: counter(
                "citadel_server_success_cert_issuance_count",
                "Certificates that were issued.",
            )?,
            unauthenticated: counter(
                "citadel_server_authentication_failure_count",
                "Requests of callers who did not prove that they may.",
            )?,
            unreadable: counter(
                "citadel_server_csr_parsing_err_count",
                "Signing requests that could not be read, or are too weak.",
            )?,
            nameless: counter(
                "citadel_server_id_extraction_err_count",
                "Requests that ask for an identity that is none.",
            )?,
            unsigned,
            root: Expiry {
                timestamp: gauge(
                    "citadel_server_root_cert_expiry_timestamp",
                    "When the root ends, in seconds since 1970.",
                )?,
                seconds: gauge(
                    "citadel_server_root_cert_expiry_seconds",
                    "Seconds until the root ends; negative when it has.",
                )?,
            },
            chain: Expiry {
                timestamp: gauge(
                    "citadel_server_cert_chain_expiry_timestamp",
                    "When the first certificate of the authority's chain ends, in seconds since 1970.",
                )?,
                seconds: gauge(
                    "citadel_server_cert_chain_expiry_seconds",
                    "Seconds until the first certificate of the authority's chain ends; negative when it has.",
                )?,
            },
            secrets: counter(
                "pilot_sds_certificate_errors_total",
                "Secrets that were asked for and not served.",
            )?,
        })
    }

    /// Hears of a request.
    pub(crate) fn requested(&self) {
        self.requests.inc();
    }

    /// Hears of a request of somebody who did not prove that he may.
    pub(crate) fn unauthenticated(&self) {
        self.unauthenticated.inc();
    }

    /// Hears of a request for an identity that is none.
    pub(crate) fn nameless(&self) {
        self.nameless.inc();
    }

    /// Hears that a certificate was issued.
    pub(crate) fn issued(&self) {
        self.issued.inc();
    }

    /// Hears that none was.
    pub(crate) fn not_signed(&self, why: Unsigned) {
        if why == Unsigned::Request {
            self.unreadable.inc();
        }
        self.unsigned.with_label_values(&[why.as_str()]).inc();
    }

    /// Requests, issued certificates, refused callers, unreadable requests, no identities.
    #[cfg(test)]
    pub(crate) fn counts(&self) -> [u64; 5] {
        [
            &self.requests,
            &self.issued,
            &self.unauthenticated,
            &self.unreadable,
            &self.nameless,
        ]
        .map(IntCounter::get)
    }

    /// Takes over when certificates of the authority end.
    pub(crate) fn collect_authority(&self, authority: &Authority, now: SystemTime) {
        if let Some(expiry) = authority.root_expiry() {
            self.root.set(expiry, now);
        }
        self.chain.set(authority.chain_expiry(), now);
    }

    /// Hears how many secrets were not served.
    pub(crate) fn secrets_not_served(&self, count: u64) {
        self.secrets.inc_by(count);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use prometheus::TextEncoder;

    use super::*;

    #[test]
    fn names_and_reasons_are_istios() {
        let registry = Registry::new();
        let metrics = CertificateMetrics::register(&registry).unwrap();
        let text = || {
            let families = registry.gather();
            TextEncoder::new().encode_to_string(&families).unwrap()
        };
        assert!(!text().contains("expiry"), "nothing ends yet");
        metrics.not_signed(Unsigned::Request);
        metrics.not_signed(Unsigned::Lifetime);
        let year = Duration::from_hours(24 * 365);
        let now = SystemTime::UNIX_EPOCH + 50 * year;
        let authority = Authority::self_signed("td", year, now).unwrap();
        metrics.collect_authority(&authority, now + year + Duration::from_secs(5));
        let text = text();
        for line in [
            "citadel_server_csr_parsing_err_count 1\n",
            "citadel_server_csr_sign_err_count{error=\"CSR_ERROR\"} 1\n",
            "citadel_server_csr_sign_err_count{error=\"TTL_ERROR\"} 1\n",
            "citadel_server_root_cert_expiry_timestamp 1608336000\n",
            "citadel_server_root_cert_expiry_seconds -5\n",
            "citadel_server_cert_chain_expiry_timestamp 1608336000\n",
            "citadel_server_cert_chain_expiry_seconds -5\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
    }
}

//! The context of mutual TLS within the mesh, of which only names differ from cluster to cluster.
//!
//! Large meshes have tens of thousands of these. All that is the same is encoded once for a class;
//! the names are put between. A test compares the result with the encoding of the message.

use envoy_types::pb::{
    envoy::extensions::transport_sockets::tls::v3::{
        CommonTlsContext, SdsSecretConfig, TlsParameters, UpstreamTlsContext,
        common_tls_context::CombinedCertificateValidationContext,
    },
    google::protobuf::Any,
};
use prost::{
    Message as _, Name as _,
    encoding::{WireType, encode_key, encode_varint, encoded_len_varint},
};

/// `UpstreamTlsContext.common_tls_context`.
const COMMON: u32 = 1;
/// `UpstreamTlsContext.sni`.
const SNI: u32 = 2;
/// `CommonTlsContext.combined_validation_context`, behind all other fields that are set.
const VALIDATION: u32 = 8;
/// `CombinedCertificateValidationContext.default_validation_context`, before the secret.
const DEFAULTS: u32 = 1;
/// `CertificateValidationContext.match_subject_alt_names`.
const NAMES: u32 = 9;
/// `StringMatcher.exact`.
const EXACT: u32 = 1;

/// Encoded parts of the context.
#[derive(Debug)]
pub(super) struct MutualTls {
    /// Parameters, ALPN and certificate, for clusters that speak HTTP/2 or not.
    heads: [Vec<u8>; 2],
    /// The roots, by reference.
    roots: Vec<u8>,
    type_url: String,
}

impl MutualTls {
    /// Encodes what is the same. `exchange` offers the exchange of peer metadata by ALPN.
    pub(super) fn new(
        parameters: &TlsParameters,
        certificate: &SdsSecretConfig,
        roots: &SdsSecretConfig,
        exchange: bool,
    ) -> Self {
        let head = |http2: bool| {
            let exchange = exchange.then_some("istio-peer-exchange");
            let alpn = exchange
                .into_iter()
                .chain(["istio"])
                .chain(http2.then_some("h2"));
            CommonTlsContext {
                tls_params: Some(parameters.clone()),
                alpn_protocols: alpn.map(str::to_owned).collect(),
                tls_certificate_sds_secret_configs: vec![certificate.clone()],
                ..CommonTlsContext::default()
            }
            .encode_to_vec()
        };
        Self {
            heads: [head(false), head(true)],
            roots: CombinedCertificateValidationContext {
                validation_context_sds_secret_config: Some(roots.clone()),
                ..CombinedCertificateValidationContext::default()
            }
            .encode_to_vec(),
            type_url: UpstreamTlsContext::type_url(),
        }
    }

    /// The packed context for servers with one of `names`; an empty `sni` is left out.
    pub(super) fn context(&self, http2: bool, names: &[&str], sni: &str) -> Any {
        let head = &self.heads[usize::from(http2)];
        let defaults: usize = names.iter().map(|name| field_len(text_len(name))).sum();
        let validation = field_len(defaults) + self.roots.len();
        let common = head.len() + field_len(validation);
        let sni_len = if sni.is_empty() { 0 } else { text_len(sni) };
        let mut value = Vec::with_capacity(field_len(common) + sni_len);
        open(&mut value, COMMON, common);
        value.extend_from_slice(head);
        open(&mut value, VALIDATION, validation);
        open(&mut value, DEFAULTS, defaults);
        for name in names {
            open(&mut value, NAMES, text_len(name));
            text(&mut value, EXACT, name);
        }
        value.extend_from_slice(&self.roots);
        if !sni.is_empty() {
            text(&mut value, SNI, sni);
        }
        Any {
            type_url: self.type_url.clone(),
            value,
        }
    }
}

/// Length of a field with `len` bytes of content; all fields here have numbers below 16.
fn field_len(len: usize) -> usize {
    1 + encoded_len_varint(len as u64) + len
}

/// Length of a field with a text.
fn text_len(text: &str) -> usize {
    field_len(text.len())
}

/// Starts a field with `len` bytes of content.
fn open(buffer: &mut Vec<u8>, number: u32, len: usize) {
    encode_key(number, WireType::LengthDelimited, buffer);
    encode_varint(len as u64, buffer);
}

/// Writes a field with a text.
fn text(buffer: &mut Vec<u8>, number: u32, text: &str) {
    open(buffer, number, text.len());
    buffer.extend_from_slice(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use envoy_types::pb::envoy::{
        extensions::transport_sockets::tls::v3::{
            CertificateValidationContext, common_tls_context::ValidationContextType,
        },
        r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern},
    };

    use super::*;
    use crate::{capabilities::Capabilities, cds::parts, tls};

    /// Compares with the encoding of the whole message.
    #[track_caller]
    #[expect(deprecated, reason = "the form that Istio sends")]
    fn check(http2: bool, names: &[&str], sni: &str) {
        let parameters = parts::tls_parameters();
        let certificate = tls::workload_secret(tls::WORKLOAD_CERTIFICATE, Capabilities::ISTIO);
        let roots = tls::workload_secret(tls::WORKLOAD_ROOT, Capabilities::ISTIO);
        let spliced = MutualTls::new(&parameters, &certificate, &roots, true);
        let exact = |name: &&str| StringMatcher {
            match_pattern: Some(MatchPattern::Exact((*name).to_owned())),
            ..StringMatcher::default()
        };
        let mut alpn = vec!["istio-peer-exchange".to_owned(), "istio".to_owned()];
        alpn.extend(http2.then(|| "h2".to_owned()));
        let validation = CombinedCertificateValidationContext {
            default_validation_context: Some(CertificateValidationContext {
                match_subject_alt_names: names.iter().map(exact).collect(),
                ..CertificateValidationContext::default()
            }),
            validation_context_sds_secret_config: Some(roots),
            ..CombinedCertificateValidationContext::default()
        };
        let whole = UpstreamTlsContext {
            common_tls_context: Some(CommonTlsContext {
                tls_params: Some(parameters),
                alpn_protocols: alpn,
                tls_certificate_sds_secret_configs: vec![certificate],
                validation_context_type: Some(ValidationContextType::CombinedValidationContext(
                    validation,
                )),
                ..CommonTlsContext::default()
            }),
            sni: sni.to_owned(),
            ..UpstreamTlsContext::default()
        };
        assert_eq!(spliced.context(http2, names, sni), envoy_json::any(&whole));
    }

    #[test]
    fn the_parts_make_the_whole() {
        let long = "n".repeat(300);
        check(false, &[], "");
        check(
            true,
            &["spiffe://cluster.local/ns/a/sa/b"],
            "outbound_.80_._.a.b",
        );
        check(false, &["a", "", &long], &long);
    }
}

//! TLS contexts of servers with settings of their own: gateways, `Sidecar.ingress` (gateways §10).

use std::collections::BTreeSet;

use envoy_types::pb::envoy::{
    config::core::v3::{DataSource, data_source},
    extensions::transport_sockets::tls::v3::{
        CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SdsSecretConfig,
        TlsParameters,
        certificate_validation_context::TrustChainVerification,
        common_tls_context::{CombinedCertificateValidationContext, ValidationContextType},
        tls_parameters::TlsProtocol,
    },
    r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern},
};
use model::{
    Features,
    api::{self, gateway::ServerTlsMode, mesh::MeshTlsProtocol},
    proxy::Proxy,
};

use super::inbound_tls::{Secrets, certificate_name, file_credential, root_name};
use crate::{
    capabilities::Capabilities,
    convert,
    tls::{self, Compliance, SecretServices},
};

/// Suffix of the secret with the certificates that verify clients.
const CA_SUFFIX: &str = "-cacert";

const KNOWN_CIPHERS: [&str; 15] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-CHACHA20-POLY1305",
    "ECDHE-RSA-CHACHA20-POLY1305",
    "ECDHE-ECDSA-AES128-SHA",
    "ECDHE-RSA-AES128-SHA",
    "ECDHE-ECDSA-AES256-SHA",
    "ECDHE-RSA-AES256-SHA",
    "AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-SHA",
    "AES256-SHA",
    "DES-CBC3-SHA",
];

/// What a server's context depends on besides its own settings.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerSide<'a> {
    /// Mesh configuration.
    pub mesh: &'a api::MeshConfig,
    /// Feature flags.
    pub features: &'a Features,
    /// The proxy that serves.
    pub proxy: &'a Proxy,
    /// Who serves `sds://` names.
    pub secrets: SecretServices<'a>,
    /// It serves by QUIC, which never asks clients for certificates.
    pub quic: bool,
}

/// Builds the context of a server that terminates TLS by `settings` and offers `alpn`.
pub(crate) fn context(
    settings: &api::gateway::ServerTlsSettings,
    alpn: Vec<String>,
    side: ServerSide<'_>,
) -> DownstreamTlsContext {
    let mode = settings.mode;
    let requires = !side.quic && matches!(mode, ServerTlsMode::Mutual | ServerTlsMode::IstioMutual);
    let Identity {
        certificates,
        root,
        by_credential,
    } = Identity::of(settings, side);
    let names = exact_names(&settings.subject_alt_names);
    let by_mode = by_credential && mode == ServerTlsMode::Mutual;
    let verifies = requires || by_mode || mode == ServerTlsMode::OptionalMutual;
    let validation = if verifies {
        Some(combined(
            validation_context(settings, names, by_credential),
            root,
        ))
    } else if by_credential && !names.is_empty() {
        Some(ValidationContextType::ValidationContext(with_names(names)))
    } else {
        None
    };
    DownstreamTlsContext {
        require_client_certificate: convert::bool_value(requires),
        common_tls_context: Some(CommonTlsContext {
            tls_params: parameters(settings, side),
            tls_certificate_sds_secret_configs: certificates,
            alpn_protocols: alpn,
            validation_context_type: validation,
            ..CommonTlsContext::default()
        }),
        ..DownstreamTlsContext::default()
    }
}

/// Where a server's certificates and the ones that verify its clients come from.
struct Identity {
    certificates: Vec<SdsSecretConfig>,
    root: SdsSecretConfig,
    by_credential: bool,
}

impl Identity {
    fn of(settings: &api::gateway::ServerTlsSettings, side: ServerSide<'_>) -> Self {
        let capabilities = Capabilities::of(side.proxy);
        let credential = |name: &str| tls::credential_secret(name, side.secrets, capabilities);
        let file_service = file_credential(side.proxy);
        let own = Secrets::of(side.proxy);
        let root_of = |file: &str| {
            if file.is_empty() {
                tls::workload_secret(tls::WORKLOAD_ROOT, capabilities)
            } else {
                tls::file_secret(&root_name(file), file_service, capabilities)
            }
        };
        if settings.mode == ServerTlsMode::IstioMutual {
            return Self {
                certificates: vec![own.certificate],
                root: own.root,
                by_credential: false,
            };
        }
        let credentials: Vec<&String> = if settings.credential_names.is_empty() {
            Some(&settings.credential_name)
                .into_iter()
                .filter(|n| !n.is_empty())
                .collect()
        } else {
            settings.credential_names.iter().collect()
        };
        if let Some(first) = credentials.first() {
            let ca = if settings.ca_cert_credential_name.is_empty() {
                format!("{first}{CA_SUFFIX}")
            } else {
                settings.ca_cert_credential_name.clone()
            };
            return Self {
                certificates: credentials.iter().map(|name| credential(name)).collect(),
                root: credential(&ca),
                by_credential: true,
            };
        }
        let from_files = |chain: &str, key: &str| {
            if chain.is_empty() || key.is_empty() {
                tls::workload_secret(tls::WORKLOAD_CERTIFICATE, capabilities)
            } else {
                tls::file_secret(&certificate_name(chain, key), file_service, capabilities)
            }
        };
        let certificates = if settings.tls_certificates.is_empty() {
            vec![from_files(
                &settings.server_certificate,
                &settings.private_key,
            )]
        } else {
            let several = &settings.tls_certificates;
            several
                .iter()
                .map(|c| from_files(&c.server_certificate, &c.private_key))
                .collect()
        };
        Self {
            certificates,
            root: root_of(&settings.ca_certificates),
            by_credential: false,
        }
    }
}

#[expect(deprecated, reason = "Istio writes the untyped form of subject names")]
fn with_names(names: Vec<StringMatcher>) -> CertificateValidationContext {
    CertificateValidationContext {
        match_subject_alt_names: names,
        ..CertificateValidationContext::default()
    }
}

fn validation_context(
    settings: &api::gateway::ServerTlsSettings,
    names: Vec<StringMatcher>,
    by_credential: bool,
) -> CertificateValidationContext {
    let mut validation = with_names(names);
    if by_credential {
        validation
            .verify_certificate_spki
            .clone_from(&settings.verify_certificate_spki);
        validation
            .verify_certificate_hash
            .clone_from(&settings.verify_certificate_hash);
    } else if !settings.ca_crl.is_empty() {
        validation.crl = Some(DataSource {
            specifier: Some(data_source::Specifier::Filename(settings.ca_crl.clone())),
            ..DataSource::default()
        });
    }
    if settings.insecure_skip_verify == Some(true) {
        validation.trust_chain_verification = TrustChainVerification::AcceptUntrusted.into();
    }
    validation
}

fn combined(default: CertificateValidationContext, root: SdsSecretConfig) -> ValidationContextType {
    let combined = CombinedCertificateValidationContext {
        default_validation_context: Some(default),
        validation_context_sds_secret_config: Some(root),
        ..CombinedCertificateValidationContext::default()
    };
    ValidationContextType::CombinedValidationContext(combined)
}

/// The parameters of a context; `None` leaves them to the proxy, as mutual TLS of the mesh does at
/// gateways.
fn parameters(
    settings: &api::gateway::ServerTlsSettings,
    side: ServerSide<'_>,
) -> Option<TlsParameters> {
    let mut parameters = if settings.mode == ServerTlsMode::IstioMutual {
        TlsParameters::default()
    } else {
        stated_parameters(settings, side.mesh)
    };
    Compliance::parse(&side.features.compliance_policy).restrict(&mut parameters);
    (parameters != TlsParameters::default()).then_some(parameters)
}

fn stated_parameters(
    settings: &api::gateway::ServerTlsSettings,
    mesh: &api::MeshConfig,
) -> TlsParameters {
    let mut parameters = TlsParameters::default();
    if let Some(defaults) = &mesh.tls_defaults {
        parameters.tls_minimum_protocol_version = match defaults.min_protocol_version {
            MeshTlsProtocol::TlsAuto => TlsProtocol::TlsAuto,
            MeshTlsProtocol::TlsV12 => TlsProtocol::TlSv12,
            MeshTlsProtocol::TlsV13 => TlsProtocol::TlSv13,
        }
        .into();
        parameters.cipher_suites.clone_from(&defaults.cipher_suites);
        parameters.ecdh_curves.clone_from(&defaults.ecdh_curves);
    }
    if settings.min_protocol_version != api::gateway::TlsProtocol::TlsAuto {
        parameters.tls_minimum_protocol_version = protocol(settings.min_protocol_version).into();
    }
    if settings.max_protocol_version != api::gateway::TlsProtocol::TlsAuto {
        parameters.tls_maximum_protocol_version = protocol(settings.max_protocol_version).into();
    }
    let suites = known_suites(&settings.cipher_suites);
    if !suites.is_empty() {
        parameters.cipher_suites = suites;
    }
    if !settings.ecdh_curves.is_empty() {
        parameters.ecdh_curves.clone_from(&settings.ecdh_curves);
    }
    parameters
}

/// Drops unknown cipher suites and repetitions.
fn known_suites(suites: &[String]) -> Vec<String> {
    let mut seen = BTreeSet::new();
    let known = |suite: &str| {
        suite.is_empty()
            || suite == "ALL"
            || KNOWN_CIPHERS.contains(&suite)
            || !suite.starts_with(|c: char| c.is_ascii_alphanumeric())
    };
    suites
        .iter()
        .filter(|s| known(s) && seen.insert(s.as_str()))
        .cloned()
        .collect()
}

fn exact_names(names: &[String]) -> Vec<StringMatcher> {
    names
        .iter()
        .map(|name| StringMatcher {
            match_pattern: Some(MatchPattern::Exact(name.clone())),
            ..StringMatcher::default()
        })
        .collect()
}

const fn protocol(version: api::gateway::TlsProtocol) -> TlsProtocol {
    match version {
        api::gateway::TlsProtocol::TlsAuto => TlsProtocol::TlsAuto,
        api::gateway::TlsProtocol::TlsV10 => TlsProtocol::TlSv10,
        api::gateway::TlsProtocol::TlsV11 => TlsProtocol::TlSv11,
        api::gateway::TlsProtocol::TlsV12 => TlsProtocol::TlSv12,
        api::gateway::TlsProtocol::TlsV13 => TlsProtocol::TlSv13,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_repeated_suites_are_dropped() {
        let suites =
            ["AES128-SHA", "NOT-A-CIPHER", "AES128-SHA", "ALL", "[x|y]"].map(str::to_owned);
        assert_eq!(known_suites(&suites), ["AES128-SHA", "ALL", "[x|y]"]);
    }
}

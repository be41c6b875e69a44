//! TLS contexts of servers (security-policy §3.2, listeners §13).

use std::collections::BTreeSet;

use envoy_json::any;
use envoy_types::pb::envoy::{
    config::core::v3::TransportSocket,
    extensions::transport_sockets::tls::v3::{
        CertificateValidationContext, CommonTlsContext, DownstreamTlsContext, SdsSecretConfig,
        TlsParameters,
        common_tls_context::{CombinedCertificateValidationContext, ValidationContextType},
        tls_parameters::TlsProtocol,
    },
    r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern},
};
use model::{
    Features,
    api::{self, mesh::MeshTlsProtocol},
    proxy::Proxy,
};

use crate::{
    capabilities::Capabilities,
    convert,
    tls::{self, Compliance},
};

/// The ALPN protocol of peers that exchange metadata on the connection.
const PEER_EXCHANGE: &str = "istio-peer-exchange";

const MESH_CIPHERS: [&str; 6] = [
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "AES256-GCM-SHA384",
    "AES128-GCM-SHA256",
];

/// Builds the socket of mutual TLS with the mesh's certificates. `exchanges` tells that the chain
/// exchanges metadata on the connection.
pub(crate) fn mesh_socket(
    mesh: &api::MeshConfig,
    features: &Features,
    proxy: &Proxy,
    exchanges: bool,
) -> TransportSocket {
    let mut alpn = Vec::new();
    if exchanges && !features.disable_mx_alpn {
        alpn.push(PEER_EXCHANGE.to_owned());
    }
    alpn.extend(["h2", "http/1.1"].map(str::to_owned));
    let names = if features.skip_validate_trust_domain {
        Vec::new()
    } else {
        trust_domains(mesh)
            .iter()
            .map(|domain| prefix(format!("spiffe://{domain}/")))
            .collect()
    };
    let secrets = Secrets::of(proxy);
    socket(&DownstreamTlsContext {
        require_client_certificate: convert::bool_value(true),
        common_tls_context: Some(CommonTlsContext {
            tls_params: Some(mesh_parameters(mesh, features)),
            tls_certificate_sds_secret_configs: vec![secrets.certificate],
            alpn_protocols: alpn,
            validation_context_type: Some(combined(names, secrets.root)),
            ..CommonTlsContext::default()
        }),
        ..DownstreamTlsContext::default()
    })
}

/// Packs a context.
pub(crate) fn socket(context: &DownstreamTlsContext) -> TransportSocket {
    convert::transport_socket(tls::TLS_SOCKET, any(context))
}

/// The parameters of mutual TLS within the mesh.
pub(crate) fn mesh_parameters(mesh: &api::MeshConfig, features: &Features) -> TlsParameters {
    let settings = mesh.mesh_mtls.as_ref();
    let minimum = match settings.map(|s| s.min_protocol_version) {
        Some(MeshTlsProtocol::TlsV13) => TlsProtocol::TlSv13,
        Some(MeshTlsProtocol::TlsAuto | MeshTlsProtocol::TlsV12) | None => TlsProtocol::TlSv12,
    };
    let suites = settings
        .map(|s| &s.cipher_suites)
        .filter(|suites| !suites.is_empty());
    let mut parameters = TlsParameters {
        tls_minimum_protocol_version: minimum.into(),
        tls_maximum_protocol_version: TlsProtocol::TlSv13.into(),
        cipher_suites: match suites {
            Some(suites) => suites.clone(),
            None => MESH_CIPHERS.map(str::to_owned).to_vec(),
        },
        ..TlsParameters::default()
    };
    Compliance::parse(&features.compliance_policy).restrict(&mut parameters);
    parameters
}

/// Trust domains whose identities are accepted, in order, without repetition.
pub(crate) fn trust_domains(mesh: &api::MeshConfig) -> Vec<&str> {
    let mut seen = BTreeSet::new();
    std::iter::once(&mesh.trust_domain)
        .chain(&mesh.trust_domain_aliases)
        .chain(mesh.ca_certificates.iter().flat_map(|c| &c.trust_domains))
        .map(String::as_str)
        .filter(|domain| !domain.is_empty() && seen.insert(*domain))
        .collect()
}

fn prefix(text: String) -> StringMatcher {
    StringMatcher {
        match_pattern: Some(MatchPattern::Prefix(text)),
        ..StringMatcher::default()
    }
}

#[expect(deprecated, reason = "Istio writes the untyped form of subject names")]
pub(super) fn combined(names: Vec<StringMatcher>, root: SdsSecretConfig) -> ValidationContextType {
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(CertificateValidationContext {
            match_subject_alt_names: names,
            ..CertificateValidationContext::default()
        }),
        validation_context_sds_secret_config: Some(root),
        ..CombinedCertificateValidationContext::default()
    })
}

/// Certificate and root of a server: those of the agent, or files that the metadata names.
pub(super) struct Secrets {
    pub(super) certificate: SdsSecretConfig,
    pub(super) root: SdsSecretConfig,
}

impl Secrets {
    /// Chooses the secrets of a proxy.
    pub(super) fn of(proxy: &Proxy) -> Self {
        let metadata = &proxy.metadata;
        let service = file_credential(proxy);
        let capabilities = Capabilities::of(proxy);
        let (chain, key) = (&metadata.tls_server_cert_chain, &metadata.tls_server_key);
        Self {
            certificate: if chain.is_empty() || key.is_empty() {
                tls::workload_secret(tls::WORKLOAD_CERTIFICATE, capabilities)
            } else {
                tls::file_secret(&certificate_name(chain, key), service, capabilities)
            },
            root: if metadata.tls_server_root_cert.is_empty() {
                tls::workload_secret(tls::WORKLOAD_ROOT, capabilities)
            } else {
                tls::file_secret(
                    &root_name(&metadata.tls_server_root_cert),
                    service,
                    capabilities,
                )
            },
        }
    }
}

/// Names the secret of a certificate in files.
pub(super) fn certificate_name(chain: &str, key: &str) -> String {
    format!("file-cert:{chain}~{key}")
}

/// Names the secret of root certificates in a file.
pub(super) fn root_name(file: &str) -> String {
    format!("file-root:{file}")
}

/// Tells whether the node says that it has a service for credentials in files.
pub(super) fn file_credential(proxy: &Proxy) -> bool {
    proxy
        .raw_metadata
        .get("file-credential")
        .and_then(|v| v.as_str())
        == Some("true")
}

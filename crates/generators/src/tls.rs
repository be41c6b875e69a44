//! What TLS contexts of both sides share: secrets by reference and parameters.

use envoy_types::pb::{
    envoy::{
        config::core::v3::{
            AggregatedConfigSource, ApiConfigSource, ApiVersion, ConfigSource, GrpcService,
            api_config_source::ApiType, config_source::ConfigSourceSpecifier, grpc_service,
        },
        extensions::transport_sockets::tls::v3::{
            SdsSecretConfig, TlsParameters,
            tls_parameters::{CompliancePolicy, TlsProtocol},
        },
    },
    google::protobuf::Duration,
};

use crate::capabilities::Capabilities;

/// Name of the transport socket that speaks TLS.
pub const TLS_SOCKET: &str = "envoy.transport_sockets.tls";
/// Secret of the workload's own certificate.
pub const WORKLOAD_CERTIFICATE: &str = "default";
/// Secret of the certificates that verify peers of the mesh.
pub const WORKLOAD_ROOT: &str = "ROOTCA";
/// The cluster of the agent's secret service.
const AGENT: &str = "sds-grpc";
/// How long a proxy that may have no agent waits for its certificates.
const WITHOUT_AGENT: Duration = Duration {
    seconds: 1,
    nanos: 0,
};
/// Cipher suites that FIPS and post-quantum policies allow.
const STRONG_CIPHERS: [&str; 4] = [
    "ECDHE-ECDSA-AES128-GCM-SHA256",
    "ECDHE-RSA-AES128-GCM-SHA256",
    "ECDHE-ECDSA-AES256-GCM-SHA384",
    "ECDHE-RSA-AES256-GCM-SHA384",
];

/// A config source that uses the stream that everything else comes by.
pub fn ads() -> ConfigSource {
    ConfigSource {
        resource_api_version: ApiVersion::V3.into(),
        config_source_specifier: Some(ConfigSourceSpecifier::Ads(AggregatedConfigSource {})),
        ..ConfigSource::default()
    }
}

/// A config source that waits for the first answer as long as it takes.
pub fn ads_without_timeout() -> ConfigSource {
    ConfigSource {
        initial_fetch_timeout: Some(Duration::default()),
        ..ads()
    }
}

/// A secret that the proxy's agent holds: [`WORKLOAD_CERTIFICATE`] or [`WORKLOAD_ROOT`].
///
/// What needs it waits for the agent as long as it takes, if there is one. Otherwise it goes into
/// service after a second: without certificates, but beside plaintext that needs none.
pub fn workload_secret(name: &str, capabilities: Capabilities) -> SdsSecretConfig {
    let mut source = grpc_source(AGENT);
    source.initial_fetch_timeout = Some(if capabilities.agent {
        Duration::default()
    } else {
        WITHOUT_AGENT
    });
    secret(name, source)
}

/// A secret in files, which the agent reads, or the file credential service when the node's metadata
/// `file-credential` says that there is one.
pub fn file_secret(
    name: &str,
    file_credential: bool,
    capabilities: Capabilities,
) -> SdsSecretConfig {
    if file_credential {
        return secret(name, grpc_source("sds-files-grpc"));
    }
    let mut source = grpc_source(AGENT);
    source.initial_fetch_timeout = (!capabilities.agent).then_some(WITHOUT_AGENT);
    secret(name, source)
}

/// A service of the mesh that serves `sds://` names.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct SecretProvider {
    /// Its cluster.
    pub cluster: String,
    /// Its host name.
    pub host: String,
}

/// Who serves `sds://` names to a proxy; the first of the two that there is.
#[derive(Clone, Copy, Default, Debug)]
pub struct SecretServices<'a> {
    /// A socket beside the proxy.
    pub socket: bool,
    /// A service of the mesh.
    pub provider: Option<&'a SecretProvider>,
}

/// The secret that a `credentialName` stands for.
pub fn credential_secret(
    name: &str,
    services: SecretServices<'_>,
    capabilities: Capabilities,
) -> SdsSecretConfig {
    match name {
        "builtin://" => return workload_secret(WORKLOAD_CERTIFICATE, capabilities),
        "builtin://-cacert" => return workload_secret(WORKLOAD_ROOT, capabilities),
        _ => {}
    }
    if name.starts_with("invalid://") {
        return secret("invalid://", ads());
    }
    let kept = ["kubernetes://", "kubernetes-gateway://", "configmap://"];
    if kept.iter().any(|prefix| name.starts_with(prefix)) {
        return secret(name, ads());
    }
    match (name.strip_prefix("sds://"), services.provider) {
        (Some(_), _) if services.socket => secret(name, grpc_source(crate::names::SDS_EXTERNAL)),
        (Some(rest), Some(provider)) => {
            secret(rest, grpc_source_of(&provider.cluster, &provider.host))
        }
        (Some(rest), None) => secret(&format!("kubernetes://{rest}"), ads()),
        (None, _) => secret(&format!("kubernetes://{name}"), ads()),
    }
}

fn secret(name: &str, source: ConfigSource) -> SdsSecretConfig {
    SdsSecretConfig {
        name: name.to_owned(),
        sds_config: Some(source),
    }
}

/// A config source that asks `cluster` by gRPC.
pub fn grpc_source(cluster: &str) -> ConfigSource {
    grpc_source_of(cluster, "")
}

/// A config source that asks `cluster` by gRPC, under the name `authority` unless that is empty.
fn grpc_source_of(cluster: &str, authority: &str) -> ConfigSource {
    let grpc = GrpcService {
        target_specifier: Some(grpc_service::TargetSpecifier::EnvoyGrpc(
            grpc_service::EnvoyGrpc {
                cluster_name: cluster.to_owned(),
                authority: authority.to_owned(),
                ..grpc_service::EnvoyGrpc::default()
            },
        )),
        ..GrpcService::default()
    };
    ConfigSource {
        resource_api_version: ApiVersion::V3.into(),
        config_source_specifier: Some(ConfigSourceSpecifier::ApiConfigSource(ApiConfigSource {
            api_type: ApiType::Grpc.into(),
            transport_api_version: ApiVersion::V3.into(),
            grpc_services: vec![grpc],
            set_node_on_first_message_only: true,
            ..ApiConfigSource::default()
        })),
        ..ConfigSource::default()
    }
}

/// The `COMPLIANCE_POLICY` of the control plane.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Compliance {
    /// No restriction.
    #[default]
    None,
    /// `fips-140-2`.
    Fips140v2,
    /// `fips-140-3`.
    Fips140v3,
    /// `pqc`.
    PostQuantum,
}

impl Compliance {
    /// Reads the flag; an unknown value restricts nothing.
    pub fn parse(flag: &str) -> Self {
        match flag {
            "fips-140-2" => Self::Fips140v2,
            "fips-140-3" => Self::Fips140v3,
            "pqc" => Self::PostQuantum,
            _ => Self::None,
        }
    }

    /// Restricts the parameters of a context, last of all.
    pub fn restrict(self, parameters: &mut TlsParameters) {
        match self {
            Self::None => {}
            Self::Fips140v2 => {
                parameters.tls_minimum_protocol_version = TlsProtocol::TlSv12.into();
                parameters.tls_maximum_protocol_version = TlsProtocol::TlSv12.into();
                parameters
                    .cipher_suites
                    .retain(|suite| STRONG_CIPHERS.contains(&suite.as_str()));
                parameters.ecdh_curves.clear();
            }
            Self::Fips140v3 => {
                parameters.compliance_policies = vec![CompliancePolicy::Fips202205.into()];
            }
            Self::PostQuantum => {
                parameters.tls_minimum_protocol_version = TlsProtocol::TlSv13.into();
                parameters.cipher_suites = STRONG_CIPHERS.map(str::to_owned).to_vec();
                parameters.ecdh_curves = vec!["X25519MLKEM768".to_owned()];
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The name and how it is fetched: `ads` or the cluster asked by gRPC.
    #[track_caller]
    fn check(secret: &SdsSecretConfig, name: &str, source: &str, waits: bool) {
        let config = secret.sds_config.as_ref().unwrap();
        let found = match config.config_source_specifier.as_ref().unwrap() {
            ConfigSourceSpecifier::Ads(_) => "ads",
            ConfigSourceSpecifier::ApiConfigSource(api) => {
                match api.grpc_services[0].target_specifier.as_ref().unwrap() {
                    grpc_service::TargetSpecifier::EnvoyGrpc(grpc) => &grpc.cluster_name,
                    grpc_service::TargetSpecifier::GoogleGrpc(_) => "google",
                }
            }
            _ => "other",
        };
        let has_timeout = config.initial_fetch_timeout.is_some();
        assert_eq!((&*secret.name, found, has_timeout), (name, source, waits));
    }

    #[track_caller]
    fn check_credential(name: &str, services: SecretServices<'_>, expected: (&str, &str, bool)) {
        let found = credential_secret(name, services, Capabilities::ISTIO);
        check(&found, expected.0, expected.1, expected.2);
    }

    #[test]
    fn secrets_by_name() {
        let none = SecretServices::default();
        check_credential("builtin://", none, ("default", "sds-grpc", true));
        check_credential("builtin://-cacert", none, ("ROOTCA", "sds-grpc", true));
        check_credential("invalid://x", none, ("invalid://", "ads", false));
        check_credential("configmap://a/b", none, ("configmap://a/b", "ads", false));
        check_credential("x", none, ("kubernetes://x", "ads", false));
        check_credential("sds://x", none, ("kubernetes://x", "ads", false));
        let provider = SecretProvider {
            cluster: "outbound|1||h".to_owned(),
            host: "h".to_owned(),
        };
        let mesh = SecretServices {
            socket: false,
            provider: Some(&provider),
        };
        check_credential("sds://x", mesh, ("x", "outbound|1||h", false));
        check_credential("x", mesh, ("kubernetes://x", "ads", false));
        let both = SecretServices {
            socket: true,
            ..mesh
        };
        check_credential("sds://x", both, ("sds://x", "sds-external", false));
        check(
            &file_secret("file-root:system", true, Capabilities::ISTIO),
            "file-root:system",
            "sds-files-grpc",
            false,
        );
    }

    #[test]
    fn compliance_restricts_parameters() {
        let mut parameters = TlsParameters {
            cipher_suites: vec!["AES128-SHA".to_owned(), STRONG_CIPHERS[1].to_owned()],
            ecdh_curves: vec!["P-256".to_owned()],
            ..TlsParameters::default()
        };
        Compliance::parse("fips-140-2").restrict(&mut parameters);
        assert_eq!(parameters.cipher_suites, [STRONG_CIPHERS[1]]);
        assert!(parameters.ecdh_curves.is_empty());
        Compliance::parse("pqc").restrict(&mut parameters);
        assert_eq!(parameters.ecdh_curves, ["X25519MLKEM768"]);
        assert_eq!(
            parameters.tls_minimum_protocol_version,
            i32::from(TlsProtocol::TlSv13)
        );
    }
}

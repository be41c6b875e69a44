//! Upstream TLS and the PROXY protocol (clusters-endpoints §9, §10).

use envoy_json::any;
use envoy_types::pb::{
    envoy::{
        config::{
            cluster::v3::{Cluster, cluster::TransportSocketMatch},
            core::v3::{
                DataSource, ProxyProtocolConfig, TransportSocket, data_source,
                proxy_protocol_config::Version,
            },
        },
        extensions::transport_sockets::{
            proxy_protocol::v3::ProxyProtocolUpstreamTransport,
            tls::v3::{
                CertificateValidationContext, CommonTlsContext, SdsSecretConfig, TlsParameters,
                UpstreamTlsContext,
                common_tls_context::{CombinedCertificateValidationContext, ValidationContextType},
            },
        },
        r#type::matcher::v3::{StringMatcher, string_matcher::MatchPattern},
    },
    google::protobuf::Struct,
};
use model::api::{
    common::{ClientTlsMode, ClientTlsSettings},
    destination_rule::{ProxyProtocol, ProxyProtocolVersion},
    security::MutualTlsMode,
};
use serde_json::json;

use super::{balancer, client::Client, http::HttpOptions, parts};
use crate::{
    convert,
    tls::{self, SecretServices},
};

/// Root certificates of the system, as a file name.
const SYSTEM_ROOTS: &str = "system";

/// How a server is believed to treat mutual TLS (§9.1).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum ServerMode {
    /// Not part of the mesh.
    Unknown,
    /// Does not offer it.
    Disable,
    /// Offers or demands it.
    Offered,
}

impl ServerMode {
    /// Reads what the snapshot infers.
    pub(super) fn of(inferred: Option<MutualTlsMode>) -> Self {
        match inferred {
            None | Some(MutualTlsMode::Unset) => Self::Unknown,
            Some(MutualTlsMode::Disable) => Self::Disable,
            Some(MutualTlsMode::Permissive | MutualTlsMode::Strict) => Self::Offered,
        }
    }
}

/// What decides the TLS of one cluster.
#[derive(Clone, Copy, Debug)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts")]
pub(super) struct TlsChoice<'a> {
    /// The settings of the resolved policy.
    pub settings: Option<&'a ClientTlsSettings>,
    /// What the TLS is for, for messages.
    pub subject: &'a str,
    /// The server is outside of the mesh.
    pub mesh_external: bool,
    /// The service comes from a ServiceEntry: its identities count where a rule names none.
    pub service_entry: bool,
    /// Identities of the service.
    pub accounts: &'a [std::sync::Arc<str>],
    /// The SNI for mutual TLS of the mesh when the rule has none; empty for forward proxies.
    pub default_sni: &'a str,
    /// How the server is believed to treat mutual TLS.
    pub server: ServerMode,
    /// The rule selects workloads.
    pub selects_workloads: bool,
    /// The cluster is a dynamic forward proxy.
    pub forward_proxy: bool,
    /// The secret with a certificate that is presented where the rule names none.
    pub certificate: Option<&'a str>,
}

/// The settings in force after defaults, service accounts and certificates of the metadata.
#[derive(Clone, Debug)]
struct Effective<'a> {
    mode: ClientTlsMode,
    /// Found out rather than asked for.
    auto: bool,
    certificate: &'a str,
    key: &'a str,
    roots: &'a str,
    crl: &'a str,
    credential: &'a str,
    sans: Vec<&'a str>,
    sni: &'a str,
    skip_verify: bool,
}

/// What a forward proxy has to know of the TLS that was applied.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub(super) struct Applied {
    /// The server is not verified, or not by the request's host.
    pub insecure: bool,
}

/// Applies TLS to a cluster: its sockets and what HTTP options follow.
pub(super) fn apply(
    cluster: &mut Cluster,
    http: &mut HttpOptions,
    choice: &TlsChoice<'_>,
    client: &Client,
) -> Applied {
    let mut applied = Applied::default();
    let settings = choice
        .effective(client)
        .filter(|s| s.mode != ClientTlsMode::Disable);
    let Some(settings) = settings else {
        if client.hbone {
            let hbone = hbone_match(client.parts().raw_buffer.clone());
            cluster.transport_socket_matches = vec![hbone, client.parts().plaintext_match.clone()];
        }
        return applied;
    };
    let socket = match settings.mode {
        ClientTlsMode::IstioMutual => Some(settings.istio_context(cluster, http, choice, client)),
        _ => settings.plain_context(http, choice, client),
    };
    let by_host = choice.forward_proxy || settings.mode != ClientTlsMode::IstioMutual;
    if by_host && socket.is_some() {
        http.upstream.auto_sni = settings.sni.is_empty();
        http.upstream.auto_san_validation = !settings.skip_verify
            && (choice.forward_proxy || (settings.sni.is_empty() && settings.sans.is_empty()));
        applied.insecure =
            settings.skip_verify || !http.upstream.auto_sni || !http.upstream.auto_san_validation;
    }
    let Some(socket) = socket else {
        return applied;
    };
    let original_dst = balancer::is_original_dst(cluster);
    let matches = &mut cluster.transport_socket_matches;
    match (settings.mode, settings.auto) {
        (ClientTlsMode::IstioMutual, true) if !original_dst => {
            if client.hbone {
                matches.push(hbone_match(client.parts().raw_buffer.clone()));
            }
            matches.push(TransportSocketMatch {
                name: "tlsMode-istio".to_owned(),
                r#match: Some(envoy_json::struct_value(json!({"tlsMode": "istio"}))),
                transport_socket: Some(socket),
            });
            matches.push(client.parts().plaintext_match.clone());
        }
        (mode, _) if client.hbone && !original_dst => {
            let (inner, name) = if mode == ClientTlsMode::IstioMutual {
                (client.parts().raw_buffer.clone(), "tlsMode-istio")
            } else {
                (socket.clone(), "user")
            };
            matches.push(hbone_match(inner));
            matches.push(TransportSocketMatch {
                name: name.to_owned(),
                r#match: Some(Struct::default()),
                transport_socket: Some(socket),
            });
        }
        _ => cluster.transport_socket = Some(socket),
    }
    applied
}

/// The socket of TLS that a rule asks for with certificates of its own, or none; `None` for any other
/// mode.
pub(super) fn own_socket(
    http: &mut HttpOptions,
    choice: &TlsChoice<'_>,
    client: &Client,
) -> Option<TransportSocket> {
    let own = [ClientTlsMode::Simple, ClientTlsMode::Mutual];
    let settings = choice.effective(client);
    let settings = settings.filter(|settings| own.contains(&settings.mode))?;
    let socket = settings.plain_context(http, choice, client)?;
    http.upstream.auto_sni = settings.sni.is_empty();
    http.upstream.auto_san_validation = !settings.skip_verify
        && (choice.forward_proxy || (settings.sni.is_empty() && settings.sans.is_empty()));
    Some(socket)
}

impl<'a> TlsChoice<'a> {
    fn effective(&self, client: &'a Client) -> Option<Effective<'a>> {
        let accounts = || self.accounts.iter().map(|a| &**a).collect::<Vec<_>>();
        let Some(given) = self.settings else {
            if self.mesh_external || !client.mesh.auto_mtls || self.server != ServerMode::Offered {
                return None;
            }
            let mutual = match &client.certificates {
                Some(files) => Effective::of_files(files),
                None => Effective::istio(),
            };
            return Some(Effective {
                auto: true,
                sans: accounts(),
                sni: self.default_sni,
                ..mutual
            });
        };
        let as_given = Effective {
            mode: given.mode,
            auto: false,
            certificate: &given.client_certificate,
            key: &given.private_key,
            roots: &given.ca_certificates,
            crl: &given.ca_crl,
            credential: &given.credential_name,
            sans: given.subject_alt_names.iter().map(String::as_str).collect(),
            sni: &given.sni,
            skip_verify: given.insecure_skip_verify.unwrap_or_default(),
        };
        let keeps_rule = self.mesh_external && client.flags.prefer_rule_tls_for_external;
        match given.mode {
            ClientTlsMode::Disable | ClientTlsMode::Simple => Some(as_given),
            ClientTlsMode::Mutual | ClientTlsMode::IstioMutual => {
                if let Some(files) = client.certificates.as_ref().filter(|_| !keeps_rule) {
                    return Some(Effective {
                        sans: as_given.sans,
                        sni: as_given.sni,
                        skip_verify: as_given.skip_verify,
                        ..Effective::of_files(files)
                    });
                }
                if given.mode == ClientTlsMode::Mutual {
                    return Some(as_given);
                }
                let sans = if as_given.sans.is_empty() {
                    accounts()
                } else {
                    as_given.sans
                };
                let sni = if as_given.sni.is_empty() {
                    self.default_sni
                } else {
                    as_given.sni
                };
                Some(Effective {
                    sans,
                    sni,
                    skip_verify: as_given.skip_verify,
                    ..Effective::istio()
                })
            }
        }
    }
}

impl<'a> Effective<'a> {
    /// Mutual TLS of the mesh, nothing else set.
    fn istio() -> Self {
        Self {
            mode: ClientTlsMode::IstioMutual,
            auto: false,
            certificate: "",
            key: "",
            roots: "",
            crl: "",
            credential: "",
            sans: Vec::new(),
            sni: "",
            skip_verify: false,
        }
    }

    /// Mutual TLS with the files that the node states.
    fn of_files(files: &'a super::client::ClientCertificates) -> Self {
        Self {
            mode: ClientTlsMode::Mutual,
            certificate: &files.chain,
            key: &files.key,
            roots: &files.root,
            ..Self::istio()
        }
    }

    /// The context of mutual TLS within the mesh.
    fn istio_context(
        &self,
        cluster: &Cluster,
        http: &HttpOptions,
        choice: &TlsChoice<'_>,
        client: &Client,
    ) -> TransportSocket {
        let sni = if self.sni.is_empty() && !choice.forward_proxy {
            &cluster.name
        } else {
            self.sni
        };
        let mutual = &client.parts().mutual_tls;
        let context = mutual.context(http.is_http2(), &self.sans, sni);
        convert::transport_socket(tls::TLS_SOCKET, context)
    }

    /// The context of TLS with given certificates; `None` when there can be none.
    fn plain_context(
        &self,
        http: &HttpOptions,
        choice: &TlsChoice<'_>,
        client: &Client,
    ) -> Option<TransportSocket> {
        let by_credential = !self.credential.is_empty();
        // Every sidecar that sees the rule would have to read the secret.
        let widely_shared = by_credential
            && !client.is_router()
            && !choice.selects_workloads
            && !self.credential.starts_with("configmap://");
        if widely_shared {
            return None;
        }
        let mutual = self.mode == ClientTlsMode::Mutual;
        let mut context = CommonTlsContext {
            tls_params: Some(parameters(client)),
            alpn_protocols: if http.is_http2() {
                vec!["h2".to_owned()]
            } else {
                Vec::new()
            },
            ..CommonTlsContext::default()
        };
        let names = if self.sans.is_empty() && choice.service_entry {
            choice.accounts.iter().map(|a| &**a).collect()
        } else {
            self.sans.clone()
        };
        let mut validation = exact_names(&names);
        let services = SecretServices {
            socket: client.credential_socket,
            provider: None,
        };
        if let Some(certificate) = choice.certificate.filter(|_| !mutual) {
            let secret = tls::credential_secret(certificate, services, client.capabilities);
            context.tls_certificate_sds_secret_configs = vec![secret];
        }
        if by_credential {
            let secret = |name: &str| tls::credential_secret(name, services, client.capabilities);
            if mutual {
                context.tls_certificate_sds_secret_configs = vec![secret(self.credential)];
            }
            if !self.skip_verify {
                let roots = secret(&format!("{}-cacert", self.credential));
                context.validation_context_type = Some(combined(validation, roots));
            }
            return Some(socket(context, self.sni.to_owned()));
        }
        let secret =
            |name: &str| tls::file_secret(name, client.file_credential, client.capabilities);
        if mutual {
            if self.certificate.is_empty() || self.key.is_empty() {
                tracing::warn!(
                    service = choice.subject,
                    "mutual TLS without client certificate or key, sent in plaintext",
                );
                return None;
            }
            let name = format!("file-cert:{}~{}", self.certificate, self.key);
            context.tls_certificate_sds_secret_configs = vec![secret(&name)];
        }
        context.validation_context_type = Some(if self.skip_verify {
            ValidationContextType::ValidationContext(CertificateValidationContext::default())
        } else {
            if !self.crl.is_empty() {
                validation.crl = Some(DataSource {
                    specifier: Some(data_source::Specifier::Filename(self.crl.to_owned())),
                    ..DataSource::default()
                });
            }
            let roots = if self.roots.is_empty() {
                SYSTEM_ROOTS
            } else {
                self.roots
            };
            combined(validation, secret(&format!("file-root:{roots}")))
        });
        Some(socket(context, self.sni.to_owned()))
    }
}

/// The parameters of TLS that is no mutual TLS of the mesh.
fn parameters(client: &Client) -> TlsParameters {
    let mut parameters = parts::tls_parameters();
    if let Some(defaults) = client.mesh.tls_defaults.as_ref() {
        parameters.ecdh_curves.clone_from(&defaults.ecdh_curves);
        parameters.cipher_suites.clone_from(&defaults.cipher_suites);
    }
    client.flags.compliance.restrict(&mut parameters);
    parameters
}

/// Wraps every socket of a cluster so that it sends a PROXY protocol header.
pub(super) fn apply_proxy_protocol(cluster: &mut Cluster, protocol: Option<&ProxyProtocol>) {
    let Some(protocol) = protocol else {
        return;
    };
    let version = match protocol.version {
        ProxyProtocolVersion::V1 => Version::V1,
        ProxyProtocolVersion::V2 => Version::V2,
    };
    let wrap = |inner: TransportSocket| {
        convert::transport_socket(
            "envoy.transport_sockets.upstream_proxy_protocol",
            any(&ProxyProtocolUpstreamTransport {
                config: Some(ProxyProtocolConfig {
                    version: version.into(),
                    ..ProxyProtocolConfig::default()
                }),
                transport_socket: Some(inner),
                ..ProxyProtocolUpstreamTransport::default()
            }),
        )
    };
    if cluster.transport_socket_matches.is_empty() {
        let inner = cluster
            .transport_socket
            .take()
            .unwrap_or_else(|| convert::transport_socket("raw_buffer", parts::raw_buffer_config()));
        cluster.transport_socket = Some(wrap(inner));
        return;
    }
    for entry in &mut cluster.transport_socket_matches {
        entry.transport_socket = entry.transport_socket.take().map(wrap);
    }
}

fn hbone_match(inner: TransportSocket) -> TransportSocketMatch {
    TransportSocketMatch {
        name: "hbone".to_owned(),
        r#match: Some(envoy_json::struct_value(json!({"tunnel": "http"}))),
        transport_socket: Some(parts::hbone_socket(inner)),
    }
}

/// Packs an upstream context into a socket.
pub(super) fn socket(context: CommonTlsContext, sni: String) -> TransportSocket {
    convert::transport_socket(
        tls::TLS_SOCKET,
        any(&UpstreamTlsContext {
            common_tls_context: Some(context),
            sni,
            ..UpstreamTlsContext::default()
        }),
    )
}

/// Roots by reference together with what else is demanded of the peer.
pub(super) fn combined(
    default: CertificateValidationContext,
    roots: SdsSecretConfig,
) -> ValidationContextType {
    ValidationContextType::CombinedValidationContext(CombinedCertificateValidationContext {
        default_validation_context: Some(default),
        validation_context_sds_secret_config: Some(roots),
        ..CombinedCertificateValidationContext::default()
    })
}

#[expect(
    deprecated,
    reason = "the form that Istio sends and that old proxies know"
)]
fn exact_names(names: &[&str]) -> CertificateValidationContext {
    CertificateValidationContext {
        match_subject_alt_names: names
            .iter()
            .map(|name| StringMatcher {
                match_pattern: Some(MatchPattern::Exact((*name).to_owned())),
                ..StringMatcher::default()
            })
            .collect(),
        ..CertificateValidationContext::default()
    }
}

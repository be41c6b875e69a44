//! Gateway and TLS of servers (config-model.md §5.1).

use super::names::Verdict;
use super::{Scope, names};
use crate::api::gateway::{Gateway, Port, Server, ServerTlsMode, ServerTlsSettings, TlsProtocol};
use crate::{Meta, Protocol};

/// Annotation that marks gateways made from Gateway API.
const GATEWAY_SEMANTICS: &str = "internal.istio.io/gateway-semantics";

/// Start of a bind address that is a Unix socket.
pub(super) const UNIX: &str = "unix://";

/// Cipher suites that Envoy knows.
const CIPHER_SUITES: [&str; 14] = [
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
];

pub(super) fn validate(spec: &Gateway, meta: &Meta, scope: &Scope<'_>) {
    let is_generated = meta
        .annotations
        .get(GATEWAY_SEMANTICS)
        .is_some_and(|value| value == "gateway");
    if !is_generated {
        let root = scope.root("metadata");
        root.field("name").check(names::dns_label(&meta.name));
    }
    if spec.servers.is_empty() {
        scope
            .field("servers")
            .error("a gateway needs at least one server");
    }
    scope.each("servers", &spec.servers, |scope, server| {
        validate_server(server, is_generated, scope);
    });
    let port_names: Vec<Option<&str>> = spec
        .servers
        .iter()
        .map(|server| server.port.as_ref().map(|port| port.name.as_str()))
        .collect();
    for (index, name) in port_names.iter().enumerate() {
        if let Some(name) = name
            && port_names[..index].contains(&Some(name))
        {
            scope
                .field("servers")
                .index(index)
                .field("port")
                .field("name")
                .error(format_args!("another server has a port named {name:?}"));
        }
    }
}

fn validate_server(server: &Server, is_generated: bool, scope: &Scope<'_>) {
    if server.hosts.is_empty() {
        scope
            .field("hosts")
            .error("a server needs at least one host");
    }
    scope.each("hosts", &server.hosts, |scope, host| {
        scope.check(namespaced_host(host, is_generated));
    });
    let port = server_port(server, scope);
    bind(server, scope);
    if let Some(tls) = &server.tls {
        server_tls(&scope.field("tls"), tls);
    }
    let Some(port) = port else { return };
    let protocol = Protocol::parse(&port.protocol);
    match &server.tls {
        None if protocol.is_tls() => {
            scope
                .field("tls")
                .error(format_args!("must be set for protocol {protocol}"));
        }
        Some(tls) if !protocol.is_tls() => {
            // On HTTP, a block may stand that does nothing but redirect to HTTPS.
            let passthrough = matches!(
                tls.mode,
                ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough
            );
            let files = [
                &tls.server_certificate,
                &tls.private_key,
                &tls.ca_certificates,
            ];
            if !protocol.is_http() || !passthrough || files.iter().any(|file| !file.is_empty()) {
                scope.field("tls").error(format_args!(
                    "only allowed for HTTPS and TLS, not for protocol {protocol}"
                ));
            }
            if tls.https_redirect && !protocol.is_http() {
                scope
                    .field("tls")
                    .field("httpsRedirect")
                    .warning("only has an effect on HTTP servers");
            }
        }
        Some(tls) if tls.https_redirect => {
            scope
                .field("tls")
                .field("httpsRedirect")
                .warning("only has an effect on HTTP servers");
        }
        _ => {}
    }
}

/// Checks the port; gives it if it is sound.
fn server_port<'s>(server: &'s Server, scope: &Scope<'_>) -> Option<&'s Port> {
    let scope = scope.field("port");
    let Some(port) = &server.port else {
        scope.error("must be set");
        return None;
    };
    let mut sound = true;
    let mut check = |key: &str, verdict: Verdict| {
        sound &= verdict.is_ok();
        scope.field(key).check(verdict);
    };
    if Protocol::parse(&port.protocol).is_unsupported() {
        check("protocol", Err(unknown_protocol(&port.protocol)));
    }
    if port.number > 0 || !server.bind.starts_with(UNIX) {
        check("number", names::port(port.number));
    }
    if port.target_port > 0 {
        check("targetPort", Err("has no effect on gateways".to_owned()));
    }
    if port.name.is_empty() {
        check("name", Err("the port has no name".to_owned()));
    }
    sound.then_some(port)
}

/// Says that a protocol is unknown.
pub(super) fn unknown_protocol(name: &str) -> String {
    format!(
        "{name:?} is not a protocol, allowed are HTTP, HTTP2, HTTP_PROXY, HTTPS, GRPC, GRPC-WEB, TCP, TLS, \
         UDP, MONGO, MYSQL, REDIS"
    )
}

fn bind(server: &Server, scope: &Scope<'_>) {
    let scope = scope.field("bind");
    if let Some(path) = server.bind.strip_prefix(UNIX) {
        scope.check(names::unix_path(path));
        if let Some(port) = server.port.as_ref().filter(|port| port.number != 0) {
            scope.error(format_args!(
                "a unix socket has no port, but the number is {}",
                port.number
            ));
        }
    } else if !server.bind.is_empty() {
        scope.check(names::ip(&server.bind));
    }
}

/// Checks a host with an optional namespace before a slash.
fn namespaced_host(text: &str, is_generated: bool) -> Verdict {
    let Some((namespace, host)) = text.split_once('/') else {
        return host_part(text, true, is_generated);
    };
    let reserved = matches!(namespace, "*" | ".") || (is_generated && namespace == "~");
    if !reserved && !names::is_dns_label(namespace) {
        return Err(format!(
            "{text:?}: {namespace:?} is not a namespace, \"*\" or \".\""
        ));
    }
    host_part(host, true, is_generated)
}

/// Checks the host of a Gateway's server or of a Sidecar's egress.
pub(super) fn host_part(host: &str, allow_ip: bool, allow_short: bool) -> Verdict {
    if host != "*" && !host.contains('.') && !allow_short {
        return Err(format!(
            "{host:?} is a short name, write the whole domain name"
        ));
    }
    if let Err(reason) = names::wildcard_domain(host)
        && !(allow_ip && names::is_ip(host))
    {
        return Err(reason);
    }
    if host.starts_with('*') && host != "*" && !host.starts_with("*.") {
        return Err(format!(
            "{host:?}: a wildcard stands for whole labels, as in \"*.example.com\""
        ));
    }
    Ok(())
}

/// Checks TLS of a server: certificates come from one source, and are there where they are needed.
pub(super) fn server_tls(scope: &Scope<'_>, tls: &ServerTlsSettings) {
    parameters(scope, tls);
    let certificate_fields = [
        ("serverCertificate", !tls.server_certificate.is_empty()),
        ("privateKey", !tls.private_key.is_empty()),
        ("caCertificates", !tls.ca_certificates.is_empty()),
        ("caCrl", !tls.ca_crl.is_empty()),
        ("credentialName", !tls.credential_name.is_empty()),
        ("credentialNames", !tls.credential_names.is_empty()),
        (
            "caCertCredentialName",
            !tls.ca_cert_credential_name.is_empty(),
        ),
        ("tlsCertificates", !tls.tls_certificates.is_empty()),
    ];
    let given = certificate_fields
        .iter()
        .filter(|(_, given)| *given)
        .map(|(key, _)| *key);
    match tls.mode {
        ServerTlsMode::IstioMutual => {
            for key in given {
                scope.field(key).error(
                    "not allowed with mode ISTIO_MUTUAL, which uses the mesh's certificates",
                );
            }
            return;
        }
        ServerTlsMode::Passthrough | ServerTlsMode::AutoPassthrough => {
            for key in given {
                scope
                    .field(key)
                    .warning(format_args!("has no effect with mode {}", tls.mode));
            }
            return;
        }
        ServerTlsMode::Simple | ServerTlsMode::Mutual | ServerTlsMode::OptionalMutual => {}
    }
    sources(scope, tls);
}

fn sources(scope: &Scope<'_>, tls: &ServerTlsSettings) {
    let by_name = !tls.credential_name.is_empty() || !tls.credential_names.is_empty();
    let sources = [
        ("credentialName", !tls.credential_name.is_empty()),
        ("credentialNames", !tls.credential_names.is_empty()),
        ("tlsCertificates", !tls.tls_certificates.is_empty()),
        (
            "serverCertificate",
            !tls.server_certificate.is_empty() || !tls.private_key.is_empty(),
        ),
    ];
    let given: Vec<&str> = sources
        .iter()
        .filter(|(_, given)| *given)
        .map(|(key, _)| *key)
        .collect();
    if given.len() > 1 {
        scope.error(format_args!(
            "only one source of certificates is allowed, given are {}",
            given.join(", ")
        ));
    }
    if !tls.ca_crl.is_empty() && (by_name || tls.mode == ServerTlsMode::Simple) {
        scope
            .field("caCrl")
            .error("only allowed with certificate files and a mode that verifies clients");
    }
    if by_name {
        return;
    }
    if tls.tls_certificates.is_empty() {
        for (key, file) in [
            ("serverCertificate", &tls.server_certificate),
            ("privateKey", &tls.private_key),
        ] {
            if file.is_empty() {
                scope.field(key).error(format_args!(
                    "must be set for mode {} without credentialName",
                    tls.mode
                ));
            }
        }
    }
    scope.each(
        "tlsCertificates",
        &tls.tls_certificates,
        |scope, certificate| {
            for (key, file) in [
                ("serverCertificate", &certificate.server_certificate),
                ("privateKey", &certificate.private_key),
            ] {
                if file.is_empty() {
                    scope.field(key).error("must be set");
                }
            }
        },
    );
    let ca = !tls.ca_certificates.is_empty()
        || !tls.ca_cert_credential_name.is_empty()
        || tls
            .tls_certificates
            .iter()
            .any(|certificate| !certificate.ca_certificates.is_empty());
    if tls.mode != ServerTlsMode::Simple && !ca {
        scope.field("caCertificates").error(format_args!(
            "must be set for mode {} without credentialName",
            tls.mode
        ));
    }
}

/// Checks versions, ciphers and the sizes of lists.
fn parameters(scope: &Scope<'_>, tls: &ServerTlsSettings) {
    let old = matches!(
        tls.min_protocol_version,
        TlsProtocol::TlsV10 | TlsProtocol::TlsV11
    );
    if old && tls.cipher_suites.is_empty() {
        scope.field("minProtocolVersion").warning(format_args!(
            "{} needs ciphers that are off by default, list them in cipherSuites",
            tls.min_protocol_version
        ));
    }
    for (index, suite) in tls.cipher_suites.iter().enumerate() {
        let field = scope.field("cipherSuites");
        let scope = field.index(index);
        if !CIPHER_SUITES.contains(&suite.as_str()) {
            scope.warning(format_args!(
                "{suite:?} is not a known cipher suite and is left out"
            ));
        } else if tls.cipher_suites[..index].contains(suite) {
            scope.warning(format_args!("{suite:?} is given twice"));
        }
    }
    if tls.credential_names.len() > 2 {
        scope.field("credentialNames").error(format_args!(
            "{} credentials, at most 2 are allowed",
            tls.credential_names.len()
        ));
    }
    if tls.tls_certificates.len() > 2 {
        scope.field("tlsCertificates").warning(format_args!(
            "only the first 2 of {} are used",
            tls.tls_certificates.len()
        ));
    }
}

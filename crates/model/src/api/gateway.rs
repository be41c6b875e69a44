//! `networking.istio.io` Gateway (config-model.md §3.4).

use super::codec::{message, proto_enum};
use super::common::Labels;

message! {
    /// Servers of a load balancer at the edge of the mesh.
    pub struct Gateway {
        /// What it listens to.
        servers: Vec<Server>,
        /// Labels of the proxies it configures; none selects all.
        selector: Labels,
    }

    /// One listening server.
    pub struct Server {
        /// The port.
        port: Option<Port>,
        /// Address or `unix://` path; empty means all addresses.
        bind: String,
        /// Hosts, with an optional `namespace/` of the virtual services.
        hosts: Vec<String>,
        /// TLS.
        tls: Option<ServerTlsSettings>,
        /// Not supported.
        default_endpoint: String,
        /// Name, used in statistics.
        name: String,
    }

    /// A port of a server.
    pub struct Port {
        /// Its number.
        number: u32,
        /// Its protocol.
        protocol: String,
        /// Its name.
        name: String,
        /// Deprecated and refused.
        target_port: u32,
    }

    /// TLS of a server.
    pub struct ServerTlsSettings {
        /// Answers plain HTTP with a redirect.
        https_redirect: bool,
        /// How TLS is handled.
        mode: ServerTlsMode,
        /// File of the server's certificate.
        server_certificate: String,
        /// File of the server's key.
        private_key: String,
        /// File of the certificates that verify clients.
        ca_certificates: String,
        /// File of revoked certificates.
        ca_crl: String,
        /// Secret with the server's certificate.
        credential_name: String,
        /// Secrets with the server's certificates, at most two.
        credential_names: Vec<String>,
        /// Secret with the certificates that verify clients.
        ca_cert_credential_name: String,
        /// Files of the server's certificates, at most two.
        tls_certificates: Vec<TlsCertificate>,
        /// Names of which a client's certificate must have one.
        subject_alt_names: Vec<String>,
        /// Accepted hashes of clients' public keys.
        verify_certificate_spki: Vec<String>,
        /// Accepted hashes of clients' certificates.
        verify_certificate_hash: Vec<String>,
        /// Lowest protocol version.
        min_protocol_version: TlsProtocol,
        /// Highest protocol version.
        max_protocol_version: TlsProtocol,
        /// Cipher suites for TLS up to 1.2.
        cipher_suites: Vec<String>,
        /// Curves.
        ecdh_curves: Vec<String>,
        /// Accepts clients whose certificates do not verify.
        insecure_skip_verify: Option<bool>,
    }

    /// Files of one certificate.
    pub struct TlsCertificate {
        /// File of the certificate.
        server_certificate: String,
        /// File of the key.
        private_key: String,
        /// File of the certificates that verify clients.
        ca_certificates: String,
    }
}

proto_enum! {
    /// How a server handles TLS.
    pub enum ServerTlsMode {
        /// Not terminated; routed by server name.
        Passthrough = 0 "PASSTHROUGH",
        /// Terminated; clients without certificate.
        Simple = 1 "SIMPLE",
        /// Terminated; clients must present a certificate.
        Mutual = 2 "MUTUAL",
        /// Not terminated; the server name encodes the destination.
        AutoPassthrough = 3 "AUTO_PASSTHROUGH",
        /// Terminated with the mesh's certificates.
        IstioMutual = 4 "ISTIO_MUTUAL",
        /// Terminated; clients may present a certificate.
        OptionalMutual = 5 "OPTIONAL_MUTUAL",
    }

    /// TLS versions.
    pub enum TlsProtocol {
        /// Chosen by the proxy.
        TlsAuto = 0 "TLS_AUTO",
        /// TLS 1.0.
        TlsV10 = 1 "TLSV1_0",
        /// TLS 1.1.
        TlsV11 = 2 "TLSV1_1",
        /// TLS 1.2.
        TlsV12 = 3 "TLSV1_2",
        /// TLS 1.3.
        TlsV13 = 4 "TLSV1_3",
    }
}

//! TLS of both sides: the secure port of the control plane, and those who connect to it.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, SystemTime},
};

use parking_lot::RwLock;
use rustls::{
    ClientConfig, ServerConfig,
    client::{ResolvesClientCert, Resumption},
    server::{ClientHello, NoServerSessionStorage, ResolvesServerCert},
    sign::CertifiedKey,
};

use crate::{
    Authority, Certificates, Names, PeerRule, PrivateKey, TlsError,
    peer::{provider, store},
    pem,
};

/// What gRPC speaks.
const ALPN: &[u8] = b"h2";

/// The certificate of a server, or of a client, with its key.
#[derive(Clone)]
pub struct ServerCertificate {
    certified: Arc<CertifiedKey>,
    expiry: SystemTime,
}

impl fmt::Debug for ServerCertificate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ServerCertificate")
            .field("expiry", &self.expiry)
            .finish_non_exhaustive()
    }
}

impl ServerCertificate {
    /// Lets an authority issue one for host names, for a new key.
    ///
    /// # Errors
    /// When the authority cannot.
    pub fn issue(
        authority: &Authority,
        hosts: &[String],
        lifetime: Duration,
        now: SystemTime,
    ) -> Result<Self, TlsError> {
        let key = PrivateKey::generate().map_err(|e| TlsError::Unusable(e.to_string()))?;
        let issued = authority
            .issue_for(&key, &Names::Hosts(hosts.to_vec()), lifetime, now)
            .map_err(|error| TlsError::Unusable(error.to_string()))?;
        let mut chain = vec![issued.certificate];
        chain.extend(issued.intermediates);
        Self::new(chain, &key, "the issued certificate")
    }

    /// Reads one in PEM form: the certificate with its intermediates, and the key. `place` names
    /// both in errors.
    ///
    /// # Errors
    /// When one of them cannot be read, or they do not belong together.
    pub fn from_pem(chain: &str, key: &str, place: &str) -> Result<Self, TlsError> {
        let chain = pem::parse_certificates(chain.as_bytes())
            .filter(|chain| !chain.is_empty())
            .ok_or_else(|| TlsError::NoCertificate(place.to_owned()))?;
        let key = PrivateKey::from_pem(key).ok_or_else(|| TlsError::Key(place.to_owned()))?;
        Self::new(chain, &key, place)
    }

    fn new(chain: Certificates, key: &PrivateKey, place: &str) -> Result<Self, TlsError> {
        let expiry = chain
            .first()
            .and_then(|certificate| pem::expiry([certificate]));
        let expiry = expiry.ok_or_else(|| TlsError::NoCertificate(place.to_owned()))?;
        let certified = CertifiedKey::new(chain, key.signing());
        certified
            .keys_match()
            .map_err(|error| TlsError::Unusable(format!("{place}: {error}")))?;
        Ok(Self {
            certified: Arc::new(certified),
            expiry,
        })
    }

    /// Returns when it ends to be valid.
    pub fn expiry(&self) -> SystemTime {
        self.expiry
    }
}

/// The TLS side of a port, whose certificate and roots may change at any time. What changes holds for
/// the next handshake.
#[derive(Debug)]
pub struct TlsServer {
    config: RwLock<Arc<ServerConfig>>,
}

impl TlsServer {
    /// Starts with a certificate, and a rule for the certificates of clients; they may also show
    /// none.
    ///
    /// # Errors
    /// When the library refuses the combination.
    pub fn new(certificate: &ServerCertificate, rule: PeerRule) -> Result<Self, TlsError> {
        Ok(Self {
            config: RwLock::new(server_config(certificate, rule)?),
        })
    }

    /// Takes another certificate and another rule.
    ///
    /// # Errors
    /// When the library refuses the combination; nothing changes then.
    pub fn replace(&self, certificate: &ServerCertificate, rule: PeerRule) -> Result<(), TlsError> {
        let config = server_config(certificate, rule)?;
        *self.config.write() = config;
        Ok(())
    }

    /// Returns what the next handshake uses.
    pub fn config(&self) -> Arc<ServerConfig> {
        self.config.read().clone()
    }
}

fn server_config(
    certificate: &ServerCertificate,
    rule: PeerRule,
) -> Result<Arc<ServerConfig>, TlsError> {
    let mut config = ServerConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Unusable(error.to_string()))?
        .with_client_cert_verifier(Arc::new(rule))
        .with_cert_resolver(Arc::new(Own(certificate.certified.clone())));
    config.alpn_protocols = vec![ALPN.to_vec()];
    // A resumed session would outlive the certificate that it was opened with.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok(Arc::new(config))
}

/// The one certificate of one side.
#[derive(Debug)]
struct Own(Arc<CertifiedKey>);

impl ResolvesServerCert for Own {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }
}

impl ResolvesClientCert for Own {
    fn resolve(
        &self,
        _root_hint_subjects: &[&[u8]],
        _sigschemes: &[rustls::SignatureScheme],
    ) -> Option<Arc<CertifiedKey>> {
        Some(self.0.clone())
    }

    fn has_certs(&self) -> bool {
        true
    }
}

/// Returns the TLS side of a client of gRPC that trusts these roots, and shows a certificate if it
/// has one.
///
/// # Errors
/// When a root is no certificate.
pub fn client_config(
    roots: &Certificates,
    own: Option<&ServerCertificate>,
) -> Result<Arc<ClientConfig>, TlsError> {
    let builder = ClientConfig::builder_with_provider(provider())
        .with_safe_default_protocol_versions()
        .map_err(|error| TlsError::Unusable(error.to_string()))?
        .with_root_certificates(store(roots)?);
    let mut config = match own {
        Some(own) => builder.with_client_cert_resolver(Arc::new(Own(own.certified.clone()))),
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![ALPN.to_vec()];
    config.resumption = Resumption::disabled();
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use model::SpiffeId;
    use rustls::{ClientConnection, ServerConnection, pki_types::ServerName};

    use super::*;
    use crate::identities_of;

    const DAY: Duration = Duration::from_hours(24);

    // Handshakes read the clock of the system.
    #[expect(clippy::disallowed_methods, reason = "rustls reads the same clock")]
    fn now() -> SystemTime {
        SystemTime::now()
    }

    fn authority() -> Authority {
        Authority::self_signed("cluster.local", 365 * DAY, now()).unwrap()
    }

    fn server(authority: &Authority) -> TlsServer {
        let hosts = ["istiod.istio-system.svc".to_owned()];
        let certificate = ServerCertificate::issue(authority, &hosts, DAY, now()).unwrap();
        TlsServer::new(&certificate, rule(authority)).unwrap()
    }

    fn rule(authority: &Authority) -> PeerRule {
        let domains = vec!["cluster.local".to_owned(), "old.td".to_owned()];
        PeerRule::new(authority.roots(), domains).unwrap()
    }

    fn workload(
        authority: &Authority,
        id: &str,
        lifetime: Duration,
        at: SystemTime,
    ) -> ServerCertificate {
        let key = PrivateKey::generate().unwrap();
        let names = Names::Workload(id.parse::<SpiffeId>().unwrap());
        let issued = authority.issue_for(&key, &names, lifetime, at).unwrap();
        ServerCertificate::from_pem(&issued.chain_pem(), key.to_pem(), "test").unwrap()
    }

    /// Shakes hands; who the client is to the server, or who refused.
    fn shake(
        server: &TlsServer,
        roots: &Authority,
        own: Option<&ServerCertificate>,
        name: &str,
    ) -> Result<Vec<SpiffeId>, &'static str> {
        let config = client_config(&roots.roots().to_vec(), own).unwrap();
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut client = ClientConnection::new(config, name).unwrap();
        let mut server = ServerConnection::new(server.config()).unwrap();
        for _ in 0..8 {
            let mut buffer = Vec::new();
            while client.wants_write() {
                client.write_tls(&mut buffer).unwrap();
            }
            server.read_tls(&mut &buffer[..]).unwrap();
            server.process_new_packets().map_err(|_| "server")?;
            let mut buffer = Vec::new();
            while server.wants_write() {
                server.write_tls(&mut buffer).unwrap();
            }
            client.read_tls(&mut &buffer[..]).unwrap();
            client.process_new_packets().map_err(|_| "client")?;
        }
        assert!(!client.is_handshaking() && !server.is_handshaking());
        client.writer().write_all(b"x").unwrap();
        let mut buffer = Vec::new();
        client.write_tls(&mut buffer).unwrap();
        server.read_tls(&mut &buffer[..]).unwrap();
        server.process_new_packets().map_err(|_| "server")?;
        assert_eq!(server.reader().read(&mut [0; 8]).unwrap(), 1);
        let shown = server.peer_certificates().unwrap_or_default().first();
        Ok(shown.map(identities_of).unwrap_or_default())
    }

    const HOST: &str = "istiod.istio-system.svc";
    const ID: &str = "spiffe://cluster.local/ns/a/sa/b";

    #[test]
    fn clients_are_who_their_certificate_says_and_may_show_none() {
        let ca = authority();
        let server = server(&ca);
        assert_eq!(shake(&server, &ca, None, HOST), Ok(vec![]));
        let own = workload(&ca, ID, DAY, now());
        let expected = vec![ID.parse().unwrap()];
        assert_eq!(shake(&server, &ca, Some(&own), HOST), Ok(expected));
        let alias = "spiffe://old.td/ns/a/sa/b";
        let own = workload(&ca, alias, DAY, now());
        let expected = vec![alias.parse().unwrap()];
        assert_eq!(shake(&server, &ca, Some(&own), HOST), Ok(expected));
    }

    #[test]
    fn certificates_of_others_are_refused() {
        let (ca, other) = (authority(), authority());
        let server = server(&ca);
        let check = |own: &ServerCertificate| {
            assert_eq!(shake(&server, &ca, Some(own), HOST), Err("server"));
        };
        check(&workload(&other, ID, DAY, now()));
        check(&workload(&ca, "spiffe://foreign/ns/a/sa/b", DAY, now()));
        check(&workload(&ca, ID, DAY, now() - 2 * DAY));
        // A certificate of a server is no identity of a client.
        let hosts = [HOST.to_owned()];
        check(&ServerCertificate::issue(&ca, &hosts, DAY, now()).unwrap());
    }

    #[test]
    fn a_client_knows_the_server_by_root_and_name() {
        let (ca, other) = (authority(), authority());
        let server = server(&ca);
        assert_eq!(shake(&server, &other, None, HOST), Err("client"));
        assert_eq!(shake(&server, &ca, None, "istiod.other.svc"), Err("client"));
    }

    #[test]
    fn another_certificate_holds_from_the_next_handshake() {
        let (ca, other) = (authority(), authority());
        let server = server(&ca);
        let hosts = [HOST.to_owned()];
        let next = ServerCertificate::issue(&other, &hosts, DAY, now()).unwrap();
        server.replace(&next, rule(&other)).unwrap();
        assert_eq!(shake(&server, &ca, None, HOST), Err("client"));
        let own = workload(&other, ID, DAY, now());
        let expected = vec![ID.parse().unwrap()];
        assert_eq!(shake(&server, &other, Some(&own), HOST), Ok(expected));
    }

    #[test]
    fn a_key_of_another_certificate_is_refused() {
        let ca = authority();
        let names = Names::Workload(ID.parse().unwrap());
        let key = PrivateKey::generate().unwrap();
        let issued = ca.issue_for(&key, &names, DAY, now()).unwrap();
        let another = PrivateKey::generate().unwrap();
        let error = ServerCertificate::from_pem(&issued.chain_pem(), another.to_pem(), "x.pem");
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("x.pem: "), "{error}");
    }
}

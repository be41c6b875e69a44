use x509_parser::prelude::{GeneralName, ParsedExtension, X509Certificate};

use super::*;
use crate::sign_request;

const DAY: Duration = Duration::from_hours(24);

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + 20_000 * DAY
}

fn authority() -> Authority {
    Authority::self_signed("cluster.local", 3650 * DAY, now()).unwrap()
}

fn issue(authority: &Authority, lifetime: Duration) -> Issued {
    let request = sign_request(&PrivateKey::generate().unwrap()).unwrap();
    let request = SigningRequest::parse(&request).unwrap();
    let id = "spiffe://cluster.local/ns/a/sa/b".parse().unwrap();
    authority
        .issue(&request, &Names::Workload(id), lifetime, now())
        .unwrap()
}

fn parse(der: &[u8]) -> X509Certificate<'_> {
    x509_parser::parse_x509_certificate(der).unwrap().1
}

#[test]
fn a_certificate_names_its_workload_and_nothing_else() {
    let authority = authority();
    let issued = issue(&authority, DAY);
    let certificate = parse(&issued.certificate);
    assert_eq!(certificate.subject().iter().count(), 0);
    let names = certificate.subject_alternative_name().unwrap().unwrap();
    assert!(names.critical, "there is no subject");
    let uri = GeneralName::URI("spiffe://cluster.local/ns/a/sa/b");
    assert_eq!(names.value.general_names, [uri]);
    assert!(!certificate.is_ca());
    let usage = certificate.key_usage().unwrap().unwrap().value;
    assert!(usage.digital_signature() && usage.key_encipherment() && !usage.key_cert_sign());
    let extended = certificate.extended_key_usage().unwrap().unwrap().value;
    assert!(extended.server_auth && extended.client_auth && !extended.any);
    certificate
        .verify_signature(Some(parse(authority.certificate()).public_key()))
        .unwrap();
    let another = issue(&authority, DAY);
    let serial = |issued: &Issued| parse(&issued.certificate).raw_serial().to_vec();
    assert_ne!(serial(&issued), serial(&another));
    assert_eq!(serial(&issued).len(), SERIAL_BYTES);
}

#[test]
fn the_root_is_a_certificate_authority_of_its_trust_domain() {
    let authority = authority();
    let root = parse(&authority.roots()[0]);
    assert!(root.is_ca());
    assert_eq!(root.subject().to_string(), "O=cluster.local");
    let identifier =
        |e: &ParsedExtension<'_>| matches!(e, ParsedExtension::SubjectKeyIdentifier(_));
    assert!(
        root.iter_extensions()
            .any(|e| identifier(e.parsed_extension()))
    );
    assert!(
        authority
            .description()
            .starts_with("subject O=cluster.local, serial ")
    );
}

#[test]
fn certificates_are_valid_from_before_now_until_their_authority_ends() {
    let authority = authority();
    let issued = issue(&authority, DAY);
    let expected = (now() - CLOCK_SKEW, now() + DAY);
    assert_eq!(validity(&issued.certificate), Some(expected));
    assert_eq!(issued.expiry, now() + DAY);
    let long = issue(&authority, 9999 * DAY);
    assert_eq!(long.expiry, authority.expiry());
    let names = Names::Hosts(vec!["a".to_owned()]);
    let key = PrivateKey::generate().unwrap();
    let late = authority.issue_for(&key, &names, DAY, authority.expiry());
    assert_eq!(late.unwrap_err(), IssueError::Expired);
}

#[track_caller]
fn check_lifetime(seconds: i64, expected: Option<Duration>) {
    assert_eq!(Lifetimes::default().resolve(seconds).ok(), expected);
}

#[test]
fn lifetimes_are_bounded() {
    check_lifetime(0, Some(DAY));
    check_lifetime(-5, Some(DAY));
    check_lifetime(60, Some(Duration::from_mins(1)));
    check_lifetime(90 * 86400, Some(90 * DAY));
    check_lifetime(90 * 86400 + 1, None);
    check_lifetime(i64::MAX, None);
}

/// An intermediate authority of a root, as an operator plugs it in.
struct Plugged {
    certificate: String,
    key: String,
    root: Authority,
}

fn intermediate() -> Plugged {
    let root = authority();
    let key = PrivateKey::generate().unwrap();
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, "Intermediate CA");
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
    params.use_authority_key_identifier_extension = true;
    params.not_before = now().into();
    params.not_after = (now() + 100 * DAY).into();
    let unsigned = params.signed_by(&key, &root.issuer).unwrap();
    let certificate = der::sign(unsigned.der(), &root.name, root.key()).unwrap();
    Plugged {
        certificate: pem::certificates([&certificate.into()]),
        key: key.to_pem().to_owned(),
        root,
    }
}

#[test]
fn an_intermediate_authority_shows_the_way_to_the_root() {
    let plugged = intermediate();
    let roots = plugged.root.roots_pem();
    let other = authority().roots_pem();
    // With and without a chain, whose root is left out; more roots than one are for rotations.
    for chain in [String::new(), format!("{}{roots}", plugged.certificate)] {
        let both = format!("{other}{roots}");
        let authority =
            Authority::from_pem(&plugged.certificate, &plugged.key, &chain, &both, now()).unwrap();
        let issued = issue(&authority, DAY);
        assert_eq!(issued.intermediates_pem(), plugged.certificate);
        assert_eq!(
            issued.chain_pem(),
            issued.certificate_pem() + &plugged.certificate
        );
        assert_eq!(authority.roots_pem(), both);
        assert_eq!(authority.expiry(), now() + 100 * DAY);
    }
}

#[track_caller]
fn check_refused(certificate: &str, key: &str, roots: &str, at: SystemTime, expected: &str) {
    let error = Authority::from_pem(certificate, key, "", roots, at).unwrap_err();
    let error = error.to_string();
    assert!(error.contains(expected), "{error}");
    let secret = key.lines().nth(1).unwrap_or("\n");
    assert!(!error.contains(secret), "{error}");
}

#[test]
fn an_authority_that_nobody_would_trust_is_refused() {
    let plugged = intermediate();
    let (certificate, key) = (&plugged.certificate, &plugged.key);
    let roots = &plugged.root.roots_pem();
    let other = PrivateKey::generate().unwrap();
    check_refused(certificate, other.to_pem(), roots, now(), "do not verify");
    check_refused(
        certificate,
        key,
        &authority().roots_pem(),
        now(),
        "do not verify",
    );
    check_refused(certificate, key, roots, now() + 200 * DAY, "expired");
    check_refused(
        certificate,
        key,
        "",
        now(),
        "the roots holds no certificate",
    );
    check_refused("", key, roots, now(), "holds no certificate");
    check_refused(certificate, "", roots, now(), "no RSA or EC key");
    let leaf = issue(&plugged.root, DAY);
    check_refused(&leaf.certificate_pem(), key, roots, now(), "no CA");
}

#[test]
fn nothing_shows_a_key() {
    let authority = authority();
    let secret = authority.key().to_pem().lines().nth(1).unwrap().to_owned();
    let shown = format!("{authority:?} {:?}", authority.issuer);
    assert!(!shown.contains(&secret), "{shown}");
}

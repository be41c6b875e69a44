//! What a SPIFFE library makes of our certificates and names.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::time::{Duration, SystemTime};

use model::SpiffeId;
use proptest::prelude::*;
use security::{Authority, Names, PrivateKey, parse_certificates};
use spiffe::{TrustDomain, X509Bundle, X509Svid};

const DAY: Duration = Duration::from_hours(24);
const ID: &str = "spiffe://cluster.local/ns/a/sa/b";

/// The bytes inside of PEM.
fn der(pem: &str) -> Vec<u8> {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let lines = pem.lines().filter(|line| !line.starts_with("-----"));
    STANDARD.decode(lines.collect::<String>()).unwrap()
}

#[test]
#[expect(
    clippy::disallowed_methods,
    reason = "the library reads the same clock"
)]
fn a_certificate_is_an_svid_of_its_workload() {
    let now = SystemTime::now();
    let authority = Authority::self_signed("cluster.local", 365 * DAY, now).unwrap();
    let key = PrivateKey::generate().unwrap();
    let names = Names::Workload(ID.parse().unwrap());
    let issued = authority.issue_for(&key, &names, DAY, now).unwrap();
    let svid = X509Svid::parse_from_der(&issued.certificate, &der(key.to_pem())).unwrap();
    assert_eq!(svid.spiffe_id().to_string(), ID);
    assert_eq!(svid.cert_chain().len(), 1);
    let roots = parse_certificates(authority.roots_pem().as_bytes()).unwrap();
    let domain = TrustDomain::new("cluster.local").unwrap();
    let bundle = X509Bundle::parse_from_der(domain, &roots[0]).unwrap();
    assert_eq!(bundle.authorities().len(), 1);
    // One of a host is none.
    let names = Names::Hosts(vec!["istiod.istio-system.svc".to_owned()]);
    let issued = authority.issue_for(&key, &names, DAY, now).unwrap();
    X509Svid::parse_from_der(&issued.certificate, &der(key.to_pem())).unwrap_err();
}

proptest! {
    #[test]
    fn our_names_are_names_to_others(
        domain in "[a-z0-9._-]{1,12}", namespace in "[A-Za-z0-9._/%-]{0,12}", account in "\\PC{0,8}|[a-z.-]{1,9}",
    ) {
        let text = format!("spiffe://{domain}/ns/{namespace}/sa/{account}");
        if let Ok(ours) = text.parse::<SpiffeId>() {
            let theirs: spiffe::SpiffeId = text.parse().unwrap();
            prop_assert_eq!(theirs.to_string(), ours.to_string());
        }
    }
}

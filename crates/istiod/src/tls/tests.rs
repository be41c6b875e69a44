use std::fs;

use clap::Parser as _;
use security::Authority;

use super::*;

const DAY: Duration = Duration::from_hours(24);

#[derive(clap::Parser)]
struct Cli {
    #[command(flatten)]
    secure: SecureArgs,
}

fn now() -> SystemTime {
    SystemTime::UNIX_EPOCH + 20_000 * DAY
}

fn trust(domain: &str) -> Trust {
    Trust {
        domain: domain.to_owned(),
        aliases: Vec::new(),
    }
}

fn open(flags: &[String], variables: &[(&str, &str)]) -> anyhow::Result<SecurePort> {
    let cli = Cli::parse_from(std::iter::once("x".to_owned()).chain(flags.iter().cloned()));
    let variable = |name: &str| {
        let default = (name == "ROOT_CA_DIR").then(|| "/nonexistent".to_owned());
        let stated = variables.iter().find(|(stated, _)| *stated == name);
        stated.map(|(_, value)| (*value).to_owned()).or(default)
    };
    let settings = Settings::resolve(&variable).unwrap();
    let trust = trust("cluster.local");
    SecurePort::open(&cli.secure, &settings, trust, None, now())
}

/// Whether a refresh leads to another configuration of TLS.
#[track_caller]
fn check(port: &SecurePort, domain: &str, at: SystemTime, expected: bool) {
    let before = port.tls().config();
    port.refresh(trust(domain), at);
    let changed = !Arc::ptr_eq(&before, &port.tls().config());
    assert_eq!(changed, expected);
}

#[test]
fn the_certificate_is_renewed_after_half_of_its_time() {
    let port = open(&[], &[]).unwrap();
    check(&port, "cluster.local", now() + DAY / 2 - DAY / 100, false);
    check(&port, "cluster.local", now() + DAY / 2, true);
    check(&port, "cluster.local", now() + DAY / 2, false);
    let expiry = port.state.lock().certificate.expiry();
    assert_eq!(expiry, now() + DAY / 2 + DAY);
}

#[test]
fn other_trust_domains_hold_at_once() {
    let port = open(&[], &[]).unwrap();
    check(&port, "new.domain", now(), true);
    check(&port, "new.domain", now(), false);
}

#[test]
fn another_authority_brings_another_certificate() {
    let folder = tempfile::tempdir().unwrap();
    let (ca, other) = (folder.path().join("ca"), folder.path().join("other"));
    let flags = |folder: &Path| ["--ca-dir".to_owned(), folder.display().to_string()];
    let port = open(&flags(&ca), &[]).unwrap();
    open(&flags(&other), &[]).unwrap();
    check(&port, "cluster.local", now(), false);
    for file in ["ca-key.pem", "root-cert.pem", "ca-cert.pem"] {
        fs::copy(other.join(file), ca.join(file)).unwrap();
    }
    check(&port, "cluster.local", now(), true);
}

#[test]
fn the_control_plane_has_istios_names() {
    let port = open(&[], &[]).unwrap();
    let names = [
        "istiod.istio-system.svc",
        "istiod-remote.istio-system.svc",
        "istio-pilot.istio-system.svc",
    ];
    assert_eq!(port.hosts, names);
    let variables = [
        ("REVISION", "canary"),
        ("POD_NAMESPACE", "mesh"),
        ("ISTIOD_CUSTOM_HOST", "a.example, b.example"),
    ];
    let port = open(&[], &variables).unwrap();
    let names = ["a.example", "b.example", "istiod-canary.mesh.svc"];
    assert_eq!(port.hosts[..3], names);
}

#[test]
fn a_mounted_certificate_is_read_again_and_a_broken_one_is_not_taken() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let mount = |flag: &str, name: &str| format!("{flag}={}", path(name).display());
    let flags = [
        mount("--tlsCertFile", "tls.crt"),
        mount("--tlsKeyFile", "tls.key"),
        mount("--caCertFile", "ca.crt"),
    ];
    let error = open(&flags, &[]).unwrap_err();
    assert!(format!("{error:#}").contains("tls.crt"), "{error:#}");
    let write = || {
        let authority = Authority::self_signed("x", 365 * DAY, now()).unwrap();
        let key = security::PrivateKey::generate().unwrap();
        let names = security::Names::Hosts(vec!["a.b".to_owned()]);
        let issued = authority.issue_for(&key, &names, DAY, now()).unwrap();
        fs::write(path("tls.crt"), issued.chain_pem()).unwrap();
        fs::write(path("ca.crt"), authority.roots_pem()).unwrap();
        key.to_pem().to_owned()
    };
    fs::write(path("tls.key"), write()).unwrap();
    let port = open(&flags, &[]).unwrap();
    check(&port, "cluster.local", now() + DAY, false);
    // The new certificate comes before its key.
    let key = write();
    check(&port, "cluster.local", now(), false);
    fs::write(path("tls.key"), key).unwrap();
    check(&port, "cluster.local", now(), true);
    fs::remove_file(path("tls.key")).unwrap();
    check(&port, "cluster.local", now(), false);
}

#[test]
fn lifetimes_follow_istios_variables() {
    let error = Settings::resolve(&|name: &str| {
        (name == "DEFAULT_WORKLOAD_CERT_TTL").then(|| "soon".to_owned())
    });
    assert_eq!(error.unwrap_err()[0].variable, "DEFAULT_WORKLOAD_CERT_TTL");
    let port = open(&[], &[("DEFAULT_WORKLOAD_CERT_TTL", "2h")]).unwrap();
    let expiry = port.state.lock().certificate.expiry();
    assert_eq!(expiry, now() + Duration::from_hours(2));
}

use std::{fs, os::unix::fs::PermissionsExt as _};

use clap::Parser as _;
use security::{Authority, Names};

use super::*;

const DAY: Duration = Duration::from_hours(24);
const ID: &str = "spiffe://cluster.local/ns/a/sa/b";

#[derive(Debug, clap::Parser)]
struct Cli {
    #[command(flatten)]
    args: CertificateArgs,
}

fn args(further: &[&str]) -> Result<CertificateArgs, clap::Error> {
    let start = ["x", "--out", "o", "--ca-root", "r"];
    Ok(Cli::try_parse_from(start.iter().chain(further))?.args)
}

fn at() -> SystemTime {
    SystemTime::UNIX_EPOCH + 20_000 * DAY
}

fn bundle(id: &str) -> Bundle {
    let authority = Authority::self_signed("cluster.local", 365 * DAY, at()).unwrap();
    let key = PrivateKey::generate().unwrap();
    let names = Names::Workload(id.parse().unwrap());
    let issued = authority.issue_for(&key, &names, DAY, at()).unwrap();
    Bundle {
        key,
        chain: vec![issued.certificate],
        roots: authority.roots().to_vec(),
    }
}

#[test]
fn somebody_has_to_prove_something() {
    assert!(args(&[]).is_err());
    assert!(args(&["--token", "t"]).is_ok());
    assert!(args(&["--cert", "c"]).is_err());
    assert!(args(&["--cert", "c", "--key", "k"]).is_ok());
    assert!(args(&["--token", "t", "--namespace", "a"]).is_err());
    assert!(args(&["--token", "t", "--identity", "nobody"]).is_err());
}

#[track_caller]
fn check_due(expected: Duration, further: &[&str], after: Duration) {
    let args = args(&[&["--token", "t"], further].concat()).unwrap();
    assert_eq!(due(&args, &bundle(ID), at(), at() + after), expected);
}

#[test]
fn half_of_the_time_is_left_when_it_is_renewed() {
    let half = DAY / 2;
    check_due(half, &[], Duration::ZERO);
    check_due(Duration::ZERO, &[], half);
    check_due(Duration::ZERO, &[], 2 * DAY);
    check_due(half, &["--identity", ID], Duration::ZERO);
    check_due(
        half,
        &["--namespace", "a", "--service-account", "b"],
        Duration::ZERO,
    );
    // Somebody else's.
    check_due(
        Duration::ZERO,
        &["--namespace", "a", "--service-account", "c"],
        Duration::ZERO,
    );
}

#[test]
fn a_folder_gives_back_what_it_got_and_nothing_by_half() {
    let place = tempfile::tempdir().unwrap();
    let folder = Folder::open(&place.path().join("certificates")).unwrap();
    assert!(folder.read().is_none());
    let one = bundle(ID);
    folder.write(&one).unwrap();
    let path = |name: &str| place.path().join("certificates").join(name);
    let read = folder.read().unwrap();
    assert_eq!((read.chain, read.roots), (one.chain, one.roots));
    for secret in ["key.pem", "default.json"] {
        let mode = fs::metadata(path(secret)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{secret}");
    }
    let shown = fs::read_to_string(path("default.json")).unwrap();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let key = &shown["resources"][0]["tlsCertificate"]["privateKey"]["inlineString"];
    assert_eq!(key.as_str(), Some(one.key.to_pem()));
    // The key of another certificate.
    fs::write(path("key.pem"), bundle(ID).key.to_pem()).unwrap();
    assert!(folder.read().is_none());
}

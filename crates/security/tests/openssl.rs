//! What the `openssl` program makes is accepted here, and it accepts what is made here.

#![expect(clippy::unwrap_used, reason = "helpers of tests")]

use std::{
    fs,
    path::Path,
    process::Command,
    time::{Duration, SystemTime},
};

use security::{Authority, AuthorityStore, Names, SigningRequest};

const DAY: Duration = Duration::from_hours(24);
const ID: &str = "spiffe://cluster.local/ns/a/sa/b";

#[expect(clippy::disallowed_methods, reason = "openssl reads the same clock")]
fn now() -> SystemTime {
    SystemTime::now()
}

/// Runs openssl in a folder; its output.
#[track_caller]
fn openssl(folder: &Path, command: &str) -> String {
    let output = Command::new("openssl")
        .args(command.split(' '))
        .current_dir(folder)
        .output()
        .unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "openssl {command}: {out}{err}");
    out
}

/// Makes a key and a request that asks for the name of somebody else.
fn request(folder: &Path, key: &str) -> String {
    openssl(folder, &format!("genpkey {key} -out leaf.key"));
    openssl(
        folder,
        "req -new -key leaf.key -subj /O=x/CN=y -addext \
         subjectAltName=URI:spiffe://cluster.local/ns/admin/sa/root,DNS:evil.example \
         -addext keyUsage=keyCertSign -out leaf.csr",
    );
    fs::read_to_string(folder.join("leaf.csr")).unwrap()
}

/// Signs a request and lets openssl judge.
#[track_caller]
fn check(authority: &Authority, folder: &Path, key: &str) {
    let request = SigningRequest::parse(&request(folder, key)).unwrap();
    let names = Names::Workload(ID.parse().unwrap());
    let issued = authority.issue(&request, &names, DAY, now()).unwrap();
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    write("leaf.pem", &issued.certificate_pem());
    write("chain.pem", &issued.chain_pem());
    write("roots.pem", &authority.roots_pem());
    for purpose in ["sslserver", "sslclient"] {
        let command = format!(
            "verify -x509_strict -purpose {purpose} -CAfile roots.pem -untrusted chain.pem leaf.pem"
        );
        assert_eq!(openssl(folder, &command), "leaf.pem: OK\n");
    }
    let text = openssl(folder, "x509 -in leaf.pem -noout -text");
    assert!(
        text.contains(&format!(
            "X509v3 Subject Alternative Name: critical\n                URI:{ID}\n"
        )),
        "{text}"
    );
    for asked in ["admin", "evil", "CN = y", "Certificate Sign"] {
        assert!(!text.contains(asked), "{asked} in {text}");
    }
    let public = |command: &str| openssl(folder, command);
    assert_eq!(
        public("x509 -in leaf.pem -noout -pubkey"),
        public("pkey -in leaf.key -pubout")
    );
}

#[test]
#[ignore = "needs openssl; `cargo xtask test` runs it"]
fn certificates_for_keys_of_openssl_verify() {
    let folder = tempfile::tempdir().unwrap();
    let authority = Authority::self_signed("cluster.local", 3650 * DAY, now()).unwrap();
    for key in [
        "-algorithm EC -pkeyopt ec_paramgen_curve:P-256",
        "-algorithm EC -pkeyopt ec_paramgen_curve:P-384",
        "-algorithm RSA -pkeyopt rsa_keygen_bits:2048",
        "-algorithm ED25519",
    ] {
        check(&authority, folder.path(), key);
    }
}

#[test]
#[ignore = "needs openssl; `cargo xtask test` runs it"]
fn weak_requests_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    for key in [
        "-algorithm RSA -pkeyopt rsa_keygen_bits:1024",
        "-algorithm EC -pkeyopt ec_paramgen_curve:P-521",
        "-algorithm EC -pkeyopt ec_paramgen_curve:secp256k1",
    ] {
        let error = SigningRequest::parse(&request(folder.path(), key)).unwrap_err();
        let error = error.to_string();
        assert!(error.contains("RSA keys need"), "{key}: {error}");
    }
    openssl(
        folder.path(),
        "genpkey -algorithm RSA -pkeyopt rsa_keygen_bits:2048 -out leaf.key",
    );
    openssl(
        folder.path(),
        "req -new -sha1 -key leaf.key -subj /CN=y -out leaf.csr",
    );
    let text = fs::read_to_string(folder.path().join("leaf.csr")).unwrap();
    let error = SigningRequest::parse(&text).unwrap_err().to_string();
    assert!(error.contains("SHA-1"), "{error}");
}

/// `cacerts` as Istio's documents make them: a root and an intermediate, each key in `form`.
#[track_caller]
fn check_plugged(form: &str) {
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path();
    fs::write(
        at.join("ca.cnf"),
        "[ext]\nbasicConstraints = critical,CA:true,pathlen:0\nkeyUsage = critical,keyCertSign\n\
         subjectKeyIdentifier = hash\nauthorityKeyIdentifier = keyid\n",
    )
    .unwrap();
    openssl(at, &form.replace("KEY", "root-key.pem"));
    openssl(
        at,
        "req -x509 -new -key root-key.pem -days 100 -subj /O=Istio/CN=Root \
         -addext keyUsage=critical,keyCertSign -out root-cert.pem",
    );
    openssl(at, &form.replace("KEY", "ca-key.pem"));
    // More than one value of a kind, and of different string types.
    openssl(
        at,
        "req -new -key ca-key.pem -utf8 -subj /O=Istio/OU=one/OU=zwö/L=cluster1/CN=Intermediate -out ca.csr",
    );
    openssl(
        at,
        "x509 -req -in ca.csr -CA root-cert.pem -CAkey root-key.pem -CAcreateserial -days 50 \
         -extfile ca.cnf -extensions ext -out ca-cert.pem",
    );
    let chain = ["ca-cert.pem", "root-cert.pem"].map(|f| fs::read_to_string(at.join(f)).unwrap());
    fs::write(at.join("cert-chain.pem"), chain.concat()).unwrap();
    let store = AuthorityStore::open(at, None, "cluster.local", DAY, now()).unwrap();
    let key = "-algorithm EC -pkeyopt ec_paramgen_curve:P-256";
    check(&store.current(), at, key);
}

#[test]
#[ignore = "needs openssl; `cargo xtask test` runs it"]
fn an_authority_made_by_openssl_signs() {
    check_plugged("genrsa -out KEY 2048");
    check_plugged("genrsa -traditional -out KEY 2048");
    check_plugged("ecparam -name prime256v1 -genkey -noout -out KEY");
    check_plugged("genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-384 -out KEY");
}

//! Who the API server is, and who may ask it.

use std::{
    fs,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use kube::{
    Client, Config,
    config::{KubeConfigOptions, Kubeconfig},
};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    PublicKeyData as _, SanType,
};
use serde_json::{Value, json};

/// Who signs certificates of the API server and of its clients.
pub(super) const AUTHORITY: &str = "ca.crt";
/// The certificate of the API server.
pub(super) const CERTIFICATE: &str = "api.crt";
/// Its key.
pub(super) const KEY: &str = "api.key";
/// What tokens of service accounts are verified by.
pub(super) const TOKENS: &str = "tokens.pub";
/// What they are signed by.
pub(super) const TOKENS_KEY: &str = "tokens.key";

/// Where the kubeconfig of an administrator is.
pub(super) fn admin(folder: &Path) -> PathBuf {
    folder.join("kubeconfig")
}

/// Makes the credentials of an API server at `address`, and the kubeconfig of an administrator.
pub(super) fn write(folder: &Path, address: SocketAddr) -> Result<()> {
    let key = KeyPair::generate()?;
    let mut authority = named("kubernetes", None)?;
    authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let certificate = pem("CERTIFICATE", authority.self_signed(&key)?.der());
    let issuer = Issuer::new(authority, key);

    let server_key = KeyPair::generate()?;
    let mut server = named("kube-apiserver", None)?;
    let loopback = SanType::IpAddress(IpAddr::V4(Ipv4Addr::LOCALHOST));
    let localhost = SanType::DnsName("localhost".try_into()?);
    server.subject_alt_names = vec![loopback, localhost];
    server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
    let server = server.signed_by(&server_key, &issuer)?;
    let tokens = KeyPair::generate()?;
    let admin_key = KeyPair::generate()?;
    let mut administrator = named("admin", Some("system:masters"))?;
    administrator.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    let administrator = administrator.signed_by(&admin_key, &issuer)?;
    let user = json!({
        "client-certificate-data": STANDARD.encode(pem("CERTIFICATE", administrator.der())),
        "client-key-data": STANDARD.encode(private(&admin_key)),
    });
    let config = kubeconfig(address, &certificate, &user);
    for (name, text) in [
        (AUTHORITY, certificate),
        (CERTIFICATE, pem("CERTIFICATE", server.der())),
        (KEY, private(&server_key)),
        (TOKENS, pem("PUBLIC KEY", &tokens.subject_public_key_info())),
        (TOKENS_KEY, private(&tokens)),
    ] {
        put(&folder.join(name), &text)?;
    }
    put(&admin(folder), &config)
}

/// Writes the kubeconfig of whoever shows `token`.
pub(super) fn write_for_token(
    folder: &Path,
    address: SocketAddr,
    name: &str,
    token: &str,
) -> Result<PathBuf> {
    let authority = fs::read_to_string(folder.join(AUTHORITY)).context("read the authority")?;
    let path = folder.join(format!("kubeconfig-{name}"));
    put(
        &path,
        &kubeconfig(address, &authority, &json!({ "token": token })),
    )?;
    Ok(path)
}

/// Returns a client of whom a kubeconfig is.
pub(super) async fn client(path: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(path)?;
    let config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    Client::try_from(config).with_context(|| format!("make a client of {}", path.display()))
}

fn named(name: &str, group: Option<&str>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new([])?;
    params.distinguished_name.push(DnType::CommonName, name);
    if let Some(group) = group {
        params
            .distinguished_name
            .push(DnType::OrganizationName, group);
    }
    Ok(params)
}

fn private(key: &KeyPair) -> String {
    pem("PRIVATE KEY", &key.serialize_der())
}

fn pem(label: &str, der: &[u8]) -> String {
    let mut text = format!("-----BEGIN {label}-----\n");
    let encoded = STANDARD.encode(der);
    let mut rest = encoded.as_str();
    while !rest.is_empty() {
        let (line, after) = rest.split_at(rest.len().min(64));
        text.push_str(line);
        text.push('\n');
        rest = after;
    }
    text + &format!("-----END {label}-----\n")
}

/// A kubeconfig that refers to no other file. JSON is YAML.
fn kubeconfig(address: SocketAddr, authority: &str, user: &Value) -> String {
    let cluster = json!({
        "server": format!("https://{address}"),
        "certificate-authority-data": STANDARD.encode(authority),
    });
    let config = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": cluster}],
        "users": [{"name": "test", "user": user}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    });
    format!("{config:#}\n")
}

/// Writes a file that only its owner reads.
fn put(path: &Path, text: &str) -> Result<()> {
    use std::{io::Write as _, os::unix::fs::OpenOptionsExt as _};
    let open = fs::File::options()
        .write(true)
        .create(true)
        .truncate(true)
        .mode(0o600)
        .open(path);
    open.and_then(|mut file| file.write_all(text.as_bytes()))
        .with_context(|| format!("write {}", path.display()))
}

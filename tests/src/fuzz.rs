//! Everything that reads what others write, as functions of bytes: for libFuzzer (`fuzz/`), and for a short
//! run on every machine (`tests/tests/fuzz.rs`). None may panic, whatever the bytes.

mod mesh;
mod xds;

use std::time::{Duration, SystemTime};

use model::Kind;
use security::{
    CertificateDer, Issuer, KeySet, SigningRequest, TokenIssuers, identities_of, parse_certificates,
};
use serde_json::{Value, json};

/// One reader.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name, that of its folder of examples.
    pub name: &'static str,
    /// Reads the bytes.
    pub read: fn(&[u8]),
}

/// All readers.
pub const TARGETS: [Target; 10] = [
    Target {
        name: "yaml",
        read: yaml,
    },
    Target {
        name: "objects",
        read: objects,
    },
    Target {
        name: "mesh",
        read: mesh::mesh,
    },
    Target {
        name: "envoy_filter",
        read: mesh::envoy_filter,
    },
    Target {
        name: "policies",
        read: mesh::policies,
    },
    Target {
        name: "node",
        read: mesh::node,
    },
    Target {
        name: "signing_request",
        read: signing_request,
    },
    Target {
        name: "certificates",
        read: certificates,
    },
    Target {
        name: "tokens",
        read: tokens,
    },
    Target {
        name: "xds",
        read: xds::xds,
    },
];

/// Finds a reader by its name.
pub fn target(name: &str) -> Option<Target> {
    TARGETS.into_iter().find(|target| target.name == name)
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The documents of a text, and where the fields of the first are.
fn yaml(bytes: &[u8]) {
    let text = text(bytes);
    let documents = intake::yaml_values(&text).unwrap_or_default();
    if let Some(Value::Object(fields)) = documents.first() {
        for field in fields.keys().take(8) {
            intake::yaml_line(&text, field);
        }
    }
    let mesh = model::api::MeshConfig::default();
    drop(intake::mesh_config("mesh", &text, &mesh));
    drop(intake::mesh_networks("networks", &text, true));
}

/// A specification, as that of every kind of object; objects of the core group are nothing else.
fn objects(bytes: &[u8]) {
    let Ok(documents) = intake::yaml_values(&text(bytes)) else {
        return;
    };
    let Some(value) = documents.into_iter().next() else {
        return;
    };
    let decoder = istiod::load::decoder();
    for kind in Kind::ALL {
        let version = kind.versions().first().copied().unwrap_or_default();
        let api = match kind.group() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        };
        let mut object = json!({
            "apiVersion": api, "kind": kind.name(),
            "metadata": {"name": "n", "namespace": "ns"}, "spec": value,
        });
        drop(decoder.decode("fuzz", &object.to_string()));
        if let (Some(object), Value::Object(fields)) = (object.as_object_mut(), &value) {
            object.extend(fields.clone());
        }
        drop(decoder.decode("fuzz", &object.to_string()));
    }
}

/// A signing request in PEM form, or what would be in one.
fn signing_request(bytes: &[u8]) {
    drop(SigningRequest::parse(&text(bytes)));
    drop(SigningRequest::parse(&pem("CERTIFICATE REQUEST", bytes)));
}

/// Certificates in PEM form, or what would be in one.
fn certificates(bytes: &[u8]) {
    let one = CertificateDer::from(bytes.to_vec());
    identities_of(&one);
    for certificate in parse_certificates(bytes).iter().flatten() {
        identities_of(certificate);
        security::validity(certificate);
    }
    parse_certificates(pem("CERTIFICATE", bytes).as_bytes());
    drop(security::PrivateKey::from_pem(&text(bytes)));
}

/// A token, and in the lines before it the keys of its issuer.
fn tokens(bytes: &[u8]) {
    let text = text(bytes);
    let (keys, token) = text.rsplit_once('\n').unwrap_or((KEYS, &text));
    let keys = KeySet::parse(keys).or_else(|| KeySet::parse(KEYS));
    let issuer = Issuer {
        issuer: "i".to_owned(),
        audiences: vec!["a".to_owned()],
        keys: keys.unwrap_or_default(),
    };
    let now = SystemTime::UNIX_EPOCH + Duration::from_hours(500_000);
    let issuers = TokenIssuers::new("td", vec![issuer]);
    drop(issuers.verify(token, now));
    drop(token.parse::<model::SpiffeId>());
}

const KEYS: &str = r#"{"keys": [{"kty": "EC", "crv": "P-256", "x": "AA", "y": "AA"}]}"#;

fn pem(label: &str, bytes: &[u8]) -> String {
    use base64::{Engine as _, engine::general_purpose::STANDARD};
    let body = STANDARD.encode(bytes);
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n")
}
